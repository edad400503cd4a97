package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/draw"
)

// changes tells waiting requests that the objects have changed.
type changes struct {
	mu sync.Mutex
	// next is closed after the next change; last is the time of the last one.
	next chan struct{}
	last time.Time
}

func (c *changes) tell(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		c.mu.Lock()
		close(c.next)
		c.next, c.last = make(chan struct{}), time.Now()
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

func (c *changes) state() (next <-chan struct{}, last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next, c.last
}

// drawn is the page in one state, which all readers share.
type drawn struct {
	at    time.Time
	graph *view.Graph
	// tree is everything but the details of the selected Cluster, which details has by the Cluster's ID.
	tree    []byte
	details map[string]*part
}

// part is the part of the page that depends on the selected Cluster.
type part struct {
	html []byte
	// number is a hash of the page, without the ages in it.
	number string
	// namespace is the Cluster's namespace in Fleet, if it is known.
	namespace string
}

// draw returns the page in a state that is not older than since, with the details of a Cluster.
func (s *Server) draw(since time.Time, id string) (*drawn, *part) {
	s.drawing.Lock()
	defer s.drawing.Unlock()
	if s.drawn == nil || s.drawn.at.Before(since) {
		s.drawn = s.drawTree()
	}
	drawn := s.drawn
	if found := drawn.details[id]; found != nil {
		return drawn, found
	}
	d := s.detailOf(drawn.graph, id)
	agent := d.Agent
	d.Agent = "" // An age is no change.
	var hash maphash.Hash
	hash.SetSeed(seed)
	_, _ = hash.Write(drawn.tree) // It returns no error.
	_, _ = hash.Write(render("detail", d))
	d.Agent, d.Number = agent, strconv.FormatUint(hash.Sum64(), 10)
	result := &part{html: render("detail", d), number: d.Number}
	if d.Cluster != nil {
		result.namespace = d.Cluster.Fact(view.FactFleetNS)
	}
	if id == "" || d.Cluster != nil { // Anyone may ask for what is missing.
		drawn.details[id] = result
	}
	return drawn, result
}

var seed = maphash.MakeSeed()

func (s *Server) drawTree() *drawn {
	result := &drawn{at: time.Now(), graph: view.Build(s.source.Snapshot()), details: map[string]*part{}}
	result.tree = render("tree", &tree{Graph: result.graph, Title: s.title, Base: s.base, Dense: view.Total(result.graph.Counts) > dense})
	return result
}

// page serves the page, with the details of the selected Cluster. With the number of a page, it serves only the body,
// once that has another number.
func (s *Server) page(w http.ResponseWriter, r *http.Request, selected string) {
	after := r.URL.Query().Get("after")
	since, ctx := time.Now().Add(-rest), r.Context()
	if after != "" {
		if _, err := strconv.ParseUint(after, 10, 64); err != nil {
			http.Error(w, "after: not the number of a page", http.StatusBadRequest)
			return
		}
		select {
		case s.waiting <- struct{}{}:
			defer func() { <-s.waiting }()
		default:
			http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
			return
		}
		var cancel context.CancelFunc
		since = time.Time{}
		ctx, cancel = context.WithTimeout(ctx, longest)
		defer cancel()
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if after == "" { // The browser reads the style while the page is drawn. The only possible error is a closed connection.
		_, _ = w.Write(render("head", &tree{Title: s.title, Base: s.base}))
		_ = http.NewResponseController(w).Flush()
	}
	for r.Context().Err() == nil {
		next, changed := s.changes.state() // This is read before the objects, so that no change in between is missed.
		if changed.After(since) {
			since = changed
		}
		drawn, detail := s.draw(since, selected)
		if read := s.source.Select(detail.namespace); read.After(since) {
			drawn, detail = s.draw(read, selected)
		}
		switch {
		case detail.number != after:
			_, _ = w.Write(drawn.tree)
			_, _ = w.Write(detail.html)
			return
		case ctx.Err() != nil:
			w.WriteHeader(http.StatusNoContent)
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			since = time.Now().Add(-rest)
		}
	}
}

// tree is the data of the template for a graph.
type tree struct {
	*view.Graph
	Title, Base string
	// Dense means that there are too many cells to show names in them.
	Dense bool
	// tabbed means that the cell that the tab key reaches is written.
	tabbed bool
}

const (
	// dense is the number of Clusters from which on cells have no room for names.
	dense = 300
	// together is the maximum number of cells in a list: a browser lays out only visible lists, and a screen reader can
	// leave a short one.
	together = 250
)

// Lists returns the Clusters of a namespace, by name: a cell stays in its place when its state changes.
func (*tree) Lists(namespace *view.Node) [][]*view.Node {
	nodes := slices.Clone(namespace.Children)
	slices.SortFunc(nodes, func(a, b *view.Node) int { return strings.Compare(a.ID, b.ID) })
	return slices.Collect(slices.Chunk(nodes, together))
}

// Cell writes a Cluster. Only cells are written without a template, because ten thousand of them take most of the time
// until the page is complete.
func (t *tree) Cell(node *view.Node) template.HTML {
	text := template.HTMLEscapeString
	id, name, reason := text(node.ID), text(node.Name), text(node.Reason)
	tab := "-1"
	if !t.tabbed {
		t.tabbed, tab = true, "0"
	}
	inside := []string{`"><span class="sign" aria-hidden="true">`, node.State.Sign(), `</span><span class="name">`, name, `</span><span class="state">`, reason, `</span></a></li>`}
	if t.Dense {
		inside = []string{`" aria-label="`, name, ` `, reason, `">`, node.State.Sign(), `</a></li>`}
	}
	return template.HTML(strings.Join(append([]string{ //nolint:gosec // All that others wrote is escaped.
		`<li id="`, id, `"><a class="cell `, text(string(node.State)), `" href="`, text((&url.URL{Path: t.Base + node.ID}).EscapedPath()), `" tabindex="`, tab,
		`" title="`, text(node.Namespace), `/`, name, `: `, reason,
	}, inside...), ""))
}

var pages = template.Must(template.New("").Funcs(template.FuncMap{"counts": draw.Counts, "bar": bar, "trouble": trouble}).ParseFS(assets, "assets/*.html"))

// render fills a template. Its errors would be mistakes in the templates, which tests show.
func render(name string, what any) []byte {
	var text bytes.Buffer
	if err := pages.ExecuteTemplate(&text, name, what); err != nil {
		panic(err)
	}
	return text.Bytes()
}

func trouble(node *view.Node) string {
	if node.State == view.Ready {
		return ""
	}
	return node.Reason + ": " + node.Message
}

// segment is a part of a bar, for the Clusters in one state.
type segment struct {
	State view.State
	// X and Width are in thousandths of the bar.
	X, Width int
}

func bar(counts map[view.State]int) (segments []segment) {
	total, seen := view.Total(counts), 0
	for _, state := range view.States {
		if counts[state] > 0 {
			from := seen * 1000 / total
			seen += counts[state]
			segments = append(segments, segment{state, from, seen*1000/total - from})
		}
	}
	return segments
}

// detail has the details of the selected Cluster.
type detail struct {
	Base, Key, ID, Agent, Number string
	// Cluster has its Bundles as children; nil if there is no such Cluster.
	Cluster, Namespace, Class *view.Node
}

func (s *Server) detailOf(graph *view.Graph, id string) *detail {
	result := &detail{Base: s.base, ID: id, Key: message.Text(id)}
	result.Cluster, result.Namespace, result.Class = find(graph, id)
	if result.Cluster != nil {
		result.Key, result.Agent = result.Cluster.Key(), result.Cluster.Fact(view.FactAgent)
	}
	return result
}

// find returns a Cluster's node and its parents.
func find(graph *view.Graph, id string) (cluster, namespace, root *view.Node) {
	for _, root := range graph.Roots {
		for _, namespace := range root.Children {
			for _, node := range namespace.Children {
				if node.ID == id {
					return node, namespace, root
				}
			}
		}
	}
	return nil, nil, nil
}

// Command is the command that shows the same on a terminal.
func (d *detail) Command() string { return "kubectl muster tree " + d.Key + " -o wide" }

// Trace is the command that explains a Bundle.
func (d *detail) Trace(bundle *view.Node) string {
	name := bundle.Key()
	if bundle.Kind == view.HelmChartProxy {
		name = "helmchartproxy/" + name
	}
	return fmt.Sprintf("kubectl muster trace %s %s", name, d.Key)
}

// downloads are the files for download, with their types.
var downloads = map[string]string{
	"view.mmd": "text/plain; charset=utf-8", "view.json": "application/json",
}

func (s *Server) download(w http.ResponseWriter, name string) {
	drawn, _ := s.draw(time.Now().Add(-rest), "")
	isDiagram := name == "view.mmd"
	graph, err := drawn.graph.Choose(view.Choice{Fold: isDiagram})
	var text bytes.Buffer
	switch {
	case err != nil:
	case isDiagram:
		err = draw.Mermaid(&text, graph)
	default:
		err = json.NewEncoder(&text).Encode(draw.DataOf(graph))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", downloads[name])
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = w.Write(text.Bytes())
}
