package registrar

import (
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

// A Cluster that is not selected any more is kept only for the sake of its own Fleet Cluster.
func TestIsKept(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := met{}.visit().cluster
	in := settings.Cluster{Suffix: "-fleet"}
	fleet := func(name string, annotations map[string]string, owners ...metav1.OwnerReference) *fleetv1.Cluster {
		return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: name, Annotations: annotations, OwnerReferences: owners,
			CreationTimestamp: cluster.CreationTimestamp, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		}}
	}
	for name, test := range map[string]struct {
		fleet *fleetv1.Cluster
		want  bool
	}{
		"owned, of whatever name":            {fleet("somewhere", nil, desired.Owner(cluster)), true},
		"noted, of whatever name":            {fleet("somewhere", map[string]string{stamp.ImportedUIDAnnotation: string(cluster.UID)}), true},
		"it says nothing, and has our name":  {fleet(cluster.Name+"-fleet", nil), true},
		"it says nothing, and has another's": {fleet("other-fleet", nil), false},
		"it names another":                   {fleet(cluster.Name+"-fleet", map[string]string{stamp.ImportedFromAnnotation: "other"}), false},
	} {
		r := &reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.fleet).Build()}
		got, err := r.isKept(t.Context(), in, cluster)
		if err != nil || got != test.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
}
