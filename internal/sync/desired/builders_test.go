package desired

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

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
