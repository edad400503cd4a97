package charts

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// someTargets returns some of a hundred targets, in the order of their names; some of them are different.
func someTargets(random *rand.Rand, share, different float64) []fleetv1.BundleTarget {
	var result []fleetv1.BundleTarget
	for i := range 100 {
		if random.Float64() < share {
			its := fleetv1.BundleTarget{Name: "t", ClusterName: fmt.Sprintf("c-%02d", i)}
			if random.Float64() < different {
				its.Name = "different"
			}
			result = append(result, its)
		}
	}
	return result
}

// Whatever is added, removed and changed: the operations make one list the other.
func TestTargetOperations(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	made := 0
	for range 500 {
		there, wanted := someTargets(random, 0.95, 0.02), someTargets(random, 0.95, 0.02)
		changes := targetOperations(there, wanted)
		if len(changes) == 0 {
			continue
		}
		made++
		patch, err := jsonpatch.DecodePatch(toJSON(changes))
		if err != nil {
			t.Fatal(err)
		}
		got, err := patch.Apply(toJSON(map[string]any{"spec": map[string]any{"targets": there}}))
		if err != nil {
			t.Fatalf("%s: %v", toJSON(changes), err)
		}
		var its fleetv1.Bundle
		if err := json.Unmarshal(got, &its); err != nil {
			t.Fatal(err)
		}
		expect(t, "targets", its.Spec.Targets, wanted)
	}
	if made < 400 {
		t.Errorf("only %d of 500 were made by operations", made)
	}
	sorted := someTargets(random, 1, 0)
	reversed := []fleetv1.BundleTarget{sorted[2], sorted[1], sorted[0]}
	expect(t, "others have another order", len(targetOperations(reversed, sorted[:3])), 0)
	expect(t, "too much is different", len(targetOperations(sorted[:20], sorted)), 0)
}

// Of many Clusters only those that come or go are written.
func TestStatusOperations(t *testing.T) {
	status := func(generation int64, names ...string) *addonsv1.HelmChartProxyStatus {
		its := &addonsv1.HelmChartProxyStatus{ObservedGeneration: generation, Conditions: []metav1.Condition{{Type: fmt.Sprint("Ready", generation)}}}
		for i := range manyTargets {
			names = append(names, fmt.Sprintf("team/c-%02d", i))
		}
		slices.SortFunc(names, func(a, b string) int {
			return strings.Compare(strings.Replace(a, "/", "\x00", 1), strings.Replace(b, "/", "\x00", 1))
		})
		for _, name := range names {
			namespace, name, _ := strings.Cut(name, "/")
			its.MatchingClusters = append(its.MatchingClusters, corev1.ObjectReference{Namespace: namespace, Name: name})
		}
		return its
	}
	there, wanted := status(1, "team/gone", "team-a/stays"), status(2, "team/new", "team-a/stays", "team-a/new")
	changes := statusOperations(there, wanted)
	expect(t, "operations", len(changes), 5)
	patch, err := jsonpatch.DecodePatch(toJSON(changes))
	if err != nil {
		t.Fatal(err)
	}
	got, err := patch.Apply(toJSON(map[string]any{"status": there}))
	if err != nil {
		t.Fatal(err)
	}
	var its addonsv1.HelmChartProxy
	if err := json.Unmarshal(got, &its); err != nil {
		t.Fatal(err)
	}
	expect(t, "status", its.Status, *wanted)
	expect(t, "none comes or goes", len(statusOperations(there, status(2, "team/gone", "team-a/stays"))), 0)
	expect(t, "there is none yet", len(statusOperations(&addonsv1.HelmChartProxyStatus{}, wanted)), 0)
}

// A Cluster that is selected in addition is one target that is written, unless somebody has changed
// the Bundle meanwhile: then all are.
func TestOneTargetOfMany(t *testing.T) {
	s := newScene(t)
	for i := range manyTargets {
		name := fmt.Sprintf("many-%02d", i)
		s.create(cluster(name))
		s.create(fleetCluster("team", name))
	}
	s.create(s.proxy())
	s.looks()
	var patches []string
	changed := false
	s.patching = func(object client.Object, patch client.Patch) error {
		bundle, ok := object.(*fleetv1.Bundle)
		if !ok {
			return nil
		}
		data, err := patch.Data(bundle)
		patches = append(patches, string(patch.Type())+" "+string(data))
		if changed && patch.Type() == types.JSONPatchType { // As the API server has it.
			return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value failed", 0, false)
		}
		return err
	}
	bundle := func() *fleetv1.Bundle {
		var all fleetv1.BundleList
		if err := s.api.List(context.Background(), &all); err != nil || len(all.Items) != 1 {
			t.Fatalf("%d Bundles: %v", len(all.Items), err)
		}
		return &all.Items[0]
	}
	matching := func() []corev1.ObjectReference {
		its := &addonsv1.HelmChartProxy{}
		if err := s.api.Get(context.Background(), key, its); err != nil {
			t.Fatal(err)
		}
		return its.Status.MatchingClusters
	}
	its := bundle()
	s.change(its, func() { its.Generation = 7 })
	s.create(cluster("zoe"))
	s.create(fleetCluster("team", "zoe"))
	s.looks()
	expect(t, "targets", len(bundle().Spec.Targets), manyTargets+4)
	expect(t, "matching Clusters", len(matching()), manyTargets+4)
	if len(patches) != 1 || !strings.HasPrefix(patches[0], `application/json-patch+json [{"op":"test","path":"/metadata/generation","value":7},{"op":"add","path":"/spec/targets/35"`) {
		t.Errorf("the Bundle was changed by %s", patches)
	}
	changed, patches = true, nil
	s.create(cluster("zuleika"))
	s.create(fleetCluster("team", "zuleika"))
	s.looks()
	expect(t, "targets", len(bundle().Spec.Targets), manyTargets+5)
	expect(t, "matching Clusters", len(matching()), manyTargets+5)
	if len(patches) != 2 || !strings.HasPrefix(patches[1], "application/merge-patch+json ") {
		t.Errorf("the Bundle that somebody has changed was changed by %s", patches)
	}
}
