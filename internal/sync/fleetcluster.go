package sync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// applyFleetCluster applies the Fleet Cluster. If its template values cannot be resolved, the last good ones stay; if there is too
// much to copy, all copies stay.
func (r *clusterReconciler) applyFleetCluster(ctx context.Context, s scope) (fleetState, error) {
	var have client.Object
	if s.fleet != nil {
		have = s.fleet
	}
	if s.unresolved != "" {
		// An apply without the values would remove them. The syncer reads them past the cache only if it has to write.
		s.whole = func() (map[string]any, error) { return r.lastGoodValues(ctx, client.ObjectKeyFromObject(s.fleet)) }
		if s.fleet.Spec.TemplateValues != nil {
			s.values = s.fleet.Spec.TemplateValues.Data
		}
	}
	clientID, err := r.clientID(ctx, &s)
	if err != nil {
		return s.fleetState, err
	}
	begun, err := begunFor(ctx, r.Client, r.applier.Store, s.cluster.Namespace, useOf(s.cluster))
	if err != nil {
		return s.fleetState, err
	}
	want := s.wants(clientID, begun)
	if s.whole != nil && (have == nil || s.in.Cluster.PatchResource && kube.Differs(want, have)) {
		if err := s.inflate(); err != nil {
			return s.fleetState, err
		}
		want = s.wants(clientID, begun)
	}
	written, result, err := r.applier.Apply(ctx, want, have, s.in.Cluster.PatchResource)
	if err != nil {
		return s.fleetState, s.explained(err)
	}
	s.fleet, s.relation = written.(*fleetv1.Cluster), stamp.Own
	if result == kube.Created && !s.byAgent {
		observeLatency(s.cluster)
	}
	if result == kube.Skipped {
		s.fleetState, err = r.retarget(ctx, s)
	}
	if err == nil {
		s.namespace, err = r.readNamespace(ctx, &s)
	}
	return s.fleetState, err
}

// explained adds to a refusal of a Fleet Cluster as too large what makes it so.
func (s *scope) explained(err error) error {
	if !kube.IsTooLarge(err) {
		return err
	}
	biggest := ""
	if part, bytes := desired.BiggestPart(s.values); part != "" {
		biggest = fmt.Sprintf(": the biggest part of its template values is %s, %d bytes; name that, or what is in it, in spec.cluster.templateValues.exclude of the FleetAddonConfig", part, bytes)
	}
	return fmt.Errorf("the Fleet Cluster is too large%s; the same content is tried again once an hour: %w", biggest, err)
}

// wants returns the desired Fleet Cluster; begun are the mappings to show to Fleet. A clientID stays when the Cluster turns to the manager,
// whether Muster or Fleet drew it. An apply without it would remove ours, Fleet would draw another,
// and an agent that registers itself would lose its registration. Fleet revokes that registration
// itself when its own agent registers under the same clientID.
func (s *scope) wants(clientID string, begun []string) *fleetv1.Cluster {
	in := s.in
	in.Cluster.AgentNamespace = s.agentNamespace()
	want := desired.FleetCluster(in, s.cluster, s.class, s.values, s.targets, clientID)
	if !s.byAgent && s.fleet != nil {
		want.Spec.ClientID = s.fleet.Spec.ClientID
	}
	if s.isTurning() {
		want.Spec.KubeConfigSecret = ""
	}
	noted := ""
	if s.fleet != nil {
		noted = s.fleet.Annotations[desired.RetargetAnnotation]
	}
	if noted = desired.Retargeted(noted, begun); noted != "" {
		want.Annotations[desired.RetargetAnnotation] = noted
	}
	return want
}

// clientID returns the ID that the agent of a Cluster registers with, if it registers itself. Once
// drawn, by Muster or by Fleet, the ID stays. To Fleet, any caller with this ID and a token of the
// namespace is the cluster's agent, so the ID must be unguessable. A guessable ID stays only if the
// agent has checked in: no other agent is registered under it.
func (r *clusterReconciler) clientID(ctx context.Context, s *scope) (string, error) {
	if !s.byAgent && (s.fleet != nil || !awaitsAgent(s.cluster)) {
		return "", nil
	}
	key, known := types.NamespacedName{Namespace: s.cluster.Namespace, Name: s.pin()}, ""
	if s.fleet != nil {
		key.Name, known = s.fleet.Name, s.fleet.Spec.ClientID
		if len(known) >= stamp.MinClientID || known != "" && !s.fleet.Status.Agent.LastSeen.IsZero() {
			return known, nil
		}
	}
	// The cache may not show the Fleet Cluster yet, or the ID that Fleet has just drawn.
	var live fleetv1.Cluster
	err := r.live.Get(ctx, key, &live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", err
	case (err == nil) != (s.fleet != nil) || live.Spec.ClientID != known:
		return "", apierrors.NewConflict(schema.GroupResource{Group: fleetv1.SchemeGroupVersion.Group, Resource: "clusters"}, key.Name, errors.New("it is not in the cache yet"))
	case !s.byAgent:
		return "", nil
	default:
		return newClientID(), nil
	}
}

// awaitsAgent reports whether the last reconcile of a Cluster waited for its agent. Then a Fleet
// Cluster with a clientID may exist although the cache does not show it.
func awaitsAgent(cluster *clusterv1.Cluster) bool {
	imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	return imported != nil && (imported.Reason == addonsv1.WaitingForAgentReason || imported.Reason == addonsv1.RegistrarMissingReason)
}

// newClientID draws 130 random bits.
func newClientID() string { return rand.Text() }

// lastGoodValues reads the template values of a Fleet Cluster past the cache, which holds only their
// hash.
func (r *clusterReconciler) lastGoodValues(ctx context.Context, key types.NamespacedName) (map[string]any, error) {
	var live fleetv1.Cluster
	if err := r.live.Get(ctx, key, &live); err != nil {
		return nil, fmt.Errorf("reading the template values of Fleet Cluster %s: %w", key, err)
	}
	if live.Spec.TemplateValues == nil {
		return nil, nil
	}
	return live.Spec.TemplateValues.Data, nil
}

// withdraw undoes an import. It deletes the Fleet Cluster before it removes the pin, so that an
// interrupted withdrawal resumes.
func (r *clusterReconciler) withdraw(ctx context.Context, s scope) (*clusterv1.Cluster, error) {
	if s.has() && s.fleet.DeletionTimestamp.IsZero() {
		if err := r.applier.Delete(ctx, s.fleet); err != nil {
			return s.cluster, err
		}
	}
	if err := r.scopes.rancher.Detach(ctx, client.ObjectKeyFromObject(s.cluster), types.NamespacedName{}); err != nil {
		return s.cluster, err
	}
	return r.applyStamp(ctx, s, stamp.WithoutPin(s.subject))
}

// observeLatency measures the import of a Cluster that waited only for its control plane. A Cluster
// that was selected, unpaused or imported again later would distort the figure.
func observeLatency(cluster *clusterv1.Cluster) {
	if last := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); last == nil || last.Reason != addonsv1.WaitingForControlPlaneReason {
		return
	}
	if initialized := conditions.Get(cluster, clusterv1.ClusterControlPlaneInitializedCondition); initialized != nil {
		metrics.Imported(time.Since(initialized.LastTransitionTime.Time))
	}
}

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
func (r *clusterReconciler) release(ctx context.Context, s scope) (fleetState, error) {
	annotations := map[string]any{stamp.ReleasedAnnotation: "true", stamp.ImportedUIDAnnotation: s.cluster.UID}
	metadata := map[string]any{"ownerReferences": withoutOwner(s.fleet, s.cluster), "annotations": annotations}
	for key, value := range desired.Spared() {
		annotations[key] = value
	}
	state, err := r.patchFleetCluster(ctx, s, map[string]any{"metadata": metadata})
	if !kube.IsRefused(err) && !kube.IsTooLarge(err) {
		return state, err
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
func (r *clusterReconciler) reclaim(ctx context.Context, s scope) (fleetState, error) {
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

// adopt gives the Cluster a Fleet Cluster that was handed over, or that an earlier Cluster of the
// same name left behind. It uses one write that fails if the object has changed meanwhile, so only one
// of two Clusters gets it. Fleet takes the agent of a Fleet Cluster that was left behind for deployed,
// so adopt makes Fleet deploy it again.
func (r *clusterReconciler) adopt(ctx context.Context, s scope) (fleetState, error) {
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
	state, err := r.patchFleetCluster(ctx, s, change)
	if err == nil {
		state.relation = stamp.Own
	}
	return state, err
}

func isOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	return len(withoutOwner(live, cluster)) < len(live.OwnerReferences)
}

func withoutOwner(live *fleetv1.Cluster, cluster *clusterv1.Cluster) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID })
}

// patchFleetCluster changes the Fleet Cluster of a reconcile.
func (r *clusterReconciler) patchFleetCluster(ctx context.Context, s scope, change map[string]any) (fleetState, error) {
	written, err := r.applier.Patch(ctx, s.fleet, change)
	if err != nil {
		return s.fleetState, fmt.Errorf("patching Fleet Cluster: %w", err)
	}
	s.fleet = written.(*fleetv1.Cluster)
	return s.fleetState, nil
}

// namespaceOwner returns the Cluster or Fleet Cluster that holds the namespace in Fleet that a Fleet Cluster
// of this name would get; zero if the Cluster may have that namespace.
//
// The webhook checks names as Clusters are created. The syncer checks a Cluster that is selected
// later, or that was created while the webhook was down: before it pins the Cluster, and before it
// makes the Fleet Cluster. A Cluster in Fleet yields to Fleet Clusters only.
func (l *scopeReader) namespaceOwner(ctx context.Context, s *scope, name string) (types.NamespacedName, error) {
	key := types.NamespacedName{Namespace: s.cluster.Namespace, Name: name}
	if !stamp.CanShareFleetNamespace(key.Namespace, key.Name) {
		return types.NamespacedName{}, nil
	}
	var planned []stamp.FleetClaim
	if !s.has() {
		// The cache may lag behind the Fleet Clusters that this process makes for other Clusters.
		if err := l.waitForCreated(ctx, key); err != nil {
			return types.NamespacedName{}, err
		}
		pinned, err := kube.PinnedTo(ctx, l, key)
		if err != nil {
			return types.NamespacedName{}, err
		}
		for i := range pinned {
			selected, err := l.isSelected(ctx, s, &pinned[i])
			if err != nil {
				return types.NamespacedName{}, err
			}
			if yieldsTo(s.cluster, &pinned[i], selected) {
				planned = append(planned, stamp.FleetClaim{NamespacedName: types.NamespacedName{
					Namespace: pinned[i].Namespace, Name: stamp.PinOf(pinned[i].Annotations).ClusterName,
				}})
			}
		}
	}
	return kube.OtherHolder(ctx, l, key, planned...)
}

// waitForCreated returns kube.ErrBehind while the cache does not show a Fleet Cluster that this process has made for another
// Cluster, in the same namespace in Fleet.
func (l *scopeReader) waitForCreated(ctx context.Context, key types.NamespacedName) error {
	creating, err := l.store.Creating(&fleetv1.Cluster{})
	for _, other := range creating {
		if err == nil && stamp.FleetNamespace(other.Namespace, other.Name) == stamp.FleetNamespace(key.Namespace, key.Name) {
			_, err = l.store.Get(ctx, other, &fleetv1.Cluster{})
		}
	}
	return err
}

// isSelected reports whether another Cluster is selected.
func (l *scopeReader) isSelected(ctx context.Context, s *scope, other *clusterv1.Cluster) (bool, error) {
	namespace := namespaceMetadata()
	if err := l.Get(ctx, client.ObjectKey{Name: other.Namespace}, namespace, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading Namespace: %w", err)
	}
	selected, _ := stamp.SubjectOf(other, namespace.Labels).IsSelected(s.in.Cluster)
	return selected, nil
}

// yieldsTo reports whether a Cluster that is not in Fleet leaves a namespace in Fleet to another
// Cluster whose pin leads there.
//
// The webhook lets no tenant write a pin, but while it is down, tenants can. So a Cluster that is
// pinned, but not accepted yet, yields to accepted ones; otherwise a forged pin would pass for a
// checked one. A Cluster that is not pinned yet yields to every pin of a selected Cluster: the webhook
// has checked that pin, or the syncer accepts it within moments. Creation times decide nothing, since
// a Cluster can be created long before it is selected.
func yieldsTo(cluster, other *clusterv1.Cluster, otherIsSelected bool) bool {
	switch {
	case client.ObjectKeyFromObject(other) == client.ObjectKeyFromObject(cluster), !otherIsSelected, !other.DeletionTimestamp.IsZero():
		return false
	case !stamp.PinOf(cluster.Annotations).IsComplete():
		return true
	default:
		return isAccepted(other) && !isAccepted(cluster)
	}
}

// acceptedReasons are the reasons of FleetImported that the syncer writes only after its check of
// the namespace in Fleet.
var acceptedReasons = []string{addonsv1.ImportedReason, addonsv1.WaitingForControlPlaneReason, addonsv1.TemplateValuesUnresolvedReason, addonsv1.TooMuchMetadataReason, addonsv1.FleetClusterDeletingReason, addonsv1.WaitingForAgentReason, addonsv1.RegistrarMissingReason, addonsv1.WaitingForFleetReason}

// isAccepted reports whether the syncer has found that a pinned Cluster may have its namespace in
// Fleet. Tenants can write annotations, but not the status.
func isAccepted(cluster *clusterv1.Cluster) bool {
	condition := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	return condition != nil && slices.Contains(acceptedReasons, condition.Reason)
}
