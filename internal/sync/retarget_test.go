package sync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// following is a mapping into a workspace of Rancher that has begun to map, with some Bundles.
type following struct {
	*targets
	client.Client
	key types.NamespacedName
	now time.Time
	// patched lists the Bundles that should be annotated, in their order; refused lists those that may not.
	patched, refused []string
}

func newFollowing(t *testing.T, bundles int) *following {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	f := &following{key: types.NamespacedName{Namespace: "classes", Name: "workspace"}, now: time.Now()}
	mapping := desired.BegunMapping(f.key.Namespace, f.key.Name, "1")
	mapping.UID = "uid"
	objects := []client.Object{mapping, &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "agent", Labels: map[string]string{"objectset.rio.cattle.io/hash": "x"}}}}
	for i := range bundles {
		objects = append(objects, &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: fmt.Sprintf("b%03d", i)}})
	}
	f.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, isMetadata := object.(*metav1.PartialObjectMetadata); isMetadata {
				if f.patched = append(f.patched, object.GetName()); slices.Contains(f.refused, object.GetName()) {
					return errors.New("refused")
				}
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}).Build()
	f.restart()
	return f
}

func (f *following) restart() {
	store := kube.NewStore(f.Client, f.Client.Scheme())
	f.targets = &targets{
		Reader: f.Client, Applier: &kube.Applier{Client: f.Client, Live: f.Client, Store: store}, live: f.Client, now: func() time.Time { return f.now },
		retiring: map[types.NamespacedName]*retirement{},
	}
}

// run follows the mapping until nothing is left to do, and returns how many Bundles were annotated in each second.
func (f *following) run(t *testing.T) (each []int) {
	t.Helper()
	for range 1000 {
		before := len(f.patched)
		after, err := f.follow(t.Context(), settings.Settings{Mappings: []types.NamespacedName{f.key}}, f.key)
		each = append(each, len(f.patched)-before)
		switch {
		case err != nil:
			t.Fatal(err)
		case f.note(t) == "":
			return each
		}
		f.now = f.now.Add(after)
	}
	t.Fatal("it does not end")
	return nil
}

// note returns the annotation of the mapping.
func (f *following) note(t *testing.T) string {
	t.Helper()
	var mapping fleetv1.BundleNamespaceMapping
	if err := f.Client.Get(t.Context(), f.key, &mapping); err != nil {
		t.Fatal(err)
	}
	return mapping.Annotations[desired.RetargetAnnotation]
}

// In a workspace, the mapping's Bundles are annotated, twice each and at most ten a second. Those of Fleet's agents
// are not.
func TestBundlesAreRetargetedTenASecond(t *testing.T) {
	f := newFollowing(t, 25)
	begin := f.now
	each := f.run(t)
	if slices.Max(each) != 10 || len(f.patched) != 50 || slices.Contains(f.patched, "agent") {
		t.Errorf("annotated %v, each second %v", f.patched, each)
	}
	if took := f.now.Sub(begin); took < hold.Settle || took > hold.Settle+10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A restart annotates no Bundle a third time.
func TestRetargetingGoesOnAfterARestart(t *testing.T) {
	f := newFollowing(t, 25)
	for i := 0; f.note(t) != ""; i++ {
		if i > 100 {
			t.Fatal("it does not end")
		}
		f.restart()
		after, err := f.follow(t.Context(), settings.Settings{Mappings: []types.NamespacedName{f.key}}, f.key)
		if err != nil {
			t.Fatal(err)
		}
		f.now = f.now.Add(after)
		if after == hold.Settle {
			if _, err := f.follow(t.Context(), settings.Settings{Mappings: []types.NamespacedName{f.key}}, f.key); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(f.patched) != 50 {
		t.Errorf("annotated %v", f.patched)
	}
}

// A Bundle that may not be annotated stops none of the others.
func TestRefusedBundleStopsNoOthers(t *testing.T) {
	f := newFollowing(t, 25)
	f.refused = []string{"b003"}
	var reported error
	for range 4 {
		if reported != nil {
			t.Fatal("it is reported while others are left")
		}
		_, reported = f.follow(t.Context(), settings.Settings{Mappings: []types.NamespacedName{f.key}}, f.key)
	}
	slices.Sort(f.patched)
	if all := slices.Compact(f.patched); len(all) != 25 || reported == nil || f.note(t) != "1" {
		t.Errorf("annotated %v, reported %v, the mapping says %q", all, reported, f.note(t))
	}
}

// Nor do as many as are annotated in a second.
func TestRefusedBundlesStopNoOthers(t *testing.T) {
	f := newFollowing(t, 25)
	for i := range 2 * bundlesAtOnce {
		f.refused = append(f.refused, fmt.Sprintf("b%03d", i))
	}
	for range 1000 {
		before := len(f.patched)
		if _, err := f.follow(t.Context(), settings.Settings{Mappings: []types.NamespacedName{f.key}}, f.key); len(f.patched)-before > bundlesAtOnce {
			t.Fatalf("%d in a second, %v", len(f.patched)-before, err)
		}
	}
	slices.Sort(f.patched)
	if all := slices.Compact(f.patched); len(all) != 25 || f.note(t) != "1" {
		t.Errorf("tried %v, the mapping says %q", all, f.note(t))
	}
}

// A mapping that is deleted while it is being retired is not made again.
func TestRetiringMakesNoMapping(t *testing.T) {
	f := newFollowing(t, 1)
	deployed := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-one", Name: "b000", Labels: map[string]string{
		fleetv1.BundleLabel: "b000", fleetv1.BundleNamespaceLabel: f.key.Namespace, fleetv1.ClusterNamespaceLabel: f.key.Name,
	}}}
	var mapping fleetv1.BundleNamespaceMapping
	if err := errors.Join(
		f.Client.Create(t.Context(), deployed), f.Client.Get(t.Context(), f.key, &mapping), f.Client.Delete(t.Context(), mapping.DeepCopy()),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := f.retire(t.Context(), &mapping); err != nil {
		t.Error(err)
	}
	if err := f.Client.Get(t.Context(), f.key, &mapping); !apierrors.IsNotFound(err) {
		t.Errorf("it is there: %v", err)
	}
}

// A tenant may write BundleDeployments with any labels in his own namespace. The retirement of a mapping does not wait for them.
func TestForgedBundleDeploymentsDoNotCount(t *testing.T) {
	f := newFollowing(t, 0)
	labels := map[string]string{fleetv1.BundleNamespaceLabel: f.key.Namespace, fleetv1.ClusterNamespaceLabel: f.key.Name}
	for namespace, annotations := range map[string]map[string]string{
		"tenant":          nil,
		"another-cluster": {fleetv1.ClusterNamespaceAnnotation: "others"},
		"cluster-one":     {fleetv1.ClusterNamespaceAnnotation: f.key.Name},
	} {
		deployed := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "b", Labels: maps.Clone(labels)}}
		deployed.Labels[fleetv1.BundleLabel] = "of-" + namespace
		if err := errors.Join(
			f.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: annotations}}),
			f.Client.Create(t.Context(), deployed),
		); err != nil {
			t.Fatal(err)
		}
	}
	deployed := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "not-in-the-cache", Name: "b", Labels: labels}}
	deployed.Labels[fleetv1.BundleLabel] = "of-a-new-cluster"
	if err := f.Client.Create(t.Context(), deployed); err != nil {
		t.Fatal(err)
	}
	names, err := f.deployedThrough(t.Context(), f.key)
	if want := []string{"of-a-new-cluster", "of-cluster-one"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v; want %q", names, err, want)
	}
}

// What is remembered of a mapping belongs to the object and its content, so a mapping that is retired a second time gets all its time.
func TestProgressOfAMapping(t *testing.T) {
	f := newFollowing(t, 0)
	mapping := desired.RetiredMapping(f.key.Namespace, f.key.Name)
	mapping.UID, mapping.Generation = "uid", 2
	first := f.progress(mapping)
	f.now = f.now.Add(time.Minute)
	if f.progress(mapping) != first {
		t.Error("it begins again, although nothing has changed")
	}
	for name, change := range map[string]func(*fleetv1.BundleNamespaceMapping){
		"made anew": func(m *fleetv1.BundleNamespaceMapping) { m.UID = "another" },
		"changed":   func(m *fleetv1.BundleNamespaceMapping) { m.Generation = 4 },
	} {
		changed := mapping.DeepCopy()
		change(changed)
		f.retiring[f.key] = first
		if state := f.progress(changed); !state.began.Equal(f.now) {
			t.Errorf("%s: it began %s ago", name, f.now.Sub(state.began))
		}
	}
	f.forgetAllBut(f.key.Name, nil)
	if len(f.retiring) > 0 {
		t.Errorf("of a mapping that is gone remains %v", f.retiring)
	}
}
