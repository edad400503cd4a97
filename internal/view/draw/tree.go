// Package draw writes graphs and traces: as trees for terminals, as JSON and YAML for programs, as
// Mermaid for documents. It decides nothing.
package draw

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/muster-fleet/muster/internal/view"
)

// Style says how to write a tree.
type Style struct {
	// Color colors the signs; the signs stay.
	Color bool
	// Width is how many columns the terminal has; 0 means no limit.
	Width int
	// Wide adds facts that do not fit a terminal.
	Wide bool
}

// line is a row of a tree: the left part with the branches, and the columns.
type line struct {
	branch, sign, name string
	state              view.State
	columns            []string
	// free is the text of a row without columns.
	free string
}

// Tree writes a graph as a tree.
func Tree(to io.Writer, graph *view.Graph, style Style) error {
	var lines []line
	for _, root := range graph.Roots {
		lines = append(lines, rootLine(root, style))
		lines = append(lines, below(root, "", style)...)
	}
	out := &strings.Builder{}
	write(out, lines, style)
	if len(lines) == 0 {
		out.WriteString(nothing(graph) + "\n")
	}
	for _, warning := range graph.Warnings {
		out.WriteString(warningText(warning))
	}
	for _, note := range graph.Notes {
		out.WriteString(fit("note: "+note, style.Width) + "\n")
	}
	_, err := io.WriteString(to, out.String())
	return err
}

// warningText is never cut to a width, because the advice is at its end.
func warningText(warning *view.Node) string {
	source := warning.Fact(view.FactSource)
	if source != "" {
		source = " (" + source + ")"
	}
	return fmt.Sprintf("warning: Bundle %s%s: %s: %s\n  → %s\n", warning.Key(), source, warning.Reason, warning.Message, warning.Do)
}

// nothing is the text instead of a tree without rows.
func nothing(graph *view.Graph) string {
	if why := graph.Unknown(); why != "" && view.Total(graph.Counts) == 0 {
		return "it is unknown which Clusters there are: " + why
	}
	return "nothing to report: " + Counts(graph.Counts)
}

// Counts writes how many Clusters are in each state, worst first.
func Counts(counts map[view.State]int) string {
	var parts []string
	for _, state := range view.States {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	if len(parts) == 0 {
		return "no clusters"
	}
	return strings.Join(parts, ", ")
}

func rootLine(root *view.Node, style Style) line {
	result := line{name: root.Name}
	if root.Kind == view.Bundle {
		return bundleLine(root, style)
	}
	if root.Kind == view.ClusterClass {
		result.name = "ClusterClass " + root.Key()
	}
	result.free = "no clusters"
	if total := view.Total(root.Counts); total > 0 {
		result.free = fmt.Sprintf("%s in %s   %s", number(strconv.Itoa(total), "cluster"), number(root.Fact(view.FactNamespaces), "namespace"), Counts(root.Counts))
	}
	result.mark(root)
	return result
}

// bundleLine is the row of a Bundle that no Cluster contains.
func bundleLine(root *view.Node, style Style) line {
	free := root.Reason + ": " + root.Message
	if source := root.Fact(view.FactSource); source != "" {
		free = "(" + source + ")   " + free
	}
	if style.Wide {
		free = join(free, view.TurnOf(root.Turn, root.Do))
	}
	return line{sign: root.State.Sign(), state: root.State, name: "Bundle " + root.Key(), free: free}
}

// mark adds the problem to a row without columns.
func (l *line) mark(node *view.Node) {
	if node.State == view.Ready {
		return
	}
	l.sign, l.state = node.State.Sign(), node.State
	l.free = strings.TrimSpace(fmt.Sprintf("%s   %s: %s", l.free, node.Reason, node.Message))
}

func number(count, what string) string {
	if count == "1" {
		return "1 " + what
	}
	return count + " " + what + "s"
}

// below returns the rows below a node.
func below(node *view.Node, indent string, style Style) []line {
	var lines []line
	for i, child := range node.Children {
		branch, more := "├─ ", "│  "
		if i == len(node.Children)-1 {
			branch, more = "└─ ", "   "
		}
		current := lineOf(child, style)
		current.branch = indent + branch
		lines = append(lines, current)
		lines = append(lines, below(child, indent+more, style)...)
	}
	return lines
}

func lineOf(node *view.Node, style Style) line {
	switch node.Kind {
	case view.Namespace:
		result := line{name: node.Name}
		if group := node.Fact(view.FactGroup); group != "" {
			result.free = "group " + group
		}
		if mapping := node.Fact(view.FactMapping); mapping != "" {
			result.free += "   mapping " + mapping
		}
		result.mark(node)
		return result
	case view.Folded:
		return line{sign: node.State.Sign(), state: node.State, name: node.Name}
	case view.Resource:
		return line{sign: node.State.Sign(), state: node.State, name: node.Key(), free: node.Message}
	default:
		return line{sign: node.State.Sign(), state: node.State, name: nameOf(node), columns: columns(node, style)}
	}
}

// nameOf returns the name in a row. A Cluster's has no namespace, which is in the row above; a Bundle's has one.
func nameOf(node *view.Node) string {
	if isBundle(node) {
		return node.Title()
	}
	return node.Name
}

func isBundle(node *view.Node) bool {
	return node.Kind == view.Bundle || node.Kind == view.HelmChartProxy
}

func columns(node *view.Node, style Style) []string {
	agent, bundles, resources := node.Fact(view.FactAgent), node.Fact(view.FactBundles), node.Fact(view.FactResources)
	if agent != "" {
		agent = "agent " + agent
	}
	if bundles != "" {
		bundles = "bundles " + bundles
	}
	if isBundle(node) {
		agent = node.Fact(view.FactSource)
	}
	if resources != "" {
		resources = "resources " + resources
	}
	if !style.Wide {
		if isBundle(node) {
			bundles = resources
		}
		return []string{node.Reason, agent, bundles, node.Message}
	}
	turn := ""
	if node.Turn != "" {
		turn = "needs action from " + node.Turn
	}
	fleet := node.Fact(view.FactFleet)
	if fleet == node.Name {
		fleet = ""
	}
	if fleet != "" {
		fleet = "in Fleet as " + fleet
	}
	return []string{node.Reason, since(node), agent, bundles, resources, fleet, turn, join(node.Message, node.Do)}
}

func since(node *view.Node) string {
	if since := node.Fact(view.FactSince); since != "" {
		return "since " + since
	}
	return ""
}

func join(message, do string) string {
	switch {
	case message == "" || do == "":
		return message + do
	default:
		return message + " → " + do
	}
}

// write writes rows with aligned columns.
func write(out *strings.Builder, lines []line, style Style) {
	left, widths := measure(lines)
	for _, l := range lines {
		out.WriteString(paint(fit(strings.TrimRight(l.text(left, widths), " "), style.Width), l, style) + "\n")
	}
}

// measure returns the width of the left part, and of each column but the last.
func measure(lines []line) (left int, widths []int) {
	for _, l := range lines {
		if l.columns == nil {
			continue
		}
		left = max(left, l.left())
		for i, column := range l.columns[:len(l.columns)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(column))
		}
	}
	return left, widths
}

// text returns a row with columns of these widths. It drops a column that is empty in all rows.
func (l line) text(left int, widths []int) string {
	text := l.branch
	if l.sign != "" {
		text += l.sign + " "
	}
	text += l.name
	switch {
	case l.columns == nil && l.free != "":
		return text + "   " + l.free
	case l.columns == nil:
		return text
	}
	text = pad(text, left)
	for i, column := range l.columns {
		switch {
		case i >= len(widths):
			text += "  " + column
		case widths[i] > 0:
			text += "  " + pad(column, widths[i])
		}
	}
	return text
}

func (l line) left() int {
	width := utf8.RuneCountInString(l.branch) + utf8.RuneCountInString(l.name)
	if l.sign != "" {
		width += 2
	}
	return width
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// fit cuts a row to a width.
func fit(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}

var colors = map[view.State]string{
	view.Ready: "32", view.Waiting: "36", view.Problem: "31;1", view.Unknown: "33", view.Inactive: "2",
}

// paint colors the sign of a row.
func paint(text string, l line, style Style) string {
	if !style.Color || l.sign == "" {
		return text
	}
	before, after, found := strings.Cut(text, l.sign)
	if !found {
		return text
	}
	return before + "\x1b[" + colors[l.state] + "m" + l.sign + "\x1b[0m" + after
}

// Data is a graph for programs.
type Data struct {
	Counts map[view.State]int `json:"counts"`
	Notes  []string           `json:"notes"`
	// Warnings come from `check` only.
	Warnings []*view.Node `json:"warnings,omitempty"`
	Nodes    []*view.Node `json:"nodes"`
	Edges    []view.Edge  `json:"edges"`
}

// DataOf returns a graph for programs.
func DataOf(graph *view.Graph) Data {
	result := Data{Counts: graph.Counts, Notes: graph.Notes, Warnings: graph.Warnings}
	if result.Notes == nil {
		result.Notes = []string{}
	}
	result.Nodes, result.Edges = graph.Flat()
	return result
}
