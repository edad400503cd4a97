// Package references reads the objects that Clusters refer to: control planes and infrastructure, of kinds known
// only at run time. It decides which kinds are watched, and in which version.
package references

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// ErrUnresolved marks an error that means that a reference of the Cluster cannot be resolved now. It is reported on
// the Cluster. An event shows the end of it.
var ErrUnresolved = errors.New("template values cannot be resolved")

// ListingError is an error that ends when the first list of a kind does. Left is how long not to report it.
type ListingError struct {
	Err  error
	Left time.Duration
}

// Error names the kind.
func (e *ListingError) Error() string { return e.Err.Error() }

// Unwrap returns the reason why the list has not ended.
func (e *ListingError) Unwrap() error { return e.Err }

// Patience returns how long not to report that the first list of a kind is in progress; zero for another error, or
// if it lasts too long.
func Patience(err error) time.Duration {
	var listing *ListingError
	if errors.As(err, &listing) {
		return max(listing.Left, 0)
	}
	return 0
}

// Reader reads the objects to which Clusters refer. It watches each kind from the first read on, in the one version
// that the kind's CRD declares for the Cluster API contract, and in a cache of its own: a kind that cannot be listed
// delays no other. No read waits. The end of a list, a denied list, and each change of an object enqueue the Clusters
// that refer to it.
//
// Cluster API's ObjectTracker would forever watch the version that it saw first.
type Reader struct {
	cached   client.Reader
	mapper   meta.RESTMapper
	newCache kinds.NewCache
	// ofObject and ofKind enqueue the Clusters that refer to an object, or to the kind of a CRD.
	ofObject, ofKind handler.EventHandler
	now              func() time.Time
	ctx              context.Context //nolint:containedctx // the program's, which ends the watches

	// mu is never held during requests.
	mu sync.Mutex
	// queue is the controller's; nil until it starts. It then reconciles every Cluster.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// watches are the watched kinds by the names of their CRDs. None is without a CRD: their number has a limit.
	watches map[string]*watch
}

// NewReader returns a Reader that reads Clusters and the metadata of CRDs from a cache, and other objects from new
// ones. The watches end with the context.
func NewReader(ctx context.Context, cached client.Reader, mapper meta.RESTMapper, newCache kinds.NewCache, ofObject, ofKind handler.EventHandler) *Reader {
	return &Reader{cached: cached, mapper: mapper, newCache: newCache, ofObject: ofObject, ofKind: ofKind, now: time.Now, ctx: ctx, watches: map[string]*watch{}}
}

// Referred are the control plane and the infrastructure cluster of a Cluster, as cached and read-only; nil for a missing
// reference.
type Referred struct{ ControlPlane, Infrastructure *unstructured.Unstructured }

// Values returns the template values of the Cluster.
func (o Referred) Values(in settings.Settings, cluster *clusterv1.Cluster) (map[string]any, error) {
	controlPlane, infrastructure, err := o.expand()
	if err != nil {
		return nil, err
	}
	values, err := desired.Values(cluster, controlPlane, infrastructure, in.Cluster.Exclude)
	if err != nil {
		// Only a change of the Cluster itself can help.
		return nil, fmt.Errorf("%w: %w", ErrUnresolved, err)
	}
	return values, nil
}

// Hash returns a hash of all that Values reads. It inflates nothing.
func (o Referred) Hash(in settings.Settings, cluster *clusterv1.Cluster) ([sha256.Size]byte, error) {
	its := *cluster
	its.TypeMeta, its.ResourceVersion, its.Status = metav1.TypeMeta{}, "", clusterv1.ClusterStatus{}
	inputs, err := json.Marshal([]any{&its, in.Cluster.Exclude, []byte(kube.Content(o.ControlPlane)), []byte(kube.Content(o.Infrastructure))})
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("%w: %w", ErrUnresolved, err)
	}
	return sha256.Sum256(inputs), nil
}

func (o Referred) expand() (controlPlane, infrastructure map[string]any, err error) {
	if controlPlane, err = kube.Expand(o.ControlPlane); err != nil {
		return nil, nil, err
	}
	infrastructure, err = kube.Expand(o.Infrastructure)
	return controlPlane, infrastructure, err
}

// Objects returns the contents of what a Cluster refers to, as Read does.
func (r *Reader) Objects(ctx context.Context, cluster *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error) {
	referred, err := r.Read(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	return referred.expand()
}

// Digest writes the contents of what a Cluster refers to. Its errors are those of Read.
func (r *Reader) Digest(ctx context.Context, cluster *clusterv1.Cluster, digest io.Writer) error {
	referred, err := r.Read(ctx, cluster)
	if err == nil {
		_, err = fmt.Fprintf(digest, "%s\x00%s\x00", kube.Content(referred.ControlPlane), kube.Content(referred.Infrastructure))
	}
	return err
}

// Read returns what a Cluster refers to. An ErrUnresolved names the missing reference, and says what to do about it.
func (r *Reader) Read(ctx context.Context, cluster *clusterv1.Cluster) (referred Referred, err error) {
	referred.ControlPlane, err = r.resolve(ctx, cluster, "spec.controlPlaneRef", cluster.Spec.ControlPlaneRef)
	// Reading both lets their first lists run at the same time.
	infrastructure, other := r.resolve(ctx, cluster, "spec.infrastructureRef", cluster.Spec.InfrastructureRef)
	referred.Infrastructure = infrastructure
	return referred, cmp.Or(err, other)
}

// Warm begins to watch the kinds to which Clusters refer now. Call it in every replica: then a standby that takes
// over lists nothing.
func (r *Reader) Warm(ctx context.Context, isWatched func(client.Object) bool) error {
	var clusters clusterv1.ClusterList
	if err := r.cached.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	for i := range clusters.Items {
		if isWatched(&clusters.Items[i]) {
			_, _ = r.Read(ctx, &clusters.Items[i]) // The Cluster reports the error.
		}
	}
	return nil
}

// errUndeclared marks an error that ends when the CRD appears or declares a version for the contract, or when the
// reference is corrected.
var errUndeclared = errors.New("the kind is not served for Cluster API")

// resolve reads the object of a reference, which a field has; nil if the reference is empty. It begins, moves or ends the
// watch of the kind as the CRD says. All of this happens under one lock, so no read uses an older CRD than the one before.
func (r *Reader) resolve(ctx context.Context, cluster *clusterv1.Cluster, field string, ref clusterv1.ContractVersionedObjectReference) (*unstructured.Unstructured, error) {
	if !ref.IsDefined() {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	its := &declared{Reader: r.cached, from: r, crd: CRD()}
	object, err := external.GetObjectFromContractVersionedRef(ctx, its, ref, cluster.Namespace)
	switch crd := resourceOf(ref.GroupKind()); {
	case apierrors.IsNotFound(its.unread):
		r.drop(crd.String())
		err = fmt.Errorf("%w: CustomResourceDefinition %q not found; install the provider that it belongs to, or correct the reference", errUndeclared, crd)
	case its.unread != nil:
		return nil, fmt.Errorf("reading CustomResourceDefinition %q: %w", crd, its.unread)
	case !its.isDeclared:
		r.drop(crd.String())
		err = fmt.Errorf("%w: %w", errUndeclared, err)
	case its.unlisted != nil:
		err = its.unlisted
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnresolved, field, err)
	}
	return object, nil
}

// declared reads a CRD, and then the object in the version that the CRD declares. The caller holds the lock.
type declared struct {
	client.Reader
	from *Reader
	crd  *metav1.PartialObjectMetadata
	// unread is the error of reading the CRD.
	unread error
	// isDeclared means that the CRD declares a version. Unlisted says why the object cannot be read in it.
	isDeclared bool
	unlisted   error
}

func (d *declared) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if read, ok := object.(*metav1.PartialObjectMetadata); ok {
		d.unread = d.Reader.Get(ctx, key, d.crd, client.UnsafeDisableDeepCopy)
		*read = *d.crd
		return d.unread
	}
	kind := object.GetObjectKind().GroupVersionKind()
	its := d.from.watched(d.crd, kind)
	if d.isDeclared, d.unlisted = true, its.problem(kind, d.from.now()); d.unlisted != nil {
		return d.unlisted
	}
	return its.Objects.Get(ctx, key, object, client.UnsafeDisableDeepCopy)
}
