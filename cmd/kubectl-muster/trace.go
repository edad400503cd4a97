package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/muster-fleet/muster/internal/picture/draw"
	"github.com/muster-fleet/muster/internal/picture/source"
	"github.com/muster-fleet/muster/internal/picture/trace"
	"github.com/muster-fleet/muster/internal/program"
)

type traceOptions struct {
	*options
	output *output
}

func newTrace(common *options) *cobra.Command {
	o := &traceOptions{options: common, output: newOutput("tree", "wide", "mermaid")}
	cmd := &cobra.Command{
		Use:   "trace BUNDLE CLUSTER",
		Short: "Explain why a Bundle is, or is not, on a Cluster",
		Long: `Explain why a Bundle is, or is not, on a Cluster, by the rules of Fleet: step by
step, with the first step that fails, and what Fleet has made of it.

Each is NAMESPACE/NAME, or NAME. A Cluster is then looked for in the namespace of
-n or of the kubeconfig, and else everywhere; a Bundle in the namespaces of the
Cluster and of its class, and else everywhere. A HelmOp's Bundle has its name.`,
		Example: `  kubectl muster trace cni team-a/prod
  kubectl muster trace classes/cni prod -n team-a -o json`,
		Args:              withUsage(cobra.ExactArgs(2)),
		ValidArgsFunction: o.completeTrace,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	o.addPictureTo(cmd)
	o.output.addTo(cmd)
	return cmd
}

func (o *traceOptions) run(ctx context.Context, bundle, cluster string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	in, err := source.Trace(ctx, reader, o.namespace(), bundle, cluster)
	if err != nil {
		return program.Exit(2, err)
	}
	return o.print(trace.Explain(in))
}

func (o *traceOptions) print(traced *trace.Trace) error {
	if o.output.format == "mermaid" {
		return draw.Mermaid(o.Out, draw.Chain(traced))
	}
	switch o.output.format {
	case "tree", "wide":
		style, err := o.style()
		if err != nil {
			return err
		}
		if o.output.format == "wide" {
			style.Width = 0
		}
		return draw.Trace(o.Out, traced, style)
	default:
		return o.output.print("Trace", traced, o.Out)
	}
}
