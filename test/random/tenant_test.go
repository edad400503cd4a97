package random

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
)

// What a tenant does who has rights in his namespace only, and wishes for more. What he
// does to objects that are frozen stays, and what is kept for them depends on what is
// there: then Muster has to be at rest. What is put back he may change at any time.
var tenantOperations = []operation{
	{name: "TenantForgeFleetCluster", weight: 6, draw: drawForgery, do: tenantForgeFleetCluster, racy: func(r *run, step Step) bool {
		if r.tenantCluster(step) == nil || step.Kind == "WrongOwner" || r.hasKeepers() {
			return true
		}
		step.Kind = fleetClusterKind
		return !r.isKept(step)
	}},
	{name: "TenantCreateFleetCluster", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawForgery(rng, step)
		step.Value = oneOf(rng, "mine", "mine", "wanted", "prefixed")
	}, do: tenantCreateFleetCluster, racy: always},
	{name: "TenantForgeGroup", weight: 4, draw: drawForgery, do: tenantForgeGroup, racy: always},
	{name: "TenantCreateCluster", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawCreateCluster(rng, step)
		step.Namespace, step.ClassNamespace = namespaceCount-1, oneOf(rng, 0, ownNamespace, ownNamespace, namespaceCount-1)
		step.Kind = oneOf(rng, "", "Forged", "Forged", "Pinned")
	}, do: func(r *run, step Step) (bool, error) { return r.createClusterAs(r.tenant, step) }, racy: func(_ *run, step Step) bool {
		return step.Kind == "Forged" // It may be claimed and unselected, and so keeps what is there.
	}},
	{name: "TenantForgePin", weight: 4, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Key, step.Value = oneOf(rng, pinKey, ownKey, "", ""), oneOf(rng, "", "forged", "forged", "taken")
	}, do: func(r *run, step Step) (bool, error) { return r.dropPinAs(r.tenant, step) }, racy: always},
	{name: "TenantRebase", weight: 3, draw: func(rng *rand.Rand, step *Step) { drawSlot(rng, step); drawClass(rng, step) },
		do: tenantRebase, racy: func(r *run, _ Step) bool { return r.hasKeepers() }},
	{name: "TenantDelete", weight: 2, draw: func(rng *rand.Rand, step *Step) {
		drawForgery(rng, step)
		step.Kind = oneOf(rng, fleetClusterKind, crossGroupKind)
	}, do: tenantDelete, racy: always},
}

// forgeries are what a tenant pretends.
var forgeries = []string{
	"Released", "Released", "ImportedFrom", "ImportedFrom", "ImportedUID", "WrongUID", "Adopt", "Owner", "WrongOwner", "Notes", "Labels", "Nothing",
}

func drawForgery(rng *rand.Rand, step *Step) {
	drawSlot(rng, step)
	drawOneClass(rng, step)
	step.Kind = oneOf(rng, forgeries...)
}

// forgery returns the labels, annotations and owners of what a tenant pretends to be
// Muster's, for a class of anybody.
func (r *run) forgery(step Step) (labels, annotations map[string]string, owners []metav1.OwnerReference) {
	// The stamp of a Cluster that names the class tells how it is to look.
	class, stamped := r.classKey(step, ""), &clusterv1.Cluster{}
	stamped.Namespace = r.tenantNamespace()
	stamped.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: class.Name, Namespace: class.Namespace}
	stamped = oracle.Admitted(r.state, stamped)
	labels, annotations = stamped.Labels, stamped.Annotations
	labels[managedByLabel] = "muster"
	from, uid := slotName(step.Cluster), "no-such-uid"
	if cluster := r.tenantCluster(step); cluster != nil {
		from, uid = cluster.Name, string(cluster.UID)
	}
	note := func(keys map[string]string) {
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, keys)
	}
	owner := func(uid string) {
		owners = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: from, UID: types.UID(uid)}}
	}
	switch step.Kind {
	case "Released":
		note(map[string]string{domain + "/released": "true"})
	case "ImportedFrom":
		note(map[string]string{domain + "/imported-from": from})
	case "ImportedUID":
		note(map[string]string{domain + "/imported-from": from, domain + "/imported-uid": uid})
	case "WrongUID":
		note(map[string]string{domain + "/imported-from": from, domain + "/imported-uid": "wrong-uid"})
	case "Adopt":
		note(map[string]string{domain + "/adopt": "true"})
		delete(labels, managedByLabel)
	case "Owner":
		owner(uid)
	case "WrongOwner":
		owner("wrong-uid")
	case "Notes":
		note(map[string]string{domain + "/applied-hash": "x", domain + "/targeting": "x"})
	case "Nothing":
		labels, annotations = map[string]string{oracle.Others + "made": "true"}, nil
	}
	return labels, annotations, owners
}

// tenantCluster returns the Cluster of a step's slot if it is in the tenant's namespace.
func (r *run) tenantCluster(step Step) *clusterv1.Cluster {
	if cluster := r.cluster(step); cluster != nil && cluster.Namespace == r.tenantNamespace() {
		return cluster
	}
	return nil
}

// tenantFleetCluster returns the Fleet Cluster of a slot's Cluster in the tenant's
// namespace, or the one that he made by hand.
func (r *run) tenantFleetCluster(step Step) (client.Object, bool) {
	key := oracle.Key{Namespace: r.tenantNamespace(), Name: r.mine(step.Cluster)}
	if cluster := r.tenantCluster(step); cluster != nil && cluster.Annotations[pinKey] != "" {
		key.Name = cluster.Annotations[pinKey]
	}
	return pick(r.state.FleetClusters, key, &fleetv1.Cluster{})
}

func tenantForgeFleetCluster(r *run, step Step) (bool, error) {
	object, found := r.tenantFleetCluster(step)
	if !found {
		return false, nil
	}
	return r.forge(object, step)
}

// forge puts a forgery on what is there.
func (r *run) forge(object client.Object, step Step) (bool, error) {
	labels, annotations, owners := r.forgery(step)
	change := map[string]any{"labels": labels, "annotations": annotations}
	if owners != nil {
		change["ownerReferences"] = owners
	}
	if err := patchAs(r.tenant, object, map[string]any{"metadata": change}); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.remember(object)
	return true, nil
}

func tenantCreateFleetCluster(r *run, step Step) (bool, error) {
	fleet := &fleetv1.Cluster{}
	fleet.Namespace = r.tenantNamespace()
	fleet.Name = map[string]string{
		"mine": r.mine(step.Cluster), "wanted": slotName(step.Cluster), "prefixed": "capi-" + slotName(step.Cluster),
	}[step.Value]
	if _, found := r.state.FleetClusters[client.ObjectKeyFromObject(fleet)]; found {
		return false, nil
	}
	fleet.Labels, fleet.Annotations, fleet.OwnerReferences = r.forgery(step)
	if err := r.tenant.Create(ctx, fleet); err != nil {
		return false, err
	}
	r.remember(fleet)
	return true, nil
}

// tenantForgeGroup forges the group of a class, as it would be in the tenant's
// namespace, or makes it.
func tenantForgeGroup(r *run, step Step) (bool, error) {
	object, found := r.tenantGroup(step)
	if found {
		return r.forge(object, step)
	}
	labels, annotations, owners := r.forgery(step)
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
	object.SetOwnerReferences(owners)
	if err := r.tenant.Create(ctx, object); err != nil {
		return false, err
	}
	r.remember(object)
	return true, nil
}

func (r *run) tenantGroup(step Step) (client.Object, bool) {
	class := r.classKey(step, "")
	key := oracle.Key{Namespace: r.tenantNamespace(), Name: class.Name}
	if class.Namespace != key.Namespace {
		key.Name += "." + class.Namespace
	}
	return pick(r.state.Groups, key, &fleetv1.ClusterGroup{})
}

// tenantRebase tries whatever class there is. Those of others are not for him.
func tenantRebase(r *run, step Step) (bool, error) {
	before := r.tenantCluster(step)
	if before == nil {
		return false, nil
	}
	old := before.Spec.Topology.ClassRef
	done, err := r.rebaseAs(r.tenant, step)
	if !done || err != nil {
		return done, err
	}
	ref := r.cluster(step).Spec.Topology.ClassRef
	if ref != old && ref.Name != "" && ref.Namespace != "" && ref.Namespace != before.Namespace {
		return true, &oracleError{fmt.Sprintf("the tenant could name class %s/%s", ref.Namespace, ref.Name)}
	}
	return true, nil
}

func tenantDelete(r *run, step Step) (bool, error) {
	object, found := r.tenantGroup(step)
	if step.Kind == fleetClusterKind {
		object, found = r.tenantFleetCluster(step)
	}
	if !found {
		return false, nil
	}
	if err := r.tenant.Delete(ctx, object); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	key := client.ObjectKeyFromObject(object)
	if step.Kind == fleetClusterKind {
		delete(r.state.FleetClusters, key)
	} else {
		delete(r.state.Groups, key)
	}
	return true, nil
}

// uidsOf returns the UIDs of Fleet's objects.
func uidsOf(s oracle.State) map[string]types.UID {
	uids := map[string]types.UID{}
	for key, object := range s.FleetClusters {
		uids["Fleet Cluster "+key.String()] = object.UID
	}
	for key, object := range s.Groups {
		uids["ClusterGroup "+key.String()] = object.UID
	}
	for key, object := range s.Mappings {
		uids["BundleNamespaceMapping "+key.String()] = object.UID
	}
	for key, object := range s.Calling.Registrations {
		uids["ClusterRegistration "+key.String()] = object.UID
	}
	for key, object := range s.Calling.Manifests {
		uids["manifest "+key.String()] = object.UID
	}
	for of, carrier := range s.Charts.Carriers {
		uids[of.String()+", "+of.Release+": "+carrier.Kind] = carrier.UID
	}
	return uids
}

// noteKept forgets, of the objects of the last quiet point, those that somebody deleted
// since or that nobody wanted for a moment: they may have been made anew.
func (r *run) noteKept() {
	there, wanted := uidsOf(r.state), uidsOf(oracle.Settle(r.state))
	maps.DeleteFunc(r.kept, func(name string, uid types.UID) bool { return there[name] != uid || wanted[name] != uid })
	// Somebody has deleted the Fleet Clusters of all that it was for: with these goes what Fleet
	// made of it, whether it stays or not.
	for of, carrier := range r.state.Charts.Carriers {
		if len(carrier.Targets) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(carrier.Targets)), func(name string) bool {
			return r.state.FleetClusters[oracle.Key{Namespace: of.Namespace, Name: name}] != nil
		}) {
			delete(r.kept, of.String()+", "+of.Release+": "+carrier.Kind)
		}
	}
}

// nothingAnew fails if one of the objects that stay is another than it was at the last
// quiet point: to Fleet that is another cluster, to which it deploys everything again.
func (r *run) nothingAnew() error {
	seen := uidsOf(r.state)
	for _, name := range slices.Sorted(maps.Keys(r.kept)) {
		if seen[name] != r.kept[name] {
			return &oracleError{fmt.Sprintf("%s was made anew, and nothing was the matter with it", name)}
		}
	}
	r.kept = seen
	return nil
}
