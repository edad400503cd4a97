package wire

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// What comes over the wire is what the oracle says here.
func TestServe(t *testing.T) {
	asked, questions := io.Pipe()
	answers, said := io.Pipe()
	go func() { _ = said.CloseWithError(Serve(asked, said)) }()
	j := &Judge{program: "the same oracle", encoder: json.NewEncoder(questions), decoder: json.NewDecoder(answers)}

	s := oracle.NewState()
	for _, name := range []string{"team", "lib"} {
		namespace := &corev1.Namespace{}
		namespace.Name = name
		s.Namespaces[name] = namespace
	}
	class := fixture.Class("lib", "small", map[string]string{"tier": "gold"})
	cluster := fixture.Cluster("team", "one", "small", "lib")
	cluster.UID, cluster.Status.Initialization.ControlPlaneInitialized = "one", ptr.To(true)
	controlPlane := fixture.ControlPlane(cluster)
	cluster.Spec.ControlPlaneRef = fixture.ReferenceTo(controlPlane)
	s.Referenced[oracle.ReferenceTo(controlPlane)] = controlPlane
	s.Classes[client.ObjectKeyFromObject(class)], s.Clusters[client.ObjectKeyFromObject(cluster)] = class, cluster

	want := oracle.Settle(s)
	if len(want.FleetClusters) != 1 || len(want.Groups) != 2 || len(want.Mappings) != 1 {
		t.Fatalf("the oracle itself says:\n%s", oracle.View(want))
	}
	if diff := cmp.Diff(oracle.View(want), oracle.View(j.Settle(s))); diff != "" {
		t.Errorf("Settle differs over the wire:\n%s", diff)
	}
	if diff := cmp.Diff(oracle.Admitted(s, cluster), j.Admitted(s, cluster)); diff != "" {
		t.Errorf("Admitted differs over the wire:\n%s", diff)
	}
}
