package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// workspaceAnnotation lets Rancher turn an existing namespace into a Fleet workspace.
const workspaceAnnotation = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"

// namespaceReconciler keeps what Muster makes for all Clusters of a namespace: the groups of its classes and of the
// classes of other namespaces that Clusters use, the mappings to it, and the annotation on the Namespace.
type namespaceReconciler struct {
	client.Client
	targets  *targets
	settings *settings.Reader
	// namespaces is what the flag --namespace names; empty for all.
	namespaces map[string]cache.Config
}

// setUp registers the events that wake the reconciler. Those of Clusters, of which there may be thousands, are collected.
func (r *namespaceReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("namespace").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		WatchesMetadata(namespaceMetadata(), enqueue(itself), builder.WithPredicates(kube.News)).
		Watches(&clusterv1.Cluster{}, collected(namespaceOf, passInterval), builder.WithPredicates(specOrLabels)).
		Watches(&fleetv1.Cluster{}, collected(namespaceOf, passInterval), builder.WithPredicates(useNews)).
		Watches(&fleetv1.ClusterGroup{}, enqueue(namespaceOf), builder.WithPredicates(kube.News)).
		Watches(&fleetv1.BundleNamespaceMapping{}, enqueue(namespaceOfMapping), builder.WithPredicates(kube.News)).
		WatchesMetadata(newClass(), enqueue(c.events.namespacesOfClass), builder.WithPredicates(watched(c.WatchFilter), kube.News)).
		Watches(&addonsv1.FleetAddonConfig{}, enqueue(c.events.allNamespaces), builder.WithPredicates(settingsNews)).
		WatchesRawSource(source.Channel(c.rancher.Listed, enqueue(c.events.allNamespaces))).
		Complete(kube.Consistent(r))
}

// namespaceOf returns the namespace of an object, as the key of a Namespace.
func namespaceOf(_ context.Context, object client.Object) []reconcile.Request {
	return requests(types.NamespacedName{Name: object.GetNamespace()})
}

// namespaceOfMapping returns the namespace of the Clusters that a mapping is for.
func namespaceOfMapping(_ context.Context, mapping client.Object) []reconcile.Request {
	return requests(types.NamespacedName{Name: mapping.GetName()})
}

// Reconcile restores what the Clusters of one namespace need, and removes what none needs. What fails stops none of the others.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	current, err := r.settings.Current(ctx)
	if err != nil || current.Invalid != nil {
		return ctrl.Result{}, err
	}
	in, namespace := current.Settings, req.Name
	if !rancher.Reads(r.namespaces, namespace) {
		return ctrl.Result{}, nil
	}
	failed := []error{r.classGroups(ctx, in, namespace)}
	if !in.Cluster.Enabled { // Existing objects stay as they are.
		return ctrl.Result{}, errors.Join(failed...)
	}
	its, err := r.targets.needsOf(ctx, in, namespace)
	if err != nil {
		return ctrl.Result{}, errors.Join(append(failed, err)...)
	}
	failed = append(failed, r.groups(ctx, in, namespace, its), r.annotate(ctx, namespace, its))
	after, err := r.mappings(ctx, in, namespace, its)
	failed = append(failed, err)
	if !errors.Is(its.err, rancher.ErrUnlisted) { // Otherwise the end of the list wakes the namespace.
		failed = append(failed, its.err)
	}
	if err = errors.Join(failed...); err != nil && after > 0 && !errors.Is(err, kube.ErrBehind) {
		ctrl.LoggerFrom(ctx).Error(err, "An object of a namespace stays as it is; it is tried again")
		err = nil
	}
	return ctrl.Result{RequeueAfter: after}, err
}

// classGroups restores the groups of the classes of a namespace.
func (r *namespaceReconciler) classGroups(ctx context.Context, in settings.Settings, namespace string) error {
	classes := classMetadataList()
	if err := r.List(ctx, classes, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ClusterClasses: %w", err)
	}
	var failed []error
	for i := range classes.Items {
		// The conditions of the Clusters report a foreign object.
		_, err := r.targets.ensureGroup(ctx, in, namespace, client.ObjectKeyFromObject(&classes.Items[i]))
		failed = append(failed, kube.IgnoreForeign(err))
	}
	return errors.Join(failed...)
}

// groups restores the groups for classes of other namespaces, and deletes unused groups. A group whose class exists is in use.
func (r *namespaceReconciler) groups(ctx context.Context, in settings.Settings, namespace string, its *needs) error {
	var failed []error
	if in.Cluster.ApplyClassGroup {
		for used := range its.makers {
			_, err := r.targets.ensureGroup(ctx, in, namespace, used.class)
			failed = append(failed, kube.IgnoreForeign(err))
		}
	}
	var groups fleetv1.ClusterGroupList
	if err := r.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return errors.Join(append(failed, fmt.Errorf("listing ClusterGroups: %w", err))...)
	}
	for i := range groups.Items {
		group := &groups.Items[i]
		switch key := client.ObjectKeyFromObject(group); {
		case isOfWorkspace(group):
			failed = append(failed, kube.IgnoreForeign(r.targets.restoreInWorkspace(ctx, in, key)))
		case !in.Cluster.ApplyClassGroup || !its.inUse[key]:
			failed = append(failed, r.targets.removeGroup(ctx, in, key))
		}
	}
	return errors.Join(failed...)
}

// mappings restores the mappings to a namespace, retires unused ones, and returns when to look again.
func (r *namespaceReconciler) mappings(ctx context.Context, in settings.Settings, namespace string, its *needs) (after time.Duration, err error) {
	var mappings fleetv1.BundleNamespaceMappingList
	if err := r.List(ctx, &mappings, client.MatchingFields{byMapped: namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("listing BundleNamespaceMappings: %w", err)
	}
	wanted := map[types.NamespacedName]bool{}
	for _, key := range in.Mappings { // An administrator asks for them. They are into a workspace of Rancher.
		if key.Name == namespace && rancher.Reads(r.namespaces, key.Namespace) {
			wanted[key] = true
		}
	}
	if in.Cluster.ApplyClassGroup {
		for used := range its.makers {
			wanted[used.mapping()] = true
		}
	}
	var failed []error
	add := func(again time.Duration, err error) {
		after, failed = kube.Sooner(after, again), append(failed, kube.IgnoreForeign(err))
	}
	for key := range wanted { // First what is needed: to retire a mapping takes long.
		add(r.targets.restoreMapping(ctx, in, key))
	}
	for i := range mappings.Items {
		if key := client.ObjectKeyFromObject(&mappings.Items[i]); stamp.IsOurs(&mappings.Items[i]) && !wanted[key] {
			wanted[key] = true
			add(r.targets.removeMapping(ctx, in, key, its))
		}
	}
	r.targets.forgetAllBut(namespace, wanted)
	return after, errors.Join(failed...)
}

// annotate sets or removes the annotation on a Namespace: it is set for a maker, and stays for a user. Nothing waits for
// it: only Rancher reads it, and a refusal by a policy or RBAC is logged and otherwise ignored.
func (r *namespaceReconciler) annotate(ctx context.Context, name string, its *needs) error {
	namespace := namespaceMetadata()
	if err := r.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy); err != nil || !namespace.DeletionTimestamp.IsZero() {
		return client.IgnoreNotFound(err)
	}
	_, has := namespace.Annotations[workspaceAnnotation]
	value := `"true"`
	switch {
	case its.hasMaker == has, has && (its.hasUser || !stamp.IsManager(namespace)):
		return nil
	case has:
		value = "null"
	}
	// A merge patch, not an apply: an apply would recreate a Namespace that has just been
	// deleted.
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, workspaceAnnotation, value)
	namespace = namespace.DeepCopy()
	err := r.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(stamp.FieldManager))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		ctrl.LoggerFrom(ctx).Info("The Namespace may not be annotated, so Rancher makes no workspace of it; nothing else depends on it",
			"namespace", name, "reason", err.Error())
		return nil
	}
	return client.IgnoreNotFound(err)
}

// namespaceMetadata returns an empty Namespace, for reading and caching only its metadata.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

// needs are what the Clusters of a namespace need of the objects that Muster makes there: the group and the mapping for
// a class of another namespace, and the annotation on the Namespace.
//
// A maker is a Cluster that is claimed, selected now, neither paused nor being deleted. Muster makes,
// restores and revives the objects that a maker needs. Nothing else is a reason to open one namespace
// to another: tenants write labels and annotations.
//
// A user is any object that Fleet may still deploy to through the existing objects: a maker, a deselected
// Cluster, a Cluster that is yet to be claimed, or a Fleet Cluster. For a user, the existing
// objects stay as they are.
type needs struct {
	// makers has the uses of makers.
	makers map[use]bool
	// inUse has the keys of the groups and mappings that stay. A mapping is never in the namespace of the Clusters.
	inUse map[types.NamespacedName]bool
	// hasMaker and hasUser count Clusters without a use, too.
	hasMaker, hasUser bool
	// err is why the objects for a maker may be missing from makers. They stay: a maker is a user, too.
	err error
}

// findNeeds finds the makers and the users among the Clusters and the Fleet Clusters of a namespace. It asks isFree
// about the use of a maker, until that fails: whether Muster makes the objects for it.
func findNeeds(
	in settings.Settings, labels map[string]string, clusters []clusterv1.Cluster, fleetClusters []fleetv1.Cluster,
	isFree func(*clusterv1.Cluster) (bool, error),
) *needs {
	n := &needs{makers: map[use]bool{}, inUse: map[types.NamespacedName]bool{}}
	uses := map[use]bool{}
	n.addClusters(uses, in, labels, clusters, isFree)
	n.addFleetClusters(uses, in, clusters, fleetClusters)
	for used := range uses {
		n.inUse[used.group()], n.inUse[used.mapping()] = true, true
	}
	return n
}

// addClusters adds the makers, and the uses of the users.
func (n *needs) addClusters(
	uses map[use]bool, in settings.Settings, labels map[string]string, clusters []clusterv1.Cluster, isFree func(*clusterv1.Cluster) (bool, error),
) {
	for i := range clusters {
		cluster := &clusters[i]
		used := needOf(cluster)
		if n.hasMaker && (used.isZero() || n.makers[used]) {
			continue // It adds nothing, and nearly all Clusters of a namespace are such.
		}
		// CAAPF, or Muster before a pin was lost, may have made the objects of a Cluster that is about to be claimed. If
		// they were deleted just before, Fleet would undeploy.
		if !stamp.PinOf(cluster.Annotations).IsComplete() && (!cluster.DeletionTimestamp.IsZero() || !isSelected(in, cluster, labels)) {
			continue
		}
		n.hasUser, uses[used] = true, true
		if !isMaker(in, cluster, labels) {
			continue
		}
		n.hasMaker = true
		if used.isZero() || n.err != nil {
			continue
		}
		isFree, err := isFree(cluster)
		if n.err = err; isFree {
			n.makers[used] = true
		}
	}
}

// addFleetClusters adds the uses of Fleet Clusters whose Cluster exists or that were moved: the applications of a moved one
// stay until a user deletes it.
func (n *needs) addFleetClusters(uses map[use]bool, in settings.Settings, clusters []clusterv1.Cluster, fleetClusters []fleetv1.Cluster) {
	has := gosync.OnceValue(func() func(*fleetv1.Cluster) bool { return clusterFinder(in, clusters) }) // Seldom needed.
	for i := range fleetClusters {
		fleetCluster := &fleetClusters[i]
		used := useOfFleet(fleetCluster)
		switch {
		case !stamp.IsOurs(fleetCluster), n.hasUser && (used.isZero() || uses[used]):
		case has()(fleetCluster):
			n.hasUser, uses[used] = true, true
		case fleetCluster.Annotations[stamp.ReleasedAnnotation] == "true":
			uses[used] = true
		}
	}
}

// clusterFinder returns a function that reports whether the Cluster that a Fleet Cluster was made from is among some. A
// recreated Cluster of the same name is not.
func clusterFinder(in settings.Settings, clusters []clusterv1.Cluster) func(*fleetv1.Cluster) bool {
	byName, byFleetName, byUID := map[string][]*clusterv1.Cluster{}, map[string][]*clusterv1.Cluster{}, map[types.UID]bool{}
	for i := range clusters {
		cluster := &clusters[i]
		byName[cluster.Name], byUID[cluster.UID] = []*clusterv1.Cluster{cluster}, true
		for _, name := range []string{in.Cluster.Prefix + cluster.Name + in.Cluster.Suffix, stamp.PinOf(cluster.Annotations).ClusterName} {
			byFleetName[name] = append(byFleetName[name], cluster)
		}
	}
	return func(fleetCluster *fleetv1.Cluster) bool {
		origin := stamp.OriginOf(fleetCluster).Name
		candidates := byName[origin]
		if origin == "" { // Without owner references, CAAPF records no origin, but gives the Fleet Cluster the expected name.
			candidates = byFleetName[fleetCluster.Name]
		}
		return slices.ContainsFunc(candidates, func(cluster *clusterv1.Cluster) bool {
			relation, _ := stamp.RelationOf(fleetCluster, cluster, func(_ string, uid types.UID) bool { return byUID[uid] })
			return relation == stamp.Own
		})
	}
}

// needsOf reads the needs of a namespace from the cache. It may show that a Fleet Cluster has the labels of before: then
// objects stay until its event.
func (t *targets) needsOf(ctx context.Context, in settings.Settings, namespace string) (*needs, error) {
	metadata := namespaceMetadata()
	// A Namespace that is not in the cache has no labels, and its Clusters are reconciled again later.
	if err := t.Get(ctx, types.NamespacedName{Name: namespace}, metadata, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	var clusters clusterv1.ClusterList
	if err := t.List(ctx, &clusters, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	var fleetClusters fleetv1.ClusterList
	if err := t.List(ctx, &fleetClusters, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	return findNeeds(in, metadata.Labels, clusters.Items, fleetClusters.Items, func(cluster *clusterv1.Cluster) (bool, error) {
		if class, err := t.groupOwner(ctx, in, useOf(cluster)); err != nil || class != "" {
			return false, err
		}
		// Rancher may manage the Cluster although no annotation says so yet; see needOf.
		its := t.rancher.Relation(ctx, in.Cluster, cluster, metadata.Labels)
		return its.Way == rancher.Import, its.Unknown
	}), nil
}

// isNeeded reports whether anything needs an existing group or mapping of the Clusters of a namespace. The caller holds its
// lock: a Cluster may have made it since the last look.
func (t *targets) isNeeded(ctx context.Context, in settings.Settings, namespace string, key types.NamespacedName) (bool, error) {
	its, err := t.needsOf(ctx, in, namespace)
	if err != nil || its.inUse[key] {
		return err == nil, err
	}
	return t.isMoved(ctx, namespace, key)
}

// isMoved reports whether a moved Fleet Cluster needs a group or mapping, past the cache. A deleted group or an emptied
// mapping makes Fleet undeploy, and the cache may show that a Cluster is gone before it shows that its Fleet Cluster was released.
func (t *targets) isMoved(ctx context.Context, namespace string, key types.NamespacedName) (isMoved bool, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterList"))
	ctx, stop := context.WithCancel(ctx) // One suffices, and the caller holds the lock of the object.
	defer stop()
	if _, err := pager.Each(ctx, t.live, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			live := &fleetv1.Cluster{ObjectMeta: page.Items[i].ObjectMeta}
			used := useOfFleet(live)
			isMoved = isMoved || live.Annotations[stamp.ReleasedAnnotation] == "true" && (used.group() == key || used.mapping() == key)
		}
		if isMoved {
			stop()
		}
	}, client.InNamespace(namespace), client.HasLabels{stamp.ClassNamespaceLabel}, pager.Small); err != nil && !isMoved {
		return false, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	return isMoved, nil
}

// isMaker reports whether a Cluster is claimed, selected now, neither paused nor being deleted.
func isMaker(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	return stamp.PinOf(cluster.Annotations).IsComplete() && cluster.DeletionTimestamp.IsZero() &&
		!capiannotations.IsPaused(cluster, cluster) && isSelected(in, cluster, namespaceLabels)
}

func isSelected(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	selected, _ := stamp.SubjectOf(cluster, namespaceLabels).IsSelected(in.Cluster)
	return selected
}

// use means that Clusters of a namespace use a class of another namespace. Muster makes a ClusterGroup
// and a BundleNamespaceMapping for it.
type use struct {
	namespace string
	class     types.NamespacedName
}

// group returns the key of the ClusterGroup that a use needs, in the namespace of the Clusters; zero
// for no use.
func (u use) group() types.NamespacedName {
	if u.isZero() {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: u.namespace, Name: stamp.GroupName(u.class.Name, u.class.Namespace)}
}

// mapping returns the key of the BundleNamespaceMapping that a use needs, in the namespace of the
// class.
func (u use) mapping() types.NamespacedName {
	return types.NamespacedName{Namespace: u.class.Namespace, Name: u.namespace}
}

// isZero reports whether no class of another namespace is used.
func (u use) isZero() bool { return u == use{} }

// useOf returns which class of another namespace a Cluster names in its topology. Muster makes objects
// for that use only if the Cluster is selected and claimed.
func useOf(cluster *clusterv1.Cluster) use {
	return crossNamespace(cluster.Namespace, cluster.GetClassKey())
}

// needOf returns the use for which a Cluster needs objects in its own namespace. A Cluster that Rancher
// manages needs none, since its group is in a workspace of Rancher's.
func needOf(cluster *clusterv1.Cluster) use {
	if rancher.NotedOn(cluster) != "" {
		return use{}
	}
	return useOf(cluster)
}

// useOfFleet returns the class of another namespace by which a Fleet Cluster of ours is grouped. It
// differs from its Cluster's use while a rebase is under way and while the Cluster is deselected: Fleet
// deploys by the labels of the Fleet Cluster.
//
// Tenants may write these labels, so they prove nothing: they keep existing objects, and make none.
func useOfFleet(cluster *fleetv1.Cluster) use {
	if !stamp.IsOurs(cluster) {
		return use{}
	}
	class := types.NamespacedName{
		Namespace: cluster.Labels[stamp.ClassNamespaceLabel],
		Name:      cluster.Labels[stamp.ClassNameLabel],
	}
	if full := cluster.Annotations[stamp.ClassFullNameAnnotation]; full != "" {
		class.Name = full
	}
	return crossNamespace(cluster.Namespace, class)
}

func crossNamespace(namespace string, class types.NamespacedName) use {
	if class.Name == "" || class.Namespace == "" || class.Namespace == namespace {
		return use{}
	}
	return use{namespace, class}
}
