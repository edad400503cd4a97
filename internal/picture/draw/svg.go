package draw

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/muster-fleet/muster/internal/picture"
)

// Measures of a drawing, in pixels. Its letters are all as wide, so that what is written in a
// box fits without a font being asked.
const (
	letter = 7.3
	row    = 16
	inset  = 8
	// across lies between columns, and down between boxes of one.
	across = 48
	down   = 8
	margin = 16
	// column is how many letters a line of a box has at most.
	column = 40
)

// box is a node in a drawing.
type box struct {
	node          *picture.Node
	lines         []string
	depth         int
	width, height int
	// y is its upper edge, and tall how much height it has with all below it.
	y, tall  int
	children []*box
}

// SVG draws a picture: a column for each step from classes to resources, and whoever is in
// one stands right of what it belongs to.
func SVG(to io.Writer, graph *picture.Graph) error {
	widths := []int{}
	var roots []*box
	height := margin
	for _, root := range complete(graph).Roots {
		drawn := boxOf(root, 0, &widths)
		drawn.place(height)
		height += drawn.tall + down
		roots = append(roots, drawn)
	}
	lefts, width := []int{}, margin
	for _, one := range widths {
		lefts = append(lefts, width)
		width += one + across
	}
	width, height = max(width-across+margin, 2*margin), height-down+margin
	out := &strings.Builder{}
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" font-family="ui-monospace, monospace" font-size="12" fill="#111">`+"\n", width, height, width, height)
	fmt.Fprintf(out, "<title>%s</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", xmlText("Muster: "+Counts(graph.Counts)), width, height)
	for _, root := range roots {
		root.draw(out, lefts, nil)
	}
	out.WriteString("</svg>\n")
	_, err := io.WriteString(to, out.String())
	return err
}

// boxOf returns the boxes of a node and of all below it. Widths are those of the columns.
func boxOf(node *picture.Node, depth int, widths *[]int) *box {
	result := &box{node: node, depth: depth}
	texts := label(node)
	if mapping := edgeLabel(node); mapping != "" {
		texts = append(texts, mapping)
	}
	for _, text := range texts {
		result.lines = append(result.lines, wrap(text, column)...)
	}
	longest := 0
	for _, text := range result.lines {
		longest = max(longest, utf8.RuneCountInString(text))
	}
	result.width, result.height = int(float64(longest)*letter)+2*inset, len(result.lines)*row+2*inset
	if depth == len(*widths) {
		*widths = append(*widths, 0)
	}
	(*widths)[depth] = max((*widths)[depth], result.width)
	for _, child := range node.Children {
		result.children = append(result.children, boxOf(child, depth+1, widths))
	}
	below := -down
	for _, child := range result.children {
		below += child.tall + down
	}
	result.tall = max(result.height, below)
	return result
}

// place puts a box, and all below it, beneath a line.
func (b *box) place(top int) {
	b.y = top + (b.tall-b.height)/2
	below := -down
	for _, child := range b.children {
		below += child.tall + down
	}
	at := top + (b.tall-below)/2
	for _, child := range b.children {
		child.place(at)
		at += child.tall + down
	}
}

func (b *box) draw(out *strings.Builder, lefts []int, parent *box) {
	x := lefts[b.depth]
	if parent != nil {
		from, middle := lefts[parent.depth]+parent.width, x-across/2
		fmt.Fprintf(out, `<path d="M%d %dH%dV%dH%d" fill="none" stroke="#777"/>`+"\n", from, parent.y+parent.height/2, middle, b.y+b.height/2, x)
	}
	fmt.Fprintf(out, `<g><rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="#555"/><text>`, x, b.y, b.width, b.height, fills[b.node.State])
	for i, text := range b.lines {
		fmt.Fprintf(out, `<tspan x="%d" y="%d">%s</tspan>`, x+inset, b.y+inset+(i+1)*row-4, xmlText(text))
	}
	out.WriteString("</text></g>\n")
	for _, child := range b.children {
		child.draw(out, lefts, b)
	}
}

// wrap breaks a text into lines, at spaces where there are some.
func wrap(text string, width int) (lines []string) {
	rest := []rune(text)
	for len(rest) > width {
		end := width
		for i := width; i > width/2; i-- {
			if rest[i] == ' ' {
				end = i
				break
			}
		}
		lines = append(lines, string(rest[:end]))
		rest = []rune(strings.TrimLeft(string(rest[end:]), " "))
	}
	return append(lines, string(rest))
}

// xmlText writes text of others so that nothing in it is markup.
func xmlText(text string) string {
	var out strings.Builder
	// Nothing is written to anything that could fail.
	_ = xml.EscapeText(&out, []byte(text))
	return out.String()
}
