package sync

import (
	"maps"
	gosync "sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// reads are the states in which objects were last read for a Cluster. With them, the
// first list of a kind brings no Cluster back that has just been waiting for that list:
// a start would otherwise look at each Cluster once more for each object it refers to.
type reads struct {
	mu gosync.Mutex
	// versions holds the resourceVersion read, reading, or several.
	versions map[objectKey]string
}

type objectKey struct {
	schema.GroupKind
	types.NamespacedName
}

const (
	// reading stands for an object that is being read.
	reading = "reading"
	// several stands for an object that was read in more than one state: there is no
	// telling which Cluster has which.
	several = "several"
)

func newReads() *reads { return &reads{versions: map[objectKey]string{}} }

func keyOf(object client.Object) objectKey {
	return objectKey{object.GetObjectKind().GroupVersionKind().GroupKind(), client.ObjectKeyFromObject(object)}
}

// begin is called before an object is read, once the first list of its kind is there.
func (r *reads) begin(key objectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.versions[key]; !ok {
		r.versions[key] = reading
	}
}

// end is called with the object that was found.
func (r *reads) end(key objectKey, object client.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.versions[key]; before == reading || before == object.GetResourceVersion() {
		r.versions[key] = object.GetResourceVersion()
	} else {
		r.versions[key] = several
	}
}

// missing is called when an object was not there. It needs no note: the first list of its
// kind is there already, so its appearance is no part of that, and passes.
func (r *reads) missing(key objectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.versions[key] == reading {
		delete(r.versions, key)
	}
}

// isKnown reports whether whoever has read an object has read this state of it. Whoever
// has not read it yet waits for the first list of its kind, and will.
func (r *reads) isKnown(object client.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, read := r.versions[keyOf(object)]
	return !read || version == object.GetResourceVersion()
}

func (r *reads) forget(object client.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.versions, keyOf(object))
}

// forgetKind forgets all objects of a kind.
func (r *reads) forgetKind(kind schema.GroupKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.versions, func(key objectKey, _ string) bool { return key.GroupKind == kind })
}

// news passes everything but objects of a first list that are known.
func (r *reads) news() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList || !r.isKnown(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool {
			r.forget(e.Object)
			return true
		},
	}
}
