package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/render"
)

type renderOptions struct {
	*options
	output *output
}

func newRender(common *options) *cobra.Command {
	o := &renderOptions{options: common, output: newOutput(common, "yaml")}
	cmd := &cobra.Command{
		Use:   "render -f FILE",
		Short: "Print the Fleet objects that manifests lead to, without a cluster",
		Long: `Print the Fleet objects that manifests lead to once every control plane is initialized.
You need no cluster. Notes on standard error point out what the objects do not show.

The command fails for manifests that cannot be used, and for two Clusters that would share
a Fleet Cluster.`,
		Example: `  kubectl muster render -f clusters.yaml -f fleetaddonconfig.yaml`,
		Args:    withUsage(onlyFiles),
		RunE:    func(*cobra.Command, []string) error { return o.run() },
	}
	o.addFilesTo(cmd, "Manifests: Clusters, ClusterClasses, Namespaces, a FleetAddonConfig, HelmChartProxies, and the objects that Clusters refer to.")
	o.output.addTo(cmd)
	return cmd
}

func (o *renderOptions) run() error {
	if err := o.output.check(); err != nil {
		return err
	}
	objects, problems, err := o.read(o.In)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return problems[0]
	}
	result, err := render.Render(objects)
	if err != nil {
		return err
	}
	for _, note := range result.Notes {
		fmt.Fprintln(o.ErrOut, "note:", note)
	}
	for _, object := range result.Objects {
		if err := o.print(object); err != nil {
			return err
		}
	}
	return nil
}

func (o *renderOptions) print(object map[string]any) error {
	if !o.output.isOwn() {
		printer, err := o.output.printer()
		if err != nil {
			return err
		}
		return printer.PrintObj(&unstructured.Unstructured{Object: object}, o.Out)
	}
	document, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "---\n%s", document)
	return err
}
