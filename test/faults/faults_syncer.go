package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/muster-fleet/muster/test/faults/proxy"
	"github.com/muster-fleet/muster/test/stack/poll"
)

func killSyncer(ctx context.Context, r *run) (time.Time, error) {
	return r.killLeader(ctx, syncer, secondSyncer)
}

// killLeader kills the one of two replicas that leads, and sometimes the one that stands by
// as well. The lease is not given back: the next one has to wait until it lapses.
func (r *run) killLeader(ctx context.Context, first, second string) (time.Time, error) {
	leader, standby, err := r.leader(ctx, first, second)
	if err != nil {
		return time.Time{}, err
	}
	names := []string{leader}
	if r.rng.IntN(2) == 0 {
		names = append(names, standby)
	}
	over := time.Now()
	if err := r.kill(ctx, names...); err != nil {
		return over, err
	}
	return over, sleep(ctx, r.between(500*time.Millisecond, 3*time.Second))
}

// terminateSyncer ends the syncer that leads in order, as a rollout does, and measures
// how long it takes until the one that stands by writes.
func terminateSyncer(ctx context.Context, r *run) (time.Time, error) {
	leader, standby, err := r.leader(ctx, syncer, secondSyncer)
	if err != nil {
		return time.Time{}, err
	}
	// Its successor takes longer to come than the standby to notice.
	r.kubelet.hold(leader)
	defer r.kubelet.release(leader)
	over := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- r.env.Stop(ctx, leader) }()
	err = poll.Until(ctx, "the standby to write", time.Minute, func(context.Context) error {
		wrote, err := firstWrite(r.env.LogPath(standby), over)
		if err == nil {
			r.record.TakeOver = seconds(wrote.Sub(over))
		}
		return err
	})
	return over, errors.Join(err, <-ended)
}

// leader tells which of two replicas leads from the one that stands by, by their logs: the
// lease does not name the process.
func (r *run) leader(ctx context.Context, one, other string) (leader, standby string, err error) {
	err = poll.Until(ctx, "one of two replicas to lead and the other to stand by", time.Minute, func(context.Context) error {
		leader, standby = "", ""
		for _, process := range r.env.Processes() {
			if (process.Name != one && process.Name != other) || !process.Running {
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

// lastRun returns what a process has logged since it was started last.
func lastRun(path string) ([]byte, error) {
	log, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return log[max(0, bytes.LastIndex(log, []byte("=== "))):], nil
}

// firstWrite finds the first write to an object of Fleet that is logged after a time.
func firstWrite(path string, after time.Time) (time.Time, error) {
	log, err := lastRun(path)
	if err != nil {
		return time.Time{}, err
	}
	for line := range bytes.Lines(log) {
		var entry struct {
			Message string  `json:"msg"`
			Millis  float64 `json:"ts"`
		}
		if json.Unmarshal(line, &entry) != nil {
			continue
		}
		at := time.UnixMicro(int64(entry.Millis * 1000))
		if at.Before(after) {
			continue
		}
		switch entry.Message {
		case "Applied", "Patched", "Deleted":
			return at, nil
		}
	}
	return time.Time{}, errors.New("it has not written anything")
}

// cutWatches ends all connections of Muster to the API server several times. Watches
// that are begun in between may be told that they have missed too much.
func cutWatches(ctx context.Context, r *run) (over time.Time, err error) {
	proxies := r.proxiesOf(slices.Concat([]string{syncer, secondSyncer, webhook, secondWebhook}, r.chartsProcesses())...)
	for _, p := range proxies {
		p.Inject(proxy.Plan{Watches: .3}, r.rng.Uint64())
	}
	for range 3 + r.rng.IntN(4) {
		for _, p := range proxies {
			r.record.Injected += p.Cut()
		}
		over = time.Now()
		if err := sleep(ctx, r.between(200*time.Millisecond, 1500*time.Millisecond)); err != nil {
			return over, err
		}
	}
	for _, p := range proxies {
		r.record.Injected += p.Counts()[proxy.TooOld]
		p.Inject(proxy.Plan{}, 0)
	}
	return time.Now(), nil
}

// failWrites lets 5 % of what the syncers, and who carries charts, write go wrong, until Muster has come to
// rest in spite of it.
func failWrites(ctx context.Context, r *run) (time.Time, error) {
	proxies := r.proxiesOf(append([]string{syncer, secondSyncer}, r.chartsProcesses()...)...)
	for _, p := range proxies {
		p.Inject(proxy.Plan{Writes: .05}, r.rng.Uint64())
	}
	r.mend = func() {
		for _, p := range proxies {
			for _, count := range p.Counts() {
				r.record.Injected += count
			}
			p.Inject(proxy.Plan{}, 0)
		}
	}
	err := sleep(ctx, r.between(6*time.Second, 10*time.Second))
	return time.Now(), err
}
