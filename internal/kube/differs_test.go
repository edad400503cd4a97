package kube

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

func wantedCluster() *fleetv1.Cluster {
	in := settings.Default()
	in.Cluster.AgentEnvVars = []corev1.EnvVar{
		{Name: "A", Value: "b"},
		{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1000m")}}},
	}
	in.Cluster.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "access"}}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod", UID: "uid", Labels: map[string]string{"env": "prod"},
		Annotations: map[string]string{"note": "kept", "fleet.addons.cluster.x-k8s.io/cluster-name": "prod", "fleet.addons.cluster.x-k8s.io/owned-by": "fleet-addon-config"},
	}}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: "classes", Name: "standard"}
	values := map[string]any{"Cluster": map[string]any{"count": int64(3), "none": []any{nil}}}
	return desired.FleetCluster(in, cluster, nil, values, desired.Targets{Group: "group", Mapping: "mapping"}, "")
}

func wantedGroup() *fleetv1.ClusterGroup {
	return desired.ClassGroup(settings.Default(), &desired.Class{ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "standard", UID: "uid"}})
}

// stored returns an object as a cache has it after an apply: with additions of the API server and others,
// read from JSON, and trimmed.
func stored[T client.Object](t *testing.T, want T, others func(T)) T {
	t.Helper()
	fields, err := desired.Configuration(want)
	if err != nil {
		t.Fatal(err)
	}
	configured, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	have := reflect.New(reflect.TypeOf(want).Elem()).Interface().(T)
	if err := json.Unmarshal(configured, have); err != nil {
		t.Fatal(err)
	}
	have.SetUID("assigned")
	have.SetResourceVersion("7")
	have.SetGeneration(2)
	have.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}}})
	if others != nil {
		others(have)
	}
	trimmed, err := Trim(have)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Trim(trimmed.(client.Object).DeepCopyObject())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(trimmed, again); diff != "" {
		t.Errorf("trimming twice (-once +twice):\n%s", diff)
	}
	return trimmed.(T)
}

// An applied object does not differ, even after writes by others.
func TestWhatWasAppliedDoesNotDiffer(t *testing.T) {
	addMetadata := func(object client.Object) {
		labels, annotations := object.GetLabels(), object.GetAnnotations()
		labels["added"], annotations["added"] = "by-others", "by-others"
		object.SetFinalizers([]string{"fleet.cattle.io/cluster-finalizer"})
		object.SetOwnerReferences(append([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}}, object.GetOwnerReferences()...))
	}
	bare := wantedCluster()
	bare.Spec.TemplateValues, bare.OwnerReferences, bare.Spec.AgentTolerations, bare.Spec.AgentEnvVars = nil, nil, []corev1.Toleration{}, nil
	bare.Spec.AgentPullSecrets = nil
	none := wantedCluster()
	none.Spec.AgentPullSecrets = &[]corev1.LocalObjectReference{}
	tests := map[string][2]client.Object{
		"Cluster without pull secrets": {none, stored(t, none, nil)},
		"Cluster for which others set pull secrets": {bare, stored(t, bare, func(have *fleetv1.Cluster) {
			have.Spec.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "by-others"}}
		})},
		"Cluster":        {wantedCluster(), stored(t, wantedCluster(), nil)},
		"bare Cluster":   {bare, stored(t, bare, nil)},
		"ClusterGroup":   {wantedGroup(), stored(t, wantedGroup(), nil)},
		"Mapping":        {desired.Mapping("classes", "team"), stored(t, desired.Mapping("classes", "team"), nil)},
		"RetiredMapping": {desired.RetiredMapping("classes", "team"), stored(t, desired.RetiredMapping("classes", "team"), nil)},
		"Cluster that Fleet and others wrote to": {wantedCluster(), stored(t, wantedCluster(), func(have *fleetv1.Cluster) {
			addMetadata(have)
			have.Spec.ClientID, have.Spec.RedeployAgentGeneration = "by-fleet", 5
			have.Status.Namespace = "cluster-team-prod"
		})},
		"ClusterGroup that others wrote to": {wantedGroup(), stored(t, wantedGroup(), func(have *fleetv1.ClusterGroup) { addMetadata(have); have.Status.ClusterCount = 3 })},
		"Mapping that others wrote to":      {desired.Mapping("classes", "team"), stored(t, desired.Mapping("classes", "team"), func(have *fleetv1.BundleNamespaceMapping) { addMetadata(have) })},
		"Cluster without wanted values": {bare, stored(t, bare, func(have *fleetv1.Cluster) {
			have.Spec.TemplateValues = &fleetv1.GenericMap{Data: map[string]any{"by": "others"}}
		})},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if Differs(test[0], test[1]) {
				t.Errorf("it differs: (-want +have)\n%s", cmp.Diff(test[0], test[1]))
			}
		})
	}
}

func TestDiffers(t *testing.T) {
	clusters := map[string]func(*fleetv1.Cluster){
		"label missing":       func(have *fleetv1.Cluster) { delete(have.Labels, "env") },
		"label altered":       func(have *fleetv1.Cluster) { have.Labels["env"] = "test" },
		"labels gone":         func(have *fleetv1.Cluster) { have.Labels = nil },
		"annotation missing":  func(have *fleetv1.Cluster) { delete(have.Annotations, "note") },
		"annotation altered":  func(have *fleetv1.Cluster) { have.Annotations["note"] = "x" },
		"another was applied": func(have *fleetv1.Cluster) { have.Annotations[desired.HashAnnotation] = "x" },
		"targets are others":  func(have *fleetv1.Cluster) { have.Annotations[desired.TargetingAnnotation] = "x" },
		"owner gone":          func(have *fleetv1.Cluster) { have.OwnerReferences = nil },
		"owner altered":       func(have *fleetv1.Cluster) { have.OwnerReferences[0].UID = "x" },
		"owner blocks":        func(have *fleetv1.Cluster) { have.OwnerReferences[0].BlockOwnerDeletion = ptr.To(true) },
		"kubeConfigSecret":    func(have *fleetv1.Cluster) { have.Spec.KubeConfigSecret = "x" },
		"agentNamespace":      func(have *fleetv1.Cluster) { have.Spec.AgentNamespace = "" },
		"toleration altered":  func(have *fleetv1.Cluster) { have.Spec.AgentTolerations[0].Key = "x" },
		"toleration added": func(have *fleetv1.Cluster) {
			have.Spec.AgentTolerations = append(have.Spec.AgentTolerations, corev1.Toleration{})
		},
		"tolerations gone":     func(have *fleetv1.Cluster) { have.Spec.AgentTolerations = nil },
		"environment altered":  func(have *fleetv1.Cluster) { have.Spec.AgentEnvVars[0].Value = "x" },
		"environment gone":     func(have *fleetv1.Cluster) { have.Spec.AgentEnvVars = nil },
		"pull secrets altered": func(have *fleetv1.Cluster) { (*have.Spec.AgentPullSecrets)[0].Name = "x" },
		"pull secret added": func(have *fleetv1.Cluster) {
			have.Spec.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "access"}, {Name: "x"}}
		},
		"pull secrets emptied": func(have *fleetv1.Cluster) { *have.Spec.AgentPullSecrets = nil },
		"pull secrets gone":    func(have *fleetv1.Cluster) { have.Spec.AgentPullSecrets = nil },
		"hostNetwork altered":  func(have *fleetv1.Cluster) { have.Spec.HostNetwork = ptr.To(false) },
		"hostNetwork gone":     func(have *fleetv1.Cluster) { have.Spec.HostNetwork = nil },
		"values altered":       func(have *fleetv1.Cluster) { have.Spec.TemplateValues.Data["x"] = "y" },
		"values gone":          func(have *fleetv1.Cluster) { have.Spec.TemplateValues = nil },
		"values forged": func(have *fleetv1.Cluster) {
			have.Spec.TemplateValues.Data = map[string]any{desired.HashAnnotation: "x"}
		},
	}
	for name, change := range clusters {
		t.Run("Cluster: "+name, func(t *testing.T) {
			if !Differs(wantedCluster(), stored(t, wantedCluster(), change)) {
				t.Error("it does not differ")
			}
		})
	}
	groups := map[string]func(*fleetv1.ClusterGroup){
		"selector altered": func(have *fleetv1.ClusterGroup) { have.Spec.Selector.MatchLabels["x"] = "y" },
		"selector gone":    func(have *fleetv1.ClusterGroup) { have.Spec.Selector = nil },
		"label missing":    func(have *fleetv1.ClusterGroup) { delete(have.Labels, stamp.ManagedByLabel) },
		"owner gone":       func(have *fleetv1.ClusterGroup) { have.OwnerReferences = nil },
	}
	for name, change := range groups {
		t.Run("ClusterGroup: "+name, func(t *testing.T) {
			if !Differs(wantedGroup(), stored(t, wantedGroup(), change)) {
				t.Error("it does not differ")
			}
		})
	}
	mappings := map[string]func(*fleetv1.BundleNamespaceMapping){
		"bundleSelector altered":  func(have *fleetv1.BundleNamespaceMapping) { have.BundleSelector.MatchExpressions = nil },
		"bundleSelector gone":     func(have *fleetv1.BundleNamespaceMapping) { have.BundleSelector = nil },
		"namespaceSelector wider": func(have *fleetv1.BundleNamespaceMapping) { have.NamespaceSelector.MatchLabels = nil },
		"namespaceSelector gone":  func(have *fleetv1.BundleNamespaceMapping) { have.NamespaceSelector = nil },
		"label missing":           func(have *fleetv1.BundleNamespaceMapping) { have.Labels = nil },
		"retired":                 func(have *fleetv1.BundleNamespaceMapping) { *have = *desired.RetiredMapping("classes", "team") },
	}
	for name, change := range mappings {
		t.Run("Mapping: "+name, func(t *testing.T) {
			if !Differs(desired.Mapping("classes", "team"), stored(t, desired.Mapping("classes", "team"), change)) {
				t.Error("it does not differ")
			}
		})
	}
	t.Run("a retired mapping made to map again", func(t *testing.T) {
		if !Differs(desired.RetiredMapping("classes", "team"), stored(t, desired.Mapping("classes", "team"), nil)) {
			t.Error("it does not differ")
		}
	})
	t.Run("a kind it does not know", func(t *testing.T) {
		if !Differs(&corev1.ConfigMap{}, &corev1.ConfigMap{}) {
			t.Error("it does not differ, although the kind is unknown")
		}
	})
}

func TestTrimCached(t *testing.T) {
	fields := []metav1.ManagedFieldsEntry{{Manager: "a", Operation: "Apply", APIVersion: "v1", FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}, Subresource: "status"}}
	applied := map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "runtime.cluster.x-k8s.io/pending-hooks": "AfterClusterUpgrade", "kept": "yes"}
	initialized := clusterv1.ClusterInitializationStatus{ControlPlaneInitialized: ptr.To(true)}
	retained := []metav1.Condition{{Type: "FleetImported"}, {Type: clusterv1.ClusterControlPlaneInitializedCondition}}
	conditions := append([]metav1.Condition{{Type: "Ready"}}, retained...)
	tests := map[string]struct{ given, want any }{
		"managers stay, fields go": {
			given: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{ManagedFields: fields, Annotations: applied, Labels: map[string]string{"a": "b"}}},
			want: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "a", Operation: "Apply"}},
				Annotations:   map[string]string{"kept": "yes"}, Labels: map[string]string{"a": "b"},
			}},
		},
		"a CAPI Cluster": {
			given: &clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{ManagedFields: fields, Name: "prod"},
				Spec:       clusterv1.ClusterSpec{ControlPlaneRef: clusterv1.ContractVersionedObjectReference{Name: "kept"}},
				Status:     clusterv1.ClusterStatus{Phase: "Provisioned", Conditions: conditions, Initialization: initialized, FailureDomains: []clusterv1.FailureDomain{{Name: "x"}}},
			},
			want: &clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Name: "prod"},
				Spec:       clusterv1.ClusterSpec{ControlPlaneRef: clusterv1.ContractVersionedObjectReference{Name: "kept"}},
				Status:     clusterv1.ClusterStatus{Conditions: retained, Initialization: initialized},
			},
		},
		"not an object": {given: "tombstone", want: "tombstone"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Trim(test.given)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Trim (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a Fleet Cluster keeps no value", func(t *testing.T) {
		have := stored(t, wantedCluster(), func(have *fleetv1.Cluster) { have.Status.Namespace = "x" })
		if diff := cmp.Diff(desired.ShortValues(wantedCluster().Spec.TemplateValues.Data), have.Spec.TemplateValues.Data); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(fleetv1.ClusterStatus{Namespace: "x"}, have.Status); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

// All Fleet Clusters have the pull secrets of the settings, by the same pointer.
func TestTrimSharesNothing(t *testing.T) {
	many := make([]corev1.LocalObjectReference, maxPullSecrets+2)
	one := &fleetv1.Cluster{Spec: fleetv1.ClusterSpec{AgentPullSecrets: &many}}
	if _, err := Trim(one); err != nil || len(many) != maxPullSecrets+2 || len(*one.Spec.AgentPullSecrets) != maxPullSecrets+1 {
		t.Errorf("of %d, the object has %d (%v)", len(many), len(*one.Spec.AgentPullSecrets), err)
	}
}

func TestConfigurationHoldsOnlyWhatIsWanted(t *testing.T) {
	object, err := desired.Configuration(wantedCluster())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range [][]string{{"status"}, {"metadata", "creationTimestamp"}, {"metadata", "uid"}, {"metadata", "resourceVersion"}, {"metadata", "managedFields"}, {"metadata", "finalizers"}, {"spec", "clientID"}, {"spec", "agentSchedulingCustomization"}, {"spec", "paused"}} {
		if value, found, _ := unstructured.NestedFieldNoCopy(object, path...); found {
			t.Errorf("%v is %v", path, value)
		}
	}
	for _, path := range [][]string{{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "ownerReferences"}, {"spec", "kubeConfigSecret"}, {"spec", "hostNetwork"}, {"spec", "templateValues", "Cluster"}} {
		if _, found, _ := unstructured.NestedFieldNoCopy(object, path...); !found {
			t.Errorf("%v is missing", path)
		}
	}
}
