package sync

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestReadsKnowWhatNobodyMissed(t *testing.T) {
	object := func(version string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
		o.SetKind("KubeadmControlPlane")
		o.SetNamespace("team")
		o.SetName("one")
		o.SetResourceVersion(version)
		return o
	}
	key := keyOf(object(""))
	read := func(version string) func(*reads) {
		return func(r *reads) { r.begin(key); r.end(key, object(version)) }
	}
	for name, test := range map[string]struct {
		before []func(*reads)
		event  event.CreateEvent
		passes bool
	}{
		"never read: its Cluster still waits for the list": {
			event: event.CreateEvent{Object: object("1"), IsInInitialList: true},
		},
		"read in this state": {
			before: []func(*reads){read("1")},
			event:  event.CreateEvent{Object: object("1"), IsInInitialList: true},
		},
		"read in this state, twice": {
			before: []func(*reads){read("1"), read("1")},
			event:  event.CreateEvent{Object: object("1"), IsInInitialList: true},
		},
		"read in an older state": {
			before: []func(*reads){read("1")},
			event:  event.CreateEvent{Object: object("2"), IsInInitialList: true},
			passes: true,
		},
		"being read: nobody knows in which state": {
			before: []func(*reads){func(r *reads) { r.begin(key) }},
			event:  event.CreateEvent{Object: object("2"), IsInInitialList: true},
			passes: true,
		},
		"read in two states for two Clusters": {
			before: []func(*reads){read("1"), read("2")},
			event:  event.CreateEvent{Object: object("2"), IsInInitialList: true},
			passes: true,
		},
		"looked for while it was not there": {
			before: []func(*reads){func(r *reads) { r.begin(key); r.missing(key) }},
			event:  event.CreateEvent{Object: object("1")},
			passes: true,
		},
		"not there for one, there for another": {
			before: []func(*reads){func(r *reads) { r.begin(key); r.begin(key); r.missing(key); r.end(key, object("1")) }},
			event:  event.CreateEvent{Object: object("1"), IsInInitialList: true},
			passes: true,
		},
		"there for one, not for another who looked before": {
			before: []func(*reads){func(r *reads) { r.begin(key); r.begin(key); r.end(key, object("1")); r.missing(key) }},
			event:  event.CreateEvent{Object: object("2"), IsInInitialList: true},
			passes: true,
		},
		"made after the first list": {
			event:  event.CreateEvent{Object: object("1")},
			passes: true,
		},
		"made after the first list, and read already": {
			before: []func(*reads){read("1")},
			event:  event.CreateEvent{Object: object("1")},
			passes: true,
		},
		"deleted after it was read in an older state": {
			before: []func(*reads){read("1"), func(r *reads) { r.news().Delete(event.DeleteEvent{Object: object("1")}) }, read("2")},
			event:  event.CreateEvent{Object: object("2"), IsInInitialList: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReads()
			for _, step := range test.before {
				step(r)
			}
			if got := r.news().Create(test.event); got != test.passes {
				t.Errorf("passes = %t, want %t", got, test.passes)
			}
		})
	}
}

// What is not in the cache once the first list is there appears later as no part of that
// list, however late the list is handed over: of what is missing nothing has to be noted.
func TestReadsMissNothingThatAppears(t *testing.T) {
	source := cachetesting.NewFakeControllerSource()
	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	}
	source.Add(configMap("there"))
	informer := toolscache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, toolscache.Indexers{})
	r := newReads()
	handOver, passed := make(chan struct{}), make(chan string, 10)
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(object any, isInInitialList bool) {
		<-handOver
		if e := (event.CreateEvent{Object: object.(client.Object), IsInInitialList: isInInitialList}); r.news().Create(e) {
			passed <- e.Object.GetName()
		}
	}}); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(t.Context())
	if !toolscache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("no first list")
	}
	late := configMap("late")
	r.begin(keyOf(late))
	if _, exists, err := informer.GetStore().GetByKey("team/late"); err != nil || exists {
		t.Fatalf("exists: %t (%v)", exists, err)
	}
	r.missing(keyOf(late))
	source.Add(late)
	close(handOver)
	select {
	case name := <-passed:
		if name != "late" {
			t.Errorf("%s passes, want late", name)
		}
	case <-time.After(10 * time.Second):
		t.Error("what appeared does not pass")
	}
	if len(r.versions) != 0 {
		t.Errorf("kept: %v", r.versions)
	}
}
