package values

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func data() map[string]any {
	return map[string]any{
		"Cluster": map[string]any{
			"metadata": map[string]any{"name": "prod", "labels": map[string]any{"port": "sesame"}},
			"spec":     map[string]any{"clusterNetwork": map[string]any{"pods": map[string]any{"cidrBlocks": []any{"10.0.0.0/16"}}}},
		},
		"ControlPlane": map[string]any{"metadata": map[string]any{"name": "prod-cp"}},
		"InfraCluster": map[string]any{"kind": "AWSCluster"},
		"Variables":    map[string]any{"tier": "gold", "million": 1000000, "half": 0.5},
	}
}

// The cases include cluster-api-addon-provider-helm's own.
func TestRender(t *testing.T) {
	for name, test := range map[string]struct{ template, want, err string }{
		"plain":                              {template: "a: 1\n", want: "a: 1\n"},
		"over all data":                      {template: "a: {{ .Cluster.metadata.name }}-{{ .ControlPlane.metadata.name }}-{{ .InfraCluster.kind }}-{{ .Variables.tier }}", want: "a: prod-prod-cp-AWSCluster-gold"},
		"numbers":                            {template: "a: {{ .Variables.million }}\nb: {{ .Variables.half }}", want: "a: 1000000\nb: 0.5"},
		"a missing key":                      {template: "a: {{ .Cluster.metadata.nothing }}", want: "a: <no value>"},
		"functions of sprig":                 {template: `a: {{ "x" | upper | quote }}`, want: `a: "X"`},
		"empty":                              {template: "", want: "global: {}\n"},
		"empty once rendered":                {template: "{{ if false }}a: 1{{ end }}", want: "global: {}\n"},
		"only a comment":                     {template: "# nothing", want: "global: {}\n"},
		"a missing field of a missing field": {template: "a: {{ .Cluster.nothing.at.all }}", want: "a: <no value>"},
		"a field of a text":                  {template: "a: {{ .Cluster.metadata.name.first }}", err: `valuesTemplate:1:14: executing "valuesTemplate" at <.Cluster.metadata.name.first>: can't evaluate field first in type interface {}`},
		"beyond a list":                      {template: "a: {{ index .Cluster.spec.clusterNetwork.pods.cidrBlocks 3 }}", err: `valuesTemplate:1:6: executing "valuesTemplate" at <index .Cluster.spec.clusterNetwork.pods.cidrBlocks 3>: error calling index`},
		"a function that fails":              {template: `a: {{ fail .Cluster.metadata.labels.port }}`, err: `valuesTemplate:1:6: executing "valuesTemplate" at <fail .Cluster.metadata.labels.port>: error calling fail`},
		"text":                               {template: "{{ .Cluster.metadata.labels.port }}", err: "the values are not a map in YAML"},
		"not YAML":                           {template: "a: 1\n b: {{ .Cluster.metadata.labels.port }}", err: "the values are not a map in YAML: line 2"},
		"too much":                           {template: `a: {{ repeat 600000 "x" }}`, err: "the values are larger than 512 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := Parse(test.template)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parsed.Render(data())
			if message(err) != test.err {
				t.Errorf("error: %q, want %q", message(err), test.err)
			}
			if strings.Contains(message(err), "sesame") {
				t.Errorf("the error shows data: %v", err)
			}
			if string(got) != test.want {
				t.Errorf("values (-want +got):\n%s", cmp.Diff(test.want, string(got)))
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// maxTemplate is the CRD's limit on the characters of a template.
const maxTemplate = 131072

func TestParse(t *testing.T) {
	for template, want := range map[string]string{
		"{{ .Cluster":                    "valuesTemplate:1: unclosed action",
		"{{ nosuch 1 }}":                 `valuesTemplate:1: function "nosuch" not defined`,
		`{{ env "HOME" }}`:               `valuesTemplate:1: function "env" not defined`,
		`{{ expandenv "$HOME" }}`:        `valuesTemplate:1: function "expandenv" not defined`,
		`{{ getHostByName "a" }}`:        `valuesTemplate:1: function "getHostByName" not defined`,
		"{{ if }}{{ end }}":              "valuesTemplate:1: missing value for if",
		strings.Repeat("ä", maxTemplate): "",
	} {
		if _, err := Parse(template); message(err) != want {
			t.Errorf("%.30s: %q, want %q", template, message(err), want)
		}
	}
}

func TestIsStatic(t *testing.T) {
	for template, want := range map[string]bool{"": true, "a: 1": true, "# {a}": true, "a: {{ 1 }}": false, "{{/* c */}}a: 1": true, "{{ define \"x\" }}{{ end }}a: 1": true} {
		parsed, err := Parse(template)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.IsStatic(); got != want {
			t.Errorf("%q: %t, want %t", template, got, want)
		}
	}
}

func TestUnsteady(t *testing.T) {
	parsed, err := Parse(`a: {{ randAlphaNum 5 }} {{ now }} {{ .Cluster.metadata.name | upper }}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"now", "randAlphaNum"}, parsed.Unsteady()); diff != "" {
		t.Error(diff)
	}
}

func TestCheck(t *testing.T) {
	for values, want := range map[string]string{
		"a: 1": "", "": "", "- a": "the values are not a map in YAML", "a: 1\n b: sesame": "the values are not a map in YAML: line 2",
		"a: " + strings.Repeat("x", MaxSize): "the values are larger than 512 KiB",
	} {
		if got := message(Check([]byte(values))); got != want {
			t.Errorf("%.20q: %q, want %q", values, got, want)
		}
	}
}

// FuzzParse: no template makes Parse panic, and no error of a rendering shows data.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"{{ repeat 3 .Cluster.metadata.labels.port | fail }}", "a: {{ .Cluster.metadata.labels.port }}",
		"{{ atoi .Cluster.metadata.labels.port | fail }}", "{{ .Cluster.metadata.labels.port | b64dec }}", "{{ index .Cluster 1 }}",
		"{{ range .Cluster }}{{ . }}{{ end }}", "{{ template \"x\" }}", "{{ regexReplaceAll .Cluster.metadata.labels.port \"(\" 1 }}",
		"{{ toDate \"2006\" .Cluster.metadata.labels.port }}", "{{ mustFromJson .Cluster.metadata.labels.port }}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := Parse(text)
		if err != nil || len(text) > 100 || strings.Contains(text, "sesame") || strings.Contains(text, "{{range") {
			return // Nothing bounds a rendering here.
		}
		if _, err := parsed.Render(data()); err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", text, err)
		}
	})
}
