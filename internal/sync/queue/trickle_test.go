package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// trickling starts a Trickle and has one event concern a number of objects.
func trickling(t *testing.T, atOnce, objects int, patience time.Duration) *Trickle {
	t.Helper()
	trickle := NewTrickle("", atOnce, func() client.Object { return &corev1.ConfigMap{} })
	trickle.patience = patience
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
	long  = 10 * time.Second
	while = 200 * time.Millisecond
)

func TestTrickleLetsInAFewAtOnce(t *testing.T) {
	const atOnce, objects = 2, 9
	trickle := trickling(t, atOnce, objects, time.Hour)
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
}

func TestTrickleWaitsForNoneLong(t *testing.T) {
	const objects = 3
	trickle := trickling(t, 1, objects, while)
	for i := range objects {
		if next(trickle, long) == (reconcile.Request{}) {
			t.Fatalf("%d of %d are let in", i, objects)
		}
	}
}

func TestTrickleLetsInAgain(t *testing.T) {
	trickle := trickling(t, 1, 1, time.Hour)
	first := next(trickle, long)
	trickle.waiting.Add(first) // Something else has changed since.
	if more := next(trickle, while); more != (reconcile.Request{}) {
		t.Errorf("%s is let in before it is done", more)
	}
	trickle.Done(first)
	if again := next(trickle, long); again != first {
		t.Errorf("%s is let in, not %s", again, first)
	}
}
