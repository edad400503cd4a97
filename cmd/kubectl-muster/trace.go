package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/agentmanifest"
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

func newAgentManifest(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "agent-manifest CLUSTER",
		Short: "Print what to apply to a cluster whose Fleet agent calls by itself",
		Long: `Print the manifest that lets the Fleet agent of a cluster call by itself.

It holds a credential of that cluster: you must be allowed to get its Secret. Nothing
is printed but what Muster has made for this Cluster.`,
		Example: "  kubectl muster agent-manifest -n team-a edge | kubectl --context=edge apply -f -",
		Args:    withUsage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			reader, err := o.client()
			if err != nil {
				return err
			}
			key := client.ObjectKey{Namespace: o.namespace(), Name: args[0]}
			if namespace, name, found := strings.Cut(args[0], "/"); found {
				key = client.ObjectKey{Namespace: namespace, Name: name}
			}
			manifest, err := agentmanifest.Read(cmd.Context(), reader, key)
			if err != nil {
				return err
			}
			_, err = o.Out.Write(manifest)
			return err
		},
	}
}
