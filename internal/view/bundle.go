package view

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of Bundles.
const (
	reasonTargeting   = "TargetingError"
	reasonBundleError = "Error"
	reasonSameName    = "SameName"
)

// summarizing matches the message in which Fleet counts clusters by the state of a Bundle.
var summarizing = regexp.MustCompile(`^[A-Z][A-Za-z]*\([0-9]+\) \[`)

// FailedBundle returns the node of a Bundle that Fleet cannot process, that failed on a cluster, or that others have
// changed there; nil for any other. A Bundle that waits for clusters, or is being rolled out, has not failed. Fleet shows
// what is failed or changed on the Fleet Cluster only when the agent reports again, 15 minutes later.
func FailedBundle(in *fleetv1.Bundle) *Node {
	if !in.DeletionTimestamp.IsZero() {
		return nil
	}
	node := &Node{Kind: Bundle, Namespace: in.Namespace, Name: in.Name, State: Problem}
	node.addFact(FactSource, SourceOf(in.Labels))
	if message := BundleError(in); message != "" {
		node.Reason, node.Message = reasonBundleError, message
		if strings.HasPrefix(message, "targeting error: ") {
			node.Reason = reasonTargeting
		}
		return node.finish()
	}
	summary := &in.Status.Summary
	failed, first := failures(summary)
	switch {
	case failed > 0:
		node.Reason, node.Message = string(fleetv1.ErrApplied), fmt.Sprintf("it failed on %d of %d clusters: %s", failed, summary.DesiredReady, first)
	case summary.Modified > 0:
		node.Reason, node.Message = string(fleetv1.Modified), fmt.Sprintf("others have changed it on %d of %d clusters: %s", summary.Modified, summary.DesiredReady, modified(summary))
	default:
		return nil
	}
	node.Message = shown(strings.TrimSuffix(node.Message, ": "))
	return node.finish()
}

// modified returns the first cluster on which others have changed a Bundle.
func modified(in *fleetv1.BundleSummary) string {
	for i := range in.NonReadyResources {
		if in.NonReadyResources[i].State == fleetv1.Modified {
			return in.NonReadyResources[i].Name
		}
	}
	return ""
}

// waitingForDependency is the state in which newer versions of Fleet report a Bundle that waits for those in its
// dependsOn. Others report ErrApplied, with a message.
const waitingForDependency fleetv1.BundleState = "WaitingForDependency"

func isDependency(message string) bool {
	return strings.HasPrefix(message, "dependent bundle(s) are not ready: ")
}

// failures returns how many deployments have failed, and the first message. Fleet names only some of them: if all
// failures that it names wait for a dependency, so do the others.
func failures(in *fleetv1.BundleSummary) (failed int, first string) {
	waits := 0
	for i := range in.NonReadyResources {
		switch resource := &in.NonReadyResources[i]; {
		case resource.State != fleetv1.ErrApplied:
		case isDependency(resource.Message):
			waits++
		default:
			first = cmp.Or(first, fmt.Sprintf("%s: %s", resource.Name, resource.Message))
		}
	}
	if waits > 0 && first == "" {
		return 0, ""
	}
	return in.ErrApplied - waits, first
}

// BundleError returns the error that Fleet reports about a Bundle, with which it changes nothing on any Cluster. The reason alone is not enough: until all
// clusters are ready, Fleet keeps the reason of an earlier error with a message about clusters.
func BundleError(in *fleetv1.Bundle) string {
	for _, condition := range in.Status.Conditions {
		if condition.Type == string(fleetv1.Ready) && condition.Status == "False" && condition.Reason == "Error" && !summarizing.MatchString(condition.Message) {
			return shown(condition.Message)
		}
	}
	return ""
}

// SameName returns the node of a Bundle that shares its name, and so its BundleDeployments, with another.
func SameName(bundle, other types.NamespacedName, on []string) *Node {
	node := &Node{Kind: Bundle, Namespace: bundle.Namespace, Name: bundle.Name, State: Problem, Reason: reasonSameName}
	where := "Cluster " + on[0]
	if more := len(on) - 1; more > 0 {
		where = fmt.Sprintf("%d Clusters, such as %s", len(on), on[0])
	}
	node.Message = shown(fmt.Sprintf("Bundle %s has the same name, and both are for %s: Fleet names a BundleDeployment after its Bundle only, so there they replace each other", other, where))
	return node.finish()
}

// finish completes a node that is not part of Build.
func (n *Node) finish() *Node {
	n.ID = "bundle/" + n.Key() + "/" + n.Reason
	n.advise()
	n.clean()
	return n
}
