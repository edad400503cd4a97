package kube

import (
	"fmt"
	"sync"
	"testing"
)

// Two keys never wait for each other, whatever a hash says of them. With keymutex.NewHashed(64), this waits for ever.
func TestKeysDoNotShareALock(t *testing.T) {
	var locks Locks
	for i := range 1000 {
		defer locks.Lock(fmt.Sprintf("team/class-%d", i))()
	}
}

// A key has one holder at a time, and a free key takes no memory.
func TestLocksExclude(t *testing.T) {
	var locks Locks
	var all sync.WaitGroup
	counts := map[string]*int{"one": new(int), "two": new(int)}
	for key, count := range counts {
		for range 100 {
			all.Go(func() {
				defer locks.Lock(key)()
				*count++ // The race detector sees it, too.
			})
		}
	}
	all.Wait()
	for key, count := range counts {
		if *count != 100 {
			t.Errorf("%s: %d", key, *count)
		}
	}
	if len(locks.byKey) > 0 {
		t.Errorf("left: %v", locks.byKey)
	}
}
