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

// Tally counts Clusters by state, and by the reason of their condition, so that nothing has
// to walk through them.
type Tally struct {
	mu      gosync.Mutex
	entries map[types.NamespacedName]entry
	counts  map[State]int
	reasons map[string]int
	// crossNamespace counts those that use a class of another namespace.
	crossNamespace int
	changed        chan struct{}
}

type entry struct {
	state          State
	reason         string
	crossNamespace bool
}

// NewTally returns an empty Tally.
func NewTally() *Tally {
	return &Tally{
		entries: map[types.NamespacedName]entry{},
		counts:  map[State]int{},
		reasons: map[string]int{},
		changed: make(chan struct{}, 1),
	}
}

// Set notes what a Cluster counts as.
func (t *Tally) Set(key types.NamespacedName, now entry) { t.replace(key, now) }

// Forget drops a Cluster that is gone.
func (t *Tally) Forget(key types.NamespacedName) { t.replace(key, entry{}) }

func (t *Tally) replace(key types.NamespacedName, now entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.entries[key]
	if before == now {
		return
	}
	if before.state != "" {
		t.counts[before.state]--
		t.reasons[before.reason]--
	}
	if before.crossNamespace {
		t.crossNamespace--
	}
	if now.crossNamespace {
		t.crossNamespace++
	}
	metrics.CrossNamespaceClassClusters(t.crossNamespace)
	if now.state == "" {
		delete(t.entries, key)
	} else {
		t.entries[key] = now
		t.counts[now.state]++
		t.reasons[now.reason]++
	}
	for _, reason := range reasons {
		metrics.Reasons(reason, t.reasons[reason])
	}
	if before.state == now.state {
		return
	}
	for _, state := range states {
		metrics.Clusters(string(state), t.counts[state])
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Len returns the number of Clusters that are counted.
func (t *Tally) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
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
