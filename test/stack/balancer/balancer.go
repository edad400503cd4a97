// Package balancer plays a Service in front of several replicas.
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
	// checkInterval is how often a balancer checks that its processes run.
	checkInterval = 100 * time.Millisecond
	// departure is how long the balancer still connects to a process that has ended: a kubelet notices within a
	// second, and the routers learn of it from the kubelet.
	departure = time.Second
	dialTime  = time.Second
)

// Balancer is a Service with endpoints: it hands each connection to one of the ready replicas, and never tries
// another one. A connection stays with its replica. Without a ready replica, clients cannot connect.
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

// Port returns the port that the balancer listens on.
func (b *Balancer) Port() int { return b.port }

// New returns a balancer without replicas.
func New(port int) *Balancer {
	return &Balancer{port: port, connections: map[net.Conn]struct{}{}}
}

// Add adds a replica to the balancer, unless it is there already, and follows it until ctx ends.
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
		case !died.IsZero(): // A new container is not ready until its probe succeeds.
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

// set sets the readiness of a replica. The balancer listens while a replica is ready.
func (b *Balancer) set(e *Endpoint, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.ready = ready
	switch some := len(b.ready()) > 0; {
	case some && b.listener == nil:
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
		if err != nil {
			e.ready = false // The next probe tries again.
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

// serve connects a client with a replica until one of them closes the connection.
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
	// With TLS, neither side sends anything after the other has closed.
	<-done
}

// reset ends a connection as the kernel of a dead process does.
func reset(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

// Cut ends every connection, and returns the number of connections.
func (b *Balancer) Cut() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for connection := range b.connections {
		reset(connection)
	}
	return len(b.connections)
}
