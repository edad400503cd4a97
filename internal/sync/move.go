package sync

import (
	"context"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// isToBeReleased reports whether the Cluster's spec.paused is true and its Fleet Cluster is
// not released yet: the Cluster is still its owner, or the mark is missing.
//
// clusterctl move pauses Clusters, copies them to another management cluster, and deletes the
// originals before any controller can react. An owned Fleet Cluster would be deleted with the
// original, and Fleet would uninstall the applications of a cluster that lives on. Nothing
// else deletes a paused Cluster: Cluster API does not finish its deletion.
func (s *scope) isToBeReleased() bool {
	return ptr.Deref(s.cluster.Spec.Paused, false) && s.cluster.DeletionTimestamp.IsZero() &&
		s.has() && s.fleet.DeletionTimestamp.IsZero() &&
		(isOwner(s.fleet, s.cluster) || s.fleet.Annotations[stamp.ReleasedAnnotation] != "true")
}

// isToBeReclaimed reports whether the syncer must undo a release.
func (s *scope) isToBeReclaimed() bool {
	return s.has() && s.fleet.DeletionTimestamp.IsZero() && s.fleet.Annotations[stamp.ReleasedAnnotation] != ""
}

// release removes the Cluster from the owners of its Fleet Cluster, and has tools spare it that delete what has no owner.
func (r *clusterReconciler) release(ctx context.Context, s *scope) error {
	annotations := map[string]any{stamp.ReleasedAnnotation: "true", stamp.ImportedUIDAnnotation: s.cluster.UID}
	metadata := map[string]any{"ownerReferences": withoutOwner(s.fleet, s.cluster), "annotations": annotations}
	for key, value := range desired.Spared() {
		annotations[key] = value
	}
	err := r.patchFleetCluster(ctx, s, map[string]any{"metadata": metadata})
	if !kube.IsRefused(err) && !kube.IsTooLarge(err) {
		return err
	}
	// The API server may refuse these annotations, because of another policy or their size. Without this patch, clusterctl
	// move would have Fleet uninstall everything.
	for key := range desired.Spared() {
		delete(annotations, key)
	}
	return r.patchFleetCluster(ctx, s, map[string]any{"metadata": metadata})
}

// reclaim undoes a release when the Cluster is unpaused. If owner references are on, the Fleet Cluster
// gets its owner back, even if patchResource is off.
func (r *clusterReconciler) reclaim(ctx context.Context, s *scope) error {
	annotations := map[string]any{stamp.ReleasedAnnotation: nil}
	metadata := map[string]any{"annotations": annotations}
	if s.in.Cluster.SetOwnerReferences {
		annotations[stamp.ImportedUIDAnnotation] = nil
		s.unspare(annotations)
		if !isOwner(s.fleet, s.cluster) {
			metadata["ownerReferences"] = append(slices.Clone(s.fleet.OwnerReferences), desired.Owner(s.cluster))
		}
	}
	return r.patchFleetCluster(ctx, s, map[string]any{"metadata": metadata})
}

// unspare completes a change of annotations that gives a Fleet Cluster its owner back. What is there now stays if it is not
// what Muster writes on an object without an owner.
func (s *scope) unspare(annotations map[string]any) {
	spared := desired.Spared()
	for key, value := range desired.UnsparedBy(s.in, s.cluster) {
		if s.fleet.Annotations[key] == spared[key] {
			annotations[key] = value
		}
	}
}

// takeOver gives the Cluster a Fleet Cluster that was handed over, or that an earlier Cluster of the
// same name left behind. It uses one write that fails if the object has changed meanwhile, so only one
// of two Clusters gets it. Fleet takes the agent of a Fleet Cluster that was left behind for deployed,
// so takeOver makes Fleet deploy it again.
func (r *clusterReconciler) takeOver(ctx context.Context, s *scope) error {
	annotations := map[string]any{
		stamp.AdoptAnnotation: nil, stamp.ReleasedAnnotation: nil,
		stamp.ImportedFromAnnotation: s.cluster.Name, stamp.ImportedUIDAnnotation: nil,
	}
	if s.relation == stamp.HandedOver {
		annotations[rancher.ApplierAnnotation] = nil // A Rancher that still applies it sets this again.
	}
	metadata := map[string]any{"annotations": annotations}
	// All other owners of this kind are Clusters that no longer exist.
	owners := slices.DeleteFunc(slices.Clone(s.fleet.OwnerReferences), stamp.IsCluster)
	if s.in.Cluster.SetOwnerReferences {
		metadata["ownerReferences"] = append(owners, desired.Owner(s.cluster))
		s.unspare(annotations)
	} else {
		metadata["ownerReferences"] = owners
		annotations[stamp.ImportedUIDAnnotation] = s.cluster.UID
		for key, value := range desired.Spared() {
			annotations[key] = value
		}
	}
	change := map[string]any{"metadata": metadata}
	switch {
	case s.byAgent && (s.relation == stamp.Orphan || len(s.fleet.Spec.ClientID) < stamp.MinClientID):
		// The agent of an earlier Cluster is not this Cluster's. The registrar revokes the access that
		// Fleet granted under another clientID.
		spec := map[string]any{"clientID": newClientID()}
		if s.relation == stamp.Orphan {
			spec["agentNamespace"] = s.in.Cluster.AgentNamespace
		}
		change["spec"] = spec
	case s.byAgent: // A Fleet Cluster that is handed over keeps its agent.
	case s.relation == stamp.Orphan:
		change["spec"] = map[string]any{"redeployAgentGeneration": s.fleet.Spec.RedeployAgentGeneration + 1}
	}
	if err := r.patchFleetCluster(ctx, s, change); err != nil {
		return err
	}
	s.relation = stamp.Own
	return nil
}

func isOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	return len(withoutOwner(live, cluster)) < len(live.OwnerReferences)
}

func withoutOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID })
}

// patchFleetCluster changes the Fleet Cluster of a reconcile.
func (r *clusterReconciler) patchFleetCluster(ctx context.Context, s *scope, change map[string]any) error {
	written, err := r.applier.Patch(ctx, s.fleet, change)
	if err != nil {
		return fmt.Errorf("patching Fleet Cluster: %w", err)
	}
	s.fleet = written.(*fleetv1.Cluster)
	return nil
}
