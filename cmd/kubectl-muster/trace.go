package main

import (
	"context"
	"errors"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/view/draw"
	"github.com/muster-fleet/muster/internal/view/source"
	"github.com/muster-fleet/muster/internal/view/trace"
)

type traceOptions struct {
	*options
	output *output
}

func newTrace(common *options) *cobra.Command {
	o := &traceOptions{options: common, output: newOutput(common, "tree", "wide", "mermaid")}
	cmd := &cobra.Command{
		Use:   "trace BUNDLE [CLUSTER]",
		Short: "Explain why a Bundle is, or is not, on a Cluster",
		Long: `Explain step by step, according to Fleet's rules, why a Bundle is, or is not, on a
Cluster: with the first step that fails, and the result in Fleet. Without a Cluster,
print a summary for all Clusters, or for those of a namespace (-n).

A Bundle or Cluster is NAMESPACE/NAME, or NAME. A Cluster without a namespace is
searched in the namespace of -n or of the kubeconfig, then everywhere; a Bundle in the
namespaces of the Cluster and of its class, then everywhere. The Bundle of a HelmOp has
the HelmOp's name. With a Cluster, it may also be the name of a HelmChartProxy; write
helmchartproxy/ before it if a Bundle has the same one.`,
		Example: `  kubectl muster trace cni
  kubectl muster trace cni team-a/prod
  kubectl muster trace classes/cni prod -n team-a -o json
  kubectl muster trace helmchartproxy/ingress team-a/prod`,
		Args:              withUsage(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: o.completeTrace,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addPictureTo(cmd)
	o.output.addTo(cmd)
	return cmd
}

func (o *traceOptions) run(ctx context.Context, args []string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	isSurvey := len(args) == 1
	if isSurvey && o.output.format == "mermaid" {
		return program.Exit(2, errors.New("-o mermaid draws the steps for one Cluster: name a Cluster"))
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	if isSurvey {
		survey, err := source.Survey(ctx, reader, o.scope(), o.namespace(), args[0])
		if err != nil {
			return program.Exit(2, err)
		}
		var clusters []runtime.Object
		for _, summary := range survey.Clusters {
			clusters = append(clusters, identity(clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind), summary.Cluster))
		}
		return o.print("Survey", survey, clusters, func(style draw.Style) error { return draw.Survey(o.Out, survey, style) })
	}
	all, err := source.Trace(ctx, reader, o.namespace(), args[0], args[1])
	if err != nil {
		return program.Exit(2, err)
	}
	for _, in := range all {
		err = errors.Join(err, o.printTrace(trace.Explain(in)))
	}
	return err
}

func (o *traceOptions) printTrace(traced *trace.Trace) error {
	if o.output.format == "mermaid" {
		return draw.Mermaid(o.Out, draw.Chain(traced))
	}
	bundle := []runtime.Object{identity(fleetv1.SchemeGroupVersion.WithKind("Bundle"), traced.Bundle)}
	return o.print("Trace", traced, bundle, func(style draw.Style) error { return draw.Trace(o.Out, traced, style) })
}

// print writes an object in a format for programs, or draws it.
func (o *traceOptions) print(kind string, what any, about []runtime.Object, drawn func(draw.Style) error) error {
	if !o.output.isOwn() {
		return o.output.print(kind, what, about, o.Out)
	}
	style, err := o.style()
	if err != nil {
		return err
	}
	if o.output.format == "wide" {
		style.Wide, style.Width = true, 0
	}
	return drawn(style)
}
