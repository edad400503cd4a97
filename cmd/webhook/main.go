// Command webhook stamps Cluster API's Clusters as they are applied, and refuses Clusters
// and FleetAddonConfigs that would go wrong later. `webhook check` says the same of
// manifests, without a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/sync/apply"
)

type options struct {
	program.Flags
	port    int
	certDir string
}

func (o *options) addTo(fs *pflag.FlagSet) {
	o.Flags.AddTo(fs)
	fs.IntVar(&o.port, "webhook-port", 9443, "The port the webhooks are served on.")
	fs.StringVar(&o.certDir, "webhook-cert-dir", "/etc/muster/webhook-tls", "The directory with tls.crt and tls.key. A renewed certificate is served without a restart.")
}

func main() { program.Main("webhook", run) }

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "check" {
		return runCheck(ctx, args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	var o options
	fs := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	o.addTo(fs)
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if err := o.SetUpLogging(); err != nil {
		return err
	}
	mgr, err := newManager(&o)
	if err != nil {
		return err
	}
	if err := admission.Setup(mgr); err != nil {
		return err
	}
	readiness := &admission.Readiness{Cache: mgr.GetCache(), Port: o.port, CertDir: o.certDir}
	if err := mgr.AddReadyzCheck("serving", readiness.Check); err != nil {
		return err
	}
	if err := metrics.Certificate("mounted", readiness.MountedUntil); err != nil {
		return err
	}
	if err := metrics.Certificate("served", readiness.ServedUntil); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(o *options) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	tlsOptions, diagnostics, err := flags.GetManagerOptions(o.Manager)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{SyncPeriod: &o.SyncPeriod, DefaultTransform: apply.TrimCached},
		Metrics:                *diagnostics,
		HealthProbeBindAddress: o.HealthAddress,
		WebhookServer:          webhook.NewServer(webhook.Options{Port: o.port, CertDir: o.certDir, TLSOpts: tlsOptions}),
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return mgr, mgr.AddHealthzCheck("ping", healthz.Ping)
}
