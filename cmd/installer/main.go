// Command installer manages Fleet itself as the FleetAddonConfig specifies: it installs and upgrades Fleet's
// charts, and configures Fleet.
package main

import (
	"context"
	"errors"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/muster-fleet/muster/internal/installer"
	"github.com/muster-fleet/muster/internal/installer/releases"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

type options struct {
	program.Flags
	program.Election
	installer.Options
}

func main() { program.Main("installer", run) }

func run(ctx context.Context, args []string) error {
	var o options
	if err := o.Begin("installer", args, o.Election.AddTo, o.Options.AddTo); err != nil {
		return err
	}
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		return errors.New("the environment variable POD_NAMESPACE must name the namespace of the installer")
	}
	mgr, err := program.NewManager(&o.Flags, &o.Election, stamp.InstallerLease, cache.Options{DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return err
	}
	releases, err := releases.New(mgr.GetConfig(), installer.FleetNamespace, ctrl.Log.WithName("helm"))
	if err != nil {
		return err
	}
	if err := installer.Setup(mgr, o.Options, namespace, releases, installer.Open); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
