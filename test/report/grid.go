package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Grid is a heading and rows below it, of as many cells each. The first cell of a row says
// what the others are about.
type Grid struct {
	Heading []string
	Rows    [][]string
}

// Print writes it for people, in columns.
func (g Grid) Print(out io.Writer) {
	rows := append([][]string{g.Heading}, g.Rows...)
	widths := make([]int, len(g.Heading))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		fmt.Fprintf(out, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(out, "  %*s", widths[i+1], cell)
		}
		fmt.Fprintln(out)
	}
}

// Markdown writes it for a page.
func (g Grid) Markdown(out io.Writer) {
	line := func(cells []string) { fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	line(g.Heading)
	fmt.Fprintf(out, "|---|%s\n", strings.Repeat("--:|", len(g.Heading)-1))
	for _, row := range g.Rows {
		line(row)
	}
}
