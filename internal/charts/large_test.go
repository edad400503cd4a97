package charts

import (
	"context"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// large is a HelmChartProxy of a chart that does not fit into a Bundle.
func (s *scene) large() *addonsv1.HelmChartProxy {
	s.Helper()
	var content strings.Builder
	for seed := uint64(1); content.Len() < 1400<<10; seed++ {
		seed = seed*6364136223846793005 + 1442695040888963407
		content.WriteByte(' ' + byte(seed>>33%90))
	}
	if err := s.charts.Publish("web", "2.0.0", map[string]string{"a.yaml": "# " + content.String()}); err != nil {
		s.Fatal(err)
	}
	its := s.proxy()
	its.Spec.Version = "2.0.0"
	return its
}

// A chart that has become too large hands out no credentials: its author does.
func TestTooLargeWithCredentials(t *testing.T) {
	s := newScene(t)
	proxy := s.large()
	s.create(proxy)
	s.looks()
	refused := func(when string) {
		t.Helper()
		if got := s.condition("Ready"); !strings.HasPrefix(got, "False HelmReleaseProxyCreationFailed the chart takes ") || !strings.Contains(got, "; set spec.download: Agent ") {
			t.Error(when, got)
		}
		expect(t, when, s.accessSecrets(), []string(nil))
	}
	refused("at first")
	expect(t, "a HelmOp", s.exists(&fleetv1.HelmOp{}, bundleName), false)
	s.charts.Open()
	s.change(proxy, func() {
		proxy.Spec.Credentials, proxy.Spec.TLSConfig, proxy.Generation = nil, &addonsv1.TLSConfig{InsecureSkipTLSVerify: true}, 2
	})
	s.looks()
	expect(t, "a HelmOp without credentials", s.exists(&fleetv1.HelmOp{}, bundleName), true)
	s.change(proxy, func() { proxy.Spec.Credentials, proxy.Generation = s.proxy().Spec.Credentials, 3 })
	s.looks()
	refused("when it is known already")
	s.change(proxy, func() { proxy.Spec.Download, proxy.Generation = addonsv1.DownloadAgent, 4 })
	s.looks()
	expect(t, "when its author says so", s.accessSecrets(), []string{s.accessName()})
}

// A chart that does not fit into a Bundle is downloaded by the agents, unless it is asked for otherwise.
func TestTooLarge(t *testing.T) {
	s := newScene(t)
	proxy := s.large()
	proxy.Spec.Credentials = nil
	s.charts.Open()
	s.handsOver(proxy)
	if got := s.condition("HelmReleaseProxySpecsUpToDate"); !strings.HasPrefix(got, "True UpToDate the chart takes ") || !strings.HasSuffix(got, "; the agents of the Clusters download it") {
		t.Error(got)
	}
	before, _ := s.charts.Asked()
	s.looks()
	after, _ := s.charts.Asked()
	expect(t, "it is known", len(after), len(before))
	s.restart()
	expect(t, "after a restart", s.looks(), []string(nil))
	s.change(proxy, func() { proxy.Spec.Download, proxy.Generation = addonsv1.DownloadManager, 2 })
	s.looks()
	if got := s.condition("HelmReleaseProxySpecsUpToDate"); !strings.HasPrefix(got, "False HelmReleaseProxyCreationFailed the chart takes ") {
		t.Error(got)
	}
	expect(t, "what is there stays", s.exists(&fleetv1.HelmOp{}, bundleName), true)
	s.change(proxy, func() { proxy.Spec.Version, proxy.Spec.Download, proxy.Generation = "1.0.0", "", 3 })
	s.looks()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: bundleName}, &fleetv1.HelmOp{}); !apierrors.IsNotFound(err) {
		t.Errorf("one that fits is carried again: %v", err)
	}
}

// Whether a chart is too large is not forgotten while nobody can ask the repository.
func TestTooLargeWhileDown(t *testing.T) {
	s := newScene(t)
	proxy := s.large()
	proxy.Spec.Credentials = nil
	s.charts.Open()
	s.handsOver(proxy)
	before := s.helmOp()
	s.charts.Close()
	s.restart()
	s.create(fleetCluster("team", "four"))
	s.create(cluster("four"))
	one := cluster("one")
	s.change(one, func() { delete(one.Labels, "web") })
	s.looks()
	after := s.helmOp()
	var targets []string
	for _, target := range after.Spec.Targets {
		targets = append(targets, target.ClusterName)
	}
	expect(t, "targets", targets, []string{"fleet-four", "fleet-three", "fleet-two"})
	after.Spec.Targets = before.Spec.Targets
	expect(t, "the rest", after.Spec, before.Spec)
	s.fleet()
	if again := s.looksOnce(); again != pollInterval {
		t.Errorf("again in %v", again)
	}
	expect(t, "condition", s.condition("HelmReleaseProxySpecsUpToDate"), "True UpToDate the chart is too large for a Bundle; the agents of the Clusters download it")
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.0.0", 2 })
	s.looks()
	if got := s.condition("HelmReleaseProxySpecsUpToDate"); !strings.HasPrefix(got, "False HelmReleaseProxyCreationFailed ") {
		t.Errorf("another version, of which nobody knows anything: %s", got)
	}
}
