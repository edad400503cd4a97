package charts

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// In namespaces of others the program may create and update Secrets, and nothing else: the API
// server answers a get, a patch and a delete with what a Secret holds, before or without asking a
// policy. So it writes its Secrets whole, without reading them, and an annotation says what it wrote.

const (
	// refusesOthers are the words by which the policy muster-charts-values refuses to update a
	// Secret that is not ours.
	refusesOthers = "muster-charts may touch only"
	// readersRole is the ClusterRole that an administrator binds where the program may read Secrets.
	readersRole = "muster-charts-read-secrets"

	// digestKeyName is the Secret with the key of digests, in the program's own namespace.
	digestKeyName                   = "muster-charts-digest-key"
	digestKeyType corev1.SecretType = stamp.Domain + "/digest-key"

	// restoreInterval is how long a Secret that was written is taken to be as it was: the program
	// cannot see whether somebody has changed or deleted it.
	restoreInterval = 10 * time.Minute
)

// putSecret writes a Secret of ours.
func (r *reconciler) putSecret(ctx context.Context, v *visit, want *corev1.Secret) error {
	v.addOwner(want)
	key, written := client.ObjectKeyFromObject(want), trace{digest(toJSON(want)), r.now()}
	if r.traces.holds(v.key, key, written.digest, written.at) {
		return nil
	}
	r.traces.note(v.key, key)
	err := r.replace(ctx, want)
	if apierrors.IsNotFound(err) {
		err = r.create(ctx, want)
	}
	switch {
	case isOfOthers(err):
		return &takenError{want}
	case err != nil:
		return fmt.Errorf("changing %s: %w", describe(want), err)
	}
	r.traces.wrote(v.key, key, written)
	return nil
}

// replace updates a Secret, whatever it held. If it is the same, the API server writes nothing.
func (r *reconciler) replace(ctx context.Context, want *corev1.Secret) error {
	return r.Update(ctx, want.DeepCopy(), client.FieldOwner(FieldManager))
}

// isOfOthers reports whether an update was refused because the Secret is not ours: the API server
// lets nobody change the type of a Secret, and the policy refuses all that is not ours.
func isOfOthers(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil {
		return slices.ContainsFunc(status.Status().Details.Causes, func(its metav1.StatusCause) bool { return its.Field == "type" })
	}
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusesOthers)
}

// addOwner has a Secret that is deleted with its HelmChartProxy stay as long as a Bundle or HelmOp of
// it: these are kept when a HelmChartProxy is moved to another management cluster, all or none.
func (v *visit) addOwner(secret *corev1.Secret) {
	if len(secret.OwnerReferences) == 0 {
		return
	}
	var first *fleetv1.Bundle
	for i := range v.bundles {
		its := &v.bundles[i]
		if its.Namespace == secret.Namespace && its.DeletionTimestamp.IsZero() && (first == nil || its.Name < first.Name) {
			first = its
		}
	}
	if first != nil {
		secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{
			APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: cmp.Or(first.Kind, "Bundle"), Name: first.Name, UID: first.UID,
		})
	}
}

// removeSecret empties a Secret of ours, and leaves it to the garbage collector: its only owner is
// one that never existed. A Secret of others stays as it is.
func (r *reconciler) removeSecret(ctx context.Context, key plan.Key, its client.ObjectKey) error {
	r.traces.empty(key, its)
	secret := &corev1.Secret{Type: plan.ValuesSecretType}
	if plan.IsAccessName(key, its.Namespace, its.Name) {
		secret.Type = plan.AccessSecretType
	}
	secret.Namespace, secret.Name = its.Namespace, its.Name
	secret.Labels, secret.Annotations = plan.Labels(key), map[string]string{plan.ProxyAnnotation: key.String()}
	secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: its.Name, UID: neverUID(its)}}
	err := r.replace(ctx, secret)
	switch {
	case apierrors.IsNotFound(err), isOfOthers(err):
		return nil
	case err != nil:
		return fmt.Errorf("emptying Secret %s: %w", its, err)
	}
	ctrl.LoggerFrom(ctx).Info("Emptied, for the garbage collector", "object", describe(secret))
	return nil
}

// neverUID returns a UID that no object ever has. It is the same each time, so that a Secret is
// emptied once.
func neverUID(its client.ObjectKey) types.UID {
	sum := sha256.Sum256([]byte(its.String()))
	return types.UID(fmt.Sprintf("%x-%x-0000-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:14]))
}

// digests makes digests of what Secrets hold. They have a key: an annotation is read by people who
// may not read Secrets, and could guess a short password from a plain digest.
type digests struct {
	client    client.Client
	live      client.Reader
	namespace string

	mu  sync.Mutex
	key []byte
}

// of returns the digest of what a Secret holds.
func (d *digests) of(ctx context.Context, secret *corev1.Secret) (string, error) {
	key, err := d.load(ctx)
	if err != nil {
		return "", err
	}
	digest := hmac.New(sha256.New, key)
	digest.Write(toJSON(secret.Data))
	return hex.EncodeToString(digest.Sum(nil)[:16]), nil
}

// load reads the key, or makes one. If somebody deletes it, values count as changed once.
func (d *digests) load(ctx context.Context) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.key != nil {
		return d.key, nil
	}
	its := &corev1.Secret{}
	err := d.live.Get(ctx, client.ObjectKey{Namespace: d.namespace, Name: digestKeyName}, its)
	if apierrors.IsNotFound(err) {
		key := make([]byte, sha256.Size)
		_, _ = rand.Read(key) // It never fails.
		its = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: digestKeyName, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}},
			Type:       digestKeyType, Data: map[string][]byte{"key": key},
		}
		err = d.client.Create(ctx, its, client.FieldOwner(FieldManager))
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", d.namespace, digestKeyName, err)
	}
	d.key = its.Data["key"]
	return d.key, nil
}

// readSecret reads a Secret that a HelmChartProxy names. The error says how to allow it.
func (r *reconciler) readSecret(ctx context.Context, key client.ObjectKey, secret *corev1.Secret) error {
	err := r.live.Get(ctx, key, secret)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("muster-charts may not get Secret %s; a cluster administrator allows it to read the Secrets of that namespace with: "+
			"kubectl create rolebinding %[2]s --namespace=%[3]s --clusterrole=%[2]s --serviceaccount=%[4]s:muster-charts", key, readersRole, key.Namespace, r.digests.namespace)
	}
	return err
}
