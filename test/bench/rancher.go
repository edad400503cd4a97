package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/rancher/player"
)

const (
	rancherWorkspace = "fleet-default"
	// maxAttachment limits the writes of an attachment: the Fleet Cluster, the conditions and an event, as for an import.
	maxAttachment = 3
	// maxAttachedGrowth limits the memory of an attached Cluster, as a multiple of that of an imported one. Rancher's
	// two objects come on top; with a few hundred Clusters, the ratio varies.
	maxAttachedGrowth = 3
)

// measureRancher attaches Clusters to Fleet Clusters that Rancher, which is played, has made, and compares that with
// imports of as many Clusters before.
func measureRancher(ctx context.Context, s *session) error {
	if err := s.env.ApplyCRDs(ctx, player.CRDs()); err != nil {
		return err
	}
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	plain := s.clusters("plain", namespaces, classes)
	if err := s.warmUp(ctx, plain); err != nil {
		return err
	}
	r, err := newBesides(ctx, s)
	if err != nil {
		return err
	}
	count := s.n / 5
	first, err := s.atRest(ctx, syncer)
	if err != nil {
		return err
	}
	s.say("import %d Clusters", count)
	imported, err := s.importAtOnce(ctx, plain, count)
	if err != nil {
		return err
	}
	second, err := s.atRest(ctx, syncer)
	if err != nil {
		return err
	}
	s.say("attach %d Clusters", count)
	attached, err := r.attach(ctx, count)
	if err != nil {
		return err
	}
	third, err := s.atRest(ctx, syncer)
	if err != nil {
		return err
	}
	again, err := s.during(ctx, syncer, func(*phase) error { return r.applyAll(ctx) })
	if err != nil {
		return err
	}
	restarted, err := s.restartSyncer(ctx, 2*count)
	if err != nil {
		return err
	}
	each := func(all requests, kind string) float64 { return float64(len(all.of(kind))) / float64(count) }
	growth := func(before, after usage.Memory) float64 { return 1024 * (after.Now - before.Now) / float64(count) }
	t := table{title: "Clusters that Rancher manages"}
	t.note("%d Clusters of %d classes in %d namespaces, attached to Rancher's Fleet Clusters in one workspace; Turtles and Rancher are played", count, classes, namespaces)
	t.note("attached: from the first write of Rancher's Fleet Clusters until the syncer is quiet; before that, all Clusters wait for them; baseline: as many imports without Rancher, in the same run")
	t.add(
		value("writes per attachment", "", each(attached.requests, write)).against(each(imported.requests, write)).atMost(maxAttachment),
		value("GET and LIST", "", float64(len(attached.requests.of(read)))).against(float64(len(imported.requests.of(read)))).atMost(0),
		value("processor time per attachment", "ms", perOne(attached.cpu, count)).against(perOne(imported.cpu, count)),
		value("syncer, for each Cluster", "KiB", growth(second, third)).against(growth(first, second)).ratioAtMost(maxAttachedGrowth),
		nothing("writes and GETs when Rancher applies all again", again.requests),
		nothing("writes and GETs of a start", restarted.requests.afterStart()),
	)
	s.print(t)
	return nil
}

// besides plays Turtles and Rancher for Clusters that are marked for Turtles.
type besides struct {
	*generator
	session     *session
	player      *player.Player
	downstreams []*player.Downstream
}

// newBesides returns a besides that has attached one Cluster of each class in each namespace, so that all groups
// exist.
func newBesides(ctx context.Context, s *session) (*besides, error) {
	config, err := s.env.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	r := &besides{generator: s.clusters("marked", namespaces, classes), session: s, player: &player.Player{Admin: s.admin, Config: config}}
	r.labels = map[string]string{player.AutoImport: "true"}
	workspace := &corev1.Namespace{}
	workspace.Name = rancherWorkspace
	if err := client.IgnoreAlreadyExists(s.admin.Create(ctx, workspace)); err != nil {
		return nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	_, err = r.attach(ctx, namespaces*classes)
	return r, err
}

// attach makes new Clusters that wait for Rancher's Fleet Clusters, and measures the syncer from when Rancher makes
// these.
func (r *besides) attach(ctx context.Context, count int) (*phase, error) {
	from, to := r.take(count)
	if err := r.create(ctx, from, to, allFiles...); err != nil {
		return nil, err
	}
	if err := r.each(ctx, from, to, r.initialize); err != nil {
		return nil, err
	}
	r.downstreams = append(r.downstreams, make([]*player.Downstream, count)...)
	if err := r.each(ctx, from, to, r.prepareOne); err != nil {
		return nil, err
	}
	if err := r.session.quiet(ctx); err != nil {
		return nil, err
	}
	return r.session.during(ctx, syncer, func(p *phase) error {
		if err := r.each(ctx, from, to, r.applyOne); err != nil {
			return err
		}
		keys := map[client.ObjectKey]time.Time{}
		for _, d := range r.downstreams[from:to] {
			keys[d.Key()] = p.start
		}
		return p.written(ctx, keys)
	})
}

// prepareOne makes all objects of Turtles and Rancher but the Fleet Cluster.
func (r *besides) prepareOne(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{}
	if err := r.admin.Get(ctx, r.key(i), cluster); err != nil {
		return err
	}
	d, err := r.player.TurtlesImports(ctx, cluster, nil)
	if err != nil {
		return err
	}
	r.downstreams[i] = d
	if err := d.AssignsWorkspace(ctx, rancherWorkspace); err != nil {
		return err
	}
	if err := d.Provisions(ctx); err != nil {
		return err
	}
	return d.BecomesReady(ctx)
}

func (r *besides) applyOne(_ context.Context, i int) error {
	if err := r.downstreams[i].Applies(); err != nil {
		return fmt.Errorf("%s: %w", r.key(i), err)
	}
	return nil
}

// applyAll plays Rancher, which writes all Fleet Clusters again.
func (r *besides) applyAll(ctx context.Context) error {
	return r.each(ctx, 0, r.next, r.applyOne)
}
