// Command kubectl-muster shows what Muster, Cluster API and Fleet make of a management
// cluster, with the rights of the person who runs it: kubectl muster tree, trace, view and
// check. It changes nothing.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/version"
)

func main() { program.Main("kubectl-muster", run) }

func run(ctx context.Context, args []string) error {
	return execute(ctx, args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
}

func execute(ctx context.Context, args []string, streams genericiooptions.IOStreams) error {
	root := newRoot(newOptions(streams))
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func newRoot(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-muster",
		Short: "See which clusters are in Fleet, what is on them, and whose turn it is",
		Long: `See which clusters are in Fleet, what is on them, and whose turn it is.

Everything is read with your own kubeconfig and rights, or from a file (-f), and
nothing is changed. What you may not read is shown as such.`,
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl muster"},
	}
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.ErrOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return program.Exit(2, err) })
	o.addTo(root.PersistentFlags())
	root.AddCommand(newTree(o), newTrace(o), newCheck(o), newView(o), newAgentManifest(o))
	return root
}

// withUsage has a command whose arguments are wrong exit as one whose flags are.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return program.Exit(2, err)
		}
		return nil
	}
}
