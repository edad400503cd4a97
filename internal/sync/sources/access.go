// Package sources reads what Clusters refer to: control planes and infrastructure, of
// kinds that are known only at run time. It owns which kinds are watched, in which
// version, and whether they may be read.
package sources

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// accessInterval is how often we ask again whether a kind may be read. RBAC sends no
	// event.
	accessInterval = time.Minute
	// blockedInterval is how often we look for versions that were not served, and for
	// questions to ask again.
	blockedInterval = 2 * time.Second
	// discoveryPause is how long a version that is not served is not looked for again,
	// however many Clusters refer to it.
	discoveryPause = time.Second
	// answerPatience is how long the API server may take to say whether a kind may be
	// read, or is served.
	answerPatience = 10 * time.Second
	// questionsAtOnce is how many kinds are asked about at the same time.
	questionsAtOnce = 8
)

// access is what the API server said of a kind that Clusters refer to.
type access struct {
	allowed bool
	until   time.Time // when a refusal is asked about again
}

// mayRead asks, once per kind, whether our ServiceAccount may read it. Without the question a
// refused watch would be retried forever, and no user would know why. retry asks again about
// a refusal, for all Clusters at once.
func (s *Sources) mayRead(ctx context.Context, field string, kind schema.GroupKind) error {
	resource := resourceOf(kind)
	s.mu.Lock()
	known, ok := s.access[resource]
	s.mu.Unlock()
	if !ok {
		var err error
		if known, err = s.answer(ctx, resource); err != nil {
			return err
		}
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

// answer returns what the API server says of a kind, unless that is known already. Concurrent
// callers wait for the same answer, each as long as its context lasts; no other caller waits.
func (s *Sources) answer(ctx context.Context, resource schema.GroupResource) (access, error) {
	answered := s.questions.DoChan("access "+resource.String(), func() (any, error) {
		s.mu.Lock()
		known, ok := s.access[resource]
		s.mu.Unlock()
		if ok && !s.isDue(known) {
			return known, nil
		}
		// The first caller's context may end before the others'.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerPatience)
		defer cancel()
		answer, err := s.ask(ctx, resource)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.access[resource] = answer
		s.mu.Unlock()
		return answer, nil
	})
	select {
	case <-ctx.Done():
		return access{}, fmt.Errorf("asking whether %s may be read: %w", resource, ctx.Err())
	case result := <-answered:
		if result.Err != nil {
			return access{}, result.Err
		}
		return result.Val.(access), nil
	}
}

// forgetRefusals forgets what a standby was refused: it does not ask again by itself.
func (s *Sources) forgetRefusals() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.access, func(_ schema.GroupResource, known access) bool { return !known.allowed })
}

// isDue reports whether a refusal is to be asked about again.
func (s *Sources) isDue(known access) bool { return !known.allowed && !s.now().Before(known.until) }

func (s *Sources) ask(ctx context.Context, resource schema.GroupResource) (access, error) {
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
func (s *Sources) isUnserved(version schema.GroupVersionKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	noted, ok := s.unserved[resourceOf(version.GroupKind())]
	return ok && noted.version == version.Version && s.now().Before(noted.seen.Add(discoveryPause))
}

func (s *Sources) noteUnserved(version schema.GroupVersionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unserved[resourceOf(version.GroupKind())] = notServed{version.Version, s.now()}
}

func (s *Sources) forgetUnserved(kind schema.GroupKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unserved, resourceOf(kind))
}

// retry returns the Clusters that wait for a kind that can be read now. It asks one question
// per kind, however many Clusters refer to it. No Cluster's look waits for the answers.
func (s *Sources) retry(ctx context.Context) []client.Object {
	for _, kind := range s.kinds.list() {
		s.forgetUndeclared(ctx, kind)
	}
	refused, unserved := s.due(ctx)
	var asking errgroup.Group
	asking.SetLimit(questionsAtOnce)
	var mu sync.Mutex
	var ended []schema.GroupResource
	ask := func(resource schema.GroupResource, hasEnded func() bool) {
		asking.Go(func() error {
			if hasEnded() {
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, resource)
			}
			return nil
		})
	}
	for resource, version := range unserved {
		ask(resource, func() bool { return s.isServedNow(ctx, resource, version) })
	}
	for _, resource := range refused {
		ask(resource, func() bool { return s.isAllowedNow(ctx, resource) })
	}
	_ = asking.Wait() // No function returns an error.
	var back []client.Object
	for _, resource := range ended {
		// Listed after the answer is there: Clusters that come later find it.
		back = append(back, s.referring(ctx, resource)...)
	}
	return back
}

// due returns the kinds to ask about again, and forgets those that no Cluster refers to any
// more or that have no CRD. It holds the lock, so it reads from the cache only: a Cluster
// that is told what is forgotten here would wait forever.
func (s *Sources) due(ctx context.Context) (refused []schema.GroupResource, unserved map[schema.GroupResource]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource, known := range s.access {
		switch {
		case s.isWithoutCRD(ctx, resource):
			delete(s.access, resource)
		case !s.isDue(known):
		case len(s.referring(ctx, resource)) == 0:
			delete(s.access, resource)
		default:
			refused = append(refused, resource)
		}
	}
	unserved = map[schema.GroupResource]string{}
	for resource, noted := range s.unserved {
		if s.isWithoutCRD(ctx, resource) || len(s.referring(ctx, resource)) == 0 {
			delete(s.unserved, resource)
			continue
		}
		unserved[resource] = noted.version
	}
	return refused, unserved
}

// isAllowedNow reports whether a kind that could not be read may be read now.
func (s *Sources) isAllowedNow(ctx context.Context, resource schema.GroupResource) bool {
	answer, err := s.answer(ctx, resource)
	if err == nil {
		return answer.allowed
	}
	ctrl.LoggerFrom(ctx).Error(err, "Asking again failed")
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.access[resource]; ok {
		known.until = s.now().Add(accessInterval)
		s.access[resource] = known
	}
	return false
}

// isServedNow reports whether a version that was not served is served now. Discovery has
// no deadline of its own.
func (s *Sources) isServedNow(ctx context.Context, resource schema.GroupResource, version string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	answered := s.questions.DoChan("served "+resource.String()+" "+version, func() (any, error) {
		return s.RESTMapper().KindFor(resource.WithVersion(version))
	})
	select {
	case <-ctx.Done():
		return false
	case result := <-answered:
		if result.Err != nil {
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unserved[resource].version != version {
		return false // Another version is looked for by now.
	}
	delete(s.unserved, resource)
	return true
}

// isWithoutCRD reports whether a kind is known to have no CRD.
func (s *Sources) isWithoutCRD(ctx context.Context, resource schema.GroupResource) bool {
	return apierrors.IsNotFound(s.readCRD(ctx, resource))
}

// readCRD looks for the CRD of a kind in the cache.
func (s *Sources) readCRD(ctx context.Context, resource schema.GroupResource) error {
	return s.Get(ctx, client.ObjectKey{Name: resource.String()}, CRD())
}

// forgetUndeclared forgets what is known of a kind that has no CRD: anyone can refer to kinds
// that do not exist. When the CRD appears, its watch brings back the Clusters that refer to
// it.
func (s *Sources) forgetUndeclared(ctx context.Context, group schema.GroupKind) {
	resource := resourceOf(group)
	// Checked again while nothing reads the kind: what reads it later was brought back by the
	// CRD.
	s.kinds.drop(ctx, group, func(*kind) bool { return s.isWithoutCRD(ctx, resource) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isWithoutCRD(ctx, resource) {
		delete(s.access, resource)
		delete(s.unserved, resource)
	}
}

// referring returns the Clusters that refer to an object of a kind.
func (s *Sources) referring(ctx context.Context, resource schema.GroupResource) []client.Object {
	var clusters clusterv1.ClusterList
	if err := s.List(ctx, &clusters, client.MatchingFields{ByKind: resource.String()}, client.UnsafeDisableDeepCopy); err != nil {
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
