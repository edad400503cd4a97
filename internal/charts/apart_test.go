package charts

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// What somebody forges in another namespace stops nothing.
func TestForgedElsewhere(t *testing.T) {
	s := newScene(t)
	forged := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{
		Namespace: "evil", Name: "any", Labels: plan.Labels(key), Finalizers: []string{"example.com/stays"},
		Annotations: map[string]string{plan.ProxyAnnotation: key.String()},
	}}
	s.create(forged)
	s.create(s.proxy())
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-three fleet-two")
	if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(forged), forged); err != nil || forged.DeletionTimestamp != nil {
		t.Errorf("what is not ours was touched: %v", err)
	}
}

// What is said of a release is believed where Fleet says it only: in the Fleet Cluster's own
// namespace.
func TestForgedDeployment(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	for _, where := range []struct{ its, cluster string }{{"evil", "team"}, {stamp.FleetNamespace("evil", "fleet-one"), "evil"}, {stamp.FleetNamespace("team", "fleet-two"), "team"}} {
		forged := deployment(s.bundle(), "fleet-one")
		forged.Namespace, forged.Labels[fleetv1.ClusterNamespaceLabel] = where.its, where.cluster
		forged.Status.Release = "default/web:666"
		s.create(forged)
	}
	expect(t, "after forged ones", s.looks(), []string(nil))
	s.create(deployment(s.bundle(), "fleet-one"))
	expect(t, "after Fleet's own", s.looks(), []string{"patch status HelmReleaseProxy team/web-one", "patch status HelmChartProxy team/web"})
}

// A Secret that a Bundle names is deleted only if it is ours.
func TestForeignSecret(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	bundle := s.bundle()
	s.change(bundle, func() {
		bundle.Spec.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "Secret", Name: "repository"}}
	})
	s.looks()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: "repository"}, &corev1.Secret{}); err != nil {
		t.Errorf("somebody's Secret: %v", err)
	}
}

// A Cluster that loses its pin keeps its release; one that is moved away does, even when the
// HelmChartProxy goes after it.
func TestLostAndMoved(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	one, two := cluster("one"), fleetCluster("team", "two")
	s.change(one, func() { delete(one.Annotations, stamp.ClusterNameAnnotation) })
	s.looks()
	expect(t, "after the pin is lost", s.targets(), "fleet-one fleet-three fleet-two")
	s.change(two, func() {
		two.OwnerReferences, two.Annotations = nil, map[string]string{stamp.ReleasedAnnotation: "true", stamp.ImportedUIDAnnotation: "two"}
	})
	s.looks()
	if owners := s.bundle().OwnerReferences; len(owners) > 0 {
		t.Errorf("the Bundle goes with the HelmChartProxy: %v", owners)
	}
	if err := s.api.Delete(context.Background(), cluster("two")); err != nil {
		t.Fatal(err)
	}
	s.looks()
	expect(t, "after the move", s.targets(), "fleet-one fleet-three fleet-two")
	if err := s.api.Delete(context.Background(), proxy); err != nil {
		t.Fatal(err)
	}
	s.looks()
	expect(t, "after the HelmChartProxy is gone", s.targets(), "fleet-two")
	if err := s.api.Delete(context.Background(), two); err != nil {
		t.Fatal(err)
	}
	s.looks()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: bundleName}, &fleetv1.Bundle{}); !apierrors.IsNotFound(err) {
		t.Errorf("a leftover: %v", err)
	}
}

// While the repository is down, Clusters come and go all the same.
func TestRepositoryDown(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	s.charts.Close()
	s.restart()
	four := cluster("four")
	four.Labels["other"] = "x"
	s.create(fleetCluster("team", "four"))
	s.create(four)
	s.looks()
	expect(t, "targets", s.targets(), "fleet-four fleet-one fleet-three fleet-two")
}

// What the selected Clusters are to get is not known: whoever is not selected any more is let go.
func TestDeselectedWhileHeld(t *testing.T) {
	for name, hold := range map[string]func(*addonsv1.HelmChartProxySpec){
		"no chart": func(spec *addonsv1.HelmChartProxySpec) { spec.Version = "7.0.0" },
		"no values": func(spec *addonsv1.HelmChartProxySpec) {
			spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "none"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			s.create(proxy)
			s.looks()
			before := s.bundle()
			s.change(proxy, func() { hold(&proxy.Spec); proxy.Generation = 2 })
			s.looks()
			expect(t, "held", s.bundle().Spec, before.Spec)
			one := cluster("one")
			s.change(one, func() { delete(one.Labels, "web") })
			s.looks()
			expect(t, "targets", s.targets(), "fleet-three fleet-two")
			after := s.bundle()
			after.Spec.Targets = before.Spec.Targets
			expect(t, "the rest", after.Spec, before.Spec)
			s.change(proxy, func() { proxy.Spec.ClusterSelector.MatchLabels["none"] = "yes" })
			s.looks()
			if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(before), before); !apierrors.IsNotFound(err) {
				t.Errorf("after all are deselected: %v", err)
			}
		})
	}
}

// Somebody has an object of our name: it is said.
func TestNameTaken(t *testing.T) {
	s := newScene(t)
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web.for.fleet-one"}})
	s.create(s.proxy())
	s.writes = nil
	if got := s.looksOnce(); got != pollInterval {
		t.Errorf("again in %v", got)
	}
	if got := s.condition("Ready"); !strings.Contains(got, "ConfigMap team/hcp-web.for.fleet-one exists and is not Muster's") {
		t.Error(got)
	}
	if slices.Contains(s.writes, "patch ConfigMap team/hcp-web.for.fleet-one") {
		t.Error("it is overwritten")
	}
}

func TestMirrorNames(t *testing.T) {
	a := plan.MirrorName(plan.Key{Namespace: "n", Name: "web"}, plan.Key{Namespace: "b", Name: "a"})
	b := plan.MirrorName(plan.Key{Namespace: "n", Name: "web"}, plan.Key{Namespace: "n", Name: "a-b"})
	if a == b {
		t.Errorf("two are named %s", a)
	}
}

func (s *scene) looksOnce() time.Duration {
	s.Helper()
	result, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key})
	if err != nil {
		s.Fatal(err)
	}
	return result.RequeueAfter
}
