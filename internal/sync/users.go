package sync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// users finds the Clusters that need the objects that Muster makes in a namespace: the group and the
// mapping for a class of another namespace, or the annotation on a Namespace that has Clusters. There
// are two kinds of users.
//
// A maker is a Cluster that is claimed, selected now, neither paused nor being deleted. Muster makes,
// restores and revives the objects that a maker needs. Nothing else is a reason to open one namespace
// to another: tenants write labels and annotations.
//
// A retainer is any object that Fleet may still deploy to through the existing objects: a retained
// Cluster, a Cluster that is yet to be claimed, or a Fleet Cluster. For a retainer, the existing
// objects stay as they are.
type users struct {
	client.Reader
	live    client.Reader // past the cache
	store   *kube.Store
	rancher *rancher

	mu sync.Mutex
	// known holds the last answer to each question, a Cluster. Thousands of Clusters may be the
	// answer, and each event asks: reading one is enough.
	known map[question]string
}

func newUsers(reader, live client.Reader, store *kube.Store) *users {
	return &users{Reader: reader, live: live, store: store, known: map[question]string{}}
}

// subset specifies which Clusters of a namespace a question is about: those whose use has a value in
// an index that Clusters and Fleet Clusters share. The empty subset means all of them.
type subset struct{ index, value string }

func ofGroup(name string) subset          { return subset{byGroup, name} }
func ofClassesIn(namespace string) subset { return subset{byClassNamespace, namespace} }
func (s subset) holds(used use) bool {
	return s.index == "" || slices.Contains(indexed(used)[s.index], s.value)
}
func (s subset) options() []client.ListOption {
	if s.index == "" {
		return nil
	}
	return []client.ListOption{client.MatchingFields{s.index: s.value}}
}

type question struct {
	of        string
	namespace string
	subset    subset
}

// maker returns the use of a maker in the namespace; zero if there is no maker, or if it uses no class
// of another namespace.
func (u *users) maker(ctx context.Context, in settings.Settings, namespace string, about subset) (use, error) {
	maker, err := u.find(ctx, question{"maker", namespace, about}, func(cluster *clusterv1.Cluster, labels map[string]string) (bool, error) {
		return u.makes(ctx, in, cluster, labels)
	})
	if err != nil || maker == nil {
		return use{}, err
	}
	return useOf(maker), nil
}

// makes reports whether a Cluster is a maker and the name of its group is free.
func (u *users) makes(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) (bool, error) {
	if !isMaker(in, cluster, namespaceLabels) {
		return false, nil
	}
	// Rancher may manage the Cluster although no annotation says so yet; see needOf.
	if beside, err := u.rancher.beside(ctx, in.Cluster, cluster, namespaceLabels); err != nil || beside.Way != stamp.Import {
		return false, err
	}
	displaced, err := u.displacing(ctx, in, useOf(cluster))
	return displaced == "", err
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

// displacing returns the name of the ClusterClass, in the Clusters' namespace, whose own group has the
// name of the group that a use needs: class "std.classes" of a namespace, and class "std" of namespace
// "classes" used there. Fleet would target one through the other.
func (u *users) displacing(ctx context.Context, in settings.Settings, used use) (string, error) {
	if used.isZero() || !in.Cluster.ApplyClassGroup {
		return "", nil
	}
	class, err := classMetadata(ctx, u.Reader, used.group())
	if err != nil || class == nil {
		return "", err
	}
	return class.Name, nil
}

// retainer reports whether a Cluster or Fleet Cluster in the namespace retains the existing objects.
func (u *users) retainer(ctx context.Context, in settings.Settings, namespace string, about subset) (bool, error) {
	retainer, err := u.find(ctx, question{"retainer", namespace, about}, func(cluster *clusterv1.Cluster, labels map[string]string) (bool, error) {
		return isKeeper(in, cluster, labels), nil
	})
	if err != nil || retainer != nil {
		return retainer != nil, err
	}
	return u.anyFleetCluster(ctx, namespace, about, func(cached *fleetv1.Cluster) (bool, error) { return u.keeps(ctx, in, cached) })
}

// retainerOrMoved is retainer for a caller that is about to delete or to empty an object, which makes
// Fleet undeploy. The cache may show that a Cluster is gone before it shows that its Fleet Cluster was
// released, so before the answer is no, retainerOrMoved asks the API server.
func (u *users) retainerOrMoved(ctx context.Context, in settings.Settings, namespace string, about subset) (bool, error) {
	if keeps, err := u.retainer(ctx, in, namespace, about); err != nil || keeps {
		return keeps, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterList"))
	which, isMoved := client.ListOption(client.HasLabels{stamp.ClassNamespaceLabel}), false
	if about.index == byClassNamespace {
		which = client.MatchingLabels{stamp.ClassNamespaceLabel: about.value}
	}
	ctx, stop := context.WithCancel(ctx) // One suffices, and the caller holds the lock of the object.
	defer stop()
	if _, err := pager.Each(ctx, u.live, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			live := &fleetv1.Cluster{ObjectMeta: page.Items[i].ObjectMeta}
			isMoved = isMoved || live.Annotations[stamp.ReleasedAnnotation] == "true" && about.holds(useOfFleet(live))
		}
		if isMoved {
			stop()
		}
	}, client.InNamespace(namespace), which); err != nil && !isMoved {
		return false, fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	return isMoved, nil
}

// anyFleetCluster reports whether any Fleet Cluster of a namespace matches.
func (u *users) anyFleetCluster(ctx context.Context, namespace string, about subset, is func(*fleetv1.Cluster) (bool, error)) (bool, error) {
	var list fleetv1.ClusterList
	return u.walk(ctx, namespace, about, &list, func() (bool, error) {
		for i := range list.Items {
			if found, err := is(&list.Items[i]); err != nil || found {
				return found, err
			}
		}
		return false, nil
	})
}

// isKeeper reports whether a Cluster keeps the existing objects: it is claimed, or about to be. CAAPF,
// or Muster before a pin was lost, may have made them. If they were deleted just before their users
// are claimed, Fleet would undeploy.
func isKeeper(in settings.Settings, cluster *clusterv1.Cluster, namespaceLabels map[string]string) bool {
	return stamp.PinOf(cluster.Annotations).IsComplete() ||
		cluster.DeletionTimestamp.IsZero() && isSelected(in, cluster, namespaceLabels)
}

// keeps reports whether a Fleet Cluster from the cache still uses a class: the syncer has not just
// relabelled it, and the Cluster that it was made from exists or was moved.
func (u *users) keeps(ctx context.Context, in settings.Settings, cached *fleetv1.Cluster) (bool, error) {
	var current fleetv1.Cluster
	found, err := u.store.Get(ctx, client.ObjectKeyFromObject(cached), &current)
	if err != nil || !found || useOfFleet(&current) != useOfFleet(cached) {
		return false, err
	}
	if current.Annotations[stamp.ReleasedAnnotation] == "true" {
		return true, nil // Moved: its applications must stay until a user deletes it.
	}
	return u.hasCluster(ctx, in, &current)
}

// hasCluster reports whether the Cluster that a Fleet Cluster was made from exists. A recreated
// Cluster of the same name does not count.
func (u *users) hasCluster(ctx context.Context, in settings.Settings, fleetCluster *fleetv1.Cluster) (bool, error) {
	candidates, err := u.candidates(ctx, in, fleetCluster)
	if err != nil {
		return false, err
	}
	for i := range candidates {
		relation, _ := stamp.RelationOf(fleetCluster, &candidates[i], func(_ string, uid types.UID) bool {
			return u.hasUID(ctx, fleetCluster.Namespace, uid)
		})
		if relation == stamp.Own {
			return true, nil
		}
	}
	return false, nil
}

// candidates returns the Clusters that a Fleet Cluster may come from. Without owner references, CAAPF
// records no origin, but gives the Fleet Cluster the expected name.
func (u *users) candidates(ctx context.Context, in settings.Settings, fleetCluster *fleetv1.Cluster) ([]clusterv1.Cluster, error) {
	name := stamp.OriginOf(fleetCluster).Name
	var list clusterv1.ClusterList
	if name == "" {
		name = strings.TrimSuffix(strings.TrimPrefix(fleetCluster.Name, in.Cluster.Prefix), in.Cluster.Suffix)
		if err := u.List(ctx, &list, client.InNamespace(fleetCluster.Namespace), client.MatchingFields{byPin: fleetCluster.Name}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing Clusters: %w", err)
		}
	}
	var cluster clusterv1.Cluster
	if err := u.Get(ctx, types.NamespacedName{Namespace: fleetCluster.Namespace, Name: name}, &cluster, client.UnsafeDisableDeepCopy); err != nil {
		return list.Items, client.IgnoreNotFound(err)
	}
	if stamp.MayBeFrom(in.Cluster, fleetCluster, cluster.Name) {
		list.Items = append(list.Items, cluster)
	}
	return list.Items, nil
}

// hasUID reports whether a Cluster of the namespace has the UID. The syncer calls it only for a Fleet
// Cluster that is forged, or that an earlier Cluster left behind.
func (u *users) hasUID(ctx context.Context, namespace string, uid types.UID) bool {
	var list clusterv1.ClusterList
	if err := u.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{byUID: string(uid)}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return true // In doubt, nothing is taken over.
	}
	return len(list.Items) > 0
}

// forget drops the answers about a deleted namespace.
func (u *users) forget(namespace string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.known, func(asked question, _ string) bool { return asked.namespace == namespace })
}

// find returns a Cluster of a namespace that matches, read-only; nil if there is none. The predicate
// gets the labels of the Namespace. A Namespace that is not in the cache has none, and its Clusters
// are reconciled again later.
func (u *users) find(ctx context.Context, asked question, is func(*clusterv1.Cluster, map[string]string) (bool, error)) (found *clusterv1.Cluster, err error) {
	metadata := namespaceMetadata()
	if err := u.Get(ctx, types.NamespacedName{Name: asked.namespace}, metadata, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	u.mu.Lock()
	known := u.known[asked]
	u.mu.Unlock()
	if known != "" {
		var cluster clusterv1.Cluster
		switch err := u.Get(ctx, types.NamespacedName{Namespace: asked.namespace, Name: known}, &cluster, client.UnsafeDisableDeepCopy); {
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("reading Cluster: %w", err)
		case err == nil && asked.subset.holds(needOf(&cluster)):
			if is, err := is(&cluster, metadata.Labels); err != nil || is {
				return &cluster, err
			}
		}
	}
	var list clusterv1.ClusterList
	_, err = u.walk(ctx, asked.namespace, asked.subset, &list, func() (bool, error) {
		for i := range list.Items {
			if is, err := is(&list.Items[i], metadata.Labels); err != nil || is {
				found = &list.Items[i]
				return is, err
			}
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if found == nil {
		delete(u.known, asked)
	} else {
		u.known[asked] = found.Name
	}
	return found, nil
}

// few is how many objects are read before all are listed. Nearly every Cluster matches, and a list of
// thousands costs as much as many reads.
const few = 8

// walk lists the objects of a namespace, first a few, then all, until one matches.
func (u *users) walk(ctx context.Context, namespace string, about subset, list client.ObjectList, found func() (bool, error)) (bool, error) {
	options := append(about.options(), client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	for _, limit := range []client.Limit{few, 0} {
		if err := u.List(ctx, list, append(options[:len(options):len(options)], limit)...); err != nil {
			return false, fmt.Errorf("listing %T: %w", list, err)
		}
		if found, err := found(); err != nil || found {
			return found, err
		}
		if meta.LenList(list) < few {
			break
		}
	}
	return false, nil
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
	if stamp.ManagementNotedOn(cluster) != "" {
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
