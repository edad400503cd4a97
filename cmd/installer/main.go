// Command installer keeps Fleet itself as the FleetAddonConfig says: it installs and upgrades
// Fleet's charts, and sets Fleet up.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/muster-fleet/muster/internal/installer"
	"github.com/muster-fleet/muster/internal/installer/charts"
	"github.com/muster-fleet/muster/internal/installer/helm"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

type options struct {
	program.Flags
	program.Election
	installer.Options
}

func (o *options) addTo(fs *pflag.FlagSet) {
	o.Flags.AddTo(fs)
	o.Election.AddTo(fs)
	o.Options.AddTo(fs)
}

func main() { program.Main("installer", run) }

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "plan" {
		return plan(ctx, args[1:], os.Stdin, os.Stdout)
	}
	var o options
	fs := pflag.NewFlagSet("installer", pflag.ContinueOnError)
	o.addTo(fs)
	if err := program.Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	if err := o.SetUpLogging(); err != nil {
		return err
	}
	program.Announce(ctrl.Log, "installer")
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		return errors.New("the environment variable POD_NAMESPACE does not say where the installer runs")
	}
	mgr, err := program.NewManager(&o.Flags, &o.Election, stamp.InstallerLease, cache.Options{DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return err
	}
	releases, err := helm.New(mgr.GetConfig(), installer.FleetNamespace, ctrl.Log.WithName("helm"))
	if err != nil {
		return err
	}
	if err := installer.Setup(mgr, o.Options, namespace, releases, charts.Open); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
