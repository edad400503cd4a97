package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/picture"
)

const (
	// calm is how long changes are gathered before they are shown.
	calm = 200 * time.Millisecond
	// tick is how often the picture is made anew without a change: agents fall silent
	// without one.
	tick = 10 * time.Second
	// backlog is how many changes a reader may be behind before it has to load the page again.
	backlog = 64
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

// feed tells all readers of changes.
type feed struct {
	mu      sync.Mutex
	readers map[chan []change]bool
}

func newFeed() *feed { return &feed{readers: map[chan []change]bool{}} }

func (f *feed) join() chan []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	reader := make(chan []change, backlog)
	f.readers[reader] = true
	return reader
}

func (f *feed) leave(reader chan []change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, reader)
}

func (f *feed) tell(changes []change) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for reader := range f.readers {
		select {
		case reader <- changes:
		default: // It is too slow, and loads the page again.
			delete(f.readers, reader)
			close(reader)
		}
	}
}

// shown is the page as readers have it.
type shown struct {
	parts map[string]string
	// cells are what the parts of Clusters were made of.
	cells map[string]cell
	// lists are the cells of each place, and order those of all places.
	lists map[string][]string
	order []string
}

// keep makes the picture anew after changes, and tells readers what differs.
func (s *Server) keep(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last, _ := s.show(nil) // Without it, the first change has the page loaded again.
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-s.source.Changed():
			select {
			case <-ctx.Done():
			case <-time.After(calm):
			}
		case <-ticker.C:
		}
		current, err := s.show(last)
		if err != nil || last == nil {
			s.feed.tell([]change{{Op: "reload"}})
		} else {
			s.feed.tell(differences(last, current))
		}
		last = current
	}
}

// show renders all parts of the overview. What is as it was is taken from the last.
func (s *Server) show(last *shown) (*shown, error) {
	v := s.viewOf(picture.Build(s.source.Snapshot()))
	result := &shown{parts: map[string]string{}, cells: map[string]cell{}, lists: map[string][]string{}}
	put := func(id, template string, what any) error {
		text, err := render(template, what)
		result.parts[id] = string(text)
		return err
	}
	for _, name := range []string{"summary", "notes", "classes"} {
		if err := put(name, name, v); err != nil {
			return nil, err
		}
	}
	for _, class := range v.Classes {
		for _, place := range class.Places {
			result.order = append(result.order, class.ID+" "+place.ID)
			if err := put("head/"+place.ID, "head", place); err != nil {
				return nil, err
			}
			for _, cell := range place.Cells {
				cell.First = false
				if last != nil && last.cells[cell.ID] == cell {
					result.parts[cell.ID] = last.parts[cell.ID]
				} else if err := put(cell.ID, "cell", cell); err != nil {
					return nil, err
				}
				result.cells[cell.ID] = cell
				result.lists[place.ID] = append(result.lists[place.ID], cell.ID)
			}
		}
	}
	return result, nil
}

// differences returns what must change for one page to become the other.
func differences(old, current *shown) []change {
	if !slices.Equal(old.order, current.order) {
		return []change{{Op: "reload"}} // A class or namespace came or went, which is rare.
	}
	place := map[string]string{}
	for list, ids := range old.lists {
		for _, id := range ids {
			place[id] = list
		}
	}
	changes := moves(place, current)
	for id, text := range current.parts {
		if before, found := old.parts[id]; found && before != text && (place[id] == "" || !isMoved(place[id], id, current)) {
			changes = append(changes, change{Op: "set", ID: id, HTML: text})
		}
	}
	for id := range place {
		if _, found := current.parts[id]; !found {
			changes = append(changes, change{Op: "remove", ID: id})
		}
	}
	return changes
}

// moves returns what must change so that each cell is in its list; place is where each was.
func moves(place map[string]string, current *shown) (changes []change) {
	for list, ids := range current.lists {
		after := ""
		for _, id := range ids {
			if place[id] != list {
				if place[id] != "" {
					changes = append(changes, change{Op: "remove", ID: id})
				}
				changes = append(changes, change{Op: "add", ID: id, List: list, After: after, HTML: current.parts[id]})
			}
			after = id
		}
	}
	return changes
}

// isMoved reports whether a cell is in another list now.
func isMoved(list, id string, current *shown) bool {
	_, found := slices.BinarySearch(current.lists[list], id)
	return !found
}

// events sends changes for as long as somebody reads: those of the overview, and those of
// the Cluster that is looked at.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		http.Error(w, "this connection cannot be written to bit by bit", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	reader := s.feed.join()
	defer s.feed.leave(reader)
	send := func(changes []change) {
		text, err := json.Marshal(changes)
		if err == nil {
			fmt.Fprintf(w, "data: %s\n\n", text)
			flusher.Flush()
		}
	}
	send([]change{}) // It is connected.

	selected := r.URL.Query().Get("cluster")
	look := make(chan struct{}, 1)
	if selected != "" {
		go s.watchSelected(r.Context(), selected, func() {
			select {
			case look <- struct{}{}:
			default:
			}
		})
	}
	alive := time.NewTicker(15 * time.Second)
	defer alive.Stop()
	last := ""
	for {
		select {
		case <-r.Context().Done():
			return
		case changes, open := <-reader:
			if !open {
				send([]change{{Op: "reload"}})
				return
			}
			send(changes)
			if slices.ContainsFunc(changes, func(c change) bool { return c.ID == selected && selected != "" }) {
				last = s.sendDetail(r.Context(), selected, last, send)
			}
		case <-look:
			time.Sleep(calm)
			last = s.sendDetail(r.Context(), selected, last, send)
		case <-alive.C:
			fmt.Fprint(w, ": alive\n\n")
			flusher.Flush()
		}
	}
}

// watchSelected follows what Fleet has for a Cluster.
func (s *Server) watchSelected(ctx context.Context, id string, changed func()) {
	node, _, _ := find(picture.Build(s.source.Snapshot()), id)
	if node == nil || node.Fact(picture.FactFleetNS) == "" {
		return
	}
	s.source.WatchBundles(ctx, node.Fact(picture.FactFleetNS), changed)
}

// sendDetail sends what is known of a Cluster, if that differs from what was sent last.
func (s *Server) sendDetail(ctx context.Context, id, last string, send func([]change)) string {
	objects := s.source.Snapshot()
	text, err := render("detail", s.detailOf(ctx, objects, picture.Build(objects), id))
	if err != nil || string(text) == last {
		return last
	}
	send([]change{{Op: "set", ID: "detail", HTML: string(text)}})
	return string(text)
}
