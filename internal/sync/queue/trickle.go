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

const (
	// tricklePatience is how long the next object waits, at most, for one that is in:
	// somebody's webhook may take its time with each write, and there may be hundreds.
	tricklePatience = time.Second
	// trickleCalm is how long nothing else was written when as many are let in as there are
	// workers.
	trickleCalm = time.Second
	// trickleProbe is how long only a few are let in at first, until it is known whether the
	// controller has other things to do.
	trickleProbe = 300 * time.Millisecond
	// tricklePause is how many times as long as an object took the pause after it is.
	tricklePause = 3
)

// Trickle lets objects that one event concerns into a controller's queue, a few at a time
// at first and while the controller has other things to write, and with a pause after each.
// There may be thousands, and writing them without a break fills the API server: what
// has just been created would wait for it, however early its turn came.
//
// The controller gets objects from In. Whatever woke it, it calls Wrote when it writes something
// for an object, and Done after each reconcile.
type Trickle struct {
	// In brings objects into the controller's queue. Use it with AtItsOwnPriority.
	In Events

	waiting               workqueue.TypedInterface[reconcile.Request]
	object                func() client.Object
	workers, few          int
	patience, calm, probe time.Duration

	mu sync.Mutex
	in map[reconcile.Request]*entry
	// direct is what few events concerned, and went past what waits.
	direct map[reconcile.Request]struct{}
	// room tells that one fewer is in.
	room chan struct{}
	// other is when something was written that was not let in here, last when something was
	// let in, and probed until when only a few are.
	other, last, probed time.Time
}

// entry is an object that was let in.
type entry struct {
	since time.Time
	// end gives its room back: when patience is over, or the pause after it.
	end *time.Timer
	// done says that it was reconciled, and overdue that patience was over before: it takes up
	// no room any more, but is known until it is done.
	done, overdue bool
}

// NewTrickle returns a Trickle of objects of a type. The name is that of its queue in
// metrics. It lets in as many at once as there are workers, and only a few at first and while
// anything else is written.
func NewTrickle(name string, workers, few int, object func() client.Object) *Trickle {
	workers = max(1, workers) // As a controller does.
	return &Trickle{
		In:      make(Events),
		waiting: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name}),
		object:  object, workers: workers, few: few, patience: tricklePatience, calm: trickleCalm, probe: trickleProbe,
		in: map[reconcile.Request]*entry{}, direct: map[reconcile.Request]struct{}{}, room: make(chan struct{}, 1),
	}
}

// Of handles events whose objects may concern many others. As many as there are workers go
// into the queue directly, behind what has itself changed, if an event concerns no more: they
// need not wait for thousands that another concerns. Of many such events the rest wait, too.
func (t *Trickle) Of(concerned handler.MapFunc) handler.EventHandler {
	return toEach(func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		t.add(queue, concerned(ctx, object))
	})
}

// OfOneOrMany is Of, but one object that an event alone concerns goes into the queue as if it
// had itself changed.
func (t *Trickle) OfOneOrMany(concerned handler.MapFunc) handler.EventHandler {
	return toEach(func(ctx context.Context, object client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		requests := concerned(ctx, object)
		if len(requests) == 1 {
			queue.Add(requests[0])
			return
		}
		t.add(queue, requests)
	})
}

func (t *Trickle) add(queue workqueue.TypedRateLimitingInterface[reconcile.Request], requests []reconcile.Request) {
	if t.isDirect(requests) {
		addBehind(queue, requests...)
		return
	}
	for _, request := range requests {
		t.waiting.Add(request)
	}
}

func (t *Trickle) isDirect(requests []reconcile.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.direct)+len(requests) > t.workers {
		return false
	}
	for _, request := range requests {
		t.direct[request] = struct{}{}
	}
	return true
}

// Wrote notes that something was written for an object: what comes from elsewhere is not to
// wait for what was let in here.
func (t *Trickle) Wrote(request reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, isDirect := t.direct[request]
	if its, isIn := t.in[request]; !isDirect && (!isIn || its.done) {
		t.other = time.Now()
	}
}

// Done notes that an object was reconciled, and how long that took, and makes room for the
// next.
func (t *Trickle) Done(request reconcile.Request, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.direct, request)
	its, isIn := t.in[request]
	switch {
	case !isIn || its.done:
	case its.overdue || !t.isBusy():
		its.end.Stop()
		t.leave(request)
	default:
		its.end.Stop()
		its.done = true
		t.endAfter(request, its, min(tricklePause*took, max(0, t.patience-time.Since(its.since))))
	}
}

// isBusy reports whether the controller has other things to write, as far as is known. It is
// called with the lock held.
func (t *Trickle) isBusy() bool {
	return time.Since(t.other) < t.calm || time.Until(t.probed) > 0
}

// leave makes room. It is called with the lock held.
func (t *Trickle) leave(request reconcile.Request) {
	delete(t.in, request)
	t.tell()
}

func (t *Trickle) tell() {
	select {
	case t.room <- struct{}{}:
	default: // It has been told already.
	}
}

// endAfter makes room after a time, unless its end comes otherwise. It is called with the
// lock held.
func (t *Trickle) endAfter(request reconcile.Request, its *entry, wait time.Duration) {
	var end *time.Timer
	end = time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case t.in[request] != its || its.end != end:
		case its.done:
			t.leave(request)
		default:
			its.overdue = true
			t.tell()
		}
	})
	its.end = end
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
		for !t.enter(request) {
			select {
			case <-ctx.Done():
				return nil
			case <-t.room:
			}
		}
		object := t.object()
		object.SetNamespace(request.Namespace)
		object.SetName(request.Name)
		select {
		case <-ctx.Done():
			return nil
		case t.In <- event.GenericEvent{Object: object}:
		}
	}
}

// enter reports whether there is room for an object, and takes it.
func (t *Trickle) enter(request reconcile.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.in) == 0 && time.Since(t.last) > t.calm {
		t.probed = time.Now().Add(t.probe)
		time.AfterFunc(t.probe, t.tell)
	}
	most := t.workers
	if t.isBusy() {
		most = t.few
	}
	if its, isIn := t.in[request]; isIn {
		// It comes again when it is done. One that is overdue holds up nobody: the
		// controller's queue knows it, or reconciles it once more.
		return its.overdue
	}
	overdue := 0
	for _, its := range t.in {
		if its.overdue {
			overdue++
		}
	}
	// What is overdue waits for the workers, or keeps them: more would only do the same.
	if len(t.in)-overdue >= most || overdue >= t.workers {
		return false
	}
	t.last = time.Now()
	its := &entry{since: t.last}
	t.in[request] = its
	t.endAfter(request, its, t.patience)
	return true
}
