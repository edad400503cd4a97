package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/muster-fleet/muster/internal/admission"
)

const (
	config = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: `
	class = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: standard, namespace: classes}
---`
	prod = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: team, labels: {env: prod}}
spec: {topology: {classRef: {name: standard, namespace: classes}, version: v1.36.3}}
---`
	taken = `is that of Cluster "pr.od"; delete it, or annotate it fleet.addons.cluster.x-k8s.io/adopt=true to hand it over; or name this Cluster differently`
)

func cluster(name string) string {
	return "\napiVersion: cluster.x-k8s.io/v1beta1\nkind: Cluster\nmetadata: {name: " + name + ", namespace: team}\n---"
}

func TestCheck(t *testing.T) {
	const noClass = `warning: -: Cluster team/prod: spec.topology.classRef: ClusterClass "standard" of namespace "classes" is not among the manifests`
	for name, test := range map[string]struct {
		stdin  string
		want   []string
		failed bool
	}{
		"nothing":          {stdin: "---\n# nothing\n---\n"},
		"all is well":      {stdin: class + prod + config + `{}`},
		"kinds of others":  {stdin: "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {a: b}"},
		"class missing":    {stdin: prod, want: []string{noClass}},
		"a List":           {stdin: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: prod, namespace: team}, spec: {topology: {classRef: {name: standard, namespace: classes}}}}", want: []string{noClass}},
		"default":          {stdin: "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: prod.eu}", want: []string{`warning: -: Cluster default/prod.eu: metadata.name: the Cluster's name does not fit Fleet, which wants a DNS label of at most 63 characters: its Fleet Cluster will be named "prod-eu-2740657d"`}},
		"unselected":       {stdin: cluster("a") + config + `{cluster: {selector: {matchLabels: {env: prod}}}}`, want: []string{`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod)`}},
		"Namespace":        {stdin: cluster("a") + "\napiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {team: a}}\n---" + config + `{cluster: {namespaceSelector: {matchLabels: {team: a}}}}`},
		"Namespace absent": {stdin: cluster("a") + config + `{cluster: {namespaceSelector: {matchLabels: {team: a}}}}`, want: []string{`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=a); its Namespace is not among the manifests`}},
		"one of two selectors": {stdin: strings.Replace(cluster("a"), "name: a", "name: a, labels: {env: prod}", 1) + cluster("b") + "\napiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: a}}\n---" + strings.Replace(cluster("c"), "namespace: team", "namespace: other", 1) + config + `{cluster: {selector: {matchLabels: {env: prod}}, namespaceSelector: {matchLabels: {team: a}}}}`, want: []string{
			`warning: -: FleetAddonConfig fleet-addon-config: spec.cluster.selector and spec.cluster.namespaceSelector: 2 Clusters match only one of the two and are not imported, as both must match: other/c, team/a; for CAAPF either was enough, and those that it imported stay in Fleet as they are now, frozen like deselected ones`,
			`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=a); its Namespace is not among the manifests`,
			`warning: -: Cluster team/b: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod); its Namespace is not among the manifests`,
			`warning: -: Cluster other/c: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod)`}},
		"config: warning": {stdin: config + `{config: {bootstrapLocalCluster: true}}`, want: []string{"warning: -: FleetAddonConfig fleet-addon-config: spec.config.bootstrapLocalCluster has no effect without spec.install"}},
		"config: errors": {failed: true, stdin: config + `{cluster: {agentNamespace: A, onDeselect: Drop}}`, want: []string{
			`-: FleetAddonConfig fleet-addon-config: spec.cluster.agentNamespace: Invalid value: "A": must be a namespace name: lower-case letters, digits and '-', starting and ending with a letter or digit, for example fleet-addon-agent`,
			`-: FleetAddonConfig fleet-addon-config: spec.cluster.onDeselect: Unsupported value: "Drop": supported values: "Keep", "Delete"`}},
		"config: unknown field": {failed: true, stdin: config + `{cluster: {namming: {prefix: a}}}`, want: []string{`-: FleetAddonConfig fleet-addon-config: spec.cluster.namming: is a field that a FleetAddonConfig does not have; remove it, or correct its spelling`}},
		"config: wrong type":    {failed: true, stdin: config + `{cluster: {enabled: maybe}}`, want: []string{`-: FleetAddonConfig fleet-addon-config: json: cannot unmarshal string into Go struct field ClusterConfig.spec.cluster.enabled of type bool`}},
		"config: a second":      {failed: true, stdin: config + `{}` + "\n---" + config + `{}`, want: []string{`-: FleetAddonConfig fleet-addon-config: is a second FleetAddonConfig, after the one in -; there may be only one`}},
		"two of one name":       {failed: true, stdin: cluster("p") + cluster("p-p") + config + `{cluster: {naming: {prefix: p-}}}` + "\n---" + strings.Replace(cluster("x"), "namespace: team", `namespace: team, annotations: {fleet.addons.cluster.x-k8s.io/cluster-name: p-p}`, 1), want: []string{`-: Cluster team/x: metadata.name: Cluster "p" of this namespace has the Fleet Cluster "p-p", which would be this Cluster's as well; name this Cluster differently, or remove its annotation fleet.addons.cluster.x-k8s.io/cluster-name`}},
		"a Fleet Cluster":       {failed: true, stdin: cluster("prod") + "\napiVersion: fleet.cattle.io/v1alpha1\nkind: Cluster\nmetadata: {name: prod, namespace: team, annotations: {fleet.addons.cluster.x-k8s.io/imported-from: pr.od}}", want: []string{`-: Cluster team/prod: metadata.name: Fleet Cluster "prod" ` + taken}},
		"no YAML":               {failed: true, stdin: "a: b: c\n---" + prod, want: []string{"-: document 1: yaml: mapping values are not allowed in this context", noClass}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := runCheck(t.Context(), []string{"-f", "-"}, strings.NewReader(test.stdin), &stdout, &stderr)
			want := ""
			if len(test.want) > 0 {
				want = strings.Join(test.want, "\n") + "\n"
			}
			if diff := cmp.Diff(want, stdout.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if (err != nil) != test.failed {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "second.yaml")
	for file, content := range map[string]string{first: prod, second: class + config + `{cluster: {agentNamespace: A}}`} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	err := runCheck(t.Context(), []string{"-f", first, "-f", second, "-o", "json"}, nil, &stdout, &stderr)
	if err == nil || err.Error() != "check: 1 of 1 findings are errors" {
		t.Errorf("the error is %v", err)
	}
	var findings []admission.Finding
	if err := json.Unmarshal(stdout.Bytes(), &findings); err != nil {
		t.Fatal(err)
	}
	if len(findings) != 1 || findings[0].File != second || findings[0].Severity != admission.SeverityError || findings[0].Path != "spec.cluster.agentNamespace" {
		t.Errorf("findings: %+v", findings)
	}

	stdout.Reset()
	if err := runCheck(t.Context(), []string{first, "-o=json", "-"}, strings.NewReader(class), &stdout, &stderr); err != nil || stdout.String() != "[]\n" {
		t.Errorf("%v, %q", err, stdout.String())
	}
	for name, args := range map[string][]string{"no file": nil, "no such file": {"-f", filepath.Join(dir, "none")}, "no such flag": {"--none"}, "no such format": {"-f", first, "-o", "xml"}} {
		if err := runCheck(t.Context(), args, nil, &stdout, &stderr); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := runCheck(t.Context(), []string{"--help"}, nil, &stdout, &stderr); !errors.Is(err, pflag.ErrHelp) || !strings.Contains(stderr.String(), "--filename") {
		t.Errorf("help: %v, %q", err, stderr.String())
	}
}
