package sync

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
)

// crdOf returns the CRD of Fleet Clusters, whose spec has these fields.
func crdOf(t *testing.T, version string, generation int64, fields ...string) *unstructured.Unstructured {
	t.Helper()
	properties := map[string]any{}
	for _, field := range fields {
		properties[field] = map[string]any{"type": "array"}
	}
	crd := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"versions": []any{map[string]any{"name": "v1beta1"}, map[string]any{
		"name": version, "schema": map[string]any{"openAPIV3Schema": map[string]any{"properties": map[string]any{"spec": map[string]any{"properties": properties}}}},
	}}}}}
	crd.SetGroupVersionKind(references.CRD().GroupVersionKind())
	crd.SetName("clusters.fleet.cattle.io")
	crd.SetUID(types.UID(version))
	crd.SetGeneration(generation)
	return crd
}

// Pull secrets count only where Fleet Clusters have a field for them; otherwise the condition says what is needed, and all
// other settings count. The CRD is read once for each generation.
func TestFieldsOfNewerFleet(t *testing.T) {
	clientWith := func(objects ...client.Object) client.WithWatch {
		scheme, err := program.Scheme() // The client registers the kinds that it reads.
		if err != nil {
			t.Fatal(err)
		}
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	secrets := &[]corev1.LocalObjectReference{{Name: "access"}}
	for name, test := range map[string]struct {
		crd    *unstructured.Unstructured
		asked  *[]corev1.LocalObjectReference
		broken bool
		served bool
		reads  int
	}{
		"Fleet 0.16":         {crd: crdOf(t, "v1alpha1", 1, "agentPullSecrets", "clientID"), asked: secrets, served: true, reads: 1},
		"Fleet 0.15":         {crd: crdOf(t, "v1alpha1", 1, "clientID"), asked: secrets, reads: 1},
		"in another version": {crd: crdOf(t, "v2", 1, "agentPullSecrets"), asked: secrets, reads: 1},
		"nothing is asked":   {crd: crdOf(t, "v1alpha1", 1), served: true},
		"an empty list":      {crd: crdOf(t, "v1alpha1", 1), asked: &[]corev1.LocalObjectReference{}, reads: 1},
		"no CRD":             {asked: secrets, served: true},
		"it is not readable": {crd: crdOf(t, "v1alpha1", 1, "agentPullSecrets"), asked: secrets, broken: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			reads, c := 0, clientWith()
			if test.crd != nil {
				c = clientWith(test.crd)
			}
			f := &fleetFields{crds: c, live: interceptor.NewClient(c, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if reads++; test.broken {
						return errors.New("broken")
					}
					return c.Get(ctx, key, object, options...)
				},
			})}
			in := &settings.InForce{Settings: settings.Default(), Effect: "effect"}
			in.Cluster.AgentPullSecrets = test.asked
			for range 2 {
				got, unserved, err := f.limit(t.Context(), in)
				if (err != nil) != test.broken {
					t.Fatal(err)
				}
				if test.broken {
					break
				}
				if (got.Cluster.AgentPullSecrets == test.asked) != test.served || (got.Effect == "effect") != test.served || got.Cluster.AgentNamespace != in.Cluster.AgentNamespace {
					t.Errorf("served: %v; the pull secrets are %v, with effect %s", test.served, got.Cluster.AgentPullSecrets, got.Effect)
				}
				if (unserved == nil) != test.served || unserved != nil && !strings.Contains(unserved.Error(), "install Fleet 0.16 or newer") {
					t.Errorf("it says %v", unserved)
				}
			}
			if reads != test.reads || in.Cluster.AgentPullSecrets != test.asked {
				t.Errorf("the CRD was read %d times, want %d; asked is %v", reads, test.reads, in.Cluster.AgentPullSecrets)
			}
		})
	}

	f := &fleetFields{}
	for generation, fields := range [][]string{{"clientID"}, {"clientID", "agentPullSecrets"}, {"clientID"}} {
		c := clientWith(crdOf(t, "v1alpha1", int64(generation+1), fields...))
		f.crds, f.live = c, c
		if has, err := f.havePullSecrets(t.Context()); has != (len(fields) == 2) || err != nil {
			t.Errorf("generation %d: %v, %v", generation, has, err)
		}
	}
}
