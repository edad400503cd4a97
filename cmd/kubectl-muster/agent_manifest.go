package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/muster-fleet/muster/internal/agentmanifest"
	"github.com/muster-fleet/muster/internal/program"
)

func newAgentManifest(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "agent-manifest CLUSTER",
		Short: "Print the manifest for a cluster whose Fleet agent registers itself",
		Long: `Print the manifest with which the Fleet agent of a cluster registers itself.

A Cluster is NAME, in the namespace of -n or of the kubeconfig, or NAMESPACE/NAME. The
manifest holds a credential of that cluster: you must be allowed to get its Secret. The
command prints only a manifest that Muster has issued for this Cluster.

Exit codes: 0 printed; 1 there is no manifest, and the error says why; 2 wrong arguments.`,
		Example:           "  kubectl muster agent-manifest team-a/edge | kubectl --context=edge apply -f -",
		Args:              withUsage(cobra.ExactArgs(1)),
		ValidArgsFunction: o.completeClusters,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.agentManifest(cmd.Context(), args[0]) },
	}
}

func (o *options) agentManifest(ctx context.Context, cluster string) error {
	key, err := o.key(cluster, "CLUSTER")
	if err != nil {
		return err
	}
	reader, err := o.client()
	if err != nil {
		return err
	}
	manifest, err := agentmanifest.Read(ctx, reader, key)
	if err != nil {
		return program.Exit(1, err)
	}
	_, err = o.Out.Write(manifest)
	return err
}
