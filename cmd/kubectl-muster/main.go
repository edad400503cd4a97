// Command kubectl-muster is the command line of Muster, as `kubectl muster`, or as `muster` if the file has that
// name. It reads a management cluster with the rights of its user, or manifests without a cluster. Only rollout
// promote, retry and abort change something.
package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/version"
)

func main() { program.Main(calledAs(), run) }

func run(ctx context.Context, args []string) error {
	return execute(ctx, args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
}

func execute(ctx context.Context, args []string, streams genericiooptions.IOStreams) error {
	root := newRoot(newOptions(streams))
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// plugin is the name of the program's file as a plugin of kubectl.
const plugin = "kubectl-muster"

// calledAs returns the name by which the program was called. Any name but "muster" means that kubectl called it.
func calledAs() string {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "muster" {
		return "muster"
	}
	return plugin
}

func newRoot(o *options) *cobra.Command {
	called := calledAs()
	root := &cobra.Command{
		Use:   called,
		Short: "See which clusters are in Fleet, what is on them, and why",
		Long: `See which clusters are in Fleet, what is on them, and why; and try manifests out before
you apply them. It has your own rights; only rollout promote, retry and abort change something.`,
		Args:          withUsage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: strings.Replace(called, "-", " ", 1)},
	}
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.ErrOut)
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n") // As the other programs.
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return program.Exit(2, err) })
	o.addTo(root.PersistentFlags())
	addGroup(root, "A management cluster, or files from one (-f):", newTree(o), newTrace(o), newCheck(o), newView(o))
	addGroup(root, "Manifests, without a cluster (-f):", newLint(o), newRender(o))
	addGroup(root, "HelmChartProxies:", newRollout(o))
	addGroup(root, "For administrators:", newPlan(o), newAudit(o), newAgentManifest(o))
	fold(root)
	return root
}

// withUsage gives wrong arguments the same exit code as wrong flags.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return program.Exit(2, err)
		}
		return nil
	}
}
