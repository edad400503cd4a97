package main

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestWaitsDuringAStart(t *testing.T) {
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "canary-00", Name: name} }
	initialized := map[client.ObjectKey]request{key("early"): {at(1), at(2)}, key("late"): {at(11), at(12)}}
	written := map[client.ObjectKey]request{key("early"): {at(12), at(13)}, key("late"): {at(12), at(14)}}
	for name, test := range map[string]struct {
		none  int
		ready time.Duration
		waits []time.Duration
	}{
		"others were counted first": {10, 10 * time.Second, []time.Duration{2 * time.Second, 3 * time.Second}},
		"it was the first":          {20, 13 * time.Second, []time.Duration{0, time.Second}},
	} {
		d := during{}
		d.measure(begin, at(test.none), initialized, written)
		slices.Sort(d.waits)
		if d.ready != test.ready || d.first != 13*time.Second || !slices.Equal(d.waits, test.waits) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
