// Command registrar registers Clusters in Fleet in advance, for clusters that the management cluster cannot reach,
// and issues a manifest for each.
package main

import (
	"context"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/registrar"
	"github.com/muster-fleet/muster/internal/stamp"
)

type options struct {
	program.Flags
	program.Election
	registrar.Options
}

func main() { program.Main("registrar", run) }

func run(ctx context.Context, args []string) error {
	var o options
	if err := o.Begin("registrar", args, o.Election.AddTo, o.Options.AddTo); err != nil {
		return err
	}
	mgr, err := program.NewManager(&o.Flags, &o.Election, stamp.RegistrarLease, o.Cache())
	if err != nil {
		return err
	}
	if err := registrar.Setup(mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
