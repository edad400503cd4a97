package sync

import (
	gosync "sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/metrics"
)

// State says what became of a Cluster, for counting.
type State string

// The states of a Cluster.
const (
	StateImported   State = "imported"
	StatePending    State = "pending"
	StateConflicted State = "conflicted"
	StateFailed     State = "failed"
	StateUnselected State = "unselected"
)

var states = []State{StateImported, StatePending, StateConflicted, StateFailed, StateUnselected}

// Tally counts Clusters by state, so that nobody needs to walk through them.
type Tally struct {
	mu      gosync.Mutex
	states  map[types.NamespacedName]State
	counts  map[State]int
	changed chan struct{}
}

// NewTally returns an empty Tally.
func NewTally() *Tally {
	return &Tally{
		states:  map[types.NamespacedName]State{},
		counts:  map[State]int{},
		changed: make(chan struct{}, 1),
	}
}

// Set notes the state of a Cluster.
func (t *Tally) Set(key types.NamespacedName, state State) { t.replace(key, state) }

// Forget drops a Cluster that is gone.
func (t *Tally) Forget(key types.NamespacedName) { t.replace(key, "") }

func (t *Tally) replace(key types.NamespacedName, state State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.states[key]
	if before == state {
		return
	}
	if before != "" {
		t.counts[before]--
	}
	if state == "" {
		delete(t.states, key)
	} else {
		t.states[key] = state
		t.counts[state]++
	}
	for _, state := range states {
		metrics.Clusters(string(state), t.counts[state])
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Counts returns the number of Clusters in each state.
func (t *Tally) Counts() map[State]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := map[State]int{}
	for state, count := range t.counts {
		counts[state] = count
	}
	return counts
}

// Changed delivers after counts have changed; several changes may deliver once.
func (t *Tally) Changed() <-chan struct{} { return t.changed }
