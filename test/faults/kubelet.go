package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack"
)

const (
	kubeletInterval = 100 * time.Millisecond
	// firstBackOff is how long a kubelet waits before it starts a container for the
	// second time; it doubles with each time after that.
	firstBackOff = 10 * time.Second
)

// kubelet starts processes that have ended, but those that a fault holds down.
type kubelet struct {
	env  *stack.Stack
	done sync.WaitGroup

	mu       sync.Mutex
	held     map[string]bool
	starts   map[string]int
	notUntil map[string]time.Time
}

func newKubelet(ctx context.Context, env *stack.Stack) *kubelet {
	k := &kubelet{env: env}
	k.reset()
	k.held = map[string]bool{apiServer: true, etcd: true} // Started by who stopped them.
	k.done.Go(func() {
		for ctx.Err() == nil {
			k.look()
			select {
			case <-ctx.Done():
			case <-time.After(kubeletInterval):
			}
		}
	})
	return k
}

func (k *kubelet) wait() { k.done.Wait() }

func (k *kubelet) look() {
	for _, process := range k.env.Processes() {
		k.mu.Lock()
		if process.Running || k.held[process.Name] || time.Now().Before(k.notUntil[process.Name]) {
			k.mu.Unlock()
			continue
		}
		k.notUntil[process.Name] = time.Now().Add(firstBackOff << k.starts[process.Name])
		k.starts[process.Name]++
		k.mu.Unlock()
		// It fails only when the stack goes down.
		_ = k.env.Respawn(process.Name)
	}
}

// hold keeps processes down when they end, until they are released.
func (k *kubelet) hold(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		k.held[name] = true
	}
}

func (k *kubelet) release(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		delete(k.held, name)
	}
}

// reset forgets how often processes were started: each run begins anew.
func (k *kubelet) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts, k.notUntil = map[string]int{}, map[string]time.Time{}
}

// restarts returns how often processes of Muster were started since the last reset.
func (k *kubelet) restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	count := 0
	for name, starts := range k.starts {
		if strings.HasPrefix(name, "muster-") {
			count += starts
		}
	}
	return count
}
