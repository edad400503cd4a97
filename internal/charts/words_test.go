package charts

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/table"
)

// note adds the reasons that are given now.
func (s *scene) note(reasons map[string]bool) {
	s.Helper()
	var proxies addonsv1.HelmChartProxyList
	var mirrors addonsv1.HelmReleaseProxyList
	if err := s.api.List(context.Background(), &proxies); err != nil {
		s.Fatal(err)
	}
	if err := s.api.List(context.Background(), &mirrors); err != nil {
		s.Fatal(err)
	}
	var all []metav1.Condition
	for _, its := range proxies.Items {
		all = append(all, its.Status.Conditions...)
	}
	for _, its := range mirrors.Items {
		all = append(all, its.Status.Conditions...)
	}
	for _, its := range all {
		reasons[its.Reason] = true
	}
}

// Every reason that docs/helmchartproxy.md calls the same is given, and none that it says is never given.
func TestReasons(t *testing.T) {
	rows, err := table.Read(table.Page)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	s.note(seen)
	one, two := deployment(s.bundle(), "fleet-one"), deployment(s.bundle(), "fleet-two")
	two.Status.Ready = false
	s.create(one)
	s.create(two)
	s.looks()
	s.note(seen)
	s.change(one, func() {
		one.Status.Conditions = []genericcondition.GenericCondition{{Type: fleetv1.BundleDeploymentConditionDeployed, Status: corev1.ConditionFalse, Message: "no"}}
	})
	s.looks()
	s.note(seen)
	for i, change := range []func(){
		func() { proxy.Spec.ValuesTemplate = "{{ fail .Cluster.metadata.name }}" },
		func() {
			proxy.Spec.ValuesTemplate, proxy.Spec.ClusterSelector.MatchExpressions = "", []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}
		},
		func() {
			proxy.Spec.ClusterSelector.MatchExpressions, proxy.Spec.ReleaseName = nil, "other"
			bundle := s.bundle() // Fleet holds it until it is uninstalled.
			bundle.Finalizers = []string{"fleet.cattle.io/bundle-finalizer"}
			if err := s.api.Update(context.Background(), bundle); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s.change(proxy, func() { change(); proxy.Generation = int64(i + 2) })
		s.looks()
		s.note(seen)
	}
	count := 0
	for _, row := range rows {
		if row.Table != table.Conditions || !row.Names("charts TestReasons") {
			continue
		}
		count++
		switch row.Verdict {
		case table.Same:
			if !seen[row.What] {
				t.Errorf("%s is not given; seen: %v", row.What, seen)
			}
		case table.Never:
			if file := contains(t, `"`+row.What+`"`); file != "" {
				t.Errorf("%s is in %s", row.What, file)
			}
		default:
			t.Errorf("%s is %s", row.What, row.Verdict)
		}
	}
	if count == 0 {
		t.Error("there are no rows")
	}
}

// contains returns a file of the program or its API that contains something.
func contains(t *testing.T, text string) string {
	t.Helper()
	for _, pattern := range []string{"*.go", "plan/*.go", "../../api/v1alpha1/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files: %v", pattern, len(files), err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(content), text) {
				return file
			}
		}
	}
	return ""
}

// A HelmReleaseProxy says what its HelmChartProxy does; whoever changes or deletes it changes nothing.
func TestMirrorFields(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.Version, proxy.Spec.ReconcileStrategy, proxy.Spec.Options.TakeOwnership = "1.0.x", "Continuous", true
	s.create(proxy)
	s.looks()
	mirror := s.mirror("web-one")
	want := addonsv1.HelmReleaseProxySpec{
		ClusterRef: corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Namespace: "team", Name: "one"},
		ChartName:  "web", RepoURL: s.charts.URL, ReleaseName: "web", ReleaseNamespace: "default", Version: "1.0.0", Values: "",
		ReconcileStrategy: "Continuous", Options: mirror.Spec.Options, Credentials: proxy.Spec.Credentials, TLSConfig: proxy.Spec.TLSConfig,
	}
	expect(t, "spec", mirror.Spec, want)
	expect(t, "options.takeOwnership", mirror.Spec.Options.TakeOwnership, true)
	expect(t, "options.upgrade.maxHistory, as the API server stores it", mirror.Spec.Options.Upgrade.MaxHistory, 10)
	expect(t, "labels", mirror.Labels, map[string]string{
		clusterv1.ClusterNameLabel: "one", "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name": "web",
	})
	expect(t, "status.observedGeneration", mirror.Status.ObservedGeneration, mirror.Generation)
	var types []string
	for _, condition := range mirror.Status.Conditions {
		types = append(types, condition.Type)
	}
	expect(t, "status.conditions", strings.Join(types, " "), "Ready ClusterAvailable HelmReleaseReady")

	s.change(mirror, func() {
		mirror.Spec.ReleaseName, mirror.Spec.RepoURL, mirror.Spec.Values = "evil", "https://evil.example.com", "evil: yes"
	})
	expect(t, "changed", s.looks(), []string{"patch HelmReleaseProxy team/web-one"})
	expect(t, "put back", s.mirror("web-one").Spec, want)
	s.drop(mirror)
	s.writes = nil
	expect(t, "deleted", s.looks(), []string{"create HelmReleaseProxy team/web-one", "patch status HelmReleaseProxy team/web-one"})
}

// The label cluster.x-k8s.io/watch-filter says which instance looks at a HelmChartProxy.
func TestWatchFilter(t *testing.T) {
	s := newScene(t)
	s.WatchFilter = "mine"
	proxy := s.proxy()
	s.create(proxy)
	expect(t, "of nobody", s.looks(), []string(nil))
	s.change(proxy, func() { proxy.Labels = map[string]string{clusterv1.WatchLabel: "mine"} })
	if len(s.looks()) == 0 {
		t.Error("it is not looked at")
	}
	s.change(proxy, func() { proxy.Labels[clusterv1.WatchLabel] = "theirs" })
	s.drop(s.mirror("web-one"))
	s.writes = nil
	expect(t, "of somebody else", s.looks(), []string(nil))
}
