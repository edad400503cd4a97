package trace

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/internal/view"
)

// Survey has the verdict on a Bundle for each Cluster.
type Survey struct {
	Bundle   string    `json:"bundle"`
	Clusters []Summary `json:"clusters"`
}

// Summary is a Trace without its steps.
type Summary struct {
	Cluster    string  `json:"cluster"`
	Verdict    Verdict `json:"verdict"`
	FailedStep string  `json:"failedStep,omitempty"`
	// Deployed is Fleet's state of the Bundle on the Cluster; empty if the Bundle is not there.
	Deployed   string `json:"deployed,omitempty"`
	Conclusion string `json:"conclusion"`
}

// Add adds a Cluster.
func (s *Survey) Add(traced *Trace) {
	summary := Summary{Cluster: traced.Cluster, Verdict: traced.Verdict, FailedStep: traced.FailedStep, Conclusion: traced.Conclusion}
	if traced.Deployed != nil {
		summary.Deployed = traced.Deployed.State
	}
	s.Clusters = append(s.Clusters, summary)
}

// Group is a list of Clusters with the same verdict.
type Group struct {
	State view.State
	Says  string
	// Clusters are sorted.
	Clusters []string
}

// Groups groups the Clusters by verdict, worst first.
func (s *Survey) Groups() []Group {
	index := map[string]int{}
	var groups []Group
	for _, summary := range s.Clusters {
		state, says := summary.judge()
		at, known := index[says]
		if !known {
			at = len(groups)
			index[says] = at
			groups = append(groups, Group{State: state, Says: says})
		}
		groups[at].Clusters = append(groups[at].Clusters, summary.Cluster)
	}
	for i := range groups {
		slices.Sort(groups[i].Clusters)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(slices.Index(view.States, a.State), slices.Index(view.States, b.State)), cmp.Compare(a.Says, b.Says))
	})
	return groups
}

// failures are general texts for why a Bundle is not on a Cluster.
var failures = map[string]string{
	StepBundle:    "the Bundle is being deleted",
	StepCluster:   "the Cluster is not in Fleet",
	StepNamespace: "no BundleNamespaceMapping leads to its namespace",
	StepTarget:    "no target of the Bundle matches it",
	StepAllowed:   "a target says doNotDeploy",
	StepPolicy:    "a Policy refuses its ServiceAccount",
	StepError:     "Fleet reports an error about the Bundle",
	StepReady:     "Fleet has given it no namespace yet",
	StepName:      "a Bundle of the same name is there",
}

// judge returns the state of a Bundle on a Cluster, and a text for it.
func (s *Summary) judge() (view.State, string) {
	there := ""
	if s.Deployed != "" {
		there = "deployed (" + s.Deployed + ")"
	}
	switch {
	case s.Verdict == Undecided:
		return view.Unknown, join(there, "unknown: some objects could not be read")
	case s.Verdict == Targeted && there == "":
		return view.Waiting, "targeted, not deployed yet"
	case s.Verdict == Targeted:
		return view.OfBundle(s.Deployed), there
	case s.Verdict == Blocked:
		return view.Problem, join(there, "stopped: "+failures[s.FailedStep])
	case there != "":
		return view.Problem, join("still "+there, failures[s.FailedStep])
	case s.FailedStep == StepReady:
		return view.Waiting, "not deployed: " + failures[s.FailedStep]
	default:
		return view.Inactive, "not targeted: " + failures[s.FailedStep]
	}
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}
