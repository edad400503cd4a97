package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	fullNamespace = "bench-team"
	fullClasses   = "bench-classes"
	fullBundle    = "bench"
	// maxTargeted is how long after its import a Cluster may be without a bundle.
	maxTargeted = 10 * time.Second
)

// measureFull lets Cluster API provision Clusters in memory and Fleet target a bundle at
// them, beside which the syncer has to do its work.
func measureFull(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.Options{Profile: stack.Full})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	if err := s.prepareFull(ctx); err != nil {
		return nil, err
	}
	seen, err := s.watchFull(ctx)
	if err != nil {
		return nil, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return nil, err
	}
	s.say("Cluster API provisions %d Clusters", o.n)
	keys := map[client.ObjectKey]time.Time{}
	for i := range o.n {
		key := client.ObjectKey{Namespace: fullNamespace, Name: fmt.Sprintf("cluster-%03d", i)}
		keys[key] = p.start
		cluster := stack.TopologyCluster{Namespace: key.Namespace, Name: key.Name, ClassNamespace: fullClasses}
		if err := s.env.Apply(ctx, cluster.YAML()); err != nil {
			return nil, err
		}
	}
	if err := p.written(ctx, keys); err != nil {
		return nil, err
	}
	s.say("all are imported")
	if err := seen.allDeployed(ctx, keys); err != nil {
		return nil, err
	}
	if _, err := p.read(); err != nil {
		return nil, err
	}
	syncerMemory, err := s.memory(syncer)
	if err != nil {
		return nil, err
	}
	return []report.Table{fullTable(o, p, seen, keys, syncerMemory)}, nil
}

func (s *session) prepareFull(ctx context.Context) error {
	if err := s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s}
---
apiVersion: v1
kind: Namespace
metadata: {name: %s}
`, fullClasses, fullNamespace)); err != nil {
		return err
	}
	class, err := s.env.InMemoryClusterClass(fullClasses)
	if err != nil {
		return err
	}
	if err := s.env.Apply(ctx, class); err != nil {
		return err
	}
	if err := s.env.WaitForClusterClass(ctx, fullClasses, stack.InMemoryClass); err != nil {
		return err
	}
	return s.env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %s, name: %s}
spec:
  targets: [{clusterSelector: {}}]
  resources:
  - name: values.yaml
    content: "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: bench}}"
`, fullClasses, fullBundle))
}

// sightings are when something was first seen to be so, by Cluster.
type sightings struct {
	mu                    sync.Mutex
	initialized, deployed map[client.ObjectKey]time.Time
}

func (s *sightings) note(in map[client.ObjectKey]time.Time, key client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := in[key]; !known {
		in[key] = time.Now()
	}
}

// watchFull watches Clusters until their control planes are initialized, and
// BundleDeployments until there is one of the bundle for each.
func (s *session) watchFull(ctx context.Context) (*sightings, error) {
	watcher, err := fixture.Client(s.env)
	if err != nil {
		return nil, err
	}
	seen := &sightings{initialized: map[client.ObjectKey]time.Time{}, deployed: map[client.ObjectKey]time.Time{}}
	clusters, err := watcher.Watch(ctx, &clusterv1.ClusterList{}, client.InNamespace(fullNamespace))
	if err != nil {
		return nil, err
	}
	deployments, err := watcher.Watch(ctx, &fleetv1.BundleDeploymentList{})
	if err != nil {
		return nil, err
	}
	go seen.follow(clusters, func(object any) {
		if cluster, ok := object.(*clusterv1.Cluster); ok && ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
			seen.note(seen.initialized, client.ObjectKeyFromObject(cluster))
		}
	})
	go seen.follow(deployments, func(object any) {
		if deployment, ok := object.(*fleetv1.BundleDeployment); ok && deployment.Labels["fleet.cattle.io/bundle-name"] == fullBundle {
			seen.note(seen.deployed, client.ObjectKey{
				Namespace: deployment.Labels["fleet.cattle.io/cluster-namespace"], Name: deployment.Labels["fleet.cattle.io/cluster"]})
		}
	})
	return seen, nil
}

func (s *sightings) follow(events watch.Interface, see func(any)) {
	for event := range events.ResultChan() {
		see(event.Object)
	}
}

// allDeployed waits until Fleet has made a BundleDeployment for each Cluster.
func (s *sightings) allDeployed(ctx context.Context, keys map[client.ObjectKey]time.Time) error {
	return poll.Until(ctx, "a BundleDeployment for each Cluster", patience, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for key := range keys {
			if _, ok := s.deployed[key]; !ok {
				return fmt.Errorf("%s has none; %d have one", key, len(s.deployed))
			}
		}
		return nil
	})
}

func fullTable(o options, p *phase, seen *sightings, keys map[client.ObjectKey]time.Time, syncerMemory usage.Memory) report.Table {
	seen.mu.Lock()
	defer seen.mu.Unlock()
	written := p.requests.fleetWrites(keys)
	var imported, deployed []time.Duration
	for key := range keys {
		// What was seen late was so earlier: then it took no time.
		imported = append(imported, max(0, written[key].completed.Sub(seen.initialized[key])))
		deployed = append(deployed, max(0, seen.deployed[key].Sub(written[key].completed)))
	}
	table := report.Table{Title: "The whole: Cluster API provisions, Fleet targets"}
	table.Note("%d Clusters of the in-memory provider at once, in one namespace, their class in another; one bundle that matches all", o.n)
	table.Note("from the watch event that shows the control plane initialized until the answer to the write of the Fleet Cluster, and from there until the watch event of the BundleDeployment")
	table.Note("requests of the syncer, until all are targeted: %s", p.requests)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p99", .99}} {
		table.Add(report.Value("initialized to imported, "+q.name, "ms", report.Milliseconds(report.Quantile(imported, q.at))))
	}
	table.Add(
		report.Value("imported to targeted by Fleet, longest", "s", report.Quantile(deployed, 1).Seconds()).AtMost(maxTargeted.Seconds()),
		report.Value("writes per Cluster, from its creation", "", float64(len(p.requests.of(write, false)))/float64(o.n)),
		report.Value("GET and LIST", "", float64(len(p.requests.of(read, false)))).AtMost(0),
		report.Value("syncer", "MiB", syncerMemory.Now),
	)
	return table
}
