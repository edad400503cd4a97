package references

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// ErrUnresolved marks an error that means that a reference of the Cluster cannot be read now.
// It is reported on the Cluster.
var ErrUnresolved = errors.New("template values cannot be resolved")

// ErrListing means that a kind was not read before and is being listed. It is not a failure:
// nothing is reported, and the Cluster is to be reconciled again.
var ErrListing = errors.New("the objects that the Cluster refers to are being listed")

const (
	// listPatience is how long the first list of a kind may take until its absence is
	// reported. Thousands of control planes take a while.
	listPatience = 2 * time.Minute
	// firstRetry and lastRetry are how soon, and how late, a Cluster is reconciled again that
	// refers to what cannot be read, if no event shows the end of that.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
)

// backoff returns after which time to retry what has been awaited for so long. It
// doubles that time, so that thousands of Clusters that wait are not looked at all the time.
func backoff(waited time.Duration) time.Duration { return min(max(firstRetry, waited), lastRetry) }

// unresolvedError is an ErrUnresolved.
type unresolvedError struct{ err error }

// Error returns what cannot be resolved.
func (e *unresolvedError) Error() string { return ErrUnresolved.Error() + ": " + e.err.Error() }

// Unwrap makes it an ErrUnresolved.
func (e *unresolvedError) Unwrap() []error { return []error{ErrUnresolved, e.err} }

// retryError says after which time it may have ended, without an event.
type retryError struct {
	error
	after time.Duration
}

// Unwrap returns the error that it adds the time to.
func (e *retryError) Unwrap() error { return e.error }

// RetryAfter returns after which time to retry a Cluster of which Values or Objects
// returned an error; zero for an error that ends with a change of the Cluster, or of the
// object or the CRD that it refers to, because that brings it back.
func RetryAfter(err error) time.Duration {
	var retry *retryError
	if errors.As(err, &retry) {
		return retry.after
	}
	return 0
}

// Reader reads the objects that a Cluster refers to, from a cache that starts to
// watch each kind before it is first read. A change of such an object, or of the version
// it is read in, brings its Cluster back without any other event.
type Reader struct {
	client.Client
	kinds *kinds
	now   func() time.Time
	// warmPatience is the constant, except in tests.
	warmPatience time.Duration

	// questions are those that the API server is being asked.
	questions singleflight.Group

	// mu is not held while the API server is asked.
	mu sync.Mutex
	// access and unserved hold no kind without a CRD: there is no limit to those.
	access   map[schema.GroupResource]access
	unserved map[schema.GroupResource]notServed
}

// NewReader returns a Reader that reads the objects that Clusters refer to from a cache of their own,
// and all others from the one behind the client. A controller starts only when the whole
// cache of what it watches is filled: a kind that a conversion webhook keeps from being
// listed must not be in that one. The handler gets the objects' events.
func NewReader(cached client.Client, objects cache.Cache, events handler.EventHandler) *Reader {
	return &Reader{
		Client: split{cached, objects}, kinds: newKinds(objects, events), now: time.Now, warmPatience: warmPatience,
		access: map[schema.GroupResource]access{}, unserved: map[schema.GroupResource]notServed{},
	}
}

// split reads unstructured objects, those that Clusters refer to, from another cache.
type split struct {
	client.Client
	objects client.Reader
}

// Get reads an object.
func (r split) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*unstructured.Unstructured); ok {
		return r.objects.Get(ctx, key, object, options...)
	}
	return r.Client.Get(ctx, key, object, options...)
}

// Source is a source of the controller that reconciles Clusters: the events of the objects
// they refer to go into its queue.
func (r *Reader) Source() source.Source {
	return source.Func(r.kinds.start)
}

// Start forgets kinds that are gone, until the context ends. It is a manager's Runnable.
func (r *Reader) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, r.sweep, sweepInterval)
	return nil
}

// Values returns the template values of a Cluster. An error that is ErrUnresolved
// says which reference is missing and what to do about it.
func (r *Reader) Values(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (map[string]any, error) {
	controlPlane, infrastructure, err := r.Objects(ctx, cluster)
	if err != nil {
		return nil, err
	}
	values, err := desired.Values(cluster, controlPlane, infrastructure, in.Cluster.Exclude)
	if err != nil {
		// It is the Cluster itself that must change.
		return nil, &unresolvedError{err}
	}
	return values, nil
}

// Objects returns the control plane and the infrastructure cluster that a Cluster refers
// to; nil where it refers to none. Errors are as those of Values.
func (r *Reader) Objects(ctx context.Context, cluster *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error) {
	controlPlane, err = r.resolve(ctx, cluster, "spec.controlPlaneRef", cluster.Spec.ControlPlaneRef)
	if err != nil && !errors.Is(err, ErrListing) {
		return nil, nil, err
	}
	// Both kinds are listed at the same time.
	infrastructure, other := r.resolve(ctx, cluster, "spec.infrastructureRef", cluster.Spec.InfrastructureRef)
	return controlPlane, infrastructure, cmp.Or(err, other)
}

func (r *Reader) resolve(ctx context.Context, cluster *clusterv1.Cluster, field string, ref clusterv1.ContractVersionedObjectReference) (map[string]any, error) {
	if !ref.IsDefined() {
		return nil, nil
	}
	var object *unstructured.Unstructured
	err := errDropped
	for errors.Is(err, errDropped) {
		if err = r.isDeclared(ctx, ref.GroupKind()); err != nil {
			break // Nothing is asked about it.
		}
		if err := r.mayRead(ctx, field, ref.GroupKind()); err != nil {
			return nil, err
		}
		object, err = r.find(ctx, cluster, ref)
	}
	switch {
	case errors.Is(err, ErrListing):
		return nil, err
	case err == nil:
		return kube.Expand(object)
	case RetryAfter(err) == 0 && !isAwaited(err):
		err = &retryError{err, lastRetry}
	}
	return nil, &unresolvedError{fmt.Errorf("%s: %w", field, err)}
}

// isDeclared returns an errUndeclared for a kind without a CRD, about which nothing is kept.
func (r *Reader) isDeclared(ctx context.Context, kind schema.GroupKind) error {
	resource := resourceOf(kind)
	err := r.readCRD(ctx, resource)
	switch {
	case apierrors.IsNotFound(err):
		r.forgetUndeclared(ctx, kind)
		return fmt.Errorf("%w: CustomResourceDefinition %q not found; install the provider that it belongs to, or correct the reference", errUndeclared, resource)
	case err != nil:
		return fmt.Errorf("reading CustomResourceDefinition %q: %w", resource, err)
	}
	return nil
}

// find looks for the object that a Cluster refers to.
func (r *Reader) find(ctx context.Context, cluster *clusterv1.Cluster, ref clusterv1.ContractVersionedObjectReference) (*unstructured.Unstructured, error) {
	known := r.kinds.of(ref.GroupKind())
	object, err := r.read(ctx, known, cluster, ref)
	for errors.Is(err, errMoved) {
		if err = r.follow(ctx, known, ref); err == nil {
			object, err = r.read(ctx, known, cluster, ref)
		}
	}
	if errors.Is(err, errMisnamed) {
		r.kinds.drop(ctx, ref.GroupKind(), func(kind *kind) bool { return kind.watched.Empty() })
	}
	return object, err
}

// errUndeclared marks an error that ends when the CRD appears or declares a version for the
// contract. errMisnamed is an errUndeclared of a reference that gets the CRD's name right, but
// not the kind's.
var (
	errUndeclared = errors.New("the kind is not served for Cluster API")
	errMisnamed   = fmt.Errorf("%w under this name", errUndeclared)
)

// isAwaited reports whether the end of an error brings the Cluster back: object and CRD are
// watched.
func isAwaited(err error) bool { return apierrors.IsNotFound(err) || errors.Is(err, errUndeclared) }

// read reads an object if its kind is watched in the version it is to be read in, and
// returns errMoved if not.
func (r *Reader) read(ctx context.Context, kind *kind, cluster *clusterv1.Cluster, ref clusterv1.ContractVersionedObjectReference) (*unstructured.Unstructured, error) {
	kind.mu.RLock()
	defer kind.mu.RUnlock()
	if kind.dropped {
		return nil, errDropped
	}
	reader := &declared{Reader: r.Client, get: func(key client.ObjectKey, object *unstructured.Unstructured) error {
		if object.GroupVersionKind() != kind.watched {
			return errMoved
		}
		if err := kind.isReadable(r.now()); err != nil {
			return err
		}
		return r.Get(ctx, key, object)
	}}
	object, err := external.GetObjectFromContractVersionedRef(ctx, reader, ref, cluster.Namespace)
	if err == nil || !reader.isUndeclared() {
		return object, err
	}
	if !kind.watched.Empty() {
		return nil, errMoved
	}
	r.forgetUnserved(ref.GroupKind())
	return nil, fmt.Errorf("%w: %w", errUndeclared, err)
}

// follow watches a kind in the version that its CRD declares now. Nothing reads the kind
// meanwhile, and what reads it later knows no older CRD.
func (r *Reader) follow(ctx context.Context, kind *kind, ref clusterv1.ContractVersionedObjectReference) error {
	kind.mu.Lock()
	defer kind.mu.Unlock()
	if kind.dropped {
		return errDropped
	}
	var version schema.GroupVersionKind
	reader := &declared{Reader: r.Client, get: func(_ client.ObjectKey, object *unstructured.Unstructured) error {
		version = object.GroupVersionKind()
		return nil
	}}
	if _, err := external.GetObjectFromContractVersionedRef(ctx, reader, ref, ""); err != nil && !reader.isUndeclared() {
		return err
	}
	if after := r.unservedFor(version); after > 0 {
		return &retryError{fmt.Errorf("%s is not served yet", version), after}
	}
	err := r.kinds.move(ctx, kind, version, r.now())
	if !kube.IsUnserved(err) {
		r.forgetUnserved(ref.GroupKind())
		return err
	}
	// What is not served under this name may be under another: looking for it would never
	// end, and there are many ways to write a kind.
	if served, other := r.RESTMapper().KindFor(resourceOf(ref.GroupKind()).WithVersion(version.Version)); other == nil && served.Kind != version.Kind {
		return fmt.Errorf("%w: %s is of kind %q, not %q; correct the reference", errMisnamed, resourceOf(ref.GroupKind()), served.Kind, version.Kind)
	}
	return &retryError{err, r.noteUnserved(version)}
}

// declared reads a CRD's metadata, and hands over the object that is then to be read in
// the version that the CRD declares.
type declared struct {
	client.Reader
	get func(client.ObjectKey, *unstructured.Unstructured) error

	crd      error
	isHanded bool
}

// Get reads an object.
func (d *declared) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if unstructured, ok := object.(*unstructured.Unstructured); ok {
		d.isHanded = true
		return d.get(key, unstructured)
	}
	d.crd = d.Reader.Get(ctx, key, object, options...)
	return d.crd
}

// isUndeclared reports whether there is no version to read the object in: no CRD, or
// none that declares one.
func (d *declared) isUndeclared() bool {
	return !d.isHanded && (d.crd == nil || apierrors.IsNotFound(d.crd))
}

// Digest writes what Values would read of the objects that a Cluster refers to, as it is
// cached, and reports whether all of it could be read.
func (r *Reader) Digest(ctx context.Context, cluster *clusterv1.Cluster, digest io.Writer) bool {
	for _, ref := range referencesOf(cluster) {
		kind := r.kinds.known(ref.GroupKind())
		if kind == nil || !r.digest(ctx, kind, cluster, ref, digest) {
			return false
		}
	}
	return true
}

func (r *Reader) digest(ctx context.Context, kind *kind, cluster *clusterv1.Cluster, ref clusterv1.ContractVersionedObjectReference, digest io.Writer) bool {
	kind.mu.RLock()
	defer kind.mu.RUnlock()
	crd := CRD()
	// A cached read waits for the first list, which may never come.
	if kind.watched.Empty() || !kind.isListed() || r.Get(ctx, client.ObjectKey{Name: contract.CalculateCRDName(ref.APIGroup, ref.Kind)}, crd, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	object := ofKind(kind.watched)
	if r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, object, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	// The CRD says in which version the object is to be read.
	for _, part := range []string{kind.watched.String(), string(crd.UID), crd.ResourceVersion, string(object.GetUID()), kube.Content(object)} {
		if _, err := io.WriteString(digest, part+"\x00"); err != nil {
			return false
		}
	}
	return true
}
