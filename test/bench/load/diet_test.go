package load_test

import (
	"encoding/json"
	"runtime"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/internal/sync/observed"
	"github.com/muster-fleet/muster/test/bench/load"
)

// BenchmarkCacheDiet measures what the syncer's cache holds of a Cluster: the Cluster, its
// control plane, its infrastructure object and its Fleet Cluster, as they are decoded, and
// as the cache's transform leaves them. What is left out here are the managedFields that an
// API server adds, of which the transform leaves the managers' names.
func BenchmarkCacheDiet(b *testing.B) {
	whole := func(object any) (any, error) { return object, nil }
	for _, diet := range []struct {
		name      string
		transform func(any) (any, error)
	}{{"whole", whole}, {"trimmed", observed.Trim}} {
		b.Run(diet.name, func(b *testing.B) {
			const count = 500
			shape := load.Shape{Prefix: "bench", Namespaces: 10, Classes: 4}
			var held []any
			before := heap()
			for b.Loop() {
				held = held[:0]
				for i := range count {
					for _, object := range cached(b, shape, i) {
						kept, err := diet.transform(object)
						if err != nil {
							b.Fatal(err)
						}
						held = append(held, kept)
					}
				}
			}
			b.ReportMetric((heap()-before)/1024/count, "KiB/Cluster")
			runtime.KeepAlive(held)
		})
	}
}

func heap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// cached returns the objects of a Cluster as a cache decodes them.
func cached(b *testing.B, shape load.Shape, i int) []any {
	b.Helper()
	decode := func(from, into any) {
		data, err := json.Marshal(from)
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	object := func(file string) *unstructured.Unstructured {
		object, err := shape.Object(file, i)
		if err != nil {
			b.Fatal(err)
		}
		return object
	}
	controlPlane, infrastructure := object(load.ControlPlaneFile), object(load.InfrastructureFile)
	cluster := &clusterv1.Cluster{}
	decode(object(load.ClusterFile), cluster)
	values, err := desired.Values(cluster, controlPlane.Object, infrastructure.Object, settings.DefaultExclude())
	if err != nil {
		b.Fatal(err)
	}
	fleetCluster := &fleetv1.Cluster{}
	decode(desired.FleetCluster(settings.Default(), cluster, nil, values, desired.Targets{}, ""), fleetCluster)
	return []any{cluster, controlPlane, infrastructure, fleetCluster}
}
