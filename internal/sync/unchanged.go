package sync

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/observed"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// digests are of what the last look at each imported Cluster read, if it left nothing to do.
// As long as a digest is the same, there is nothing to do: a change to a class or a
// FleetAddonConfig wakes thousands of Clusters, and most looks find nothing.
type digests struct {
	client.Reader
	store   *observed.Store
	sources *sources.Sources
	seed    maphash.Seed

	mu    sync.Mutex
	known map[types.NamespacedName]uint64
}

func newDigests(cache client.Reader, store *observed.Store, sources *sources.Sources) *digests {
	return &digests{Reader: cache, store: store, sources: sources, seed: maphash.MakeSeed(), known: map[types.NamespacedName]uint64{}}
}

// of returns the digest of what a look at a Cluster would read now, and whether it equals the
// last look's. Zero stands for a Cluster about which more would have to be read.
func (d *digests) of(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster) (digest uint64, isKnown bool) {
	digest = d.sum(ctx, in, cluster)
	key := client.ObjectKeyFromObject(cluster)
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.known[key]; ok && known == digest {
		return digest, true
	}
	// Until the look is over nothing is known: what it writes is not in the cache at once.
	delete(d.known, key)
	return digest, false
}

// note keeps the digest of a finished look that found nothing to do. It was taken before the
// look, which may or may not have read what has changed since.
func (d *digests) note(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster, digest uint64) {
	if digest == 0 || d.sum(ctx, in, cluster) != digest {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[client.ObjectKeyFromObject(cluster)] = digest
}

func (d *digests) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, key)
}

// sum reads what a look at an imported Cluster reads.
func (d *digests) sum(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster) uint64 {
	var fleet fleetv1.Cluster
	pinned := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	if pinned.Name == "" {
		return 0
	}
	// Like the look: as it was last written, if the cache does not show that yet.
	if found, err := d.store.Get(ctx, pinned, &fleet); err != nil || !found || !isPlainlyOf(&fleet, cluster) {
		return 0
	}
	namespace := namespaceMetadata()
	if err := d.Get(ctx, types.NamespacedName{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return 0
	}
	classKey, used := cluster.GetClassKey(), useOf(cluster)
	selected, _ := stamp.SubjectOf(cluster, namespace.Labels).IsSelected(in.Cluster)
	if !selected {
		return 0
	}
	var hash maphash.Hash
	hash.SetSeed(d.seed)
	if !d.sources.Digest(ctx, cluster, &hash) {
		return 0
	}
	group := classKey
	if !used.isZero() {
		group = used.group()
	}
	rival, err := observed.RivalOf(ctx, d.Reader, pinned)
	if err != nil || rival.Name != "" {
		return 0
	}
	content := *cluster
	content.ResourceVersion, fleet.ResourceVersion = "", ""
	fleet.Status.Agent = fleetv1.AgentStatus{} // An agent that has called keeps calling.
	if err := json.NewEncoder(&hash).Encode([]any{
		in.Effect, &content, &fleet,
		d.metadata(ctx, classKey, newClass()), d.metadata(ctx, used.group(), newClass()),
		d.uid(ctx, group, &fleetv1.ClusterGroup{}), d.uid(ctx, used.mapping(), &fleetv1.BundleNamespaceMapping{}),
	}); err != nil {
		return 0
	}
	return hash.Sum64()
}

// metadata returns what is used of a class: labels, and whether it is being deleted. The
// version is included: a look reads the class once more, and labels may have come and gone in
// between.
func (d *digests) metadata(ctx context.Context, key types.NamespacedName, class *metav1.PartialObjectMetadata) any {
	if key.Name == "" || d.Get(ctx, key, class, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []any{class.UID, class.ResourceVersion, class.Labels, class.DeletionTimestamp}
}

// uid returns what is used of a group or a mapping. They have reconcilers of their own.
func (d *digests) uid(ctx context.Context, key types.NamespacedName, object client.Object) any {
	if key.Name == "" || d.Get(ctx, key, object, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []any{object.GetUID(), object.GetDeletionTimestamp()}
}

// isPlainlyOf reports whether a Fleet Cluster is a Cluster's by UID alone, so that nothing
// else has to be read.
func isPlainlyOf(fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	owners := slices.DeleteFunc(slices.Clone(fleet.OwnerReferences), func(owner metav1.OwnerReference) bool { return !stamp.IsCluster(owner) })
	switch len(owners) {
	case 0:
		return fleet.Annotations[stamp.ImportedUIDAnnotation] == string(cluster.UID)
	case 1:
		return owners[0].UID == cluster.UID
	default:
		return false
	}
}

// isSettled reports whether a visit has found an imported Cluster to be as it should be,
// and has written nothing. A target that could not be made is tried again.
func (v *visit) isSettled(result outcome) bool {
	isTargeted := useOf(v.cluster).isZero() || !v.in.Cluster.ApplyClassGroup || v.targets.Group != "" && v.targets.Mapping != ""
	return result.state == StateImported && result.after == 0 && v.unresolved == "" && v.relation == stamp.Own && !v.wrote && isTargeted
}
