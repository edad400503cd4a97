package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	gosync "sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// accessTTL is how long a refused access is believed before it is asked for again.
const accessTTL = 30 * time.Second

// errUnresolved marks an error that means: a reference of the Cluster cannot be
// read now. It is reported on the Cluster.
var errUnresolved = errors.New("template values cannot be resolved")

// sources reads the objects that a Cluster refers to, from a cache that starts to
// watch each kind when it is first needed. A change of such an object brings its
// Cluster back without any other event.
type sources struct {
	client.Client
	tracker external.ObjectTracker
	handler handler.EventHandler
	lists   *lists
	reads   *reads

	mu     gosync.Mutex
	access map[schema.GroupResource]access
}

type access struct {
	allowed bool
	until   time.Time
}

// values returns the template values of a Cluster. An error that is errUnresolved
// says which reference is missing and what to do about it.
func (s *sources) values(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (map[string]any, error) {
	controlPlane, err := s.resolve(ctx, cluster, "spec.controlPlaneRef", cluster.Spec.ControlPlaneRef)
	if err != nil && !errors.Is(err, errSyncing) {
		return nil, err
	}
	// Both kinds are listed at the same time.
	infrastructure, other := s.resolve(ctx, cluster, "spec.infrastructureRef", cluster.Spec.InfrastructureRef)
	if err := cmp.Or(err, other); err != nil {
		return nil, err
	}
	values, err := desired.Values(cluster, controlPlane, infrastructure, in.Cluster.Exclude)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnresolved, err)
	}
	return values, nil
}

func (s *sources) resolve(ctx context.Context, cluster *clusterv1.Cluster, field string, ref clusterv1.ContractVersionedObjectReference) (map[string]any, error) {
	if !ref.IsDefined() {
		return nil, nil
	}
	if err := s.mayRead(ctx, field, ref.GroupKind()); err != nil {
		return nil, err
	}
	object, err := external.GetObjectFromContractVersionedRef(ctx, listed{s, client.ObjectKeyFromObject(cluster)}, ref, cluster.Namespace)
	switch {
	case errors.Is(err, errSyncing):
		return nil, errSyncing
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", errUnresolved, field, err)
	}
	if err := s.watch(ctx, object); err != nil {
		return nil, err
	}
	return apply.Expand(object)
}

// listed reads unstructured objects for a Cluster once all of their kind are in the
// cache, and says so if they are not yet.
type listed struct {
	*sources
	cluster client.ObjectKey
}

// Get reads an object.
func (l listed) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*unstructured.Unstructured); !ok {
		return l.Client.Get(ctx, key, object, options...)
	}
	gvk := object.GetObjectKind().GroupVersionKind()
	if err := l.lists.need(ctx, gvk, l.cluster); err != nil {
		return err
	}
	// Noted before it is read: a state that arrives meanwhile is news.
	noted := objectKey{gvk.GroupKind(), key}
	l.reads.begin(noted)
	if err := l.Client.Get(ctx, key, object, options...); err != nil {
		return err
	}
	l.reads.end(noted, object)
	return nil
}

func (s *sources) watch(ctx context.Context, object *unstructured.Unstructured) error {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(object.GroupVersionKind())
	return s.tracker.Watch(ctrl.LoggerFrom(ctx), kind, s.handler, apply.CompactedChanged, s.reads.news())
}

// mayRead asks, once per kind, whether our ServiceAccount may read it. Without the
// question a refused watch would be retried forever and nobody would know why.
func (s *sources) mayRead(ctx context.Context, field string, kind schema.GroupKind) error {
	plural, _, _ := strings.Cut(contract.CalculateCRDName(kind.Group, kind.Kind), ".")
	resource := schema.GroupResource{Group: kind.Group, Resource: plural}

	// Those who wait meanwhile would have asked the same.
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.access[resource]
	if !ok || !known.allowed && time.Now().After(known.until) {
		known = access{allowed: true, until: time.Now().Add(accessTTL)}
		for _, verb := range []string{"get", "list", "watch"} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: resource.Group, Resource: resource.Resource, Verb: verb},
			}}
			if err := s.Create(ctx, review); err != nil {
				return fmt.Errorf("asking whether %s may be read: %w", resource, err)
			}
			known.allowed = known.allowed && review.Status.Allowed
		}
		s.access[resource] = known
	}
	if !known.allowed {
		return fmt.Errorf("%w: %s: the syncer may not read %s; give it a ClusterRole with get, list and watch on them, labelled %s: \"true\"",
			errUnresolved, field, resource, aggregationLabel)
	}
	return nil
}

// aggregationLabel on a ClusterRole adds it to what the syncer may read for template values.
const aggregationLabel = "fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer"
