package sync

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// byWorkspaceGroup indexes Fleet Clusters by the ClusterGroup, in Rancher's workspace, that selects them.
const byWorkspaceGroup = "muster.workspaceGroup"

// newRancherOf returns a reader of Rancher's objects with caches of its own, which hold them only while Rancher's CRD
// exists.
func newRancherOf(ctx context.Context, c *common, options cache.Options) *rancher {
	namespaces := options.DefaultNamespaces
	options.DefaultTransform, options.DefaultNamespaces = trimRancher, nil
	reader := newRancher(ctx, c.GetClient(), kinds.CachesOf(c.Manager, options))
	reader.namespaces = namespaces
	return reader
}

// attachedTo indexes Fleet Clusters by the Cluster that is attached to them.
func attachedTo(object client.Object) []string {
	if !stamp.IsAttached(object) {
		return nil
	}
	return []string{object.GetAnnotations()[stamp.AttachedAnnotation]}
}

// byRancherOf indexes Fleet Clusters of Rancher's by their management Cluster, and CAPI Clusters by the
// one that manages them or has managed them.
func byRancherOf(object client.Object) []string {
	if _, isFleets := object.(*fleetv1.Cluster); isFleets {
		return nonEmpty(object.GetLabels()[stamp.RancherClusterLabel])
	}
	return nonEmpty(stamp.ManagementNotedOn(object))
}

// ownerOf indexes management Clusters by the CAPI Cluster that their labels name.
func ownerOf(object client.Object) []string { return nonEmpty(managementOf(object).Owner.String()) }

// managementNameOf indexes provisioning Clusters by their management Cluster.
func managementNameOf(object client.Object) []string {
	return nonEmpty(provisioningOf(object).Management)
}

// membership specifies the Clusters that a group in a workspace selects: the Clusters of a namespace
// that use a class.
type membership struct {
	class  types.NamespacedName
	origin string
}

// membershipOf returns the membership in the labels of a Fleet Cluster or a group; zero for none.
func membershipOf(object client.Object) membership {
	labels := object.GetLabels()
	of := membership{types.NamespacedName{Namespace: labels[stamp.ClassNamespaceLabel], Name: labels[stamp.ClassNameLabel]}, labels[stamp.OriginNamespaceLabel]}
	if full := object.GetAnnotations()[stamp.ClassFullNameAnnotation]; full != "" {
		of.class.Name = full
	}
	if of.class.Name == "" || of.class.Namespace == "" || of.origin == "" {
		return membership{}
	}
	return of
}

func (m membership) group() string {
	if m == (membership{}) {
		return ""
	}
	return stamp.WorkspaceGroupName(m.class, m.origin)
}

func workspaceGroupOf(object client.Object) []string {
	if !stamp.IsAttached(object) {
		return nil
	}
	return nonEmpty(membershipOf(object).group())
}

// ensureInWorkspace makes the group that selects the attached Clusters of a namespace and a class, and
// returns its UID.
func (t *targets) ensureInWorkspace(ctx context.Context, in settings.Settings, workspace, origin string, class types.NamespacedName) (types.UID, error) {
	if class.Name == "" || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	of := membership{class, origin}
	key := types.NamespacedName{Namespace: workspace, Name: of.group()}
	defer t.lock(key)()
	return t.keepInWorkspace(ctx, in, workspace, of)
}

// groupTakenError means that the workspace has Clusters, or a class, of its own whose group has the
// same name.
type groupTakenError struct{ group *fleetv1.ClusterGroup }

func (e *groupTakenError) Error() string {
	return fmt.Sprintf("ClusterGroup %s is that of ClusterClass %q of namespace %q, whose Clusters are in the workspace itself: it selects this Cluster only if that is of the same class; rename the class",
		client.ObjectKeyFromObject(e.group), e.group.Labels[stamp.ClassNameLabel], e.group.Labels[stamp.ClassNamespaceLabel])
}

func (t *targets) keepInWorkspace(ctx context.Context, in settings.Settings, workspace string, of membership) (types.UID, error) {
	var group fleetv1.ClusterGroup
	found, err := t.Store.Get(ctx, types.NamespacedName{Namespace: workspace, Name: of.group()}, &group)
	if err != nil {
		return "", err
	}
	if found && stamp.IsOurs(&group) {
		if taken, err := t.isOfWorkspaceItself(ctx, in, &group); err != nil || taken {
			return "", cmp.Or[error](err, &groupTakenError{&group})
		}
	}
	class, err := classMetadata(ctx, t.Reader, of.class)
	if err != nil {
		return "", err
	}
	return t.Keep(ctx, desired.WorkspaceGroup(in, workspace, of.origin, of.class, class), in.Cluster.PatchResource)
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
	if err != nil {
		return false, err
	}
	return its.keepsGroup(group.Name)
}

// keepOfWorkspace keeps a group in a workspace while a Fleet Cluster there is one of its members, and
// deletes the group after that. Tenants can write the labels of a Fleet Cluster: these keep a group, and make none.
func (t *targets) keepOfWorkspace(ctx context.Context, in settings.Settings, key types.NamespacedName) error {
	defer t.lock(key)()
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
		_, err := t.keepInWorkspace(ctx, in, key.Namespace, membershipOf(&members.Items[0]))
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
	of := membershipOf(group)
	namespace := namespaceMetadata()
	if err := t.Get(ctx, client.ObjectKey{Name: of.origin}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var clusters clusterv1.ClusterList
	if err := t.List(ctx, &clusters, client.InNamespace(of.origin), client.MatchingFields{byClass: of.class.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if !in.Cluster.ApplyClassGroup || !isMaker(in, cluster, namespace.Labels) {
			continue
		}
		if beside, err := t.rancher.beside(ctx, in.Cluster, cluster, namespace.Labels); err != nil || beside.Way == stamp.Attach && beside.Fleet.Namespace == group.Namespace {
			return err == nil, err
		}
	}
	return false, nil
}

// attachedCluster returns the CAPI Cluster that a Fleet Cluster says it is attached to; zero for none.
func attachedCluster(object client.Object) types.NamespacedName {
	namespace, name, _ := strings.Cut(object.GetAnnotations()[stamp.AttachedAnnotation], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// rancherFleetCluster passes Rancher's Fleet Clusters, and those that were Rancher's until now.
var rancherFleetCluster = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return isRanchers(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool { return isRanchers(e.ObjectOld) || isRanchers(e.ObjectNew) },
	DeleteFunc: func(e event.DeleteEvent) bool { return isRanchers(e.Object) },
}

func isRanchers(object client.Object) bool {
	return object.GetLabels()[stamp.RancherClusterLabel] != ""
}

// clustersOfFleetCluster returns the CAPI Clusters that a Fleet Cluster of Rancher concerns.
func (r *rancher) clustersOfFleetCluster(ctx context.Context, object client.Object) []reconcile.Request {
	read := &rancherObjects{r, ctx, nil}
	keys := read.concernedBy(object.GetLabels()[stamp.RancherClusterLabel])
	keys[attachedCluster(object)] = true
	var result []reconcile.Request
	for key := range keys {
		result = append(result, requests(key)...)
	}
	return result
}
