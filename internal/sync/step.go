package sync

import (
	"fmt"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// step is what is done next for a Cluster. Each is taken at most once in a visit.
type step string

const (
	// rest ends the visit: the outcome says how the Cluster stands.
	rest step = "rest"
	// restamp brings the stamp on the Cluster to what it should be, where the webhook has
	// not done so already.
	restamp step = "stamp"
	// claim serializes Clusters that want the same Fleet Cluster: of two, the second sees
	// what the first has made.
	claim step = "claim"
	// target makes the group and the mapping through which the Cluster's bundles are
	// targeted. Fleet watches neither: they are there before the Fleet Cluster is, or changes.
	target step = "target"
	// resolve reads what the template values are made of.
	resolve step = "resolve"
	// takeOver gives the Cluster a Fleet Cluster that was handed over or left behind.
	takeOver step = "take over"
	// put applies the Fleet Cluster.
	put step = "apply"
	// release and reclaim take the owner off a Fleet Cluster and give it back, for clusterctl move.
	release step = "release"
	reclaim step = "reclaim"
	// withdraw undoes the import.
	withdraw step = "withdraw"
)

// next returns what to do next and, if that is rest, how the Cluster stands. It is pure.
func (v *visit) next() (step, outcome) {
	switch {
	case v.held && !v.isClaimed():
		return rest, outcome{}
	case v.held && v.paused:
		// One thing does not wait: clusterctl may move Clusters while the import is turned
		// off, and Fleet would uninstall their applications.
		return v.first(release), v.unchanged()
	case v.held:
		return v.first(reclaim), v.unchanged()

	case !v.cluster.DeletionTimestamp.IsZero() && v.paused:
		return rest, v.unchanged()
	case !v.cluster.DeletionTimestamp.IsZero():
		// Paused, deleted, unpaused: its Fleet Cluster must go with it after all.
		return v.first(reclaim), v.unchanged()
	case v.paused && !v.selected && !v.isClaimed():
		return rest, unselected(false, false, v.why)
	case v.paused:
		// Everything stays as it is, except the owner reference.
		return v.first(release), paused(v.isIn())
	case v.taken[withdraw]:
		return rest, unselected(false, false, "")
	case !v.selected && v.isClaimed() && v.in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		return withdraw, outcome{}
	case !v.taken[restamp]:
		return restamp, outcome{}
	case !v.selected:
		return v.first(reclaim), unselected(v.isClaimed(), v.isIn(), v.why)
	default:
		return v.nextOfImport()
	}
}

// nextOfImport is next for a Cluster that is selected, stamped, and neither paused nor being
// deleted.
func (v *visit) nextOfImport() (step, outcome) {
	switch {
	case v.rival.Name != "":
		name := stamp.OnSync(v.in, v.subject, v.pin()).Pin.ClusterName // It may not be pinned to it.
		return v.first(reclaim), frozen(StateConflicted, v.isIn(), reasonConflict,
			stamp.SharedFleetNamespace(v.cluster.Namespace, name, v.cluster.Name)).again(rivalInterval)
	case !v.taken[claim]:
		return claim, outcome{}
	case v.displacing != "":
		return rest, displaced(v.isIn(), useOf(v.cluster), v.displacing)
	case !v.taken[target]:
		return target, outcome{}
	case v.fleet != nil && v.relation == stamp.Foreign:
		return rest, conflicting(v.whose)
	case v.fleet != nil && !v.fleet.DeletionTimestamp.IsZero():
		return rest, notImported(StatePending, reasonDeleting, "the Fleet Cluster is being deleted; it is made again when it is gone")
	case v.fleet != nil && v.relation == stamp.Predecessor:
		return rest, notImported(StatePending, reasonDeleting, fmt.Sprintf(
			"Fleet Cluster %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", v.fleet.Name))
	case v.leftover != "":
		return rest, notImported(StatePending, reasonDeleting, fmt.Sprintf(
			"Fleet has yet to remove Namespace %q of an earlier cluster of this name; the Fleet Cluster is made when it has", v.leftover)).again(leftoverInterval)
	case v.isNew() && v.byAgent && v.isUnmade():
		return rest, notImported(StatePending, reasonWaiting, "Cluster API has not made the control plane and the infrastructure yet; the Cluster is registered in Fleet when it has")
	case v.isNew() && !v.byAgent && !v.isInitialized():
		return rest, notImported(StatePending, reasonWaiting, "the control plane is not initialized yet; the Cluster is imported into Fleet when it is")
	case !v.taken[resolve]:
		return resolve, outcome{}
	case v.isNew() && v.unresolved != "":
		// A Fleet Cluster without its values would stop every bundle that reads them, for all
		// clusters (Fleet targets with missingkey=error).
		return rest, notImported(StatePending, reasonUnresolved, v.unresolved).again(v.again)
	case v.fleet != nil && (v.relation == stamp.HandedOver || v.relation == stamp.Orphan):
		return takeOver, outcome{}
	case !v.taken[put]:
		return put, outcome{}
	case v.foreign != "":
		return v.first(reclaim), frozen(StateConflicted, v.isIn(), reasonConflict, v.foreign).again(v.again)
	case v.waits() && v.isTurning():
		return v.first(reclaim), notImported(StatePending, reasonWaiting,
			"the control plane is not initialized yet; when it is, Fleet installs the agent that was to call by itself")
	case v.waits():
		return v.first(reclaim), waitingForAgent(v.cluster.Name, v.unregistered)
	default:
		return v.first(reclaim), imported(v.fleet.Name, v.unresolved, v.stays()).again(v.again)
	}
}

// first returns a step if it has anything to do, and rest if not.
func (v *visit) first(wanted step) step {
	if wanted == release && v.isToBeReleased() || wanted == reclaim && v.isToBeReclaimed() {
		return wanted
	}
	return rest
}

// isNew reports whether the Cluster is not in Fleet yet.
func (v *visit) isNew() bool { return v.fleet == nil || v.relation == stamp.Orphan }

// isTurning reports whether Fleet is to install the agent of a Cluster whose agent was to call by
// itself, and has to wait for the control plane. Named now, the kubeconfig would be missing, and
// Fleet would look for it at intervals of up to 10 minutes.
func (v *visit) isTurning() bool {
	return !v.byAgent && v.has() && v.fleet.Spec.KubeConfigSecret == "" && !v.isInitialized()
}

func (v *visit) isInitialized() bool {
	return ptr.Deref(v.cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// stays says that the agent does not go where the FleetAddonConfig wants it; empty if it does.
func (v *visit) stays() string {
	runs, asked := v.agentNamespace(), v.in.Cluster.AgentNamespace
	if runs == asked {
		return ""
	}
	return fmt.Sprintf("; its agent stays in namespace %q instead of %q (spec.cluster.agentNamespace): an agent that calls by itself has its credential there", runs, asked)
}

// isUnmade reports whether the objects that a topology Cluster will refer to are not there
// yet: without them template values would be resolved, and lack what bundles read.
func (v *visit) isUnmade() bool {
	spec := v.cluster.Spec
	return spec.Topology.IsDefined() && !(spec.ControlPlaneRef.IsDefined() && spec.InfrastructureRef.IsDefined())
}
