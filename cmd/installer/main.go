// Command installer keeps Fleet itself as the FleetAddonConfig says: it installs and upgrades
// Fleet's charts, and sets Fleet up.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/installer"
	"github.com/muster-fleet/muster/internal/installer/releases"
	"github.com/muster-fleet/muster/internal/manifests"
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
	if len(args) > 0 && args[0] == "plan" {
		return plan(ctx, args[1:], os.Stdin, os.Stdout)
	}
	var o options
	if err := o.Begin("installer", args, o.Election.AddTo, o.Options.AddTo); err != nil {
		return err
	}
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		return errors.New("the environment variable POD_NAMESPACE does not say where the installer runs")
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

// plan shows, with a person's own kubeconfig and rights, what the installer would do.
func plan(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	fs := pflag.NewFlagSet("installer plan", pflag.ContinueOnError)
	file := fs.StringP("file", "f", "", "A FleetAddonConfig to look at instead of the one on the cluster; - for standard input.")
	if err := program.Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return err
	}
	cluster, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	wanted, err := configFrom(ctx, cluster, *file, stdin)
	if err != nil {
		return err
	}
	releases, err := releases.New(config, installer.FleetNamespace, logr.Discard())
	if err != nil {
		return err
	}
	return installer.Preview(ctx, cluster, releases, installer.Open, wanted, stdout)
}

// configFrom reads the FleetAddonConfig from a file, or from the cluster.
func configFrom(ctx context.Context, cluster client.Client, file string, stdin io.Reader) (*addonsv1.FleetAddonConfig, error) {
	config := &addonsv1.FleetAddonConfig{}
	if file == "" {
		if err := cluster.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
			return nil, fmt.Errorf("reading the FleetAddonConfig: %w", err)
		}
		return config, nil
	}
	objects, problems := manifests.Read([]string{file}, stdin)
	if len(problems) > 0 {
		return nil, problems[0]
	}
	for _, object := range objects {
		if object.Kind == "FleetAddonConfig" && object.APIVersion == addonsv1.GroupVersion.String() {
			return config, json.UnmarshalCaseSensitivePreserveInts(object.Raw, config)
		}
	}
	return nil, fmt.Errorf("%s holds no FleetAddonConfig", file)
}
