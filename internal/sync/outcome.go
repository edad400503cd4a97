package sync

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/stamp"
)

// conditionTypes are the types of the conditions that the syncer writes on Clusters.
var conditionTypes = []string{addonsv1.FleetImportedCondition, addonsv1.FleetBundlesReadyCondition}

// outcome is the result that a reconcile reports on the Cluster. Conditions that are neither given nor
// kept are removed, except that the zero outcome leaves the Cluster alone.
type outcome struct {
	conditions []metav1.Condition
	// keep are the types of the conditions that stay as they are if they are not given.
	keep []string
	// bare takes all conditions off the Cluster.
	bare bool
	// passing leaves the status of FleetImportedCondition as it is, if there is one.
	passing bool
	// unsaid leaves all conditions as they are.
	unsaid bool
	// after is the delay until the next reconcile if no event brings the Cluster back; zero for never.
	after time.Duration
}

// isNothing reports whether the outcome leaves the Cluster alone, or takes all conditions off it.
func (o outcome) isNothing() bool { return len(o.conditions) == 0 && len(o.keep) == 0 }

// given returns the conditions of the outcome for a Cluster that has some already. A passing error does not turn FleetImported,
// and what is kept stays. Cluster API makes several generations before the Cluster is imported, which writes the last one;
// until then, a new generation alone is not written.
func (o outcome) given(have []metav1.Condition) (wanted []metav1.Condition) {
	for _, conditionType := range conditionTypes {
		old, want := meta.FindStatusCondition(have, conditionType), meta.FindStatusCondition(o.conditions, conditionType)
		switch {
		case want != nil:
			its := *want
			if old != nil && o.passing && conditionType == addonsv1.FleetImportedCondition {
				its.Status = old.Status
			}
			if old != nil && !meta.IsStatusConditionTrue(have, addonsv1.FleetImportedCondition) && !kube.IsTurned(have, its) && old.Message == message.Short(its.Message, message.Condition) {
				its.ObservedGeneration = old.ObservedGeneration
			}
			wanted = append(wanted, its)
		case old != nil && slices.Contains(o.keep, conditionType):
			wanted = append(wanted, *old)
		}
	}
	return wanted
}

// again returns the outcome with a delay after which the Cluster is reconciled again.
func (o outcome) again(after time.Duration) outcome {
	o.after = after
	return o
}

func notImported(reason, message string) outcome {
	return outcome{conditions: []metav1.Condition{
		{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message},
	}}
}

func conflicting(message string) outcome {
	return notImported(addonsv1.NameConflictReason, message)
}

// failed is the outcome of an error. An imported Cluster stays imported: its objects in Fleet are
// unchanged, and availability gates must not close for a passing error.
func failed(err error) outcome {
	result := notImported(addonsv1.FailedReason, err.Error())
	result.keep, result.passing = conditionTypes, true
	return result
}

// displaced is the outcome for a Cluster whose group would have the name of the group of a class in
// the Cluster's own namespace. The objects in Fleet stay as they are.
func displaced(imported bool, used use, class string) outcome {
	return retained(imported, addonsv1.NameConflictReason, fmt.Sprintf(
		"ClusterGroup %q of this namespace is that of ClusterClass %q here, and would be that of ClusterClass %q of namespace %q: bundles for one would reach the other; rename one of the two classes",
		used.group().Name, class, used.class.Name, used.class.Namespace))
}

// contended is the outcome of a write conflict that lasts.
func contended(err error) outcome {
	return failed(fmt.Errorf("what is written here is refused as a conflict again and again: find out who else writes it (its managedFields), or which admission webhook refuses it; it is tried again every minute: %w", err))
}

// unserved is the outcome when a CRD was removed while the syncer runs.
func unserved(err error) outcome {
	return failed(fmt.Errorf("a CRD is missing; install it again, nothing needs to be restarted: %w", err))
}

// paused is the outcome for a paused Cluster: in Fleet or not, as it was.
func paused(imported bool) outcome {
	return retained(imported, addonsv1.PausedReason, "the Cluster is paused; nothing is changed in Fleet until it is unpaused")
}

// unselected is the outcome for a Cluster that no selector matches: if it was claimed, Muster retains
// it; otherwise Muster ignores it.
func unselected(claimed, imported bool, why string) outcome {
	if !claimed {
		return outcome{bare: true}
	}
	return retained(imported, addonsv1.DeselectedReason, "what Fleet has of it is kept as it was: "+why)
}

// retained is the outcome for a Cluster that the syncer leaves unchanged for now.
func retained(imported bool, reason, message string) outcome {
	result := notImported(reason, message)
	if imported {
		result.conditions[0].Status = metav1.ConditionTrue
	}
	return result
}

// unchanged is the outcome for a Cluster whose FleetImported stays as it is: the Cluster is being
// deleted, the import is turned off, or the FleetAddonConfig cannot be used.
func (s *scope) unchanged() outcome {
	if !s.isClaimed() {
		return outcome{}
	}
	if s.unknown { // Rancher's Fleet Clusters are not looked at.
		return outcome{keep: conditionTypes}
	}
	return outcome{keep: []string{addonsv1.FleetImportedCondition}}
}

// waitingForAgent is the outcome for a Cluster whose agent has not checked in yet. Fleet never
// installs the agent from the management side instead: the user has said that the cluster cannot, or
// must not, be reached.
func waitingForAgent(cluster string, unregistered bool) outcome {
	if unregistered {
		return notImported(addonsv1.RegistrarMissingReason,
			"its Fleet agent is to register itself, but the registrar does not run: install Muster's component registrar (manifests/registrar)").again(presenceInterval)
	}
	return notImported(addonsv1.WaitingForAgentReason, fmt.Sprintf(
		"its Fleet agent has not checked in yet; once the condition %s is True, apply the manifest in Secret %q (key %s) to the cluster, if its bootstrap does not",
		addonsv1.FleetAgentManifestReadyCondition, stamp.ManifestSecret(cluster), stamp.ManifestKey)).again(waitingInterval)
}

// waitingForRancher is the outcome for a Cluster that Rancher manages, or will manage, and that has no
// Fleet Cluster yet to attach to.
func waitingForRancher(what string) outcome {
	return notImported(addonsv1.WaitingForRancherReason, "it waits for "+what)
}

// attached is the outcome for a Cluster whose Fleet Cluster is Rancher's. Others are the fields of it
// that another writer has set to other values; note ends the message.
func attached(fleet types.NamespacedName, others []string, stays stale, note string) outcome {
	result := imported("", fleet.Name, stays, "")
	condition := &result.conditions[0]
	if condition.Reason == addonsv1.ImportedReason {
		condition.Reason, condition.Message = addonsv1.AttachedReason, fmt.Sprintf("in Fleet as Cluster %q of Rancher", fleet)
	}
	if len(others) > 0 {
		condition.Message += "; left as others have set it there: " + strings.Join(others, ", ")
	}
	condition.Message += note
	return result
}

// stale is a reason of FleetImportedCondition, with its message, for a Fleet Cluster of which a part stays as it is; zero
// for one that is up to date.
type stale struct{ reason, message string }

// imported is the outcome for a Cluster whose Fleet Cluster has its desired state, except for a stale part; note ends
// the message. If both have the same name, there is no message without a note: Cluster API's condition Available repeats it.
func imported(cluster, fleetCluster string, stays stale, note string) outcome {
	condition := metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue, Reason: addonsv1.ImportedReason}
	switch {
	case stays != (stale{}):
		condition.Reason, condition.Message = stays.reason, stays.message
	case cluster != fleetCluster:
		condition.Message = fmt.Sprintf("in Fleet as Cluster %q", fleetCluster)
	}
	condition.Message = strings.TrimPrefix(condition.Message+note, "; ")
	return outcome{conditions: []metav1.Condition{condition}}
}
