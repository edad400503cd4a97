package charts

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// What is kept of a Cluster is what it is worked out from: its version, and the settings.
func TestReadIsKept(t *testing.T) {
	m, in := newMemory(), &settings.InForce{Effect: "a"}
	cluster := &clusterv1.Cluster{}
	cluster.UID, cluster.ResourceVersion = "one", "1"
	read := func(what string) uint64 {
		t.Helper()
		digest, err := m.read(key, cluster, in)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return digest
	}
	first := read("first")
	m.put(key, cluster.UID, 7, []byte("values"))
	cluster.Labels = map[string]string{"a": "b"}
	expect(t, "the same version is not read again", read("again") == first, true)
	cluster.ResourceVersion = "2"
	labelled := read("labelled")
	expect(t, "another version is", labelled != first, true)
	in.Effect, in.Cluster.Exclude = "b", []string{"/Cluster/metadata/labels"}
	expect(t, "other settings, too", read("settings") != labelled, true)
	if values, found := m.get(key, cluster.UID, 7); !found || string(values) != "values" {
		t.Errorf("what was rendered is %q, %t", values, found)
	}
	m.keep(key, []*selected{{Cluster: &clusterv1.Cluster{}}})
	if _, found := m.get(key, cluster.UID, 7); found || len(m.all[key]) != 0 {
		t.Errorf("of a Cluster that is not selected any more is kept: %v", m.all[key])
	}
	if _, found := m.get(key, types.UID("two"), 0); found {
		t.Error("something is found of what was never rendered")
	}
}
