package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

// phase is what somebody asked of the API server since it began.
type phase struct {
	session *session
	user    string
	// process is the program whose work is measured.
	process string
	tail    *stack.AuditTail
	start   time.Time
	cpu     time.Duration
	// requests are the user's, in the order they were answered.
	requests requests
	// changes are when each object was last changed by the administrator.
	changes map[client.ObjectKey]request
}

// follow begins a phase of a user of the API server, and of a program.
func (s *session) follow(user, process string) (*phase, error) {
	p := &phase{session: s, user: user, process: process, changes: map[client.ObjectKey]request{}, start: time.Now()}
	var err error
	// What is not running yet has used nothing.
	if id, absent := pid(s.env, process); absent == nil {
		if p.cpu, err = cpuOf(id); err != nil {
			return nil, err
		}
	}
	p.tail, err = s.env.AuditTail()
	return p, err
}

var syncerUser = stack.ServiceAccount("muster-system", syncer)

// followSyncer begins a phase of the syncer.
func (s *session) followSyncer() (*phase, error) { return s.follow(syncerUser, syncer) }

// read takes in what was answered meanwhile, and returns how many requests of the user
// were not for itself.
func (p *phase) read() (int, error) {
	events, err := p.tail.Read(stack.AuditFilter{})
	if err != nil {
		return 0, err
	}
	news := 0
	for _, e := range events {
		switch {
		case e.User == p.user:
			p.requests = append(p.requests, e)
			if kindOf(e, false) != own {
				news++
			}
		case e.User == adminUser && e.Verb == "patch" && e.Namespace != "":
			p.changes[client.ObjectKey{Namespace: e.Namespace, Name: e.Name}] = request{e.Received, e.Completed}
		}
	}
	return news, nil
}

// quiet returns when the program has asked nothing and hardly worked for a while.
func (p *phase) quiet(ctx context.Context) error {
	const (
		look = 500 * time.Millisecond
		// idle is a twentieth of a core: probes, leader election.
		idle   = look / 20
		enough = 3
	)
	deadline := time.Now().Add(patience)
	before, err := p.session.cpu(p.process)
	if err != nil {
		return err
	}
	for looks := 0; looks < enough; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not quiet after %s: %s", p.process, patience, p.requests)
		}
		if err := sleep(ctx, look); err != nil {
			return err
		}
		news, err := p.read()
		if err != nil {
			return err
		}
		now, err := p.session.cpu(p.process)
		if err != nil {
			return err
		}
		if looks++; news > 0 || now-before > idle {
			looks = 0
		}
		before = now
	}
	return nil
}

// written waits until the Fleet Cluster of each key was written after its time.
func (p *phase) written(ctx context.Context, after map[client.ObjectKey]time.Time) error {
	deadline := time.Now().Add(patience)
	for {
		if _, err := p.read(); err != nil {
			return err
		}
		done := len(p.requests.fleetWrites(after))
		if done == len(after) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s only %d of %d Fleet Clusters are written", patience, done, len(after))
		}
		// Nobody starts it again here, as a kubelet would: what it did would not be one run.
		if _, err := pid(p.session.env, syncer); err != nil && p.user == syncerUser {
			return fmt.Errorf("%w; the end of its log:\n%s", err, p.session.env.LogTail(syncer))
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// latencies waits until the Fleet Cluster of each key is written, and returns how long
// after the change of the object of that name that was.
func (p *phase) latencies(ctx context.Context, after map[client.ObjectKey]time.Time) (latencies, error) {
	if err := p.written(ctx, after); err != nil {
		return nil, err
	}
	changes := make(map[client.ObjectKey]request, len(after))
	for key := range after {
		var known bool
		if changes[key], known = p.changes[key]; !known {
			return nil, fmt.Errorf("the audit log does not say when %s was changed", key)
		}
	}
	return p.requests.latencies(changes)
}

// work returns the processor time that the program has used since the phase began.
func (p *phase) work() (time.Duration, error) {
	now, err := p.session.cpu(p.process)
	return now - p.cpu, err
}
