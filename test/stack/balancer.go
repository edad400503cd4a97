package stack

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// lookInterval is how often a balancer looks whether its processes live.
	lookInterval = 100 * time.Millisecond
	// departure is how long a process that has ended is still connected to: a kubelet
	// sees it within a second, and those who route to it learn of it from there.
	departure = time.Second
	dialTime  = time.Second
)

// balancer is a Service with endpoints: it hands each connection to one of the
// replicas that are ready, and never tries another one. A connection that was made
// stays where it is. Without a ready replica connections are refused.
type balancer struct {
	host string
	port int

	mu          sync.Mutex
	endpoints   []*endpoint
	listener    net.Listener
	connections map[net.Conn]struct{}
	closed      bool
}

// endpoint is one replica behind a balancer.
type endpoint struct {
	name    string
	address string
	// alive tells whether its process runs; probe is its readiness probe.
	alive  func() bool
	probe  func(context.Context) error
	timing probeTiming

	ready bool // the balancer's mutex guards it
}

// probeTiming is how a kubelet probes.
type probeTiming struct {
	period, timeout time.Duration
	// failures in a row make a replica not ready; one success makes it ready.
	failures int
}

func newBalancer(host string, port int) *balancer {
	return &balancer{host: host, port: port, connections: map[net.Conn]struct{}{}}
}

// add puts a replica behind the balancer, and follows it until ctx ends.
func (b *balancer) add(ctx context.Context, wait *sync.WaitGroup, e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, known := range b.endpoints {
		if known.name == e.name {
			return
		}
	}
	b.endpoints = append(b.endpoints, e)
	wait.Go(func() {
		b.follow(ctx, e)
		b.close()
	})
}

// follow keeps the readiness of one replica up to date.
func (b *balancer) follow(ctx context.Context, e *endpoint) {
	var died, next time.Time
	failures := 0
	for ctx.Err() == nil {
		now := time.Now()
		switch {
		case !e.alive():
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
			next = now.Add(e.timing.period)
			look, done := context.WithTimeout(ctx, e.timing.timeout)
			err := e.probe(look)
			done()
			if failures++; err == nil {
				failures = 0
				b.set(e, true)
			} else if failures >= e.timing.failures {
				b.set(e, false)
			}
		}
		b.mu.Lock()
		b.listen()
		b.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(lookInterval):
		}
	}
}

func (b *balancer) set(e *endpoint, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.ready = ready
	b.listen()
}

// listen listens as long as a replica is ready. The mutex is held.
func (b *balancer) listen() {
	ready := len(b.readyLocked()) > 0 && !b.closed
	switch {
	case ready && b.listener == nil:
		listener, err := net.Listen("tcp", net.JoinHostPort(b.host, strconv.Itoa(b.port)))
		if err != nil {
			return // Tried again at the next look.
		}
		b.listener = listener
		go b.accept(listener)
	case !ready && b.listener != nil:
		_ = b.listener.Close()
		b.listener = nil
	}
}

func (b *balancer) readyLocked() []*endpoint {
	var ready []*endpoint
	for _, e := range b.endpoints {
		if e.ready {
			ready = append(ready, e)
		}
	}
	return ready
}

// ready returns how many replicas are ready.
func (b *balancer) ready() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.readyLocked())
}

func (b *balancer) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go b.serve(connection)
		}
	}
}

// serve connects a client with a replica until one of them hangs up.
func (b *balancer) serve(client net.Conn) {
	defer reset(client)
	b.mu.Lock()
	ready := b.readyLocked()
	if len(ready) == 0 || b.closed {
		b.mu.Unlock()
		return
	}
	address := ready[rand.IntN(len(ready))].address
	b.connections[client] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.connections, client)
	}()

	replica, err := net.DialTimeout("tcp", address, dialTime)
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

// cut ends every connection, and returns how many there were.
func (b *balancer) cut() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for connection := range b.connections {
		reset(connection)
	}
	return len(b.connections)
}

func (b *balancer) close() {
	b.mu.Lock()
	b.closed = true
	b.listen()
	b.mu.Unlock()
	b.cut()
}
