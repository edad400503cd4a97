// Command syncer makes Rancher Fleet's objects follow Cluster API's Clusters. With the
// argument render it prints those objects for given manifests, without a cluster; with
// audit it lists what nobody was asked about in a cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/sync"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

type options struct {
	program.Flags
	sync.Options
	program.Election
	namespace string
}

func (o *options) addTo(fs *pflag.FlagSet) {
	o.Flags.AddTo(fs)
	fs.StringVar(&o.namespace, "namespace", "", "The only namespace whose Clusters are watched; all if empty.")
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only Clusters and ClusterClasses whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.ClusterConcurrency, "cluster-concurrency", 10, "How many Clusters are reconciled at once.")
	fs.IntVar(&o.ClassConcurrency, "clusterclass-concurrency", 4, "How many ClusterGroups, and how many BundleNamespaceMappings, are reconciled at once.")
	o.Election.AddTo(fs)
}

// cacheSyncTimeout is how long first lists may take until the program gives up and is
// started anew, with the same lists to wait for: longer than thousands of Clusters take on
// a busy API server.
const cacheSyncTimeout = 10 * time.Minute

func main() { program.Main("syncer", run) }

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "render":
			return runRender(args[1:], os.Stdin, os.Stdout, os.Stderr)
		case "audit":
			return runAudit(ctx, args[1:], os.Stdout, os.Stderr)
		case "agent-manifest":
			return runAgentManifest(ctx, args[1:], os.Stdout, os.Stderr)
		}
	}
	var o options
	fs := pflag.NewFlagSet("syncer", pflag.ContinueOnError)
	o.addTo(fs)
	if err := program.Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	if err := o.SetUpLogging(); err != nil {
		return err
	}
	program.Announce(ctrl.Log, "syncer")
	mgr, err := newManager(&o)
	if err != nil {
		return err
	}
	if err := sync.Setup(mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(o *options) (ctrl.Manager, error) {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	_, metrics, err := o.ManagerOptions()
	if err != nil {
		return nil, err
	}
	o.Cache = cache.Options{SyncPeriod: &o.SyncPeriod, DefaultTransform: observed.Trim}
	if o.namespace != "" {
		o.Cache.DefaultNamespaces = map[string]cache.Config{o.namespace: {}}
	}
	managerOptions := ctrl.Options{
		Scheme:                  scheme,
		Cache:                   o.Cache,
		Metrics:                 *metrics,
		HealthProbeBindAddress:  o.HealthAddress,
		GracefulShutdownTimeout: ptr.To(10 * time.Second),
		// Requests have no deadline of their own: if something in front of the API server
		// never ends a response, that request would block a worker until a restart.
		Controller: config.Controller{ReconciliationTimeout: 2 * time.Minute, CacheSyncTimeout: cacheSyncTimeout},
	}
	o.Election.Set(&managerOptions, "muster-syncer")
	mgr, err := ctrl.NewManager(restConfig, managerOptions)
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}
