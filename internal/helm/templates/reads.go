package templates

import (
	"slices"
	"text/template/parse"
)

// controlPlaneVersion is the path of the version that changes only when Cluster API upgrades the control plane.
var controlPlaneVersion = []string{"ControlPlane", "spec", "version"}

// reading says whether a template can read the value at a path of the data.
//
// Only reads at the root count: within a range or a with, the dot is a value that a node at the root has
// given, and a template that is defined sees what its caller gives.
type reading struct {
	path []string
	// exactly means that the template names the value, and within that it reads an object around it, for example because
	// it prints it.
	exactly, within bool
}

func readingOf(template *parse.ListNode, path []string) *reading {
	its := &reading{path: path}
	its.walk(template, true)
	return its
}

// chain notes the read of a field of the root, by the names that lead to it.
func (r *reading) chain(names []string) {
	shorter := min(len(names), len(r.path))
	switch {
	case !slices.Equal(names[:shorter], r.path[:shorter]):
	case shorter == len(r.path):
		r.exactly = true
	default:
		r.within = true
	}
}

// walk visits a node. If atRoot is false, the dot is another value than the root.
func (r *reading) walk(node parse.Node, atRoot bool) {
	switch node := node.(type) {
	case *parse.ListNode:
		if node != nil { // There is an else.
			for _, child := range node.Nodes {
				r.walk(child, atRoot)
			}
		}
	case *parse.PipeNode:
		if node != nil { // A template may be called without data.
			for _, command := range node.Cmds {
				for _, argument := range command.Args {
					r.walk(argument, atRoot)
				}
			}
		}
	case *parse.ActionNode:
		r.walk(node.Pipe, atRoot)
	case *parse.TemplateNode:
		r.walk(node.Pipe, atRoot)
	case *parse.IfNode:
		r.branch(&node.BranchNode, atRoot, atRoot)
	case *parse.RangeNode:
		r.branch(&node.BranchNode, atRoot, false)
	case *parse.WithNode:
		r.branch(&node.BranchNode, atRoot, false)
	default:
		r.operand(node, atRoot)
	}
}

// branch visits the parts of an if, a range or a with. In its list, the dot may be another value.
func (r *reading) branch(node *parse.BranchNode, atRoot, inList bool) {
	r.walk(node.Pipe, atRoot)
	r.walk(node.List, inList)
	r.walk(node.ElseList, atRoot)
}

func (r *reading) operand(node parse.Node, atRoot bool) {
	switch node := node.(type) {
	case *parse.DotNode:
		if atRoot {
			r.chain(nil)
		}
	case *parse.FieldNode:
		if atRoot {
			r.chain(node.Ident)
		}
	case *parse.VariableNode:
		if node.Ident[0] == "$" {
			r.chain(node.Ident[1:])
		}
	case *parse.ChainNode: // Fields of what a pipeline gives, which has read it.
		r.walk(node.Node, atRoot)
	}
}
