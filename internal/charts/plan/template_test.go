package plan

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
)

func data() map[string]any {
	return map[string]any{
		"Cluster": map[string]any{
			"metadata": map[string]any{"name": "prod", "labels": map[string]any{"port": "sesame"}},
			"spec":     map[string]any{"clusterNetwork": map[string]any{"pods": map[string]any{"cidrBlocks": []any{"10.0.0.0/16"}}}},
		},
		"ControlPlane": map[string]any{"metadata": map[string]any{"name": "prod-cp"}},
		"InfraCluster": map[string]any{"kind": "AWSCluster"},
		"Variables":    map[string]any{"tier": "gold"},
	}
}

// What cluster-api-addon-provider-helm's own cases expect is expected here.
func TestRender(t *testing.T) {
	for name, test := range map[string]struct{ template, want, err string }{
		"plain":                     {template: "a: 1\n", want: "a: 1\n"},
		"over all that there is":    {template: "a: {{ .Cluster.metadata.name }}-{{ .ControlPlane.metadata.name }}-{{ .InfraCluster.kind }}-{{ .Variables.tier }}", want: "a: prod-prod-cp-AWSCluster-gold"},
		"a missing key":             {template: "a: {{ .Cluster.metadata.nothing }}", want: "a: <no value>"},
		"functions of sprig":        {template: `a: {{ "x" | upper | quote }}`, want: `a: "X"`},
		"empty":                     {template: "", want: "global: {}\n"},
		"empty once rendered":       {template: "{{ if false }}a: 1{{ end }}", want: "global: {}\n"},
		"only a comment":            {template: "# nothing", want: "global: {}\n"},
		"what is not there, deeper": {template: "a: {{ .Cluster.nothing.at.all }}", want: "a: <no value>"},
		"a field of a text":         {template: "a: {{ .Cluster.metadata.name.first }}", err: `valuesTemplate:1:14: executing "valuesTemplate" at <.Cluster.metadata.name.first>: can't evaluate field first in type interface {}`},
		"beyond a list":             {template: "a: {{ index .Cluster.spec.clusterNetwork.pods.cidrBlocks 3 }}", err: `valuesTemplate:1:6: executing "valuesTemplate" at <index .Cluster.spec.clusterNetwork.pods.cidrBlocks 3>: error calling index`},
		"a function that fails":     {template: `a: {{ fail .Cluster.metadata.labels.port }}`, err: `valuesTemplate:1:6: executing "valuesTemplate" at <fail .Cluster.metadata.labels.port>: error calling fail`},
		"text":                      {template: "{{ .Cluster.metadata.labels.port }}", err: "the values are not a map in YAML"},
		"not YAML":                  {template: "a: 1\n b: {{ .Cluster.metadata.labels.port }}", err: "the values are not a map in YAML: line 2"},
		"too much":                  {template: `a: {{ repeat 600000 "x" }}`, err: "the values are larger than 512 KiB"},
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
				t.Errorf("the error tells what is in the data: %v", err)
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

func TestParse(t *testing.T) {
	for template, want := range map[string]string{
		"{{ .Cluster":             "valuesTemplate:1: unclosed action",
		"{{ nosuch 1 }}":          `valuesTemplate:1: function "nosuch" not defined`,
		`{{ env "HOME" }}`:        `valuesTemplate:1: function "env" not defined`,
		`{{ expandenv "$HOME" }}`: `valuesTemplate:1: function "expandenv" not defined`,
		`{{ getHostByName "a" }}`: `valuesTemplate:1: function "getHostByName" not defined`,
		"{{ if }}{{ end }}":       "valuesTemplate:1: missing value for if",
	} {
		if _, err := Parse(template); message(err) != want {
			t.Errorf("%s: %q, want %q", template, message(err), want)
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

// FuzzRender: whatever the template, rendering ends without a panic, and an error says
// nothing of the data.
func FuzzRender(f *testing.F) {
	defer func(its time.Duration) { patience = its }(patience)
	patience = 100 * time.Millisecond
	for _, seed := range []string{
		"{{ repeat 3 .Cluster.metadata.labels.port | fail }}", "{{ range until 3 }}{{ end }}",
		"a: {{ .Cluster.metadata.labels.port }}", "{{ atoi .Cluster.metadata.labels.port | fail }}",
		"{{ .Cluster.metadata.labels.port | b64dec }}", "{{ index .Cluster 1 }}", "{{ range .Cluster }}{{ . }}{{ end }}", "{{ template \"x\" }}",
		"{{ regexReplaceAll .Cluster.metadata.labels.port \"(\" 1 }}", "{{ toDate \"2006\" .Cluster.metadata.labels.port }}", "{{ mustFromJson .Cluster.metadata.labels.port }}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "sesame") {
			t.Skip("it names the secret itself")
		}
		parsed, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := parsed.Render(data()); err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// What a repository has made Fleet say neither fills a condition nor fools who reads it.
func TestPlainMessages(t *testing.T) {
	op := &fleetv1.HelmOp{}
	op.Name = "x"
	for message, want := range map[string]string{
		"no chart":                     "HelmOp x: no chart",
		"a\x1b[2Jb\u202ec\x00":         `HelmOp x: a\x1b[2Jb\u202ec\x00`,
		strings.Repeat("é", 201):       "HelmOp x: " + strings.Repeat("é", 200) + "…",
		"a" + strings.Repeat("é", 200): "HelmOp x: a" + strings.Repeat("é", 199) + "…",
		strings.Repeat("\x1b", 1<<10):  "HelmOp x: " + strings.Repeat(`\x1b`, 100) + "…",
	} {
		op.Status.Conditions = []genericcondition.GenericCondition{{Type: fleetv1.HelmOpAcceptedCondition, Status: corev1.ConditionFalse, Message: message}}
		_, got := Follows(op, nil)
		expect(t, "trouble", got, want)
	}
	listed := list([]string{"a" + strings.Repeat("é", 300), "\x1b[2J"})
	if !utf8.ValidString(listed) || strings.Contains(listed, "\x1b") {
		t.Errorf("%q", listed)
	}
}
