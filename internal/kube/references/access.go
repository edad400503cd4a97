// Package references reads the objects that Clusters refer to: control planes and infrastructure, of kinds
// known only at run time. It decides which kinds are watched, in which version, and whether the program may
// read them.
package references

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
)

const (
	// accessInterval is how often the Reader asks again whether it may read a kind. RBAC sends no event.
	accessInterval = time.Minute
	// sweepInterval is how often the Reader checks for kinds that are gone.
	sweepInterval = 2 * time.Second
	// answerPatience is how long the API server may take to answer an access review.
	answerPatience = 10 * time.Second
)

// access is the API server's answer whether the Reader may read a kind.
type access struct {
	allowed bool
	until   time.Time // the time of the next question after a refusal
}

// mayRead checks, once per kind, that the program's ServiceAccount may read it. Otherwise a refused watch
// would be retried forever, and no user would know why. After a refusal it asks again once in
// accessInterval, however many Clusters refer to the kind.
func (r *Reader) mayRead(ctx context.Context, field string, kind schema.GroupKind) error {
	resource := resourceOf(kind)
	r.mu.Lock()
	known, ok := r.access[resource]
	r.mu.Unlock()
	if !ok || r.isDue(known) {
		var err error
		if known, err = r.answer(ctx, resource); err != nil {
			return err
		}
	}
	if !known.allowed {
		err := fmt.Errorf("%s: the syncer may not read %s; give it a ClusterRole with get, list and watch on them, labelled %s: \"true\"",
			field, resource, settings.AggregationLabel)
		return &unresolvedError{&retryError{err, max(firstRetry, known.until.Sub(r.now()))}}
	}
	return nil
}

// resourceOf returns the resource of a kind. Its String method gives the name of the kind's CRD.
func resourceOf(kind schema.GroupKind) schema.GroupResource {
	return schema.ParseGroupResource(contract.CalculateCRDName(kind.Group, kind.Kind))
}

// answer returns the API server's answer for a resource, or the remembered one. Concurrent callers for
// the same resource share one request, and each waits only as long as its own context lasts.
func (r *Reader) answer(ctx context.Context, resource schema.GroupResource) (access, error) {
	answered := r.questions.DoChan("access "+resource.String(), func() (any, error) {
		r.mu.Lock()
		known, ok := r.access[resource]
		r.mu.Unlock()
		if ok && !r.isDue(known) {
			return known, nil
		}
		// The first caller's context may end before those of others.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerPatience)
		defer cancel()
		answer, err := r.ask(ctx, resource)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.access[resource] = answer
		r.mu.Unlock()
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

// isDue reports whether it is time to ask again after a refusal.
func (r *Reader) isDue(known access) bool { return !known.allowed && !r.now().Before(known.until) }

func (r *Reader) ask(ctx context.Context, resource schema.GroupResource) (access, error) {
	answer := access{allowed: true, until: r.now().Add(accessInterval)}
	for _, verb := range []string{"get", "list", "watch"} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: resource.Group, Resource: resource.Resource, Verb: verb},
		}}
		if err := r.Create(ctx, review); err != nil {
			return access{}, fmt.Errorf("asking whether %s may be read: %w", resource, err)
		}
		answer.allowed = answer.allowed && review.Status.Allowed
	}
	return answer, nil
}

// notServed is a version that a CRD declares but the API server did not serve: since when, and when that
// was last checked.
type notServed struct {
	version     string
	since, seen time.Time
}

// unservedFor returns how long not to look for a version again, however many Clusters refer to it.
func (r *Reader) unservedFor(version schema.GroupVersionKind) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	noted := r.unserved[resourceOf(version.GroupKind())]
	if noted.version != version.Version {
		return 0
	}
	return noted.seen.Add(backoff(noted.seen.Sub(noted.since))).Sub(r.now())
}

// noteUnserved records that a version is not served, and returns when to look for it again.
func (r *Reader) noteUnserved(version schema.GroupVersionKind) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	noted := r.unserved[resourceOf(version.GroupKind())]
	if noted.version != version.Version {
		noted = notServed{version: version.Version, since: r.now()}
	}
	noted.seen = r.now()
	r.unserved[resourceOf(version.GroupKind())] = noted
	return backoff(noted.seen.Sub(noted.since))
}

func (r *Reader) forgetUnserved(kind schema.GroupKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unserved, resourceOf(kind))
}

// sweep forgets kinds whose CRD is gone, even if no Cluster refers to them any more.
func (r *Reader) sweep(ctx context.Context) {
	for _, kind := range r.kinds.list() {
		r.forgetUndeclared(ctx, kind)
	}
}

// isWithoutCRD reports whether the cache shows that a kind has no CRD.
func (r *Reader) isWithoutCRD(ctx context.Context, resource schema.GroupResource) bool {
	return apierrors.IsNotFound(r.readCRD(ctx, resource))
}

// readCRD reads the CRD of a kind from the cache.
func (r *Reader) readCRD(ctx context.Context, resource schema.GroupResource) error {
	return r.Get(ctx, client.ObjectKey{Name: resource.String()}, CRD())
}

// forgetUndeclared forgets a kind without a CRD: tenants can refer to any number of kinds that do not
// exist. If the CRD appears, its watch enqueues the Clusters that refer to it.
func (r *Reader) forgetUndeclared(ctx context.Context, group schema.GroupKind) {
	resource := resourceOf(group)
	// Checked again while no goroutine reads the kind: later reads follow the event of a CRD.
	r.kinds.drop(ctx, group, func(*kind) bool { return r.isWithoutCRD(ctx, resource) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isWithoutCRD(ctx, resource) {
		delete(r.access, resource)
		delete(r.unserved, resource)
	}
}
