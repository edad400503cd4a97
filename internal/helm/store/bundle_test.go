package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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
		there, wanted := draw(n), draw(max(1, n+rng.IntN(5)-2))
		changes := targetChanges(there, wanted)
		if changes == nil {
			continue
		}
		patched++
		got := &fleetv1.Bundle{}
		if count := apply(t, changes, there, got); !equality.Semantic.DeepEqual(got, wanted) || count > n+3 {
			t.Fatalf("%d operations turn %v into\n%v, not\n%v", count, there.Spec.Targets, got.Spec.Targets, wanted.Spec.Targets)
		}
	}
	if patched < 500 {
		t.Errorf("only %d of 2000 were patched", patched)
	}
	if targetChanges(draw(20_000), draw(1)) != nil { // The API server takes at most 10 000 operations.
		t.Error("a patch that removes thousands of targets one by one")
	}
	there := draw(3)
	wanted := there.DeepCopy()
	if wanted.Spec.Paused = true; targetChanges(there, wanted) != nil || targetChanges(there, there) != nil {
		t.Error("a patch of targets although none, or more, has changed")
	}
}

// After a change, a Bundle is not changed again for a while; after none, and after one that has failed, it may be at once.
func TestPaceOfBundles(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	have := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(have).Build()
	now := testclock.NewFakeClock(time.Now())
	s, key := New(c, c, "muster", now), client.ObjectKeyFromObject(have)
	if err := c.Get(t.Context(), key, have); err != nil {
		t.Fatal(err)
	}
	update := func(its *fleetv1.Bundle, paused bool) error {
		return s.UpdateBundle(t.Context(), its, func(its *fleetv1.Bundle) { its.Spec.Paused = paused })
	}
	if err := update(have, false); err != nil || s.UntilBundle(key) != 0 {
		t.Errorf("unchanged, it waits for %s (%v)", s.UntilBundle(key), err)
	}
	gone := have.DeepCopy()
	gone.Name = "hcp-gone"
	if err := errors.Join(update(gone, true), update(have, true)); err != nil {
		t.Fatal(err)
	}
	if left := s.UntilBundle(client.ObjectKeyFromObject(gone)); left != 0 {
		t.Errorf("without a Bundle, it waits for %s", left)
	}
	for _, want := range []time.Duration{bundlePace, bundlePace / 2, 0} {
		if left := s.UntilBundle(key); left != want {
			t.Errorf("it waits for %s, want %s", left, want)
		}
		now.Step(bundlePace / 2)
	}
}

// apply applies a JSON patch without its operations on the metadata. It returns the number of operations.
func apply(t *testing.T, changes client.Patch, to, result client.Object) int {
	t.Helper()
	document, err := json.Marshal(to)
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
	patch = slices.DeleteFunc(patch, func(its jsonpatch.Operation) bool {
		path, _ := its.Path()
		return strings.HasPrefix(path, "/metadata/")
	})
	if document, err = patch.Apply(document); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(document, result); err != nil {
		t.Fatal(err)
	}
	return len(patch)
}

// One more of thousands of matching Clusters costs the bytes of one.
func TestStatusChanges(t *testing.T) {
	status := func(generation int64, halted bool, without ...int) *addonsv1.HelmChartProxy {
		its := &addonsv1.HelmChartProxy{}
		its.Status.ObservedGeneration = generation
		its.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Unix(1, 0)}}
		if halted {
			its.Status.Rollout = &addonsv1.RolloutStatus{Stage: "canary"}
		}
		for i := range 5000 {
			if !slices.Contains(without, i) {
				its.Status.MatchingClusters = append(its.Status.MatchingClusters, corev1.ObjectReference{Kind: "Cluster", Namespace: "team", Name: fmt.Sprintf("c%04d", i)})
			}
		}
		return its
	}
	for name, c := range map[string]struct{ have, want *addonsv1.HelmChartProxy }{
		"one more":                  {status(1, false, 2000), status(1, false)},
		"one less":                  {status(1, false), status(1, false, 0)},
		"one for another":           {status(1, false, 7), status(1, false, 4999)},
		"one more, and the rest":    {status(1, false, 2000), status(2, true)},
		"one less, without rollout": {status(1, true), status(2, false, 2000)},
		"the rest":                  {status(1, true), status(2, true)},
	} {
		changes := statusChanges(c.have, c.want)
		if changes == nil {
			t.Errorf("%s: no JSON patch", name)
			continue
		}
		got := &addonsv1.HelmChartProxy{}
		apply(t, changes, c.have, got)
		if data, _ := changes.Data(nil); !equality.Semantic.DeepEqual(got, c.want) || len(data) > 1000 {
			t.Errorf("%s: %d bytes make %d matching Clusters, %+v", name, len(data), len(got.Status.MatchingClusters), got.Status.Rollout)
		}
	}
	few := status(1, false)
	few.Status.MatchingClusters = few.Status.MatchingClusters[:1]
	if statusChanges(few, status(1, false)) != nil || statusChanges(status(1, false), status(2, true)) != nil {
		t.Error("a JSON patch although nearly all Clusters are new, or only the rollout has changed")
	}
}

// If an index is wrong, because the HelmChartProxy has changed meanwhile, all matching Clusters are sent.
func TestStatusOfAChangedProxy(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	have := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	for i := range 4 {
		have.Status.MatchingClusters = append(have.Status.MatchingClusters, corev1.ObjectReference{Namespace: "team", Name: fmt.Sprintf("c%d", i)})
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(have).WithStatusSubresource(have).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if patch.Type() == types.JSONPatchType { // The API server's answer to a patch that does not apply.
				return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "the server rejected our request", 0, false)
			}
			return c.SubResource(name).Patch(ctx, object, patch, options...)
		},
	}).Build()
	want := have.DeepCopy()
	want.Status.MatchingClusters = want.Status.MatchingClusters[1:]
	if err := New(c, c, "muster", clock.RealClock{}).SetStatus(t.Context(), have, want.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	got := &addonsv1.HelmChartProxy{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(have), got); err != nil || !equality.Semantic.DeepEqual(got.Status, want.Status) {
		t.Errorf("%v, %v", got.Status.MatchingClusters, err)
	}
}

// The cache keeps Muster's largest Bundles except for their files, and cuts foreign contents.
func TestTrim(t *testing.T) {
	ours := func(layers int) *fleetv1.Bundle {
		of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
		of.Spec.ValuesTemplate, of.Spec.ValuesFrom, of.Spec.Options.Wait = "a: b", make([]addonsv1.ValuesReference, layers), true
		bundle := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0", Agent: true}, "")
		bundle.Spec.Resources = []fleetv1.BundleResource{{Name: "Chart.yaml", Content: "name: web"}}
		record := plan.Record{Digest: "any", Keys: slices.Repeat([]string{"00.yaml"}, layers+1), Sync: 1, Rollout: &plan.Rollout{Version: "1.0.0"}}
		release := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		cluster := plan.Key{Namespace: "team", Name: "one"}
		first := plan.BundleName(of, cluster, 0)
		for i := 0; plan.Shard(of, cluster, map[plan.Key]int{{Namespace: "team", Name: first}: i}) == first; i++ {
			record.FleetCluster = fmt.Sprint(i)
			target, _ := plan.TargetOf(of, release, record)
			bundle.Spec.Targets = append(bundle.Spec.Targets, target)
		}
		bundle.Spec.RolloutStrategy = plan.StrategyFor(bundle.Spec.Targets, func(fleetCluster string) bool { return fleetCluster == "0" })
		return bundle
	}
	trim := func(object any) {
		t.Helper()
		if _, err := Trim(object); err != nil {
			t.Fatal(err)
		}
	}
	for _, layers := range []int{0, 3, 7, 15, 16} {
		bundle, whole := ours(layers), ours(layers)
		trim(bundle)
		whole.Spec.Resources = bundle.Spec.Resources
		if IsCut(bundle) || FilesDigest(bundle) != FilesDigest(ours(layers)) || !equality.Semantic.DeepEqual(bundle.Spec, whole.Spec) {
			t.Errorf("a Bundle of ours with %d layers and %d targets is cut", layers, len(whole.Spec.Targets))
		}
		trim(bundle) // Trimming again changes nothing.
		if FilesDigest(bundle) != FilesDigest(ours(layers)) {
			t.Error("the digest changes")
		}
	}
	for name, forge := range map[string]func(*fleetv1.Bundle){
		"targets": func(b *fleetv1.Bundle) { b.Spec.Targets = slices.Repeat(b.Spec.Targets, 100) },
		"a target": func(b *fleetv1.Bundle) {
			b.Spec.Targets[0].DownstreamResources = make([]fleetv1.DownstreamResource, 10_000)
		},
		"dependencies": func(b *fleetv1.Bundle) { b.Spec.DependsOn = make([]fleetv1.BundleRef, 10_000) },
	} {
		bundle := ours(0)
		forge(bundle)
		trim(bundle)
		if !IsCut(bundle) || len(bundle.Spec.Targets)+len(bundle.Spec.DependsOn) > 0 || FilesDigest(bundle) != FilesDigest(ours(0)) {
			t.Errorf("%s: %d targets are left, cut: %t", name, len(bundle.Spec.Targets), IsCut(bundle))
		}
	}
	configMap := &corev1.ConfigMap{Data: map[string]string{"values.yaml": "a: b"}, BinaryData: map[string][]byte{"x": []byte("theirs")}}
	before := dataDigest(configMap)
	trim(configMap)
	if dataDigest(configMap) == dataDigest(&corev1.ConfigMap{Data: map[string]string{"values.yaml": "a: b"}}) || before == "" {
		t.Error("an added field is not noticed")
	}
}

// What a Bundle has is not known once the cache has cut it: its spec stays, and it is not deleted. It can be marked.
func TestCutBundleStays(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	live := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
	live.Spec.Targets = make([]fleetv1.BundleTarget, 2*plan.MaxTargets+1)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).Build()
	s, cut := New(c, c, "muster", clock.RealClock{}), &fleetv1.Bundle{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(live), cut); err != nil {
		t.Fatal(err)
	}
	if _, err := Trim(cut); err != nil || !IsCut(cut) {
		t.Fatalf("it is not cut (%v)", err)
	}
	isCut := new(CutError)
	if err := s.UpdateBundle(t.Context(), cut, func(b *fleetv1.Bundle) { b.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}} }); !errors.As(err, &isCut) {
		t.Errorf("its targets are changed (%v)", err)
	}
	if err := s.Remove(t.Context(), cut); !errors.As(err, &isCut) {
		t.Errorf("it is deleted (%v)", err)
	}
	if err := s.UpdateBundle(t.Context(), cut, func(b *fleetv1.Bundle) { b.Annotations[plan.DeletedAnnotation] = "true" }); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(live), live); err != nil || len(live.Spec.Targets) != 2*plan.MaxTargets+1 ||
		live.Annotations[plan.DeletedAnnotation] != "true" || IsCut(live) {
		t.Errorf("left are %d targets and %v (%v)", len(live.Spec.Targets), live.Annotations, err)
	}
}
