package crd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
)

// Keys that no copy may be without, or that are never copied, cannot be excluded from copying.
func TestValidateCopyExclude(t *testing.T) {
	const (
		format = "must be the key of a label or annotation, for example example.com/cost-center, or a prefix followed by /*, for example example.com/*"
		own    = "is one of Muster's, Fleet's or Rancher's own keys, which Muster sets or never copies; remove it"
	)
	long := strings.Repeat("a.", 126) + "a/" + strings.Repeat("b", 63)
	for key, want := range map[string]string{
		"env": "", "example.com/cost-center": "", "example.com/*": "", "app.kubernetes.io/instance": "", "app.kubernetes.io/*": "", "argocd.argoproj.io/*": "",
		"my.fleet.cattle.io/x": "", "field.cattle.io/*": "", "cluster-api.cattle.io/rancher-auto-import": "", "Example.com/X_y.z": "", "before-upgrade.hook.cluster.cluster.x-k8s.io/other": "", long: "",
		"*": format, "example.com/": format, "example.com/a*": format, "*/a": format, "-a": format, "a b": format, "a/b/c": format, "/*": format, "": format,
		"fleet.cattle.io/*": own, "fleet.cattle.io/cluster": own, "management.cattle.io/*": own, "management.cattle.io/cluster-name": own, "objectset.rio.cattle.io/*": own,
		"fleet.addons.cluster.x-k8s.io/*": own, "fleet.addons.cluster.x-k8s.io/owned-by": own, "clusterclass-name.fleet.addons.cluster.x-k8s.io": own,
		"clusterclass-namespace.fleet.addons.cluster.x-k8s.io": own, "addons.cluster.x-k8s.io/*": own, "app.kubernetes.io/managed-by": own,
		"before-upgrade.hook.cluster.cluster.x-k8s.io/muster": own,
	} {
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "fleet-addon-config"},
			"spec": map[string]any{"cluster": map[string]any{"copy": map[string]any{"exclude": []string{"a", key}}}}})
		if err != nil {
			t.Fatal(err)
		}
		broken, err := Validate(t.Context(), addonsv1.GroupVersion.WithKind("FleetAddonConfig"), raw)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, err := range broken {
			got = append(got, err.Error())
		}
		if (len(got) == 0) != (want == "") || want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], "spec.cluster.copy.exclude[1]: ") || !strings.Contains(got[0], want)) {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	var labels []string
	for i := range 65 {
		labels = append(labels, fmt.Sprintf("l%d: a", i))
	}
	for name, test := range map[string]struct {
		kind, object string
		want         []string
	}{
		"valid":                      {kind: "FleetAddonConfig", object: "{metadata: {name: fleet-addon-config}, spec: {cluster: {selector: {}}}}"},
		"null counts as unset":       {kind: "FleetAddonConfig", object: "{metadata: {name: fleet-addon-config}, spec: {cluster: null}}"},
		"a type":                     {kind: "FleetAddonConfig", object: "{metadata: {name: fleet-addon-config}, spec: {cluster: {enabled: maybe}}}", want: []string{`spec.cluster.enabled: Invalid value: "string": spec.cluster.enabled in body must be of type boolean: "string"`}},
		"a rule of a field":          {kind: "FleetAddonConfig", object: "{metadata: {name: fleet-addon-config}, spec: {install: {version: 0.16.0, followLatest: true}}}", want: []string{`spec.install: Invalid value: set exactly one of followLatest and version: followLatest installs the newest release, version the one you name`}},
		"a rule of the whole object": {kind: "FleetAddonConfig", object: "{metadata: {name: mine}}", want: []string{`<nil>: Invalid value: metadata.name: the only FleetAddonConfig is named fleet-addon-config; rename this one`}},
		"required":                   {kind: "HelmChartProxy", object: "{metadata: {name: a}, spec: {repoURL: https://a, chartName: a}}", want: []string{"spec.clusterSelector: Required value"}},
		"an enum":                    {kind: "HelmChartProxy", object: "{metadata: {name: a}, spec: {clusterSelector: {}, repoURL: https://a, chartName: a, reconcileStrategy: Sometimes}}", want: []string{`spec.reconcileStrategy: Unsupported value: "Sometimes": supported values: "", "InstallOnce", "Continuous"`}},
		"a rule with a cost":         {kind: "HelmChartProxy", object: "{metadata: {name: a}, spec: {clusterSelector: {matchLabels: {" + strings.Join(labels, ", ") + "}}, repoURL: https://a, chartName: a}}", want: []string{"spec.clusterSelector.matchLabels: Invalid value: must have at most 64 labels; select by fewer"}},
		"a rule of a stage":          {kind: "HelmChartProxy", object: "{metadata: {name: a}, spec: {clusterSelector: {}, repoURL: https://a, chartName: a, rollout: {stages: [{name: a}, {name: b, percent: 1}]}}}", want: []string{"spec.rollout.stages[0]: Invalid value: must have either clusterSelector or percent"}},
		"the status is not checked":  {kind: "HelmReleaseProxy", object: "{metadata: {name: a}, spec: {}, status: 1}", want: []string{"spec.chartName: Required value", "spec.clusterRef: Required value", "spec.repoURL: Required value"}},
		"no name":                    {kind: "HelmChartProxy", object: "{spec: {clusterSelector: {}, repoURL: https://a, chartName: a}}", want: []string{"metadata.name: Required value: name or generateName is required"}},
		"metadata": {kind: "HelmChartProxy", object: "{metadata: {name: a/b, namespace: c.d, labels: {e: 'f g'}}, spec: {clusterSelector: {}, repoURL: https://a, chartName: a}}", want: []string{
			`metadata.name: Invalid value: "a/b": ` + validation.IsDNS1123Subdomain("a/b")[0], `metadata.namespace: Invalid value: "c.d": ` + validation.IsDNS1123Label("c.d")[0],
			`metadata.labels: Invalid value: "f g": ` + validation.IsValidLabelValue("f g")[0],
		}},
		"not one of Muster's": {kind: "HelmChart", object: "{metadata: {name: a}, spec: 1}", want: []string{`kind: Unsupported value: "HelmChart": supported values: "FleetAddonConfig", "HelmChartProxy", "HelmReleaseProxy"`}},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := yaml.YAMLToJSON([]byte(test.object))
			if err != nil {
				t.Fatal(err)
			}
			broken, err := Validate(t.Context(), addonsv1.GroupVersion.WithKind(test.kind), raw)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, err := range broken {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A timeout that Go cannot decode is refused: one such HelmReleaseProxy, which tenants may write and no webhook checks, would make
// every list of HelmReleaseProxies fail, for all namespaces.
func TestTimeouts(t *testing.T) {
	for timeout, isValid := range map[string]bool{"10m": true, "1h2m3.5s": true, "0": true, "": false, "10": false, "abc": false, "999999999999h": false, "-1s": false} {
		raw := fmt.Appendf(nil, `{"metadata": {"name": "a"}, "spec": {"clusterRef": {}, "chartName": "a", "repoURL": "https://a", "options": {"timeout": %q}}}`, timeout)
		broken, err := Validate(t.Context(), addonsv1.GroupVersion.WithKind("HelmReleaseProxy"), raw)
		if err != nil || (len(broken) == 0) != isValid {
			t.Errorf("%q: %v, %v", timeout, broken, err)
		}
		if err := json.Unmarshal(raw, &addonsv1.HelmReleaseProxy{}); isValid && err != nil {
			t.Errorf("%q cannot be decoded: %v", timeout, err)
		}
	}
}

// Other versions of Muster's group, and other groups, are not Muster's.
func TestValidateOthers(t *testing.T) {
	for _, kind := range []schema.GroupVersionKind{
		{Group: addonsv1.GroupVersion.Group, Version: "v1beta2", Kind: "ClusterResourceSet"}, {Group: "fleet.cattle.io", Version: "v1alpha1", Kind: "Cluster"}, {Version: "v1", Kind: "Secret"},
	} {
		if broken, err := Validate(t.Context(), kind, []byte(`{"metadata": {"name": "a"}, "spec": 1}`)); err != nil || len(broken) > 0 {
			t.Errorf("%s: %v, %v", kind, broken, err)
		}
	}
}

// The CRD has the defaults of cluster-api-addon-provider-helm, but for wait with atomic. A HelmChartProxy that an earlier CRD
// stored without them gives the same Bundle and options with them, so that an upgrade redeploys nothing.
func TestDefaultsOfHelmChartProxies(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	of := all[addonsv1.GroupVersion.WithKind("HelmChartProxy")].structural
	for name, test := range map[string]struct{ spec, want string }{
		"nothing":                        {`{}`, `{"namespace":"default","options":{"enableClientCache":false,"timeout":"10m0s"}}`},
		"some options":                   {`{"options":{"wait":true,"install":{}}}`, `{"namespace":"default","options":{"enableClientCache":false,"install":{"createNamespace":true},"timeout":"10m0s","wait":true}}`},
		"atomic":                         {`{"options":{"atomic":true,"upgrade":{}}}`, `{"namespace":"default","options":{"atomic":true,"enableClientCache":false,"timeout":"10m0s","upgrade":{"maxHistory":10}}}`},
		"an empty value stays":           {`{"namespace":""}`, `{"namespace":"","options":{"enableClientCache":false,"timeout":"10m0s"}}`},
		"all that has defaults is there": {`{"namespace":"a","options":{"enableClientCache":true,"timeout":"1m0s"}}`, `{"namespace":"a","options":{"enableClientCache":true,"timeout":"1m0s"}}`},
	} {
		object := map[string]any{}
		if err := json.Unmarshal([]byte(`{"spec":`+test.spec+`}`), &object); err != nil {
			t.Fatal(err)
		}
		defaulting.Default(object, of)
		if got := plan.JSON(object["spec"]); got != test.want {
			t.Errorf("%s: it is stored as %s, want %s", name, got, test.want)
		}
		bundles, options := []string{}, []string{}
		for _, spec := range []string{test.spec, test.want} {
			its := &addonsv1.HelmChartProxy{}
			if err := json.Unmarshal([]byte(spec), &its.Spec); err != nil {
				t.Fatal(err)
			}
			plan.Default(its)
			bundles = append(bundles, plan.JSON(plan.NewBundle(its, "team", "hcp-web", plan.Chart{Version: "1.0.0", Hooks: true}, "")))
			options = append(options, plan.JSON(plan.StoredOptions(its.Spec.Options)))
		}
		if bundles[0] != bundles[1] {
			t.Errorf("%s: the Bundle changes: %s", name, cmp.Diff(bundles[0], bundles[1]))
		}
		if options[0] != options[1] {
			t.Errorf("%s: the HelmReleaseProxies change: %s", name, cmp.Diff(options[0], options[1]))
		}
	}
}
