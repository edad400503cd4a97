// Command charts carries out HelmChartProxies with Fleet: it downloads charts, renders the
// values of each selected Cluster, and has Fleet deploy them.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/muster-fleet/muster/internal/charts"
	"github.com/muster-fleet/muster/internal/program"
)

type options struct {
	program.Flags
	program.Election
	charts.Options
}

func (o *options) addTo(fs *pflag.FlagSet) {
	o.Flags.AddTo(fs)
	o.Election.AddTo(fs)
	o.Options.AddTo(fs)
}

func main() { program.Main("charts", run) }

func run(ctx context.Context, args []string) error {
	var o options
	fs := pflag.NewFlagSet("charts", pflag.ContinueOnError)
	o.addTo(fs)
	if err := program.Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	if err := o.SetUpLogging(); err != nil {
		return err
	}
	// Helm's library speaks through slog.
	slog.SetDefault(slog.New(logr.ToSlogHandler(ctrl.Log.WithName("helm"))))
	program.Announce(ctrl.Log, "charts")
	mgr, err := newManager(&o)
	if err != nil {
		return err
	}
	if err := charts.Setup(ctx, mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(o *options) (ctrl.Manager, error) {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	o.Options.SyncPeriod = &o.Flags.SyncPeriod
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	_, metrics, err := o.ManagerOptions()
	if err != nil {
		return nil, err
	}
	managerOptions := ctrl.Options{
		Scheme:                  scheme,
		Cache:                   o.Options.Cache(),
		Metrics:                 *metrics,
		HealthProbeBindAddress:  o.HealthAddress,
		GracefulShutdownTimeout: ptr.To(10 * time.Second),
		// CRDs may come later: until they do, watching waits rather than ends the program.
		Controller: config.Controller{ReconciliationTimeout: 2 * time.Minute, CacheSyncTimeout: 10 * time.Minute},
	}
	o.Set(&managerOptions, charts.Lease)
	mgr, err := ctrl.NewManager(restConfig, managerOptions)
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}
