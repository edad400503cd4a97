package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/test/oracle"
)

const (
	// workers are people who do one thing after another.
	workers = 3
	slots   = 6 // for each worker, a place for one Cluster
	// pause is how long a person thinks at most.
	pause = 80 * time.Millisecond
)

// churn is people at work: everything that changes what Muster has to make.
type churn struct {
	*lab
	*world
	*tally

	names atomic.Int64
	stop  context.CancelFunc
	wait  sync.WaitGroup
}

// person is one worker, with Clusters that nobody else touches.
type person struct {
	*churn
	rng   *rand.Rand
	first bool // One of them cares for the classes and the FleetAddonConfig, too.
	slots [slots]oracle.Key
}

// action is something that a person does, to a Cluster that exists if it is about one.
type action struct {
	weight int
	// created says that it needs a Cluster, free that it needs a place for one.
	created, free bool
	first         bool
	// charts says that it is about HelmChartProxies. The first of them cares for these, too.
	charts bool
	do     func(context.Context, *person, *clusterv1.Cluster)
}

var actions = []action{
	{weight: 24, free: true, do: create},
	{weight: 24, created: true, do: initialize},
	{weight: 10, created: true, do: rebase},
	{weight: 12, created: true, do: relabel},
	{weight: 4, created: true, do: annotate},
	{weight: 8, created: true, do: scaleControlPlane},
	{weight: 8, created: true, do: remove},
	{weight: 3, created: true, do: removeFleetCluster},
	{weight: 6, created: true, do: callByAgent},
	{weight: 3, created: true, do: rotateCredential},
	{weight: 40, charts: true, do: wishForChart},
	{weight: 8, charts: true, do: dropChart},
	{weight: 4, first: true, do: relabelClass},
	{weight: 3, first: true, do: editConfig},
	{weight: 4, do: useForbiddenClass},
	{weight: 2, do: breakConfig},
}

// newChurn puts people to work until finish. Settled are how many Clusters each has
// made and brought up before it returns.
func newChurn(ctx context.Context, l *lab, w *world, t *tally, seed uint64, settled int) *churn {
	ctx, stop := context.WithCancel(ctx)
	c := &churn{lab: l, world: w, tally: t, stop: stop}
	var begun sync.WaitGroup
	for number := range workers {
		begun.Add(1)
		p := &person{churn: c, rng: rand.New(rand.NewPCG(seed, uint64(number))), first: number == 0}
		c.wait.Go(func() {
			for slot := range settled {
				p.make(ctx, slot)
			}
			begun.Done()
			for ctx.Err() == nil {
				p.act(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(p.rng.Int64N(int64(pause)))):
				}
			}
		})
	}
	begun.Wait()
	return c
}

// finish lets everybody end what they have begun: a request of which nobody knows
// whether it was done is asked again.
func (c *churn) finish() {
	c.stop()
	c.wait.Wait()
}

// make makes a Cluster and brings it up.
func (p *person) make(ctx context.Context, slot int) {
	ctx = context.WithoutCancel(ctx)
	create(ctx, p, p.blank(slot))
	if cluster := p.cluster(slot); cluster != nil {
		initialize(ctx, p, cluster)
	}
}

// act does one thing. What is begun is not given up when the time is over.
func (p *person) act(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	mine := slices.DeleteFunc(slices.Clone(actions), func(a action) bool { return a.charts && (p.charts == nil || !p.first) })
	total := 0
	for _, a := range mine {
		total += a.weight
	}
	pick := p.rng.IntN(total)
	for _, a := range mine {
		if pick -= a.weight; pick >= 0 {
			continue
		}
		slot := p.rng.IntN(slots)
		cluster := p.cluster(slot)
		switch {
		case a.first && !p.first, a.created && cluster == nil, a.free && cluster != nil:
		case a.free:
			a.do(ctx, p, p.blank(slot))
		default:
			a.do(ctx, p, cluster)
		}
		return
	}
}

// cluster returns the Cluster in a slot as the API server answered last, or nil.
func (p *person) cluster(slot int) *clusterv1.Cluster {
	p.mu().Lock()
	defer p.mu().Unlock()
	if cluster := p.state.Clusters[p.slots[slot]]; cluster != nil {
		return cluster.DeepCopy()
	}
	return nil
}

func (p *person) mu() *sync.Mutex { return &p.world.mu }

// blank returns a Cluster that is yet to be made, with a name that nobody had.
func (p *person) blank(slot int) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace = p.namespace(teams[p.rng.IntN(len(teams))])
	cluster.Name = fmt.Sprintf("c%d", p.names.Add(1))
	p.slots[slot] = oracle.Key{Namespace: cluster.Namespace, Name: cluster.Name}
	return cluster
}
