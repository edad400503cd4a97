package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// attach makes the group in the workspace, then attaches the Cluster to Rancher's Fleet Cluster.
func (r *clusterReconciler) attach(ctx context.Context, s scope) (attachment, targeting, error) {
	have := &fleetv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, s.rancher.Fleet, have)
	if err != nil || !found {
		return s.attachment, s.targeting, err
	}
	s.attached = have
	if s.unresolved != "" || rancher.IsAttachedTo(have, s.cluster) && !s.in.Cluster.PatchResource {
		return s.attachment, s.targeting, nil // The attached fields stay as they are.
	}
	var taken rancher.TakenError
	group, err := r.targets.ensureInWorkspace(ctx, s.in, s.rancher.Fleet.Namespace, s.cluster.Namespace, s.subject.Class)
	if errors.As(err, &taken) {
		s.foreign, err = taken.Error(), nil
	}
	if s.targets.Group, err = s.orForeign(group, err); err != nil {
		return s.attachment, s.targeting, err
	}
	want := desired.Attachment(s.in, s.rancher.Fleet, have.UID, s.cluster, s.class, s.values, s.targets)
	lacks, others := desired.Unattached(want, have)
	if s.others = others; !lacks && want.Annotations[desired.HashAnnotation] == have.Annotations[desired.HashAnnotation] {
		return s.attachment, s.targeting, nil
	}
	if err := s.inflate(); err != nil {
		return s.attachment, s.targeting, err
	}
	want.Spec.TemplateValues.Data = s.values
	now, others, err := r.scopes.rancher.Attach(ctx, s.in, want, have, s.tooMuch != "")
	switch {
	case errors.As(err, &taken):
		s.foreign, err = taken.Error(), nil
	case err == nil:
		s.attached, s.others = now, others
	}
	return s.attachment, s.targeting, s.explained(err)
}

// detach removes Muster's fields from the Fleet Clusters that the Cluster is no longer attached to. If
// that fails, the condition says so, and nothing else waits for it.
func (r *clusterReconciler) detach(ctx context.Context, s scope) (attachment, error) {
	err := r.scopes.rancher.Detach(ctx, client.ObjectKeyFromObject(s.cluster), s.attachedTo())
	if errors.Is(err, kube.ErrBehind) {
		return s.attachment, err
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Muster's fields stay on a Fleet Cluster of Rancher; it is tried again")
		s.undetached = "; Muster's labels stay on another Fleet Cluster of Rancher: " + err.Error()
	}
	return s.attachment, nil
}

// byWorkspaceGroup indexes Fleet Clusters by the ClusterGroup, in Rancher's workspace, that selects them.
const byWorkspaceGroup = "muster.workspaceGroup"

// memberOf returns the use by which a group in a workspace selects an attached Fleet Cluster, or which a group there is for:
// the Clusters of a namespace that use a class, of whatever namespace; zero for none.
func memberOf(object client.Object) use {
	labels := object.GetLabels()
	of := use{labels[stamp.OriginNamespaceLabel], types.NamespacedName{Namespace: labels[stamp.ClassNamespaceLabel], Name: labels[stamp.ClassNameLabel]}}
	if full := object.GetAnnotations()[stamp.ClassFullNameAnnotation]; full != "" {
		of.class.Name = full
	}
	if of.class.Name == "" || of.class.Namespace == "" || of.namespace == "" {
		return use{}
	}
	return of
}

func workspaceGroupOf(object client.Object) []string {
	of := memberOf(object)
	if of.isZero() || !rancher.IsAttached(object) {
		return nil
	}
	return []string{stamp.WorkspaceGroupName(of.class, of.namespace)}
}

// ensureInWorkspace makes the group that selects the attached Clusters of a namespace and a class, and
// returns its UID.
func (t *targets) ensureInWorkspace(ctx context.Context, in settings.Settings, workspace, origin string, class types.NamespacedName) (types.UID, error) {
	if class.Name == "" || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	key := types.NamespacedName{Namespace: workspace, Name: stamp.WorkspaceGroupName(class, origin)}
	defer t.groupLocks.Lock(key.String())()
	return t.applyInWorkspace(ctx, in, key, use{origin, class})
}

func (t *targets) applyInWorkspace(ctx context.Context, in settings.Settings, key types.NamespacedName, of use) (types.UID, error) {
	var group fleetv1.ClusterGroup
	found, err := t.Store.Get(ctx, key, &group)
	if err != nil {
		return "", err
	}
	if found && stamp.IsOurs(&group) {
		if taken, err := t.isOfWorkspaceItself(ctx, in, &group); err != nil || taken {
			return "", cmp.Or[error](err, rancher.TakenError(fmt.Sprintf("ClusterGroup %s is that of ClusterClass %q of namespace %q, whose Clusters are in the workspace itself: it selects this Cluster only if that is of the same class; rename the class",
				key, group.Labels[stamp.ClassNameLabel], group.Labels[stamp.ClassNamespaceLabel])))
		}
	}
	class, err := classMetadata(ctx, t.Reader, of.class)
	if err != nil {
		return "", err
	}
	return t.Ensure(ctx, desired.WorkspaceGroup(in, key.Namespace, of.namespace, of.class, class), in.Cluster.PatchResource)
}

// isOfWorkspaceItself reports whether a group of ours is that of a class in the workspace, or of
// Clusters in it. A user can write the labels of a group, so they must agree with what exists.
func (t *targets) isOfWorkspaceItself(ctx context.Context, in settings.Settings, group *fleetv1.ClusterGroup) (bool, error) {
	if group.Labels[stamp.OriginNamespaceLabel] != "" {
		return false, nil
	}
	if class, err := classMetadata(ctx, t.Reader, client.ObjectKeyFromObject(group)); err != nil || class != nil {
		return class != nil, err
	}
	its, err := t.needsOf(ctx, in, group.Namespace)
	return err == nil && its.inUse[client.ObjectKeyFromObject(group)], err
}

// restoreInWorkspace restores a group in a workspace while a Fleet Cluster there is one of its members, and
// deletes the group after that. Tenants can write the labels of a Fleet Cluster: these keep a group, and make none.
func (t *targets) restoreInWorkspace(ctx context.Context, in settings.Settings, key types.NamespacedName) error {
	defer t.groupLocks.Lock(key.String())()
	var group fleetv1.ClusterGroup
	found, err := t.Store.Get(ctx, key, &group)
	if err != nil || !found || !isOfWorkspace(&group) {
		return err
	}
	var members fleetv1.ClusterList
	if err := t.List(ctx, &members, client.InNamespace(key.Namespace), client.MatchingFields{byWorkspaceGroup: key.Name}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if len(members.Items) > 0 {
		_, err := t.applyInWorkspace(ctx, in, key, memberOf(&members.Items[0]))
		return err
	}
	if isAwaited, err := t.isAwaited(ctx, in, &group); err != nil || isAwaited {
		return err
	}
	return t.Delete(ctx, &group)
}

// isOfWorkspace reports whether a group of ours selects attached Clusters.
func isOfWorkspace(group *fleetv1.ClusterGroup) bool {
	return group.Labels[stamp.OriginNamespaceLabel] != "" && stamp.IsOurs(group) && group.DeletionTimestamp.IsZero()
}

// isAwaited reports whether a Cluster is about to be attached to a Fleet Cluster that the group will
// select: the syncer makes the group first.
func (t *targets) isAwaited(ctx context.Context, in settings.Settings, group *fleetv1.ClusterGroup) (bool, error) {
	of := memberOf(group)
	namespace := namespaceMetadata()
	if err := t.Get(ctx, client.ObjectKey{Name: of.namespace}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var clusters clusterv1.ClusterList
	if err := t.List(ctx, &clusters, client.InNamespace(of.namespace), client.MatchingFields{byClass: of.class.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if !in.Cluster.ApplyClassGroup || !isMaker(in, cluster, namespace.Labels) {
			continue
		}
		if its := t.rancher.Relation(ctx, in.Cluster, cluster, namespace.Labels); its.Unknown != nil || its.Way == rancher.Attach && its.Fleet.Namespace == group.Namespace {
			return true, its.Unknown
		}
	}
	return false, nil
}
