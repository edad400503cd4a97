package sync

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
			before: []func(*reads){func(r *reads) { r.begin(key) }},
			event:  event.CreateEvent{Object: object("1"), IsInInitialList: true},
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
