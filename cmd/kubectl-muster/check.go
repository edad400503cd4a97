package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/source"
)

type checkOptions struct {
	treeOptions
	wait    bool
	timeout time.Duration
	quiet   bool
}

func newCheck(common *options) *cobra.Command {
	o := &checkOptions{treeOptions: treeOptions{options: common, output: newOutput(common, "tree", "wide"), problems: true, fold: true}}
	cmd := &cobra.Command{
		Use:   "check [CLASS|CLUSTER]",
		Short: "Exit with 0 only if all clusters are healthy",
		Long: `Exit with 0 only if all clusters, or those of a class, or one cluster, are healthy.

Exit codes: 0 all are healthy, or deliberately left as they are; 1 some are not, and are
printed; 2 unknown: wrong arguments, no such class or Cluster, no answer, or missing
rights.

A Bundle that is for these clusters is unhealthy if Fleet cannot process it, if it failed on
a cluster, or if another has the same name on one. One that waits is not.

Without a name, the command also warns about Bundles whose rolloutStrategy has partitions
that do not gate: Fleet does not wait for one, never updates it, or leaves Clusters out. A
warning says what to write instead, and does not change the exit code. Notes say if
Muster's CRDs are older than the syncer, if the FleetAddonConfig lets secret fields into the
template values, and if the version of Fleet has a known defect.`,
		Example: `  kubectl muster check
  kubectl muster check team-a/prod --wait --timeout=15m`,
		Args:              withUsage(o.nameOf),
		ValidArgsFunction: o.completeNames,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.run(cmd.Context())
			if o.quiet && err != nil {
				return program.Exit(program.ExitCode(err), errors.New("")) // Only the exit code tells.
			}
			return err
		},
	}
	o.addPictureTo(cmd)
	o.output.addTo(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&o.wait, "wait", false, "Wait until all clusters are healthy.")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Minute, "How long --wait waits.")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "Print nothing.")
	addStaleAfter(cmd, &o.staleAfter)
	return cmd
}

// again is the pause between two looks of a command that waits. It reads once more instead of watching, because
// neither the Bundles nor the changes of a release are watched anywhere.
const again = 2 * time.Second

// essential are the kinds without which the command has no answer.
var essential = []view.Kind{view.Cluster, view.FleetCluster}

func (o *checkOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(o.timeout)
	for {
		seen, err := o.observe(ctx, reader)
		isLast := !o.wait || time.Now().After(deadline)
		if err == nil && (isLast || seen.isFine()) { // While Clusters are unhealthy, Bundles, which are large, need not be read.
			seen.inspection, err = o.inspect(ctx, reader, seen.objects, seen.graph)
		}
		switch {
		case err == nil && seen.isFine():
			return o.report(ctx, seen)
		case err == nil && isLast:
			return o.timedOut(o.report(ctx, seen))
		case isLast:
			return o.timedOut(program.Exit(2, err))
		}
		select {
		case <-ctx.Done():
			return program.Exit(2, ctx.Err())
		case <-time.After(again):
		}
	}
}

// timedOut adds to the error of the last look that --wait ended without success.
func (o *checkOptions) timedOut(err error) error {
	if !o.wait {
		return err
	}
	return fmt.Errorf("timed out after %s: %w", o.timeout, err)
}

// observed is what a look at the management cluster shows.
type observed struct {
	objects *view.Objects
	// graph has no healthy part.
	graph *view.Graph
	// unread is an error about objects that could not be read.
	unread     error
	inspection *source.Inspection
}

// isFine reports whether no action is needed.
func (s *observed) isFine() bool { return s.unread == nil && len(s.graph.Roots) == 0 }

func (o *checkOptions) observe(ctx context.Context, reader client.Reader) (*observed, error) {
	objects, err := source.Read(ctx, reader, o.scope())
	if err != nil {
		return nil, err
	}
	objects.StaleAfter = o.staleAfter
	result := &observed{objects: objects}
	for _, kind := range essential {
		if why := objects.Unread[kind]; why != "" {
			result.unread = errors.Join(result.unread, fmt.Errorf("the state is unknown: %s: %s", kind.Plural(), why))
		}
	}
	result.graph, err = view.Build(objects).Choose(view.Choice{Name: o.name, Fold: o.fold, Problems: true})
	if err != nil {
		return nil, err
	}
	if o.name == "" {
		result.graph.Notes = slices.Clone(result.graph.Notes)
		for _, note := range []string{view.OlderCRDs(objects.Config), view.SecretsLetIn(objects.Config), defects.Message(fleetVersion(ctx, reader, objects.Config))} {
			if note != "" {
				result.graph.Notes = append(result.graph.Notes, message.Text(note))
			}
		}
	}
	return result, nil
}

// fleetVersion returns the version of Fleet that runs, from its Deployment, or if the user may not read that, from the
// status of the FleetAddonConfig. It is nil if neither says it.
func fleetVersion(ctx context.Context, reader client.Reader, config *addonsv1.FleetAddonConfig) *semver.Version {
	controller := &appsv1.Deployment{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: stamp.FleetSystem, Name: "fleet-controller"}, controller); err == nil {
		return defects.Running(controller)
	}
	if config == nil {
		return nil
	}
	version, _ := semver.NewVersion(config.Status.InstalledVersion) // An error leaves it nil.
	return version
}

// troubles counts the unhealthy nodes by reason.
func troubles(graph *view.Graph) string {
	counts := map[string]int{}
	graph.Walk(func(node, _ *view.Node) {
		if node.State != view.Ready && node.State != view.Inactive {
			counts[node.Reason]++
		}
	})
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// report prints the graph and, unless the user names a class or a Cluster, warnings about Bundles.
func (o *checkOptions) report(ctx context.Context, seen *observed) error {
	if !o.quiet {
		if o.name == "" {
			warnings, notes, err := seen.inspection.Rollouts(ctx)
			if err != nil {
				return program.Exit(2, errors.Join(seen.unread, err))
			}
			seen.graph.Warnings, seen.graph.Notes = warnings, append(seen.graph.Notes, notes...)
		}
		if err := o.print(o.Out, seen.graph); err != nil {
			return err
		}
	}
	switch {
	case seen.unread != nil:
		return program.Exit(2, seen.unread)
	case seen.isFine():
		return nil
	default:
		return program.Exit(1, fmt.Errorf("not healthy: %s", troubles(seen.graph)))
	}
}
