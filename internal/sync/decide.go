package sync

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// stamp returns the stamp that the Cluster should have.
func (s *scope) stamp() stamp.Stamp {
	existing := ""
	// A deselected Cluster gets a lost pin back, but what CAAPF imported never had one.
	if s.has() && (s.selected || stamp.PinOf(s.cluster.Annotations).IsComplete() || s.fleet.Labels[stamp.ManagedByLabel] == stamp.ManagedBy) {
		existing = s.fleet.Name
	}
	return stamp.OnSync(s.in, s.withOwnPin(), existing)
}

// wait returns the delay until the next reconcile because of what has no event: that Rancher has left a Cluster, or may be
// written again; zero for never.
func (s *scope) wait() time.Duration {
	if s.rancher.Left != "" && s.rancher.Way == rancher.Wait || s.undetached != "" {
		return longestWait
	}
	return 0
}

// obstacle returns why there can be no Fleet Cluster now; nothing if there can.
func (s *scope) obstacle() outcome {
	switch {
	case s.fleet != nil && s.relation == stamp.Foreign:
		return notImported(addonsv1.NameConflictReason, s.conflict)
	case s.fleet != nil && !s.fleet.DeletionTimestamp.IsZero():
		return notImported(addonsv1.FleetClusterDeletingReason, "the Fleet Cluster is being deleted; it is made again when it is gone")
	case s.fleet != nil && s.relation == stamp.EarlierCluster:
		return notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet Cluster %q is still that of an earlier Cluster of this name; it is made again when the garbage collector has taken it away", s.fleet.Name))
	case s.oldNamespace != "":
		return notImported(addonsv1.FleetClusterDeletingReason, fmt.Sprintf(
			"Fleet has yet to remove Namespace %q of an earlier cluster of this name; the Fleet Cluster is made when it has", s.oldNamespace)).again(longestWait)
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
		return unchanged(s.isIn(), addonsv1.NameConflictReason, s.foreign).again(s.wait())
	case s.waits() && s.isTurning():
		return notImported(addonsv1.WaitingForControlPlaneReason,
			"the control plane is not initialized yet; when it is, Fleet installs the agent that was to register itself")
	case s.waits():
		return waitingForAgent(s.cluster.Name, s.unregistered)
	case s.rancher.Fleet.Name != "":
		return unchanged(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q, and as %q of Rancher: two agents run in the cluster; docs/rancher.md says how to give up either", s.fleet.Name, s.rancher.Fleet)).again(s.wait())
	default:
		return imported(s.cluster.Name, s.fleet.Name, s.stalePart(), s.agentNote()+s.undetached).again(s.wait())
	}
}

// placedByRancher is the outcome for a Cluster that is attached to Rancher's Fleet Cluster.
func (s *scope) placedByRancher() outcome {
	switch {
	case s.foreign != "":
		return unchanged(true, addonsv1.NameConflictReason, s.foreign)
	case s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan):
		return unchanged(true, addonsv1.DoubleImportReason, fmt.Sprintf(
			"in Fleet as Cluster %q of Rancher; Fleet Cluster %q of this namespace is left over from an earlier import, and its agent may run in the cluster as well; docs/rancher.md says how to give up either",
			s.rancher.Fleet, s.fleet.Name)).again(s.wait())
	default:
		return attached(s.rancher.Fleet, s.others, s.stalePart(), s.undetached).again(s.wait())
	}
}

// nameConflict is the outcome for a Cluster one of whose names is taken; nothing if none is.
func (s *scope) nameConflict() outcome {
	switch {
	case s.namespaceOwner.Name != "":
		name := s.stamp().Pin.ClusterName // The Cluster may not be pinned to it.
		return unchanged(s.isIn(), addonsv1.NameConflictReason, stamp.SharedFleetNamespace(s.cluster.Namespace, name, s.cluster.Name)).again(longestWait)
	case s.groupOwner != "":
		return groupConflict(s.isIn(), useOf(s.cluster), s.groupOwner)
	default:
		return outcome{}
	}
}

// lack is the outcome for a Cluster that cannot be in Fleet without copies that are missing; nothing if it can. IsOut and isNew
// are whether it must have all labels and annotations, or all template values, to get there.
func (s *scope) lack(isOut, isNew bool) outcome {
	switch {
	case s.tooMuch != "" && isOut:
		return notImported(addonsv1.TooMuchMetadataReason, s.tooMuch)
	case s.unresolved != "" && isNew:
		// A Fleet Cluster without its values would stop every bundle that reads them, for all
		// clusters (Fleet targets with missingkey=error).
		return notImported(addonsv1.TemplateValuesUnresolvedReason, s.unresolved).again(s.wait())
	default:
		return outcome{}
	}
}

// stalePart says which parts of the Fleet Cluster stay as they are, if they do.
func (s *scope) stalePart() stale {
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
	if s.rancher.RemovesAgent && runs == settings.DefaultAgentNamespace {
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
