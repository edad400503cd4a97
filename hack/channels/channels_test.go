package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const shipped = `
apiVersion: v1
kind: Namespace
metadata: {name: muster-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: muster-system, name: muster-webhook}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - {name: manager, image: "ghcr.io/org/muster-webhook:v0.1.0", args: [--log-level=info, "--diagnostics-address=:8443", --a], env: [{name: GOMEMLIMIT, value: 9MiB}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: muster-system, name: text}
data: {alert: "in {{ $labels.pod }} of muster-system"}
`

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	result, err := decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestDifferencesAreFound(t *testing.T) {
	if err := compare("x", objects(t, shipped), objects(t, shipped)); err != nil {
		t.Errorf("equal objects differ: %v", err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"a field":       {"replicas: 2", "replicas: 3", "x differs from manifests/"},
		"a field less":  {"replicas: 2", "paused: true", `"paused":`},
		"in a list":     {"--a]", "--b]", `string("--b")`},
		"an other name": {"name: text", "name: other", "ConfigMap muster-system/other"},
		"an object":     {"kind: ConfigMap", "kind: Secret", "Secret muster-system/text"},
	} {
		err := compare("x", objects(t, shipped), objects(t, strings.Replace(shipped, test.old, test.new, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	twice := append(objects(t, shipped), objects(t, shipped)[0])
	if err := compare("x", objects(t, shipped), twice); err == nil {
		t.Error("an object that is there twice is not found")
	}
}

func TestComponentsForClusterctl(t *testing.T) {
	got, err := addonComponents(objects(t, shipped))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got, "--log-level=${MUSTER_LOG_LEVEL:=info}") || strings.Count(got, "cluster.x-k8s.io/provider: addon-muster") != 4 {
		t.Errorf("variable or labels are missing in\n%s", got)
	}
	for _, want := range []string{"- --diagnostics-address=${CAPI_DIAGNOSTICS_ADDRESS:=:8443}\n", "- --insecure-diagnostics=${CAPI_INSECURE_DIAGNOSTICS:=false}\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if plain := withDefaults(got); strings.Contains(plain, "insecure-diagnostics") || !strings.Contains(plain, "- --diagnostics-address=:8443\n") {
		t.Errorf("with the defaults, the arguments are not those of the manifests:\n%s", plain)
	}
	dollars, err := addonComponents(objects(t, strings.Replace(shipped, "in {{", "a $$(b) {{", 1)))
	if err != nil || !strings.Contains(dollars, "a $$$$(b)") || !strings.Contains(withDefaults(dollars), "a $$(b)") {
		t.Errorf("clusterctl would take one dollar of two: %v\n%s", err, dollars)
	}
	for _, text := range []string{"${ .ClusterValues.x }", "${DATASOURCE}", "a$${b}"} {
		_, err := addonComponents(objects(t, strings.Replace(shipped, "in {{", text, 1)))
		if err == nil || !strings.Contains(err.Error(), "ConfigMap muster-system/text") {
			t.Errorf("%s is taken for a variable, and nobody says so: %v", text, err)
		}
	}
}

func TestVersions(t *testing.T) {
	got, err := metadata("v0.1.7")
	if err != nil || !strings.Contains(got, "contract: v1beta2") {
		t.Errorf("got %v and %s", err, got)
	}
	for _, version := range []string{"dev", "v99.0.0", ""} {
		if _, err := metadata(version); err == nil {
			t.Errorf("%q has no minor release, and metadata are made for it", version)
		}
	}
}

func TestImagesAreOfOneRelease(t *testing.T) {
	version, err := versionOf(objects(t, shipped))
	if err != nil || version != "v0.1.0" {
		t.Errorf("got %v, %v", version, err)
	}
	second := strings.NewReplacer("muster-webhook", "muster-syncer", "kind: Namespace", "kind: Other").Replace(shipped)
	for name, wrong := range map[string]string{
		"another version":    strings.Replace(second, "v0.1.0", "v0.2.0", 1),
		"another registry":   strings.Replace(second, "ghcr.io", "example.com", 1),
		"no version":         strings.Replace(second, ":v0.1.0", "", 1),
		"another's image":    strings.Replace(second, "org/muster-syncer", "org/other", 1),
		"no registry at all": strings.Replace(second, "ghcr.io/org/", "", 1),
	} {
		if _, err := versionOf(append(objects(t, shipped), objects(t, wrong)...)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// kubectl apply -k prints a warning for each of these fields.
func TestNoWarnings(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "manifests", "*", "kustomization.yaml"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d kustomizations: %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(content, &fields); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"sortOptions", "commonLabels", "bases", "vars", "patchesStrategicMerge", "patchesJson6902", "imageTags"} {
			if fields[field] != nil {
				t.Errorf("%s has %s", file, field)
			}
		}
	}
}

// The policies that bound the authors of HelmChartProxies, and the program that carries them out, come
// first in the file, so that they are applied before there can be a HelmChartProxy.
func TestFencesComeFirst(t *testing.T) {
	files, err := released(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, object := range objects(t, files["helm.yaml"]) {
		at[object.GetKind()+" "+object.GetName()] = i
	}
	for _, fence := range []string{
		"ValidatingAdmissionPolicyBinding muster-helm-authors", "ValidatingAdmissionPolicyBinding muster-helm-values",
		"ValidatingAdmissionPolicyBinding muster-helm-bundles", "ValidatingAdmissionPolicyBinding muster-helm-nothing-else",
		"ValidatingWebhookConfiguration muster-helm-validating-webhook",
	} {
		for _, bounded := range []string{"CustomResourceDefinition helmchartproxies.addons.cluster.x-k8s.io", "ClusterRoleBinding muster-helm", "Deployment muster-helm"} {
			before, isThere := at[fence]
			after, isThereToo := at[bounded]
			if !isThere || !isThereToo || before > after {
				t.Errorf("%s (%d, %v) does not come before %s (%d, %v)", fence, before, isThere, bounded, after, isThereToo)
			}
		}
	}
}
