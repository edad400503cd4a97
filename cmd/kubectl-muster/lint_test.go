package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/program"
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
	taken = `belongs to Cluster "pr.od"; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n team prod fleet.addons.cluster.x-k8s.io/adopt=true; delete it only if its cluster is gone; or name this Cluster differently`
)

func cluster(name string) string {
	return "\napiVersion: cluster.x-k8s.io/v1beta1\nkind: Cluster\nmetadata: {name: " + name + ", namespace: team}\n---"
}

func chart(spec string) string {
	return "\napiVersion: addons.cluster.x-k8s.io/v1alpha1\nkind: HelmChartProxy\nmetadata: {name: web, namespace: team}\nspec: {repoURL: https://charts.example.com, chartName: web, " + spec + "}\n---"
}

// policyIn is a Policy of Fleet that requires a ServiceAccount, and allows one.
func policyIn(namespace string) string {
	return "\napiVersion: fleet.cattle.io/v1alpha1\nkind: Policy\nmetadata: {name: tenants, namespace: " + namespace + "}\nrequireServiceAccount: true\nallowedServiceAccounts: [deployer]\n---"
}

func TestLint(t *testing.T) {
	const noClass = `warning: -: Cluster team/prod: spec.topology.classRef: ClusterClass "standard" of namespace "classes" is not among the manifests`
	for name, test := range map[string]struct {
		stdin  string
		want   []string
		failed bool
	}{
		"nothing":          {stdin: "---\n# nothing\n---\n"},
		"all is well":      {stdin: class + prod + config + `{}`},
		"no kind of ours":  {failed: true, stdin: strings.Replace(chart("clusterSelector: {}"), "HelmChartProxy", "HelmChart", 1), want: []string{`-: HelmChart team/web: kind: Unsupported value: "HelmChart": supported values: "FleetAddonConfig", "HelmChartProxy", "HelmReleaseProxy"`}},
		"kinds of others":  {stdin: "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {a: b}"},
		"class missing":    {stdin: prod, want: []string{noClass}},
		"a List":           {stdin: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: prod, namespace: team}, spec: {topology: {classRef: {name: standard, namespace: classes}}}}", want: []string{noClass}},
		"default":          {stdin: "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: prod.eu}", want: []string{`warning: -: Cluster default/prod.eu: metadata: the Cluster's name does not fit Fleet, which wants a DNS label of at most 63 characters: its Fleet Cluster will be named "prod-eu-2740657d"`}},
		"unselected":       {stdin: cluster("a") + config + `{cluster: {selector: {matchLabels: {env: prod}}}}`, want: []string{`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod)`}},
		"Namespace":        {stdin: cluster("a") + "\napiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {team: a}}\n---" + config + `{cluster: {namespaceSelector: {matchLabels: {team: a}}}}`},
		"Namespace absent": {stdin: cluster("a") + config + `{cluster: {namespaceSelector: {matchLabels: {team: a}}}}`, want: []string{`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=a); its Namespace is not among the manifests`}},
		"one of two selectors": {stdin: strings.Replace(cluster("a"), "name: a", "name: a, labels: {env: prod}", 1) + cluster("b") + "\napiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: a}}\n---" + strings.Replace(cluster("c"), "namespace: team", "namespace: other", 1) + config + `{cluster: {selector: {matchLabels: {env: prod}}, namespaceSelector: {matchLabels: {team: a}}}}`, want: []string{
			`warning: -: FleetAddonConfig fleet-addon-config: spec.cluster.selector and spec.cluster.namespaceSelector: 2 Clusters match only one of the two and are not imported, because both must match: other/c, team/a; for CAAPF one was enough, and Clusters that CAAPF imported stay in Fleet as they are now, frozen like deselected ones`,
			`warning: -: Cluster team/a: metadata.labels: this Cluster is not imported into Fleet: the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=a); its Namespace is not among the manifests`,
			`warning: -: Cluster team/b: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod); its Namespace is not among the manifests`,
			`warning: -: Cluster other/c: metadata.labels: this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=prod)`}},
		"config: warning": {stdin: config + `{config: {bootstrapLocalCluster: true}}`, want: []string{"warning: -: FleetAddonConfig fleet-addon-config: spec.config.bootstrapLocalCluster has no effect without spec.install"}},
		"config: errors": {failed: true, stdin: config + `{cluster: {agentNamespace: A, agentEnvVars: [{name: ""}]}}`, want: []string{
			`-: FleetAddonConfig fleet-addon-config: spec.cluster.agentEnvVars[0].name: Required value: name the environment variable`,
			`-: FleetAddonConfig fleet-addon-config: spec.cluster.agentNamespace: Invalid value: "A": must be a namespace name: lower-case letters, digits and '-', starting and ending with a letter or digit, for example fleet-addon-agent`}},
		"config: an enum": {failed: true, stdin: config + `{cluster: {agentNamespace: A, onDeselect: Drop}}`, want: []string{ // Like the API server, no CEL rule then.
			`-: FleetAddonConfig fleet-addon-config: spec.cluster.onDeselect: Unsupported value: "Drop": supported values: "Keep", "Delete"`}},
		"config: unknown field": {failed: true, stdin: config + `{cluster: {namming: {prefix: a}}}`, want: []string{`-: FleetAddonConfig fleet-addon-config: spec.cluster.namming: is a field that a FleetAddonConfig does not have; remove it, or correct its spelling`}},
		"config: wrong type":    {failed: true, stdin: config + `{cluster: {enabled: maybe}}`, want: []string{`-: FleetAddonConfig fleet-addon-config: spec.cluster.enabled: Invalid value: "string": spec.cluster.enabled in body must be of type boolean: "string"`}},
		"config: a second":      {failed: true, stdin: config + `{}` + "\n---" + config + `{}`, want: []string{`-: FleetAddonConfig fleet-addon-config: is a second FleetAddonConfig, after the one in -; there may be only one`}},
		"two of one name": {failed: true, stdin: cluster("web-eu") + cluster("p-web-eu") + config + `{cluster: {naming: {prefix: p-}}}` + "\n---" + strings.Replace(cluster("web"), "namespace: team", `namespace: team, annotations: {fleet.addons.cluster.x-k8s.io/cluster-name: p-web-eu}`, 1), want: []string{`-: Cluster team/web: metadata.name: Cluster "web-eu" of this namespace has the Fleet Cluster "p-web-eu", which would be this Cluster's as well; name this Cluster differently, or remove its annotation fleet.addons.cluster.x-k8s.io/cluster-name`,
			`warning: -: Cluster team/web: metadata: this Cluster's Fleet Cluster is "p-web-eu", as its annotation fleet.addons.cluster.x-k8s.io/cluster-name says, not "p-web", as spec.cluster.naming of the FleetAddonConfig gives; remove the annotation if this is not a Cluster that was restored or moved`}},
		"a Fleet Cluster":      {failed: true, stdin: cluster("prod") + "\napiVersion: fleet.cattle.io/v1alpha1\nkind: Cluster\nmetadata: {name: prod, namespace: team, annotations: {fleet.addons.cluster.x-k8s.io/imported-from: pr.od}}", want: []string{`-: Cluster team/prod: metadata.name: Fleet Cluster "prod" ` + taken}},
		"config: another name": {failed: true, stdin: strings.Replace(config, "name: fleet-addon-config", "name: mine", 1) + `{}`, want: []string{`-: FleetAddonConfig mine: metadata.name: the only FleetAddonConfig is named fleet-addon-config; rename this one`}},
		"config: two of one":   {failed: true, stdin: config + `{install: {version: 0.16.2, followLatest: true}}`, want: []string{`-: FleetAddonConfig fleet-addon-config: spec.install: Invalid value: set exactly one of followLatest and version: followLatest installs the newest release, version the one you name`}},
		"chart: all is well":   {stdin: chart(`clusterSelector: {}, reconcileStrategy: Continuous`)},
		"chart: no selector":   {failed: true, stdin: chart(``), want: []string{`-: HelmChartProxy team/web: spec.clusterSelector: Required value`}},
		"chart: an enum":       {failed: true, stdin: chart(`clusterSelector: {}, reconcileStrategy: Sometimes`), want: []string{`-: HelmChartProxy team/web: spec.reconcileStrategy: Unsupported value: "Sometimes": supported values: "", "InstallOnce", "Continuous"`}},
		"chart: two for a release": {stdin: strings.Replace(cluster("prod"), "name: prod", "name: prod, labels: {ci: 'true'}", 1) + cluster("other") + chart(`clusterSelector: {}, releaseName: ccm`) +
			strings.Replace(chart(`clusterSelector: {matchLabels: {ci: "true"}}, releaseName: ccm, namespace: default`), "name: web", "name: ci", 1), want: []string{
			`warning: -: HelmChartProxy team/ci: spec.releaseName: HelmChartProxy team/web asks for the same release default/ccm on Cluster team/prod; only one of them gets it, and the other says ReleaseTaken: choose another releaseName or namespace, or selectors that never match the same Cluster`}},
		"chart: two of a name": {stdin: cluster("prod") + chart(`clusterSelector: {}`) + strings.Replace(chart(`clusterSelector: {}, namespaceSelector: {}`), "namespace: team", "namespace: platform", 1), want: []string{
			`warning: -: HelmChartProxy platform/web: spec.releaseName: HelmChartProxy team/web asks for the same release default/web on Cluster team/prod; only one of them gets it, and the other says ReleaseTaken: choose another releaseName or namespace, or selectors that never match the same Cluster`}},
		"chart: a Policy requires a ServiceAccount": {stdin: chart(`clusterSelector: {}`) + policyIn("team"), want: []string{
			`warning: -: HelmChartProxy team/web: spec.serviceAccount: a Policy of Fleet in namespace team requires a ServiceAccount, so nothing is deployed to Clusters there (PolicyRefuses): set it to one that is allowed: deployer`}},
		"chart: a Policy does not allow it": {stdin: policyIn("team") + chart(`clusterSelector: {}, serviceAccount: admin`), want: []string{
			`warning: -: HelmChartProxy team/web: spec.serviceAccount: no Policy of Fleet in namespace team allows ServiceAccount admin, so nothing is deployed to Clusters there (PolicyRefuses): set it to one that is allowed: deployer`}},
		"chart: a Policy allows it":            {stdin: policyIn("team") + chart(`clusterSelector: {}, serviceAccount: deployer`)},
		"chart: a Policy of another namespace": {stdin: policyIn("other") + chart(`clusterSelector: {}`)},
		"chart: a Policy where it has Clusters": {stdin: policyIn("team") + cluster("prod") + strings.Replace(chart(`clusterSelector: {}, namespaceSelector: {}`), "namespace: team", "namespace: platform", 1), want: []string{
			`warning: -: HelmChartProxy platform/web: spec.serviceAccount: a Policy of Fleet in namespace team requires a ServiceAccount, so nothing is deployed to Clusters there (PolicyRefuses): set it to one that is allowed: deployer`}},
		"chart: a Policy where it has none": {stdin: policyIn("team") + cluster("prod") + strings.Replace(chart(`clusterSelector: {matchLabels: {ci: "true"}}, namespaceSelector: {}`), "namespace: team", "namespace: platform", 1)},
		"chart: a ServiceAccount that is none": {failed: true, stdin: chart(`clusterSelector: {}, serviceAccount: A_b`), want: []string{
			`-: HelmChartProxy team/web: spec.serviceAccount: Invalid value: "A_b": spec.serviceAccount in body should match '^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$'`}},
		"a Policy that is none": {failed: true, stdin: strings.Replace(policyIn("team"), "true", "maybe", 1), want: []string{`-: Policy team/tenants: json: cannot unmarshal string into Go struct field Policy.requireServiceAccount of type bool`}},
		"chart: two releases": {stdin: cluster("prod") + chart(`clusterSelector: {}, releaseName: ccm`) + strings.Replace(chart(`clusterSelector: {}, releaseName: ccm, namespace: apps`), "name: web", "name: ci", 1) +
			strings.Replace(chart(`clusterSelector: {matchLabels: {ci: "true"}}, releaseName: ccm`), "name: web", "name: b", 1)},
		"many labels": {stdin: strings.Replace(class, "name: standard", "labels: {"+strings.Join(slices.Collect(func(yield func(string) bool) {
			for i := range 513 {
				yield(fmt.Sprintf("l%03d: ''", i))
			}
		}), ", ")+"}, name: standard", 1), want: []string{"warning: -: ClusterClass classes/standard: metadata.labels: nothing is copied to Fleet: it has 513 labels and 0 annotations to copy, of 2052 bytes together, and Muster copies at most 512 labels, 512 annotations and 131072 bytes; what Fleet has stays as it is, and nothing new is imported: remove some"}},
		"a field of v1beta2": {failed: true, stdin: strings.Replace(cluster("a")[:len(cluster("a"))-3], "v1beta2", "v1beta1", 1) + "spec: {topology: {classRef: {name: standard}, version: v1.34.2}}\n---\n" + class, want: []string{`-: Cluster team/a: spec.topology.classRef: Forbidden: cluster.x-k8s.io/v1beta1 has no such field`}},
		"a field of v1beta1": {failed: true, stdin: strings.Replace(prod, "classRef: {name: standard, namespace: classes}", "class: standard, classNamespace: classes", 1) + class, want: []string{`-: Cluster team/prod: spec.topology.class: Forbidden: cluster.x-k8s.io/v1beta2 has no such field`, `-: Cluster team/prod: spec.topology.classNamespace: Forbidden: cluster.x-k8s.io/v1beta2 has no such field`}},
		"a schema in a schema": {failed: true, stdin: strings.Replace(class, "classes}", "classes}\nspec: {variables: [{name: a, schema: {openAPIV3Schema: {x-kubernetes-list-type: map, x-kubernetes-validations: [{a: b}], properties: {a: {x-kubernetes-list-type: map, b: c}}, items: {b: c}, allOf: [{b: c}]}}}]}", 1), want: []string{
			`-: ClusterClass classes/standard: spec.variables[0].schema.openAPIV3Schema.x-kubernetes-list-type: Forbidden: cluster.x-k8s.io/v1beta2 has no such field`,
			`-: ClusterClass classes/standard: spec.variables[0].schema.openAPIV3Schema.x-kubernetes-validations[0].a: Forbidden: cluster.x-k8s.io/v1beta2 has no such field`,
		}},
		"an old version": {failed: true, stdin: strings.Replace(cluster("a"), "v1beta1", "v1alpha4", 1) + strings.Replace(class, "v1beta2", "v1alpha4", 1) + "\n---" + strings.Replace(config, "v1alpha1", "v1", 1) + "{}", want: []string{
			`-: Cluster team/a: apiVersion: Unsupported value: "cluster.x-k8s.io/v1alpha4": supported values: "cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"`,
			`-: ClusterClass classes/standard: apiVersion: Unsupported value: "cluster.x-k8s.io/v1alpha4": supported values: "cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"`,
			`-: FleetAddonConfig fleet-addon-config: apiVersion: Unsupported value: "addons.cluster.x-k8s.io/v1": supported values: "addons.cluster.x-k8s.io/v1alpha1"`,
		}},
		"v1beta1, class missing": {stdin: strings.NewReplacer("v1beta2", "v1beta1", "classRef: {name: standard, namespace: classes}", "class: standard, classNamespace: classes").Replace(prod), want: []string{strings.Replace(noClass, "classRef", "class", 1)}},
		"v1beta1":                {stdin: strings.NewReplacer("v1beta2", "v1beta1", "classRef: {name: standard, namespace: classes}", "class: standard, classNamespace: classes").Replace(prod) + class},
		"no YAML":                {failed: true, stdin: "a: b: c\n---" + prod, want: []string{"-: document 1: yaml: mapping values are not allowed in this context", noClass}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := fed(t, test.stdin, "lint", "-f", "-")
			out = regexp.MustCompile(`(?m)^(warning: )?-:\d+: `).ReplaceAllString(out, "$1-: ") // TestLineOf compares the lines.
			want := ""
			if len(test.want) > 0 {
				want = strings.Join(test.want, "\n") + "\n"
			}
			if diff := cmp.Diff(want, out); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if (program.ExitCode(err) == 1) != test.failed || program.ExitCode(err) > 1 {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestLintFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "second.yaml")
	for file, content := range map[string]string{first: prod, second: class + config + `{cluster: {agentNamespace: A}}`} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := fed(t, "", "lint", "-f", first, "-f", second, "-o", "json")
	if err == nil || err.Error() != "1 of 1 findings are errors" {
		t.Errorf("the error is %v", err)
	}
	var found struct{ Findings []admission.Finding }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	findings := found.Findings
	if len(findings) != 1 || findings[0].File != second || findings[0].Line != 9 || findings[0].Severity != admission.SeverityError || findings[0].Path != "spec.cluster.agentNamespace" {
		t.Errorf("findings: %+v", findings)
	}
	const says = `spec.cluster.agentNamespace: Invalid value: "A": `
	for format, want := range map[string]string{"wide": second + ":9: FleetAddonConfig fleet-addon-config: " + says, "github": "::error file=" + second + ",line=9::FleetAddonConfig fleet-addon-config: " + says, "name": "fleetaddonconfig.addons.cluster.x-k8s.io/fleet-addon-config\n"} {
		if out, _, _ := fed(t, "", "lint", "-f", dir, "-o", format); !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("-o %s: %s", format, out)
		}
	}
	// A folder means the same as its files.
	if folder, _, _ := fed(t, "", "lint", "-f", dir, "-o", "json"); folder != out {
		t.Errorf("the folder has %s", folder)
	}

	if out, _, err := fed(t, class, "lint", "-f", first, "-o=jsonpath={.findings}", "-f=-"); err != nil || out != "[]" {
		t.Errorf("%v, %q", err, out)
	}
	for name, args := range map[string][]string{"no file": nil, "no such flag": {"--none"}, "no such format": {"-f", first, "-o", "xml"}, "no flag": {first}} {
		if _, _, err := fed(t, "", append([]string{"lint"}, args...)...); program.ExitCode(err) != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := fed(t, "", "lint", "-f", filepath.Join(dir, "none")); program.ExitCode(err) != 1 {
		t.Errorf("no such file: %v", err)
	}
	if out, _, err := fed(t, "", "lint", "--help"); err != nil || !strings.Contains(out, "--filename") {
		t.Errorf("help: %v, %q", err, out)
	}
}
