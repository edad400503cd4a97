package sync

import (
	"fmt"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// step is the next action for a Cluster. A reconcile takes each step at most once.
type step string

const (
	// rest ends the reconcile: the outcome gives the state of the Cluster.
	rest step = "rest"
	// restamp gives the Cluster the desired stamp, unless the webhook has already done so.
	restamp step = "stamp"
	// claim serializes Clusters that want the same Fleet Cluster: the second Cluster sees the objects
	// made for the first.
	claim step = "claim"
	// target makes the group and the mapping through which the Cluster's bundles are targeted. Fleet
	// watches neither, so they must exist before the Fleet Cluster is made or changed.
	target step = "target"
	// resolve reads the objects from which the template values are made.
	resolve step = "resolve"
	// takeOver gives the Cluster a Fleet Cluster that was handed over or left behind.
	takeOver step = "take over"
	// put applies the Fleet Cluster.
	put step = "apply"
	// retarget makes Fleet look at the Bundles of a Fleet Cluster that is not applied any more.
	retarget step = "retarget"
	// look makes Fleet look at a Fleet Cluster without its namespace.
	look step = "look"
	// release and reclaim take the owner off a Fleet Cluster and give it back, for clusterctl move.
	release step = "release"
	reclaim step = "reclaim"
	// attach puts labels and template values onto Rancher's Fleet Cluster; detach gives them up.
	attach step = "attach"
	detach step = "detach"
	// withdraw undoes the import.
	withdraw step = "withdraw"
)

// next returns the next step and, if that is rest, the outcome. It is pure.
func (s *scope) next() (step, outcome) {
	switch next, result := s.nextOfAll(); {
	case next != rest:
		return next, outcome{}
	case s.isToLook():
		return look, outcome{}
	default:
		return rest, s.untilHome(result)
	}
}

// nextOfAll is next, whatever the state of the Fleet Cluster's namespace.
func (s *scope) nextOfAll() (step, outcome) {
	switch {
	case s.retained && !s.isClaimed():
		return rest, outcome{}
	case s.retained && s.paused:
		// One step does not wait: clusterctl may move Clusters while the import is turned off, and
		// Fleet would uninstall their applications.
		return s.first(release), s.unchanged()
	case s.unknown: // Whether the Fleet Cluster is to have an owner, too.
		return rest, s.unchanged()
	case s.retained:
		return s.first(reclaim), s.unchanged()

	case !s.cluster.DeletionTimestamp.IsZero() && s.paused:
		return rest, s.unchanged()
	case !s.cluster.DeletionTimestamp.IsZero():
		// The Cluster was paused, deleted, then unpaused: its Fleet Cluster must be deleted with it.
		return s.first(reclaim), s.unchanged()
	case s.paused && !s.selected && !s.isClaimed():
		return rest, unselected(false, false, s.why)
	case s.paused:
		// Everything stays as it is, except the owner reference.
		return s.first(release), paused(s.isIn())
	case s.taken[withdraw]:
		return rest, unselected(false, false, "")
	case !s.selected && s.isClaimed() && s.in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		return withdraw, outcome{}
	case !s.taken[restamp]:
		return restamp, outcome{}
	case !s.selected && s.isClaimed() && s.has() && s.fleet.DeletionTimestamp.IsZero() && !s.taken[retarget]:
		return retarget, outcome{}
	case !s.selected:
		return s.first(reclaim), unselected(s.isClaimed(), s.isIn(), s.why)
	default:
		return s.nextOfImport()
	}
}

// nextOfImport is next for a Cluster that is selected, stamped, and neither paused nor being
// deleted.
func (s *scope) nextOfImport() (step, outcome) {
	switch {
	case s.beside.Way != rancher.Import && !s.has():
		return s.nextBesideRancher()
	case s.stray && !s.taken[detach]:
		return detach, outcome{}
	case s.rival.Name != "":
		name := stamp.OnSync(s.in, s.subject, s.pin()).Pin.ClusterName // The Cluster may not be pinned to it.
		return s.first(reclaim), retained(s.isIn(), addonsv1.NameConflictReason,
			stamp.SharedFleetNamespace(s.cluster.Namespace, name, s.cluster.Name)).again(rivalInterval)
	case !s.taken[claim]:
		return claim, outcome{}
	case s.displacing != "":
		return rest, displaced(s.isIn(), useOf(s.cluster), s.displacing)
	case !s.taken[target]:
		return target, outcome{}
	case s.fleet != nil && s.relation == stamp.Foreign:
		return rest, conflicting(s.whose)
	case s.fleet != nil && !s.fleet.DeletionTimestamp.IsZero():
		return rest, notImported(addonsv1.FleetClusterDeletingReason, "the Fleet Cluster is being deleted; it is made again when it is gone")
	case s.fleet != nil && s.relation == stamp.EarlierCluster:
		return rest, notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet Cluster %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", s.fleet.Name))
	case s.leftover != "":
		return rest, notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet has yet to remove Namespace %q of an earlier cluster of this name; the Fleet Cluster is made when it has", s.leftover)).again(leftoverInterval)
	case s.isNew() && s.byAgent && s.isUnmade():
		return rest, notImported(addonsv1.WaitingForControlPlaneReason, "Cluster API has not made the control plane and the infrastructure yet; the Cluster is registered in Fleet when it has")
	case s.isNew() && !s.byAgent && !s.isInitialized():
		return rest, notImported(addonsv1.WaitingForControlPlaneReason, "the control plane is not initialized yet; the Cluster is imported into Fleet when it is")
	case !s.taken[resolve]:
		return resolve, outcome{}
	case s.tooMuch != "" && !s.has():
		return rest, notImported(addonsv1.TooMuchMetadataReason, s.tooMuch)
	case s.isNew() && s.unresolved != "":
		// A Fleet Cluster without its values would stop every bundle that reads them, for all
		// clusters (Fleet targets with missingkey=error).
		return rest, notImported(addonsv1.TemplateValuesUnresolvedReason, s.unresolved).again(s.again)
	case s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan):
		return takeOver, outcome{}
	case !s.taken[put] && s.first(reclaim) == reclaim:
		return reclaim, outcome{} // The patch that gives the owner back is to be the one that has no tool spare it any more.
	case !s.taken[put]:
		return put, outcome{}
	case s.foreign != "":
		return s.first(reclaim), retained(s.isIn(), addonsv1.NameConflictReason, s.foreign).again(s.again)
	case s.waits() && s.isTurning():
		return s.first(reclaim), notImported(addonsv1.WaitingForControlPlaneReason,
			"the control plane is not initialized yet; when it is, Fleet installs the agent that was to register itself")
	case s.waits():
		return s.first(reclaim), waitingForAgent(s.cluster.Name, s.unregistered)
	case s.beside.Fleet.Name != "":
		return s.first(reclaim), retained(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q, and as %q of Rancher: two agents run in the cluster; docs/rancher.md says how to give up either", s.fleet.Name, s.beside.Fleet)).again(s.again)
	default:
		return s.first(reclaim), imported(s.cluster.Name, s.fleet.Name, s.stays(), s.agentNote()+s.undetached).again(s.again)
	}
}

// nextBesideRancher is next for a Cluster whose Fleet Cluster is, or will be, Rancher's.
func (s *scope) nextBesideRancher() (step, outcome) {
	switch {
	case s.beside.Way == rancher.Wait:
		return rest, waitingForRancher(s.beside.For).again(s.again)
	case !s.taken[resolve]:
		return resolve, outcome{}
	case s.tooMuch != "" && s.rancher == nil:
		return rest, notImported(addonsv1.TooMuchMetadataReason, s.tooMuch)
	case s.unresolved != "" && s.rancher == nil:
		return rest, notImported(addonsv1.TemplateValuesUnresolvedReason, s.unresolved).again(s.again)
	case !s.taken[attach]:
		return attach, outcome{}
	case s.rancher == nil: // It is deleted; when it appears again, the event brings the Cluster back.
		return rest, waitingForRancher(fmt.Sprintf("Fleet Cluster %q of Rancher", s.beside.Fleet))
	case s.stray && !s.taken[detach]:
		return detach, outcome{}
	case s.foreign != "":
		return rest, retained(true, addonsv1.NameConflictReason, s.foreign)
	case s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan):
		return rest, retained(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q of Rancher; Fleet Cluster %q of this namespace is left over from an earlier import, and its agent may run in the cluster as well; docs/rancher.md says how to give up either",
			s.beside.Fleet, s.fleet.Name)).again(s.again)
	default:
		return rest, attached(s.beside.Fleet, s.others, s.stays(), s.undetached).again(s.again)
	}
}

// first returns a step if there is work for it, and rest if not.
func (s *scope) first(wanted step) step {
	if wanted == release && s.isToBeReleased() || wanted == reclaim && s.isToBeReclaimed() {
		return wanted
	}
	return rest
}

// stays says which parts of the Fleet Cluster stay as they are, if they do.
func (s *scope) stays() stale {
	switch {
	case s.tooMuch != "":
		return stale{addonsv1.TooMuchMetadataReason, "the last labels, annotations and template values are kept: " + s.tooMuch}
	case s.unresolved != "":
		return stale{addonsv1.TemplateValuesUnresolvedReason, "the last good template values are kept: " + s.unresolved}
	default:
		return stale{}
	}
}

// isNew reports whether the Cluster is not in Fleet yet.
func (s *scope) isNew() bool { return s.fleet == nil || s.relation == stamp.Orphan }

// isTurning reports whether Fleet should now install the agent of a Cluster whose agent was to
// register itself, but must wait for the control plane. If the Fleet Cluster named the kubeconfig now,
// the kubeconfig would be missing, and Fleet would look for it at intervals of up to 10 minutes.
func (s *scope) isTurning() bool {
	return !s.byAgent && s.has() && s.fleet.Spec.KubeConfigSecret == "" && !s.isInitialized()
}

func (s *scope) isInitialized() bool {
	return ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// agentNote says that the agent is in another namespace than the FleetAddonConfig asks for, or that an
// older Turtles will remove it from there; empty if neither.
func (s *scope) agentNote() string {
	runs, asked := s.agentNamespace(), s.in.Cluster.AgentNamespace
	if s.beside.RemovesAgent && runs == settings.DefaultAgentNamespace {
		return fmt.Sprintf("; Rancher manages the cluster, and an older Turtles removes namespace %q there, with the agent: label the Cluster %s, or choose another spec.cluster.agentNamespace", runs, rancher.KeepAgentLabel)
	}
	if runs == asked {
		return ""
	}
	return fmt.Sprintf("; its agent stays in namespace %q instead of %q (spec.cluster.agentNamespace): an agent that registers itself has its credential there", runs, asked)
}

// isUnmade reports whether the objects that a topology Cluster will refer to do not exist yet.
// Template values resolved now would lack fields that bundles read.
func (s *scope) isUnmade() bool {
	spec := s.cluster.Spec
	return spec.Topology.IsDefined() && !(spec.ControlPlaneRef.IsDefined() && spec.InfrastructureRef.IsDefined())
}
