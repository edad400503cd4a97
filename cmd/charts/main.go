// Command charts carries out HelmChartProxies with Fleet: it downloads charts, renders the
// values of each selected Cluster, and has Fleet deploy them.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

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
	o.Options.SyncPeriod = &o.Flags.SyncPeriod
	mgr, err := program.NewManager(&o.Flags, &o.Election, charts.Lease, o.Options.Cache())
	if err != nil {
		return err
	}
	if err := charts.Setup(ctx, mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
