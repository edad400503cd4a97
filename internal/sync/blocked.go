package sync

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// accessInterval is how often is asked again whether a kind may be read now. RBAC
	// sends no event.
	accessInterval = time.Minute
	// blockedInterval is how often is looked for versions that were not served, and
	// whether there is something to ask again.
	blockedInterval = 2 * time.Second
	// discoveryPause is for how long a version that is not served is not looked for by
	// every Cluster that refers to it.
	discoveryPause = time.Second
)

// access is what the API server said of a kind that Clusters refer to.
type access struct {
	allowed bool
	until   time.Time // when a refusal is asked about again
}

// mayRead asks, once per kind, whether our ServiceAccount may read it. Without the
// question a refused watch would be retried forever and nobody would know why. A refusal
// is asked about again by retry, for all Clusters at once.
func (s *sources) mayRead(ctx context.Context, field string, kind schema.GroupKind) error {
	resource := resourceOf(kind)
	// Those who wait meanwhile would have asked the same.
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.access[resource]
	if !ok {
		var err error
		if known, err = s.ask(ctx, resource); err != nil {
			return err
		}
		s.access[resource] = known
	}
	if !known.allowed {
		return &unresolvedError{err: fmt.Errorf("%s: the syncer may not read %s; give it a ClusterRole with get, list and watch on them, labelled %s: \"true\"",
			field, resource, aggregationLabel)}
	}
	return nil
}

// resourceOf returns the resource of a kind; its String is the name of the kind's CRD.
func resourceOf(kind schema.GroupKind) schema.GroupResource {
	return schema.ParseGroupResource(contract.CalculateCRDName(kind.Group, kind.Kind))
}

func (s *sources) ask(ctx context.Context, resource schema.GroupResource) (access, error) {
	answer := access{allowed: true, until: s.now().Add(accessInterval)}
	for _, verb := range []string{"get", "list", "watch"} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: resource.Group, Resource: resource.Resource, Verb: verb},
		}}
		if err := s.Create(ctx, review); err != nil {
			return access{}, fmt.Errorf("asking whether %s may be read: %w", resource, err)
		}
		answer.allowed = answer.allowed && review.Status.Allowed
	}
	return answer, nil
}

// notServed is a version that a CRD declares and that was not served when it was last
// looked for.
type notServed struct {
	version string
	seen    time.Time
}

// isUnserved reports whether a version was not served a moment ago.
func (s *sources) isUnserved(version schema.GroupVersionKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	noted, ok := s.unserved[version.GroupKind()]
	return ok && noted.version == version.Version && s.now().Before(noted.seen.Add(discoveryPause))
}

func (s *sources) noteUnserved(version schema.GroupVersionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unserved[version.GroupKind()] = notServed{version.Version, s.now()}
}

func (s *sources) forgetUnserved(kind schema.GroupKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unserved, kind)
}

// Start brings back the Clusters that refer to a kind that could not be read for a
// reason that ends without an event. It is a manager's Runnable.
func (s *sources) Start(ctx context.Context) error {
	return feed(ctx, blockedInterval, func() []client.Object { return s.retry(ctx) },
		func(client.Object) objectEvents { return s.lists.complete })
}

// retry returns the Clusters whose reference can be read now, as far as one kind is
// concerned: one question for all of them, however many they are.
func (s *sources) retry(ctx context.Context) []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var back []client.Object
	for resource, known := range s.access {
		if known.allowed || s.now().Before(known.until) {
			continue
		}
		clusters := s.referring(ctx, resource)
		if len(clusters) == 0 {
			delete(s.access, resource)
			continue
		}
		answer, err := s.ask(ctx, resource)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Asking again failed")
			answer.until = s.now().Add(accessInterval)
		}
		s.access[resource] = answer
		if answer.allowed {
			back = append(back, clusters...)
		}
	}
	for kind, noted := range s.unserved {
		clusters := s.referring(ctx, resourceOf(kind))
		if len(clusters) > 0 {
			if _, err := s.RESTMapper().RESTMapping(kind, noted.version); err != nil {
				continue
			}
		}
		delete(s.unserved, kind)
		back = append(back, clusters...)
	}
	return back
}

// referring returns the Clusters that refer to an object of a kind.
func (s *sources) referring(ctx context.Context, resource schema.GroupResource) []client.Object {
	var clusters clusterv1.ClusterList
	if err := s.List(ctx, &clusters, client.MatchingFields{byReferenceKind: resource.String()}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed; the Clusters wait for their next change", "kind", resource.String())
	}
	var result []client.Object
	for i := range clusters.Items {
		result = append(result, &clusters.Items[i])
	}
	return result
}

// aggregationLabel on a ClusterRole adds it to what the syncer may read for template values.
const aggregationLabel = "fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer"
