package charts

import (
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// left returns for which Clusters there are values after a look.
func (s *scene) left() (there string) {
	s.Helper()
	s.looks()
	for _, of := range []string{"one", "two", "three"} {
		if s.exists(&corev1.ConfigMap{}, "hcp-web.for.fleet-"+of) {
			there += " " + of
		}
	}
	return there
}

// Of a HelmChartProxy that goes, the values for a Cluster that was moved stay; those for the others go when
// Fleet has nothing any more that reads them.
func TestClearLeft(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	deployments := s.deployAll()
	s.release("two")
	s.looks()
	s.drop(proxy)
	expect(t, "while they are read", s.left(), " one two three")
	s.drop(deployments["fleet-one"])
	expect(t, "when one is not read", s.left(), " two three")
	s.drop(deployments["fleet-three"])
	expect(t, "when nothing is read but what stays", s.left(), " two")
	expect(t, "targets", s.targets(), "fleet-two")
}

// What Fleet reads, or a Bundle names, stays, though the cache does not show it yet.
func TestClearBehind(t *testing.T) {
	for name, test := range map[string]struct {
		hide func(*scene)
		want string
	}{
		"BundleDeployments": {func(s *scene) { s.Client = behind{Client: trimmed{s.api}, all: &fleetv1.BundleDeploymentList{}} }, " one two three"},
		"Bundles": {func(s *scene) {
			cached := &fleetv1.BundleList{Items: []fleetv1.Bundle{*s.bundle()}}
			s.Client = behind{Client: trimmed{s.api}, bundles: cached}
			its := s.bundle()
			s.change(its, func() {
				its.Spec.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "ConfigMap", Name: "hcp-web.for.fleet-one"}}
			})
			for _, of := range []string{"fleet-one", "fleet-three"} {
				s.drop(deployment(its, of))
			}
		}, " one two"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			s.create(proxy)
			s.looks()
			s.deployAll()
			s.release("two")
			s.looks()
			s.drop(proxy)
			expect(t, "while they are read", s.left(), " one two three")
			test.hide(s)
			expect(t, "behind", s.left(), test.want)
		})
	}
}

// A Cluster that is moved while its HelmChartProxy is cleared away keeps its values.
func TestClearMovedMeanwhile(t *testing.T) {
	s := newScene(t)
	proxy := s.guarded(addonsv1.DownloadManager)
	s.create(proxy)
	s.looks()
	s.fails = func(object client.Object) bool {
		if _, isSecret := object.(*corev1.Secret); isSecret {
			s.fails = nil
			s.release("two")
		}
		return false
	}
	s.drop(proxy)
	expect(t, "values", s.left(), " two")
	expect(t, "targets", s.targets(), "fleet-two")
}

// A Secret that only a HelmOp has named that goes does not stay with one for a Cluster that was moved.
func TestClearSecretsBeside(t *testing.T) {
	s := newScene(t)
	proxy := s.byAgents()
	s.handsOver(proxy)
	stays, two := s.accessName(), cluster("two")
	s.change(two, func() { two.Spec.Paused = ptr.To(true) })
	s.release("two")
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Spec.ReleaseName, proxy.Generation = s.charts.URL+"/", "other", 2 })
	for range 3 {
		s.looks()
	}
	if all := s.accessSecrets(); len(all) != 2 {
		t.Fatalf("not both are there: %v", all)
	}
	s.restart() // What was written is not remembered.
	s.drop(proxy)
	s.looks()
	expect(t, "access", s.accessSecrets(), []string{stays})
}

// Whoever forges a Bundle keeps no Secret in another namespace that nothing but a memory tells of.
func TestClearForged(t *testing.T) {
	s := newScene(t)
	proxy := s.guarded(addonsv1.DownloadManager)
	s.create(proxy)
	s.looks()
	its := s.bundle()
	s.drop(its)
	forged := forge(&fleetv1.Bundle{Spec: its.Spec}, plan.BundleName(proxy, "evil", ""))
	forged.SetFinalizers([]string{"evil.example.com/stays"})
	s.create(forged)
	s.drop(proxy)
	s.looks()
	if s.exists(&corev1.Secret{}, plan.SharedName(key, "team")) {
		t.Error("the Secret is kept")
	}
}
