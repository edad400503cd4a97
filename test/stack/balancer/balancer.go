// Package balancer stands for a Service in front of several replicas.
package balancer

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/test/stack/pod"
)

const (
	// checkInterval is how often a balancer looks whether its processes live.
	checkInterval = 100 * time.Millisecond
	// departure is how long a process that has ended is still connected to: a kubelet
	// sees it within a second, and those who route to it learn of it from there.
	departure = time.Second
	dialTime  = time.Second
)

// Balancer is a Service with endpoints: it hands each connection to one of the
// replicas that are ready, and never tries another one. A connection that was made
// stays where it is. Without a ready replica connections are refused.
type Balancer struct {
	port int

	mu          sync.Mutex
	endpoints   []*Endpoint
	listener    net.Listener
	connections map[net.Conn]struct{}
}

// Endpoint is one replica behind a balancer.
type Endpoint struct {
	Address string
	// Alive reports whether its process runs; Probe is its readiness probe.
	Alive  func() bool
	Probe  func(context.Context) error
	Timing pod.ProbeTiming

	ready bool // the balancer's mutex guards it
}

// Port is where it listens.
func (b *Balancer) Port() int { return b.port }

// New returns a balancer that is yet to have a replica.
func New(port int) *Balancer {
	return &Balancer{port: port, connections: map[net.Conn]struct{}{}}
}

// Add puts a replica behind the balancer, unless it is there, and follows it until ctx ends.
func (b *Balancer) Add(ctx context.Context, wait *sync.WaitGroup, e *Endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.endpoints, func(known *Endpoint) bool { return known.Address == e.Address }) {
		return
	}
	b.endpoints = append(b.endpoints, e)
	wait.Go(func() {
		b.follow(ctx, e)
		b.set(e, false)
		b.Cut()
	})
}

// follow keeps the readiness of one replica up to date.
func (b *Balancer) follow(ctx context.Context, e *Endpoint) {
	var died, next time.Time
	failures := 0
	for ctx.Err() == nil {
		now := time.Now()
		switch {
		case !e.Alive():
			if died.IsZero() {
				died = now
			}
			if now.Sub(died) >= departure {
				b.set(e, false)
			}
		case !died.IsZero(): // A new container is not ready before it says so.
			died, failures = time.Time{}, 0
			b.set(e, false)
		case now.After(next):
			next = now.Add(e.Timing.Period)
			check, done := context.WithTimeout(ctx, e.Timing.Timeout)
			err := e.Probe(check)
			done()
			if failures++; err == nil {
				failures = 0
				b.set(e, true)
			} else if failures >= e.Timing.Failures {
				b.set(e, false)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
}

// set reports whether a replica is ready. The balancer listens as long as one is.
func (b *Balancer) set(e *Endpoint, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.ready = ready
	switch some := len(b.ready()) > 0; {
	case some && b.listener == nil:
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
		if err != nil {
			e.ready = false // Tried again at the next probe.
			return
		}
		b.listener = listener
		go b.accept(listener)
	case !some && b.listener != nil:
		_ = b.listener.Close()
		b.listener = nil
	}
}

func (b *Balancer) ready() (ready []*Endpoint) {
	for _, e := range b.endpoints {
		if e.ready {
			ready = append(ready, e)
		}
	}
	return ready
}

// Ready returns how many replicas are ready.
func (b *Balancer) Ready() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ready())
}

func (b *Balancer) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go b.serve(connection)
	}
}

// serve connects a client with a replica until one of them hangs up.
func (b *Balancer) serve(client net.Conn) {
	defer reset(client)
	b.mu.Lock()
	ready := b.ready()
	b.connections[client] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.connections, client)
	}()
	if len(ready) == 0 {
		return
	}
	replica, err := net.DialTimeout("tcp", ready[rand.IntN(len(ready))].Address, dialTime)
	if err != nil {
		return
	}
	defer reset(replica)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, replica}, {replica, client}} {
		go func() {
			_, err := io.Copy(way[0], way[1])
			if half, ok := way[0].(*net.TCPConn); ok && err == nil {
				_ = half.CloseWrite()
			}
			done <- struct{}{}
		}()
	}
	// Neither side of TLS speaks on after the other has hung up.
	<-done
}

// reset ends a connection the way a dead process's kernel does.
func reset(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

// Cut ends every connection, and returns how many there were.
func (b *Balancer) Cut() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for connection := range b.connections {
		reset(connection)
	}
	return len(b.connections)
}
