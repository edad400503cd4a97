package draw

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/picture"
)

// element is an element of a drawing, with all text in it.
type element struct {
	name       string
	attributes map[string]string
	text       string
}

// elements reads a drawing, and fails for what is no drawing, or more than one.
func elements(t *testing.T, graph *picture.Graph) (result []*element) {
	t.Helper()
	var out strings.Builder
	if err := SVG(&out, graph); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(strings.NewReader(out.String()))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return result
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, &out)
		}
		switch token := token.(type) {
		case xml.StartElement:
			one := &element{name: token.Name.Local, attributes: map[string]string{}}
			for _, attribute := range token.Attr {
				one.attributes[attribute.Name.Local] = attribute.Value
			}
			result = append(result, one)
		case xml.CharData:
			if len(result) > 0 {
				result[len(result)-1].text += string(token)
			}
		case xml.EndElement:
		default:
			t.Errorf("there is a %T", token)
		}
	}
}

// named returns the elements of a name.
func named(all []*element, name string) (result []*element) {
	for _, one := range all {
		if one.name == name {
			result = append(result, one)
		}
	}
	return result
}

func numbers(t *testing.T, one *element, names ...string) (result []int) {
	t.Helper()
	for _, name := range names {
		number, err := strconv.Atoi(one.attributes[name])
		if err != nil {
			t.Fatal(err)
		}
		result = append(result, number)
	}
	return result
}

// anyTree returns a node with any number of any nodes below it.
func anyTree(random *rand.Rand, depth int, id string) *picture.Node {
	kinds := []picture.Kind{picture.ClusterClass, picture.Namespace, picture.Cluster, picture.Bundle, picture.Resource}
	node := &picture.Node{ID: id, Kind: kinds[depth], Name: strings.Repeat("name ", random.IntN(30)) + id, State: picture.States[random.IntN(5)], Reason: "Reason"}
	if depth+1 < len(kinds) {
		for i := range random.IntN(5) {
			node.Children = append(node.Children, anyTree(random, depth+1, fmt.Sprintf("%s-%d", id, i)))
		}
	}
	return node
}

// TestSVGHasRoom has each node in a box of its own, within the drawing, and all of its text
// in it.
func TestSVGHasRoom(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		graph := &picture.Graph{}
		for i := range 1 + random.IntN(4) {
			graph.Roots = append(graph.Roots, anyTree(random, 0, fmt.Sprint(i)))
		}
		nodes := 0
		graph.Walk(func(_, _ *picture.Node) { nodes++ })
		all := elements(t, graph)
		size := numbers(t, all[0], "width", "height")
		boxes := named(all, "rect")[1:] // The first is the paper.
		if len(boxes) != nodes || len(named(all, "path")) != nodes-len(graph.Roots) {
			t.Fatalf("seed %d: %d boxes and %d lines for %d nodes", seed, len(boxes), len(named(all, "path")), nodes)
		}
		var places [][]int
		for _, one := range boxes {
			p := numbers(t, one, "x", "y", "width", "height")
			if p[0] < 0 || p[1] < 0 || p[0]+p[2] > size[0] || p[1]+p[3] > size[1] {
				t.Errorf("seed %d: %v is not within %v", seed, p, size)
			}
			for _, q := range places {
				if p[0] < q[0]+q[2] && q[0] < p[0]+p[2] && p[1] < q[1]+q[3] && q[1] < p[1]+p[3] {
					t.Errorf("seed %d: %v and %v lie upon each other", seed, p, q)
				}
			}
			places = append(places, p)
		}
		for _, text := range named(all, "tspan") {
			at := numbers(t, text, "x", "y")
			isInside := slices.ContainsFunc(places, func(p []int) bool {
				end := at[0] + int(letter*float64(len([]rune(text.text))))
				return at[0] > p[0] && end <= p[0]+p[2] && at[1] > p[1] && at[1] < p[1]+p[3]
			})
			if !isInside {
				t.Errorf("seed %d: %q at %v is in no box", seed, text.text, at)
			}
		}
	}
}

// TestSVGHostile has what others wrote be text.
func TestSVGHostile(t *testing.T) {
	const hostile = `</text><script>alert(1)</script><a href="x" onload='y'>&amp;]]><!--` + "\x00\x1b[2J\u202e\xff"
	all := elements(t, &picture.Graph{Roots: []*picture.Node{{
		ID: hostile, Kind: picture.Cluster, Name: hostile, State: picture.Problem, Reason: hostile,
		Facts: []picture.Fact{{Name: picture.FactMapping, Value: hostile}},
	}, {ID: hostile, Kind: picture.Namespace, Name: hostile, Facts: []picture.Fact{{Name: picture.FactGroup, Value: hostile}, {Name: picture.FactMapping, Value: hostile}}}}})
	text := ""
	for _, one := range all {
		if !slices.Contains([]string{"svg", "title", "rect", "g", "text", "tspan", "path"}, one.name) {
			t.Errorf("there is an element %q", one.name)
		}
		for name := range one.attributes {
			if strings.HasPrefix(name, "on") || name == "href" || name == "style" {
				t.Errorf("%s has an attribute %q", one.name, name)
			}
		}
		text += one.text
	}
	if count := strings.Count(text, "<script>alert(1)</script>"); count < 3 {
		t.Errorf("it is shown %d times in %q", count, text)
	}
	if strings.ContainsAny(text, "\x00\x1b\u202e\uFFFD") {
		t.Errorf("it is not spelled out in %q", text)
	}
}
