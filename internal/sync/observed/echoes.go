package observed

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

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
	// writes holds each object's write until its event arrives.
	writes map[types.UID]Echo
	// underWay holds, for each object that is being written, the states that came meanwhile:
	// an event may be faster than the answer to the write it tells of.
	underWay map[written][]client.Object
	// others are the last such states that somebody else has written.
	others map[written]client.Object
	now    func() time.Time
	// swept is when overdue writes were last dropped: their event came before the answer, or
	// the object was gone by then.
	swept time.Time
}

// written is an object that is being written.
type written struct {
	kind reflect.Type
	types.NamespacedName
}

func writtenOf(object client.Object) written {
	return written{reflect.TypeOf(object), client.ObjectKeyFromObject(object)}
}

// Echo is a write whose event is still to come; the zero Echo is none.
type Echo struct {
	version    string
	conditions []metav1.Condition
	expires    time.Time
}

// NewEchoes returns Echoes of no write yet.
func NewEchoes() *Echoes {
	return &Echoes{writes: map[types.UID]Echo{}, underWay: map[written][]client.Object{}, others: map[written]client.Object{}, now: time.Now}
}

// Writing notes that an object, of the type that the cache has, is about to be written. Call
// what it returns, always, with the answer and the conditions that were written, or with nil
// if there is none, or if something is left to do.
func (e *Echoes) Writing(object client.Object) (answered func(answer client.Object, conditions ...metav1.Condition)) {
	key := writtenOf(object)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.underWay[key] = nil
	return func(answer client.Object, conditions ...metav1.Condition) {
		e.mu.Lock()
		defer e.mu.Unlock()
		came := e.underWay[key]
		delete(e.underWay, key)
		isHeard := false
		for _, state := range came {
			if answer != nil && state.GetUID() == answer.GetUID() && state.GetResourceVersion() == answer.GetResourceVersion() {
				isHeard = true
			} else {
				e.others[key] = state
			}
		}
		if answer != nil && !isHeard {
			e.wrote(answer, conditions...)
		}
	}
}

// Others returns, once, the states of objects that were taken for our own writes and were not.
func (e *Echoes) Others() []client.Object {
	e.mu.Lock()
	defer e.mu.Unlock()
	others := slices.Collect(maps.Values(e.others))
	clear(e.others)
	return others
}

// Wrote notes an object as the API server returned it, and the conditions that were written. Its
// event, if it came before the answer, is not recognized: see Writing.
func (e *Echoes) Wrote(object client.Object, conditions ...metav1.Condition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wrote(object, conditions...)
}

// wrote is Wrote with the lock held.
func (e *Echoes) wrote(object client.Object, conditions ...metav1.Condition) {
	now := e.now()
	if now.Sub(e.swept) > lag {
		maps.DeleteFunc(e.writes, func(_ types.UID, echo Echo) bool { return now.After(echo.expires) })
		e.swept = now
	}
	e.writes[object.GetUID()] = Echo{object.GetResourceVersion(), conditions, now.Add(lag)}
}

// Of returns the Echo of the object with a UID. Once it is heard, the cache shows it: ask for
// it before reading the object.
func (e *Echoes) Of(uid types.UID) Echo {
	e.mu.Lock()
	defer e.mu.Unlock()
	if echo := e.writes[uid]; e.now().Before(echo.expires) {
		return echo
	}
	return Echo{}
}

// Conditions returns the conditions on a Cluster: those that were written, if what is
// cached is older. Nothing else of it is known to be newer.
func (e Echo) Conditions(cached *clusterv1.Cluster) []metav1.Condition {
	order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, e.version)
	if e.version != "" && err == nil && order < 0 {
		return e.conditions
	}
	return cached.Status.Conditions
}

// Heard reports, once, whether this state of an object is from our own write, or may be: it is
// one of Others then if it was not.
func (e *Echoes) Heard(object client.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.heard(object) {
		return true
	}
	came, isUnderWay := e.underWay[writtenOf(object)]
	if isUnderWay {
		e.underWay[writtenOf(object)] = append(came, object)
	}
	return isUnderWay
}

// isOurs reports, once, whether this state of an object is from an answered write of ours.
func (e *Echoes) isOurs(object client.Object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard(object)
}

// heard is isOurs with the lock held.
func (e *Echoes) heard(object client.Object) bool {
	last, ok := e.writes[object.GetUID()]
	isOurs := ok && last.version == object.GetResourceVersion()
	if isOurs {
		delete(e.writes, object.GetUID())
	}
	return isOurs
}

// Forget drops an object that is gone.
func (e *Echoes) Forget(object client.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.writes, object.GetUID())
}

// Unheard passes the events of CAPI Clusters, except updates that change nothing of what is
// cached here (see Trim), and those that we made by writing conditions of our types. What
// others changed meanwhile differs between the two states, even if a new list has skipped its
// own event.
func (e *Echoes) Unheard(ours ...string) predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(update event.UpdateEvent) bool {
			before, after := update.ObjectOld.(*clusterv1.Cluster), update.ObjectNew.(*clusterv1.Cluster)
			isOurs := e.isOurs(after)
			switch a, b := withoutConditions(before, ours), withoutConditions(after, ours); {
			case before.ResourceVersion == after.ResourceVersion || isNews(a, b):
				return true
			case equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions):
				return false
			default:
				return !isOurs && !e.Heard(after)
			}
		},
	}
}

// withoutConditions returns a Cluster that lacks conditions of some types, and shares the rest.
func withoutConditions(cluster *clusterv1.Cluster, types []string) *clusterv1.Cluster {
	result := *cluster
	result.Status.Conditions = slices.DeleteFunc(slices.Clone(cluster.Status.Conditions), func(condition metav1.Condition) bool {
		return slices.Contains(types, condition.Type)
	})
	return &result
}

// News passes all events but updates that change nothing of what is cached here. A resync
// passes: its purpose is to look again.
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
