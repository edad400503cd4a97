package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/test/stack/hostprovider"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/process"
)

// hostedCluster is a cluster of the host provider: a control plane with controllers and scheduler, and played
// nodes.
type hostedCluster struct {
	plane *controlPlane
	// nodes holds the function that ends each node.
	nodes map[string]func()
}

// StartHostProvider installs a provider of Cluster API whose clusters are processes on this host, and plays it
// until the stack stops. HostClusterClass returns a class for it.
func (s *Stack) StartHostProvider(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do("start-host-provider", "", nil)
	}
	s.mu.Lock()
	plays := s.hosted != nil
	if !plays {
		s.hosted = map[types.NamespacedName]*hostedCluster{}
	}
	s.mu.Unlock()
	if plays {
		return nil
	}
	return s.playHostProvider(ctx, hosts{s})
}

// ShareHosts is StartHostProvider for a second management cluster. A cluster that moves from one to the other
// continues, as it would on machines. The first stack keeps all clusters.
func (s *Stack) ShareHosts(ctx context.Context, first *Stack) error {
	return s.playHostProvider(ctx, hosts{first})
}

func (s *Stack) playHostProvider(ctx context.Context, on hosts) error {
	if err := s.applyCRDs(ctx, hostprovider.CRDs()); err != nil {
		return err
	}
	if err := s.Apply(ctx, hostprovider.Role); err != nil {
		return err
	}
	user, err := s.hub.userConfig("host-provider", "system:masters")
	if err != nil {
		return err
	}
	config, err := restConfig(user)
	if err != nil {
		return err
	}
	objects, err := newClient(config)
	if err != nil {
		return err
	}
	provider := &hostprovider.Provider{Client: objects, Hosts: on, Say: s.say}
	s.wait.Go(func() { provider.Run(s.ctx) })
	return nil
}

// HostClusterClass returns a ClusterClass of the host provider and its templates.
func (s *Stack) HostClusterClass(namespace, name string) string {
	return hostprovider.ClusterClass(namespace, name)
}

// HostedKubeconfig returns the path of the administrator's kubeconfig for a cluster that the host provider runs.
func (s *Stack) HostedKubeconfig(namespace, name string) string {
	return filepath.Join(s.dir, "hosted", namespace+"."+name+".kubeconfig")
}

// HostedKubectl is Kubectl for a cluster that the host provider runs.
func (s *Stack) HostedKubectl(ctx context.Context, namespace, name string, args ...string) (string, error) {
	return s.kubectl(ctx, s.HostedKubeconfig(namespace, name), "", args...)
}

// HostedKubectlInput is KubectlInput for a cluster that the host provider runs.
func (s *Stack) HostedKubectlInput(ctx context.Context, namespace, name, input string, args ...string) (string, error) {
	return s.kubectl(ctx, s.HostedKubeconfig(namespace, name), input, args...)
}

// HostedAuditLog is AuditLog for a cluster that the host provider runs.
func (s *Stack) HostedAuditLog(namespace, name string, filter AuditFilter) ([]AuditEvent, error) {
	return s.auditLog(hostedPrefix(types.NamespacedName{Namespace: namespace, Name: name}), filter)
}

// hosts makes control planes and nodes for the host provider.
type hosts struct{ *Stack }

var _ hostprovider.Hosts = hosts{}

func hostedPrefix(cluster types.NamespacedName) string {
	return cluster.Namespace + "." + cluster.Name + "."
}

func (h hosts) StartControlPlane(ctx context.Context, cluster types.NamespacedName) (*hostprovider.ControlPlane, error) {
	h.mu.Lock()
	running := h.hosted[cluster]
	h.mu.Unlock()
	if running != nil {
		return accessTo(running.plane)
	}
	plane, err := h.startControlPlane(ctx, hostedPrefix(cluster))
	if err != nil {
		return nil, err
	}
	specs, err := h.workloadSpecs(ctx, plane, "kube-controller-manager", slices.Concat(baseControllers, workloadControllers))
	if err != nil {
		return nil, err
	}
	if err := h.runAll(ctx, specs); err != nil {
		return nil, err
	}
	if err := pki.WriteKubeconfig(h.HostedKubeconfig(cluster.Namespace, cluster.Name), plane.admin); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.hosted[cluster] = &hostedCluster{plane: plane, nodes: map[string]func(){}}
	h.mu.Unlock()
	return accessTo(plane)
}

func accessTo(plane *controlPlane) (*hostprovider.ControlPlane, error) {
	kubeconfig, err := clientcmd.Write(*plane.admin)
	return &hostprovider.ControlPlane{Kubeconfig: kubeconfig, Host: "127.0.0.1", Port: plane.port}, err
}

func (h hosts) StopControlPlane(cluster types.NamespacedName) error {
	h.mu.Lock()
	delete(h.hosted, cluster)
	var ends []*process.Process
	for _, p := range h.processes {
		if strings.HasPrefix(p.Name(), hostedPrefix(cluster)) {
			ends = append(ends, p)
		}
	}
	h.mu.Unlock()
	err := stopInLayers(ends)
	for _, p := range ends {
		h.drop(p)
	}
	h.options.changed(h.Stack)
	return errors.Join(err, os.RemoveAll(h.planeDir(hostedPrefix(cluster))))
}

func (h hosts) StartNode(cluster types.NamespacedName, machine hostprovider.Machine) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	hosted := h.hosted[cluster]
	if hosted == nil {
		return fmt.Errorf("%s has no control plane", cluster)
	}
	if hosted.nodes[machine.Name] != nil {
		return nil
	}
	end, err := h.playNode(hosted.plane, machine)
	if err == nil {
		hosted.nodes[machine.Name] = end
	}
	return err
}

func (h hosts) StopNode(cluster types.NamespacedName, name string) {
	h.mu.Lock()
	var end func()
	if hosted := h.hosted[cluster]; hosted != nil {
		end = hosted.nodes[name]
		delete(hosted.nodes, name)
	}
	h.mu.Unlock()
	if end != nil {
		end()
	}
}
