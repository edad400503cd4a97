package page

import (
	"slices"
	"sync"
)

const (
	// backlog is how many updates are kept for readers that reconnect; a reader that is further behind has to
	// reload the page.
	backlog = 64
	// heavy is the maximum number of changes that are kept: more would be as large as the page itself.
	heavy = 10_000
)

// change is a change of the page.
type change struct {
	// Op is set (replaces the element with the ID), add (inserts the element into a list, after another), remove,
	// or reload.
	Op    string `json:"op"`
	ID    string `json:"id,omitempty"`
	List  string `json:"list,omitempty"`
	After string `json:"after,omitempty"`
	HTML  string `json:"html,omitempty"`
}

// update is a set of changes that readers get at once. Getting an update twice does no harm.
type update struct {
	number  int
	changes []change
}

// feed sends changes to all readers.
type feed struct {
	mu sync.Mutex
	// number is the number of the last update, and recent has the last updates.
	number  int
	recent  []update
	readers map[chan update]bool
}

func newFeed() *feed { return &feed{readers: map[chan update]bool{}} }

// now returns the number of the last update. A page rendered afterwards includes it.
func (f *feed) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.number
}

// join returns the updates after a number, because changes may have happened while the page was being sent.
func (f *feed) join(after int) chan update {
	f.mu.Lock()
	defer f.mu.Unlock()
	reader := make(chan update, 2*backlog)
	f.readers[reader] = true
	missed := f.number - after
	if missed < 0 || missed > len(f.recent) {
		reader <- update{f.number, []change{{Op: "reload"}}}
		return reader
	}
	for _, t := range f.recent[len(f.recent)-missed:] {
		reader <- t
	}
	return reader
}

func (f *feed) leave(reader chan update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, reader)
}

func (f *feed) publish(changes []change) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number++
	t := update{f.number, changes}
	f.recent = append(f.recent, t)
	retained, total := len(f.recent), 0
	for retained > 0 && len(f.recent)-retained < backlog && total+len(f.recent[retained-1].changes) <= heavy {
		retained--
		total += len(f.recent[retained].changes)
	}
	f.recent = slices.Clone(f.recent[retained:])
	for reader := range f.readers {
		select {
		case reader <- t:
		default: // The reader is too slow, and reloads the page.
			delete(f.readers, reader)
			close(reader)
		}
	}
}
