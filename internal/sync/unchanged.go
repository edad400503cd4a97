package sync

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// digests holds a digest for each imported Cluster whose last reconcile left nothing to do. The digest
// covers the objects that this reconcile read and wrote. As long as it stays the same, there is
// nothing to do. A change to a class or a FleetAddonConfig wakes thousands of Clusters, and our own
// write of an import wakes its Cluster; most of these reconciles find nothing.
type digests struct {
	client.Reader
	store        *kube.Store
	references   *references.Reader
	bundlesReady bundlesReady
	seed         maphash.Seed

	mu    sync.Mutex
	known map[types.NamespacedName]uint64
}

// digest identifies the objects that a reconcile of a Cluster reads: inputs covers the fields that
// others write, all adds the fields that the reconcile itself may write. Zero means that the digest
// does not cover every object that a reconcile would read.
type digest struct {
	inputs, all uint64
	// untilStale is how long the digest holds if the agent stays silent; zero for no limit.
	untilStale time.Duration
}

func newDigests(cache client.Reader, store *kube.Store, reader *references.Reader, bundlesReady bundlesReady) *digests {
	return &digests{Reader: cache, store: store, references: reader, bundlesReady: bundlesReady, seed: maphash.MakeSeed(), known: map[types.NamespacedName]uint64{}}
}

// of returns the digest of the objects that a reconcile of a Cluster would read now, and whether the
// last reconcile noted the same digest.
func (d *digests) of(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster, around surroundings) (now digest, isKnown bool) {
	now = d.sum(ctx, in, cluster, around, d.outputs(ctx, cluster, around.beside))
	key := client.ObjectKeyFromObject(cluster)
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.known[key]; ok && known == now.all {
		return now, true
	}
	delete(d.known, key)
	return now, false
}

// note keeps the digest of a finished reconcile that left nothing to do. The digest covers the Cluster
// and the objects made for it, as the reconcile read or wrote them. If a field that others write has
// changed since before, note keeps nothing: the reconcile may have missed that change.
func (d *digests) note(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster, s *scope, before digest) {
	made := outputs{s.fleet, s.home.uid, s.targets, s.begun}
	if !s.has() {
		made.fleet = s.rancher
	}
	now := d.sum(ctx, in, cluster, s.around, made)
	if now.all == 0 || now.inputs != before.inputs {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[client.ObjectKeyFromObject(cluster)] = now.all
}

func (d *digests) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, key)
}

// outputs are the objects made for a Cluster. Group and mapping have reconcilers of their own, so only
// their UIDs count.
type outputs struct {
	fleet   *fleetv1.Cluster // nil if there is none, or if its namespace is not there; Rancher's, if the Cluster is attached to it
	home    types.UID        // of the namespace of our own
	targets desired.Targets
	begun   []string // see scope.begun
}

// outputs reads the objects made for a Cluster, or those that it is attached to.
func (d *digests) outputs(ctx context.Context, cluster *clusterv1.Cluster, beside rancher.Relation) outputs {
	var fleet fleetv1.Cluster
	pinned := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	found, err := d.store.Get(ctx, pinned, &fleet)
	if err != nil {
		return outputs{}
	}
	group, used := cluster.GetClassKey(), useOf(cluster)
	if beside.Way == rancher.Attach && (!found || pinned == beside.Fleet) {
		var own fleetv1.ClusterList
		if err := d.List(ctx, &own, client.InNamespace(cluster.Namespace), client.MatchingFields{byOrigin: originUID(cluster.UID)}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil || len(own.Items) > 0 {
			return outputs{}
		}
		if found, err = d.store.Get(ctx, beside.Fleet, &fleet); err != nil || !found {
			return outputs{}
		}
		return outputs{&fleet, "", desired.Targets{Group: d.uid(ctx, types.NamespacedName{
			Namespace: beside.Fleet.Namespace, Name: membership{group, cluster.Namespace}.group(),
		}, &fleetv1.ClusterGroup{})}, nil}
	}
	if !found {
		return outputs{}
	}
	its, err := homeOf(ctx, d.Reader, &fleet)
	if err != nil || !its.isThere {
		return outputs{}
	}
	if !used.isZero() {
		group = used.group()
	}
	begun, err := begunFor(ctx, d.Reader, d.store, cluster.Namespace, used)
	if err != nil {
		return outputs{}
	}
	return outputs{&fleet, its.uid, desired.Targets{
		Group: d.uid(ctx, group, &fleetv1.ClusterGroup{}), Mapping: d.uid(ctx, used.mapping(), &fleetv1.BundleNamespaceMapping{}),
	}, begun}
}

// sum computes the digest of the objects that a reconcile of an imported or attached Cluster reads.
func (d *digests) sum(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster, around surroundings, made outputs) (result digest) {
	if selected, _ := stamp.SubjectOf(cluster, around.namespaceLabels).IsSelected(in.Cluster); !selected {
		return digest{}
	}
	var hash maphash.Hash
	hash.SetSeed(d.seed)
	if d.references.Digest(ctx, cluster, &hash) != nil {
		return digest{}
	}
	pinned := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	// A pinned Cluster never takes the namespace of a Cluster that is in Fleet, so only Fleet Clusters
	// matter.
	if rival, err := kube.RivalOf(ctx, d.Reader, pinned); err != nil || rival.Name != "" {
		return digest{}
	}
	content := *cluster
	content.TypeMeta, content.ResourceVersion = metav1.TypeMeta{}, ""
	var reported []metav1.Condition
	content.Status.Conditions, reported = apart(cluster.Status.Conditions)
	encoder := json.NewEncoder(&hash)
	if err := encoder.Encode([]any{
		in.Effect, around.beside, keysOf(around.beside.Attached), &content, d.metadata(ctx, cluster.GetClassKey(), newClass()), d.metadata(ctx, useOf(cluster).group(), newClass()),
	}); err != nil {
		return digest{}
	}
	result.inputs = hash.Sum64()
	if made.fleet == nil || !isPlainlyOf(made.fleet, cluster) && !rancher.IsAttachedTo(made.fleet, cluster) {
		return result
	}
	fleet := *made.fleet
	fleet.TypeMeta, fleet.ResourceVersion = metav1.TypeMeta{}, ""
	mirrored := d.bundlesReady.condition(&fleet)
	result.untilStale = d.bundlesReady.untilStale(&fleet)
	// A heartbeat changes nothing, unless it is the first for long, and a count nothing but what is mirrored.
	fleet.Status.Agent.LastSeen, fleet.Status.Summary = metav1.Time{}, fleetv1.BundleSummary{}
	if err := encoder.Encode([]any{reported, &fleet, mirrored, made.home, made.targets, made.begun}); err != nil {
		return digest{}
	}
	result.all = hash.Sum64()
	return result
}

func keysOf(fleetClusters []fleetv1.Cluster) (keys []types.NamespacedName) {
	for i := range fleetClusters {
		keys = append(keys, client.ObjectKeyFromObject(&fleetClusters[i]))
	}
	return keys
}

// apart separates the conditions that others write from ours.
func apart(all []metav1.Condition) (others, ours []metav1.Condition) {
	for _, condition := range all {
		if slices.Contains(conditionTypes, condition.Type) {
			ours = append(ours, condition)
		} else {
			others = append(others, condition)
		}
	}
	return others, ours
}

// metadata returns the part of a class that a reconcile uses: its labels, and whether it is being
// deleted. It includes the version, because a reconcile reads the class once more, and labels may have
// come and gone in between.
func (d *digests) metadata(ctx context.Context, key types.NamespacedName, class *metav1.PartialObjectMetadata) any {
	if key.Name == "" || d.Get(ctx, key, class, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []any{class.UID, class.ResourceVersion, class.Labels, class.DeletionTimestamp}
}

// uid returns the UID of an object; empty if there is none.
func (d *digests) uid(ctx context.Context, key types.NamespacedName, object client.Object) types.UID {
	if key.Name == "" {
		return ""
	}
	if found, err := d.store.Get(ctx, key, object); err != nil || !found {
		return ""
	}
	return object.GetUID()
}

// isPlainlyOf reports whether the UID alone proves that a Fleet Cluster belongs to a Cluster, so that
// the digest needs no further read.
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

// isConverged reports whether a reconcile has left an imported Cluster in its desired state. If a
// target could not be made, the next reconcile tries again.
func (s *scope) isConverged(result outcome) bool {
	isTargeted := useOf(s.cluster).isZero() || !s.in.Cluster.ApplyClassGroup || s.targets.Group != "" && (s.targets.Mapping != "" || !s.has())
	reported := meta.FindStatusCondition(result.conditions, addonsv1.FleetImportedCondition)
	return reported != nil && isImported(reported) && result.after == 0 && s.unresolved == "" && isTargeted && s.isIn()
}
