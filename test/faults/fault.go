package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
)

// fault is something that breaks.
type fault struct {
	name string
	// length is about how long a run takes; the long ones begin first.
	length time.Duration
	// strike breaks something and, but for kills, mends it again. It returns when that
	// is over, since when everything that Muster needs is there again.
	strike func(context.Context, *run) (over time.Time, err error)
	// calls says that there are Clusters whose agents call, and the registrar that they need.
	calls bool
	// charts says that there are HelmChartProxies, and the program that carries them out.
	charts bool
}

// faults are all that can strike.
var faults = []fault{
	{name: "syncer-killed", length: 25 * time.Second, strike: killSyncer},
	{name: "syncer-terminated", length: 12 * time.Second, strike: terminateSyncer},
	{name: "registrar-killed", length: 45 * time.Second, strike: killRegistrar, calls: true},
	{name: "charts-killed", length: 30 * time.Second, strike: killCharts, charts: true},
	{name: "apiserver-stopped", length: 60 * time.Second, strike: stopAPIServer, charts: true},
	{name: "etcd-stopped", length: 40 * time.Second, strike: stopEtcd, charts: true},
	{name: "webhook-killed", length: 12 * time.Second, strike: killOneWebhook},
	{name: "webhooks-killed", length: 15 * time.Second, strike: killBothWebhooks, charts: true},
	{name: "class-labels-changed", length: 15 * time.Second, strike: changeClassLabels},
	{name: "certificate-expired", length: 20 * time.Second, strike: expireCertificate},
	{name: "cert-manager-absent", length: 25 * time.Second, strike: removeCertManager},
	{name: "watches-cut", length: 15 * time.Second, strike: cutWatches, charts: true},
	{name: "fleet-crds-removed", length: 30 * time.Second, strike: removeFleetCRDs, charts: true},
	{name: "writes-fail", length: 15 * time.Second, strike: failWrites, charts: true},
}

func faultNamed(name string) (fault, error) {
	var names []string
	for _, f := range faults {
		if f.name == name {
			return f, nil
		}
		names = append(names, f.name)
	}
	return fault{}, fmt.Errorf("there is no fault %q; there are: %v", name, names)
}

// run is one fault striking once.
type run struct {
	*lab
	*world
	*tally

	rng *rand.Rand
	// record is what came of it.
	record *record
	// mend undoes what lasts until Muster has come to rest.
	mend func()
}

// between returns a random length of time.
func (r *run) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.rng.Int64N(int64(to-from)))
}

// sleep waits unless all is given up.
func sleep(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// kill ends a process with SIGKILL. The kubelet starts it again unless it is held.
func (r *run) kill(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := r.env.Kill(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// restartControllers is what Kubernetes' own controllers do when they could not renew
// their lease: they start again, and do not sleep until a retry is due.
func (r *run) restartControllers(ctx context.Context) error { return r.kill(ctx, controllers) }

// served waits until webhooks are answered as they should be.
func (r *run) served(ctx context.Context) error {
	return poll.Until(ctx, "the webhooks to answer", time.Minute, func(ctx context.Context) error { return r.answers(ctx) })
}
