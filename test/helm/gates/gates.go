// Package gates checks a recorded rollout: whether a Cluster got a change before its turn, whether too many were
// unavailable, and whether a BundleDeployment ever lacked its Content. It knows nothing of how Muster decides.
package gates

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Event is the state of a BundleDeployment, or of a Content, that a watch has reported.
type Event struct {
	// Revision is the resource version. One etcd has everything, so it is the order of the events of all watches.
	Revision int64
	// At is when the event arrived, or when the agent sent its report, if that was earlier.
	At time.Time
	// Gone says that the object is deleted, or is being deleted.
	Gone bool
	// Content is the name of the Content, or of the one that the BundleDeployment deploys; empty for none.
	Content string
	// Deployment is the key of the BundleDeployment; empty if the event is about a Content.
	Deployment string
	// Cluster is the Cluster of the BundleDeployment; empty if it has none.
	Cluster string
	// Wanted is the state that Fleet wants there, as an opaque text, and Applied the one that the agent has applied.
	Wanted, Applied string
	// Has says what the applied state is: a version and values.
	Has   string
	Ready bool
}

func (e Event) isAvailable() bool { return e.Ready && e.Applied == e.Wanted }

// Stage is a stage of a rollout.
type Stage struct {
	Clusters       []string
	MaxUnavailable int
	Soak           time.Duration
}

// Rollout is one change.
type Rollout struct {
	// Since is the revision from which on the change is wanted.
	Since  int64
	Stages []Stage
	// Has is what each Cluster has after the change.
	Has map[string]string
}

// history is the state at one revision.
type history struct {
	contents    map[string]bool
	deployments map[string]Event
	// clusters are the BundleDeployments by their Clusters, and since is when each became available.
	clusters map[string]Event
	since    map[string]time.Time
	problems []string
}

// Check replays the events, and returns the violations.
func Check(events []Event, rollouts []Rollout) []string {
	h := &history{contents: map[string]bool{}, deployments: map[string]Event{}, clusters: map[string]Event{}, since: map[string]time.Time{}}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, e := range events {
		var current Rollout
		for _, rollout := range rollouts {
			if rollout.Since <= e.Revision {
				current = rollout
			}
		}
		if e.Deployment == "" {
			h.content(e)
		} else {
			h.deployment(e, current)
		}
	}
	return h.problems
}

func (h *history) fail(e Event, format string, args ...any) {
	h.problems = append(h.problems, fmt.Sprintf("revision %d, %s: %s", e.Revision, e.At.Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (h *history) content(e Event) {
	h.contents[e.Content] = !e.Gone
	if e.Gone {
		for _, its := range h.deployments {
			if its.Content == e.Content {
				h.fail(e, "Content %s goes, and %s deploys it", e.Content, its.Deployment)
			}
		}
	}
}

func (h *history) deployment(e Event, current Rollout) {
	before, isKnown := h.clusters[e.Cluster]
	if e.Gone {
		delete(h.deployments, e.Deployment)
		delete(h.clusters, e.Cluster)
		return
	}
	h.deployments[e.Deployment] = e
	if e.Content != "" && !h.contents[e.Content] {
		h.fail(e, "%s deploys Content %s, which does not exist", e.Deployment, e.Content)
	}
	if e.Cluster == "" {
		return
	}
	h.clusters[e.Cluster] = e
	if !e.isAvailable() {
		delete(h.since, e.Cluster)
	} else if h.since[e.Cluster].IsZero() || before.Has != e.Has {
		h.since[e.Cluster] = e.At
	}
	if isKnown && before.Wanted != e.Wanted {
		h.gate(e, current)
	}
	for i, stage := range current.Stages {
		var unavailable []string
		for _, name := range stage.Clusters {
			if !h.clusters[name].isAvailable() {
				unavailable = append(unavailable, name)
			}
		}
		if len(unavailable) > stage.MaxUnavailable {
			h.fail(e, "stage %d: %d Clusters are unavailable: %v", i, len(unavailable), unavailable)
		}
	}
}

// gate checks that each Cluster of the earlier stages has its change, and has been ready for the soak time.
func (h *history) gate(e Event, current Rollout) {
	own := slices.IndexFunc(current.Stages, func(its Stage) bool { return slices.Contains(its.Clusters, e.Cluster) })
	for i := range max(own, 0) {
		for _, name := range current.Stages[i].Clusters {
			its := h.clusters[name]
			switch soaked := e.At.Sub(h.since[name]); {
			case its.Has != current.Has[name]:
				h.fail(e, "%s of stage %d moves, and %s of stage %d has %q, not %q", e.Cluster, own, name, i, its.Has, current.Has[name])
			case !its.isAvailable():
				h.fail(e, "%s of stage %d moves, and %s of stage %d is not ready", e.Cluster, own, name, i)
			case soaked < current.Stages[i].Soak:
				h.fail(e, "%s of stage %d moves, and %s of stage %d has been ready for %s, not %s", e.Cluster, own, name, i, soaked, current.Stages[i].Soak)
			}
		}
	}
}
