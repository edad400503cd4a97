package random

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

const (
	domain = "fleet.addons.cluster.x-k8s.io"
	pinKey = domain + "/cluster-name"
	ownKey = domain + "/owned-by"

	nameLabel      = "clusterclass-name." + domain
	namespaceLabel = "clusterclass-namespace." + domain
	managedByLabel = "app.kubernetes.io/managed-by"
	pausedKey      = "cluster.x-k8s.io/paused"
	// finalizer stands for Cluster API's own, because of which Clusters take time to go.
	finalizer = "cluster.cluster.x-k8s.io"
)

var clusterOperations = []operation{
	{name: "CreateCluster", weight: 12, draw: drawCreateCluster, do: createCluster, racy: func(r *run, step Step) bool {
		// A paused Cluster keeps the objects that it finds, and makes none, so the remaining objects matter.
		return step.Kind == "Paused"
	}},
	{name: "DeleteCluster", weight: 4, draw: drawSlot, do: deleteCluster, racy: leavesSomething},
	{name: "FinishDeletion", weight: 4, draw: drawSlot, do: finishDeletion, racy: leavesSomething},
	{name: "Rebase", weight: 7, draw: draws(drawSlot, drawClass), do: rebase, racy: hasKeepers},
	{name: "LabelCluster", weight: 7, draw: draws(
		drawSlot, drawKey("env", "both", "env", "fleet.cattle.io/shard-ref", nameLabel, namespaceLabel), drawValue("", "prod", "dev"),
	), do: labelCluster, racy: mayDeselect},
	{name: "AnnotateCluster", weight: 4, draw: draws(
		drawSlot, drawKey("note", "meta.helm.sh/release-name", "kubectl.kubernetes.io/last-applied-configuration"), drawValue("", "a", "b"),
	), do: annotateCluster},
	// As long as a Cluster has no Fleet Cluster, only its pin tells its name. So it matters whether Muster has
	// already made one under the old name.
	{name: "DropPin", weight: 2, draw: draws(drawSlot, drawKey(pinKey, ownKey, ""), drawValue("", "", "forged", "taken")),
		do: func(r *run, step Step) (bool, error) { return r.dropPin(admin, step) }, racy: always},
	{name: "Initialize", weight: 10, draw: draws(drawSlot, drawKind("", "", "", "NoReferences", "Dangling")), do: initialize,
		racy: func(_ *run, step Step) bool { return step.Kind == "Dangling" }},
	{name: "Uninitialize", weight: 1, draw: drawSlot, do: uninitialize, racy: always},
	{name: "ScaleControlPlane", weight: 4, draw: draws(drawSlot, drawValue("1", "3", "5")), do: scaleControlPlane},
	{name: "DeleteReferenced", weight: 2, draw: draws(drawSlot, drawKind("ControlPlane", "Infrastructure")), do: deleteReferenced, racy: always},
	{name: "CreateReferenced", weight: 3, draw: draws(drawSlot, drawKind("ControlPlane", "Infrastructure")), do: createReferenced},
	{name: "Pause", weight: 4, draw: draws(drawSlot, drawKind("Spec", "Annotation")), do: pause("true"), racy: always},
	{name: "Unpause", weight: 6, draw: draws(drawSlot, drawKind("Spec", "Annotation")), do: pause("")},
	{name: "LegacyFinalizer", weight: 1, draw: drawSlot, do: legacyFinalizer},
}

func drawClass(rng *rand.Rand, step *Step) {
	step.Class = oneOf(rng, 0, 0, 1, 2, noClass)
	step.ClassNamespace = oneOf(rng, 0, 1, 2, 3, 0, 1, 2, 3, namespaceCount, ownNamespace)
}

func drawCreateCluster(rng *rand.Rand, step *Step) {
	draws(drawSlot, drawClass, drawNamespace, drawKey("", "", "env", "both"), drawValue("prod", "dev"),
		drawKind("", "", "", "", "", "GenerateName", "Paused", "Finalizer", "Finalizer", "Pinned", "Calls", "Calls", "Calls"))(rng, step)
	if step.Cluster == collided {
		step.Namespace = lib
	}
	if step.Kind == "Calls" && rng.IntN(3) > 0 {
		step.Class = noClass // Without a topology, the Cluster waits for no object.
	}
}

// slotName returns the name of a slot's Cluster. Some Clusters share a name, in other namespaces. One name Fleet
// cannot use, and one is so long that Fleet cuts it.
func slotName(slot int) string {
	return [slotCount]string{"one", "two", "three.dotted", "one", "two", "production-eu-west-1-payments-cluster0001"}[slot]
}

func createCluster(r *run, step Step) (bool, error) { return r.createCluster(admin, step) }

func (r *run) createCluster(somebody client.Client, step Step) (bool, error) {
	if r.cluster(step) != nil {
		return false, nil
	}
	cluster := fixture.Cluster(r.namespace(step.Namespace), slotName(step.Cluster), r.className(step), "")
	if step.Key != "" {
		cluster.Labels = map[string]string{step.Key: step.Value}
	}
	switch step.Kind {
	case "GenerateName":
		cluster.GenerateName, cluster.Name = cluster.Name+"-", ""
	case "Paused":
		cluster.Spec.Paused = ptr.To(true)
	case "Finalizer":
		cluster.Finalizers = []string{finalizer}
	case "Calls":
		cluster.Annotations = map[string]string{registrationKey: "agent"}
	case "Pinned":
		cluster.Annotations = map[string]string{pinKey: "pinned-" + strings.ReplaceAll(cluster.Name, ".", "-")}
	case "Colliding":
		cluster.Name = r.collidingName()
		cluster.Annotations = map[string]string{pinKey: cluster.Name}
	case "Forged":
		cluster.Annotations = map[string]string{pinKey: "forged-" + fmt.Sprint(step.Cluster), ownKey: "forged", domain + "/released": "true"}
		cluster.Labels = map[string]string{nameLabel: classNames[0], namespaceLabel: r.namespace(0), managedByLabel: "muster"}
	}
	if step.Class != noClass {
		cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "size"}}
		cluster.Spec.Topology.Variables[0].Value.Raw = []byte(`{"cpus":2}`)
		cluster.Spec.Topology.ControlPlane.Variables.Overrides = cluster.Spec.Topology.Variables
		if step.ClassNamespace != ownNamespace {
			cluster.Spec.Topology.ClassRef.Namespace = r.namespace(step.ClassNamespace)
		}
	}
	requested := cluster.DeepCopy()
	taken := oracle.IsTaken(r.state, requested)
	if err := r.create(somebody, cluster); err != nil {
		return false, err
	}
	key := client.ObjectKeyFromObject(cluster)
	r.slots[step.Cluster] = key
	switch {
	case !r.isUp(webhookProcess):
		return true, checkLabelled(cluster)
	case !r.dirty && taken:
		return true, &oracleError{fmt.Sprintf("Cluster %s was not refused, and another has its namespace in Fleet", key)}
	}
	return true, sameStamp("the answer to CREATE", oracle.Admitted(r.state, requested), cluster)
}

// sameStamp compares labels and annotations.
func sameStamp(what string, want, got *clusterv1.Cluster) error {
	diff := cmp.Diff(want.Labels, got.Labels, cmpopts.EquateEmpty()) + cmp.Diff(want.Annotations, got.Annotations, cmpopts.EquateEmpty())
	if diff != "" {
		return &oracleError{what + " of Cluster " + client.ObjectKeyFromObject(got).String() + " (-expected +seen):\n" + diff}
	}
	return nil
}

// hasKeepers reports whether there may be Clusters for which Muster keeps existing groups and mappings, but does not
// make them. Then it matters which of these existed when the last Cluster went for which Muster makes them.
func hasKeepers(r *run, step Step) bool {
	if mayDeselect(r, step) {
		return true
	}
	lives := map[types.UID]bool{}
	for _, cluster := range r.state.Clusters {
		lives[cluster.UID] = true
		if isPaused(cluster) || !cluster.DeletionTimestamp.IsZero() {
			return true
		}
	}
	for _, fleet := range r.state.FleetClusters {
		if !slices.ContainsFunc(fleet.OwnerReferences, func(owner metav1.OwnerReference) bool { return lives[owner.UID] }) {
			return true
		}
	}
	for _, class := range r.state.Classes {
		if strings.Contains(class.Name, "."+r.id+"-") { // Its group displaces another class's.
			return true
		}
	}
	return false
}

// leavesSomething reports whether the Cluster or its Fleet Cluster does not go at once, and stays as it was, or
// Muster keeps an object for other Clusters.
func leavesSomething(r *run, step Step) bool {
	cluster := r.cluster(step)
	config, _ := r.config()
	switch {
	case hasKeepers(r, step):
		return true
	case cluster == nil:
		return false
	case r.state.GarbageRemains, isFalse(config.SetOwnerReferences), ptr.Deref(cluster.Spec.Paused, false),
		len(cluster.Finalizers) > 0 && cluster.DeletionTimestamp.IsZero():
		return true
	}
	for _, fleet := range r.state.FleetClusters {
		if fleet.Namespace == cluster.Namespace && len(fleet.OwnerReferences) == 0 {
			return true
		}
	}
	return false
}

// mayDeselect reports whether a selector is in force. Then Muster may retain or withdraw the Cluster, or its agent
// may have to register itself, and later no longer.
func mayDeselect(r *run, _ Step) bool {
	config, _ := r.config()
	return config.Selector != nil || config.NamespaceSelector != nil || config.AgentInitiatedSelector != nil
}

func deleteCluster(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	if done, err := r.remove(admin, cluster); !done {
		return false, err
	}
	return true, r.wentOrWaits(cluster)
}

// wentOrWaits notes that a Cluster was deleted, or waits for its finalizer.
func (r *run) wentOrWaits(cluster *clusterv1.Cluster) error {
	current := &clusterv1.Cluster{}
	err := admin.Get(ctx, client.ObjectKeyFromObject(cluster), current)
	if err == nil {
		r.note(current, true)
		return nil
	}
	r.note(cluster, false)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.waitGone(cluster)
}

func finishDeletion(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	rest := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(name string) bool { return name == finalizer })
	if done, err := r.change(admin, cluster, map[string]any{"metadata": map[string]any{"finalizers": rest}}); !done {
		return false, err
	}
	return true, r.wentOrWaits(cluster)
}

func rebase(r *run, step Step) (bool, error) { return r.rebase(admin, step) }

func (r *run) rebase(somebody client.Client, step Step) (bool, error) {
	topology := map[string]any{"topology": nil}
	if step.Class != noClass {
		ref := map[string]any{"name": r.className(step), "namespace": nil}
		if step.ClassNamespace != ownNamespace {
			ref["namespace"] = r.namespace(step.ClassNamespace)
		}
		topology["topology"] = map[string]any{"version": fixture.KubernetesVersion, "classRef": ref}
	}
	return r.changeStamped(somebody, step, map[string]any{"spec": topology})
}

func labelCluster(r *run, step Step) (bool, error) {
	return r.changeStamped(admin, step, metadata("labels", step.Key, step.Value))
}

func annotateCluster(r *run, step Step) (bool, error) {
	return r.changeStamped(admin, step, metadata("annotations", step.Key, step.Value))
}

// changeCluster patches the Cluster of a step's slot.
func (r *run) changeCluster(somebody client.Client, step Step, change map[string]any) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	return r.change(somebody, cluster, change)
}

// changeStamped changes a Cluster in a way that the webhook sees, and checks that its
// class labels are right at once.
func (r *run) changeStamped(somebody client.Client, step Step, change map[string]any) (bool, error) {
	before := r.cluster(step)
	done, err := r.changeCluster(somebody, step, change)
	if !done || err != nil || r.cluster(step).ResourceVersion == before.ResourceVersion {
		return done, err // The API server does not call the webhook for an update that changes nothing.
	}
	if !r.isUp(webhookProcess) {
		return true, checkLabelled(r.cluster(step))
	}
	return true, sameUpdate(r.cluster(step), r.cluster(step))
}

// sameUpdate checks the answer to an update: the labels must name the class, and the pin must equal the pin of the
// other Cluster.
func sameUpdate(cluster, pinned *clusterv1.Cluster) error {
	unselected := oracle.NewState()
	unselected.Config = &addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Enabled: ptr.To(false)}}}
	want := oracle.Admitted(unselected, cluster)
	for _, key := range []string{pinKey, ownKey} {
		if value, ok := pinned.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&want.ObjectMeta, key, value)
		}
	}
	return sameStamp("the answer to UPDATE", want, cluster)
}

// dropPin drops a pin or forges one, with a free name or with the name of another Cluster's Fleet Cluster.
func (r *run) dropPin(somebody client.Client, step Step) (bool, error) {
	before := r.cluster(step)
	if before == nil {
		return false, nil
	}
	var name, owner any
	switch step.Value {
	case "forged":
		name, owner = "forged-"+fmt.Sprint(step.Cluster), "forged"
	case "taken":
		// Two Clusters with only the same pin compete for the name, and either may win.
		taken := r.nameOfAnother(before)
		if taken == "" || !r.isImported(before) {
			return false, nil
		}
		name, owner = taken, "forged"
	}
	change := map[string]any{pinKey: name, ownKey: owner}
	switch step.Key {
	case pinKey:
		delete(change, ownKey)
	case ownKey:
		delete(change, pinKey)
	}
	done, err := r.changeCluster(somebody, step, map[string]any{"metadata": map[string]any{"annotations": change}})
	if !done || err != nil || !r.isUp(webhookProcess) {
		return done, err
	}
	return true, sameUpdate(r.cluster(step), before) // The webhook restores the pin, whatever the request.
}

// nameOfAnother returns the first Fleet Cluster in a Cluster's namespace that belongs to another Cluster, or "".
func (r *run) nameOfAnother(cluster *clusterv1.Cluster) string {
	names := []string{""}
	for key, fleet := range r.state.FleetClusters {
		for _, owner := range fleet.OwnerReferences {
			if key.Namespace == cluster.Namespace && owner.UID != cluster.UID {
				names = append(names, key.Name)
			}
		}
	}
	slices.Sort(names)
	return names[min(1, len(names)-1)]
}

// isImported reports whether the Cluster owns a Fleet Cluster and has said so in its status.
func (r *run) isImported(cluster *clusterv1.Cluster) bool {
	if reason(cluster, "FleetImported") != "Imported" {
		return false
	}
	for _, fleet := range r.state.FleetClusters {
		for _, owner := range fleet.OwnerReferences {
			if owner.UID == cluster.UID {
				return true
			}
		}
	}
	return false
}

func initialize(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() || ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return false, nil
	}
	references := map[string]any{}
	for kind, field := range map[string]string{"ControlPlane": "controlPlaneRef", "Infrastructure": "infrastructureRef"} {
		if step.Kind == "" {
			if _, err := createReferenced(r, Step{Cluster: step.Cluster, Kind: kind}); err != nil {
				return false, err
			}
		}
		references[field] = fixture.ReferenceTo(referenced(kind, cluster))
	}
	if step.Kind != "NoReferences" {
		if done, err := r.changeCluster(admin, step, map[string]any{"spec": references}); !done {
			return false, err
		}
	}
	cluster = r.cluster(step)
	return r.changed(cluster, fixture.Initialize(ctx, admin, cluster))
}

func uninitialize(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return false, nil
	}
	before := cluster.DeepCopy()
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(false)
	return r.changed(cluster, admin.Status().Patch(ctx, cluster, client.MergeFrom(before)))
}

// referenced returns an object for a Cluster to refer to.
func referenced(kind string, cluster *clusterv1.Cluster) *unstructured.Unstructured {
	if kind == "ControlPlane" {
		return fixture.ControlPlane(cluster)
	}
	return fixture.Infrastructure(cluster)
}

// itsReferenced returns the object for a step's Cluster to refer to, as last seen if it exists.
func (r *run) itsReferenced(kind string, step Step) *unstructured.Unstructured {
	cluster := r.cluster(step)
	if cluster == nil {
		return &unstructured.Unstructured{}
	}
	object := referenced(kind, cluster)
	if seen := r.state.Referenced[oracle.ReferenceTo(object)]; seen != nil {
		return seen.DeepCopy()
	}
	return object
}

func createReferenced(r *run, step Step) (bool, error) {
	object := r.itsReferenced(step.Kind, step)
	if r.cluster(step) == nil || isThere(object) {
		return false, nil
	}
	return true, r.create(admin, object)
}

func scaleControlPlane(r *run, step Step) (bool, error) {
	return r.change(admin, r.itsReferenced("ControlPlane", step), map[string]any{"spec": map[string]any{"replicas": json.Number(step.Value)}})
}

func deleteReferenced(r *run, step Step) (bool, error) {
	return r.remove(admin, r.itsReferenced(step.Kind, step))
}

// pause sets one of the two ways to pause a Cluster; an empty value unsets it.
func pause(value string) func(*run, Step) (bool, error) {
	return func(r *run, step Step) (bool, error) {
		if step.Kind == "Annotation" {
			return r.changeCluster(admin, step, metadata("annotations", pausedKey, value))
		}
		paused := map[string]any{"paused": nil}
		if value != "" {
			paused["paused"] = true
		}
		return r.changeCluster(admin, step, map[string]any{"spec": paused})
	}
}

// legacyFinalizer puts CAAPF's finalizer on a Cluster.
func legacyFinalizer(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	rest := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(name string) bool { return name == domain })
	return r.changeCluster(admin, step, map[string]any{"metadata": map[string]any{"finalizers": append(rest, domain)}})
}
