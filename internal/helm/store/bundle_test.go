package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
)

// A patch sends only the changed targets, and results in the wanted list.
func TestTargetChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) *fleetv1.Bundle {
		bundle := &fleetv1.Bundle{}
		for i := range n {
			its := fleetv1.BundleTarget{ClusterName: fmt.Sprintf("c%03d", i+rng.IntN(500)/499)}
			its.ForceSyncGeneration = int64(rng.IntN(20) / 19)
			bundle.Spec.Targets = append(bundle.Spec.Targets, its)
		}
		return bundle
	}
	patched := 0
	for range 2000 {
		n := 1 + rng.IntN(40)
		there, wanted := draw(n), draw(n)
		changes := targetChanges(there, wanted)
		if changes == nil {
			continue
		}
		patched++
		document, err := json.Marshal(there)
		if err != nil {
			t.Fatal(err)
		}
		operations, err := changes.Data(nil)
		if err != nil {
			t.Fatal(err)
		}
		patch, err := jsonpatch.DecodePatch(operations)
		if err != nil {
			t.Fatal(err)
		}
		if document, err = patch[1:].Apply(document); err != nil {
			t.Fatal(err)
		}
		got := &fleetv1.Bundle{}
		if err := json.Unmarshal(document, got); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got, wanted) || len(patch) > n+1 {
			t.Fatalf("%d operations turn %v into\n%v, not\n%v", len(patch), there.Spec.Targets, got.Spec.Targets, wanted.Spec.Targets)
		}
	}
	if patched < 500 {
		t.Errorf("only %d of 2000 were patched", patched)
	}
	there := draw(3)
	wanted := there.DeepCopy()
	if wanted.Spec.Paused = true; targetChanges(there, wanted) != nil || targetChanges(there, there) != nil {
		t.Error("a patch of targets although none, or more, has changed")
	}
}

// The cache keeps Muster's Bundles except for their files, and cuts foreign contents.
func TestTrim(t *testing.T) {
	ours := func() *fleetv1.Bundle {
		bundle := &fleetv1.Bundle{}
		bundle.Name = "hcp-web"
		bundle.Spec.Helm = &fleetv1.HelmOptions{ReleaseName: "web"}
		bundle.Spec.Resources = []fleetv1.BundleResource{{Name: "Chart.yaml", Content: "name: web"}}
		for i := range plan.MaxTargets {
			its := fleetv1.BundleTarget{Name: fmt.Sprint(i), ClusterName: fmt.Sprint(i)}
			its.Helm = &fleetv1.HelmOptions{ValuesFrom: []fleetv1.ValuesFrom{{ConfigMapKeyRef: &fleetv1.ConfigMapKeySelector{Key: "k"}}}}
			its.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "ConfigMap", Name: "hcp-web.for.1"}}
			its.CorrectDrift = &fleetv1.CorrectDrift{Force: true}
			bundle.Spec.Targets = append(bundle.Spec.Targets, its)
		}
		return bundle
	}
	trim := func(object any) {
		t.Helper()
		if _, err := Trim(object); err != nil {
			t.Fatal(err)
		}
	}
	bundle, whole := ours(), ours()
	trim(bundle)
	if IsCut(bundle) || FilesDigest(bundle) != FilesDigest(whole) || !equality.Semantic.DeepEqual(bundle.Spec.Targets, whole.Spec.Targets) {
		t.Error("a Bundle of ours is cut")
	}
	trim(bundle) // Trimming again changes nothing.
	if FilesDigest(bundle) != FilesDigest(whole) {
		t.Error("the digest changes")
	}
	for name, forge := range map[string]func(*fleetv1.Bundle){
		"targets":      func(b *fleetv1.Bundle) { b.Spec.Targets = slices.Repeat(b.Spec.Targets, 100) },
		"a target":     func(b *fleetv1.Bundle) { b.Spec.Targets[0].NamespaceLabels = map[string]string{"a": "b"} },
		"dependencies": func(b *fleetv1.Bundle) { b.Spec.DependsOn = make([]fleetv1.BundleRef, 10_000) },
	} {
		bundle := ours()
		forge(bundle)
		trim(bundle)
		content, err := json.Marshal(bundle)
		if err != nil {
			t.Fatal(err)
		}
		if !IsCut(bundle) || len(content) > 300<<10 {
			t.Errorf("%s: %d bytes are left, cut: %t", name, len(content), IsCut(bundle))
		}
	}
	configMap := &corev1.ConfigMap{Data: map[string]string{"values.yaml": "a: b"}, BinaryData: map[string][]byte{"x": []byte("theirs")}}
	before := dataDigest(configMap)
	trim(configMap)
	if dataDigest(configMap) == dataDigest(&corev1.ConfigMap{Data: map[string]string{"values.yaml": "a: b"}}) || before == "" {
		t.Error("an added field is not noticed")
	}
}

// A Bundle that others have replaced since the cache cut it is left alone.
func TestUpdateBundleOfOthers(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	cut := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
	cut.Annotations[cutAnnotation] = "true"
	for name, test := range map[string]struct {
		change  func(*fleetv1.Bundle)
		isTaken bool
	}{
		"ours":                      {func(*fleetv1.Bundle) {}, false},
		"without labels":            {func(b *fleetv1.Bundle) { b.Labels = nil }, true},
		"of another HelmChartProxy": {func(b *fleetv1.Bundle) { b.Annotations[plan.ProxyAnnotation] = "team/other" }, true},
	} {
		live := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
		test.change(live)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).Build()
		err := New(c, c, "muster", clock.RealClock{}).UpdateBundle(t.Context(), cut, func(b *fleetv1.Bundle) { b.Spec.Paused = true })
		if taken := (*TakenError)(nil); errors.As(err, &taken) != test.isTaken || err != nil && !test.isTaken {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(live), live); err != nil || live.Spec.Paused == test.isTaken {
			t.Errorf("%s: changed: %t (%v)", name, live.Spec.Paused, err)
		}
	}
}
