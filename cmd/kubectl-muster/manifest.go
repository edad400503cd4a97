package main

import (
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/handout"
)

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
			manifest, err := handout.Manifest(cmd.Context(), reader, key)
			if err != nil {
				return err
			}
			_, err = o.Out.Write(manifest)
			return err
		},
	}
}
