package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/stack/pod"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/ports"
)

// fakeReplica answers each connection with its name, and can be dead or not ready.
type fakeReplica struct {
	name        string
	listener    net.Listener
	dead, unfit atomic.Bool
}

func newFakeReplica(t *testing.T, name string) *fakeReplica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &fakeReplica{name: name, listener: listener}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				fmt.Fprintln(connection, name)
				_, _ = io.Copy(io.Discard, connection) // Open until the client is gone.
			}()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return r
}

func (r *fakeReplica) endpoint() *Endpoint {
	return &Endpoint{
		Name: r.name, Address: r.listener.Addr().String(),
		Alive: func() bool { return !r.dead.Load() },
		Probe: func(context.Context) error {
			if r.unfit.Load() {
				return errors.New("not ready")
			}
			return nil
		},
		Timing: pod.ProbeTiming{Period: 50 * time.Millisecond, Timeout: time.Second, Failures: 2},
	}
}

func TestBalancer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	leases := ports.New()
	defer leases.Release()
	port, err := leases.Port(0)
	if err != nil {
		t.Fatal(err)
	}
	b := New("127.0.0.1", port)
	one, two := newFakeReplica(t, "one"), newFakeReplica(t, "two")
	for _, r := range []*fakeReplica{one, two} {
		b.Add(ctx, &wait, r.endpoint())
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	dial := func() (net.Conn, string, error) {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return nil, "", err
		}
		_ = connection.SetDeadline(time.Now().Add(2 * time.Second))
		var name string
		_, err = fmt.Fscanln(connection, &name)
		return connection, name, err
	}
	// eventually waits until 30 connections in a row reached these replicas, each of them.
	eventually := func(want ...string) {
		t.Helper()
		err := poll.Until(ctx, fmt.Sprintf("connections to %v", want), 5*time.Second, func(context.Context) error {
			seen := map[string]int{}
			for range 30 {
				connection, name, err := dial()
				if err != nil {
					return err
				}
				_ = connection.Close()
				seen[name]++
			}
			for _, name := range want {
				if seen[name] == 0 {
					return fmt.Errorf("connections went to %v", seen)
				}
			}
			if len(seen) != len(want) {
				return fmt.Errorf("connections went to %v", seen)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}

	eventually("one", "two")
	one.unfit.Store(true)
	eventually("two")
	one.unfit.Store(false)
	eventually("one", "two")
	two.dead.Store(true)
	eventually("one")

	kept, _, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	one.unfit.Store(true)
	if err := poll.Until(ctx, "connections to be refused", 5*time.Second, func(context.Context) error {
		if connection, _, err := dial(); err == nil {
			_ = connection.Close()
			return errors.New("there is an answer")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if count := b.Cut(); count != 1 {
		t.Errorf("%d connections were cut, not the one that was made before", count)
	}
	if _, err := io.ReadAll(kept); err == nil {
		t.Error("a connection that was cut ended in order")
	}
	one.unfit.Store(false)
	two.dead.Store(false)
	eventually("one", "two")
}
