package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
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
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
)

// A patch sends only the changed targets, and results in the wanted Bundle.
func TestBundleChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) *fleetv1.Bundle {
		bundle := &fleetv1.Bundle{}
		for i := range n {
			its := fleetv1.BundleTarget{ClusterName: fmt.Sprintf("c%03d", i+rng.IntN(500)/499)}
			its.ForceSyncGeneration = int64(rng.IntN(20) / 19)
			bundle.Spec.Targets = append(bundle.Spec.Targets, its)
		}
		for range 1 + rng.IntN(3) { // All of Muster's have labels and annotations.
			metav1.SetMetaDataLabel(&bundle.ObjectMeta, fmt.Sprintf("a/%d", rng.IntN(3)), fmt.Sprint(rng.IntN(2)))
			metav1.SetMetaDataAnnotation(&bundle.ObjectMeta, fmt.Sprintf("a/%d", rng.IntN(3)), "b")
		}
		if rng.IntN(2) == 0 {
			bundle.Spec.Helm, bundle.Spec.Paused = &fleetv1.HelmOptions{Version: fmt.Sprint(rng.IntN(2))}, rng.IntN(2) == 0
		}
		return bundle
	}
	for range 2000 {
		n := rng.IntN(40)
		there, wanted := draw(n), draw(max(0, n+rng.IntN(5)-2))
		changes := bundleChanges(there, wanted)
		got := &fleetv1.Bundle{}
		if apply(t, changes, there, got); !equality.Semantic.DeepEqual(got, wanted) || len(changes) > n+3+10 {
			t.Fatalf("%s turn %s into\n%s, not\n%s", plan.JSON(changes), plan.JSON(there), plan.JSON(got), plan.JSON(wanted))
		}
	}
	if changes := bundleChanges(draw(20_000), draw(1)); len(changes) > mostChanges { // The API server takes at most 10 000 operations.
		t.Error("a patch that removes thousands of targets one by one")
	}
	if there := draw(3); len(bundleChanges(there, there.DeepCopy())) > 0 {
		t.Error("a patch although nothing has changed")
	}
}

// After a change, a Bundle is not changed again for a while; after none, and after one that has failed, it may be at once.
func TestPaceOfBundles(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	have := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web", UID: "uid", Generation: 1}}
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
	for _, want := range []time.Duration{pace, pace / 2, 0} {
		if left := s.UntilBundle(key); left != want {
			t.Errorf("it waits for %s, want %s", left, want)
		}
		now.Step(pace / 2)
	}
}

// apply applies the operations of a JSON patch.
func apply(t *testing.T, changes []operation, to, result client.Object) {
	t.Helper()
	document, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch([]byte(plan.JSON(append([]operation{}, changes...))))
	if err != nil {
		t.Fatal(err)
	}
	if document, err = patch.Apply(document); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(document, result); err != nil {
		t.Fatal(err)
	}
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
		changes, isMerged := statusChanges(c.have, c.want)
		if isMerged {
			t.Errorf("%s: no JSON patch", name)
			continue
		}
		got := &addonsv1.HelmChartProxy{}
		apply(t, changes, c.have, got)
		if data := plan.JSON(changes); !equality.Semantic.DeepEqual(got, c.want) || len(data) > 1000 {
			t.Errorf("%s: %d bytes make %d matching Clusters, %+v", name, len(data), len(got.Status.MatchingClusters), got.Status.Rollout)
		}
	}
	few := status(1, false)
	few.Status.MatchingClusters = few.Status.MatchingClusters[:1]
	if changes, isMerged := statusChanges(few, status(1, false)); isMerged || len(changes) != 1 {
		t.Errorf("%d operations for a list of which nearly all is new", len(changes))
	}
	for _, have := range []*addonsv1.HelmChartProxy{status(1, false), {}} {
		if _, isMerged := statusChanges(have, status(2, true)); !isMerged {
			t.Error("a JSON patch although only the rollout has changed, or there is no status")
		}
	}
}

// The API server answers a failed test of a JSON patch as it does a refusal. It is a conflict only if the object
// differs from the one that was read, and nothing is sent again.
func TestRefusedChanges(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "uid", Generation: 1, Labels: map[string]string{"a": "b"}}
	for name, test := range map[string]struct {
		live             metav1.ObjectMeta
		isStatus         bool
		isBehind, isGone bool
	}{
		"as it was read":          {live: meta},
		"another status":          {live: metav1.ObjectMeta{UID: "uid", Generation: 1, Labels: map[string]string{"a": "c"}}},
		"another spec":            {live: metav1.ObjectMeta{UID: "uid", Generation: 2}, isBehind: true},
		"made anew":               {live: metav1.ObjectMeta{UID: "other", Generation: 1}, isBehind: true},
		"gone":                    {isGone: true},
		"a status of another":     {live: metav1.ObjectMeta{UID: "uid", Generation: 1, ResourceVersion: "8"}, isStatus: true, isBehind: true},
		"a status as it was read": {live: metav1.ObjectMeta{UID: "uid", Generation: 1, ResourceVersion: "7"}, isStatus: true},
	} {
		t.Run(name, func(t *testing.T) {
			var have, live client.Object = &fleetv1.Bundle{ObjectMeta: meta}, &fleetv1.Bundle{}
			if test.isStatus {
				have, live = &addonsv1.HelmChartProxy{ObjectMeta: meta}, &addonsv1.HelmChartProxy{}
			}
			have.SetResourceVersion("7")
			live.SetUID(test.live.UID)
			live.SetGeneration(test.live.Generation)
			live.SetResourceVersion(cmp.Or(test.live.ResourceVersion, "8"))
			live.SetNamespace("team")
			live.SetName("web")
			reads := fake.NewClientBuilder().WithScheme(scheme)
			if !test.isGone {
				reads = reads.WithObjects(live)
			}
			sent := 0
			refuses := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "the server rejected our request", 0, false)
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					sent++
					return refuses
				},
				SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					sent++
					return refuses
				},
			})
			s := New(c, reads.Build(), "muster", clock.RealClock{})
			if its, is := have.(*addonsv1.HelmChartProxy); is {
				its.Status.MatchingClusters = []corev1.ObjectReference{{Name: "a"}, {Name: "b"}}
				want := its.DeepCopy()
				want.Status.MatchingClusters = want.Status.MatchingClusters[1:]
				err = s.SetStatus(t.Context(), its, want)
			} else {
				err = s.UpdateBundle(t.Context(), have.(*fleetv1.Bundle), func(its *fleetv1.Bundle) { its.Spec.Paused = true })
			}
			if IsBehind(err) != test.isBehind || !test.isBehind && !test.isGone != apierrors.IsInvalid(err) || sent != 1 {
				t.Errorf("after %d patches: %v", sent, err)
			}
		})
	}
}

// The cache keeps Muster's largest Bundles except for their files, and cuts foreign contents.
func TestTrim(t *testing.T) {
	// A HelmChartProxy may get more layers after its Bundle was filled.
	filled := func(then, layers int) *fleetv1.Bundle {
		of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
		of.Spec.ValuesTemplate, of.Spec.ValuesFrom, of.Spec.Options.Wait = "a: b", make([]addonsv1.ValuesReference, then), true
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
	ours := func(layers int) *fleetv1.Bundle { return filled(layers, layers) }
	trim := func(object any) {
		t.Helper()
		if _, err := Trim(object); err != nil {
			t.Fatal(err)
		}
	}
	grown := filled(0, 16)
	grown.Annotations = map[string]string{"cut-in-the-cache": "as others may write"}
	if trim(grown); IsCut(grown) || len(grown.Spec.Targets) != plan.MaxTargets {
		t.Errorf("a Bundle of ours that got 16 layers later is cut: %d targets are left", len(grown.Spec.Targets))
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
			b.Spec.Targets[0].DownstreamResources = make([]fleetv1.DownstreamResource, 30_000)
		},
		"dependencies": func(b *fleetv1.Bundle) { b.Spec.DependsOn = make([]fleetv1.BundleRef, 30_000) },
	} {
		bundle := ours(0)
		forge(bundle)
		trim(bundle)
		if !IsCut(bundle) || len(bundle.Spec.Targets)+len(bundle.Spec.DependsOn) > 0 || FilesDigest(bundle) != FilesDigest(ours(0)) {
			t.Errorf("%s: %d targets are left, cut: %t", name, len(bundle.Spec.Targets), IsCut(bundle))
		}
	}
	record := plan.Record{FleetCluster: "one", Installed: true, Keys: []string{"00.yaml"}}
	padded := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		plan.RecordAnnotation: strings.Replace(record.String(), "{", `{"x":[`+strings.Repeat("[],", 5000)+`[]],`, 1),
	}}}
	if trim(padded); padded.Annotations[plan.RecordAnnotation] != record.String() {
		t.Errorf("of a padded record, %s is left", padded.Annotations[plan.RecordAnnotation])
	}
	refused := ours(0)
	refused.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False", Message: "NotReady(1) [Bundle web]"}}
	if trim(refused); IsRefused(refused) {
		t.Error("a Bundle that is not ready counts as refused")
	}
	refused.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False"}}
	refused.Status.Conditions[0].Message = `ErrApplied(1) [Cluster team/one: template: web/templates/sa.yaml: <.Values.serviceAccount.create>: nil pointer]`
	if trim(refused); IsRefused(refused) {
		t.Error("what an agent says counts as a refusal")
	}
	many := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		plan.RecordAnnotation: plan.Record{Installed: true}.String()[:1] + `"digest":"` + strings.Repeat("<", 10_000) + `"}`,
	}}}
	if trim(many); len(many.Annotations[plan.RecordAnnotation]) > 16<<10 {
		t.Errorf("a record grows to %d bytes", len(many.Annotations[plan.RecordAnnotation]))
	}
	refused.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False", Message: "disallowed serviceAccount other: denied"}}
	for range 2 {
		if trim(refused); !IsRefused(refused) || strings.Contains(fmt.Sprint(refused.Status), "disallowed") {
			t.Errorf("of a refused Bundle, the status %+v is left", refused.Status)
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
	live.UID, live.Generation = "uid", 1
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

// The spec of a HelmReleaseProxy is changed whatever others change at the same time, and not in another object of its name. Until the
// cache shows the change, the object there is past.
func TestChangeSpec(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	have := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-one", UID: "uid", Labels: map[string]string{"a": "b"}}}
	have.Spec.Version, have.Spec.Values = "1.0.0", "a: b"
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(have).Build()
	now := testclock.NewFakeClock(time.Now())
	s, key := New(c, c, "muster", now), client.ObjectKeyFromObject(have)
	if err := c.Get(t.Context(), key, have); err != nil {
		t.Fatal(err)
	}
	theirs := have.DeepCopy()
	theirs.Annotations = map[string]string{"their": "record"}
	want := have.DeepCopy()
	want.Spec.Version, want.Spec.Values, want.Labels["c"] = "1.1.0", "", "d"
	if err := cmp.Or(c.Update(t.Context(), theirs), s.ChangeSpec(t.Context(), have, want)); err != nil {
		t.Fatal(err)
	}
	got := &addonsv1.HelmReleaseProxy{}
	if err := c.Get(t.Context(), key, got); err != nil || got.Spec != want.Spec || len(got.Labels) != 2 || got.Annotations["their"] != "record" {
		t.Errorf("it is %s (%v)", plan.JSON(got), err)
	}
	for name, its := range map[string]struct {
		release *addonsv1.HelmReleaseProxy
		is      bool
	}{"before": {have, true}, "of others": {theirs, true}, "after": {got, false}} {
		if s.IsPast(its.release) != its.is {
			t.Errorf("%s: past is %t", name, !its.is)
		}
	}
	if now.Step(kube.Lag + 1); s.IsPast(have) {
		t.Error("a cache that does not show the write for long counts as behind")
	}
	another := got.DeepCopy()
	another.UID = "another"
	want.Spec.Version = "2.0.0"
	if err := s.ChangeSpec(t.Context(), another, want); err == nil || c.Get(t.Context(), key, got) != nil || got.Spec.Version != "1.1.0" {
		t.Errorf("another object of the name got version %s", got.Spec.Version)
	}
}

// Two reconciles write a HelmReleaseProxy at the same time, and the answer of the first write may come last: a grant counts until the
// cache shows it.
func TestPastOfTheLastOfSeveralWrites(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	s := New(c, c, "muster", clock.RealClock{})
	release := func(uid types.UID, version string) *addonsv1.HelmReleaseProxy {
		return &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-one", UID: uid, ResourceVersion: version}}
	}
	for _, version := range []string{"9", "11", "10"} {
		s.Wrote(release("uid", version))
	}
	for version, want := range map[string]bool{"10": true, "11": false, "12": false} {
		if got := s.IsPast(release("uid", version)); got != want {
			t.Errorf("version %s: past is %t", version, got)
		}
	}
	race := New(c, c, "muster", clock.RealClock{})
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { race.Wrote(release("uid", fmt.Sprint(100-i))) })
	}
	if all.Wait(); !race.IsPast(release("uid", "99")) {
		t.Error("the last of many writes was forgotten")
	}
}
