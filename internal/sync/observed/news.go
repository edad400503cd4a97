package observed

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

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
