package draw

import (
	"fmt"
	"io"
	"strings"

	"github.com/muster-fleet/muster/internal/picture"
	"github.com/muster-fleet/muster/internal/picture/trace"
)

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
