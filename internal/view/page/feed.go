package page

import (
	"slices"
	"sync"
)

const (
	// backlog is how much of what was sent is kept for readers that come back, and how far
	// one may be behind before it has to load the page again.
	backlog = 64
	// heavy is how many changes are kept at most: more are as large as the page itself.
	heavy = 10_000
)

// change is a change of the page.
type change struct {
	// Op is set (the element with the ID becomes this), add (it comes after another in a
	// list), remove, or reload.
	Op    string `json:"op"`
	ID    string `json:"id,omitempty"`
	List  string `json:"list,omitempty"`
	After string `json:"after,omitempty"`
	HTML  string `json:"html,omitempty"`
}

// update are changes that readers are sent at once. To be sent again what one has already
// does no harm.
type update struct {
	number  int
	changes []change
}

// feed sends changes to all readers.
type feed struct {
	mu sync.Mutex
	// number is that of what was sent last, and recent what was sent up to it.
	number  int
	recent  []update
	readers map[chan update]bool
}

func newFeed() *feed { return &feed{readers: map[chan update]bool{}} }

// now returns the number of what was sent last. A page that is made afterwards has all up to
// it.
func (f *feed) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.number
}

// join returns what is sent after a number: what happened while a page was on its way is on
// none that is made before.
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
		default: // It is too slow, and loads the page again.
			delete(f.readers, reader)
			close(reader)
		}
	}
}
