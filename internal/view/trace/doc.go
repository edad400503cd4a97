// Package trace explains why a Bundle is, or is not, on a Cluster: step by step, by the
// rules of package targets, with the first step that fails. It is pure.
package trace

import (
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
)

// Input is what a decision depends on. The lists may hold more than that.
type Input struct {
	Bundle, Cluster types.NamespacedName
	// Found is the Bundle; nil if there is none.
	Found *fleetv1.Bundle
	// Values are the data of the Secret with the Bundle's values, if it has one.
	Values map[string][]byte
	// CAPI is the CAPI Cluster and Judged its node in the graph; nil if there is none.
	CAPI   *view.CAPICluster
	Judged *view.Node
	// Fleet is the Fleet Cluster; nil if there is none.
	Fleet *fleetv1.Cluster
	// Others visits the Fleet Clusters that the Bundle may also be for, of which there may be
	// thousands; nil if none of them matters. This one may be among them.
	Others   func(visit func(*fleetv1.Cluster)) error
	Groups   []*fleetv1.ClusterGroup
	Mappings []*fleetv1.BundleNamespaceMapping
	// Namespaces are the labels of each Namespace.
	Namespaces map[string]map[string]string
	// Deployments are the BundleDeployments of the Bundle.
	Deployments []*fleetv1.BundleDeployment
	// Unread maps what could not be read to the reason; what depends on it is unknown.
	Unread map[view.Kind]string
}

// BundleValues is what is read of a Bundle beside it.
const BundleValues view.Kind = "Secret with the Bundle's value"

// Result of a step.
type Result string

// The results.
const (
	Passed  Result = "Passed"
	Failed  Result = "Failed"
	Unknown Result = "Unknown"
	// Note is a step that decides nothing.
	Note Result = "Note"
)

// Step is one thing that must hold.
type Step struct {
	// Name is one word for the step.
	Name   string `json:"name"`
	Result Result `json:"result"`
	// Message is a sentence about this Bundle and this Cluster.
	Message string `json:"message"`
	// Details are what does not match, or what leads there.
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
	StepValues     = "values"
	StepReady      = "fleetNamespace"
	StepDeployment = "deployment"
)

// Verdict specifies what Fleet makes of a Bundle and a Cluster.
type Verdict string

// The verdicts.
const (
	// Targeted: the Bundle is for the Cluster.
	Targeted Verdict = "Targeted"
	// NotTargeted: it is not.
	NotTargeted Verdict = "NotTargeted"
	// Blocked: it is, but Fleet changes nothing about the Bundle until an error is mended.
	Blocked Verdict = "Blocked"
	// Undecided: what it depends on could not be read.
	Undecided Verdict = "Undecided"
)

// Trace is the explanation.
type Trace struct {
	Bundle  string  `json:"bundle"`
	Cluster string  `json:"cluster"`
	Verdict Verdict `json:"verdict"`
	// FailedStep is the first step that fails; empty if none does.
	FailedStep string `json:"failedStep,omitempty"`
	Steps      []Step `json:"steps"`
	// Deployed is how the Bundle is on the Cluster, whatever was decided; nil if it is not.
	Deployed *Deployed `json:"deployed,omitempty"`
	// Conclusion is the whole in a sentence.
	Conclusion string `json:"conclusion"`
	// Do is what there is to do, if there is anything.
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
