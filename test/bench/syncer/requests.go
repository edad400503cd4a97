package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/stack"
)

// requests are those of the syncer in one phase.
type requests []stack.AuditEvent

// Kinds of requests.
const (
	write    = "write"
	read     = "read"     // GET or LIST of objects
	informer = "informer" // LIST and WATCH of a whole kind
	own      = "own"      // for itself, however many Clusters there are
)

// kindOf tells what a request is. While nothing starts there is no reason to list, so a
// LIST is a read then; a starting informer's is its own.
func kindOf(e stack.AuditEvent, starting bool) string {
	switch {
	case e.Resource == "leases", e.Namespace == "muster-system", e.Resource == "fleetaddonconfigs",
		strings.HasSuffix(e.Resource, "accessreviews"), e.Resource == "tokenreviews", e.Resource == "":
		// Leader election, the status of the FleetAddonConfig, who may read what and who
		// may read metrics, discovery.
		return own
	case e.Verb == "watch", starting && e.Verb == "list" && e.Name == "" && e.Namespace == "":
		return informer
	case e.Verb == "get", e.Verb == "list":
		return read
	}
	return write
}

// of returns the requests of a kind.
func (r requests) of(kind string, starting bool) requests {
	return r.where(func(e stack.AuditEvent) bool { return kindOf(e, starting) == kind })
}

func (r requests) where(pass func(stack.AuditEvent) bool) requests {
	var result requests
	for _, event := range r {
		if pass(event) {
			result = append(result, event)
		}
	}
	return result
}

// String counts requests by verb and resource.
func (r requests) String() string {
	counts := map[string]int{}
	for _, e := range r {
		what := e.Verb + " " + e.Resource
		if e.Subresource != "" {
			what += "/" + e.Subresource
		}
		if e.Group == "fleet.cattle.io" {
			what += " (Fleet)"
		}
		if e.Code >= 300 {
			what += fmt.Sprintf(" -> %d", e.Code)
		}
		counts[what]++
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func isInformersList(e stack.AuditEvent) bool {
	return kindOf(e, true) == informer && e.Verb == "list"
}

// isQuestion tells whether a request asks what the syncer may do itself.
func isQuestion(e stack.AuditEvent) bool { return e.Resource == "selfsubjectaccessreviews" }

// isConfig tells whether a request is about the FleetAddonConfig; what informers ask is
// not.
func isConfig(e stack.AuditEvent) bool {
	return e.Resource == "fleetaddonconfigs" && e.Verb != "watch" && e.Verb != "list"
}

// isFleetWrite tells whether a request wrote a Fleet Cluster.
func isFleetWrite(e stack.AuditEvent) bool {
	return e.Group == "fleet.cattle.io" && e.Resource == "clusters" && e.Subresource == "" &&
		kindOf(e, false) == write && e.Code < 300
}

// fleetWrites returns the request by which the Fleet Cluster of each key was first written,
// of those that were received after a time that the caller has for it; other keys are left
// out.
func (r requests) fleetWrites(after map[client.ObjectKey]time.Time) map[client.ObjectKey]request {
	result := map[client.ObjectKey]request{}
	for _, e := range r {
		key := client.ObjectKey{Namespace: e.Namespace, Name: e.Name}
		since, asked := after[key]
		if _, done := result[key]; asked && !done && isFleetWrite(e) && e.Received.After(since) {
			result[key] = request{e.Received, e.Completed}
		}
	}
	return result
}

// lastWrite returns when the last write was answered.
func (r requests) lastWrite() time.Time {
	var last time.Time
	for _, e := range r.of(write, false) {
		if e.Completed.After(last) {
			last = e.Completed
		}
	}
	return last
}

// request is when a request was received and answered.
type request struct{ received, completed time.Time }

// latency is how long after the answer to a change the Fleet Cluster was asked to be
// written, and was written. Either may be before that answer: then it took no time.
type latency struct{ asked, written time.Duration }

type latencies []latency

func (l latencies) asked() []time.Duration {
	return l.each(func(one latency) time.Duration { return one.asked })
}

func (l latencies) written() []time.Duration {
	return l.each(func(one latency) time.Duration { return one.written })
}

func (l latencies) each(value func(latency) time.Duration) []time.Duration {
	result := make([]time.Duration, 0, len(l))
	for _, one := range l {
		result = append(result, value(one))
	}
	return result
}

// latencies returns the latency of each change, by its key. It fails for those that were
// never written.
func (r requests) latencies(changes map[client.ObjectKey]request) (latencies, error) {
	received := make(map[client.ObjectKey]time.Time, len(changes))
	for key, change := range changes {
		received[key] = change.received
	}
	writes := r.fleetWrites(received)
	result := make(latencies, 0, len(changes))
	for key, change := range changes {
		write, ok := writes[key]
		if !ok {
			return nil, fmt.Errorf("%s was never written; of %d changed, %d were", key, len(changes), len(writes))
		}
		result = append(result, latency{
			asked:   max(0, write.received.Sub(change.completed)),
			written: max(0, write.completed.Sub(change.completed)),
		})
	}
	return result, nil
}

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
