package bundle

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
)

// rivals returns the scopes of the Bundles of two HelmChartProxies that ask for one release on a Cluster, and their objects.
func rivals(t *testing.T) (scopes []*scope, objects []client.Object) {
	t.Helper()
	cluster, fleet := selected()
	objects = []client.Object{cluster, fleet}
	key := client.ObjectKeyFromObject(cluster)
	for _, name := range []string{"a", "b"} {
		of := proxyOf("team", name)
		of.Spec.ReleaseName = "ccm"
		bundle := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), plan.Chart{Version: "1.0.0"}, "")
		release := releaseOf(of, key, bundle.Name, plan.Record{FleetCluster: "one"})
		in := &inputs.Inputs{}
		in.Selector, _ = plan.NewSelector(of)
		scopes = append(scopes, &scope{key: client.ObjectKeyFromObject(bundle), have: bundle, of: of, in: in, releases: []*addonsv1.HelmReleaseProxy{release}})
		objects = append(objects, of, bundle, release)
	}
	return scopes, objects
}

func (s *scope) next(t *testing.T, r *Reconciler) int {
	t.Helper()
	targets, _, err := r.targets(t.Context(), s)
	if err != nil {
		t.Error(err)
	}
	return len(targets)
}

// A target that was decided counts before the cache shows it, until the Bundle no longer wants it.
func TestTargetsInFlight(t *testing.T) {
	scopes, objects := rivals(t)
	a, b := scopes[0], scopes[1]
	without := objects[:2:2] // Only b's objects are there yet.
	r := reconciler(t, append(without, objects[5:]...)...)
	if b.next(t, r) != 1 {
		t.Fatal("b does not get it, and is alone")
	}
	for _, its := range objects[2:5] {
		its.SetResourceVersion("")
		if err := r.Create(t.Context(), its); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.next(t, r); got != 0 || b.next(t, r) != 1 {
		t.Errorf("a comes before b by name, and gets %d although b was allowed to take it", got)
	}
	if lacking := *b; lacking.releases != nil { // Its HelmReleaseProxy was deleted before the Bundle was written.
		lacking.releases = nil
		if got := lacking.next(t, r); got != 0 || a.next(t, r) != 1 || b.next(t, r) != 0 {
			t.Errorf("nobody takes it but b, with %d targets", got)
		}
	}
	r.settle(a.key, nil)
	a.have.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}} // The cache shows it.
	if err := r.Update(t.Context(), a.have); err != nil {
		t.Fatal(err)
	}
	if a.next(t, r) != 1 || b.next(t, r) != 0 || len(r.taking.of) != 0 {
		t.Errorf("there is a target, and in flight are %v", r.taking.of)
	}
	b.have.Spec.Targets = a.have.Spec.Targets // An earlier version has written it.
	if err := r.Update(t.Context(), b.have); err != nil {
		t.Fatal(err)
	}
	if a.next(t, r) != 1 || b.next(t, r) != 1 {
		t.Error("one of two that have it loses it")
	}
}

// However many Bundles are reconciled at once, one gets the release.
func TestTargetsAtOnce(t *testing.T) {
	for range 20 {
		scopes, objects := rivals(t)
		r := reconciler(t, objects...)
		var got atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			for _, s := range scopes {
				all.Go(func() { got.Add(int32(s.next(t, r))) })
			}
		}
		all.Wait()
		if got := got.Load(); got != 4 {
			t.Fatalf("%d targets in 4 reconciles of each Bundle", got)
		}
	}
}

// What a Bundle would take is free for others if its write was refused: it will not be written before an object changes
// something. After other errors it may have been written.
func TestRefusedTakesNothing(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "bundles"}, "hcp-a", errors.New("a policy denies it"))
	for err, want := range map[error]bool{
		nil: false, fmt.Errorf("updating the Bundle: %w", refused): true, &store.TakenError{Object: &fleetv1.Bundle{}}: true, &store.CutError{Object: &fleetv1.Bundle{}}: true,
		errors.New("etcdserver: request is too large"): true, apierrors.NewTimeoutError("", 1): false, apierrors.NewConflict(schema.GroupResource{}, "hcp-a", nil): false,
	} {
		if got := isUnwritten(err); got != want {
			t.Errorf("isUnwritten(%v) is %t", err, got)
		}
	}
}

// A HelmChartProxy that is paused before its Bundle was written takes nothing from others.
func TestPausedTakesNothing(t *testing.T) {
	for name, isWritten := range map[string]bool{"before its Bundle was written": false, "after that, and the cache does not show it": true} {
		t.Run(name, func(t *testing.T) {
			scopes, objects := rivals(t)
			a, b := scopes[0], scopes[1]
			r := reconciler(t, objects...)
			live := a.have.DeepCopy()
			if isWritten {
				live.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}}
			}
			r.Live = fake.NewClientBuilder().WithScheme(r.Scheme()).WithObjects(live).Build()
			r.Managed, r.Failures, r.Wake = &proxy.Managed{Reader: r}, &sync.Map{}, func(plan.Key) {}
			if a.next(t, r) != 1 || b.next(t, r) != 0 {
				t.Fatal("a does not come first")
			}
			paused := &addonsv1.HelmChartProxy{}
			if err := r.Get(t.Context(), client.ObjectKeyFromObject(a.of), paused); err != nil {
				t.Fatal(err)
			}
			paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			if err := r.Update(t.Context(), paused); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: a.key}); err != nil {
				t.Fatal(err)
			}
			if got := b.next(t, r); got == 1 == isWritten {
				t.Errorf("b gets %d", got)
			}
		})
	}
}
