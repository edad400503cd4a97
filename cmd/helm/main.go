// Command helm deploys HelmChartProxies with Fleet: it downloads charts, renders the values of each selected
// Cluster, and makes Fleet deploy them.
package main

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/muster-fleet/muster/internal/helm"
	"github.com/muster-fleet/muster/internal/helm/worker"
	"github.com/muster-fleet/muster/internal/program"
)

type options struct {
	program.Flags
	program.Election
	helm.Options
}

func main() {
	if !worker.Main() {
		program.Main("helm", run)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	if err := o.Begin("helm", args, o.Election.AddTo, o.Options.AddTo); err != nil {
		return err
	}
	// Helm's library logs with slog.
	slog.SetDefault(slog.New(logr.ToSlogHandler(ctrl.Log.WithName("helm"))))
	o.Options.SyncPeriod = &o.Flags.SyncPeriod
	mgr, err := program.NewManager(&o.Flags, &o.Election, helm.Lease, o.Options.Cache())
	if err != nil {
		return err
	}
	if err := helm.Setup(ctx, mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
