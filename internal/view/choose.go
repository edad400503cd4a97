package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-fleet/muster/internal/message"
)

// Folded is the kind of a node that replaces several siblings in the same healthy state.
const Folded Kind = "Folded"

// keep is how many equal siblings are shown before the others are folded. A single further sibling is shown, not
// folded.
const keep = 3

// Choice is a part of a graph.
type Choice struct {
	// Name is the name of a ClusterClass or a Cluster, or its namespace and name, with one of the prefixes of
	// its kind before it to tell them apart. If empty, everything is chosen.
	Name string
	// Problems leaves out everything that is fine.
	Problems bool
	// Fold replaces siblings in the same healthy state by one node.
	Fold bool
}

// Choose returns a part of a graph. It returns an error if nothing has the name.
func (g *Graph) Choose(choice Choice) (*Graph, error) {
	result := &Graph{Counts: g.Counts, Notes: g.Notes, unread: g.unread}
	for _, root := range g.Roots {
		if root := choice.root(root); root != nil {
			result.Roots = append(result.Roots, root)
		}
	}
	if choice.Name == "" {
		return result, nil
	}
	named := result
	if choice.Problems { // What has no problems is counted, too.
		var err error
		if named, err = g.Choose(Choice{Name: choice.Name}); err != nil {
			return nil, err
		}
	} else if why := g.Unknown(); len(result.Roots) == 0 && why != "" {
		return nil, fmt.Errorf("it is unknown whether there is a ClusterClass or Cluster %q: %s", message.Text(choice.Name), why)
	} else if len(result.Roots) == 0 {
		return nil, fmt.Errorf("no ClusterClass or Cluster %q found", message.Text(choice.Name))
	}
	result.Counts = map[State]int{}
	for _, root := range named.Roots {
		for state, count := range root.Counts {
			result.Counts[state] += count
		}
	}
	return result, nil
}

// root returns the chosen part of a class, or nil.
func (c Choice) root(root *Node) *Node {
	isWhole := c.Name == "" || root.Kind == ClusterClass && c.Names(root)
	copied := *root
	copied.Children = nil
	copied.Counts = map[State]int{}
	for _, namespace := range root.Children {
		namespace := c.namespace(namespace, isWhole)
		if namespace == nil {
			continue
		}
		copied.Children = append(copied.Children, namespace)
		for state, count := range namespace.Counts {
			copied.Counts[state] += count
		}
	}
	if len(copied.Children) == 0 && (!isWhole || c.Problems && copied.State.isFine()) {
		return nil
	}
	if isWhole {
		copied.Counts = root.Counts
	} else {
		copied.Facts = []Fact{{FactNamespaces, strconv.Itoa(len(copied.Children))}}
	}
	return &copied
}

func (c Choice) namespace(namespace *Node, isWhole bool) *Node {
	copied := *namespace
	copied.Children = nil
	copied.Counts = map[State]int{}
	for _, cluster := range namespace.Children {
		if !isWhole && !c.Names(cluster) || c.Problems && cluster.State.isFine() {
			continue
		}
		copied.Counts[cluster.State]++
		copied.Children = append(copied.Children, c.cluster(cluster))
	}
	if len(copied.Children) == 0 && (!isWhole || copied.State.isFine()) {
		return nil
	}
	if c.Fold {
		copied.Children = folded(copied.Children, namespace.ID)
	}
	return &copied
}

func (c Choice) cluster(cluster *Node) *Node {
	if len(cluster.Children) == 0 || !c.Problems && !c.Fold {
		return cluster
	}
	copied := *cluster
	copied.Children = nil
	for _, bundle := range cluster.Children {
		if !c.Problems || !bundle.State.isFine() {
			copied.Children = append(copied.Children, bundle)
		}
	}
	if c.Fold {
		copied.Children = folded(copied.Children, cluster.ID)
	}
	return &copied
}

// Prefixes are the words for a kind before a name and a slash.
var Prefixes = map[Kind][]string{ClusterClass: {"clusterclass", "class"}, Cluster: {"cluster"}, FleetCluster: {"cluster"}}

// Names reports whether the Name is that of a node.
func (c Choice) Names(node *Node) bool {
	name := c.Name
	if kind, rest, found := strings.Cut(name, "/"); found && slices.Contains(Prefixes[node.Kind], kind) {
		name = rest
	}
	return name == node.Name || name == node.Key()
}

// folded returns siblings, with those in the same healthy state folded.
func folded(nodes []*Node, parent string) []*Node {
	equal := map[string]int{}
	for _, node := range nodes {
		equal[likeness(node)]++
	}
	var result []*Node
	shown := map[string]int{}
	for _, node := range nodes {
		like := likeness(node)
		shown[like]++
		switch {
		case like == "" || equal[like] <= keep+1 || shown[like] <= keep:
			result = append(result, node)
		case shown[like] == keep+1:
			more := equal[like] - keep
			result = append(result, &Node{
				ID: "folded/" + like + "/" + parent, Kind: Folded, Name: fmt.Sprintf("… %d more %s", more, node.Reason),
				State: node.State, Reason: node.Reason,
			})
		}
	}
	return result
}

// likeness returns the same text for siblings that can be folded into one, and "" for a node that cannot be
// folded.
func likeness(node *Node) string {
	if !node.State.isFine() {
		return ""
	}
	return string(node.State) + "/" + node.Reason
}
