package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// trickling starts a Trickle and has one event concern a number of objects.
func trickling(t *testing.T, workers, few, objects int, patience time.Duration) *Trickle {
	t.Helper()
	trickle := NewTrickle("", workers, few, func() client.Object { return &corev1.ConfigMap{} })
	trickle.patience, trickle.calm = patience, time.Hour
	var requests []reconcile.Request
	for i := range objects {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}})
	}
	concerned := trickle.Of(func(context.Context, client.Object) []reconcile.Request { return requests })
	class := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "class"}}
	for range 2 { // The second event adds nothing: they all wait still.
		concerned.Update(t.Context(), event.UpdateEvent{ObjectOld: class, ObjectNew: class}, nil)
	}
	stopped := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { stopped <- trickle.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-stopped:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("it does not stop")
		}
		time.Sleep(time.Second) // Until its queue's own goroutine has noticed.
	})
	return trickle
}

// next returns the request of the object that is let in next; zero if none is for a while.
func next(trickle *Trickle, while time.Duration) reconcile.Request {
	select {
	case e := <-trickle.In:
		return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
	case <-time.After(while):
		return reconcile.Request{}
	}
}

const (
	long  = time.Hour / 2
	while = 200 * time.Millisecond
)

func named(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
}

func TestTrickleLetsInAFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const atOnce, objects = 2, 9
		trickle := trickling(t, atOnce, atOnce, objects, time.Hour)
		seen := map[reconcile.Request]bool{}
		var in []reconcile.Request
		for range atOnce {
			in = append(in, next(trickle, long))
		}
		if more := next(trickle, while); more != (reconcile.Request{}) {
			t.Errorf("%s is let in before one of %d is done", more, atOnce)
		}
		trickle.Done(named("another"), 0)
		if more := next(trickle, while); more != (reconcile.Request{}) {
			t.Errorf("%s is let in because another was done", more)
		}
		for len(in) > 0 {
			if in[0] == (reconcile.Request{}) {
				t.Fatalf("only %d of %d are let in", len(seen), objects)
			}
			if seen[in[0]] {
				t.Errorf("%s is let in twice", in[0])
			}
			seen[in[0]] = true
			trickle.Done(in[0], while)
			in = in[1:]
			if len(seen)+len(in) < objects {
				in = append(in, next(trickle, long))
			}
		}
		if more := next(trickle, while); len(seen) != objects || more != (reconcile.Request{}) {
			t.Errorf("%d of %d are let in, and then %s", len(seen), objects, more)
		}
	})
}

// One that takes long is not waited for, until as many do as there are workers.
func TestTrickleWaitsForNoneLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 3
		trickle := trickling(t, workers, 1, 2*workers, while)
		trickle.Wrote(named("another"))
		var late []reconcile.Request
		for range workers {
			request := next(trickle, while+time.Millisecond)
			if request == (reconcile.Request{}) {
				t.Fatalf("%d are let in, want %d", len(late), workers)
			}
			late = append(late, request)
		}
		if more := next(trickle, long); more != (reconcile.Request{}) {
			t.Errorf("%s is let in, although all workers are kept", more)
		}
		for range workers {
			trickle.Done(late[0], long)
			late = late[1:]
			if next(trickle, 2*while) == (reconcile.Request{}) {
				t.Error("none is let in when one of those that took long is done")
			}
		}
	})
}

func TestTrickleLetsInAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trickle := trickling(t, 1, 1, 2, time.Hour)
		first := next(trickle, long)
		trickle.waiting.Add(first) // Something else has changed since.
		trickle.Done(first, 0)
		second := next(trickle, long)
		if more := next(trickle, while); more != (reconcile.Request{}) {
			t.Errorf("%s is let in before %s is done", more, second)
		}
		trickle.Done(second, 0)
		if again := next(trickle, long); again != first {
			t.Errorf("%s is let in, not %s", again, first)
		}
	})
}

// One that is in holds up the others no longer than patience lasts, if something else has
// changed for it since.
func TestTrickleLetsInWhatIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trickle := trickling(t, 2, 2, 3, long)
		first := next(trickle, while)
		trickle.Done(next(trickle, while), 0)
		trickle.Done(next(trickle, while), 0)
		trickle.waiting.Add(first)
		if more := next(trickle, while); more != (reconcile.Request{}) {
			t.Errorf("%s is let in before it is done", more)
		}
		if again := next(trickle, long); again != first {
			t.Errorf("%s is let in, not %s", again, first)
		}
	})
}

// As many are let in as there are workers, until the controller has something else to write.
func TestTrickleGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, few, objects = 5, 2, 30
		trickle := trickling(t, workers, few, objects, 10*time.Hour)
		var in []reconcile.Request
		letIn := func() {
			t.Helper()
			for {
				request := next(trickle, while)
				if request == (reconcile.Request{}) {
					return
				}
				in = append(in, request)
			}
		}
		done := func(count int) {
			for range count {
				trickle.Done(in[0], while)
				in = in[1:]
			}
		}
		if letIn(); len(in) != few {
			t.Fatalf("%d are let in at first, want %d", len(in), few)
		}
		time.Sleep(trickle.probe)
		if letIn(); len(in) != workers {
			t.Fatalf("%d are let in while nothing else happens, want %d", len(in), workers)
		}
		// None of these is in anybody's way.
		trickle.Done(named("another"), while)
		trickle.Wrote(in[0])
		done(1)
		if letIn(); len(in) != workers {
			t.Fatalf("%d are in when another was looked at, and one of these was written, want %d", len(in), workers)
		}
		trickle.Wrote(named("another"))
		done(workers - few)
		if letIn(); len(in) != few {
			t.Fatalf("%d are in when another was written, want %d", len(in), few)
		}
		done(1)
		time.Sleep(tricklePause * while) // The pause after it.
		if letIn(); len(in) != few {
			t.Fatalf("%d are in, want %d: one is done", len(in), few)
		}
		time.Sleep(trickle.calm)
		done(1)
		if letIn(); len(in) != workers {
			t.Fatalf("%d are in when it is calm again, want %d", len(in), workers)
		}
	})
}

// While others are written, most of the time is left to them; but no object takes its place
// for longer than patience lasts.
func TestTricklePauses(t *testing.T) {
	for _, test := range []struct{ took, pause time.Duration }{
		{20 * time.Millisecond, 60 * time.Millisecond},
		{900 * time.Millisecond, 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			trickle := trickling(t, 1, 1, 4, tricklePatience)
			reconciled := func() {
				t.Helper()
				request := next(trickle, time.Millisecond)
				if request == (reconcile.Request{}) {
					t.Fatal("none is let in")
				}
				time.Sleep(test.took)
				trickle.Done(request, test.took)
			}
			time.Sleep(trickle.probe)
			reconciled()
			reconciled() // Nothing else happens, so nobody is in the way.
			trickle.Wrote(named("another"))
			reconciled()
			if request := next(trickle, test.pause-time.Millisecond); request != (reconcile.Request{}) {
				t.Errorf("%s is let in without a pause", request)
			}
			time.Sleep(time.Millisecond)
			reconciled()
		})
	}
}

// What concerns few does not wait for what concerns many.
func TestTrickleOfFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trickle := trickling(t, 2, 1, 1000, time.Hour)
		controllers := priorityqueue.New[reconcile.Request]("")
		defer func() { controllers.ShutDown(); time.Sleep(time.Second) }()
		few := func(names ...string) handler.MapFunc {
			return func(context.Context, client.Object) (all []reconcile.Request) {
				for _, name := range names {
					all = append(all, named(name))
				}
				return all
			}
		}
		class := event.UpdateEvent{ObjectOld: &corev1.ConfigMap{}, ObjectNew: &corev1.ConfigMap{}}
		class.ObjectNew.SetResourceVersion("2")
		trickle.Of(few("x", "y")).Update(t.Context(), class, controllers)
		trickle.OfOneOrMany(few("z")).Update(t.Context(), class, controllers)
		trickle.OfOneOrMany(few("a", "b", "c")).Update(t.Context(), class, controllers)
		for _, want := range []string{"z 0", "x -100", "y -100"} {
			got, priority, _ := controllers.GetWithPriority()
			if got := fmt.Sprint(got.Name, " ", priority); got != want {
				t.Errorf("%s is in the queue, want %s", got, want)
			}
		}
		if controllers.Len() != 0 {
			t.Errorf("%d more are in the queue", controllers.Len())
		}
		// Many events that concern few are no better than one that concerns many.
		trickle.Of(few("u", "v")).Update(t.Context(), class, controllers)
		if trickle.Done(named("x"), 0); controllers.Len() != 0 {
			t.Error("more are in the queue than there are workers")
		}
		trickle.Wrote(named("y"))
		trickle.mu.Lock()
		if !trickle.other.IsZero() {
			t.Error("what it has brought about counts as another's")
		}
		trickle.mu.Unlock()
		trickle.Done(named("y"), 0)
		trickle.Of(few("p", "q")).Update(t.Context(), class, controllers)
		time.Sleep(time.Second) // The queue is filled by a goroutine.
		if controllers.Len() != 2 {
			t.Errorf("%d are in the queue when there is room again", controllers.Len())
		}
	})
}
