package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/draw"
)

// overview is the data for the templates.
type overview struct {
	Title, Base string
	// Number is the number of the last update that the page includes.
	Number  int
	Summary string
	Notes   []string
	Classes []class
	// Dense means that there are too many cells to show names in them.
	Dense    bool
	Selected string
	Detail   *detail
	// pause lets the browser paint before more is written; nil if little follows.
	pause func()
}

// Pause is called by the template after each list of cells.
func (v *overview) Pause() string {
	if v.pause != nil {
		v.pause()
		v.pause = nil
	}
	return ""
}

type class struct {
	ID, Title, Counts, Trouble string
	Bar                        []part
	Namespaces                 []namespace
}

// part is a segment of a bar, for the Clusters in one state.
type part struct {
	State view.State
	// X and Width are in thousandths of the bar.
	X, Width int
}

type namespace struct {
	ID, Name, Group, Mapping, Trouble, Sign string
	Lists                                   []list
}

// list is a list of cells. A namespace has several, because a browser lays out only visible lists, and a
// screen reader can leave a short one.
type list struct {
	Label string
	Cells []cell
}

const (
	// dense is the number of Clusters from which on cells have no room for names.
	dense = 300
	// longest is the maximum number of cells in a list when the page is loaded.
	longest = 250
	// breath is the pause after the first of many lists: a browser does not paint while it still has data to
	// read.
	breath = 30 * time.Millisecond
)

func (s *Server) overviewOf(graph *view.Graph) *overview {
	v := &overview{Title: s.title, Base: s.base, Summary: draw.Counts(graph.Counts), Notes: graph.Notes, Dense: view.Total(graph.Counts) > dense}
	first := true
	for _, root := range graph.Roots {
		c := class{ID: root.ID, Title: root.Name, Counts: draw.Counts(root.Counts), Bar: bar(root.Counts), Trouble: trouble(root)}
		if root.Kind == view.ClusterClass {
			c.Title = root.Key()
		}
		for _, node := range root.Children {
			p := namespace{ID: node.ID, Name: node.Name, Group: node.Fact(view.FactGroup), Mapping: node.Fact(view.FactMapping), Trouble: trouble(node), Sign: node.State.Sign()}
			for i, cluster := range byName(node.Children) {
				if i%longest == 0 {
					p.Lists = append(p.Lists, list{Label: listLabel(node, cluster, i)})
				}
				last := &p.Lists[len(p.Lists)-1]
				last.Cells = append(last.Cells, cell{
					ID: cluster.ID, Base: s.base, Name: cluster.Name, Namespace: cluster.Namespace,
					Sign: cluster.State.Sign(), State: cluster.State, Reason: cluster.Reason, First: first, Dense: v.Dense,
				})
				first = false
			}
			c.Namespaces = append(c.Namespaces, p)
		}
		v.Classes = append(v.Classes, c)
	}
	return v
}

func listLabel(namespace, first *view.Node, at int) string {
	if at == 0 {
		return "Clusters in " + namespace.Name
	}
	return fmt.Sprintf("Clusters in %s from %s on", namespace.Name, first.Name)
}

// byName sorts nodes by ID, so that a cell stays in its place when its state changes.
func byName(nodes []*view.Node) []*view.Node {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *view.Node) int { return strings.Compare(a.ID, b.ID) })
	return nodes
}

func trouble(node *view.Node) string {
	if node.State == view.Ready {
		return ""
	}
	return node.Reason + ": " + node.Message
}

func bar(counts map[view.State]int) []part {
	total := view.Total(counts)
	var parts []part
	seen := 0
	for _, state := range view.States {
		if counts[state] == 0 {
			continue
		}
		from := seen * 1000 / total
		seen += counts[state]
		parts = append(parts, part{state, from, seen*1000/total - from})
	}
	return parts
}

// detail has the details of one Cluster.
type detail struct {
	Base, Key, ID    string
	Cluster          *view.Node
	Class, Namespace *view.Node
	Bundles          []*view.Node
	Notes            []string
	// Missing means that there is no such Cluster.
	Missing bool
}

// detailOf reads the details of a Cluster, with its Bundles.
func (s *Server) detailOf(ctx context.Context, objects *view.Objects, graph *view.Graph, id string) *detail {
	node, _, _ := find(graph, id)
	if node == nil {
		return &detail{Base: s.base, ID: id, Key: message.Text(id), Missing: true}
	}
	result := &detail{Base: s.base, ID: id, Key: node.Key()}
	if namespace := node.Fact(view.FactFleetNS); namespace != "" {
		if err := s.source.Bundles(ctx, namespace, objects); err != nil {
			result.Notes = append(result.Notes, message.Text(err.Error()))
		}
		graph = view.Build(objects)
		if why := objects.Unread[view.Deployment]; why != "" {
			result.Notes = append(result.Notes, "Bundles: "+message.Text(why))
		}
	}
	if result.Cluster, result.Namespace, result.Class = find(graph, id); result.Cluster == nil {
		result.Missing = true
		return result
	}
	result.Bundles = result.Cluster.Children
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
	return fmt.Sprintf("kubectl muster trace %s %s", bundle.Key(), d.Key)
}

func (s *Server) page(w http.ResponseWriter, r *http.Request, selected string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	// The page is sent in pieces: the browser fetches the style while the server builds the graph, and paints the
	// top of the page before it has all of ten thousand cells. The only possible error is a closed connection.
	_ = pages.ExecuteTemplate(w, "start", &overview{Title: s.title, Base: s.base})
	_ = http.NewResponseController(w).Flush()
	number := s.feed.now() // The number is read before the objects, so that changes in between are sent again.
	objects := s.source.Snapshot()
	graph := view.Build(objects)
	v := s.overviewOf(graph)
	v.Number = number
	if v.Dense {
		v.pause = func() {
			_ = http.NewResponseController(w).Flush()
			wait(r.Context(), breath)
		}
	}
	s.once.Do(func() { s.first <- v })
	if page, err := shownOf(v); err == nil {
		s.given.add(page)
	}
	if selected != "" {
		v.Selected, v.Detail = selected, s.detailOf(r.Context(), objects, graph, selected)
	}
	_ = pages.ExecuteTemplate(w, "page", v)
}

// part serves the details that are shown next to the overview.
func (s *Server) part(w http.ResponseWriter, r *http.Request, id string) {
	objects := s.source.Snapshot()
	s.write(w, "detail", s.detailOf(r.Context(), objects, view.Build(objects), id))
}

func (s *Server) write(w http.ResponseWriter, name string, what any) {
	text, err := render(name, what)
	if err != nil {
		http.Error(w, "the page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text) //nolint:gosec // html/template has escaped it. Who does not read to the end has gone.
}

func render(name string, what any) ([]byte, error) {
	var text bytes.Buffer
	err := pages.ExecuteTemplate(&text, name, what)
	return text.Bytes(), err
}

// downloads are the files for download, with their types.
var downloads = map[string]string{
	"view.mmd": "text/plain; charset=utf-8", "view.json": "application/json",
}

func (s *Server) download(w http.ResponseWriter, name string) {
	isDiagram := name == "view.mmd"
	graph, err := view.Build(s.source.Snapshot()).Choose(view.Choice{Fold: isDiagram})
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

// cell is a Cluster in the overview.
type cell struct {
	ID, Base, Name, Namespace string
	Sign                      string
	State                     view.State
	Reason                    string
	// First marks the cell that the tab key reaches.
	First bool
	// Dense cells have no room for the name; only screen readers get it.
	Dense bool
}

// HTML writes a cell. Only cells are written without a template, because ten thousand of them take most
// of the time until the page is complete.
func (c cell) HTML() template.HTML {
	text := func(text string) string { return template.HTMLEscapeString(text) }
	id, name, reason := text(c.ID), text(c.Name), text(c.Reason)
	address := text((&url.URL{Path: c.Base + c.ID}).EscapedPath())
	tab := "-1"
	if c.First {
		tab = "0"
	}
	var out strings.Builder
	out.Grow(512)
	for _, part := range []string{
		`<li id="`, id, `"><a class="cell `, text(string(c.State)), `" href="`, address, `" tabindex="`, tab,
		`" title="`, text(c.Namespace), `/`, name, `: `, reason,
	} {
		out.WriteString(part)
	}
	inside := []string{`"><span class="sign" aria-hidden="true">`, c.Sign, `</span><span class="name">`, name, `</span><span class="state">`, reason, `</span></a></li>`}
	if c.Dense {
		inside = []string{`" aria-label="`, name, ` `, reason, `">`, c.Sign, `</a></li>`}
	}
	for _, part := range inside {
		out.WriteString(part)
	}
	return template.HTML(out.String()) //nolint:gosec // All that others wrote is escaped above.
}
