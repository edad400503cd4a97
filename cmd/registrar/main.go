// Command registrar registers Clusters in Fleet before their agents call, for clusters that
// the management cluster cannot reach, and hands out a manifest for each.
package main

import (
	"context"
	"os"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/registrar"
	"github.com/muster-fleet/muster/internal/stamp"
)

type options struct {
	program.Flags
	program.Election
	registrar.Options
}

func (o *options) addTo(fs *pflag.FlagSet) {
	o.Flags.AddTo(fs)
	o.Election.AddTo(fs)
	o.Options.AddTo(fs)
}

func main() { program.Main("registrar", run) }

func run(ctx context.Context, args []string) error {
	var o options
	fs := pflag.NewFlagSet("registrar", pflag.ContinueOnError)
	o.addTo(fs)
	if err := program.Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	if err := o.SetUpLogging(); err != nil {
		return err
	}
	program.Announce(ctrl.Log, "registrar")
	mgr, err := program.NewManager(&o.Flags, &o.Election, stamp.RegistrarLease, o.Cache())
	if err != nil {
		return err
	}
	if err := registrar.Setup(ctx, mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
