package stack

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/muster-fleet/muster/test/stack/balancer"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// servedPort is a port of a Deployment's containers.
type servedPort struct {
	namespace, deployment string
	port                  int
}

// hostPort returns where a Deployment's port is reached on this host: at its process,
// or, if there are several, at a balancer in front of them. One process needs none,
// and a measurement should not pay for it.
func (s *Stack) hostPort(ctx context.Context, deployment *appsv1.Deployment, port int) (int, error) {
	var replicas []*workload
	for _, w := range s.workloads {
		if _, ok := w.ports[port]; ok && w.deployment == deployment.Name && w.namespace == deployment.Namespace {
			replicas = append(replicas, w)
		}
	}
	switch len(replicas) {
	case 0:
		return 0, fmt.Errorf("deployment %s declares no port %d", deployment.Name, port)
	case 1:
		return replicas[0].ports[port], nil
	}
	return s.balance(ctx, servedPort{deployment.Namespace, deployment.Name, port}, replicas)
}

// balance puts all replicas behind a balancer and returns its port when they are ready.
func (s *Stack) balance(ctx context.Context, served servedPort, replicas []*workload) (int, error) {
	s.mu.Lock()
	b := s.balancers[served]
	if b == nil {
		port, err := s.leases.Port(0)
		if err != nil {
			s.mu.Unlock()
			return 0, err
		}
		b = balancer.New("127.0.0.1", port)
		if s.balancers == nil {
			s.balancers = map[servedPort]*balancer.Balancer{}
		}
		s.balancers[served] = b
	}
	s.mu.Unlock()
	for _, w := range replicas {
		p, err := s.process(w.name)
		if err != nil {
			return 0, err
		}
		if w.ready == nil {
			return 0, fmt.Errorf("%s is behind a Service and has no readiness probe", w.name)
		}
		b.Add(s.ctx, &s.wait, &balancer.Endpoint{
			Name: w.name, Address: fmt.Sprintf("127.0.0.1:%d", w.ports[served.port]),
			Alive: p.Running, Probe: w.ready, Timing: w.timing,
		})
	}
	return b.Port(), poll.Until(ctx, "all replicas behind "+served.deployment+" to be ready", time.Minute, func(context.Context) error {
		if ready := b.Ready(); ready < len(replicas) {
			return fmt.Errorf("%d of %d are", ready, len(replicas))
		}
		return nil
	})
}

// ReadyReplicas returns how many replicas of a Deployment its Service connects to,
// 0 if there is no balancer in front of it.
func (s *Stack) ReadyReplicas(deployment string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for served, b := range s.balancers {
		if served.deployment == deployment {
			return b.Ready()
		}
	}
	return 0
}

// CutConnections ends every connection through the Service of a Deployment with
// several replicas, so that the next request needs a new one. It returns how many
// there were.
func (s *Stack) CutConnections(deployment string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for served, b := range s.balancers {
		if served.deployment == deployment {
			count += b.Cut()
		}
	}
	return count
}
