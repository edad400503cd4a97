package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

// phase records a program's requests to the API server, and the processor time that it uses until it is quiet.
type phase struct {
	session *session
	// process is the program under measurement, and user is its name at the API server.
	process, user string
	tail          *stack.AuditTail
	start         time.Time
	// before is the processor time used before the phase, cpu the time used since then.
	before, cpu time.Duration
	// requests are in the order in which they were answered.
	requests requests
	// changes are the administrator's last changes, by object.
	changes map[client.ObjectKey]request
}

// follow begins a phase of a program.
func (s *session) follow(process string) (*phase, error) {
	p := &phase{session: s, process: process, user: stack.ServiceAccount("muster-system", process), changes: map[client.ObjectKey]request{}, start: time.Now()}
	p.before, _ = s.cpu(process) // A program that does not run yet has used no time.
	var err error
	p.tail, err = s.env.AuditTail()
	return p, err
}

// during measures a program while something happens, and until it is quiet after that.
func (s *session) during(ctx context.Context, process string, happens func(*phase) error) (*phase, error) {
	p, err := s.follow(process)
	if err != nil {
		return p, err
	}
	if err := happens(p); err != nil {
		return p, err
	}
	return p, p.quiet(ctx)
}

// read reads the new lines of the audit log, and returns how many requests the program has made, except those for
// itself.
func (p *phase) read() (int, error) {
	events, err := p.tail.Read(stack.AuditFilter{})
	news := 0
	for _, e := range events {
		switch {
		case e.User == p.user:
			p.requests = append(p.requests, e)
			if kindOf(e) != own {
				news++
			}
		case e.User == "admin" && e.Verb == "patch" && e.Namespace != "":
			p.changes[client.ObjectKey{Namespace: e.Namespace, Name: e.Name}] = request{e.Received, e.Completed}
		}
	}
	return news, err
}

// quiet returns when the program has sent no request and hardly worked for a while.
func (p *phase) quiet(ctx context.Context) error {
	const (
		look = 500 * time.Millisecond
		// idle is a twentieth of a core: probes, leader election.
		idle   = look / 20
		enough = 3
	)
	last, err := p.session.cpu(p.process)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for reconciles := 0; reconciles < enough; {
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
		if reconciles++; news > 0 || now-last > idle {
			reconciles = 0
		}
		last = now
	}
	p.cpu = last - p.before
	return nil
}

// written waits until the Fleet Cluster of each key was written after its time.
func (p *phase) written(ctx context.Context, after map[client.ObjectKey]time.Time) error {
	done := 0
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		if _, err := p.read(); err != nil {
			return false, err
		}
		done = len(p.requests.fleetWrites(after))
		// Fail if the program has ended: no kubelet restarts it here.
		_, err := p.session.pid(p.process)
		return done == len(after), err
	})
	if err != nil {
		return fmt.Errorf("%d of %d Fleet Clusters are written: %w\n%s", done, len(after), err, p.session.env.LogTail(p.process))
	}
	return nil
}

// latencies waits until the Fleet Cluster of each key is written, and returns the time since the answer to the change
// of the object of that name.
func (p *phase) latencies(ctx context.Context, after map[client.ObjectKey]time.Time) ([]time.Duration, error) {
	if err := p.written(ctx, after); err != nil {
		return nil, err
	}
	return p.requests.latencies(p.changes, after)
}

// requests are the requests of a program.
type requests []stack.AuditEvent

// Kinds of requests.
const (
	write = "write"
	read  = "read" // GET or LIST of objects
	own   = "own"  // for itself, however many Clusters there are
)

// kindOf returns the kind of a request.
func kindOf(e stack.AuditEvent) string {
	switch {
	case e.Verb == "watch", e.Resource == "leases", e.Namespace == "muster-system", e.Resource == "fleetaddonconfigs",
		strings.HasSuffix(e.Resource, "accessreviews"), e.Resource == "tokenreviews", e.Resource == "":
		// These are requests of informers and leader election, on the status of the FleetAddonConfig, on access to
		// objects and metrics, and for discovery.
		return own
	case e.Verb == "get", e.Verb == "list":
		return read
	}
	return write
}

func (r requests) of(kind string) requests {
	return slices.DeleteFunc(slices.Clone(r), func(e stack.AuditEvent) bool { return kindOf(e) != kind })
}

// afterStart removes the lists that informers request when they start.
func (r requests) afterStart() requests {
	return slices.DeleteFunc(slices.Clone(r), func(e stack.AuditEvent) bool { return e.Verb == "list" && e.Namespace == "" && e.Name == "" })
}

// String counts requests by verb and resource.
func (r requests) String() string {
	counts := map[string]int{}
	for _, e := range r {
		counts[strings.TrimSuffix(fmt.Sprintf("%s %s.%s/%s", e.Verb, e.Resource, e.Group, e.Subresource), "/")]++
	}
	return fmt.Sprint(counts)
}

// fleetWrites returns, for each key, the first write to its Fleet Cluster that was received after the key's time;
// keys without such a write are left out.
func (r requests) fleetWrites(after map[client.ObjectKey]time.Time) map[client.ObjectKey]request {
	result := map[client.ObjectKey]request{}
	for _, e := range r {
		key := client.ObjectKey{Namespace: e.Namespace, Name: e.Name}
		since, asked := after[key]
		isFleetWrite := e.Group == "fleet.cattle.io" && e.Resource == "clusters" && e.Subresource == "" && kindOf(e) == write && e.Code < 300
		if _, done := result[key]; asked && !done && isFleetWrite && e.Received.After(since) {
			result[key] = request{e.Received, e.Completed}
		}
	}
	return result
}

// lastWrite returns when the last write was answered.
func (r requests) lastWrite() time.Time {
	var last time.Time
	for _, e := range r.of(write) {
		if e.Completed.After(last) {
			last = e.Completed
		}
	}
	return last
}

// request holds the times at which a request was received and answered.
type request struct{ received, completed time.Time }

// latencies returns how long after the answer to the change of each key its Fleet Cluster was written. A write before
// the answer took no time. It fails if a Fleet Cluster was never written.
func (r requests) latencies(changes map[client.ObjectKey]request, keys map[client.ObjectKey]time.Time) ([]time.Duration, error) {
	received := map[client.ObjectKey]time.Time{}
	for key := range keys {
		received[key] = changes[key].received
		if received[key].IsZero() {
			return nil, fmt.Errorf("the audit log does not say when %s was changed", key)
		}
	}
	writes := r.fleetWrites(received)
	if len(writes) < len(keys) {
		return nil, fmt.Errorf("of %d that were changed, only %v were written", len(keys), slices.Collect(maps.Keys(writes)))
	}
	var result []time.Duration
	for key, write := range writes {
		result = append(result, max(0, write.completed.Sub(changes[key].completed)))
	}
	return result, nil
}

// between counts the requests received from each time to the next one, except the program's own.
func (r requests) between(times []time.Time) (counts []int) {
	for i := range len(times) - 1 {
		counts = append(counts, 0)
		for _, e := range r {
			if kindOf(e) != own && !e.Received.Before(times[i]) && e.Received.Before(times[i+1]) {
				counts[i]++
			}
		}
	}
	return counts
}

// nothing is a figure of requests that should not occur.
func nothing(name string, all requests) figure {
	return value(name, "", float64(len(all.of(write))+len(all.of(read)))).atMost(0)
}
