package queue

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// tricklePatience is how long the next object waits for one that is not done: somebody's
// webhook may take its time with each write, and there may be hundreds.
const tricklePatience = time.Second

// Trickle lets objects that one event concerns into a controller's queue, a few at a time.
// There may be thousands, and all workers writing at once fill the API server: what has
// just been created would wait for it, however early its turn came.
//
// The controller gets objects from In and calls Done after each reconcile, whatever woke it.
type Trickle struct {
	// In brings objects into the controller's queue. Use it with AtItsOwnPriority.
	In Events

	waiting workqueue.TypedInterface[reconcile.Request]
	object  func() client.Object
	// slots has room for as many as may be let in at once.
	slots    chan struct{}
	patience time.Duration

	mu sync.Mutex
	in map[reconcile.Request]chan struct{} // closed when it is done
}

// NewTrickle returns a Trickle of objects of a type. The name is that of its queue in
// metrics; atOnce is how many are let in at once.
func NewTrickle(name string, atOnce int, object func() client.Object) *Trickle {
	return &Trickle{
		In:      make(Events),
		waiting: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name}),
		object:  object, slots: make(chan struct{}, atOnce), patience: tricklePatience, in: map[reconcile.Request]chan struct{}{},
	}
}

// Of handles events whose objects concern many others.
func (t *Trickle) Of(concerned handler.MapFunc) handler.EventHandler {
	return toEach(func(ctx context.Context, object client.Object, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		for _, request := range concerned(ctx, object) {
			t.waiting.Add(request)
		}
	})
}

// Done notes that an object was reconciled, and makes room for the next.
func (t *Trickle) Done(request reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if done, isIn := t.in[request]; isIn {
		close(done)
		delete(t.in, request)
	}
}

// Start lets objects in until the context ends. It is a manager's Runnable.
func (t *Trickle) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, t.waiting.ShutDown)
	defer stop()
	for {
		request, shutdown := t.waiting.Get()
		if shutdown {
			return nil
		}
		// From here on another event lets it in once more.
		t.waiting.Done(request)
		select {
		case <-ctx.Done():
			return nil
		case t.slots <- struct{}{}:
			t.letIn(ctx, request)
		}
	}
}

// letIn lets an object in, and frees its slot when it is done or patience is over.
func (t *Trickle) letIn(ctx context.Context, request reconcile.Request) {
	t.mu.Lock()
	done, isIn := t.in[request]
	if !isIn {
		done = make(chan struct{})
		t.in[request] = done
	}
	t.mu.Unlock()
	object := t.object()
	object.SetNamespace(request.Namespace)
	object.SetName(request.Name)
	select {
	case <-ctx.Done():
		return
	case t.In <- event.GenericEvent{Object: object}:
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-done:
		case <-time.After(t.patience):
			t.Done(request)
		}
		<-t.slots
	}()
}
