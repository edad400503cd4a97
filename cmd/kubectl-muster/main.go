// Command kubectl-muster is the command line of Muster, as `kubectl muster`, or as `muster` if the file has that
// name. It reads a management cluster with the rights of its user, or manifests without a cluster. Only rollout
// promote, retry and abort change something.
package main

import (
	"context"
	"fmt"
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
		Args:          withUsage(noCommand),
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
	root.SetFlagErrorFunc(misused)
	o.addTo(root)
	addGroup(root, "A management cluster, or files from one (-f):", newTree(o), newTrace(o), newCheck(o), newView(o))
	addGroup(root, "Manifests, without a cluster (-f):", newLint(o), newRender(o))
	addGroup(root, "HelmChartProxies:", newRollout(o))
	addGroup(root, "For administrators:", newPlan(o), newAudit(o), newAgentManifest(o), newVersion(o))
	fold(root)
	return root
}

// misused is the error for wrong arguments and flags, with the command that explains them.
func misused(cmd *cobra.Command, err error) error {
	return program.Exit(2, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
}

// withUsage gives wrong arguments the same error as wrong flags.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return misused(cmd, err)
		}
		return nil
	}
}

// noCommand refuses the name of a command that does not exist, and suggests similar ones. Cobra does so for the root
// only, and not with an exit code of its own.
func noCommand(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	cmd.SuggestionsMinimumDistance = 2 // Cobra's default.
	if err == nil {
		return nil
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("%w (did you mean %s?)", err, strings.Join(similar, " or "))
	}
	return err
}
