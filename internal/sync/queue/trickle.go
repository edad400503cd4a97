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
	// tricklePatience is how long the next object waits for one that is not done: somebody's
	// webhook may take its time with each write, and there may be hundreds.
	tricklePatience = time.Second
	// trickleCalm is how long nothing else was reconciled when as many are let in as there
	// are workers.
	trickleCalm = time.Second
	// trickleProbe is how long only a few are let in at first, until it is known whether the
	// controller has other things to do.
	trickleProbe = 300 * time.Millisecond
	// tricklePause is how many times as long as an object took the pause after it is.
	tricklePause = 3
	// trickleEchoes is how long, at least, further reconciles of what was let in count as its
	// own doing: what it wrote comes back.
	trickleEchoes = 10 * time.Second
)

// Trickle lets objects that one event concerns into a controller's queue, a few at a time
// at first and while the controller has other things to do, and with a pause after each. There may be thousands, and writing them without a break fills the API server: what
// has just been created would wait for it, however early its turn came.
//
// The controller gets objects from In and calls Done after each reconcile, whatever woke it.
type Trickle struct {
	// In brings objects into the controller's queue. Use it with AtItsOwnPriority.
	In Events

	waiting               workqueue.TypedInterface[reconcile.Request]
	object                func() client.Object
	workers, few          int
	patience, calm, probe time.Duration

	mu sync.Mutex
	in map[reconcile.Request]*entry
	// room tells that one fewer is in.
	room chan struct{}
	// other is when something was reconciled that was not let in here, last when something was
	// let in, and probed until when only a few are.
	other, last, probed time.Time
	// recent is what was let in since turned, and older what was shortly before.
	recent, older map[reconcile.Request]struct{}
	turned        time.Time
}

// entry is an object that takes up room.
type entry struct {
	since time.Time
	// end gives its room back: when patience is over, or the pause after it.
	end  *time.Timer
	done bool
}

// NewTrickle returns a Trickle of objects of a type. The name is that of its queue in
// metrics. It lets in as many at once as there are workers, and only a few at first and while
// anything else is reconciled.
func NewTrickle(name string, workers, few int, object func() client.Object) *Trickle {
	return &Trickle{
		In:      make(Events),
		waiting: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name}),
		object:  object, workers: workers, few: few, patience: tricklePatience, calm: trickleCalm, probe: trickleProbe,
		in: map[reconcile.Request]*entry{}, room: make(chan struct{}, 1),
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
	its, isIn := t.in[request]
	if !isIn || its.done {
		if !t.wasIn(request) {
			t.other = time.Now()
		}
		return
	}
	its.end.Stop()
	if !t.isBusy() {
		t.leave(request)
		return
	}
	its.done = true
	t.leaveAfter(request, its, tricklePause*time.Since(its.since))
}

// wasIn reports whether an object was let in lately. It is called with the lock held.
func (t *Trickle) wasIn(request reconcile.Request) bool {
	t.turn()
	_, recently := t.recent[request]
	_, before := t.older[request]
	return recently || before
}

// turn forgets what was let in long ago. It is called with the lock held.
func (t *Trickle) turn() {
	switch since := time.Since(t.turned); {
	case since < trickleEchoes:
		return
	case since < 2*trickleEchoes:
		t.older = t.recent
	default:
		t.older = nil
	}
	t.recent, t.turned = map[reconcile.Request]struct{}{}, time.Now()
}

// isBusy reports whether the controller has other things to do, as far as is known. It is
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

// leaveAfter makes room after a time, unless its end comes otherwise. It is called with the
// lock held.
func (t *Trickle) leaveAfter(request reconcile.Request, its *entry, wait time.Duration) {
	var end *time.Timer
	end = time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.in[request] == its && its.end == end {
			t.leave(request)
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
	if _, isIn := t.in[request]; isIn || len(t.in) >= most {
		return false // If it is in already, it comes again when it is done.
	}
	t.turn()
	t.recent[request] = struct{}{}
	t.last = time.Now()
	its := &entry{since: t.last}
	t.in[request] = its
	t.leaveAfter(request, its, t.patience)
	return true
}
