package desired

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// withoutHash returns annotations without the one that depends on all the rest.
func withoutHash(t *testing.T, annotations map[string]string) map[string]string {
	t.Helper()
	if len(annotations[HashAnnotation]) != 32 {
		t.Errorf("the hash is %q", annotations[HashAnnotation])
	}
	result := map[string]string{}
	for key, value := range annotations {
		if key != HashAnnotation {
			result[key] = value
		}
	}
	return result
}

func TestFleetClusterWhole(t *testing.T) {
	cluster := makeCluster("team", "prod").Label("env", "prod").Annotation("note", "kept").Class("classes", "standard").Obj()
	cluster.Annotations[stamp.ClusterNameAnnotation] = "capi-prod"
	values := map[string]any{"Cluster": map[string]any{"x": "y"}}
	got := FleetCluster(settings.Default(), cluster, makeClass("classes", "standard", map[string]string{"tier": "gold"}), values, Targets{}, "")
	want := &fleetv1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team",
			Name:      "capi-prod",
			Labels: map[string]string{
				"env": "prod", "tier": "gold", "app.kubernetes.io/managed-by": "muster",
				"clusterclass-name.fleet.addons.cluster.x-k8s.io":      "standard",
				"clusterclass-namespace.fleet.addons.cluster.x-k8s.io": "classes",
			},
			Annotations: map[string]string{
				"note": "kept",
				"fleet.addons.cluster.x-k8s.io/imported-from": "prod",
				HashAnnotation: got.Annotations[HashAnnotation],
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "prod", UID: "uid-of-prod"}},
		},
		Spec: fleetv1.ClusterSpec{
			KubeConfigSecret: "prod-kubeconfig",
			AgentNamespace:   "fleet-addon-agent",
			AgentTolerations: settings.Default().Cluster.AgentTolerations,
			HostNetwork:      ptr.To(true),
			TemplateValues:   &fleetv1.GenericMap{Data: values},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("FleetCluster (-want +got):\n%s", diff)
	}
	withoutHash(t, got.Annotations)

	// A Cluster whose agent registers itself differs in nothing else.
	byAgent := FleetCluster(settings.Default(), cluster, makeClass("classes", "standard", map[string]string{"tier": "gold"}), values, Targets{}, "drawn")
	want.Spec.KubeConfigSecret, want.Spec.ClientID = "", "drawn"
	want.Annotations[HashAnnotation] = byAgent.Annotations[HashAnnotation]
	if diff := cmp.Diff(want, byAgent); diff != "" {
		t.Errorf("FleetCluster by agent (-want +got):\n%s", diff)
	}
	if byAgent.Annotations[HashAnnotation] == got.Annotations[HashAnnotation] {
		t.Error("changing the way of registration would change nothing")
	}
}

func TestFleetClusterLabels(t *testing.T) {
	longClass := strings.Repeat("c", 64)
	const managed = "app.kubernetes.io/managed-by"
	tests := map[string]struct {
		cluster *clusterBuilder
		class   map[string]string
		want    map[string]string
	}{
		"none":                          {cluster: makeCluster("team", "prod"), want: map[string]string{managed: "muster"}},
		"the Cluster wins":              {cluster: makeCluster("team", "prod").Label("both", "cluster"), class: map[string]string{"both": "class", "one": "class"}, want: map[string]string{managed: "muster", "both": "cluster", "one": "class"}},
		"an empty value wins":           {cluster: makeCluster("team", "prod").Label("both", ""), class: map[string]string{"both": "class"}, want: map[string]string{managed: "muster", "both": ""}},
		"managed-by is ours":            {cluster: makeCluster("team", "prod").Label(managed, "Helm"), class: map[string]string{managed: "Helm"}, want: map[string]string{managed: "muster"}},
		"forged stamp":                  {cluster: makeCluster("team", "prod").Label(stamp.ClassNameLabel, "forged"), class: map[string]string{stamp.ClassNamespaceLabel: "forged"}, want: map[string]string{managed: "muster"}},
		"a class in the same namespace": {cluster: makeCluster("team", "prod").Class("", "standard"), want: map[string]string{managed: "muster", stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: "team"}},
		"a class with long name":        {cluster: makeCluster("team", "prod").Class("classes", longClass), want: map[string]string{managed: "muster", stamp.ClassNameLabel: longClass[:54] + "-52b6419d", stamp.ClassNamespaceLabel: "classes"}},
		"reserved keys": {
			cluster: makeCluster("team", "prod").
				Label("fleet.cattle.io/cluster-management", "true").Label("fleet.cattle.io/shard-ref", "x").
				Label("management.cattle.io/cluster-display-name", "x").Label("objectset.rio.cattle.io/hash", "x").
				Label("fleet.addons.cluster.x-k8s.io/x", "x").Label("fleet.cattle.io", "kept").Label("my.fleet.cattle.io/x", "kept"),
			class: map[string]string{"fleet.cattle.io/shard-ref": "x", "management.cattle.io/x": "x"},
			want:  map[string]string{managed: "muster", "fleet.cattle.io": "kept", "my.fleet.cattle.io/x": "kept"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var class *Class
			if test.class != nil {
				class = makeClass("team", "standard", test.class)
			}
			got := FleetCluster(settings.Default(), test.cluster.Obj(), class, nil, Targets{}, "")
			if diff := cmp.Diff(test.want, got.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFleetClusterAnnotations(t *testing.T) {
	longClass := strings.Repeat("c", 64)
	const from = "fleet.addons.cluster.x-k8s.io/imported-from"
	tests := map[string]struct {
		cluster *clusterBuilder
		want    map[string]string
	}{
		"none": {cluster: makeCluster("team", "prod"), want: map[string]string{from: "prod"}},
		"reserved keys": {
			cluster: makeCluster("team", "prod").Annotation("note", "kept").
				Annotation("kubectl.kubernetes.io/last-applied-configuration", "{}").Annotation("kubectl.kubernetes.io/restartedAt", "kept").
				Annotation("meta.helm.sh/release-name", "x").Annotation("meta.helm.sh/release-namespace", "x").
				Annotation("fleet.cattle.io/agent-namespace", "x").Annotation("objectset.rio.cattle.io/id", "x").Annotation("management.cattle.io/x", "x").
				Annotation(stamp.AdoptAnnotation, "true").Annotation(HashAnnotation, "forged").Annotation(from, "forged").Annotation(TargetingAnnotation, "forged"),
			want: map[string]string{from: "prod", "note": "kept", "kubectl.kubernetes.io/restartedAt": "kept"},
		},
		"the full name of a class": {cluster: makeCluster("team", "prod").Class("classes", longClass), want: map[string]string{from: "prod", "fleet.addons.cluster.x-k8s.io/clusterclass-name": longClass}},
		"a class that fits":        {cluster: makeCluster("team", "prod").Class("classes", "standard").Annotation(stamp.ClassFullNameAnnotation, "stale"), want: map[string]string{from: "prod"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			class := makeClass("team", "standard", nil)
			class.Annotations = map[string]string{"of-the-class": "never copied"}
			got := FleetCluster(settings.Default(), test.cluster.Obj(), class, nil, Targets{}, "")
			if diff := cmp.Diff(test.want, withoutHash(t, got.Annotations)); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFleetClusterSettings(t *testing.T) {
	usual := fleetv1.ClusterSpec{
		KubeConfigSecret: "prod-kubeconfig", AgentNamespace: "fleet-addon-agent",
		AgentTolerations: settings.Default().Cluster.AgentTolerations, HostNetwork: ptr.To(true),
	}
	owned := []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "uid-of-prod"}}
	tests := map[string]struct {
		spec   string
		want   func(*fleetv1.ClusterSpec)
		owners []metav1.OwnerReference
	}{
		"defaults":            {spec: `{}`, owners: owned},
		"no owner":            {spec: `cluster: {setOwnerReferences: false}`},
		"agent namespace":     {spec: `cluster: {agentNamespace: cattle-fleet-system}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentNamespace = "cattle-fleet-system" }},
		"host network off":    {spec: `cluster: {hostNetwork: false}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.HostNetwork = ptr.To(false) }},
		"no tolerations":      {spec: `cluster: {agentTolerations: []}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentTolerations = []corev1.Toleration{} }},
		"other tolerations":   {spec: `cluster: {agentTolerations: [{operator: Exists}]}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentTolerations = []corev1.Toleration{{Operator: "Exists"}} }},
		"environment":         {spec: `cluster: {agentEnvVars: [{name: A, value: b}]}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentEnvVars = []corev1.EnvVar{{Name: "A", Value: "b"}} }},
		"pull secrets":        {spec: `cluster: {agentPullSecrets: [{name: a}]}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "a"}} }},
		"no pull secrets":     {spec: `cluster: {agentPullSecrets: []}`, owners: owned, want: func(s *fleetv1.ClusterSpec) { s.AgentPullSecrets = &[]corev1.LocalObjectReference{} }},
		"naming does nothing": {spec: `cluster: {naming: {prefix: late-}}`, owners: owned},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := FleetCluster(settingsOf(t, test.spec), makeCluster("team", "prod").Obj(), nil, nil, Targets{}, "")
			want := usual
			if test.want != nil {
				test.want(&want)
			}
			if diff := cmp.Diff(want, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.owners, got.OwnerReferences); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}
			if got.Name != "prod" {
				t.Errorf("the name is %q", got.Name)
			}
		})
	}
}

// FleetCluster must not change its inputs: other readers of the cache share them.
func TestFleetClusterLeavesItsInputsAlone(t *testing.T) {
	cluster := makeCluster("team", "prod").Label("a", "1").Label("fleet.cattle.io/x", "x").Class("classes", "standard").Obj()
	class := makeClass("classes", "standard", map[string]string{"b": "2", "management.cattle.io/x": "x"})
	clusterBefore, classBefore := cluster.DeepCopy(), class.DeepCopy()
	FleetCluster(settings.Default(), cluster, class, nil, Targets{Group: "g", Mapping: "m"}, "")
	CrossNamespaceGroup(settings.Default(), "team", cluster.GetClassKey(), class)
	ClassGroup(settings.Default(), class)
	if diff := cmp.Diff(clusterBefore, cluster); diff != "" {
		t.Errorf("the Cluster (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(classBefore, class); diff != "" {
		t.Errorf("the class (-before +after):\n%s", diff)
	}
}

// clusterBuilder builds CAPI Clusters.
type clusterBuilder struct{ clusterv1.Cluster }

// makeCluster starts from a Cluster that is pinned by its own name.
func makeCluster(namespace, name string) *clusterBuilder {
	b := &clusterBuilder{}
	b.Namespace, b.Name, b.UID = namespace, name, types.UID("uid-of-"+name)
	b.Cluster.Labels = map[string]string{}
	b.Cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: addonsv1.FleetAddonConfigName, stamp.ClusterNameAnnotation: name}
	return b
}

func (b *clusterBuilder) Label(key, value string) *clusterBuilder {
	b.Cluster.Labels[key] = value
	return b
}

func (b *clusterBuilder) Annotation(key, value string) *clusterBuilder {
	b.Cluster.Annotations[key] = value
	return b
}

func (b *clusterBuilder) Class(namespace, name string) *clusterBuilder {
	b.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: namespace, Name: name}
	return b
}

func (b *clusterBuilder) Variable(name, value string) *clusterBuilder {
	variable := clusterv1.ClusterVariable{Name: name}
	variable.Value.Raw = []byte(value)
	b.Spec.Topology.Variables = append(b.Spec.Topology.Variables, variable)
	return b
}

func (b *clusterBuilder) Obj() *clusterv1.Cluster { return b.DeepCopy() }

func makeClass(namespace, name string, labels map[string]string) *Class {
	return &Class{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid-of-" + types.UID(name), Labels: labels}}
}

func settingsOf(t *testing.T, spec string) settings.Settings {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{}
	if err := yaml.UnmarshalStrict([]byte(spec), &config.Spec); err != nil {
		t.Fatal(err)
	}
	in, err := settings.From(config)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	result := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	return result
}
