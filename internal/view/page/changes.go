package page

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/view"
)

const (
	// calm is how long the server collects changes before it sends them.
	calm = 200 * time.Millisecond
	// tick is how often the graph is rebuilt without a change, because an agent that falls silent causes no event.
	tick = 10 * time.Second
)

// shown is the overview in the state that readers have.
type shown struct {
	// parts are the texts of everything but cells, by ID.
	parts map[string]string
	// cells are the Clusters' cells and their places. They are not kept as text: of ten thousand, few
	// change at once.
	cells map[string]placed
	// lists are the cells of each namespace; order has the classes and namespaces of the page.
	lists map[string][]string
	order []string
	dense bool
}

// placed is a cell in the list of a namespace.
type placed struct {
	cell
	list string
}

// given has the pages that were served since the last comparison. A page shows the state at the moment when it was
// served, which no comparison may ever see. If a change is reverted before the next comparison, it gets no number,
// but the page must still get the reversal.
type given struct {
	mu    sync.Mutex
	pages []*shown
}

func (g *given) add(page *shown) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pages = append(g.pages, page)
}

func (g *given) take() []*shown {
	g.mu.Lock()
	defer g.mu.Unlock()
	pages := g.pages
	g.pages = nil
	return pages
}

// keep rebuilds the graph after changes, and sends readers the differences. It starts from the page of
// the first reader.
func (s *Server) keep(ctx context.Context) {
	var last *shown
	select {
	case <-ctx.Done():
		return
	case v := <-s.first:
		last, _ = shownOf(v) // Otherwise the first change would make the page reload.
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-s.source.Changed():
			wait(ctx, calm)
		case <-ticker.C:
		}
		begin := time.Now()
		last = s.compare(last)
		// This limits the load of ten thousand agents that report constantly to half of a processor.
		wait(ctx, time.Since(begin)-calm)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// compare sends readers the differences from the last state, and from pages served since, and returns
// the current state.
func (s *Server) compare(last *shown) *shown {
	pages := s.given.take() // The pages are taken before the objects are read, so that a page that is served in between is compared next time.
	current, err := shownOf(s.overviewOf(view.Build(s.source.Snapshot())))
	if err != nil || last == nil {
		s.feed.publish([]change{{Op: "reload"}})
		return current
	}
	var changes []change
	isSent := map[change]bool{}
	for _, before := range append(pages, last) {
		for _, change := range differences(before, current) {
			if !isSent[change] {
				isSent[change] = true
				changes = append(changes, change)
			}
		}
	}
	s.feed.publish(changes)
	return current
}

// shownOf renders everything but the cells.
func shownOf(v *overview) (*shown, error) {
	result := &shown{parts: map[string]string{}, cells: map[string]placed{}, lists: map[string][]string{}, dense: v.Dense}
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
		result.order = append(result.order, class.ID)
		for _, namespace := range class.Namespaces {
			result.order = append(result.order, namespace.ID)
			if err := put("head/"+namespace.ID, "head", namespace); err != nil {
				return nil, err
			}
			for _, list := range namespace.Lists {
				for _, cell := range list.Cells {
					cell.First = false
					result.cells[cell.ID] = placed{cell, namespace.ID}
					result.lists[namespace.ID] = append(result.lists[namespace.ID], cell.ID)
				}
			}
		}
	}
	return result, nil
}

// differences returns the changes that turn one page into the other.
func differences(old, current *shown) []change {
	if old.dense != current.dense || !slices.Equal(old.order, current.order) {
		return []change{{Op: "reload"}} // A class or namespace appeared or disappeared, which is rare.
	}
	var changes []change
	for _, id := range slices.Sorted(maps.Keys(current.parts)) {
		if text := current.parts[id]; text != old.parts[id] {
			changes = append(changes, change{Op: "set", ID: id, HTML: text})
		}
	}
	for id, before := range old.cells {
		if current.cells[id].list != before.list {
			changes = append(changes, change{Op: "remove", ID: id})
		}
	}
	for _, list := range current.order {
		after := ""
		for _, id := range current.lists[list] {
			now, before := current.cells[id], old.cells[id]
			if now != before {
				one := change{Op: "set", ID: id, HTML: string(now.HTML())}
				if now.list != before.list {
					one.Op, one.List, one.After = "add", list, after
				}
				changes = append(changes, one)
			}
			after = id
		}
	}
	return changes
}
