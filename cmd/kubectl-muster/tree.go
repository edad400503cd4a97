package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/draw"
	"github.com/muster-fleet/muster/internal/view/source"
)

// treeOptions are the flags of `kubectl muster tree`.
type treeOptions struct {
	*options
	output     *output
	problems   bool
	bundles    bool
	fold       bool
	watch      bool
	staleAfter time.Duration
	name       string
}

func newTree(common *options) *cobra.Command {
	o := &treeOptions{options: common, output: newOutput(common, "tree", "wide", "mermaid"), fold: true}
	cmd := &cobra.Command{
		Use:   "tree [CLASS|CLUSTER]",
		Short: "Show which clusters are in Fleet, by class, and their state",
		Long: `Show which clusters are in Fleet, by class, group and namespace, and their state.

For a named Cluster, also show its Bundles and their failing resources. With a name or
--problems, but not with --watch, also show Bundles that are for these clusters and cannot
get there, or replace each other. A name may be
NAMESPACE/NAME, with clusterclass/ or cluster/ before it if it is ambiguous.

Signs: ● healthy, ○ waits, ◌ deliberately left as it is, ▲ needs action, ? could not be
read. -o wide says who must act.`,
		Example: `  kubectl muster tree
  kubectl muster tree --problems
  kubectl muster tree team-a/prod -o wide
  kubectl muster tree -o mermaid --fold=false > view.md`,
		Args:              withUsage(o.nameOf),
		ValidArgsFunction: o.completeNames,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.addPictureTo(cmd)
	o.output.addTo(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&o.problems, "problems", false, "Leave out everything healthy.")
	fs.BoolVar(&o.bundles, "bundles", false, "Show the Bundles on each Cluster.")
	fs.BoolVar(&o.fold, "fold", true, "Fold healthy siblings that look the same into one line.")
	fs.BoolVarP(&o.watch, "watch", "w", false, "Show it again whenever something changes.")
	addStaleAfter(cmd, &o.staleAfter)
	return cmd
}

// nameOf takes the name from the arguments NAME, KIND/NAME or, as kubectl does, KIND NAME.
func (o *treeOptions) nameOf(cmd *cobra.Command, args []string) error {
	if o.name = strings.Join(args, "/"); len(args) < 2 {
		return nil
	}
	for _, words := range view.Prefixes {
		if slices.Contains(words, args[0]) {
			return cobra.MaximumNArgs(2)(cmd, args)
		}
	}
	return cobra.MaximumNArgs(1)(cmd, args)
}

func addStaleAfter(cmd *cobra.Command, value *time.Duration) {
	cmd.Flags().DurationVar(value, "stale-after", stamp.DefaultStaleAfter, "How long an agent may be silent: more than Fleet's agentCheckinInterval.")
}

func (o *treeOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx)
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	graph, err := o.read(ctx, reader)
	if err != nil {
		return program.Exit(2, err)
	}
	return o.print(o.Out, graph)
}

// read returns the graph, with the Bundles to show.
func (o *treeOptions) read(ctx context.Context, reader client.Reader) (*view.Graph, error) {
	scope := o.scope()
	scope.Bundles = o.bundles
	objects, err := source.Read(ctx, reader, scope)
	if err != nil {
		return nil, err
	}
	objects.StaleAfter, objects.Server = o.staleAfter, o.server()
	graph, err := o.build(ctx, reader, objects)
	if err == nil && (o.problems || o.name != "") {
		_, err = o.inspect(ctx, reader, objects, graph)
	}
	return graph, err
}

// inspect adds the Bundles that need action.
func (o *treeOptions) inspect(ctx context.Context, reader client.Reader, objects *view.Objects, into *view.Graph) (*source.Inspection, error) {
	var of *view.Graph
	if o.name != "" {
		var err error
		if of, err = view.Build(objects).Choose(view.Choice{Name: o.name}); err != nil {
			return nil, err
		}
	}
	inspection, err := source.Inspect(ctx, reader, o.scope(), objects, of)
	if err != nil {
		return nil, err
	}
	problems, notes, err := inspection.Problems(ctx)
	if err != nil {
		return nil, err
	}
	into.Roots = append(into.Roots, problems...)
	into.Notes = append(slices.Clone(into.Notes), notes...)
	return inspection, nil
}

// build returns the selected part of the graph. For a Cluster that the user names, it also reads the Bundles.
func (o *treeOptions) build(ctx context.Context, reader client.Reader, objects *view.Objects) (*view.Graph, error) {
	choice := view.Choice{Name: o.name, Problems: o.problems, Fold: o.fold && o.output.isOwn()}
	graph, err := view.Build(objects).Choose(choice)
	if err != nil || o.name == "" || o.bundles {
		return graph, err
	}
	namespaces := named(graph, choice)
	for _, namespace := range namespaces {
		if err := source.BundlesOf(ctx, reader, namespace, objects); err != nil {
			return nil, err
		}
	}
	if len(namespaces) == 0 {
		return graph, nil
	}
	return view.Build(objects).Choose(choice)
}

// named returns the namespaces in Fleet of the Clusters that are chosen by name.
func named(graph *view.Graph, choice view.Choice) []string {
	var namespaces []string
	graph.Walk(func(node, _ *view.Node) {
		if namespace := node.Fact(view.FactFleetNS); namespace != "" && choice.Names(node) {
			namespaces = append(namespaces, namespace)
		}
	})
	return namespaces
}

func (o *treeOptions) print(to io.Writer, graph *view.Graph) error {
	if o.output.format == "mermaid" {
		return draw.Mermaid(to, graph)
	}
	switch o.output.format {
	case "tree", "wide":
		style, err := o.style()
		if err != nil {
			return err
		}
		if o.output.format == "wide" {
			style.Wide, style.Width = true, 0
		}
		return draw.Tree(to, graph, style)
	default:
		return o.output.print("View", draw.DataOf(graph), identities(graph), to)
	}
}

// identities returns the Clusters and Bundles of a graph.
func identities(graph *view.Graph) (objects []runtime.Object) {
	kinds := map[view.Kind]schema.GroupVersionKind{
		view.Cluster: clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind), view.FleetCluster: fleetv1.SchemeGroupVersion.WithKind("Cluster"), view.Bundle: fleetv1.SchemeGroupVersion.WithKind("Bundle"), view.HelmChartProxy: addonsv1.GroupVersion.WithKind("HelmChartProxy"),
	}
	graph.Walk(func(node, _ *view.Node) {
		if kind, found := kinds[node.Kind]; found {
			objects = append(objects, identity(kind, node.Name))
		}
	})
	return objects
}

// follow shows the graph again whenever it changes.
func (o *treeOptions) follow(ctx context.Context) error {
	if o.given() {
		return program.Exit(2, errors.New("--watch needs a cluster, not -f: files do not change"))
	}
	if o.bundles {
		return program.Exit(2, errors.New("--watch cannot watch the Bundles of all Clusters: name one Cluster"))
	}
	from, err := o.client()
	if err != nil {
		return err
	}
	follower, err := source.Follow(ctx, from, o.scope())
	if err != nil {
		return program.Exit(2, err)
	}
	for last := ""; ctx.Err() == nil; follower.Wait(ctx) {
		var text strings.Builder
		objects := follower.Snapshot()
		objects.StaleAfter = o.staleAfter
		graph, err := o.build(ctx, from, objects)
		if err == nil {
			err = o.print(&text, graph)
		}
		if err != nil {
			return err
		}
		if text.String() != last {
			last = text.String()
			o.again(last)
		}
	}
	return nil
}
