package draw

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-fleet/muster/internal/picture"
	"github.com/muster-fleet/muster/internal/picture/trace"
)

// complete returns a picture in which what is missing, and why, is a node, too.
func complete(graph *picture.Graph) *picture.Graph {
	result := &picture.Graph{Roots: slices.Clone(graph.Roots), Counts: graph.Counts}
	add := func(text string, state picture.State) {
		result.Roots = append(result.Roots, &picture.Node{ID: fmt.Sprintf("note/%d", len(result.Roots)), Name: text, State: state})
	}
	if len(graph.Roots) == 0 {
		add(nothing(graph), picture.Held)
	}
	for _, note := range graph.Notes {
		add(note, picture.Unknown)
	}
	return result
}

// label is what a node is called in a diagram: its sign, its name, and what is wrong.
func label(node *picture.Node) []string {
	var lines []string
	switch node.Kind {
	case picture.ClusterClass:
		lines = []string{"ClusterClass " + node.Key(), Counts(node.Counts), trouble(node)}
	case picture.NoClass, picture.OnlyInFleet:
		lines = []string{node.Name, Counts(node.Counts), trouble(node)}
	case picture.Namespace:
		lines = []string{"namespace " + node.Name}
		if group := node.Fact(picture.FactGroup); group != "" {
			lines = append(lines, "group "+group)
		}
		lines = append(lines, trouble(node))
	case picture.Folded:
		lines = []string{node.State.Sign() + " " + node.Name}
	default:
		lines = []string{node.State.Sign() + " " + nameOf(node), node.Reason}
	}
	var result []string
	for _, one := range lines {
		if one != "" {
			result = append(result, picture.Text(one))
		}
	}
	return result
}

// trouble says what is wrong with a node that has no sign before its name.
func trouble(node *picture.Node) string {
	if node.State == picture.Ready || node.Reason == "" {
		return ""
	}
	return node.State.Sign() + " " + node.Reason
}

// edgeLabel says by what a node is reached.
func edgeLabel(node *picture.Node) string {
	if mapping := node.Fact(picture.FactMapping); mapping != "" && node.Kind == picture.Namespace {
		return "mapping " + picture.Text(mapping)
	}
	return ""
}

var fills = map[picture.State]string{
	picture.Ready: "#d9f2d9", picture.Waiting: "#dbe9ff", picture.Problem: "#ffd9d9", picture.Unknown: "#fff2cc", picture.Held: "#eeeeee",
}

// Mermaid writes a picture for Mermaid, which Markdown on many sites shows.
func Mermaid(to io.Writer, graph *picture.Graph) error {
	out := &strings.Builder{}
	out.WriteString("flowchart LR\n")
	ids := map[*picture.Node]string{}
	complete(graph).Walk(func(node, parent *picture.Node) {
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
	for _, state := range picture.States {
		fmt.Fprintf(out, "  classDef %s fill:%s,stroke:#555,color:#111\n", strings.ToLower(string(state)), fills[state])
	}
	_, err := io.WriteString(to, out.String())
	return err
}

// mermaidText writes text of others so that nothing in it is markup: Mermaid knows
// characters by their numbers.
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

var resultColors = map[trace.Result]picture.State{
	trace.Passed: picture.Ready, trace.Failed: picture.Problem, trace.Unknown: picture.Unknown, trace.Note: picture.Held,
}

// Trace writes a trace for people.
func Trace(to io.Writer, traced *trace.Trace, style Style) error {
	out := &strings.Builder{}
	row := func(text string) { out.WriteString(fit(text, style.Width) + "\n") }
	row(fmt.Sprintf("Bundle %s on Cluster %s", traced.Bundle, traced.Cluster))
	name := 0
	for _, step := range traced.Steps {
		name = max(name, len(step.Name))
	}
	for _, step := range traced.Steps {
		sign := resultSigns[step.Result]
		text := fit(fmt.Sprintf("%s %s  %s", sign, pad(step.Name, name), step.Says), style.Width)
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

// mostNames is how many Clusters of a group a terminal shows.
const mostNames = 5

// Survey writes a survey for people.
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

// Chain makes a picture of a trace, each step below the one before.
func Chain(traced *trace.Trace) *picture.Graph {
	root := &picture.Node{ID: "bundle", Name: "Bundle " + traced.Bundle, State: picture.Ready}
	last := root
	add := func(node *picture.Node) {
		last.Children = []*picture.Node{node}
		last = node
	}
	for _, step := range traced.Steps {
		add(&picture.Node{ID: "step/" + step.Name, Name: step.Name, State: resultColors[step.Result], Reason: picture.Cut(step.Says, 200)})
	}
	end := picture.Ready
	switch traced.Verdict {
	case trace.NotTargeted, trace.Blocked:
		end = picture.Problem
	case trace.Undecided:
		end = picture.Unknown
	}
	add(&picture.Node{ID: "cluster", Name: "Cluster " + traced.Cluster, State: end, Reason: traced.Conclusion})
	return &picture.Graph{Roots: []*picture.Node{root}}
}
