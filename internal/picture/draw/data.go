package draw

import "github.com/muster-fleet/muster/internal/picture"

// Data is a picture for programs.
type Data struct {
	Counts map[picture.State]int `json:"counts"`
	Notes  []string              `json:"notes"`
	Nodes  []*picture.Node       `json:"nodes"`
	Edges  []picture.Edge        `json:"edges"`
}

// DataOf returns a picture for programs.
func DataOf(graph *picture.Graph) Data {
	result := Data{Counts: graph.Counts, Notes: graph.Notes}
	if result.Notes == nil {
		result.Notes = []string{}
	}
	result.Nodes, result.Edges = graph.Flat()
	return result
}
