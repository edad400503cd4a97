package sync

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// needs are what the Clusters of a namespace need of the objects that Muster makes there: the group and the mapping for
// a class of another namespace, and the annotation on the Namespace.
//
// A maker is a Cluster that is claimed, selected now, neither paused nor being deleted. Muster makes,
// restores and revives the objects that a maker needs. Nothing else is a reason to open one namespace
// to another: tenants write labels and annotations.
//
// A retainer is any object that Fleet may still deploy to through the existing objects: a retained
// Cluster, a Cluster that is yet to be claimed, or a Fleet Cluster. For a retainer, the existing
// objects stay as they are.
type needs struct {
	// made and retained have the uses of makers and of retainers.
	made, retained map[use]bool
	// hasMaker and hasRetainer count Clusters without a use, too.
	hasMaker, hasRetainer bool
	// err is why the objects for a maker may be missing from made. They stay: a maker is a retainer, too.
	err error

	in       settings.Settings
	clusters []clusterv1.Cluster
	// list lists the Fleet Clusters of the namespace. It is called when something exists that no Cluster needs.
	list func() ([]fleetv1.Cluster, error)
	// isListed means that the Fleet Clusters are among the retainers.
	isListed bool
}

// needsOfClusters finds the makers and the retainers among the Clusters of a namespace. It asks isFree about the use of a
// maker, until that fails: whether Muster makes the objects for it.
func needsOfClusters(
	in settings.Settings, labels map[string]string, clusters []clusterv1.Cluster, isFree func(*clusterv1.Cluster) (bool, error),
) *needs {
	n := &needs{made: map[use]bool{}, retained: map[use]bool{}, in: in, clusters: clusters}
	for i := range clusters {
		cluster := &clusters[i]
		used := needOf(cluster)
		if n.hasMaker && (used.isZero() || n.made[used]) {
			continue // It adds nothing, and nearly all Clusters of a namespace are such.
		}
		if !isKeeper(in, cluster, labels) {
			continue
		}
		n.hasRetainer, n.retained[used] = true, true
		if !isMaker(in, cluster, labels) {
			continue
		}
		n.hasMaker = true
		if used.isZero() || n.err != nil {
			continue
		}
		isFree, err := isFree(cluster)
		if n.err = err; isFree {
			n.made[used] = true
		}
	}
	return n
}

// makesGroup reports whether a maker needs a group.
func (n *needs) makesGroup(name string) bool {
	for used := range n.made {
		if used.group().Name == name {
			return true
		}
	}
	return false
}

// makesMapping reports whether a maker needs the mapping from a class namespace.
func (n *needs) makesMapping(classNamespace string) bool {
	for used := range n.made {
		if used.class.Namespace == classNamespace {
			return true
		}
	}
	return false
}

// keepsGroup reports whether an existing group stays.
func (n *needs) keepsGroup(name string) (bool, error) {
	return n.keeps(func(used use) bool { return used.group().Name == name })
}

// keepsMapping reports whether an existing mapping from a class namespace stays.
func (n *needs) keepsMapping(classNamespace string) (bool, error) {
	return n.keeps(func(used use) bool { return used.class.Namespace == classNamespace })
}

// keepsAnnotation reports whether an existing annotation on the Namespace stays.
func (n *needs) keepsAnnotation() (bool, error) {
	if n.hasRetainer {
		return true, nil
	}
	err := n.addFleetClusters()
	return n.hasRetainer, err
}

func (n *needs) keeps(is func(use) bool) (bool, error) {
	isRetained := func() bool {
		for used := range n.retained {
			if !used.isZero() && is(used) {
				return true
			}
		}
		return false
	}
	if isRetained() {
		return true, nil
	}
	err := n.addFleetClusters()
	return isRetained(), err
}

// addFleetClusters adds Fleet Clusters to the retainers if their Cluster exists or they were moved: the applications of a
// moved one stay until a user deletes it.
func (n *needs) addFleetClusters() error {
	if n.isListed {
		return nil
	}
	all, err := n.list()
	if err != nil {
		return err
	}
	n.isListed = true
	has := clusterFinder(n.in, n.clusters)
	for i := range all {
		fleetCluster := &all[i]
		if !stamp.IsOurs(fleetCluster) {
			continue
		}
		used := useOfFleet(fleetCluster)
		if n.hasRetainer && (used.isZero() || n.retained[used]) {
			continue
		}
		if has(fleetCluster) {
			n.hasRetainer, n.retained[used] = true, true
		} else if fleetCluster.Annotations[stamp.ReleasedAnnotation] == "true" {
			n.retained[used] = true
		}
	}
	return nil
}

// clusterFinder returns a function that reports whether the Cluster that a Fleet Cluster was made from is among some. A
// recreated Cluster of the same name is not.
func clusterFinder(in settings.Settings, clusters []clusterv1.Cluster) func(*fleetv1.Cluster) bool {
	byName, byPin, byUID := map[string]*clusterv1.Cluster{}, map[string][]*clusterv1.Cluster{}, map[types.UID]bool{}
	for i := range clusters {
		cluster := &clusters[i]
		byName[cluster.Name], byUID[cluster.UID] = cluster, true
		pin := stamp.PinOf(cluster.Annotations).ClusterName
		byPin[pin] = append(byPin[pin], cluster)
	}
	return func(fleetCluster *fleetv1.Cluster) bool {
		name, candidates := stamp.OriginOf(fleetCluster).Name, []*clusterv1.Cluster(nil)
		if name == "" { // Without owner references, CAAPF records no origin, but gives the Fleet Cluster the expected name.
			name = strings.TrimSuffix(strings.TrimPrefix(fleetCluster.Name, in.Cluster.Prefix), in.Cluster.Suffix)
			candidates = byPin[fleetCluster.Name]
		}
		if named := byName[name]; named != nil && stamp.MayBeFrom(in.Cluster, fleetCluster, name) {
			candidates = append(candidates[:len(candidates):len(candidates)], named)
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
	displaced := map[use]bool{}
	n := needsOfClusters(in, metadata.Labels, clusters.Items, func(cluster *clusterv1.Cluster) (bool, error) {
		used := useOf(cluster)
		isDisplaced, isKnown := displaced[used]
		if !isKnown {
			class, err := t.displacing(ctx, in, used)
			if err != nil {
				return false, err
			}
			isDisplaced = class != ""
			displaced[used] = isDisplaced
		}
		if isDisplaced {
			return false, nil
		}
		// Rancher may manage the Cluster although no annotation says so yet; see needOf.
		its := t.rancher.Relation(ctx, in.Cluster, cluster, metadata.Labels)
		return its.Way == rancher.Import, its.Unknown
	})
	n.list = func() ([]fleetv1.Cluster, error) {
		var all fleetv1.ClusterList
		if err := t.List(ctx, &all, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		return all.Items, nil
	}
	return n, nil
}

// isMoved reports whether a moved Fleet Cluster has a use, past the cache. A deleted group or an emptied mapping makes Fleet
// undeploy, and the cache may show that a Cluster is gone before it shows that its Fleet Cluster was released.
func (t *targets) isMoved(ctx context.Context, namespace string, is func(use) bool) (isMoved bool, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterList"))
	ctx, stop := context.WithCancel(ctx) // One suffices, and the caller holds the lock of the object.
	defer stop()
	if _, err := pager.Each(ctx, t.live, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			live := &fleetv1.Cluster{ObjectMeta: page.Items[i].ObjectMeta}
			used := useOfFleet(live)
			isMoved = isMoved || live.Annotations[stamp.ReleasedAnnotation] == "true" && !used.isZero() && is(used)
		}
		if isMoved {
			stop()
		}
	}, client.InNamespace(namespace), client.HasLabels{stamp.ClassNamespaceLabel}); err != nil && !isMoved {
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

// isKeeper reports whether a Cluster keeps the existing objects: it is claimed, or about to be. CAAPF,
// or Muster before a pin was lost, may have made them. If they were deleted just before their users
// are claimed, Fleet would undeploy.
func isKeeper(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	return stamp.PinOf(cluster.Annotations).IsComplete() ||
		cluster.DeletionTimestamp.IsZero() && isSelected(in, cluster, namespaceLabels)
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
// differs from its Cluster's use while a rebase is under way and while the Cluster is retained: Fleet
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
