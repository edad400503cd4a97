package kube

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// controlPlane returns a control plane as an API server would, with a number of inline files.
func controlPlane(files int) *unstructured.Unstructured {
	var list []any
	for i := range files {
		list = append(list, map[string]any{
			"path": fmt.Sprintf("/etc/kubernetes/%d.yaml", i), "owner": "root:root", "permissions": "0600",
			"content": fmt.Sprintf("apiVersion: v1\nkind: Config\nname: file-%d\n", i),
		})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
		"kind":       "KubeadmControlPlane",
		"metadata": map[string]any{
			"name": "prod", "namespace": "team", "uid": "1", "resourceVersion": "7", "generation": int64(3),
			"labels":        map[string]any{"a": "b"},
			"annotations":   map[string]any{clusterv1.PausedAnnotation: "", "note": "x"},
			"managedFields": []any{map[string]any{"manager": "m"}},
		},
		"spec": map[string]any{
			"replicas": int64(3), "large": int64(9007199254740993), "share": 0.5, "on": true, "none": nil,
			"files": list,
		},
		"status": map[string]any{"readyReplicas": int64(1)},
	}}
}

func TestCompact(t *testing.T) {
	small := controlPlane(40)
	if err := Compact(small); err != nil {
		t.Fatal(err)
	}
	// A transform may get an object twice.
	if err := Compact(small); err != nil {
		t.Fatal(err)
	}
	// A read from the cache is a deep copy.
	small = small.DeepCopy()

	t.Run("the fields for the template values are restored", func(t *testing.T) {
		want := controlPlane(40).Object
		delete(want, "status")
		metadata := want["metadata"].(map[string]any)
		for _, key := range []string{"resourceVersion", "generation", "managedFields"} {
			delete(metadata, key)
		}
		got, err := Expand(small)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("expanded (-want +got):\n%s", diff)
		}
	})
	t.Run("the fields for informers and predicates stay", func(t *testing.T) {
		want := controlPlane(0)
		if small.GroupVersionKind() != want.GroupVersionKind() || small.GetName() != "prod" || small.GetNamespace() != "team" ||
			small.GetUID() != "1" || small.GetResourceVersion() != "7" {
			t.Errorf("identity: %v", small.Object["metadata"])
		}
		if diff := cmp.Diff(map[string]string{clusterv1.PausedAnnotation: ""}, small.GetAnnotations()); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
	})
	t.Run("it is small", func(t *testing.T) {
		full, err := controlPlane(40).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if retained := small.Object[compacted].(string); len(retained) > len(full)/3 {
			t.Errorf("%d bytes of JSON are kept as %d", len(full), len(retained))
		}
		if len(small.Object) != 4 {
			t.Errorf("fields kept: %v", small.Object)
		}
	})
	t.Run("an object that was never compacted is returned as it is", func(t *testing.T) {
		given := controlPlane(1)
		got, err := Expand(given)
		if diff := cmp.Diff(given.Object, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
	t.Run("broken data is an error that names the object", func(t *testing.T) {
		broken := small.DeepCopy()
		broken.Object[compacted] = "?"
		if got, err := Expand(broken); err == nil {
			t.Errorf("expanded to %v", got)
		}
	})
}

func TestCompactedChanged(t *testing.T) {
	compact := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		object := controlPlane(2)
		change(object)
		if err := Compact(object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*unstructured.Unstructured)
		passes bool
	}{
		"its status and version": {passes: false, change: func(object *unstructured.Unstructured) {
			set(int64(3), "status", "readyReplicas")(object)
			object.SetResourceVersion("8")
		}},
		"its spec":           {set(int64(5), "spec", "replicas"), true},
		"a label":            {set("c", "metadata", "labels", "a"), true},
		"the end of a pause": {func(object *unstructured.Unstructured) { object.SetAnnotations(map[string]string{"note": "x"}) }, true},
		"another object":     {func(object *unstructured.Unstructured) { object.SetUID("2") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := compact(func(*unstructured.Unstructured) {})
			if got := CompactedChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: compact(test.change)}); got != test.passes {
				t.Errorf("passes: %v, want %v", got, test.passes)
			}
		})
	}
}

// Fields that never reach the template values are not in the cache either: the values are the same with
// and without them, and a change of only such fields is none.
func TestCompactLeavesOutWhatTheValuesDo(t *testing.T) {
	withCopies := func(original string) *unstructured.Unstructured {
		object := controlPlane(2)
		copies := map[string]any{"kapp.k14s.io/original": original, "cluster.x-k8s.io/conversion-data": original, "note": "x"}
		object.Object["metadata"].(map[string]any)["annotations"] = maps.Clone(copies)
		object.Object["spec"].(map[string]any)["machineTemplate"] = map[string]any{"metadata": map[string]any{"annotations": copies}}
		return object
	}
	values := func(object map[string]any) map[string]any {
		values, err := desired.Values(&clusterv1.Cluster{}, object, nil, []string{})
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	whole := values(withCopies("a").Object)
	before, after := withCopies("a"), withCopies("b")
	for _, object := range []*unstructured.Unstructured{before, after} {
		if _, err := Trim(object); err != nil {
			t.Fatal(err)
		}
		expanded, err := Expand(object)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := desired.Hash(values(expanded)), desired.Hash(whole); got != want {
			t.Errorf("the values of the cached object have the hash %s, those of the whole one %s", got, want)
		}
	}
	if CompactedChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("the change of a copy is news")
	}
}
