package sync

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/stamp"
)

// A Cluster is counted by its condition alone. TestSteps compares the states with the outcomes of reconciles.
func TestStateOf(t *testing.T) {
	for reason, want := range map[string][2]state{ // False, True
		addonsv1.ImportedReason:                 {statePending, stateImported},
		addonsv1.AttachedReason:                 {statePending, stateImported},
		addonsv1.DoubleImportReason:             {statePending, stateImported},
		addonsv1.TemplateValuesUnresolvedReason: {statePending, stateImported},
		addonsv1.TooMuchMetadataReason:          {statePending, stateImported},
		addonsv1.PausedReason:                   {statePending, statePending},
		addonsv1.WaitingForFleetReason:          {statePending, stateImported},
		addonsv1.NameConflictReason:             {stateConflicted, stateConflicted},
		addonsv1.FailedReason:                   {stateFailed, stateFailed},
		addonsv1.DeselectedReason:               {stateUnselected, stateUnselected},
	} {
		for i, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionTrue} {
			cluster := counted("one", metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: status, Reason: reason})
			if got := stateOf(cluster); got != want[i] {
				t.Errorf("%s %s is %s, want %s", status, reason, got, want[i])
			}
		}
	}
	cluster := counted("one", metav1.Condition{Type: "Ready", Status: "True"})
	if got := stateOf(cluster); got != stateUnselected {
		t.Errorf("without a condition: %s", got)
	}
	cluster.Annotations = pin("one")
	if got := stateOf(cluster); got != statePending {
		t.Errorf("claimed, without a condition: %s", got)
	}
}

func pin(name string) map[string]string {
	return map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: name}
}

// countedCache is a cache of Clusters and released Fleet Clusters. It must not be asked to copy them.
type countedCache struct {
	client.Reader
	clusters, released []runtime.Object
	err                error
}

func (c *countedCache) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.UnsafeDisableDeepCopy == nil || !*asked.UnsafeDisableDeepCopy {
		return errors.New("every object would be copied")
	}
	if c.err != nil {
		return c.err
	}
	if _, ok := into.(*fleetv1.ClusterList); ok {
		if asked.FieldSelector == nil {
			return errors.New("every Fleet Cluster is listed")
		}
		return meta.SetList(into, c.released)
	}
	return meta.SetList(into, c.clusters)
}

func (c *countedCache) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	for _, object := range c.clusters {
		if client.ObjectKeyFromObject(object.(client.Object)) == key {
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// counted returns a Cluster with conditions.
func counted(name string, conditions ...metav1.Condition) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{clusterv1.WatchLabel: "a"}},
		Status:     clusterv1.ClusterStatus{Conditions: conditions},
	}
}

func TestCountAll(t *testing.T) {
	imported := metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: "True", Reason: "Imported"}
	conflict := metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: "True", Reason: "NameConflict"}
	held := metav1.Condition{Type: addonsv1.FleetUpgradeHeldCondition, Status: "True", Reason: "WaitingForAddOns"}
	over := metav1.Condition{Type: addonsv1.FleetUpgradeHeldCondition, Status: "False", Reason: "AddOnsReady"}
	elsewhere := counted("elsewhere", imported, over)
	elsewhere.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: "standard", Namespace: "classes"}
	claimed := counted("claimed")
	claimed.Annotations = pin("claimed")
	unwatched := counted("unwatched", imported, held)
	unwatched.Labels = nil
	cache := &countedCache{clusters: []runtime.Object{counted("one", imported, held), elsewhere, counted("three", conflict), claimed, counted("none"), unwatched}}
	for _, origin := range []string{"one", "gone"} {
		cache.released = append(cache.released, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: origin, Annotations: map[string]string{stamp.ImportedFromAnnotation: origin, stamp.ImportedUIDAnnotation: "1"},
		}})
	}
	got := metrics.Counts{}
	if err := countAll(t.Context(), cache, "a", got); err != nil {
		t.Fatal(err)
	}
	want := metrics.Counts{
		clustersByState:     {"imported": 2, "conflicted": 1, "pending": 1, "unselected": 1},
		clustersByReason:    {"Imported": 2, "NameConflict": 1},
		crossNamespaceClass: {"": 1}, upgradesHeld: {"": 1}, released: {"": 1},
	}
	for gauge := range want {
		if diff := cmp.Diff(want[gauge], got[gauge]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	cache.err = errors.New("the cache has not synced")
	if err := countAll(t.Context(), cache, "a", metrics.Counts{}); !errors.Is(err, cache.err) {
		t.Errorf("got error %v", err)
	}
}

// A scrape of 5000 Clusters must take less than 10 ms.
func BenchmarkCountAll(b *testing.B) {
	cache := &countedCache{}
	for i := range 5000 {
		cluster := counted(fmt.Sprintf("cluster-%d", i), metav1.Condition{Type: "Available"}, metav1.Condition{Type: "Ready"},
			metav1.Condition{Type: addonsv1.FleetImportedCondition, Status: "True", Reason: "Imported"})
		cluster.Annotations, cluster.Spec.Topology.ClassRef = pin(cluster.Name), clusterv1.ClusterClassRef{Name: "standard", Namespace: "classes"}
		cache.clusters = append(cache.clusters, cluster)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := countAll(b.Context(), cache, "a", metrics.Counts{}); err != nil {
			b.Fatal(err)
		}
	}
}
