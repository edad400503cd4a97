package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func proxy(change func(*addonsv1.HelmChartProxySpec)) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "nginx", UID: "u"}}
	its.Spec.RepoURL, its.Spec.ChartName, its.Spec.Version = "https://charts.example.com", "nginx", "1.0.0"
	if change != nil {
		change(&its.Spec)
	}
	return its
}

func chart() *Chart {
	return &Chart{Source: "https://charts.example.com nginx 1.0.0", Version: "1.0.0", Resources: []fleetv1.BundleResource{{Name: "Chart.yaml", Content: "name: nginx"}}}
}

func TestMake(t *testing.T) {
	objects := Make(Input{
		Proxy: proxy(nil), Namespace: "team", Chart: chart(),
		Targets: []Target{{Fleet: "b", Values: []byte("v: 2")}, {Fleet: "a", Values: []byte("v: 1")}, {Fleet: "c", Kept: true}},
		Shared:  &Shared{Data: map[string][]byte{"00.yaml": []byte("s: 1")}, Keys: []string{"00.yaml"}, Secret: true},
	})
	var all []any
	for _, bundle := range objects.Bundles {
		all = append(all, bundle)
	}
	for _, object := range objects.Values {
		all = append(all, object)
	}
	var got strings.Builder
	for _, object := range all {
		document, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n")
		for line := range strings.Lines(string(document)) {
			if !strings.Contains(line, "creationTimestamp") {
				got.WriteString(line)
			}
		}
	}
	const meta = `
    fleet.addons.cluster.x-k8s.io/helmchartproxy: team/nginx
  labels:
    app.kubernetes.io/managed-by: muster
    helmchartproxy-name.fleet.addons.cluster.x-k8s.io: nginx
    helmchartproxy-namespace.fleet.addons.cluster.x-k8s.io: team
  name: %s
  namespace: team
  ownerReferences:
  - apiVersion: addons.cluster.x-k8s.io/v1alpha1
    controller: true
    kind: HelmChartProxy
    name: nginx
    uid: u`
	want := `---
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata:
  annotations:
    fleet.addons.cluster.x-k8s.io/chart: https://charts.example.com nginx 1.0.0
    fleet.addons.cluster.x-k8s.io/chart-version: 1.0.0` + strings.Replace(fmt.Sprintf(meta, "hcp-nginx-default-nginx-3f7282e5"), "namespace.fleet.addons.cluster.x-k8s.io: team\n", "namespace.fleet.addons.cluster.x-k8s.io: team\n    objectset.rio.cattle.io/hash: muster-helmchartproxy\n", 1) + `
spec:
  defaultNamespace: default
  downstreamResources:
  - kind: Secret
    name: hcp-nginx.for-all
  helm:
    disablePreProcess: true
    maxHistory: 10
    releaseName: nginx
    valuesFrom:
    - secretKeyRef:
        key: 00.yaml
        name: hcp-nginx.for-all
  resources:
  - content: 'name: nginx'
    name: Chart.yaml
  targets:` + target("a") + target("b") + target("c") + `
status:
  display: {}
  maxUnavailable: 0
  maxUnavailablePartitions: 0
  observedGeneration: 0
  summary:
    desiredReady: 0
    ready: 0
  unavailable: 0
  unavailablePartitions: 0
---
apiVersion: v1
data:
  00.yaml: czogMQ==
kind: Secret
metadata:
  annotations:` + fmt.Sprintf(meta, "hcp-nginx.for-all") + `
type: fleet.addons.cluster.x-k8s.io/helm-values
---
apiVersion: v1
data:
  values.yaml: 'v: 1'
kind: ConfigMap
metadata:
  annotations:` + fmt.Sprintf(meta, "hcp-nginx.for.a") + `
---
apiVersion: v1
data:
  values.yaml: 'v: 2'
kind: ConfigMap
metadata:
  annotations:` + fmt.Sprintf(meta, "hcp-nginx.for.b") + "\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"hcp-nginx.for.c": true}, objects.Keep); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func target(name string) string {
	return fmt.Sprintf(`
  - clusterName: %[1]s
    downstreamResources:
    - kind: ConfigMap
      name: hcp-nginx.for.%[1]s
    helm:
      valuesFrom:
      - configMapKeyRef:
          key: values.yaml
          name: hcp-nginx.for.%[1]s
    name: %[1]s`, name)
}

// Each field of the API that Fleet knows is handed to it.
// Where nothing is deployed to, nobody is to read what is for all.
func TestMakeNothing(t *testing.T) {
	its := proxy(func(spec *addonsv1.HelmChartProxySpec) { spec.Credentials = &addonsv1.Credentials{} })
	for _, byAgents := range []bool{false, true} {
		carried := chart()
		carried.Agent = byAgents
		objects := Make(Input{
			Proxy: its, Namespace: "other", Chart: carried, Access: &Access{Username: "u", Password: "p"},
			Shared: &Shared{Data: map[string][]byte{"00.yaml": []byte("s: 1")}, Keys: []string{"00.yaml"}, Secret: true},
		})
		if diff := cmp.Diff(Objects{Keep: map[string]bool{}}, objects); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestOptions(t *testing.T) {
	const base = "defaultNamespace: default\nhelm:\n  disablePreProcess: true\n  maxHistory: 10\n  releaseName: nginx\n  values:\n    global: {}\n"
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxySpec)
		want   string
	}{
		"nothing":       {nil, base},
		"releaseName":   {func(s *addonsv1.HelmChartProxySpec) { s.ReleaseName = "other" }, strings.Replace(base, "releaseName: nginx", "releaseName: other", 1)},
		"namespace":     {func(s *addonsv1.HelmChartProxySpec) { s.ReleaseNamespace = "web" }, strings.Replace(base, "defaultNamespace: default", "defaultNamespace: web", 1)},
		"timeout alone": {func(s *addonsv1.HelmChartProxySpec) { s.Options.Timeout = &metav1.Duration{Duration: time.Minute} }, base},
		"wait":          {func(s *addonsv1.HelmChartProxySpec) { s.Options.Wait = true }, with(base, "releaseName: nginx", "timeoutSeconds: 600")},
		"wait, timeout": {func(s *addonsv1.HelmChartProxySpec) {
			s.Options.Wait, s.Options.Timeout = true, &metav1.Duration{Duration: time.Minute}
		}, with(base, "releaseName: nginx", "timeoutSeconds: 60")},
		"waitForJobs":   {func(s *addonsv1.HelmChartProxySpec) { s.Options.Wait, s.Options.WaitForJobs = true, true }, strings.Replace(with(base, "releaseName: nginx", "timeoutSeconds: 600"), "  values:\n    global: {}\n", "  values:\n    global: {}\n  waitForJobs: true\n", 1)},
		"atomic":        {func(s *addonsv1.HelmChartProxySpec) { s.Options.Atomic = true }, with(strings.Replace(base, "helm:\n", "helm:\n  atomic: true\n", 1), "releaseName: nginx", "timeoutSeconds: 600")},
		"takeOwnership": {func(s *addonsv1.HelmChartProxySpec) { s.Options.TakeOwnership = true }, with(base, "releaseName: nginx", "takeOwnership: true")},
		"upgrade.force": {func(s *addonsv1.HelmChartProxySpec) { s.Options.Upgrade.Force = true }, with(base, "disablePreProcess: true", "force: true")},
		"maxHistory":    {func(s *addonsv1.HelmChartProxySpec) { s.Options.Upgrade.MaxHistory = 3 }, strings.Replace(base, "maxHistory: 10", "maxHistory: 3", 1)},
		"correctDrift":  {func(s *addonsv1.HelmChartProxySpec) { s.CorrectDrift = ptr.To(true) }, "correctDrift:\n  enabled: true\n" + base},
		"rollout": {func(s *addonsv1.HelmChartProxySpec) {
			s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(2))}
		}, base + "rolloutStrategy:\n  maxUnavailable: 2\n"},
		"InstallOnce": {func(s *addonsv1.HelmChartProxySpec) { s.ReconcileStrategy = "InstallOnce" }, base + "keepResources: true\n"},
		"Continuous":  {func(s *addonsv1.HelmChartProxySpec) { s.ReconcileStrategy = "Continuous" }, base},
		"without effect": {func(s *addonsv1.HelmChartProxySpec) {
			s.Options.DependencyUpdate, s.Options.SubNotes, s.Options.Upgrade.ResetValues = true, true, true
		}, base},
	} {
		t.Run(name, func(t *testing.T) {
			bundles := Make(Input{Proxy: proxy(test.change), Namespace: "team", Chart: chart(), Targets: []Target{{Fleet: "a"}}}).Bundles
			if len(bundles) != 1 {
				t.Fatalf("%d Bundles", len(bundles))
			}
			bundles[0].Spec.Targets, bundles[0].Spec.Resources = nil, nil
			got, err := yaml.Marshal(bundles[0].Spec)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

// with adds a line after another.
func with(text, line, more string) string {
	return strings.Replace(text, line+"\n", line+"\n  "+more+"\n", 1)
}

// A Cluster stays in the Bundle that it is in: in another one its release would be
// installed anew, and uninstalled in the first.
func TestShards(t *testing.T) {
	var targets []Target
	for i := range 1000 {
		targets = append(targets, Target{Fleet: fmt.Sprintf("cluster-%04d", i), Values: []byte("a: 1")})
	}
	large := chart()
	large.Resources = []fleetv1.BundleResource{{Name: "Chart.yaml", Content: strings.Repeat("x", 300<<10)}}
	in := Input{Proxy: proxy(nil), Namespace: "team", Chart: large, Targets: targets[:900]}
	placed := map[string]string{}
	note := func(bundles []*fleetv1.Bundle) (moved int) {
		for _, bundle := range bundles {
			if size := len(toYAML(t, bundle)); size > maxBundle+1024 {
				t.Errorf("%s has %d bytes", bundle.Name, size)
			}
			for _, target := range bundle.Spec.Targets {
				if was := placed[target.ClusterName]; was != "" && was != bundle.Name {
					moved++
				}
				placed[target.ClusterName] = bundle.Name
			}
		}
		return moved
	}
	first := Make(in).Bundles
	note(first)
	if len(first) < 3 || len(placed) != 900 {
		t.Fatalf("%d Bundles with %d Clusters", len(first), len(placed))
	}
	for i := range first {
		for j := range i {
			if first[i].Name == first[j].Name {
				t.Errorf("two Bundles are named %s", first[i].Name)
			}
		}
	}
	last := first[len(first)-1]
	if other := in.Proxy.DeepCopy(); !IsBundleName(in.Proxy, last) {
		t.Error("the last Bundle is not of its release")
	} else if other.Spec.ReleaseName = "other"; IsBundleName(other, last) {
		t.Error("the last Bundle is of another release")
	}
	// Some go, others come.
	in.Placed, in.Targets = placed, slices.Concat(targets[100:200], targets[300:1000])
	for name := range placed {
		if !slices.ContainsFunc(in.Targets, func(its Target) bool { return its.Fleet == name }) {
			delete(placed, name)
		}
	}
	second := Make(in).Bundles
	if moved := note(second); moved > 0 {
		t.Errorf("%d Clusters are in another Bundle than before", moved)
	}
	if len(placed) != 800 {
		t.Errorf("%d Clusters are placed", len(placed))
	}
	if again := Make(in).Bundles; cmp.Diff(second, again) != "" {
		t.Error("the same again gives something else")
	}
}

func toYAML(t *testing.T, object any) string {
	document, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}

func TestNames(t *testing.T) {
	long := strings.Repeat("long-", 15) + "0f8fad5b-d9cb-469f-a165-70867728950e"
	seen := map[string]string{}
	for _, key := range []Key{
		{Namespace: "a", Name: "x"}, {Namespace: "a", Name: "b-x"}, {Namespace: "a", Name: "x.y"}, {Namespace: "a", Name: "x-y"},
		{Namespace: "a", Name: long}, {Namespace: "a", Name: long + "1"}, {Namespace: "b", Name: "x"}, {Namespace: "b", Name: long},
	} {
		for _, group := range []string{"", "one", "two"} {
			its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			name := BundleName(its, "a", group)
			other := its.DeepCopy()
			other.Spec.ReleaseNamespace = "other"
			if BundleName(other, "a", group) == name {
				t.Errorf("%s for releases in two namespaces", name)
			}
			for shard := range 3 {
				name := shardName(name, shard)
				if other := seen[name]; other != "" {
					t.Errorf("%s for %s %q %d and for %s", name, key, group, shard, other)
				}
				seen[name] = fmt.Sprint(key, group, shard)
				if len(validation.IsDNS1123Label(name)) > 0 || len(name) > longestName {
					t.Errorf("%s is no name for a release", name)
				}
			}
		}
		its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}
		if name := ReleaseName(its); len(validation.IsDNS1123Label(name)) > 0 || len(name) > longestName {
			t.Errorf("%s is no name for a release", name)
		}
		for _, value := range Labels(key) {
			if len(validation.IsValidLabelValue(value)) > 0 {
				t.Errorf("%s is no label value", value)
			}
		}
	}
}
