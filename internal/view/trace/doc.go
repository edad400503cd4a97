// Package trace explains why a Bundle is, or is not, on a Cluster: step by step, by the rules of package
// targets, up to the first step that fails. It is pure.
package trace

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
)

// Input has the objects that decide the verdict. Its lists may have others, too.
type Input struct {
	Bundle, Cluster types.NamespacedName
	// Proxy is the HelmChartProxy by whose name the Bundle was found; empty for none.
	Proxy types.NamespacedName
	// Found is the Bundle; nil if it does not exist.
	Found *fleetv1.Bundle
	// CAPI is the CAPI Cluster and Judged its node in the graph; nil if it does not exist.
	CAPI   *view.CAPICluster
	Judged *view.Node
	// Fleet is the Fleet Cluster; nil if it does not exist.
	Fleet    *fleetv1.Cluster
	Groups   []*fleetv1.ClusterGroup
	Mappings []*fleetv1.BundleNamespaceMapping
	// Namespaces are the labels of each Namespace.
	Namespaces map[string]map[string]string
	// Namesakes are Bundles of the same name in other namespaces, from which Bundles reach the Cluster.
	Namesakes []*fleetv1.Bundle
	// Deployments are the BundleDeployments of the Bundle, and of others of its name.
	Deployments []*fleetv1.BundleDeployment
	// Policies are Fleet's Policies in the namespace of the Bundle.
	Policies []fleetv1.Policy
	// Unread has, for each kind that could not be read, the reason. Steps that depend on such a kind are unknown.
	Unread map[view.Kind]string
}

// Result is the result of a step.
type Result string

// The results.
const (
	Passed  Result = "Passed"
	Failed  Result = "Failed"
	Unknown Result = "Unknown"
	// Note is the result of a step that decides nothing.
	Note Result = "Note"
)

// Step is one condition that must hold.
type Step struct {
	// Name is one word for the step.
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Message is a sentence about this Bundle and this Cluster.
	Message string `json:"message"`
	// Details are mismatches, or the objects that lead from the Bundle to the Cluster.
	Details []string `json:"details,omitempty"`
}

// Names of the steps, in their order.
const (
	StepBundle     = "bundle"
	StepCluster    = "cluster"
	StepNamespace  = "namespace"
	StepGroups     = "groups"
	StepTarget     = "target"
	StepAllowed    = "doNotDeploy"
	StepPolicy     = "policy"
	StepError      = "error"
	StepReady      = "fleetNamespace"
	StepName       = "name"
	StepDeployment = "deployment"
)

// Verdict is what Fleet does with a Bundle on a Cluster.
type Verdict string

// The verdicts.
const (
	// Targeted means that the Bundle targets the Cluster.
	Targeted Verdict = "Targeted"
	// NotTargeted means that the Bundle does not target the Cluster.
	NotTargeted Verdict = "NotTargeted"
	// Blocked means that it targets the Cluster, but Fleet does not update the Bundle until an error is corrected.
	Blocked Verdict = "Blocked"
	// Undecided means that objects that decide the verdict could not be read.
	Undecided Verdict = "Undecided"
)

// Trace is the explanation.
type Trace struct {
	Bundle string `json:"bundle"`
	// HelmChartProxy is the one by whose name the Bundle was found.
	HelmChartProxy string  `json:"helmChartProxy,omitempty"`
	Cluster        string  `json:"cluster"`
	Verdict        Verdict `json:"verdict"`
	// FailedStep is the first step that fails; empty if none does.
	FailedStep string `json:"failedStep,omitempty"`
	Steps      []Step `json:"steps"`
	// Deployed is the Bundle's state on the Cluster, with any verdict; nil if the Bundle is not there.
	Deployed *Deployed `json:"deployed,omitempty"`
	// Conclusion is the result in one sentence.
	Conclusion string `json:"conclusion"`
	// Do says what to do, if anything.
	Do string `json:"do,omitempty"`
}

// Deployed is a BundleDeployment.
type Deployed struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	Message   string `json:"message,omitempty"`
	Resources string `json:"resources,omitempty"`
}
