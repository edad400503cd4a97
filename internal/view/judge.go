package view

import (
	"fmt"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
)

// verdict is a state with its reason.
type verdict struct {
	state           State
	reason, message string
}

// Reasons that the graph defines. The others are reasons of FleetImported, and Fleet's states of
// Bundles.
const (
	reasonReady         = "Ready"
	reasonDeleting      = "Deleting"
	reasonNotSelected   = "NotSelected"
	reasonNotSeen       = "NotSeenYet"
	reasonNoFleet       = "FleetClusterMissing"
	reasonUnread        = "Unread"
	reasonWaitCheckIn   = "WaitCheckIn"
	reasonClusterGone   = "ClusterGone"
	reasonNoGroup       = "GroupMissing"
	reasonNoMapping     = "MappingMissing"
	reasonMappingRetire = "MappingRetired"
	reasonHeld          = "UpgradeHeld"
)

// judgeCluster judges a CAPI Cluster. fleet is nil if it has no Fleet Cluster.
func (b *builder) judgeCluster(key types.NamespacedName, cluster *CAPICluster, fleet *InFleet) verdict {
	condition := cluster.Imported
	switch {
	case cluster.Deleting:
		return verdict{Waiting, reasonDeleting, "the Cluster is being deleted"}
	case condition == nil:
		return b.judgeUnreported(key, cluster)
	case condition.Status != metav1.ConditionTrue:
		return judgeNotImported(condition)
	}
	result := b.judgeImported(cluster, fleet)
	switch {
	case condition.Reason == addonsv1.ImportedReason, condition.Reason == addonsv1.AttachedReason:
	case condition.Reason == addonsv1.PausedReason || condition.Reason == addonsv1.DeselectedReason:
		if result.state == Ready {
			return verdict{Inactive, condition.Reason, condition.Message}
		}
	case result.state != Problem:
		return verdict{Problem, condition.Reason, condition.Message}
	}
	return result
}

// besides adds a held upgrade to a verdict: as the state if that is worse, and otherwise to the message.
func (v verdict) besides(held *Condition) verdict {
	if held == nil {
		return v
	}
	text := held.Message
	if at, why, err := hold.Until(held.Message); err == nil {
		text = at.UTC().Format("until 15:04 UTC: ") + why
	}
	switch {
	case v.state == Ready:
		return verdict{Waiting, reasonHeld, text}
	case Waiting.rank() < v.state.rank():
		return verdict{Waiting, reasonHeld, text + "; " + strings.TrimSuffix(v.reason+": "+v.message, ": ")}
	}
	v.message = strings.TrimPrefix(v.message+"; "+reasonHeld+" "+text, "; ")
	return v
}

// judgeUnreported judges a Cluster without the condition FleetImported.
func (b *builder) judgeUnreported(key types.NamespacedName, cluster *CAPICluster) verdict {
	if why := b.Unread[Config]; why != "" {
		return verdict{Unknown, reasonUnread, "the Cluster has no condition FleetImported, and the FleetAddonConfig, which may not select it, could not be read"}
	}
	namespaceLabels := b.Namespaces[key.Namespace]
	if namespaceLabels == nil {
		namespaceLabels = map[string]string{corev1.LabelMetadataName: key.Namespace}
	}
	if selected, why := stamp.Selected(b.settings.Cluster, stamp.WithClassLabels(cluster.Labels, cluster.Class), namespaceLabels); !selected {
		return verdict{Inactive, reasonNotSelected, why}
	}
	return verdict{Waiting, reasonNotSeen, "the Cluster has no condition FleetImported yet"}
}

func judgeNotImported(condition *Condition) verdict {
	result := verdict{Problem, condition.Reason, condition.Message}
	switch condition.Reason {
	case addonsv1.PausedReason, addonsv1.DeselectedReason:
		result.state = Inactive
	case addonsv1.WaitingForControlPlaneReason, addonsv1.FleetClusterDeletingReason, addonsv1.WaitingForAgentReason, addonsv1.WaitingForRancherReason, addonsv1.WaitingForFleetReason:
		result.state = Waiting
	}
	return result
}

func (b *builder) judgeImported(cluster *CAPICluster, fleet *InFleet) verdict {
	switch {
	case fleet != nil:
		return b.judgeFleet(fleet)
	case b.Unread[FleetCluster] == "":
		return verdict{Problem, reasonNoFleet, fmt.Sprintf("Fleet has no Cluster %q", cluster.Pin.ClusterName)}
	case cluster.BundlesReady == nil:
		return verdict{Unknown, reasonUnread, "Fleet Clusters could not be read, and the Cluster has no condition FleetBundlesReady"}
	case cluster.BundlesReady.Status == metav1.ConditionTrue:
		return verdict{Ready, reasonReady, ""}
	case cluster.BundlesReady.Status == metav1.ConditionFalse:
		return verdict{Problem, cluster.BundlesReady.Reason, cluster.BundlesReady.Message}
	default:
		return verdict{Waiting, cluster.BundlesReady.Reason, cluster.BundlesReady.Message}
	}
}

// judgeFleet judges a Fleet Cluster.
func (b *builder) judgeFleet(fleet *InFleet) verdict {
	switch {
	case fleet.Deleting:
		return verdict{Waiting, addonsv1.FleetClusterDeletingReason, "the Fleet Cluster is being deleted"}
	case fleet.LastSeen.IsZero():
		return verdict{Waiting, reasonWaitCheckIn, "Fleet's agent has not reported yet"}
	case b.isStale(fleet):
		message := fmt.Sprintf("Fleet's agent last reported %s ago; the rest of this state is as old", Age(b.Now.Sub(fleet.LastSeen)))
		if judged := judgeBundles(fleetv1.BundleState(fleet.State)); judged != Ready {
			message += "; at that time it was " + fleet.State
		}
		return verdict{Problem, addonsv1.AgentStaleReason, message}
	}
	state := fleetv1.BundleState(fleet.State)
	if judged := judgeBundles(state); judged != Ready {
		return verdict{judged, fleet.State, fleet.Message}
	}
	return verdict{Ready, reasonReady, ""}
}

func (b *builder) isStale(fleet *InFleet) bool {
	return !fleet.LastSeen.IsZero() && b.Now.Sub(fleet.LastSeen) > b.StaleAfter
}

// judgeBundles translates Fleet's state of Bundles. No state counts as ready.
func judgeBundles(state fleetv1.BundleState) State {
	switch state {
	case fleetv1.Ready, "":
		return Ready
	case fleetv1.WaitApplied, fleetv1.OutOfSync, fleetv1.Pending, waitingForDependency, reasonWaitCheckIn:
		return Waiting
	default:
		return Problem
	}
}

// OfBundle translates Fleet's state of a Bundle on a Cluster.
func OfBundle(state string) State { return judgeBundles(fleetv1.BundleState(state)) }

// turns say, for each reason, who needs to act and how.
var turns = map[string]struct{ whose, do string }{
	addonsv1.WaitingForControlPlaneReason:   {"Cluster API", "its control plane is not initialized: clusterctl describe cluster -n %[1]s %[2]s"},
	addonsv1.PausedReason:                   {"you", "nothing changes until it is unpaused"},
	addonsv1.DeselectedReason:               {"you", "to update it again, make the selectors of the FleetAddonConfig match the Cluster"},
	addonsv1.FleetClusterDeletingReason:     {"Fleet", "its controller must run to remove the finalizer of the Fleet Cluster"},
	addonsv1.WaitingForAgentReason:          {"the cluster", "apply its manifest to the cluster: kubectl muster agent-manifest -n %[1]s %[2]s"},
	addonsv1.WaitingForRancherReason:        {"Rancher", "the message says what is missing"},
	addonsv1.DoubleImportReason:             {"you", "two agents run on it: delete one of the two Fleet Clusters"},
	addonsv1.RegistrarMissingReason:         {"you", "install the component registrar"},
	addonsv1.NameConflictReason:             {"you", "rename one of the two, or hand the Fleet object over; the message says how"},
	addonsv1.TemplateValuesUnresolvedReason: {"you", "make the objects that the Cluster refers to readable; the last good values are kept"},
	addonsv1.TooMuchMetadataReason:          {"you", "remove labels or annotations from the Cluster or its ClusterClass; what Fleet has is kept"},
	addonsv1.FailedReason:                   {"Muster", "it retries; if this stays, read the syncer's log"},
	reasonDeleting:                          {"Cluster API", ""},
	reasonNotSelected:                       {"you", "if it should be in Fleet, make the selectors of the FleetAddonConfig match it"},
	reasonNotSeen:                           {"Muster", "if this stays, the syncer does not run, or does not watch this namespace"},
	reasonNoFleet:                           {"Muster", "if this stays, the syncer does not run"},
	addonsv1.AgentStaleReason:               {"the cluster", "check the fleet-agent on the cluster, and its connection to the management cluster"},
	reasonWaitCheckIn:                       {"the cluster", "if this stays, Fleet could not install its agent (events of the Fleet Cluster), or the agent cannot reach the management cluster"},
	reasonClusterGone:                       {"you", "Fleet still deploys to it; to stop that: kubectl delete clusters.fleet.cattle.io -n %[1]s %[2]s"},
	reasonHeld:                              {"the add-ons' authors", "until they are ready, or that time, Cluster API changes nothing of the topology; to end it now: kubectl annotate clusters.cluster.x-k8s.io -n %[1]s %[2]s " + stamp.HoldAnnotation + "=0 --overwrite"},
	reasonNoGroup:                           {"Muster", "if this stays, the syncer does not run, or may not create it"},
	reasonNoMapping:                         {"Muster", "if this stays, the syncer does not run, or may not create it"},
	reasonMappingRetire:                     {"Muster", "no Cluster here is entitled to it any more; if one should be, let the FleetAddonConfig select it"},
	"ClassMissing":                          {"you", "create the ClusterClass, or make its Clusters use another"},
	reasonTargeting:                         {"the Bundle's author", "until it is corrected, Fleet changes nothing about this Bundle on any cluster"},
	reasonBundleError:                       {"the Bundle's author", "until it is corrected, Fleet changes nothing about this Bundle on any cluster"},
	reasonSameName:                          {"the authors of both", "rename one of the two, or the GitRepo or HelmOp that makes it: Fleet removes what it installed, and installs it again under the new name"},
	string(fleetv1.ErrApplied):              {"the Bundle's author", "its resources cannot be applied: the message is Helm's or the API server's"},
	string(fleetv1.NotReady):                {"the Bundle's author", "it is applied, but its resources are not ready: check them on the cluster"},
	string(fleetv1.Modified):                {"you", "someone changed resources of the Bundle on the cluster; revert that, or turn on correctDrift"},
	string(fleetv1.OutOfSync):               {"Fleet", "a newer version waits for its turn in the rollout"},
	string(fleetv1.Pending):                 {"Fleet", "Fleet has not created the BundleDeployment yet"},
	string(waitingForDependency):            {"the Bundle's author", "a Bundle in its dependsOn is not ready on this Cluster yet"},
	string(fleetv1.WaitApplied):             {"the cluster", "the agent on the cluster has not applied it yet"},
}

// advise fills in who needs to act, and how.
func (n *Node) advise() {
	turn := turns[n.Reason]
	n.Turn, n.Do = turn.whose, turn.do
	if turn.do != "" && containsVerb(turn.do) {
		n.Do = fmt.Sprintf(turn.do, n.Namespace, n.Name)
	}
}

func containsVerb(format string) bool {
	for i := range len(format) - 1 {
		if format[i] == '%' && format[i+1] == '[' {
			return true
		}
	}
	return false
}

// Age writes a duration in one unit: seconds, minutes, hours or days.
func Age(d time.Duration) string {
	switch seconds := int(d.Seconds()); {
	case seconds < 0:
		return "0s"
	case seconds < 120:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%dm", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%dh", seconds/3600)
	default:
		return fmt.Sprintf("%dd", seconds/86400)
	}
}

// DoFor returns who needs to act for a reason, and how; empty if that needs the name of an object.
func DoFor(reason string) string {
	turn, found := turns[reason]
	if !found || containsVerb(turn.do) {
		return ""
	}
	return TurnOf(turn.whose, turn.do)
}

// TurnOf says in one sentence who needs to act, and how.
func TurnOf(whose, do string) string {
	if whose == "" {
		return do
	}
	return strings.TrimSuffix("needs action from "+whose+": "+do, ": ")
}
