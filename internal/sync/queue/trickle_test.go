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
	"sigs.k8s.io/controller-runtime/pkg/event"
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
		trickle.Done(reconcile.Request{NamespacedName: types.NamespacedName{Name: "another"}})
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
			trickle.Done(in[0])
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

func TestTrickleWaitsForNoneLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects = 3
		trickle := trickling(t, 1, 1, objects, while)
		for i := range objects {
			if next(trickle, long) == (reconcile.Request{}) {
				t.Fatalf("%d of %d are let in", i, objects)
			}
		}
	})
}

func TestTrickleLetsInAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trickle := trickling(t, 1, 1, 1, time.Hour)
		first := next(trickle, long)
		trickle.waiting.Add(first) // Something else has changed since.
		if more := next(trickle, while); more != (reconcile.Request{}) {
			t.Errorf("%s is let in before it is done", more)
		}
		trickle.Done(first)
		if again := next(trickle, long); again != first {
			t.Errorf("%s is let in, not %s", again, first)
		}
	})
}

// As many are let in as there are workers, until the controller has something else to do.
func TestTrickleGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, few, objects = 5, 2, 20
		trickle := trickling(t, workers, few, objects, time.Hour)
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
		if letIn(); len(in) != few {
			t.Fatalf("%d are let in at first, want %d", len(in), few)
		}
		time.Sleep(trickle.probe)
		if letIn(); len(in) != workers {
			t.Fatalf("%d are let in while nothing else happens, want %d", len(in), workers)
		}
		trickle.Done(reconcile.Request{NamespacedName: types.NamespacedName{Name: "another"}})
		done := func(count int) {
			for range count {
				trickle.Done(in[0])
				in = in[1:]
			}
		}
		done(workers - few)
		if letIn(); len(in) != few {
			t.Fatalf("%d are in when another was reconciled, want %d", len(in), few)
		}
		done(1)
		time.Sleep(tricklePause * 5 * while) // The pause after it.
		if letIn(); len(in) != few {
			t.Fatalf("%d are in, want %d: one is done", len(in), few)
		}
		trickle.mu.Lock()
		trickle.other = time.Now().Add(-2 * trickle.calm) // It was long ago.
		trickle.mu.Unlock()
		done(1)
		if letIn(); len(in) != workers {
			t.Fatalf("%d are in when it is calm again, want %d", len(in), workers)
		}
	})
}

// While other objects are reconciled, most of the time is left to them.
func TestTricklePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 3 * time.Second
		trickle := trickling(t, 1, 1, 4, time.Hour)
		reconciled := func() {
			t.Helper()
			request := next(trickle, time.Millisecond)
			if request == (reconcile.Request{}) {
				t.Fatal("none is let in")
			}
			time.Sleep(took)
			trickle.Done(request)
		}
		reconciled()
		reconciled() // Nothing else happens, so nobody is in the way.
		trickle.Done(reconcile.Request{NamespacedName: types.NamespacedName{Name: "another"}})
		reconciled()
		if request := next(trickle, tricklePause*took-time.Millisecond); request != (reconcile.Request{}) {
			t.Errorf("%s is let in without a pause", request)
		}
		time.Sleep(time.Millisecond)
		reconciled()
	})
}

// What was let in comes back, because it was written: that is nothing else to do, until long
// afterwards.
func TestTrickleKnowsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trickle := trickling(t, 5, 1, 20, time.Hour)
		trickle.mu.Lock()
		trickle.calm = trickleCalm
		trickle.mu.Unlock()
		isBusy := func() bool {
			trickle.mu.Lock()
			defer trickle.mu.Unlock()
			return trickle.isBusy()
		}
		first := next(trickle, long)
		time.Sleep(trickle.probe)
		trickle.Done(first)
		for _, later := range []time.Duration{0, trickleEchoes} {
			time.Sleep(later)
			if trickle.Done(first); isBusy() {
				t.Errorf("it is busy with what came back %s later", later)
			}
		}
		time.Sleep(2 * trickleEchoes)
		if trickle.Done(first); !isBusy() {
			t.Error("it is not busy with what changes long afterwards")
		}
	})
}
