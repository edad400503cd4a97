package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/defects"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/version"
)

type versionOptions struct {
	*options
	output *output
}

func newVersion(common *options) *cobra.Command {
	o := &versionOptions{options: common, output: newOutput(common, "text", "wide")}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of Muster's components",
		Long: `Print the version of this command, and of each of Muster's components by the image of its
Deployment, and whether they may run side by side. Look only at a namespace with -n.`,
		Example: "  kubectl muster version",
		Args:    withUsage(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.output.addTo(cmd)
	return cmd
}

// versions are the versions of the command and of the components.
type versions struct {
	Client     string      `json:"client"`
	Components []component `json:"components"`
	// Skew says how the versions differ; empty if they do not.
	Skew string `json:"skew,omitempty"`
}

// component is one of Muster's Deployments.
type component struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Image     string `json:"image"`
}

func (o *versionOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	build := version.Get()
	if o.output.isOwn() { // Even if the cluster does not answer.
		fmt.Fprintf(o.Out, "this command: %s\n", build)
	}
	cluster, err := o.client()
	if err != nil {
		return err
	}
	deployments := &appsv1.DeploymentList{}
	if err := cluster.List(ctx, deployments, client.InNamespace(o.scope().Namespace), client.MatchingLabels{"app.kubernetes.io/name": "muster"}); err != nil {
		return program.Exit(2, fmt.Errorf("reading the Deployments of Muster: %w", err))
	}
	found := versionsOf(build.Version, deployments.Items)
	if o.output.isOwn() {
		return found.write(o.Out)
	}
	var about []runtime.Object
	for _, its := range found.Components {
		about = append(about, identity(appsv1.SchemeGroupVersion.WithKind("Deployment"), its.Name))
	}
	return o.output.print("Versions", found, about, o.Out)
}

// versionsOf returns the versions of the command and of the components, and compares them.
func versionsOf(own string, deployments []appsv1.Deployment) *versions {
	result := &versions{Client: own, Components: []component{}}
	known := map[string]*semver.Version{}
	add := func(its *semver.Version) {
		if its != nil {
			known[its.String()] = its
		}
	}
	client, _ := semver.NewVersion(own) // An error leaves it nil: a build between releases has no number.
	add(client)
	for i := range deployments {
		for _, container := range deployments[i].Spec.Template.Spec.Containers {
			result.Components = append(result.Components, component{deployments[i].Namespace, deployments[i].Name, container.Image})
			add(defects.ImageVersion(container.Image))
		}
	}
	slices.SortFunc(result.Components, func(a, b component) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	result.Skew = skewOf(known)
	return result
}

// skewOf applies the rule in docs/support.md: parts may be one minor release apart.
func skewOf(known map[string]*semver.Version) string {
	var all []*semver.Version
	for _, its := range known {
		all = append(all, its)
	}
	if len(all) < 2 {
		return ""
	}
	slices.SortFunc(all, (*semver.Version).Compare)
	oldest, newest := all[0], all[len(all)-1]
	text := fmt.Sprintf("the versions differ, from %s to %s; ", oldest, newest)
	if oldest.Major() != newest.Major() || newest.Minor()-oldest.Minor() > 1 {
		return text + "more than one minor release apart is not supported: upgrade one minor release at a time"
	}
	return text + "one minor release apart is supported"
}

func (v *versions) write(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	for _, its := range v.Components {
		fmt.Fprintf(table, "%s/%s\t%s\n", its.Namespace, its.Name, its.Image)
	}
	if len(v.Components) == 0 {
		fmt.Fprintln(table, "no component of Muster runs here")
	}
	if v.Skew != "" {
		fmt.Fprintln(table, "skew: "+v.Skew)
	}
	return table.Flush()
}
