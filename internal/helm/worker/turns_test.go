package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/internal/helm/fair"
)

// reconciles are 10 reconciles that render with 2 workers. A job takes as long as its template says, or else as its limit.
type reconciles struct {
	*Pool
	queue workqueue.TypedInterface[types.NamespacedName]
	done  chan types.NamespacedName
	// built counts the data for templates, and reconciled the reconciles.
	built, reconciled atomic.Int64
}

func newReconciles(ctx context.Context, template string) *reconciles {
	r := &reconciles{Pool: New(2), queue: workqueue.NewTyped[types.NamespacedName](), done: make(chan types.NamespacedName)}
	r.work = func(ctx context.Context, its job, _ [][]byte) (result, error) {
		length, err := time.ParseDuration(its.Template)
		if err != nil {
			length = its.Limit
		}
		select {
		case <-ctx.Done():
		case <-time.After(length):
		}
		return result{}, ctx.Err()
	}
	turns := fair.NewTurns(10, r.queue.Add)
	for range 10 {
		go func() {
			for {
				key, ends := r.queue.Get()
				if ends {
					return
				}
				r.reconciled.Add(1)
				if r.reconcile(ctx, turns.Of(key), key, template) {
					select {
					case r.done <- key:
					case <-ctx.Done():
					}
				}
				r.queue.Done(key)
			}
		}()
	}
	return r
}

// reconcile reports whether it has rendered the template of an object.
func (r *reconciles) reconcile(ctx context.Context, turn *fair.Turn, key types.NamespacedName, template string) bool {
	defer turn.End()
	if !turn.Take() {
		return false
	}
	if key.Namespace == "other" {
		template = "5ms"
	}
	_, err := r.Render(ctx, key.Namespace, template, func() (map[string]any, error) {
		r.built.Add(1)
		return nil, nil
	})
	return err == nil
}

// 1000 templates in 1 or 20 namespaces occupy both workers until all are rendered, whatever they take. The data for each are built
// once, and each is reconciled a second time when it is its turn.
func TestManyRenders(t *testing.T) {
	const many = 1000
	for _, length := range []time.Duration{0, 19 * time.Millisecond, 21 * time.Millisecond, 5 * time.Second} {
		for _, namespaces := range []int{1, 20} {
			t.Run(fmt.Sprint(length, " in ", namespaces), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, began := newReconciles(t.Context(), length.String()), time.Now()
					defer r.queue.ShutDown()
					for i := range many {
						r.queue.Add(types.NamespacedName{Namespace: fmt.Sprint(i % namespaces), Name: fmt.Sprint(i)})
					}
					for range many {
						<-r.done
					}
					if took, most := time.Since(began), many*length/2*12/10; took > most {
						t.Errorf("it took %s, want %s", took, most)
					}
					if r.built.Load() != many || r.reconciled.Load() > 2*many {
						t.Errorf("data were built %d times in %d reconciles", r.built.Load(), r.reconciled.Load())
					}
				})
			})
		}
	}
}

// While one namespace has jobs of all kinds that take as long as they may, another soon gets a worker.
func TestWorstNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		r := newReconciles(ctx, "its limit")
		for range 5 {
			for _, work := range []func(){
				func() { _ = r.Check(ctx, "greedy", nil) },
				func() { _, _ = r.Find(ctx, "greedy", Search{}, given(nil)) },
				func() { _, _ = r.Find(ctx, "greedy", Search{InTags: true}, given(nil)) },
				func() { _, _ = r.Unpack(ctx, "greedy", nil) },
			} {
				go func() {
					for ctx.Err() == nil {
						work()
					}
				}()
			}
		}
		for i := range 1000 {
			r.queue.Add(types.NamespacedName{Namespace: "greedy", Name: fmt.Sprint(i)})
		}
		other := types.NamespacedName{Namespace: "other", Name: "one"}
		for range 100 {
			time.Sleep(1700 * time.Millisecond)
			began := time.Now()
			r.queue.Add(other)
			for <-r.done != other {
			}
			if took := time.Since(began); took > 6*time.Second {
				t.Fatalf("another namespace waited for %s", took)
			}
		}
		end()
		synctest.Wait()
		r.queue.ShutDown()
	})
}

// While one namespace walks one index after the other, each for as long as it may, another has the values of spec.valuesFrom
// checked in the time that it has to read all inputs.
func TestChecksBesideIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		r := newReconciles(ctx, "0s")
		defer r.queue.ShutDown()
		for range 2 {
			go func() {
				for ctx.Err() == nil {
					_, _ = r.Find(ctx, "greedy", Search{}, given(nil))
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		for range 16 {
			_ = r.Check(ctx, "other", nil)
		}
		if took := time.Since(began); took > 90*time.Second { // Each takes 5 s here.
			t.Errorf("it took %s", took)
		}
		end()
		synctest.Wait()
	})
}

// Known weakness: two namespaces that walk one index after the other, each for as long as it may, let a third wait for its chart
// nearly as long as a request to a repository may take, 90 s. A third child would need its memory.
func TestKnownWaitBehindSlowIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		r := newReconciles(ctx, "0s")
		defer r.queue.ShutDown()
		for _, namespace := range []string{"one", "two", "one", "two"} {
			go func() {
				for ctx.Err() == nil {
					_, _ = r.Find(ctx, namespace, Search{}, given(nil))
				}
			}()
		}
		time.Sleep(time.Second)
		began := time.Now()
		_, _ = r.Unpack(ctx, "other", nil)
		if took := time.Since(began); took < 45*time.Second {
			t.Errorf("it took only %s: remove the row in docs/internals/decisions/0016-known-weaknesses.md", took)
		}
		end()
		synctest.Wait()
	})
}
