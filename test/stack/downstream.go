package stack

import (
	"context"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/test/stack/pki"
)

const downstreamPrefix = "downstream-"

// StartDownstream starts a second API server as a cluster to deploy to and returns
// an administrator's kubeconfig of it, with everything embedded: it can be the
// `value` of a Cluster's kubeconfig Secret. Started already, it is returned as it is.
func (s *Stack) StartDownstream(ctx context.Context) ([]byte, error) {
	if s.remote != nil {
		var kubeconfig []byte
		return kubeconfig, s.remote.do(ctx, "start-downstream", "", &kubeconfig)
	}
	if s.downstream == nil {
		plane, err := s.startControlPlane(ctx, downstreamPrefix)
		if err != nil {
			return nil, err
		}
		manager, err := s.controllerManagerSpec(plane, "kube-controller-manager", baseControllers)
		if err != nil {
			return nil, err
		}
		if err := s.run(ctx, manager); err != nil {
			return nil, err
		}
		s.downstream = plane
	}
	if err := pki.WriteKubeconfig(s.DownstreamKubeconfig(), s.downstream.admin); err != nil {
		return nil, err
	}
	return clientcmd.Write(*s.downstream.admin)
}

// DownstreamKubeconfig is the path of the downstream administrator's kubeconfig.
func (s *Stack) DownstreamKubeconfig() string { return filepath.Join(s.dir, "downstream.kubeconfig") }

// DownstreamKubectl is Kubectl for the downstream.
func (s *Stack) DownstreamKubectl(ctx context.Context, args ...string) (string, error) {
	return s.kubectl(ctx, s.DownstreamKubeconfig(), "", args...)
}
