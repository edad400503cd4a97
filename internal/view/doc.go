// Package view computes a graph of ClusterClasses, the groups and mappings of each namespace, its
// Clusters, and their Bundles. Each node has a state, the reason, and who needs to act. The package is
// pure: objects, read live or from a file, become a Graph. Packages that draw a Graph decide nothing.
package view

import (
	"strings"

	"github.com/muster-fleet/muster/internal/message"
)

// State is the state of a node. A reason says why.
type State string

// The states, worst first.
const (
	// Problem needs action.
	Problem State = "Problem"
	// Unknown means that the objects could not be read.
	Unknown State = "Unknown"
	// Waiting means that the node waits for something, and will not stay so.
	Waiting State = "Waiting"
	// Inactive means that Muster leaves the object unchanged, as configured.
	Inactive State = "Inactive"
	// Ready means that the object is healthy.
	Ready State = "Ready"
)

// States are the states in the order in which they are shown.
var States = []State{Problem, Unknown, Waiting, Inactive, Ready}

// Sign marks a state without color.
func (s State) Sign() string {
	switch s {
	case Ready:
		return "●"
	case Waiting:
		return "○"
	case Inactive:
		return "◌"
	case Unknown:
		return "?"
	default:
		return "▲"
	}
}

func (s State) rank() int {
	for i, state := range States {
		if state == s {
			return i
		}
	}
	return len(States)
}

// isFine reports whether no action is needed.
func (s State) isFine() bool { return s == Ready || s == Inactive }

// Kind is the kind of a node, or of an object that is read.
type Kind string

// The kinds.
const (
	Config       Kind = "FleetAddonConfig"
	Namespace    Kind = "Namespace"
	ClusterClass Kind = "ClusterClass"
	Cluster      Kind = "Cluster"
	FleetCluster Kind = "FleetCluster"
	ClusterGroup Kind = "ClusterGroup"
	Mapping      Kind = "BundleNamespaceMapping"
	// HelmChartProxies appear in place of their Bundles, and in notes during a rollout.
	HelmChartProxy Kind = "HelmChartProxy"
	Bundle         Kind = "Bundle"
	Policy         Kind = "Policy"
	Resource       Kind = "Resource"
	Deployment     Kind = "BundleDeployment"
	NoClass        Kind = "NoClass"
	OnlyInFleet    Kind = "OnlyInFleet"
	classNotThere       = "ClassMissing"
)

// Plural names the objects of a kind in a sentence.
func (k Kind) Plural() string {
	switch k {
	case ClusterClass:
		return "ClusterClasses"
	case FleetCluster:
		return "Fleet Clusters"
	case HelmChartProxy:
		return "HelmChartProxies"
	case Policy:
		return "Policies"
	default:
		return string(k) + "s"
	}
}

// Node is one object in the graph.
type Node struct {
	ID        string `json:"id"`
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	State     State  `json:"state"`
	// Reason is one word for the cause of the state, from a condition or from Fleet.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Turn is who needs to act, and Do says how.
	Turn string `json:"turn,omitempty"`
	Do   string `json:"do,omitempty"`
	// Facts are further details, in a fixed order.
	Facts []Fact `json:"facts,omitempty"`
	// Counts are how many Clusters below are in each state.
	Counts map[State]int `json:"counts,omitempty"`

	Children []*Node `json:"-"`
}

// Fact is a name and a value of a node.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Names of facts that have their own columns.
const (
	FactAgent     = "agent"
	FactBundles   = "bundles"
	FactResources = "resources"
	FactFleet     = "fleetCluster"
	FactFleetNS   = "fleetNamespace"
	FactGroup     = "group"
	FactMapping   = "mapping"
	FactSource    = "source"
	FactSince     = "since"
	// FactNamespaces is how many namespaces have Clusters of a class.
	FactNamespaces = "namespaces"
)

// Fact returns the value of a fact, or "".
func (n *Node) Fact(name string) string {
	for _, fact := range n.Facts {
		if fact.Name == name {
			return fact.Value
		}
	}
	return ""
}

func (n *Node) addFact(name, value string) {
	if value != "" {
		n.Facts = append(n.Facts, Fact{name, value})
	}
}

// Key is the namespace and name of a node.
func (n *Node) Key() string { return strings.TrimPrefix(n.Namespace+"/"+n.Name, "/") }

// Title names an object on a Cluster: a Bundle by its namespace and name, a HelmChartProxy by its kind, too.
func (n *Node) Title() string {
	if n.Kind == HelmChartProxy {
		return string(n.Kind) + " " + n.Key()
	}
	return n.Key()
}

// Edge leads from a node to one that it contains or creates.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Graph is a forest of classes, with their namespaces, the Clusters in these, and the Bundles on these
// if they were read.
type Graph struct {
	// Roots are the classes, then the nodes for objects without one.
	Roots []*Node
	// Counts are how many Clusters are in each state.
	Counts map[State]int
	// Notes say which parts of the graph are missing, and why.
	Notes []string
	// Warnings are about Bundles on any Clusters: what will go wrong, and how to correct it.
	Warnings []*Node

	unread map[Kind]string
}

// Unknown says which of the kinds that have Clusters and classes could not be read; "" if none. Without them,
// an object that is not in the graph may exist nevertheless.
func (g *Graph) Unknown() string {
	var parts []string
	for _, kind := range []Kind{Cluster, FleetCluster, ClusterClass} {
		if why := g.unread[kind]; why != "" {
			parts = append(parts, kind.Plural()+": "+message.Text(why))
		}
	}
	return strings.Join(parts, "; ")
}

// Total returns the number of Clusters.
func Total(counts map[State]int) int {
	total := 0
	for _, count := range counts {
		total += count
	}
	return total
}

// Walk visits all nodes, parents before children.
func (g *Graph) Walk(visit func(node, parent *Node)) {
	var walk func(nodes []*Node, parent *Node)
	walk = func(nodes []*Node, parent *Node) {
		for _, node := range nodes {
			visit(node, parent)
			walk(node.Children, node)
		}
	}
	walk(g.Roots, nil)
}

// Flat returns all nodes and the edges between them, for programs.
func (g *Graph) Flat() (nodes []*Node, edges []Edge) {
	nodes, edges = []*Node{}, []Edge{}
	g.Walk(func(node, parent *Node) {
		nodes = append(nodes, node)
		if parent != nil {
			edges = append(edges, Edge{parent.ID, node.ID})
		}
	})
	return nodes, edges
}
