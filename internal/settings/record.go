package settings

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	// RecordName is the name of the ConfigMap, in the namespace of the programs, that records that there is a
	// FleetAddonConfig. While the FleetAddonConfig is gone, as while a tool replaces it, the ConfigMap distinguishes
	// that from an installation that never had one.
	RecordName = "muster-config"
	// recordUID is the key with the UID of the FleetAddonConfig.
	recordUID = "uid"
	// UnwatchedInterval is how often a program looks whether a ConfigMap or a Secret of ours is still there, or writes it
	// again: to watch these kinds takes the right to read them all, and a user may have changed or deleted it, or restored
	// an earlier etcd.
	UnwatchedInterval = time.Hour
)

// record is the record that there is, or was, a FleetAddonConfig. Without one, a program remembers nothing.
type record struct {
	key client.ObjectKey
	// live reads past the cache; writer is nil except in the program that writes the record.
	live   client.Reader
	writer client.Writer

	// isAnswered means that there was no record when the program asked.
	isAnswered atomic.Bool
	// noted is the UID that was written last.
	noted atomic.Value
	// writing is held during a write. At is when the last one was, and failed its error.
	writing sync.Mutex
	at      time.Time
	failed  error
	now     func() time.Time
}

// WithRecord makes the Reader ask for the record before it concludes that there never was a FleetAddonConfig, and
// write it before anything is done by one, unless writer is nil. The namespace is that of the programs; empty means
// that there is no record, as outside a cluster.
func (r *Reader) WithRecord(live client.Reader, writer client.Writer, namespace string) *Reader {
	if namespace != "" {
		r.record = &record{key: client.ObjectKey{Namespace: namespace, Name: RecordName}, live: live, writer: writer, now: time.Now}
	}
	return r
}

// Record writes the record again if the last attempt failed or was UnwatchedInterval ago, and returns the error.
func (r *Reader) Record(ctx context.Context) error {
	its := r.record
	if its == nil || its.written() == "" {
		return nil
	}
	its.writing.Lock()
	defer its.writing.Unlock()
	if its.failed != nil || its.now().Sub(its.at) >= UnwatchedInterval {
		its.write(ctx, its.written())
	}
	return its.failed
}

// RecordKey returns the key of the record; zero if there is none.
func (r *Reader) RecordKey() client.ObjectKey {
	if r.record == nil {
		return client.ObjectKey{}
	}
	return r.record.key
}

// missing says what a missing FleetAddonConfig means, and what to do.
func (r *record) missing() string {
	by := ""
	if r != nil {
		by = fmt.Sprintf(", as ConfigMap %s says", r.key)
	}
	return "there is no FleetAddonConfig any more, although there was one" + by + ": " + MissingMeans
}

// MissingMeans ends a sentence about a FleetAddonConfig that is gone.
const MissingMeans = "its settings are unknown, so everything stays as it is, and no other Cluster is imported; apply the FleetAddonConfig again, or one with an empty spec (spec: {}), which gives the defaults"

// has reports whether there is a record. It asks until it gets an answer. When our namespace is being deleted, the
// record goes too, so that proves nothing.
func (r *record) has(ctx context.Context) (bool, error) {
	if r == nil || r.isAnswered.Load() {
		return false, nil
	}
	object := &corev1.ConfigMap{}
	err := r.live.Get(ctx, r.key, object)
	if err == nil && object.Data[recordUID] != "" {
		return true, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading ConfigMap %s, which says whether there was a FleetAddonConfig: %w", r.key, err)
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.live.Get(ctx, client.ObjectKey{Name: r.key.Namespace}, namespace); err != nil {
		return false, fmt.Errorf("reading Namespace: %w", err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return false, errors.New("whether there was a FleetAddonConfig is unknown, because Namespace " + r.key.Namespace + " is being deleted")
	}
	r.isAnswered.Store(true)
	return false, nil
}

// written returns the UID that was written last.
func (r *record) written() types.UID {
	uid, _ := r.noted.Load().(types.UID)
	return uid
}

// note records a FleetAddonConfig, once. Others wait until it is recorded.
func (r *record) note(ctx context.Context, config *addonsv1.FleetAddonConfig) {
	if r == nil || r.writer == nil || r.written() == config.UID {
		return
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.written() != config.UID {
		r.write(ctx, config.UID)
	}
}

func (r *record) write(ctx context.Context, uid types.UID) {
	r.failed, r.at = r.try(ctx, uid), r.now()
	r.noted.Store(uid)
}

func (r *record) try(ctx context.Context, uid types.UID) error {
	object := &corev1.ConfigMap{}
	err := r.live.Get(ctx, r.key, object)
	switch {
	case err == nil && object.Data[recordUID] == string(uid):
		return nil
	case err == nil:
		object.Data = map[string]string{recordUID: string(uid)}
		err = r.writer.Update(ctx, object)
	case apierrors.IsNotFound(err):
		object.Namespace, object.Name = r.key.Namespace, r.key.Name
		object.Data = map[string]string{recordUID: string(uid)}
		err = r.writer.Create(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("recording the FleetAddonConfig in ConfigMap %s: %w", r.key, err)
	}
	return nil
}
