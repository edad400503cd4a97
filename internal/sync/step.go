package sync

import (
	"fmt"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// action does one thing for a Cluster, and changes the scope as it changes the objects.
type action = func(*scope) error

// actions are all that a reconcile may do for a Cluster: the methods of clusterReconciler of these names.
type actions struct {
	restamp, claim, target, resolve, takeOver, put, retarget, look, release, reclaim, attach, detach, withdraw action
}

// takeIf takes an action if it is needed.
func (s *scope) takeIf(isNeeded bool, take action) error {
	if !isNeeded {
		return nil
	}
	return take(s)
}

// run does what the Cluster needs, each action at most once, and returns what to report. Besides the actions, it reads
// nothing but the scope.
func (s *scope) run(do actions) (outcome, error) {
	result, err := s.runAll(do)
	if err == nil {
		err = s.takeIf(s.isToLook(), do.look)
	}
	if err != nil {
		return outcome{}, err
	}
	return s.untilHome(result), nil
}

// runAll is run, whatever the state of the Fleet Cluster's namespace.
func (s *scope) runAll(do actions) (outcome, error) {
	isDeleted := !s.cluster.DeletionTimestamp.IsZero()
	switch {
	case s.retained && !s.isClaimed():
		return outcome{}, nil
	case s.retained && s.paused:
		// One action does not wait: clusterctl may move Clusters while the import is turned off, and
		// Fleet would uninstall their applications.
		err := s.takeIf(s.isToBeReleased(), do.release)
		return s.unchanged(), err
	case s.unknown, isDeleted && s.paused: // Unknown is also whether the Fleet Cluster is to have an owner.
		return s.unchanged(), nil
	case s.retained, isDeleted:
		// One that was paused, deleted, then unpaused: its Fleet Cluster must be deleted with it.
		err := s.takeIf(s.isToBeReclaimed(), do.reclaim)
		return s.unchanged(), err
	case s.paused && !s.selected && !s.isClaimed():
		return unselected(false, false, s.why), nil
	case s.paused:
		// Everything stays as it is, except the owner reference.
		err := s.takeIf(s.isToBeReleased(), do.release)
		return paused(s.isIn()), err
	case !s.selected && s.isClaimed() && s.in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		return unselected(false, false, ""), do.withdraw(s)
	}
	if err := do.restamp(s); err != nil {
		return outcome{}, err
	}
	if s.selected {
		return s.runImport(do)
	}
	if err := s.takeIf(s.isClaimed() && s.has() && s.fleet.DeletionTimestamp.IsZero(), do.retarget); err != nil {
		return outcome{}, err
	}
	err := s.takeIf(s.isToBeReclaimed(), do.reclaim)
	return unselected(s.isClaimed(), s.isIn(), s.why), err
}

// runImport is run for a Cluster that is selected, stamped, and neither paused nor being deleted.
func (s *scope) runImport(do actions) (outcome, error) {
	if s.beside.Way != rancher.Import && !s.has() {
		return s.runBesideRancher(do)
	}
	if err := s.takeIf(s.stray, do.detach); err != nil {
		return outcome{}, err
	}
	if err := s.takeIf(s.rival.Name == "", do.claim); err != nil {
		return outcome{}, err
	}
	switch {
	case s.rival.Name != "":
		err := s.takeIf(s.isToBeReclaimed(), do.reclaim)
		name := stamp.OnSync(s.in, s.subject, s.pin()).Pin.ClusterName // The Cluster may not be pinned to it.
		return retained(s.isIn(), addonsv1.NameConflictReason,
			stamp.SharedFleetNamespace(s.cluster.Namespace, name, s.cluster.Name)).again(longestWait), err
	case s.displacing != "":
		return displaced(s.isIn(), useOf(s.cluster), s.displacing), nil
	}
	if err := do.target(s); err != nil {
		return outcome{}, err
	}
	if result := s.obstacle(); !result.isNothing() {
		return result, nil
	}
	if err := do.resolve(s); err != nil {
		return outcome{}, err
	}
	switch {
	case s.tooMuch != "" && !s.has():
		return notImported(addonsv1.TooMuchMetadataReason, s.tooMuch), nil
	case s.isNew() && s.unresolved != "":
		// A Fleet Cluster without its values would stop every bundle that reads them, for all
		// clusters (Fleet targets with missingkey=error).
		return notImported(addonsv1.TemplateValuesUnresolvedReason, s.unresolved).again(s.again), nil
	case s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan):
		if err := do.takeOver(s); err != nil {
			return outcome{}, err
		}
	}
	// The patch that gives the owner back must also remove what makes other tools spare the object.
	if err := s.takeIf(s.isToBeReclaimed(), do.reclaim); err != nil {
		return outcome{}, err
	}
	if err := do.put(s); err != nil {
		return outcome{}, err
	}
	return s.placed(), nil
}

// obstacle returns why there can be no Fleet Cluster now; nothing if there can.
func (s *scope) obstacle() outcome {
	switch {
	case s.fleet != nil && s.relation == stamp.Foreign:
		return conflicting(s.whose)
	case s.fleet != nil && !s.fleet.DeletionTimestamp.IsZero():
		return notImported(addonsv1.FleetClusterDeletingReason, "the Fleet Cluster is being deleted; it is made again when it is gone")
	case s.fleet != nil && s.relation == stamp.EarlierCluster:
		return notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet Cluster %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", s.fleet.Name))
	case s.leftover != "":
		return notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet has yet to remove Namespace %q of an earlier cluster of this name; the Fleet Cluster is made when it has", s.leftover)).again(longestWait)
	case s.isNew() && s.byAgent && s.isUnmade():
		return notImported(addonsv1.WaitingForControlPlaneReason, "Cluster API has not made the control plane and the infrastructure yet; the Cluster is registered in Fleet when it has")
	case s.isNew() && !s.byAgent && !s.isInitialized():
		return notImported(addonsv1.WaitingForControlPlaneReason, "the control plane is not initialized yet; the Cluster is imported into Fleet when it is")
	default:
		return outcome{}
	}
}

// placed is the outcome for a Cluster whose Fleet Cluster has been applied.
func (s *scope) placed() outcome {
	switch result := s.obstacle(); { // It may be being deleted by now.
	case !result.isNothing():
		return result
	case s.foreign != "":
		return retained(s.isIn(), addonsv1.NameConflictReason, s.foreign).again(s.again)
	case s.waits() && s.isTurning():
		return notImported(addonsv1.WaitingForControlPlaneReason,
			"the control plane is not initialized yet; when it is, Fleet installs the agent that was to register itself")
	case s.waits():
		return waitingForAgent(s.cluster.Name, s.unregistered)
	case s.beside.Fleet.Name != "":
		return retained(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q, and as %q of Rancher: two agents run in the cluster; docs/rancher.md says how to give up either", s.fleet.Name, s.beside.Fleet)).again(s.again)
	default:
		return imported(s.cluster.Name, s.fleet.Name, s.stays(), s.agentNote()+s.undetached).again(s.again)
	}
}

// runBesideRancher is run for a Cluster whose Fleet Cluster is, or will be, Rancher's.
func (s *scope) runBesideRancher(do actions) (outcome, error) {
	if s.beside.Way == rancher.Wait {
		return waitingForRancher(s.beside.For).again(s.again), nil
	}
	if err := do.resolve(s); err != nil {
		return outcome{}, err
	}
	switch {
	case s.tooMuch != "" && s.rancher == nil:
		return notImported(addonsv1.TooMuchMetadataReason, s.tooMuch), nil
	case s.unresolved != "" && s.rancher == nil:
		return notImported(addonsv1.TemplateValuesUnresolvedReason, s.unresolved).again(s.again), nil
	}
	if err := do.attach(s); err != nil {
		return outcome{}, err
	}
	if s.rancher == nil { // It is deleted; when it appears again, the event brings the Cluster back.
		return waitingForRancher(fmt.Sprintf("Fleet Cluster %q of Rancher", s.beside.Fleet)), nil
	}
	if err := s.takeIf(s.stray, do.detach); err != nil {
		return outcome{}, err
	}
	switch {
	case s.foreign != "":
		return retained(true, addonsv1.NameConflictReason, s.foreign), nil
	case s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan):
		return retained(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q of Rancher; Fleet Cluster %q of this namespace is left over from an earlier import, and its agent may run in the cluster as well; docs/rancher.md says how to give up either",
			s.beside.Fleet, s.fleet.Name)).again(s.again), nil
	default:
		return attached(s.beside.Fleet, s.others, s.stays(), s.undetached).again(s.again), nil
	}
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
