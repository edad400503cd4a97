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

// ErrUnresolved marks an error that means that a reference of the Cluster cannot be resolved now. It is
// reported on the Cluster.
var ErrUnresolved = errors.New("template values cannot be resolved")

// ErrListing means that the first list of a kind is in progress. It is not a failure: the caller reports nothing,
// and reconciles the Cluster again.
var ErrListing = errors.New("the objects that the Cluster refers to are being listed")

const (
	// listPatience is how long the first list of a kind may take before that is reported. Thousands of
	// control planes take a while.
	listPatience = 2 * time.Minute
	// firstRetry and lastRetry bound the pause before a Cluster is reconciled again, if no event shows the
	// end of its problem.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
)

// backoff returns the pause before the next retry after having waited so long. It doubles the total
// time, so that thousands of waiting Clusters are not reconciled all the time.
func backoff(waited time.Duration) time.Duration { return min(max(firstRetry, waited), lastRetry) }

// unresolvedError adds ErrUnresolved to an error.
type unresolvedError struct{ err error }

// Error names the reference and the problem.
func (e *unresolvedError) Error() string { return ErrUnresolved.Error() + ": " + e.err.Error() }

// Unwrap makes it an ErrUnresolved.
func (e *unresolvedError) Unwrap() []error { return []error{ErrUnresolved, e.err} }

// retryError is an error that may end without an event, and the pause before the next retry.
type retryError struct {
	error
	after time.Duration
}

// Unwrap returns the original error.
func (e *retryError) Unwrap() error { return e.error }

// RetryAfter returns the pause before retrying a Cluster after an error of Values or Objects. It is zero
// if the error ends with a change of the Cluster, or of the object or CRD that it refers to, because
// its event enqueues the Cluster.
func RetryAfter(err error) time.Duration {
	var retry *retryError
	if errors.As(err, &retry) {
		return retry.after
	}
	return 0
}

// Reader reads the objects to which a Cluster refers, from a cache that starts to watch each kind before
// the first read. A change of such an object, or of its version, enqueues the Cluster.
type Reader struct {
	client.Client
	kinds *kinds
	now   func() time.Time
	// warmPatience is the constant warmPatience, except in tests.
	warmPatience time.Duration

	// questions are the access reviews in progress.
	questions singleflight.Group

	// mu is not held during requests.
	mu sync.Mutex
	// access and unserved have no kind without a CRD: their number has no limit.
	access   map[schema.GroupResource]access
	unserved map[schema.GroupResource]notServed
}

// NewReader returns a Reader with a cache of its own for the objects to which Clusters refer; it reads all
// others from the cache behind the client. A controller starts only once the caches of everything that
// it watches are filled, so a kind whose list a conversion webhook prevents must not be among them. The
// handler gets the objects' events.
func NewReader(cached client.Client, objects cache.Cache, events handler.EventHandler) *Reader {
	return &Reader{
		Client: split{cached, objects}, kinds: newKinds(objects, events), now: time.Now, warmPatience: warmPatience,
		access: map[schema.GroupResource]access{}, unserved: map[schema.GroupResource]notServed{},
	}
}

// split reads unstructured objects, to which Clusters refer, from another cache.
type split struct {
	client.Client
	objects client.Reader
}

func (r split) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*unstructured.Unstructured); ok {
		return r.objects.Get(ctx, key, object, options...)
	}
	return r.Client.Get(ctx, key, object, options...)
}

// Source makes the events of referenced objects go into the queue of the controller that reconciles
// Clusters.
func (r *Reader) Source() source.Source {
	return source.Func(r.kinds.start)
}

// Start forgets kinds without a CRD, until the context ends. It makes the Reader a manager's Runnable.
func (r *Reader) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, r.sweep, sweepInterval)
	return nil
}

// Values returns the template values of a Cluster. An ErrUnresolved names the missing reference, and
// says what to do about it.
func (r *Reader) Values(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (map[string]any, error) {
	controlPlane, infrastructure, err := r.Objects(ctx, cluster)
	if err != nil {
		return nil, err
	}
	values, err := desired.Values(cluster, controlPlane, infrastructure, in.Cluster.Exclude)
	if err != nil {
		// Only a change of the Cluster itself can help.
		return nil, &unresolvedError{err}
	}
	return values, nil
}

// Objects returns the control plane and the infrastructure cluster of a Cluster; nil for a missing
// reference. Its errors are like those of Values.
func (r *Reader) Objects(ctx context.Context, cluster *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error) {
	controlPlane, err = r.resolve(ctx, cluster, "spec.controlPlaneRef", cluster.Spec.ControlPlaneRef)
	if err != nil && !errors.Is(err, ErrListing) {
		return nil, nil, err
	}
	// Resolving both at once lets their lists run at the same time.
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
			break // Without a CRD, no access review is needed.
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

// isDeclared returns an errUndeclared for a kind without a CRD, and forgets such a kind.
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

// find reads the object to which a Cluster refers.
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

// errUndeclared marks an error that ends when the CRD appears or declares a version for the contract.
// errMisnamed is an errUndeclared for a reference whose kind leads to the right CRD but is spelled
// differently.
var (
	errUndeclared = errors.New("the kind is not served for Cluster API")
	errMisnamed   = fmt.Errorf("%w under this name", errUndeclared)
)

// isAwaited reports whether an event will show the end of an error: object and CRD are watched.
func isAwaited(err error) bool { return apierrors.IsNotFound(err) || errors.Is(err, errUndeclared) }

// read reads an object if its kind is watched in the right version, and returns errMoved otherwise.
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

// follow watches a kind in the version that its CRD declares now. It blocks readers of the kind, so that
// later reads know no older CRD.
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
	// A kind that is not served under this name may be served under another spelling. There are many, so
	// retrying each would never end.
	if served, other := r.RESTMapper().KindFor(resourceOf(ref.GroupKind()).WithVersion(version.Version)); other == nil && served.Kind != version.Kind {
		return fmt.Errorf("%w: %s is of kind %q, not %q; correct the reference", errMisnamed, resourceOf(ref.GroupKind()), served.Kind, version.Kind)
	}
	return &retryError{err, r.noteUnserved(version)}
}

// declared reads a CRD's metadata, and passes on the read of the object, in the version that the CRD
// declares.
type declared struct {
	client.Reader
	get func(client.ObjectKey, *unstructured.Unstructured) error

	crd      error
	isHanded bool
}

func (d *declared) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if unstructured, ok := object.(*unstructured.Unstructured); ok {
		d.isHanded = true
		return d.get(key, unstructured)
	}
	d.crd = d.Reader.Get(ctx, key, object, options...)
	return d.crd
}

// isUndeclared reports whether there is no version in which to read the object: no CRD, or one that
// declares none.
func (d *declared) isUndeclared() bool {
	return !d.isHanded && (d.crd == nil || apierrors.IsNotFound(d.crd))
}

// Digest writes the cached objects that Values would read for a Cluster, and reports whether all of them
// were readable.
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
	// A cached read would wait for a first list that may never come.
	if kind.watched.Empty() || !kind.isListed() || r.Get(ctx, client.ObjectKey{Name: contract.CalculateCRDName(ref.APIGroup, ref.Kind)}, crd, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	object := ofKind(kind.watched)
	if r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, object, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	// The CRD determines the version in which the object is read.
	for _, part := range []string{kind.watched.String(), string(crd.UID), crd.ResourceVersion, string(object.GetUID()), kube.Content(object)} {
		if _, err := io.WriteString(digest, part+"\x00"); err != nil {
			return false
		}
	}
	return true
}
