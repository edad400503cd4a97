package values

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"text/template/parse"
)

// Blocks and parentheses of a template count together, before anything is parsed.
func TestDepth(t *testing.T) {
	for template, want := range map[string]string{
		strings.Repeat("{{if 1}}\n", 100) + strings.Repeat("{{end}}", 100):                                "",
		strings.Repeat("{{if 1}}\n", 101) + strings.Repeat("{{end}}", 101):                                "valuesTemplate:101: ",
		strings.Repeat("\n", 6) + "{{" + strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100) + "}}": "",
		strings.Repeat("\n", 6) + "{{" + strings.Repeat("(", 101) + "1" + strings.Repeat(")", 101) + "}}": "valuesTemplate:7: ",
		strings.Repeat("{{with 1}}", 50) + "{{" + strings.Repeat("(", 51):                                 "valuesTemplate:1: ",
		"{{if 1}}" + strings.Repeat("\n{{else if 1}}", 100) + "{{end}}":                                   "valuesTemplate:101: ",
		"{{with 1}}" + strings.Repeat("{{ else with 1}}", 99) + "{{end}}{{range .}}{{end}}":               "",
		strings.Repeat("{{if 1}}{{/* {{end}} */}}{{- /* {{end}} */ -}}", 101):                             "valuesTemplate:1: ",
		strings.Repeat("{{if \"{{end}}\\\"{{end}}\"}}{{if `{{end}}\"`}}", 51):                             "valuesTemplate:1: ",
		strings.Repeat(`{{if '}'}}{{- if '\''}}{{if "}}{{end}}"}}`, 34):                                   "valuesTemplate:1: ",
		strings.Repeat("{{if 1}}{{.end}}{{$.end}}{{with $end := 1}}{{$end}}", 51):                         "valuesTemplate:1: ",
		strings.Repeat("{{/* {{if 1}} (( */}}{{ \"(((\" }}{{ `((` }}{{'('}} {{if (((( {{.if}}", 1) + "}}": "valuesTemplate:1: unexpected \"{\" in parenthesized pipeline",
		strings.Repeat("{{define \"a\"}}{{block \"b\" .}}", 51):                                           "valuesTemplate:1: ",
		strings.Repeat("{{if 1}}", 131072/8):                                                              "valuesTemplate:1: ",
		"{{" + strings.Repeat("(", 131070):                                                                "valuesTemplate:1: ",
	} {
		_, err := Parse(template)
		switch got := message(err); {
		case want == "" || strings.Contains(want, "unexpected"):
			if got != want {
				t.Errorf("%.60s: %q, want %q", template, got, want)
			}
		case !strings.HasPrefix(got, want+"blocks and parentheses are nested more than 100 deep; move the inner ones"):
			t.Errorf("%.60s: %q, want one about %s", template, got, want)
		}
	}
}

// treeDepth returns how deep a parsed node is nested.
func treeDepth(node parse.Node) int {
	deepest := 0
	visit := func(levels int, nodes ...parse.Node) {
		for _, node := range nodes {
			deepest = max(deepest, levels+treeDepth(node))
		}
	}
	branch := func(node *parse.BranchNode) {
		visit(1, node.Pipe, node.List)
		if node.ElseList != nil {
			visit(1, node.ElseList)
		}
	}
	switch node := node.(type) {
	case *parse.ListNode:
		visit(0, node.Nodes...)
	case *parse.ActionNode:
		visit(0, node.Pipe)
	case *parse.TemplateNode:
		if node.Pipe != nil {
			visit(0, node.Pipe)
		}
	case *parse.PipeNode:
		for _, command := range node.Cmds {
			for _, argument := range command.Args {
				visit(0, argument)
				if _, isPipe := argument.(*parse.PipeNode); isPipe {
					visit(1, argument)
				}
			}
		}
	case *parse.ChainNode:
		if _, isPipe := node.Node.(*parse.PipeNode); isPipe {
			visit(1, node.Node)
		}
	case *parse.IfNode:
		branch(&node.BranchNode)
	case *parse.WithNode:
		branch(&node.BranchNode)
	case *parse.RangeNode:
		branch(&node.BranchNode)
	}
	return deepest
}

// delimiters are those of values templates and of Fleet's.
var delimiters = [][2]string{{"{{", "}}"}, {"${", "}"}}

// parsedDepth returns how deep the parser nested a template, and whether it parses.
func parsedDepth(text, left, right string) (depth int, ok bool) {
	root := parse.New("")
	root.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := root.Parse(text, left, right, trees); err != nil {
		return 0, false
	}
	for name, tree := range trees {
		levels := 0
		if name != "" {
			levels = 1 // The define or block around it.
		}
		depth = max(depth, levels+treeDepth(tree.Root))
	}
	return depth, true
}

// FuzzDepth: whatever parses is counted as nested at least as deep as the parser nested it.
func FuzzDepth(f *testing.F) {
	for _, seed := range []string{
		"{{if (1)}}{{else if ((2))}}{{else with 3}}{{else}}{{range (4)}}{{end}}{{end}}",
		"{{- /* {{end}} */ -}}{{if \"{{end}}\\\"\"}}{{`}}{{end}}`}}{{'}'}}{{'\\''}}{{.end}}{{$.end}}{{end}}",
		"{{define \"a\"}}{{(.).b}}{{end}}{{block \"b\" (1)}}{{range $i, $x := (.)}}{{break}}{{end}}{{end}}{{template \"a\" (1)}}",
		"{{ (1 | (print 2)).x -}} {{- else}}", "{{with 1}}{{else with ((1))}}{{end}}", "{{/*}}*/}}{{é}}{{1e5}}{{0x1F}}{{1i}}",
	} {
		f.Add(seed)
		f.Add(strings.NewReplacer("{{", "${", "}}", "}").Replace(seed))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, its := range delimiters {
			want, ok := parsedDepth(text, its[0], its[1])
			if got, _ := depthOf(text, its[0], its[1], math.MaxInt); ok && got < want {
				t.Errorf("%q is nested %d deep, and counted as %d", text, want, got)
			}
		}
	})
}

// generated returns a template without tricks.
func generated(rng *rand.Rand, left int) string {
	if left == 0 {
		return "text"
	}
	pipe := func() string {
		levels := rng.IntN(3)
		return strings.Repeat("(", levels) + "1" + strings.Repeat(")", levels)
	}
	inner := func() string { return generated(rng, rng.IntN(left)) }
	switch rng.IntN(6) {
	case 0:
		return "{{" + pipe() + "}}" + inner()
	case 1:
		return "{{- if " + pipe() + " -}}" + inner() + "{{else}}" + inner() + "{{end}}"
	case 2:
		return "{{if " + pipe() + "}}" + inner() + "{{else if " + pipe() + "}}" + inner() + "{{ else if 1 }}{{end}}" + inner()
	case 3:
		return "{{with " + pipe() + "}}" + inner() + "{{else with " + pipe() + "}}" + inner() + "{{end}}"
	case 4:
		return "{{range " + pipe() + "}}" + inner() + "{{end}}" + inner()
	default:
		return "{{/* (( {{if}} */}}{{\"((}}\"}}" + inner()
	}
}

// A template without tricks is counted exactly.
func TestDepthIsExact(t *testing.T) {
	for _, its := range delimiters {
		rng, deepest := rand.New(rand.NewPCG(1, 2)), 0
		for range 2000 {
			text := strings.NewReplacer("{{", its[0], "}}", its[1]).Replace(generated(rng, 60))
			want, ok := parsedDepth(text, its[0], its[1])
			if got, _ := depthOf(text, its[0], its[1], math.MaxInt); !ok || got != want {
				t.Fatalf("%q is nested %d deep, and counted as %d", text, want, got)
			}
			deepest = max(deepest, want)
		}
		if deepest < 10 {
			t.Errorf("at most %d deep", deepest)
		}
	}
}
