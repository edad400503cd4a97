package page

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/muster-fleet/muster/internal/view"
)

// stream is the connection of a reader.
type stream struct {
	http.ResponseWriter
	http.Flusher
}

// send sends changes. A reader that reconnects names the last number that it got.
func (s stream) send(number int, changes []change) {
	text, err := json.Marshal(changes)
	if err != nil {
		return // Strings can always be marshaled.
	}
	if number >= 0 {
		fmt.Fprintf(s, "id: %d\n", number)
	}
	fmt.Fprintf(s, "data: %s\n\n", text)
	s.Flush()
}

// unnumbered marks changes for one reader only.
const unnumbered = -1

// events sends changes until the reader leaves: of the overview, and of the selected Cluster.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		http.Error(w, "this connection does not support streaming", http.StatusInternalServerError)
		return
	}
	to := stream{w, flusher}
	after, err := strconv.Atoi(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")))
	if err != nil {
		http.Error(w, "after: not a number", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	reader := s.feed.join(after)
	defer s.feed.leave(reader)
	to.send(unnumbered, []change{}) // An empty message tells the reader that it is connected.

	selected := r.URL.Query().Get("cluster")
	refresh, idle := make(chan struct{}, 1), make(chan struct{}, 1)
	idle <- struct{}{}
	watch := func() { // The selected Cluster may be imported later.
		select {
		case <-idle:
		default:
			return
		}
		go func() {
			s.watchSelected(r.Context(), selected, func() {
				select {
				case refresh <- struct{}{}:
				default:
				}
			})
			idle <- struct{}{}
		}()
	}
	if selected != "" {
		watch()
	}
	alive := time.NewTicker(15 * time.Second)
	defer alive.Stop()
	last := ""
	for {
		select {
		case <-r.Context().Done():
			return
		case updates, open := <-reader:
			if !open {
				to.send(unnumbered, []change{{Op: "reload"}})
				return
			}
			to.send(updates.number, updates.changes)
			if selected != "" && slices.ContainsFunc(updates.changes, func(c change) bool { return c.ID == selected }) {
				watch()
				last = s.sendDetail(r.Context(), selected, last, to)
			}
		case <-refresh:
			wait(r.Context(), calm)
			last = s.sendDetail(r.Context(), selected, last, to)
		case <-alive.C:
			fmt.Fprint(w, ": alive\n\n")
			flusher.Flush()
		}
	}
}

// watchSelected watches the BundleDeployments of a Cluster.
func (s *Server) watchSelected(ctx context.Context, id string, changed func()) {
	node, _, _ := find(view.Build(s.source.Snapshot()), id)
	if node == nil || node.Fact(view.FactFleetNS) == "" {
		return
	}
	s.source.WatchBundles(ctx, node.Fact(view.FactFleetNS), changed)
}

// sendDetail sends the details of a Cluster, if they differ from the last ones.
func (s *Server) sendDetail(ctx context.Context, id, last string, to stream) string {
	objects := s.source.Snapshot()
	text, err := render("detail", s.detailOf(ctx, objects, view.Build(objects), id))
	if err != nil || string(text) == last {
		return last
	}
	to.send(unnumbered, []change{{Op: "set", ID: "detail", HTML: string(text)}})
	return string(text)
}
