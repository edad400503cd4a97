package registrar

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/metrics"
)

// tally counts Clusters by the reason of their condition, so that nobody needs to walk
// through them.
type tally struct {
	mu     sync.Mutex
	of     map[types.NamespacedName]string
	counts map[string]int
}

// newTally returns a tally of nothing. Every reason has a series from the beginning, so that
// the first of a kind shows as an increase.
func newTally() *tally {
	t := &tally{of: map[types.NamespacedName]string{}, counts: map[string]int{}}
	for _, reason := range reasons {
		metrics.Manifests(reason, 0)
	}
	return t
}

// set notes the reason on a Cluster; empty for none.
func (t *tally) set(cluster types.NamespacedName, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.of[cluster]
	if before == reason {
		return
	}
	if before != "" {
		t.counts[before]--
		metrics.Manifests(before, t.counts[before])
	}
	delete(t.of, cluster)
	if reason != "" {
		t.of[cluster] = reason
		t.counts[reason]++
		metrics.Manifests(reason, t.counts[reason])
	}
}
