package main

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/test/bench/metrics"
)

// counts are what the syncer has counted since it started.
type counts struct {
	// looks are its reconciles of Clusters.
	looks int
	// imported are the Clusters that it has seen to be imported, to the end: not those that
	// it has put aside because what they refer to is being listed.
	imported int
	// waiting are the reconciles of any kind that are under way or to be done.
	waiting int
}

func (s *session) counts(ctx context.Context) (counts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := s.diagnostics.get(ctx, syncer, "/metrics")
	if err != nil {
		return counts{}, err
	}
	return countsIn(string(text))
}

func countsIn(text string) (counts, error) {
	const (
		reconciles = "controller_runtime_reconcile_total"
		workers    = "controller_runtime_active_workers"
		depth      = "workqueue_depth"
		clusters   = "muster_clusters"
	)
	snapshot, err := metrics.Parse(text, reconciles, workers, depth, clusters)
	if err != nil {
		return counts{}, err
	}
	having := func(key, value string) func(map[string]string) bool {
		return func(labels map[string]string) bool { return labels[key] == value }
	}
	return counts{
		looks:    int(snapshot.Sum(reconciles, having("controller", "cluster"))),
		imported: int(snapshot.Sum(clusters, having("state", "imported"))),
		waiting:  int(snapshot.Sum(workers, nil) + snapshot.Sum(depth, nil)),
	}, nil
}

// progress follows the looks at Clusters from one count on.
type progress struct {
	from, last counts
	// moved is when there were more than before.
	moved time.Time
}

// over tells whether a number of Clusters was looked at and nothing is left to do, or the
// syncer has long stopped without that: whoever asks reports how many it were.
func (p *progress) over(now counts, n int) bool {
	const stopped = 20 * time.Second // Longer than another's Lease may hold it up.
	if now != p.last || p.moved.IsZero() {
		p.last, p.moved = now, time.Now()
	}
	return now.waiting == 0 && (now.looks-p.from.looks >= n || time.Since(p.moved) > stopped)
}
