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
}

// faults are all that can strike.
var faults = []fault{
	{"syncer-killed", 25 * time.Second, killSyncer},
	{"syncer-terminated", 12 * time.Second, terminateSyncer},
	{"apiserver-stopped", 60 * time.Second, stopAPIServer},
	{"etcd-stopped", 40 * time.Second, stopEtcd},
	{"webhook-killed", 12 * time.Second, killOneWebhook},
	{"webhooks-killed", 15 * time.Second, killBothWebhooks},
	{"certificate-expired", 20 * time.Second, expireCertificate},
	{"cert-manager-absent", 25 * time.Second, removeCertManager},
	{"watches-cut", 15 * time.Second, cutWatches},
	{"fleet-crds-removed", 30 * time.Second, removeFleetCRDs},
	{"writes-fail", 15 * time.Second, failWrites},
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
