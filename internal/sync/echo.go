package sync

import (
	gosync "sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// echoes are the events of our own last writes, those after which nothing was left to
// do. Each import would otherwise be looked at three times: once to make it, and once
// each when the Fleet Cluster and the condition come back.
type echoes struct {
	mu gosync.Mutex
	// versions holds the resourceVersion of each object's write until its event is here.
	versions map[types.UID]string
}

func newEchoes() *echoes { return &echoes{versions: map[types.UID]string{}} }

// wrote notes an object as the API server returned it.
func (e *echoes) wrote(object client.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.versions[object.GetUID()] = object.GetResourceVersion()
}

// heard reports whether this state of an object is our own write's, once.
func (e *echoes) heard(object client.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.versions[object.GetUID()] != object.GetResourceVersion() {
		return false
	}
	delete(e.versions, object.GetUID())
	return true
}

// forget drops an object that is gone.
func (e *echoes) forget(object client.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.versions, object.GetUID())
}

// unheard passes all events of CAPI Clusters but updates that we made by writing
// conditions. What somebody else changed meanwhile differs between the two states,
// even if a new list has skipped its own event.
func (e *echoes) unheard() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(update event.UpdateEvent) bool {
			before, after := update.ObjectOld.(*clusterv1.Cluster), update.ObjectNew.(*clusterv1.Cluster)
			return !e.heard(after) || !sameButConditions(before, after)
		},
	}
}

func sameButConditions(before, after *clusterv1.Cluster) bool {
	a, b := *before, *after
	for _, cluster := range []*clusterv1.Cluster{&a, &b} {
		cluster.ResourceVersion, cluster.ManagedFields, cluster.Status.Conditions = "", nil, nil
	}
	return equality.Semantic.DeepEqual(a, b)
}
