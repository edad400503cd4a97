package agentmanifest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

// As Fleet writes it, and as the API server keeps it.
func TestFieldRef(t *testing.T) {
	const fleets, want = "env:\n- name: NAMESPACE\n  valueFrom:\n    fieldRef:\n      fieldPath: metadata.namespace\n",
		"env:\n- name: NAMESPACE\n  valueFrom:\n    fieldRef:\n      apiVersion: v1\n      fieldPath: metadata.namespace\n"
	for _, text := range []string{fleets, want} {
		if got := string(complete([]byte(text))); got != want {
			t.Errorf("got %s", got)
		}
	}
}

// A person applies the manifest with all rights: it must be Muster's, and for this Cluster.
func TestRead(t *testing.T) {
	cluster := func(status metav1.ConditionStatus) *clusterv1.Cluster {
		c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge", UID: "1"}}
		if status != "" {
			c.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetAgentManifestReadyCondition, Status: status, Reason: "CredentialLost", Message: "rotate it"}}
		}
		return c
	}
	secret := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "edge-fleet-agent", OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", UID: "1"}}},
			Type:       stamp.ManifestSecretType,
			Data:       map[string][]byte{"manifest": []byte("kind: Deployment")},
		}
		change(s)
		return s
	}
	for name, test := range map[string]struct {
		objects []client.Object
		wrong   string
	}{
		"issued":                             {objects: []client.Object{cluster("True"), secret(func(*corev1.Secret) {})}},
		"no Cluster":                         {objects: []client.Object{secret(func(*corev1.Secret) {})}, wrong: "not found"},
		"its agent does not register itself": {objects: []client.Object{cluster(""), secret(func(*corev1.Secret) {})}, wrong: "has no manifest"},
		"not ready":                          {objects: []client.Object{cluster("False"), secret(func(*corev1.Secret) {})}, wrong: "CredentialLost: rotate it"},
		"no Secret":                          {objects: []client.Object{cluster("True")}, wrong: "is gone"},
		"of another type":                    {objects: []client.Object{cluster("True"), secret(func(s *corev1.Secret) { s.Type = "Opaque" })}, wrong: "do not apply it"},
		"of an earlier Cluster's":            {objects: []client.Object{cluster("True"), secret(func(s *corev1.Secret) { s.OwnerReferences[0].UID = "0" })}, wrong: "do not apply it"},
		"nobody's":                           {objects: []client.Object{cluster("True"), secret(func(s *corev1.Secret) { s.OwnerReferences = nil })}, wrong: "do not apply it"},
		"empty":                              {objects: []client.Object{cluster("True"), secret(func(s *corev1.Secret) { s.Data = nil })}, wrong: "do not apply it"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := program.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.objects...).Build()
			manifest, err := Read(t.Context(), reader, client.ObjectKey{Namespace: "team", Name: "edge"})
			if test.wrong == "" && (err != nil || string(manifest) != "kind: Deployment") {
				t.Errorf("got %q, %v", manifest, err)
			}
			if test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong) || manifest != nil) {
				t.Errorf("got %q, %v; want %q", manifest, err, test.wrong)
			}
		})
	}
}
