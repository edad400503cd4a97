package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestShape(t *testing.T) {
	shape := Shape{Prefix: "bench", Namespaces: 3, Classes: 2}
	users := map[string]map[string]bool{}
	for i := range 6 {
		key := shape.Key(i)
		if users[key.Namespace] == nil {
			users[key.Namespace] = map[string]bool{}
		}
		users[key.Namespace][shape.Class(i)] = true
	}
	if len(users) != 3 {
		t.Errorf("6 Clusters are in %d namespaces, want 3", len(users))
	}
	for namespace, classes := range users {
		if len(classes) != 2 {
			t.Errorf("namespace %s uses %d classes, want 2", namespace, len(classes))
		}
	}
}

func TestObjects(t *testing.T) {
	shape := Shape{Prefix: "bench", Namespaces: 3, Classes: 2}
	for file, size := range map[string]struct{ least, most int }{
		ControlPlaneFile: {11 << 10, 13 << 10}, InfrastructureFile: {0, 1 << 10}, ClusterFile: {1 << 10, 3 << 10},
	} {
		object, err := shape.Object(file, 4)
		if err != nil {
			t.Fatal(err)
		}
		if object.GetNamespace() != "bench-01" || object.GetName() != "cluster-00004" {
			t.Errorf("%s is %s/%s", file, object.GetNamespace(), object.GetName())
		}
		content, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if len(content) < size.least || len(content) > size.most {
			t.Errorf("%s has %d bytes", file, len(content))
		}
	}
	cluster, err := shape.Object(ClusterFile, 4)
	if err != nil {
		t.Fatal(err)
	}
	class, _, _ := unstructured.NestedStringMap(cluster.Object, "spec", "topology", "classRef")
	if class["name"] != "class-1" || class["namespace"] != ClassNamespace {
		t.Errorf("the class is %v", class)
	}
}

// A call that takes long does not hold up the next ones.
func TestPace(t *testing.T) {
	var calls, atOnce, most atomic.Int32
	failure := errors.New("one failed")
	begin := time.Now()
	err := Pace(context.Background(), 1000, 10, 30, func(_ context.Context, i int) error {
		most.Store(max(most.Load(), atOnce.Add(1)))
		defer atOnce.Add(-1)
		calls.Add(1)
		time.Sleep(20 * time.Millisecond)
		if i == 15 {
			return failure
		}
		return nil
	})
	if !errors.Is(err, failure) {
		t.Errorf("the error is %v", err)
	}
	if calls.Load() != 20 || most.Load() < 2 {
		t.Errorf("%d calls, %d at once", calls.Load(), most.Load())
	}
	if elapsed := time.Since(begin); elapsed < 19*time.Millisecond {
		t.Errorf("20 calls at 1000/s took %s", elapsed)
	}
}
