package random

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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
	// finalizer stands for Cluster API's own: its Clusters take their time to go.
	finalizer = "cluster.cluster.x-k8s.io"
)

var clusterOperations = []operation{
	{name: "CreateCluster", weight: 12, draw: drawCreateCluster, do: createCluster, racy: func(r *run, step Step) bool {
		// A paused Cluster keeps what it finds, and makes nothing: it matters what is still there.
		return step.Kind == "Paused"
	}},
	{name: "DeleteCluster", weight: 4, draw: drawSlot, do: deleteCluster, racy: func(r *run, step Step) bool {
		return leavesSomething(r, step) || r.hasKeepers()
	}},
	{name: "FinishDeletion", weight: 4, draw: drawSlot, do: finishDeletion, racy: func(r *run, step Step) bool {
		return leavesSomething(r, step) || r.hasKeepers()
	}},
	{name: "Rebase", weight: 7, draw: func(rng *rand.Rand, step *Step) { drawSlot(rng, step); drawClass(rng, step) }, do: rebase, racy: func(r *run, _ Step) bool {
		return r.hasKeepers()
	}},
	{name: "LabelCluster", weight: 7, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Key = oneOf(rng, "env", "both", "env", "fleet.cattle.io/shard-ref", "clusterclass-name."+domain, "clusterclass-namespace."+domain)
		step.Value = oneOf(rng, "", "prod", "dev")
	}, do: labelCluster, racy: mayDeselect},
	{name: "AnnotateCluster", weight: 4, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Key = oneOf(rng, "note", "meta.helm.sh/release-name", "kubectl.kubernetes.io/last-applied-configuration")
		step.Value = oneOf(rng, "", "a", "b")
	}, do: annotateCluster},
	{name: "DropPin", weight: 2, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Key = oneOf(rng, pinKey, ownKey, "")
		step.Value = oneOf(rng, "", "", "forged", "taken")
		// As long as a Cluster has no Fleet Cluster, its pin is all there is to go by: it
		// matters whether one was made under the old name.
	}, do: dropPin, racy: always},
	{name: "Initialize", weight: 10, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Kind = oneOf(rng, "", "", "", "NoReferences", "Dangling")
	}, do: initialize, racy: func(r *run, step Step) bool { return step.Kind == "Dangling" }},
	{name: "Uninitialize", weight: 1, draw: drawSlot, do: uninitialize, racy: always},
	{name: "ScaleControlPlane", weight: 4, draw: func(rng *rand.Rand, step *Step) {
		drawSlot(rng, step)
		step.Value = oneOf(rng, "1", "3", "5")
	}, do: scaleControlPlane},
	{name: "DeleteReferenced", weight: 2, draw: drawReferenced, do: deleteReferenced, racy: always},
	{name: "CreateReferenced", weight: 3, draw: drawReferenced, do: createReferenced},
	{name: "Pause", weight: 4, draw: drawPause, do: pause("true"), racy: always},
	{name: "Unpause", weight: 6, draw: drawPause, do: pause("")},
	{name: "LegacyFinalizer", weight: 1, draw: drawSlot, do: legacyFinalizer},
}

func drawSlot(rng *rand.Rand, step *Step) { step.Cluster = rng.IntN(slotCount) }

func drawClass(rng *rand.Rand, step *Step) {
	step.Class = oneOf(rng, 0, 0, 1, 2, noClass)
	step.ClassNamespace = oneOf(rng, 0, 1, 2, 3, 0, 1, 2, 3, namespaceCount, ownNamespace)
}

func drawCreateCluster(rng *rand.Rand, step *Step) {
	drawSlot(rng, step)
	drawClass(rng, step)
	step.Namespace = rng.IntN(namespaceCount)
	if step.Cluster == collided {
		step.Namespace = lib
	}
	step.Key = oneOf(rng, "", "", "env", "both")
	step.Value = oneOf(rng, "prod", "dev")
	step.Kind = oneOf(rng, "", "", "", "", "", "GenerateName", "Paused", "Finalizer", "Finalizer", "Pinned", "Calls", "Calls", "Calls")
	if step.Kind == "Calls" && rng.IntN(3) > 0 {
		step.Class = noClass // Without a topology, nothing is waited for.
	}
}

func drawReferenced(rng *rand.Rand, step *Step) {
	drawSlot(rng, step)
	step.Kind = oneOf(rng, "ControlPlane", "Infrastructure")
}

func drawPause(rng *rand.Rand, step *Step) {
	drawSlot(rng, step)
	step.Kind = oneOf(rng, "Spec", "Annotation")
}

// slotName returns the name of a slot's Cluster. Some share it, in other namespaces;
// one is none that Fleet could use, and one so long that Fleet cuts it.
func slotName(slot int) string {
	return [slotCount]string{"one", "two", "three.dotted", "one", "two", "production-eu-west-1-payments-cluster0001"}[slot]
}

func createCluster(r *run, step Step) (bool, error) { return r.createClusterAs(admin, step) }

func (r *run) createClusterAs(somebody client.Client, step Step) (bool, error) {
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
		cluster.Annotations = map[string]string{pinKey: "pinned-" + fmt.Sprint(step.Cluster)}
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
		if step.ClassNamespace != ownNamespace {
			cluster.Spec.Topology.ClassRef.Namespace = r.namespace(step.ClassNamespace)
		}
	}
	requested := cluster.DeepCopy()
	taken := oracle.IsTaken(r.state, requested)
	if err := somebody.Create(ctx, cluster); err != nil {
		return false, err
	}
	key := client.ObjectKeyFromObject(cluster)
	r.slots[step.Cluster], r.state.Clusters[key] = key, cluster
	if r.webhookUp && !r.dirty && taken {
		return true, &oracleError{fmt.Sprintf("Cluster %s was not refused, and another has its namespace in Fleet", key)}
	}
	if r.webhookUp {
		return true, sameStamp("the answer to CREATE", oracle.Admitted(r.state, requested), cluster)
	}
	return true, checkLabelled(cluster)
}

// sameStamp compares labels and annotations.
func sameStamp(what string, want, got *clusterv1.Cluster) error {
	view := func(cluster *clusterv1.Cluster) string {
		all := map[string]string{}
		for key, value := range cluster.Labels {
			all["label "+key] = value
		}
		for key, value := range cluster.Annotations {
			all["annotation "+key] = value
		}
		return asYAML(all)
	}
	if diff := oracle.Diff(view(want), view(got)); diff != "" {
		return &oracleError{what + " of Cluster " + client.ObjectKeyFromObject(got).String() + ":\n" + diff}
	}
	return nil
}

func asYAML(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// changeCluster patches the Cluster of a step's slot.
func (r *run) changeCluster(step Step, change map[string]any) (bool, error) {
	return r.changeClusterAs(admin, step, change)
}

func (r *run) changeClusterAs(somebody client.Client, step Step, change map[string]any) (bool, error) {
	before := r.cluster(step)
	if before == nil {
		return false, nil
	}
	cluster := before.DeepCopy()
	if err := patchAs(somebody, cluster, change); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.state.Clusters[r.slots[step.Cluster]] = cluster
	return true, nil
}

// hasKeepers: there may be somebody for whom groups and mappings are kept as they are,
// but not made. Then it matters whether they were there, and how, when the last for
// whom they are made went.
func (r *run) hasKeepers() bool {
	if mayDeselect(r, Step{}) {
		return true
	}
	lives := map[types.UID]bool{}
	for _, cluster := range r.state.Clusters {
		lives[cluster.UID] = true
		_, annotated := cluster.Annotations["cluster.x-k8s.io/paused"]
		if annotated || ptr.Deref(cluster.Spec.Paused, false) || !cluster.DeletionTimestamp.IsZero() {
			return true
		}
	}
	for _, fleet := range r.state.FleetClusters {
		if !slices.ContainsFunc(fleet.OwnerReferences, func(owner metav1.OwnerReference) bool { return lives[owner.UID] }) {
			return true
		}
	}
	for _, class := range r.state.Classes {
		if strings.Contains(class.Name, "."+r.id+"-") { // It displaces the group of another class.
			return true
		}
	}
	return false
}

// leavesSomething: the Cluster or its Fleet Cluster does not go at once, and stays as it was.
func leavesSomething(r *run, step Step) bool {
	cluster := r.cluster(step)
	if cluster == nil {
		return false
	}
	if r.state.GarbageStays {
		return true
	}
	if len(cluster.Finalizers) > 0 && cluster.DeletionTimestamp.IsZero() {
		return true
	}
	if r.state.Config != nil && r.state.Config.Spec.Cluster != nil && isFalse(r.state.Config.Spec.Cluster.SetOwnerReferences) {
		return true
	}
	for _, fleet := range r.state.FleetClusters {
		if fleet.Namespace == cluster.Namespace && len(fleet.OwnerReferences) == 0 {
			return true
		}
	}
	return ptr.Deref(cluster.Spec.Paused, false)
}

func deleteCluster(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	if err := admin.Delete(ctx, cluster.DeepCopy()); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return true, r.wentOrWaits(cluster)
}

// wentOrWaits takes note of a Cluster that was deleted, or waits for its finalizer.
func (r *run) wentOrWaits(cluster *clusterv1.Cluster) error {
	key := client.ObjectKeyFromObject(cluster)
	r.deleted[key] = true
	current := &clusterv1.Cluster{}
	if err := admin.Get(ctx, key, current); err == nil {
		r.state.Clusters[key] = current
		return nil
	} else if client.IgnoreNotFound(err) != nil {
		return err
	}
	delete(r.state.Clusters, key)
	return r.waitGone(cluster)
}

func finishDeletion(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	rest := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(name string) bool { return name == finalizer })
	if err := patch(cluster.DeepCopy(), map[string]any{"metadata": map[string]any{"finalizers": rest}}); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return true, r.wentOrWaits(cluster)
}

// mayDeselect: a selector is in force, so that the Cluster may be frozen or withdrawn, or its
// agent have to call and to call no longer.
func mayDeselect(r *run, _ Step) bool {
	if r.state.Config == nil || r.state.Config.Spec.Cluster == nil {
		return false
	}
	cluster := r.state.Config.Spec.Cluster
	return cluster.Selector != nil || cluster.NamespaceSelector != nil || cluster.AgentInitiatedSelector != nil
}

func rebase(r *run, step Step) (bool, error) { return r.rebaseAs(admin, step) }

func (r *run) rebaseAs(somebody client.Client, step Step) (bool, error) {
	if step.Class == noClass {
		return r.changeStamped(somebody, step, map[string]any{"spec": map[string]any{"topology": nil}})
	}
	ref := map[string]any{"name": r.className(step), "namespace": nil}
	if step.ClassNamespace != ownNamespace {
		ref["namespace"] = r.namespace(step.ClassNamespace)
	}
	return r.changeStamped(somebody, step, map[string]any{"spec": map[string]any{"topology": map[string]any{"version": fixture.KubernetesVersion, "classRef": ref}}})
}

func labelCluster(r *run, step Step) (bool, error) {
	return r.changeStamped(admin, step, metadata("labels", step.Key, step.Value))
}

func annotateCluster(r *run, step Step) (bool, error) {
	return r.changeStamped(admin, step, metadata("annotations", step.Key, step.Value))
}

// changeStamped changes a Cluster in a way that the webhook sees, and checks that its
// class labels are right at once.
func (r *run) changeStamped(somebody client.Client, step Step, change map[string]any) (bool, error) {
	before := r.cluster(step)
	done, err := r.changeClusterAs(somebody, step, change)
	if !done || err != nil || r.cluster(step).ResourceVersion == before.ResourceVersion {
		return done, err // An update that changes nothing is not shown to the webhook.
	}
	if !r.webhookUp {
		return true, checkLabelled(r.cluster(step))
	}
	return true, sameUpdate(r.cluster(step), r.cluster(step))
}

// sameUpdate checks the answer to an update: the labels are those of the class, and
// the pin is that of another Cluster.
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

func dropPin(r *run, step Step) (bool, error) { return r.dropPinAs(admin, step) }

// dropPinAs drops a pin or forges one: under a name that nobody has, or under that of a
// Fleet Cluster of somebody else.
func (r *run) dropPinAs(somebody client.Client, step Step) (bool, error) {
	before := r.cluster(step)
	if before == nil {
		return false, nil
	}
	var name, owner any
	switch step.Value {
	case "forged":
		name, owner = "forged-"+fmt.Sprint(step.Cluster), "forged"
	case "taken":
		// Two that have nothing but the same pin compete for the name, and either may win.
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
	done, err := r.changeClusterAs(somebody, step, map[string]any{"metadata": map[string]any{"annotations": change}})
	if !done || err != nil || !r.webhookUp {
		return done, err
	}
	return true, sameUpdate(r.cluster(step), before) // The webhook puts the pin back, whatever was asked for.
}

// nameOfAnother returns the first Fleet Cluster beside a Cluster that is another's.
func (r *run) nameOfAnother(cluster *clusterv1.Cluster) string {
	var names []string
	for key, fleet := range r.state.FleetClusters {
		for _, owner := range fleet.OwnerReferences {
			if key.Namespace == cluster.Namespace && owner.UID != cluster.UID {
				names = append(names, key.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Concat(names, []string{""})[0]
}

// isImported: the Cluster owns a Fleet Cluster and has reported so.
func (r *run) isImported(cluster *clusterv1.Cluster) bool {
	condition := meta.FindStatusCondition(cluster.Status.Conditions, "FleetImported")
	if condition == nil || condition.Reason != "Imported" {
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
	if step.Kind == "" {
		for _, kind := range []string{"ControlPlane", "Infrastructure"} {
			if _, err := createReferenced(r, Step{Cluster: step.Cluster, Kind: kind}); err != nil {
				return false, err
			}
		}
	}
	if step.Kind != "NoReferences" {
		controlPlane, infrastructure := referenceTo("ControlPlane", cluster), referenceTo("Infrastructure", cluster)
		done, err := r.changeCluster(step, map[string]any{"spec": map[string]any{
			"controlPlaneRef":   map[string]any{"apiGroup": controlPlane.Group, "kind": controlPlane.Kind, "name": controlPlane.Name},
			"infrastructureRef": map[string]any{"apiGroup": infrastructure.Group, "kind": infrastructure.Kind, "name": infrastructure.Name},
		}})
		if !done || err != nil {
			return done, err
		}
	}
	return r.changeStatus(step, true)
}

func uninitialize(r *run, step Step) (bool, error) {
	if cluster := r.cluster(step); cluster == nil || !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return false, nil
	}
	return r.changeStatus(step, false)
}

func (r *run) changeStatus(step Step, initialized bool) (bool, error) {
	cluster := r.cluster(step).DeepCopy()
	text, err := json.Marshal(map[string]any{"status": map[string]any{"initialization": map[string]any{"controlPlaneInitialized": initialized}}})
	if err != nil {
		return false, err
	}
	if err := admin.Status().Patch(ctx, cluster, client.RawPatch("application/merge-patch+json", text)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.state.Clusters[r.slots[step.Cluster]] = cluster
	return true, nil
}

// referenced returns what a Cluster is to refer to.
func referenced(kind string, cluster *clusterv1.Cluster) *unstructured.Unstructured {
	if kind == "ControlPlane" {
		return fixture.ControlPlane(cluster)
	}
	return fixture.Infrastructure(cluster)
}

func referenceTo(kind string, cluster *clusterv1.Cluster) oracle.Reference {
	return oracle.ReferenceTo(referenced(kind, cluster))
}

func createReferenced(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	object := referenced(step.Kind, cluster)
	ref := oracle.ReferenceTo(object)
	if r.state.Referenced[ref] != nil {
		return false, nil
	}
	if err := admin.Create(ctx, object); err != nil {
		return false, err
	}
	r.state.Referenced[ref] = object
	return true, nil
}

func scaleControlPlane(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	ref := referenceTo("ControlPlane", cluster)
	if r.state.Referenced[ref] == nil {
		return false, nil
	}
	object := r.state.Referenced[ref].DeepCopy()
	if err := patch(object, map[string]any{"spec": map[string]any{"replicas": json.Number(step.Value)}}); err != nil {
		return false, err
	}
	r.state.Referenced[ref] = object
	return true, nil
}

func deleteReferenced(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil {
		return false, nil
	}
	ref := referenceTo(step.Kind, cluster)
	object := r.state.Referenced[ref]
	if object == nil {
		return false, nil
	}
	delete(r.state.Referenced, ref)
	return true, client.IgnoreNotFound(admin.Delete(ctx, object))
}

// pause sets one of the two ways to pause a Cluster; an empty value unsets it.
func pause(value string) func(*run, Step) (bool, error) {
	return func(r *run, step Step) (bool, error) {
		if step.Kind == "Annotation" {
			return r.changeCluster(step, metadata("annotations", "cluster.x-k8s.io/paused", value))
		}
		var paused any
		if value != "" {
			paused = true
		}
		return r.changeCluster(step, map[string]any{"spec": map[string]any{"paused": paused}})
	}
}

// legacyFinalizer puts CAAPF's finalizer on a Cluster.
func legacyFinalizer(r *run, step Step) (bool, error) {
	cluster := r.cluster(step)
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	rest := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(name string) bool { return name == domain })
	return r.changeCluster(step, map[string]any{"metadata": map[string]any{"finalizers": append(rest, domain)}})
}
