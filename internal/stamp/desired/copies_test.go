package desired

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"
)

// Each annotation of copyAnnotations holds the object that it is on.
const copyAnnotations = `
  kubectl.kubernetes.io/last-applied-configuration: hunter2
  app.oam.dev/last-applied-configuration: hunter2
  banzaicloud.com/last-applied: hunter2
  cluster.x-k8s.io/conversion-data: hunter2
  kapp.k14s.io/original: hunter2
  kapp.k14s.io/original-diff: hunter2
  kapp.k14s.io/original-diff-full: hunter2
  objectset.rio.cattle.io/applied: hunter2
  runtime.cluster.x-k8s.io/pending-hooks: hunter2
  topology.internal.cluster.x-k8s.io/upgrade-step: hunter2
  topology.cluster.x-k8s.io/upgrade-concurrency: kept-concurrency
  meta.helm.sh/release-name: kept-release
  objectset.rio.cattle.io/id: kept-id
  last-applied: kept-name
  example.com/original: kept-original`

func TestCopiesOfTheWholeObjectStayOut(t *testing.T) {
	annotations := strings.ReplaceAll(copyAnnotations, "\n  ", "\n          ")
	object := "metadata:\n        annotations:" + annotations + `
spec:
  machineTemplate:
    metadata:
        annotations:` + annotations + `
  list:
  - metadata:
        annotations:` + annotations
	cluster := &clusterv1.Cluster{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata:
        annotations:`+annotations+`
spec:
  topology:
    classRef: {name: standard}
    controlPlane:
      metadata:
        annotations:`+annotations+`
    workers:
      machineDeployments:
      - class: w
        name: w
        metadata:
          annotations:`+strings.ReplaceAll(annotations, "\n", "\n  ")), cluster); err != nil {
		t.Fatal(err)
	}
	values, err := Values(cluster, parse(t, object), parse(t, object), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{ClusterValue, ControlPlaneValue, InfrastructureValue} {
		data, err := json.Marshal(values[key])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), marker) {
			t.Errorf("%q is in %s: %s", marker, key, data)
		}
		for _, retained := range []string{"kept-release", "kept-id", "kept-name", "kept-original", "kept-concurrency"} {
			if got := strings.Count(string(data), retained); got != 3 {
				t.Errorf("%s is %d times in %s, want 3: %s", retained, got, key, data)
			}
		}
	}
	t.Run("of the Fleet Cluster, too", func(t *testing.T) {
		in := settingsOf(t, "{}")
		got := FleetCluster(in, cluster, nil, nil, Targets{}, "")
		for key, value := range got.Annotations {
			if value == marker {
				t.Errorf("%s is copied to the Fleet Cluster", key)
			}
		}
	})
}

// The values contain a variable several times: excluding one occurrence excludes all.
func TestExclusionsHoldForTheCopiesOfVariables(t *testing.T) {
	cluster := &clusterv1.Cluster{}
	if err := yaml.UnmarshalStrict([]byte(`
spec:
  topology:
    classRef: {name: standard}
    variables:
    - {name: open, value: {password: a, user: b}}
    - {name: x, value: {password: c, user: d}}
    - {name: list, value: [{password: e, user: f}]}
    controlPlane: {variables: {overrides: [{name: x, value: {password: g, user: h}}]}}
    workers:
      machineDeployments:
      - {class: w, name: w, variables: {overrides: [{name: open, value: 1}, {name: x, value: {password: i, user: j}}]}}
      - {class: w, name: v}
      machinePools:
      - {class: p, name: p, variables: {overrides: [{name: x, value: {password: k, user: l}}]}}
`), cluster); err != nil {
		t.Fatal(err)
	}
	const (
		open      = `{name: open, value: {password: a, user: b}}`
		x         = `{name: x, value: {password: c, user: d}}`
		list      = `{name: list, value: [{password: e, user: f}]}`
		variables = `open: {password: a, user: b}, x: {password: c, user: d}, list: [{password: e, user: f}]`
	)
	type want struct{ topology, controlPlane, deployment, pool, variables string }
	all := want{
		topology:     open + ", " + x + ", " + list,
		controlPlane: `{name: x, value: {password: g, user: h}}`,
		deployment:   `{name: open, value: 1}, {name: x, value: {password: i, user: j}}`,
		pool:         `{name: x, value: {password: k, user: l}}`,
		variables:    variables,
	}
	without := func(change func(*want)) want {
		result := all
		change(&result)
		return result
	}
	withoutX := without(func(w *want) {
		w.topology, w.variables = open+", "+list, `open: {password: a, user: b}, list: [{password: e, user: f}]`
		w.controlPlane, w.deployment, w.pool = "", `{name: open, value: 1}`, ""
	})
	// An exclusion by position leaves the other items at their positions.
	withoutItsPath := without(func(w *want) {
		*w = withoutX
		w.topology = open + ", null, " + list
	})
	withoutThePasswordOfX := without(func(w *want) {
		w.topology = open + `, {name: x, value: {user: d}}, ` + list
		w.controlPlane, w.deployment, w.pool = `{name: x, value: {user: h}}`, `{name: open, value: 1}, {name: x, value: {user: j}}`, `{name: x, value: {user: l}}`
		w.variables = `open: {password: a, user: b}, x: {user: d}, list: [{password: e, user: f}]`
	})
	nothing := want{}

	tests := map[string]struct {
		exclude []string
		want    want
		// gone means that the key Variables, or the list in the Cluster, does not exist at all.
		noVariables, noTopology bool
	}{
		"nothing":                    {want: all},
		"another object's":           {exclude: []string{"/ControlPlane/spec/x", "/InfrastructureCluster/Variables/x"}, want: all},
		"one that is not there":      {exclude: []string{"/Variables/nope", "/Variables/x/nope"}, want: all},
		"a variable":                 {exclude: []string{"/Variables/x"}, want: withoutX},
		"a variable, twice":          {exclude: []string{"/Variables/x", "/Variables/x"}, want: withoutX},
		"what is in a variable":      {exclude: []string{"/Variables/x/password"}, want: withoutThePasswordOfX},
		"both":                       {exclude: []string{"/Variables/x/password", "/Variables/x"}, want: withoutX},
		"its place in the Cluster":   {exclude: []string{"/Cluster/spec/topology/variables/1"}, want: withoutItsPath},
		"what is in it, by place":    {exclude: []string{"/Cluster/spec/topology/variables/1/value/password"}, want: withoutThePasswordOfX},
		"its value, by place":        {exclude: []string{"/Cluster/spec/topology/variables/1/value"}, want: withoutX},
		"places are those of before": {exclude: []string{"/Variables/open/nope", "/Cluster/spec/topology/variables/1", "/Cluster/spec/topology/variables/1/value/user"}, want: withoutItsPath},
		"a name and a place":         {exclude: []string{"/Variables/open", "/Cluster/spec/topology/variables/1"}, want: want{topology: "null, " + list, variables: `list: [{password: e, user: f}]`}},
		"what is in every variable": {exclude: []string{"/Variables/*/password"}, want: without(func(w *want) {
			*w = withoutThePasswordOfX
			w.topology = strings.ReplaceAll(w.topology, "password: a, ", "")
			w.variables = strings.ReplaceAll(w.variables, "password: a, ", "")
		})},
		"what is in an item of a list": {exclude: []string{"/Variables/list/*/password"}, want: without(func(w *want) {
			w.topology = strings.ReplaceAll(w.topology, "password: e, ", "")
			w.variables = strings.ReplaceAll(w.variables, "password: e, ", "")
		})},
		"every variable":              {exclude: []string{"/Variables/*"}, want: nothing},
		"all of them":                 {exclude: []string{"/Variables"}, want: nothing, noVariables: true},
		"all of them, in the Cluster": {exclude: []string{"/Cluster/spec/topology/variables"}, want: nothing, noVariables: true, noTopology: true},
		"by a star":                   {exclude: []string{"/Cluster/spec/*/variables"}, want: nothing, noVariables: true, noTopology: true},
		"an override is no copy": {exclude: []string{"/Cluster/spec/topology/controlPlane/variables/overrides"},
			want: without(func(w *want) { w.controlPlane = "" })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			values, err := Values(cluster.DeepCopy(), nil, nil, test.exclude)
			if err != nil {
				t.Fatal(err)
			}
			got := throughJSON(t, values)
			topology := topologyOf(got)
			workers := field(topology, "workers")
			overrides := func(kind string) any {
				return field(workers[kind].([]any)[0], "variables")["overrides"]
			}
			for _, list := range []struct {
				name, want string
				got        any
			}{
				{"the Cluster's variables", test.want.topology, topology["variables"]},
				{"the control plane's overrides", test.want.controlPlane, field(field(topology, "controlPlane"), "variables")["overrides"]},
				{"the machine deployment's overrides", test.want.deployment, overrides("machineDeployments")},
				{"the machine pool's overrides", test.want.pool, overrides("machinePools")},
			} {
				if diff := cmp.Diff(parseAny(t, "["+list.want+"]"), orEmpty(list.got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", list.name, diff)
				}
			}
			variables, found := got[VariablesValue]
			if found == test.noVariables {
				t.Errorf("Variables: %v", variables)
			} else if diff := cmp.Diff(parseAny(t, "{"+test.want.variables+"}"), variables); found && diff != "" {
				t.Errorf("Variables (-want +got):\n%s", diff)
			}
			if _, found := topology["variables"]; found == test.noTopology {
				t.Errorf("the Cluster's variables: %v", topology["variables"])
			}
		})
	}
}

// A pointer to an object that holds the variables among other fields does not exclude the variables.
func TestExcludingTheClusterLeavesTheVariables(t *testing.T) {
	for _, pointer := range []string{"/Cluster", "/Cluster/spec", "/Cluster/spec/topology"} {
		values, err := Values(makeCluster("team", "prod").Class("", "standard").Variable("x", `1`).Obj(), nil, nil, []string{pointer})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"x": float64(1)}, values[VariablesValue]); diff != "" {
			t.Errorf("%s: Variables (-want +got):\n%s", pointer, diff)
		}
	}
}

func parseAny(t *testing.T, text string) any {
	t.Helper()
	var result any
	if err := yaml.Unmarshal([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func orEmpty(list any) any {
	if list == nil {
		return []any{}
	}
	return list
}
