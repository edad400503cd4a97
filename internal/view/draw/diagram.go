package draw

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/trace"
)

// complete returns a graph in which each note is a node, too.
func complete(graph *view.Graph) *view.Graph {
	result := &view.Graph{Roots: slices.Clone(graph.Roots), Counts: graph.Counts}
	add := func(text string, state view.State) {
		result.Roots = append(result.Roots, &view.Node{ID: fmt.Sprintf("note/%d", len(result.Roots)), Name: text, State: state})
	}
	if len(graph.Roots) == 0 {
		add(nothing(graph), view.Inactive)
	}
	for _, note := range graph.Notes {
		add(note, view.Unknown)
	}
	return result
}

// label returns the lines of a node in a diagram: its sign, its name, and the problem.
func label(node *view.Node) []string {
	var lines []string
	switch node.Kind {
	case view.ClusterClass:
		lines = []string{"ClusterClass " + node.Key(), Counts(node.Counts), trouble(node)}
	case view.NoClass, view.OnlyInFleet:
		lines = []string{node.Name, Counts(node.Counts), trouble(node)}
	case view.Namespace:
		lines = []string{"namespace " + node.Name}
		if group := node.Fact(view.FactGroup); group != "" {
			lines = append(lines, "group "+group)
		}
		lines = append(lines, trouble(node))
	case view.Folded:
		lines = []string{node.State.Sign() + " " + node.Name}
	default:
		lines = []string{node.State.Sign() + " " + nameOf(node), node.Reason}
	}
	var result []string
	for _, one := range lines {
		if one != "" {
			result = append(result, message.Text(one))
		}
	}
	return result
}

// trouble returns the problem of a node that has no sign before its name.
func trouble(node *view.Node) string {
	if node.State == view.Ready || node.Reason == "" {
		return ""
	}
	return node.State.Sign() + " " + node.Reason
}

// edgeLabel names the mapping that leads to a node.
func edgeLabel(node *view.Node) string {
	if mapping := node.Fact(view.FactMapping); mapping != "" && node.Kind == view.Namespace {
		return "mapping " + message.Text(mapping)
	}
	return ""
}

var fills = map[view.State]string{
	view.Ready: "#d9f2d9", view.Waiting: "#dbe9ff", view.Problem: "#ffd9d9", view.Unknown: "#fff2cc", view.Inactive: "#eeeeee",
}

// Mermaid writes a graph as a Mermaid flowchart.
func Mermaid(to io.Writer, graph *view.Graph) error {
	out := &strings.Builder{}
	out.WriteString("flowchart LR\n")
	ids := map[*view.Node]string{}
	complete(graph).Walk(func(node, parent *view.Node) {
		ids[node] = fmt.Sprintf("n%d", len(ids))
		fmt.Fprintf(out, "  %s[\"%s\"]:::%s\n", ids[node], mermaidText(label(node)...), strings.ToLower(string(node.State)))
		if parent == nil {
			return
		}
		arrow := "-->"
		if text := edgeLabel(node); text != "" {
			arrow = fmt.Sprintf("-->|\"%s\"|", mermaidText(text))
		}
		fmt.Fprintf(out, "  %s %s %s\n", ids[parent], arrow, ids[node])
	})
	for _, state := range view.States {
		fmt.Fprintf(out, "  classDef %s fill:%s,stroke:#555,color:#111\n", strings.ToLower(string(state)), fills[state])
	}
	_, err := io.WriteString(to, out.String())
	return err
}

// mermaidText escapes a text from outside, so that it contains no markup: Mermaid accepts characters by
// number.
func mermaidText(lines ...string) string {
	var shown []string
	for _, text := range lines {
		var out strings.Builder
		for _, r := range text {
			if strings.ContainsRune("\"#;<>&`[](){}|\\", r) {
				fmt.Fprintf(&out, "#%d;", r)
			} else {
				out.WriteRune(r)
			}
		}
		shown = append(shown, out.String())
	}
	return strings.Join(shown, "<br/>")
}

var resultSigns = map[trace.Result]string{trace.Passed: "✓", trace.Failed: "✗", trace.Unknown: "?", trace.Note: "·"}

var resultColors = map[trace.Result]view.State{
	trace.Passed: view.Ready, trace.Failed: view.Problem, trace.Unknown: view.Unknown, trace.Note: view.Inactive,
}

// Trace writes a trace as text.
func Trace(to io.Writer, traced *trace.Trace, style Style) error {
	out := &strings.Builder{}
	row := func(text string) { out.WriteString(fit(text, style.Width) + "\n") }
	row(fmt.Sprintf("%s on Cluster %s", titleOf(traced), traced.Cluster))
	name := 0
	for _, step := range traced.Steps {
		name = max(name, len(step.Name))
	}
	for _, step := range traced.Steps {
		sign := resultSigns[step.Result]
		text := fit(fmt.Sprintf("%s %s  %s", sign, pad(step.Name, name), step.Message), style.Width)
		out.WriteString(paint(text, line{sign: sign, state: resultColors[step.Result]}, style) + "\n")
		for _, detail := range step.Details {
			row(strings.Repeat(" ", name+4) + "- " + detail)
		}
	}
	row("→ " + traced.Conclusion)
	if traced.Do != "" {
		row("  " + traced.Do)
	}
	_, err := io.WriteString(to, out.String())
	return err
}

func titleOf(traced *trace.Trace) string {
	if traced.HelmChartProxy != "" {
		return "HelmChartProxy " + traced.HelmChartProxy
	}
	return "Bundle " + traced.Bundle
}

// mostNames is how many Clusters of a group a terminal shows.
const mostNames = 5

// Survey writes a survey as text.
func Survey(to io.Writer, survey *trace.Survey, style Style) error {
	out := &strings.Builder{}
	out.WriteString(fit(fmt.Sprintf("Bundle %s on %s", survey.Bundle, number(strconv.Itoa(len(survey.Clusters)), "Cluster")), style.Width) + "\n")
	var lines []line
	for _, group := range survey.Groups() {
		names := group.Clusters
		if more := len(names) - mostNames; more > 0 && !style.Wide {
			names = append(slices.Clone(names[:mostNames]), fmt.Sprintf("and %d more", more))
		}
		lines = append(lines, line{sign: group.State.Sign(), state: group.State, name: strconv.Itoa(len(group.Clusters)), columns: []string{group.Says, strings.Join(names, ", ")}})
	}
	write(out, lines, style)
	fmt.Fprintf(out, "→ steps for one of them: kubectl muster trace %s CLUSTER\n", survey.Bundle)
	_, err := io.WriteString(to, out.String())
	return err
}

// Chain turns a trace into a graph, each step below the previous one.
func Chain(traced *trace.Trace) *view.Graph {
	root := &view.Node{ID: "bundle", Name: titleOf(traced), State: view.Ready}
	last := root
	add := func(node *view.Node) {
		last.Children = []*view.Node{node}
		last = node
	}
	for _, step := range traced.Steps {
		add(&view.Node{ID: "step/" + step.Name, Name: step.Name, State: resultColors[step.Result], Reason: message.Short(step.Message, 200)})
	}
	end := view.Ready
	switch traced.Verdict {
	case trace.NotTargeted, trace.Blocked:
		end = view.Problem
	case trace.Undecided:
		end = view.Unknown
	}
	add(&view.Node{ID: "cluster", Name: "Cluster " + traced.Cluster, State: end, Reason: traced.Conclusion})
	return &view.Graph{Roots: []*view.Node{root}}
}
