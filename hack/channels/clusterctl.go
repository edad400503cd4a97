package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/hack/texts"
)

// releaseSeries is an entry of clusterctl's Metadata for a minor release.
type releaseSeries struct {
	Major    int    `json:"major"`
	Minor    int    `json:"minor"`
	Contract string `json:"contract"`
}

// variables are the variables of the components, which clusterctl replaces, by the argument whose value they are, with a
// default for each. Nothing else in the components may look like a variable. Those of diagnostics are Cluster API's.
var variables = map[string]string{
	logLevelArg:              "${MUSTER_LOG_LEVEL:=info}",
	"--diagnostics-address=": "${CAPI_DIAGNOSTICS_ADDRESS:=:8443}",
	insecureDiagnosticsArg:   "${CAPI_INSECURE_DIAGNOSTICS:=false}",
}

const (
	// insecureDiagnosticsArg is an argument in no other way to install: false is the programs' default.
	insecureDiagnosticsArg = "--insecure-diagnostics="
	providerLabel          = "cluster.x-k8s.io/provider"
)

// addonComponents returns addon-components.yaml of these objects, which it modifies.
func addonComponents(objects []*unstructured.Unstructured) (string, error) {
	for _, object := range objects {
		var err error
		texts.Each(object.Object, func(text string) string {
			if strings.Contains(text, "${") {
				err = fmt.Errorf("%s: clusterctl would take the text after ${ for a variable, in %q", nameOf(object), text)
			}
			return strings.ReplaceAll(text, "$$", "$$$$")
		})
		if err != nil {
			return "", err
		}
		if err := unstructured.SetNestedField(object.Object, provider, "metadata", "labels", providerLabel); err != nil {
			return "", err
		}
	}
	for _, deployment := range deployments(objects) {
		if err := withVariables(deployment); err != nil {
			return "", err
		}
		// As Cluster API's own pods: its visualizer finds logs by this label.
		if err := unstructured.SetNestedField(deployment.Object, provider, podLabel...); err != nil {
			return "", err
		}
	}
	return encode(objects)
}

// podLabel is the path of the provider's label on a Deployment's pods.
var podLabel = []string{"spec", "template", "metadata", "labels", providerLabel}

// withVariables makes variables the values of a program's arguments.
func withVariables(deployment *unstructured.Unstructured) error {
	container, err := containerOf(deployment)
	if err != nil {
		return err
	}
	args, _, err := unstructured.NestedStringSlice(container, "args")
	if err != nil {
		return err
	}
	args = append(args, insecureDiagnosticsArg)
	for name, variable := range variables {
		i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, name) })
		if i < 0 {
			return fmt.Errorf("%s has no argument %s", nameOf(deployment), name)
		}
		args[i] = name + variable
	}
	return unstructured.SetNestedStringSlice(container, args, "args")
}

// metadata returns metadata.yaml; it fails if that does not include the version.
func metadata(version string) (string, error) {
	if !slices.ContainsFunc(series, func(s releaseSeries) bool {
		return strings.HasPrefix(version, fmt.Sprintf("v%d.%d.", s.Major, s.Minor))
	}) {
		return "", fmt.Errorf("the images have the tag %q, which is of no minor release in the list (series)", version)
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata", "releaseSeries": series,
	})
	return string(content), err
}

// operatorManifest returns the objects that the Cluster API Operator needs if it can reach no release: the
// components in a ConfigMap, and an AddonProvider that takes them from there.
func operatorManifest(components, metadata, version string) (string, error) {
	labels := map[string]any{
		"provider.cluster.x-k8s.io/version": version,
		"provider.cluster.x-k8s.io/type":    "addon",
		"provider.cluster.x-k8s.io/name":    "muster",
	}
	var documents []*unstructured.Unstructured
	add := func(apiVersion, kind string, metadata map[string]any, fields map[string]any) {
		fields["apiVersion"], fields["kind"], fields["metadata"] = apiVersion, kind, metadata
		documents = append(documents, &unstructured.Unstructured{Object: fields})
	}
	add("v1", "Namespace", map[string]any{"name": namespace}, map[string]any{})
	add("v1", "ConfigMap", map[string]any{"namespace": namespace, "name": provider + "-" + version, "labels": labels},
		map[string]any{"data": map[string]any{"components": components, "metadata": metadata}})
	add("operator.cluster.x-k8s.io/v1alpha2", "AddonProvider", map[string]any{"namespace": namespace, "name": "muster"},
		map[string]any{"spec": map[string]any{
			"version":     version,
			"fetchConfig": map[string]any{"selector": map[string]any{"matchLabels": labels}},
		}})
	return encode(documents)
}

// withDefaults replaces the variables in components by their defaults, as clusterctl does, and leaves out the argument
// that only components have. For clusterctl, two dollars are an escaped one.
func withDefaults(components string) string {
	for _, variable := range variables {
		_, fallback, _ := strings.Cut(strings.TrimSuffix(variable, "}"), ":=")
		components = strings.ReplaceAll(components, variable, fallback)
	}
	components = regexp.MustCompile(`\n *- `+insecureDiagnosticsArg+`false`).ReplaceAllString(components, "")
	return strings.ReplaceAll(components, "$$", "$")
}
