package templates

import (
	"slices"
	"strings"
	"testing"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func examined(t *testing.T, template string) Template {
	t.Helper()
	of := &addonsv1.HelmChartProxy{}
	of.Spec.ValuesTemplate = template
	its, errs, err := Examine(t.Context(), of)
	if err != nil || len(errs) > 0 {
		t.Fatal(errs, err)
	}
	return its
}

func TestReads(t *testing.T) {
	for template, want := range map[string]bool{
		"":                                      false,
		"a: b":                                  false,
		"{{ .Cluster.spec.topology.version }}":  true,
		"{{ $.Cluster.spec.topology.version }}": true,
		"{{ .Cluster.metadata.name }}":          false,
		"{{ .Cluster.spec.clusterNetwork.pods.cidrBlocks }}":                                               false,
		"{{ index .Cluster.spec.clusterNetwork.pods.cidrBlocks 0 }}":                                       false,
		"{{ .Cluster.spec.topology | toJson }}":                                                            true,
		"{{ toJson . }}":                                                                                   true,
		"{{ index . \"Cluster\" }}":                                                                        true,
		"{{ with .Cluster.spec }}{{ .topology.version }}{{ end }}":                                         true,
		"{{ with .Cluster.metadata }}{{ .name }}{{ . }}{{ end }}":                                          false,
		"{{ with .Cluster.metadata }}{{ $.Cluster.spec.topology.version }}{{ end }}":                       true,
		"{{ with .Cluster.metadata }}{{ else }}{{ .Cluster.spec.topology.version }}{{ end }}":              true,
		"{{ range .Variables.zones }}{{ . }}{{ end }}":                                                     false,
		"{{ range $i, $z := .Variables.zones }}{{ $z }}{{ end }}":                                          false,
		"{{ $c := .Cluster }}{{ $c.spec.topology.version }}":                                               true,
		"{{ if eq .Cluster.metadata.name \"a\" }}x{{ else }}{{ .Cluster.spec.topology.version }}{{ end }}": true,
		"{{ if semverCompare \">=1.36\" .Cluster.spec.topology.version }}x{{ end }}":                       true,
		"{{ if .Variables.x }}{{ .Cluster.metadata.name }}{{ end }}":                                       false,
		"{{ define \"x\" }}{{ .spec }}{{ end }}{{ template \"x\" .Cluster.metadata }}":                     false,
		"{{ define \"x\" }}{{ .spec.topology.version }}{{ end }}{{ template \"x\" .Cluster }}":             true,
		"{{ block \"x\" . }}{{ .Cluster.spec.topology.version }}{{ end }}":                                 true,
		"{{ (index .Cluster.spec \"topology\").version }}":                                                 true,
		"{{ (.Cluster.spec).topology.version }}":                                                           true,
		"{{ .ControlPlane.spec.version }}":                                                                 false,
	} {
		if got := examined(t, template); got.ReadsVersion != want {
			t.Errorf("%s: %t", template, got.ReadsVersion)
		}
	}
}

func TestStuck(t *testing.T) {
	for template, want := range map[string]bool{
		"{{ .ControlPlane.spec.version }}":                     true,
		"{{ .ControlPlane.spec.replicas }}":                    false,
		"{{ toJson .ControlPlane }}":                           false,
		"{{ .Cluster.spec.topology.version }}":                 false,
		"{{ with .ControlPlane.spec }}{{ .version }}{{ end }}": false,
	} {
		isStuck := func(warning string) bool { return strings.Contains(warning, "an upgrade is held for add-ons") }
		if got := examined(t, template); slices.ContainsFunc(got.Warnings, isStuck) != want {
			t.Errorf("%s: %q", template, got.Warnings)
		}
	}
}
