package charts

import (
	"context"
	"fmt"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// installedOnce has a HelmChartProxy install once on every Cluster.
func (s *scene) installedOnce() *addonsv1.HelmChartProxy {
	s.Helper()
	proxy := s.proxy()
	proxy.Spec.ReconcileStrategy, proxy.Spec.ReleaseName = addonsv1.ReconcileStrategyInstallOnce, "web"
	s.create(proxy)
	return proxy
}

// paused returns the Fleet Clusters that Bundles are for, and whether these are paused.
func (s *scene) paused() map[string]bool {
	s.Helper()
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil {
		s.Fatal(err)
	}
	paused := map[string]bool{}
	for _, its := range bundles.Items {
		paused[its.Spec.Targets[0].ClusterName] = its.Spec.Paused
	}
	return paused
}

// A Cluster that was deleted and made again under its name while nobody looked is another one: what was
// installed once, was on the earlier.
func TestInstalledOnTheEarlier(t *testing.T) {
	s := newScene(t)
	s.installedOnce()
	s.looks()
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil {
		t.Fatal(err)
	}
	for i := range bundles.Items {
		s.create(deployment(&bundles.Items[i], bundles.Items[i].Spec.Targets[0].ClusterName))
	}
	s.looks()
	expect(t, "installed", s.paused(), map[string]bool{"fleet-one": true, "fleet-three": true, "fleet-two": true})

	var deployments fleetv1.BundleDeploymentList
	if err := s.api.List(context.Background(), &deployments); err != nil {
		t.Fatal(err)
	}
	gone := []client.Object{cluster("one"), fleetCluster("team", "one")}
	for i := range deployments.Items {
		if deployments.Items[i].Labels[fleetv1.ClusterLabel] == "fleet-one" {
			gone = append(gone, &deployments.Items[i])
		}
	}
	for _, object := range gone {
		s.drop(object)
	}
	anew, fleet := cluster("one"), fleetCluster("team", "one")
	anew.UID = "anew"
	fleet.OwnerReferences[0].UID = anew.UID
	s.create(anew)
	s.create(fleet)
	s.restart()
	s.looks()
	expect(t, "made anew", s.paused(), map[string]bool{"fleet-one": false, "fleet-three": true, "fleet-two": true})
}

// An annotation alone, which whoever writes HelmReleaseProxies may set, does not say that something is
// installed.
func TestForgedInstalled(t *testing.T) {
	for name, forge := range map[string]func(*addonsv1.HelmReleaseProxy){
		"no status":       func(its *addonsv1.HelmReleaseProxy) { its.Status = addonsv1.HelmReleaseProxyStatus{} },
		"failed":          func(its *addonsv1.HelmReleaseProxy) { its.Status.Status = "failed" },
		"no revision":     func(its *addonsv1.HelmReleaseProxy) { its.Status.Revision = 0 },
		"nobody's":        func(its *addonsv1.HelmReleaseProxy) { its.OwnerReferences = nil },
		"somebody else's": func(its *addonsv1.HelmReleaseProxy) { its.OwnerReferences[0].Name = "other" },
		"of another kind": func(its *addonsv1.HelmReleaseProxy) { its.OwnerReferences[0].Kind = "ConfigMap" },
	} {
		s := newScene(t)
		proxy := s.installedOnce()
		its := left(proxy, "one", "web", map[string]string{addonsv1.ReleaseInstalledAnnotation: "true"})
		forge(its)
		s.create(its)
		s.looks()
		if _, found := s.paused()["fleet-one"]; !found {
			t.Errorf("%s: it is believed", name)
		}
	}
}

// What cluster-api-addon-provider-helm has installed once needs no values, so none can be wrong.
func TestInstalledNeedsNoValues(t *testing.T) {
	s := newScene(t)
	proxy := s.installedOnce()
	s.create(left(proxy, "one", "web", map[string]string{addonsv1.ReleaseInstalledAnnotation: "true"}))
	one := cluster("one")
	s.change(one, func() { one.Annotations["unresolved"] = "yes" })
	s.looks()
	if its := s.condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition); strings.Contains(its, "team/one") {
		t.Error(its)
	}
}

// A name for a release of another chart, written into a target, is put back.
func TestForgedReleaseName(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	bundle := s.bundle()
	s.change(bundle, func() { bundle.Spec.Targets[0].Helm.ReleaseName = "cilium-1716000000" })
	s.looks()
	expect(t, "names", s.releases(), "fleet-one= fleet-three= fleet-two=")
}

// Nothing is remembered of HelmChartProxies that somebody has made up.
func TestMadeUp(t *testing.T) {
	s := newScene(t)
	for i := range 10 {
		object := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "x", Annotations: map[string]string{plan.ProxyAnnotation: fmt.Sprintf("team/made-up-%d", i)}}}
		for _, request := range ofMade(t.Context(), object) {
			if _, err := s.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		object.Annotations[plan.ProxyAnnotation] += strings.Repeat("x", 253)
		expect(t, "of a name that nothing can have", len(ofMade(t.Context(), object)), 0)
	}
	expect(t, "remembered", len(s.pace.all), 0)
}

// A status that was compared with an older one is looked at again when it comes back.
func TestOnlyStatus(t *testing.T) {
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "proxy"}}
	old := left(proxy, "one", "web", nil)
	status, spec := old.DeepCopy(), old.DeepCopy()
	status.Status.Revision++
	spec.Generation++
	expect(t, "a status", onlyStatus.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: status}), true)
	expect(t, "something else", onlyStatus.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: spec}), false)
	expect(t, "a status, at once", notOnlyStatus.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: status}), false)
	expect(t, "a new one", onlyStatus.Create(event.CreateEvent{Object: old}), false)
	expect(t, "whose", ofMirror(t.Context(), old)[0].NamespacedName, key)
	old.OwnerReferences = nil
	expect(t, "nobody's", len(ofMirror(t.Context(), old)), 0)
}

// The status has room for so many Clusters that it can be written.
func TestMostMatches(t *testing.T) {
	v := &visit{proxy: &addonsv1.HelmChartProxy{}, looked: true}
	for i := range 5000 {
		v.clusters = append(v.clusters, &selected{Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%0253d", i), UID: types.UID(fmt.Sprint(i)),
		}}})
		v.clusters[i].outcome.Release.Ready = true
	}
	conditions, matching := v.conditions()
	if size := len(toJSON(matching)); size > 1<<20 || len(matching) < 1000 {
		t.Errorf("%d Clusters take %d bytes", len(matching), size)
	}
	for _, its := range conditions {
		if want := fmt.Sprintf("status.matchingClusters has no room for %d more", 5000-len(matching)); its.Type == addonsv1.HelmReleaseProxySpecsUpToDateCondition && its.Message != want {
			t.Errorf("%q, want %q", its.Message, want)
		}
	}
}
