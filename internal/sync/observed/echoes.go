package observed

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Echoes are the events of our own last writes, those after which nothing was left to
// do. Each import would otherwise be looked at three times: once to make it, and once
// each when the Fleet Cluster and the condition come back.
type Echoes struct {
	mu sync.Mutex
	// writes holds each object's write until its event is here.
	writes map[types.UID]echo
}

type echo struct {
	version    string
	conditions []metav1.Condition
}

// NewEchoes returns Echoes of no write yet.
func NewEchoes() *Echoes { return &Echoes{writes: map[types.UID]echo{}} }

// Wrote notes an object as the API server returned it, and the conditions that were written.
func (e *Echoes) Wrote(object client.Object, conditions ...metav1.Condition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writes[object.GetUID()] = echo{object.GetResourceVersion(), conditions}
}

// Conditions returns the conditions last written to a Cluster, as it is cached, if the
// cache does not show them yet. Nothing else of it is known to be newer.
func (e *Echoes) Conditions(cluster client.Object) (conditions []metav1.Condition, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, ok := e.writes[cluster.GetUID()]
	if !ok {
		return nil, false
	}
	order, err := resourceversion.CompareResourceVersion(cluster.GetResourceVersion(), last.version)
	return last.conditions, err == nil && order < 0
}

// Heard reports whether this state of an object is our own write's, once.
func (e *Echoes) Heard(object client.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, ok := e.writes[object.GetUID()]; !ok || last.version != object.GetResourceVersion() {
		return false
	}
	delete(e.writes, object.GetUID())
	return true
}

// Forget drops an object that is gone.
func (e *Echoes) Forget(object client.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.writes, object.GetUID())
}

// Unheard passes the events of CAPI Clusters, but for updates in which nothing has changed
// of what is cached here (see Trim), and for those that we made by writing conditions. What
// somebody else changed meanwhile differs between the two states, even if a new list has
// skipped its own event.
func (e *Echoes) Unheard() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(update event.UpdateEvent) bool {
			before, after := update.ObjectOld.(*clusterv1.Cluster), update.ObjectNew.(*clusterv1.Cluster)
			if !e.Heard(after) {
				return News.Update(update)
			}
			a, b := *before, *after
			a.Status.Conditions, b.Status.Conditions = nil, nil
			return isNews(&a, &b)
		},
	}
}

// News passes all events but updates in which nothing has changed of what is cached here.
// A resync passes: it is there to look again.
var News = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	return update.ObjectOld.GetResourceVersion() == update.ObjectNew.GetResourceVersion() || isNews(update.ObjectOld, update.ObjectNew)
}}

func isNews(before, after client.Object) bool {
	a, b := ShallowCopy(before), ShallowCopy(after)
	for _, object := range []client.Object{a, b} {
		object.SetResourceVersion("")
	}
	return !equality.Semantic.DeepEqual(a, b)
}

// ShallowCopy returns an object that shares everything with another but its own fields.
func ShallowCopy(object client.Object) client.Object {
	result := reflect.New(reflect.TypeOf(object).Elem())
	result.Elem().Set(reflect.ValueOf(object).Elem())
	return result.Interface().(client.Object)
}
