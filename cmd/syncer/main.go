// Command syncer keeps Rancher Fleet's objects in line with Cluster API's Clusters.
package main

import (
	"context"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync"
)

type options struct {
	program.Flags
	sync.Options
	program.Election
	namespace string
	endHolds  bool
}

func (o *options) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.namespace, "namespace", "", "The only namespace whose Clusters are watched; all if empty.")
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only Clusters and ClusterClasses whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.ClusterConcurrency, "cluster-concurrency", 10, "How many Clusters are reconciled at once.")
	fs.DurationVar(&o.StaleAfter, "stale-after", stamp.DefaultStaleAfter, "How long Fleet's agent on a cluster may be silent before FleetBundlesReady becomes Unknown. Must be longer than Fleet's agentCheckinInterval.")
	fs.IntVar(&o.ClassConcurrency, "clusterclass-concurrency", 4, "How many ClusterGroups, and how many BundleNamespaceMappings, are reconciled at once.")
	fs.BoolVar(&o.endHolds, "end-upgrade-holds", false, "Instead of running, remove Muster's holds of upgrades from all Clusters, print which, and exit with success. The Helm chart's Job does so before an uninstallation.")
}

func main() { program.Main("syncer", run) }

func run(ctx context.Context, args []string) error {
	var o options
	if err := o.Begin("syncer", args, o.addTo, o.Election.AddTo); err != nil {
		return err
	}
	if o.endHolds {
		return endAllHolds(ctx)
	}
	o.Cache = cache.Options{SyncPeriod: &o.SyncPeriod, DefaultTransform: kube.Trim}
	if o.namespace != "" {
		o.Cache.DefaultNamespaces = map[string]cache.Config{o.namespace: {}}
	}
	mgr, err := program.NewManager(&o.Flags, &o.Election, "muster-syncer", o.Cache)
	if err != nil {
		return err
	}
	if err := sync.Setup(mgr, o.Options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
