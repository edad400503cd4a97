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

// hostPort returns the port on this host for a port of a Deployment: its process, or with several processes a
// balancer in front of them. A single process needs no balancer, and a measurement should not pay for one.
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
	b, err := s.balancer(servedPort{deployment.Namespace, deployment.Name, port})
	if err != nil {
		return 0, err
	}
	for _, w := range replicas {
		p, err := s.process(w.name)
		if err != nil {
			return 0, err
		}
		if w.ready == nil {
			return 0, fmt.Errorf("%s is behind a Service and has no readiness probe", w.name)
		}
		b.Add(s.ctx, &s.wait, &balancer.Endpoint{
			Address: fmt.Sprintf("127.0.0.1:%d", w.ports[port]), Alive: p.Running, Probe: w.ready, Timing: w.timing,
		})
	}
	return b.Port(), poll.Until(ctx, "all replicas behind "+deployment.Name+" to be ready", time.Minute, func(context.Context) error {
		if ready := b.Ready(); ready < len(replicas) {
			return fmt.Errorf("%d of %d are", ready, len(replicas))
		}
		return nil
	})
}

// balancer returns the balancer of a port.
func (s *Stack) balancer(served servedPort) (*balancer.Balancer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.balancers[served]; b != nil {
		return b, nil
	}
	port, err := s.leases.Port(0)
	if err != nil {
		return nil, err
	}
	if s.balancers == nil {
		s.balancers = map[servedPort]*balancer.Balancer{}
	}
	s.balancers[served] = balancer.New(port)
	return s.balancers[served], nil
}

// ReadyReplicas returns the number of replicas that a Deployment's Service connects to, 0 if there is no balancer
// in front of it.
func (s *Stack) ReadyReplicas(deployment string) int {
	return s.balanced(deployment, (*balancer.Balancer).Ready)
}

// CutConnections ends every connection through the Service of a Deployment with several replicas, so that the next
// request needs a new connection. It returns the number of connections.
func (s *Stack) CutConnections(deployment string) int {
	return s.balanced(deployment, (*balancer.Balancer).Cut)
}

func (s *Stack) balanced(deployment string, count func(*balancer.Balancer) int) (sum int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for served, b := range s.balancers {
		if served.deployment == deployment {
			sum += count(b)
		}
	}
	return sum
}
