package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func TestTargetOf(t *testing.T) {
	template := func(s *addonsv1.HelmChartProxySpec) { s.ValuesTemplate = "a: b" }
	configMap := func(name, key string) fleetv1.ValuesFrom {
		return fleetv1.ValuesFrom{ConfigMapKeyRef: &fleetv1.ConfigMapKeySelector{LocalObjectReference: fleetv1.LocalObjectReference{Name: name}, Key: key}}
	}
	force := &fleetv1.CorrectDrift{Force: true}
	options := func(change func(*fleetv1.BundleDeploymentOptions)) fleetv1.BundleTarget {
		its := fleetv1.BundleTarget{Name: "one", ClusterName: "one"}
		change(&its.BundleDeploymentOptions)
		return its
	}
	for name, test := range map[string]struct {
		change  func(*addonsv1.HelmChartProxySpec)
		record  Record
		release string
		deleted bool
		want    *fleetv1.BundleTarget
	}{
		"no Fleet Cluster": {record: Record{}},
		"values to come":   {change: template, record: Record{FleetCluster: "one"}},
		"no values":        {record: Record{FleetCluster: "one"}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) { o.CorrectDrift = force }))},
		"installed":        {record: Record{FleetCluster: "one", Installed: true, Sync: 2}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) { o.ForceSyncGeneration = 2 }))},
		"failed at first":  {record: Record{FleetCluster: "one", Unforced: true, Sync: 1}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) { o.ForceSyncGeneration = 1 }))},
		"a name of Helm's": {record: Record{FleetCluster: "one", Installed: true}, release: "nginx-1234567890", want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) {
			o.Helm = &fleetv1.HelmOptions{ReleaseName: "nginx-1234567890"}
		}))},
		"emptied, forged": {record: Record{FleetCluster: "one", Installed: true, Leaving: Emptied}, want: ptr.To(options(func(*fleetv1.BundleDeploymentOptions) {}))},
		"emptied":         {deleted: true, record: Record{FleetCluster: "one", Installed: true, Leaving: Emptied}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) { o.Helm = &fleetv1.HelmOptions{Chart: emptyChart} }))},
		"drift, at first": {change: func(s *addonsv1.HelmChartProxySpec) { s.CorrectDrift = ptr.To(true) }, record: Record{FleetCluster: "one"}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) {
			o.CorrectDrift = &fleetv1.CorrectDrift{Enabled: true, Force: true}
		}))},
		"values in the first": {change: template, record: Record{FleetCluster: "one", Installed: true, Digest: "d", Keys: []string{"values.yaml"}}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) {
			o.Helm = &fleetv1.HelmOptions{ValuesFrom: []fleetv1.ValuesFrom{configMap("hcp-nginx.for.one", "0-values.yaml")}}
			o.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "ConfigMap", Name: "hcp-nginx.for.one"}}
		}))},
		"secret values in the second": {change: template, record: Record{FleetCluster: "one", Installed: true, Digest: "d", Revision: 3, Secret: true, Keys: []string{"00.yaml", "values.yaml"}}, want: ptr.To(options(func(o *fleetv1.BundleDeploymentOptions) {
			key := func(key string) fleetv1.ValuesFrom {
				return fleetv1.ValuesFrom{SecretKeyRef: &fleetv1.SecretKeySelector{LocalObjectReference: fleetv1.LocalObjectReference{Name: "hcp-nginx.for.one.1"}, Key: key}}
			}
			o.Helm = &fleetv1.HelmOptions{ValuesFrom: []fleetv1.ValuesFrom{key("3-00.yaml"), key("3-values.yaml")}}
			o.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "Secret", Name: "hcp-nginx.for.one.1"}}
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			release := &addonsv1.HelmReleaseProxy{}
			release.Spec.ClusterRef.Namespace, release.Spec.ReleaseName = "team", "nginx"
			if test.deleted {
				release.DeletionTimestamp = ptr.To(metav1.Now())
			}
			if test.release != "" {
				release.Spec.ReleaseName = test.release
			}
			got, ok := TargetOf(proxy(test.change), release, test.record)
			if ok != (test.want != nil) {
				t.Fatalf("there is a target: %t", ok)
			}
			if test.want != nil {
				if diff := cmp.Diff(*test.want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// TestContent: the label covers all parts of the Bundle that reach a cluster, except for its targets.
func TestContent(t *testing.T) {
	content := func(change func(*addonsv1.HelmChartProxySpec), chart Chart, credentials string) string {
		its := NewBundle(proxy(change), "team", "hcp-nginx", chart, credentials)
		return its.Labels[ContentLabel]
	}
	known := map[string]string{}
	for name, its := range map[string]string{
		"as it is":    content(nil, Chart{Version: "1.0.0", Digest: "d"}, ""),
		"version":     content(nil, Chart{Version: "1.1.0", Digest: "d"}, ""),
		"files":       content(nil, Chart{Version: "1.0.0", Digest: "e"}, ""),
		"agents":      content(nil, Chart{Version: "1.0.0", Agent: true}, ""),
		"credentials": content(nil, Chart{Version: "1.0.0", Digest: "d"}, "c"),
		"hooks":       content(nil, Chart{Version: "1.0.0", Digest: "d", Hooks: true}, ""),
		"namespace":   content(func(s *addonsv1.HelmChartProxySpec) { s.ReleaseNamespace = "web" }, Chart{Version: "1.0.0", Digest: "d"}, ""),
		"history":     content(func(s *addonsv1.HelmChartProxySpec) { s.Options.Upgrade.MaxHistory = 3 }, Chart{Version: "1.0.0", Digest: "d"}, ""),
	} {
		if other, found := known[its]; found {
			t.Errorf("%s has the content of %s", name, other)
		}
		known[its] = name
	}
	if content(func(s *addonsv1.HelmChartProxySpec) { s.ClusterSelector.MatchLabels = map[string]string{"a": "b"} }, Chart{Version: "1.0.0", Digest: "d"}, "") !=
		content(nil, Chart{Version: "1.0.0", Digest: "d"}, "") {
		t.Error("who is selected is content")
	}
}

func TestHooksHaveTime(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxySpec)
		hooks  bool
		want   int
	}{
		"none":                 {nil, false, 0},
		"hooks":                {nil, true, 600},
		"hooks and a timeout":  {func(s *addonsv1.HelmChartProxySpec) { s.Options.Timeout = &metav1.Duration{Duration: time.Minute} }, true, 60},
		"wait":                 {func(s *addonsv1.HelmChartProxySpec) { s.Options.Wait = true }, false, 600},
		"a timeout, no effect": {func(s *addonsv1.HelmChartProxySpec) { s.Options.Timeout = &metav1.Duration{Duration: time.Minute} }, false, 0},
	} {
		if got := NewBundle(proxy(test.change), "team", "b", Chart{Hooks: test.hooks}, "").Spec.Helm.TimeoutSeconds; got != test.want {
			t.Errorf("%s: %d s, want %d", name, got, test.want)
		}
	}
}

func TestShard(t *testing.T) {
	counts := map[Key]int{}
	names := map[string]int{}
	for range 2*MaxTargets + 1 {
		name := Shard(proxy(nil), Key{Namespace: "team", Name: "any"}, counts)
		counts[Key{Namespace: "team", Name: name}]++
		names[name]++
	}
	if len(names) != 3 {
		t.Errorf("the Bundles are %v", names)
	}
	once := proxy(func(s *addonsv1.HelmChartProxySpec) { s.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce })
	if one, two := Shard(once, Key{Namespace: "team", Name: "one"}, counts), Shard(once, Key{Namespace: "team", Name: "two"}, counts); one == two {
		t.Errorf("two Clusters share %s", one)
	}
}

// TestNames: names are valid, and differ where the objects must.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 253)
	known := map[string]string{}
	for name, its := range map[string]*addonsv1.HelmChartProxy{
		"plain": proxy(nil), "long": {ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: long}},
		"dotted": {ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a.b"}}, "dashed": {ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a-b"}},
		"renamed":           proxy(func(s *addonsv1.HelmChartProxySpec) { s.ReleaseName = "other" }),
		"another namespace": proxy(func(s *addonsv1.HelmChartProxySpec) { s.ReleaseNamespace = "other" }),
	} {
		for shard := range 3 {
			got := BundleName(its, Key{Namespace: "team", Name: "one"}, shard)
			if len(got) > longestName || strings.Contains(got, ".") || !MayBeOurs(got) {
				t.Errorf("%s: %q is no name of a Bundle", name, got)
			}
			if other, found := known[got]; found {
				t.Errorf("%s and %s share %q", name, other, got)
			}
			known[got] = name
		}
	}
	here, there := Key{Namespace: "team", Name: "web"}, Key{Namespace: "other", Name: "web"}
	if ValuesName(here, "team", "one", 0) == ValuesName(there, "team", "one", 0) || ValuesName(here, "team", "one", 0) == ValuesName(here, "team", "one", 1) ||
		ValuesName(here, "team", "one", 1) != ValuesName(here, "team", "one", 3) {
		t.Error("objects with values share a name")
	}
	if names := ReleaseProxyNames(Key{Namespace: "team", Name: "a-b"}, Key{Namespace: "team", Name: "c"}); names[1] == ReleaseProxyNames(Key{Namespace: "team", Name: "a"}, Key{Namespace: "team", Name: "b-c"})[1] {
		t.Errorf("HelmReleaseProxies share the name %s", names[1])
	}
}

func TestValuesObject(t *testing.T) {
	layers := []Layer{{Key: "00.yaml", Data: []byte("a: 1")}, {Key: "values.yaml", Data: []byte("b: 2")}}
	its := ValuesObject(Key{Namespace: "team", Name: "web"}, "team", Record{FleetCluster: "one", Revision: 1}, layers)
	if configMap, ok := its.(*corev1.ConfigMap); !ok || configMap.Data["1-00.yaml"] != "a: 1" || configMap.Data["1-values.yaml"] != "b: 2" || configMap.Name != "hcp-web.for.one.1" {
		t.Errorf("got %v", its)
	}
	its = ValuesObject(Key{Namespace: "team", Name: "web"}, "team", Record{FleetCluster: "one", Secret: true}, layers)
	if secret, ok := its.(*corev1.Secret); !ok || string(secret.Data["0-00.yaml"]) != "a: 1" || secret.Type != ValuesSecretType {
		t.Errorf("got %v", its)
	}
}
