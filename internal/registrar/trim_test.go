package registrar

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// large is a value that tenants may write, and the registrar never reads.
var large = strings.Repeat("x", 64<<10)

func metaOf(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: "1", ResourceVersion: "7", Generation: 5, CreationTimestamp: metav1.NewTime(now),
		Labels:        map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		Annotations:   map[string]string{"note": large},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: &metav1.FieldsV1{Raw: []byte(large)}}},
	}
}

func wholeCluster() *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metaOf("prod")}
	cluster.Annotations[stamp.RotateAnnotation], cluster.Annotations[clusterv1.PausedAnnotation] = "1", ""
	cluster.Spec.Paused = ptr.To(true)
	cluster.Spec.Topology.ClassRef.Name = "standard"
	cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: large}}
	cluster.Status.Phase = large
	cluster.Status.Conditions = []metav1.Condition{{Type: "Available", Message: large}, {Type: addonsv1.FleetAgentManifestReadyCondition, Reason: "ManifestReady"}}
	return cluster
}

func wholeFleetCluster() *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{ObjectMeta: metaOf("prod")}
	fleet.Annotations[stamp.ImportedFromAnnotation] = "prod"
	fleet.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "2"}}
	fleet.Spec.ClientID, fleet.Spec.KubeConfigSecret, fleet.Spec.AgentNamespace = "drawn-in-advance", "prod-kubeconfig", "agents"
	fleet.Spec.TemplateValues = &fleetv1.GenericMap{Data: map[string]any{"a": large}}
	fleet.Status.Namespace = deployedIn
	fleet.Status.Agent.LastSeen = metav1.NewTime(now.Add(time.Hour))
	fleet.Status.Display.ReadyBundles = large
	return fleet
}

func wholeRegistration() *fleetv1.ClusterRegistration {
	registration := &fleetv1.ClusterRegistration{ObjectMeta: metaOf("muster-1")}
	registration.OwnerReferences = []metav1.OwnerReference{{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "2"}}
	registration.Spec = fleetv1.ClusterRegistrationSpec{ClientID: "drawn-in-advance", ClientRandom: "random", ClusterLabels: map[string]string{"a": large}}
	registration.Status = fleetv1.ClusterRegistrationStatus{Granted: true, ClusterName: "prod"}
	return registration
}

func wholeBundle() *fleetv1.Bundle {
	bundle := &fleetv1.Bundle{ObjectMeta: metaOf(stamp.AgentBundle("prod"))}
	bundle.Spec.Resources = []fleetv1.BundleResource{{Name: "other.yaml", Content: large}, {Name: agentResource, Content: "kind: Deployment"}}
	bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "prod", Name: large}}
	return bundle
}

func TestTrim(t *testing.T) {
	trimmed := func(object client.Object) client.Object {
		if _, err := trim(object); err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > 2<<10 {
			t.Errorf("%T still has %d bytes", object, len(content))
		}
		return object
	}
	same := func(what string, want, got any) {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	cluster, whole := trimmed(wholeCluster()).(*clusterv1.Cluster), wholeCluster()
	same("the class", whole.GetClassKey(), cluster.GetClassKey())
	same("paused", whole.Spec.Paused, cluster.Spec.Paused)
	same("its labels", whole.Labels, cluster.Labels)
	same("its annotations", map[string]string{stamp.RotateAnnotation: "1", clusterv1.PausedAnnotation: ""}, cluster.Annotations)
	same("its conditions", whole.Status.Conditions[1:], cluster.Status.Conditions)

	fleet, wholeFleet := trimmed(wholeFleetCluster()).(*fleetv1.Cluster), wholeFleetCluster()
	same("whose it is", stamp.OriginOf(wholeFleet), stamp.OriginOf(fleet))
	same("that it is Muster's", true, stamp.IsOurs(fleet) && stamp.IsManager(fleet))
	ranchers := wholeFleetCluster()
	ranchers.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.RancherClusterLabel: "c-abcde"}
	delete(ranchers.Annotations, stamp.ImportedFromAnnotation)
	same("that Rancher's is not", false, stamp.IsOurs(trimmed(ranchers).(*fleetv1.Cluster)))
	same("its clientID", wholeFleet.Spec.ClientID, fleet.Spec.ClientID)
	same("its kubeconfig", wholeFleet.Spec.KubeConfigSecret, fleet.Spec.KubeConfigSecret)
	same("its agent's namespace", wholeFleet.Spec.AgentNamespace, fleet.Spec.AgentNamespace)
	same("where Fleet deploys", wholeFleet.Status.Namespace, fleet.Status.Namespace)
	same("that it has checked in", false, fleet.Status.Agent.LastSeen.IsZero())
	same("that it was changed", true, fleet.Generation >= changed)

	namespace := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "cluster-team-prod", Annotations: map[string]string{
		"note": strings.Repeat("x", 4<<10), "fleet.cattle.io/cluster-namespace": "team", "fleet.cattle.io/cluster": "prod",
	}}}
	same("whose namespace in Fleet it is", map[string]string{"fleet.cattle.io/cluster-namespace": "team", "fleet.cattle.io/cluster": "prod"},
		trimmed(namespace).GetAnnotations())

	registration, wholeRegistration := trimmed(wholeRegistration()).(*fleetv1.ClusterRegistration), wholeRegistration()
	wholeRegistration.Spec.ClusterLabels = nil
	same("what is registered", wholeRegistration.Spec, registration.Spec)
	same("how far", wholeRegistration.Status, registration.Status)
	same("for which", wholeRegistration.OwnerReferences, registration.OwnerReferences)
	same("by whom", true, isOurs(*registration))

	bundle := trimmed(wholeBundle()).(*fleetv1.Bundle)
	same("the agent", "kind: Deployment", agentOf(bundle))
	same("whose", "prod", bundle.Spec.Targets[0].ClusterName)
	stray := wholeBundle()
	stray.Name = "anything"
	same("somebody's bundle", "", agentOf(trimmed(stray).(*fleetv1.Bundle)))
}

// TestTrimIsBounded: tenants decide how large objects in their namespace are, but the cache keeps a
// bounded part of each.
func TestTrimIsBounded(t *testing.T) {
	many := func(keys ...string) map[string]string {
		all := map[string]string{}
		for i := range 1000 {
			all[fmt.Sprintf("%s/%d", stamp.Domain, i)] = "x"
		}
		for _, key := range keys {
			all[key] = large
		}
		return all
	}
	cluster := wholeCluster()
	cluster.Annotations = many(stamp.OwnedByAnnotation, stamp.ClusterNameAnnotation, stamp.RegistrationAnnotation, stamp.RotateAnnotation, clusterv1.PausedAnnotation)
	fleet := wholeFleetCluster()
	fleet.Annotations = many(stamp.ImportedFromAnnotation, stamp.ImportedUIDAnnotation, stamp.AdoptAnnotation)
	fleet.Labels = many()
	fleet.ManagedFields = slices.Repeat(fleet.ManagedFields, 1000)
	fleet.Spec.ClientID, fleet.Spec.KubeConfigSecret, fleet.Spec.AgentNamespace, fleet.Status.Namespace = large, large, large, large
	registration := wholeRegistration()
	registration.Annotations, registration.Labels = many(), many()
	registration.Spec.ClientID, registration.Spec.ClientRandom, registration.Status.ClusterName = large, large, large
	bundle := wholeBundle()
	bundle.Annotations, bundle.Labels = many(), many()
	bundle.Spec.Resources[1].Content = strings.Repeat(large, 4)
	bundle.OwnerReferences = slices.Repeat([]metav1.OwnerReference{{Kind: "ConfigMap", Name: large}}, 10)
	named := wholeBundle() // According to its name, it is Fleet's Bundle for a cluster.
	named.Name = stamp.AgentBundle(large)
	named.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: large}}
	namespace := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "team", Annotations: many(fleetv1.ClusterNamespaceAnnotation, fleetv1.ClusterAnnotation)}}
	for _, test := range []struct {
		object client.Object
		most   int
	}{{cluster, 4 << 10}, {fleet, 4 << 10}, {registration, 4 << 10}, {bundle, 132 << 10}, {named, 4 << 10}, {namespace, 4 << 10}} {
		once := ""
		for range 2 { // Trimming again changes nothing.
			if _, err := trim(test.object); err != nil {
				t.Fatal(err)
			}
			content, err := json.Marshal(test.object)
			if err != nil {
				t.Fatal(err)
			}
			if len(content) > test.most {
				t.Errorf("%T still has %d bytes, more than %d", test.object, len(content), test.most)
			}
			if once != "" && string(content) != once {
				t.Errorf("%T changes when it is trimmed again", test.object)
			}
			once = string(content)
		}
	}
	if agentOf(bundle) == "" {
		t.Error("the agent is no longer recognized as too large")
	}
}

// TestLongRotations: two long values of the annotation with the same beginning differ.
func TestLongRotations(t *testing.T) {
	long, longer := wholeCluster(), wholeCluster()
	long.Annotations[stamp.RotateAnnotation], longer.Annotations[stamp.RotateAnnotation] = large, large+"x"
	for _, cluster := range []client.Object{long, longer} {
		if _, err := trim(cluster); err != nil {
			t.Fatal(err)
		}
	}
	s := met{registered: "granted"}.scope()
	s.cluster.Annotations = long.Annotations
	s.registrations[0].Name = s.registrationName()
	s.recorded = s.record()
	if got := len(s.recorded.rotation); got != 2*sha256.Size {
		t.Errorf("the record holds %d bytes of it", got)
	}
	if s.isRotated() {
		t.Error("a rotation that was carried out is requested again")
	}
	s.cluster.Annotations = longer.Annotations
	if !s.isRotated() {
		t.Error("another long value is not noticed")
	}
	s.cluster.Annotations = map[string]string{stamp.RotateAnnotation: ""}
	if s.isRotated() || s.rotation() != "" {
		t.Error("an empty value requests a rotation")
	}
}

// A change of fields that the registrar does not read causes no reconcile: agents report every 15 minutes, and
// each reconcile of a registered Cluster costs a request for its Secret.
func TestNews(t *testing.T) {
	passes := func(before, after client.Object) bool {
		t.Helper()
		after.SetResourceVersion("8")
		for _, object := range []client.Object{before, after} {
			if _, err := trim(object); err != nil {
				t.Fatal(err)
			}
		}
		return kube.News.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	for name, test := range map[string]struct {
		change func(*fleetv1.Cluster)
		passes bool
	}{
		"the agent reports": {change: func(fleet *fleetv1.Cluster) { fleet.Status.Agent.LastSeen = metav1.NewTime(now.Add(2 * time.Hour)) }},
		"bundles get ready": {change: func(fleet *fleetv1.Cluster) { fleet.Status.Display.ReadyBundles = "1/1" }},
		"template values": {change: func(fleet *fleetv1.Cluster) {
			fleet.Spec.TemplateValues = nil
			fleet.Generation++
			fleet.ManagedFields[0].Time = ptr.To(metav1.NewTime(now))
		}},
		"a clientID":                    {func(fleet *fleetv1.Cluster) { fleet.Spec.ClientID = "another" }, true},
		"its namespace":                 {func(fleet *fleetv1.Cluster) { fleet.Status.Namespace = "elsewhere" }, true},
		"its kubeconfig":                {func(fleet *fleetv1.Cluster) { fleet.Spec.KubeConfigSecret = "" }, true},
		"whose it is":                   {func(fleet *fleetv1.Cluster) { fleet.OwnerReferences = nil }, true},
		"it has checked in, or has not": {func(fleet *fleetv1.Cluster) { fleet.Status.Agent.LastSeen = metav1.Time{} }, true},
		"it goes":                       {func(fleet *fleetv1.Cluster) { fleet.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
	} {
		after := wholeFleetCluster()
		test.change(after)
		if got := passes(wholeFleetCluster(), after); got != test.passes {
			t.Errorf("%s: passes %v", name, got)
		}
	}
	moved := wholeCluster()
	moved.Status.Conditions[0].Message, moved.Generation, moved.Spec.Topology.Variables = "ready", 6, nil
	if passes(wholeCluster(), moved) {
		t.Error("a write by Cluster API causes a reconcile")
	}
	rotated := wholeCluster()
	rotated.Annotations[stamp.RotateAnnotation] = "2"
	if !passes(wholeCluster(), rotated) {
		t.Error("a rotation causes no reconcile")
	}
}
