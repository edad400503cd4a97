package charts

import (
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// deployAll makes what Fleet makes of the Bundle for each Cluster, ready.
func (s *scene) deployAll() map[string]*fleetv1.BundleDeployment {
	s.Helper()
	all := map[string]*fleetv1.BundleDeployment{}
	for _, target := range s.bundle().Spec.Targets {
		all[target.ClusterName] = deployment(s.bundle(), target.ClusterName)
		s.create(all[target.ClusterName])
	}
	return all
}

// Nothing is up to date before Fleet has taken it over.
func TestTaken(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			proxy.Spec.Download = download
			s.create(proxy)
			s.looksOnce()
			kind := "Bundle"
			if download == addonsv1.DownloadAgent {
				kind = "HelmOp"
				s.fleet()
			}
			not := "Fleet has not taken " + kind + " " + bundleName + " over yet"
			want := "False HelmReleaseProxySpecsUpdating " + not
			expect(t, "just made", s.condition("HelmReleaseProxySpecsUpToDate"), want)
			s.deployAll()
			s.looks()
			expect(t, "taken over", s.condition("Ready"), "True Ready ")

			s.change(proxy, func() { proxy.Spec.Options.Atomic, proxy.Generation = true, 2 })
			s.looksOnce()
			expect(t, "just changed", s.condition("Ready"), want)
			if download == addonsv1.DownloadAgent {
				s.fleet()
			}
			made := s.bundle()
			s.change(made, func() { made.Generation, made.Status.ObservedGeneration = 3, 2 })
			s.looks()
			expect(t, "Fleet is behind", s.condition("Ready"), want)
			s.change(made, func() { made.Status.ObservedGeneration = 3 })
			s.looks()
			expect(t, "and no more", s.condition("Ready"), "True Ready ")
		})
	}
}

// A release is not called ready while it is that of the values before.
func TestSettling(t *testing.T) {
	s := newScene(t)
	now := time.Now()
	s.now = func() time.Time { return now }
	proxy := s.guarded(addonsv1.DownloadManager)
	proxy.Spec.ValuesTemplate = `name: {{ .Cluster.metadata.labels.other | default "none" }}`
	s.create(proxy)
	s.looks()
	deployments := s.deployAll()
	s.looks()
	expect(t, "at first", s.condition("Ready"), "True Ready ")

	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "y" })
	s.looks()
	expect(t, "its own values", s.condition("Ready"), "False HelmReleasePending team/one: Fleet's agent has not deployed this yet")
	first := deployments["fleet-one"]
	s.change(first, func() { first.Spec.DownstreamResourcesGeneration, first.Status.DownstreamResourcesGeneration = 1, 1 })
	s.looks()
	expect(t, "when they are deployed", s.condition("Ready"), "True Ready ")

	source := s.valuesSecret()
	s.change(source, func() { source.Data["values.yaml"] = []byte("password: other") })
	if again := s.looksOnce(); again != pollInterval {
		t.Errorf("again in %v", again)
	}
	const not = ": Fleet's agent has not deployed this yet"
	expect(t, "those of all", s.condition("Ready"), "False HelmReleasePending team/one"+not+"; team/three"+not+"; team/two"+not)
	now = now.Add(pollInterval)
	s.looks()
	expect(t, "what Fleet does not notice", s.condition("Ready"), "True Ready ")
}

// Values that are not wanted any more leave the object that all Clusters read, and it is written once.
func TestValuesGo(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ValuesTemplate = ""
	for _, name := range []string{"a", "b"} {
		its := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Data: map[string][]byte{plan.ValuesKey: []byte("password: " + name)}}
		s.create(its)
		proxy.Spec.ValuesFrom = append(proxy.Spec.ValuesFrom, addonsv1.ValuesReference{Kind: plan.SecretKind, Name: name})
	}
	s.create(proxy)
	s.looks()
	s.deployAll()
	s.looks()
	s.change(proxy, func() { proxy.Spec.ValuesFrom, proxy.Generation = proxy.Spec.ValuesFrom[:1], 2 })
	s.looks() // It comes to rest.
	values := &corev1.Secret{}
	if err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "hcp-web.for-all"}, values); err != nil {
		t.Fatal(err)
	}
	for key, value := range values.Data {
		if string(value) != "password: a" {
			t.Errorf("%s is still %s", key, value)
		}
	}
	expect(t, "keys", len(values.Data), 1)
}
