package random

import (
	"fmt"
	"maps"
	"math/rand/v2"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/oracle"
)

// tenantOperations are the actions of a tenant who has rights in his namespace only, and wants more. His changes to
// retained objects stay, and the existing objects decide what Muster keeps for them, so Muster must be at rest first.
// He may change objects that Muster restores at any time.
var tenantOperations = []operation{
	{name: "TenantForgeFleetCluster", weight: 6, draw: drawForgery, do: tenantForgeFleetCluster, racy: func(r *run, step Step) bool {
		if r.tenantCluster(step) == nil || step.Kind == "WrongOwner" || hasKeepers(r, step) {
			return true
		}
		step.Kind = fleetClusterKind
		return !r.isRetained(step)
	}},
	{name: "TenantCreateFleetCluster", weight: 5, draw: draws(drawForgery, drawValue("mine", "mine", "wanted", "prefixed")),
		do: tenantCreateFleetCluster, racy: always},
	{name: "TenantForgeGroup", weight: 4, draw: drawForgery, do: tenantForgeGroup, racy: always},
	{name: "TenantCreateCluster", weight: 5, draw: func(rng *rand.Rand, step *Step) {
		drawCreateCluster(rng, step)
		step.Namespace, step.ClassNamespace = theirs, oneOf(rng, 0, ownNamespace, ownNamespace, theirs)
		step.Kind = oneOf(rng, "", "Forged", "Forged", "Pinned")
	}, do: func(r *run, step Step) (bool, error) { return r.createCluster(r.tenant, step) }, racy: func(_ *run, step Step) bool {
		return step.Kind == "Forged" // It may be claimed and unselected, and so keeps existing objects.
	}},
	{name: "TenantForgePin", weight: 4, draw: draws(drawSlot, drawKey(pinKey, ownKey, "", ""), drawValue("", "forged", "forged", "taken")),
		do: func(r *run, step Step) (bool, error) { return r.dropPin(r.tenant, step) }, racy: always},
	{name: "TenantRebase", weight: 3, draw: draws(drawSlot, drawClass), do: tenantRebase, racy: hasKeepers},
	{name: "TenantDelete", weight: 2, draw: draws(drawForgery, drawKind(fleetClusterKind, crossGroupKind)), do: tenantDelete, racy: always},
}

func drawForgery(rng *rand.Rand, step *Step) {
	draws(drawSlot, drawOneClass, drawKind("Released", "Released", "ImportedFrom", "ImportedFrom", "ImportedUID", "WrongUID",
		"Adopt", "Owner", "WrongOwner", "Notes", "Labels", "Nothing"))(rng, step)
}

// forge puts false Muster data on an object, for a class of any namespace.
func (r *run) forge(object client.Object, step Step) {
	// The stamp of a Cluster that names the class shows what to forge.
	class, stamped := r.classKey(step), &clusterv1.Cluster{}
	stamped.Namespace = r.namespace(theirs)
	stamped.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: class.Name, Namespace: class.Namespace}
	stamped = oracle.Admitted(r.state, stamped)
	labels, annotations := stamped.Labels, stamped.Annotations
	labels[managedByLabel] = "muster"
	from, uid := slotName(step.Cluster), "no-such-uid"
	if cluster := r.tenantCluster(step); cluster != nil {
		from, uid = cluster.Name, string(cluster.UID)
	}
	const importedFrom, importedUID = domain + "/imported-from", domain + "/imported-uid"
	notes := map[string]map[string]string{
		"Released":     {domain + "/released": "true"},
		"ImportedFrom": {importedFrom: from},
		"ImportedUID":  {importedFrom: from, importedUID: uid},
		"WrongUID":     {importedFrom: from, importedUID: "wrong-uid"},
		"Adopt":        {domain + "/adopt": "true"},
		"Notes":        {domain + "/applied-hash": "x", domain + "/targeting": "x"},
	}[step.Kind]
	switch step.Kind {
	case "Adopt":
		delete(labels, managedByLabel)
	case "WrongOwner":
		uid = "wrong-uid"
		fallthrough
	case "Owner":
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: from, UID: types.UID(uid)}})
	case "Nothing":
		labels, annotations = map[string]string{oracle.Others + "made": "true"}, nil
		object.SetAnnotations(nil)
	}
	object.SetLabels(overlaid(object.GetLabels(), labels))
	object.SetAnnotations(overlaid(object.GetAnnotations(), annotations, notes))
}

// overlaid merges maps; later ones win.
func overlaid(layers ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, layer := range layers {
		maps.Copy(result, layer)
	}
	return result
}

// tenantCluster returns the Cluster of a step's slot if it is in the tenant's namespace.
func (r *run) tenantCluster(step Step) *clusterv1.Cluster {
	if cluster := r.cluster(step); cluster != nil && cluster.Namespace == r.namespace(theirs) {
		return cluster
	}
	return nil
}

// tenantFleetCluster returns the Fleet Cluster of a slot's Cluster in the tenant's namespace, or the one that he made
// by hand.
func (r *run) tenantFleetCluster(step Step) client.Object {
	key := oracle.Key{Namespace: r.namespace(theirs), Name: r.mine(step.Cluster)}
	if cluster := r.tenantCluster(step); cluster != nil && cluster.Annotations[pinKey] != "" {
		key.Name = cluster.Annotations[pinKey]
	}
	return pick(r.state.FleetClusters, key, &fleetv1.Cluster{})
}

func tenantForgeFleetCluster(r *run, step Step) (bool, error) {
	object := r.tenantFleetCluster(step)
	if !isThere(object) {
		return false, nil
	}
	return r.makeForged(object, step)
}

// makeForged puts a forgery on an object, or creates the object with it.
func (r *run) makeForged(object client.Object, step Step) (bool, error) {
	before := object.DeepCopyObject().(client.Object)
	r.forge(object, step)
	if !isThere(object) {
		return true, r.create(r.tenant, object)
	}
	return r.changed(object, r.tenant.Patch(ctx, object, client.MergeFrom(before)))
}

func tenantCreateFleetCluster(r *run, step Step) (bool, error) {
	name := map[string]string{
		"mine": r.mine(step.Cluster), "wanted": slotName(step.Cluster), "prefixed": "capi-" + slotName(step.Cluster),
	}[step.Value]
	fleet := pick(r.state.FleetClusters, oracle.Key{Namespace: r.namespace(theirs), Name: name}, &fleetv1.Cluster{})
	if isThere(fleet) {
		return false, nil
	}
	return r.makeForged(fleet, step)
}

// tenantForgeGroup forges the group of a class, under its name for the tenant's namespace, or creates it.
func tenantForgeGroup(r *run, step Step) (bool, error) {
	return r.makeForged(r.tenantGroup(step), step)
}

func (r *run) tenantGroup(step Step) client.Object {
	class := r.classKey(step)
	key := oracle.Key{Namespace: r.namespace(theirs), Name: class.Name}
	if class.Namespace != key.Namespace {
		key.Name += "." + class.Namespace
	}
	return pick(r.state.Groups, key, &fleetv1.ClusterGroup{})
}

// tenantRebase tries every class. He may not use the classes of others.
func tenantRebase(r *run, step Step) (bool, error) {
	before := r.tenantCluster(step)
	if before == nil {
		return false, nil
	}
	old := before.Spec.Topology.ClassRef
	done, err := r.rebase(r.tenant, step)
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
	if step.Kind == fleetClusterKind {
		return r.remove(r.tenant, r.tenantFleetCluster(step))
	}
	return r.remove(r.tenant, r.tenantGroup(step))
}
