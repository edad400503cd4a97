package desired

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

const fullMetadata = `metadata: {name: x, namespace: team, uid: u, resourceVersion: "7", generation: 3, labels: {a: b}, managedFields: [{manager: m}],
  annotations: {kept: "yes", kubectl.kubernetes.io/last-applied-configuration: "{}"}}`

func TestValues(t *testing.T) {
	cluster := makeCluster("team", "prod").Label("env", "prod").Annotation("kubectl.kubernetes.io/last-applied-configuration", "{}").
		Class("classes", "standard").Variable("count", `3`).Variable("list", `["a",{"b":null,"c":1.5}]`).Variable("none", `null`).Variable("text", `"x"`).Obj()
	cluster.ResourceVersion, cluster.Generation = "7", 3
	cluster.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.7.0.0/16"}
	cluster.Status.Phase = "Provisioned"
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)

	got, err := Values(cluster, parse(t, `{kind: KubeadmControlPlane, spec: {replicas: 3}, status: {ready: true}, `+fullMetadata+`}`),
		parse(t, `{kind: DevCluster, spec: {empty: {}, absent: null}, status: {ready: true}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"Cluster": map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2",
			"kind":       "Cluster",
			"metadata": map[string]any{
				"name": "prod", "namespace": "team", "uid": "uid-of-prod",
				"labels":      map[string]any{"env": "prod"},
				"annotations": map[string]any{"fleet.addons.cluster.x-k8s.io/cluster-name": "prod", "fleet.addons.cluster.x-k8s.io/owned-by": "fleet-addon-config"},
			},
			"spec": map[string]any{
				"clusterNetwork": map[string]any{"pods": map[string]any{"cidrBlocks": []any{"10.7.0.0/16"}}},
				"topology": map[string]any{
					"classRef": map[string]any{"name": "standard", "namespace": "classes"},
					"variables": []any{
						map[string]any{"name": "count", "value": float64(3)},
						map[string]any{"name": "list", "value": []any{"a", map[string]any{"c": 1.5}}},
						map[string]any{"name": "none"},
						map[string]any{"name": "text", "value": "x"},
					},
				},
			},
		},
		"ControlPlane": map[string]any{
			"kind": "KubeadmControlPlane",
			"spec": map[string]any{"replicas": float64(3)},
			"metadata": map[string]any{
				"name": "x", "namespace": "team", "uid": "u", "labels": map[string]any{"a": "b"}, "annotations": map[string]any{"kept": "yes"},
			},
		},
		"InfrastructureCluster": map[string]any{"kind": "DevCluster", "spec": map[string]any{"empty": map[string]any{}}},
		"Variables":             map[string]any{"count": float64(3), "list": []any{"a", map[string]any{"c": 1.5}}, "text": "x"},
	}
	if diff := cmp.Diff(want, throughJSON(t, got)); diff != "" {
		t.Errorf("Values (-want +got):\n%s", diff)
	}
}

// throughJSON returns the values as an API server returns them.
func throughJSON(t *testing.T, values map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]any{}
	if err := json.Unmarshal(data, &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestValuesWithoutReferences(t *testing.T) {
	got, err := Values(makeCluster("team", "prod").Obj(), nil, nil, settings.DefaultExclude())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ControlPlane", "InfrastructureCluster"} {
		if value, found := got[key]; found {
			t.Errorf("%s of a Cluster that refers to none is %v", key, value)
		}
	}
	if diff := cmp.Diff(map[string]any{}, got["Variables"]); diff != "" {
		t.Errorf("Variables of none (-want +got):\n%s", diff)
	}
}

func TestValuesOfABrokenVariable(t *testing.T) {
	if values, err := Values(makeCluster("team", "prod").Variable("broken", `{`).Obj(), nil, nil, nil); err == nil {
		t.Errorf("no error, and the values are %v", values)
	}
}

// The objects that Clusters refer to come from a cache that others read as well.
func TestValuesLeavesItsInputsAlone(t *testing.T) {
	cluster := makeCluster("team", "prod").Annotation("kubectl.kubernetes.io/last-applied-configuration", "{}").Variable("a", `{"b":null}`).Obj()
	controlPlane := parse(t, `{spec: {kubeadmConfigSpec: {files: [{content: x}]}, absent: null}, status: {ready: true}, `+fullMetadata+`}`)
	clusterBefore, before := cluster.DeepCopy(), runtime.DeepCopyJSON(controlPlane)
	if _, err := Values(cluster, controlPlane, controlPlane, settings.DefaultExclude()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, controlPlane); diff != "" {
		t.Errorf("the control plane (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(clusterBefore, cluster); diff != "" {
		t.Errorf("the Cluster (-before +after):\n%s", diff)
	}
}

func TestExclude(t *testing.T) {
	const controlPlane = `{spec: {a/b: 1, m~n: 2, "~1": 3, "*": 4, "": 5, gone: null, list: [{secret: x, open: y}, {secret: x, deep: [{secret: x}]}, text], map: {one: {secret: x, open: y}, two: {secret: x}}, keep: true}}`
	const all = controlPlane
	without := func(old, replacement string) string { return strings.Replace(all, old, replacement, 1) }
	tests := map[string]struct {
		exclude []string
		want    string
	}{
		"nothing":               {want: all},
		"a key":                 {exclude: []string{"/ControlPlane/spec/keep"}, want: without(`, keep: true`, ``)},
		"~1 is a slash":         {exclude: []string{"/ControlPlane/spec/a~1b"}, want: without(`a/b: 1, `, ``)},
		"~0 is a tilde":         {exclude: []string{"/ControlPlane/spec/m~0n"}, want: without(`m~n: 2, `, ``)},
		"~01 is no slash":       {exclude: []string{"/ControlPlane/spec/~01"}, want: without(`"~1": 3, `, ``)},
		"the empty key":         {exclude: []string{"/ControlPlane/spec/"}, want: without(`"": 5, `, ``)},
		"* in a list":           {exclude: []string{"/ControlPlane/spec/list/*/secret"}, want: without(`{secret: x, open: y}, {secret: x, deep`, `{open: y}, {deep`)},
		"* in a list, deeper":   {exclude: []string{"/ControlPlane/spec/list/*/deep/*/secret"}, want: without(`deep: [{secret: x}]`, `deep: [{}]`)},
		"* in a map":            {exclude: []string{"/ControlPlane/spec/map/*/secret"}, want: without(`one: {secret: x, open: y}, two: {secret: x}`, `one: {open: y}, two: {}`)},
		"* at the end of a map": {exclude: []string{"/ControlPlane/spec/map/*"}, want: without(`map: {one: {secret: x, open: y}, two: {secret: x}}`, `map: {}`)},
		"* everywhere":          {exclude: []string{"/*/spec/*"}, want: `{spec: {}}`},
		"the whole object":      {exclude: []string{"/ControlPlane"}},
		"a missing key":         {exclude: []string{"/ControlPlane/spec/nope/x", "/Nope", "/ControlPlane/spec/keep/deeper", "/ControlPlane/spec/list/secret"}, want: all},
		"a list as a whole":     {exclude: []string{"/ControlPlane/spec/list"}, want: without(`list: [{secret: x, open: y}, {secret: x, deep: [{secret: x}]}, text], `, ``)},
		"several":               {exclude: []string{"/ControlPlane/spec/keep", "/ControlPlane/spec/keep", "/ControlPlane/spec/list/*/open"}, want: strings.Replace(without(`, keep: true`, ``), `{secret: x, open: y}, {secret: x, deep`, `{secret: x}, {secret: x, deep`, 1)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Values(makeCluster("team", "prod").Obj(), parse(t, controlPlane), nil, test.exclude)
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if test.want != "" {
				want = parse(t, strings.Replace(test.want, "gone: null, ", "", 1))
			}
			if diff := cmp.Diff(want, got["ControlPlane"]); diff != "" {
				t.Errorf("ControlPlane (-want +got):\n%s", diff)
			}
		})
	}
}

// Pointers into lists remove the values that they name, too.
func TestExcludeListItems(t *testing.T) {
	for pointer, want := range map[string]string{
		"/ControlPlane/spec/files/*":         `[null,null]`,
		"/ControlPlane/spec/files/1":         `[{"content":"a","path":"/a"},null]`,
		"/ControlPlane/spec/files/0/content": `[{"path":"/a"},{"content":"b","path":"/b"}]`,
		"/ControlPlane/spec/files/*/content": `[{"path":"/a"},{"path":"/b"}]`,
	} {
		t.Run(pointer, func(t *testing.T) {
			controlPlane := map[string]any{"spec": map[string]any{"files": []any{
				map[string]any{"path": "/a", "content": "a"}, map[string]any{"path": "/b", "content": "b"},
			}}}
			values, err := Values(&clusterv1.Cluster{}, controlPlane, nil, []string{pointer})
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(values[ControlPlaneValue].(map[string]any)["spec"].(map[string]any)["files"])
			if err != nil || string(got) != want {
				t.Errorf("files are %s (%v), want %s", got, err, want)
			}
		})
	}
}
