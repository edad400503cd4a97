package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/muster-fleet/muster/test/faults/proxy"
	"github.com/muster-fleet/muster/test/stack/poll"
)

func killSyncer(ctx context.Context, r *run) error { return r.killLeader(ctx, syncer) }

// killRegistrar kills the leading registrar while it registers and issues manifests.
func killRegistrar(ctx context.Context, r *run) error { return r.killLeader(ctx, registrar) }

// killHelm kills the leading replica of the program that carries out HelmChartProxies.
func killHelm(ctx context.Context, r *run) error { return r.killLeader(ctx, helm) }

// killLeader kills the leading replica, and sometimes the standby as well. It does not release the lease, so the next
// leader must wait until the lease expires.
func (r *run) killLeader(ctx context.Context, program string) error {
	leader, standby, err := r.leader(ctx, program)
	if err != nil {
		return err
	}
	names := []string{leader}
	if r.rng.IntN(2) == 0 {
		names = append(names, standby)
	}
	r.over = time.Now()
	if err := r.kill(ctx, names...); err != nil {
		return err
	}
	return r.pause(ctx, 500*time.Millisecond, 3*time.Second)
}

// terminateSyncer ends the leading syncer in order, as a rollout does, and waits until the standby writes.
func terminateSyncer(ctx context.Context, r *run) error {
	leader, standby, err := r.leader(ctx, syncer)
	if err != nil {
		return err
	}
	// The leader's successor takes longer to start than the standby takes to notice.
	r.kubelet.hold(leader)
	defer r.kubelet.release(leader)
	r.over = time.Now()
	ended := make(chan error, 1)
	go func() { ended <- r.env.Stop(ctx, leader) }()
	err = poll.Until(ctx, "the standby to write", time.Minute, func(context.Context) error {
		log, err := lastRun(r.env.LogPath(standby))
		if err == nil && !wrote.Match(log) {
			err = errors.New("it has not written anything")
		}
		return err
	})
	return errors.Join(err, <-ended)
}

// wrote matches a log line about a write to an object of Fleet.
var wrote = regexp.MustCompile(`"msg":"(Applied|Patched|Deleted)"`)

// leader finds the leading replica and the standby by their logs, because the lease does not name the process.
func (r *run) leader(ctx context.Context, program string) (leader, standby string, err error) {
	err = poll.Until(ctx, "one of two replicas to lead and the other to stand by", time.Minute, func(context.Context) error {
		leader, standby = "", ""
		for _, process := range r.env.Processes() {
			if !slices.Contains(replicas(program), process.Name) || !process.Running {
				continue
			}
			log, err := lastRun(r.env.LogPath(process.Name))
			if err != nil {
				return err
			}
			switch {
			case bytes.Contains(log, []byte("Successfully acquired lease")):
				leader = process.Name
			case bytes.Contains(log, []byte("Attempting to acquire leader lease")):
				standby = process.Name
			}
		}
		if leader == "" || standby == "" {
			return fmt.Errorf("the leader is %q, the standby %q", leader, standby)
		}
		return nil
	})
	return leader, standby, err
}

// lastRun returns the log of a process since its last start.
func lastRun(path string) ([]byte, error) {
	log, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return log[max(0, bytes.LastIndex(log, []byte("=== "))):], nil
}

// cutWatches ends all connections of Muster to the API server several times. Watches that start in between may get
// the answer that their version is too old.
func cutWatches(ctx context.Context, r *run) error {
	proxies := r.proxiesOf(syncer, webhook, helm)
	for _, p := range proxies {
		p.Inject(proxy.Plan{Watches: .3}, r.rng.Uint64())
	}
	for range 3 + r.rng.IntN(4) {
		for _, p := range proxies {
			r.injected += p.Cut()
		}
		if err := r.pause(ctx, 200*time.Millisecond, 1500*time.Millisecond); err != nil {
			return err
		}
	}
	r.endInjection(proxies)
	return nil
}

// failWrites makes 5 % of the writes of the syncers and helm fail, until Muster has come to rest in spite of that.
func failWrites(ctx context.Context, r *run) error {
	proxies := r.proxiesOf(syncer, helm)
	for _, p := range proxies {
		p.Inject(proxy.Plan{Writes: .05}, r.rng.Uint64())
	}
	r.mend = func() { r.endInjection(proxies) }
	return r.pause(ctx, 6*time.Second, 10*time.Second)
}

func (r *run) endInjection(proxies []*proxy.Proxy) {
	for _, p := range proxies {
		for _, count := range p.Counts() {
			r.injected += count
		}
		p.Inject(proxy.Plan{}, 0)
	}
}
