package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

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

// fleetWrites returns when the Fleet Cluster of each key was first written by a request
// that was received after a time that the caller has for it; other keys are left out.
func (r requests) fleetWrites(after map[client.ObjectKey]time.Time) map[client.ObjectKey]time.Time {
	result := map[client.ObjectKey]time.Time{}
	for _, e := range r {
		key := client.ObjectKey{Namespace: e.Namespace, Name: e.Name}
		since, asked := after[key]
		if _, done := result[key]; asked && !done && isFleetWrite(e) && e.Received.After(since) {
			result[key] = e.Completed
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

// change is when a request of the administrator was received and answered.
type change struct{ received, completed time.Time }

// latencies returns how long after the answer to each change the Fleet Cluster of its key
// was written. That may be before the answer: then it took no time. It fails for those
// that never were.
func (r requests) latencies(changes map[client.ObjectKey]change) ([]time.Duration, error) {
	received := make(map[client.ObjectKey]time.Time, len(changes))
	for key, change := range changes {
		received[key] = change.received
	}
	written := r.fleetWrites(received)
	result := make([]time.Duration, 0, len(changes))
	for key, change := range changes {
		at, ok := written[key]
		if !ok {
			return nil, fmt.Errorf("%s was never written; of %d changed, %d were", key, len(changes), len(written))
		}
		result = append(result, max(0, at.Sub(change.completed)))
	}
	return result, nil
}
