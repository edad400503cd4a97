package main

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/installer"
	"github.com/muster-fleet/muster/internal/installer/releases"
	"github.com/muster-fleet/muster/internal/program"
)

type planOptions struct {
	*options
	output *output
}

func newPlan(common *options) *cobra.Command {
	o := &planOptions{options: common, output: newOutput(common, "text", "wide")}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what the installer would change about Fleet itself",
		Long: `Show what the installer would do for the FleetAddonConfig of a cluster, or for one in a
file: a line for each object of Fleet's charts that would be added (+), changed (~, with
the fields) or removed (-). It downloads the charts, and changes nothing.`,
		Example: "  kubectl muster plan\n  kubectl muster plan -f fleetaddonconfig.yaml",
		Args:    withUsage(onlyFiles),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.addFilesTo(cmd, "Use this FleetAddonConfig instead of the one on the cluster.")
	o.output.addTo(cmd)
	return cmd
}

func (o *planOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	config, err := o.config()
	if err != nil {
		return err
	}
	cluster, err := o.client()
	if err != nil {
		return err
	}
	wanted, err := o.wanted(ctx, cluster)
	if err != nil {
		return program.Exit(2, err)
	}
	releases, err := releases.New(config, installer.FleetNamespace, logr.Discard())
	if err != nil {
		return program.Exit(2, err)
	}
	preview, failed := installer.Preview(ctx, cluster, releases, installer.Open, wanted)
	if o.output.isOwn() {
		err = preview.Write(o.Out)
	} else if failed == nil {
		err = o.output.print("Plan", preview, []runtime.Object{identity(addonsv1.GroupVersion.WithKind("FleetAddonConfig"), addonsv1.FleetAddonConfigName)}, o.Out)
	}
	if failed != nil {
		return failed
	}
	return err
}

// wanted reads the FleetAddonConfig from the files, or from the cluster.
func (o *planOptions) wanted(ctx context.Context, cluster client.Reader) (*addonsv1.FleetAddonConfig, error) {
	config := &addonsv1.FleetAddonConfig{}
	if !o.given() {
		if err := cluster.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
			return nil, fmt.Errorf("reading the FleetAddonConfig: %w", err)
		}
		return config, nil
	}
	objects, problems, err := o.read(o.In)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problems[0]
	}
	for _, object := range objects {
		if object.Kind == "FleetAddonConfig" && object.APIVersion == addonsv1.GroupVersion.String() {
			return config, json.UnmarshalCaseSensitivePreserveInts(object.Raw, config)
		}
	}
	return nil, fmt.Errorf("there is no FleetAddonConfig in %v", o.filenames)
}
