// Command syncer makes Rancher Fleet's objects follow Cluster API's Clusters. With the
// argument render it prints those objects for given manifests, without a cluster; with audit,
// what was never authorized in a cluster; with agent-manifest, the manifest of a Cluster's
// agent.
package main

import (
	"context"
	"os"

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
}

func (o *options) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&o.namespace, "namespace", "", "The only namespace whose Clusters are watched; all if empty.")
	fs.StringVar(&o.WatchFilter, "watch-filter", "", "Watch only Clusters and ClusterClasses whose label cluster.x-k8s.io/watch-filter has this value; all if empty.")
	fs.IntVar(&o.ClusterConcurrency, "cluster-concurrency", 10, "How many Clusters are reconciled at once.")
	fs.DurationVar(&o.StaleAfter, "stale-after", stamp.DefaultStaleAfter, "How long Fleet's agent on a cluster may be silent before FleetBundlesReady is Unknown: more than Fleet's agentCheckinInterval.")
	fs.IntVar(&o.ClassConcurrency, "clusterclass-concurrency", 4, "How many ClusterGroups, and how many BundleNamespaceMappings, are reconciled at once.")
}

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
	if err := o.Begin("syncer", args, o.addTo, o.Election.AddTo); err != nil {
		return err
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
