package charts

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func TestPace(t *testing.T) {
	now := time.Now()
	p := newPace()
	expect(t, "nobody has looked", p.left(key, now), time.Duration(0))
	p.begin(key, now)
	expect(t, "during the first", p.left(key, now), time.Duration(0))
	p.end(key, 10*time.Millisecond, now)
	expect(t, "after a short look", p.left(key, now), 40*time.Millisecond)
	now = now.Add(time.Second)
	expect(t, "a while later", p.left(key, now), time.Duration(0))
	p.begin(key, now)
	expect(t, "during the next", p.left(key, now), 50*time.Millisecond)
	p.end(key, time.Minute, now)
	expect(t, "after a long look", p.left(key, now), longestRest)
	p.end(types.NamespacedName{Name: "other"}, time.Millisecond, now.Add(2*time.Hour))
	expect(t, "what is over is forgotten", len(p.all), 1)
}

// News of what has been made waits, and is one look then.
func TestPaced(t *testing.T) {
	p := newPace()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	events := p.paced(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request(key)} })
	news := event.UpdateEvent{ObjectOld: &addonsv1.HelmReleaseProxy{}, ObjectNew: &addonsv1.HelmReleaseProxy{}}
	events.Update(t.Context(), news, queue)
	expect(t, "at once", queue.Len(), 1)
	got, _ := queue.Get()
	queue.Done(got)
	p.end(key, 50*time.Millisecond, time.Now())
	for range 10 {
		events.Update(t.Context(), news, queue)
	}
	expect(t, "not yet", queue.Len(), 0)
	begin := time.Now()
	got, _ = queue.Get()
	queue.Done(got)
	if waited := time.Since(begin); waited < 100*time.Millisecond {
		t.Errorf("the next look was %s after the last, which took 50 ms", waited)
	}
	expect(t, "nothing else waits", queue.Len(), 0)
}

func TestNotOnlyStatus(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmReleaseProxy)
		want   bool
	}{
		"its status":  {func(its *addonsv1.HelmReleaseProxy) { its.Status.Revision, its.ResourceVersion = 3, "2" }, false},
		"its spec":    {func(its *addonsv1.HelmReleaseProxy) { its.Generation = 2 }, true},
		"a label":     {func(its *addonsv1.HelmReleaseProxy) { its.Labels = map[string]string{"a": "b"} }, true},
		"a finalizer": {func(its *addonsv1.HelmReleaseProxy) { its.Finalizers = []string{peersReleaseFinalizer} }, true},
		"its end":     {func(its *addonsv1.HelmReleaseProxy) { its.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &addonsv1.HelmReleaseProxy{}
			before.Generation, before.ResourceVersion = 1, "1"
			after := before.DeepCopy()
			test.change(after)
			expect(t, "looked at", notOnlyStatus.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}), test.want)
		})
	}
}

// A look that waited for a repository says nothing of how long the next takes.
func TestPaceAfterALongWait(t *testing.T) {
	now := time.Now()
	p := newPace()
	p.end(key, 90*time.Second, now)
	now = now.Add(time.Minute)
	p.begin(key, now)
	expect(t, "during the next", p.left(key, now), 2*longestRest)
}
