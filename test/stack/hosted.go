package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/hostprovider"
	"github.com/muster-fleet/muster/test/stack/kubelet"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/process"
)

// workloadControllers make Pods of what users write, and taint and untaint nodes.
var workloadControllers = []string{
	"deployment-controller", "replicaset-controller", "daemonset-controller", "job-controller",
	"node-lifecycle-controller", "taint-eviction-controller",
}

// hostedCluster is a cluster of the host provider: a control plane with controllers and
// scheduler, and nodes that are played.
type hostedCluster struct {
	plane *controlPlane
	nodes map[string]*hostedNode
}

type hostedNode struct {
	stop context.CancelFunc
	done chan struct{}
}

// StartHostProvider installs a provider of Cluster API whose clusters are processes of
// this host, and plays it until the stack goes down. HostClusterClass is a class of it.
func (s *Stack) StartHostProvider(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do(ctx, "start-host-provider", "", nil)
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
	config, err := clientcmd.NewDefaultClientConfig(*user, nil).ClientConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	objects, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	provider := &hostprovider.Provider{Client: objects, Hosts: hosts{s}, Say: s.say}
	s.wait.Go(func() { provider.Run(s.ctx) })
	return nil
}

// HostClusterClass returns a ClusterClass of the host provider and its templates.
func (s *Stack) HostClusterClass(namespace, name string) string {
	return hostprovider.ClusterClass(namespace, name)
}

// HostedKubeconfig is the path of the administrator's kubeconfig of a cluster that the
// host provider runs.
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

// hosts makes control planes and nodes for the host provider.
type hosts struct{ *Stack }

var _ hostprovider.Hosts = hosts{}

func hostedPrefix(cluster types.NamespacedName) string {
	return cluster.Namespace + "." + cluster.Name + "."
}

func (h hosts) StartControlPlane(ctx context.Context, cluster types.NamespacedName) (*hostprovider.ControlPlane, error) {
	plane, err := h.startControlPlane(ctx, hostedPrefix(cluster))
	if err != nil {
		return nil, err
	}
	manager, err := h.controllerManagerSpec(plane, workloadControllers...)
	if err != nil {
		return nil, err
	}
	scheduler, err := h.schedulerSpec(plane)
	if err != nil {
		return nil, err
	}
	if err := h.runAll(ctx, []process.Spec{manager, scheduler}); err != nil {
		return nil, err
	}
	if err := pki.WriteKubeconfig(h.HostedKubeconfig(cluster.Namespace, cluster.Name), plane.admin); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.hosted[cluster] = &hostedCluster{plane: plane, nodes: map[string]*hostedNode{}}
	h.mu.Unlock()
	server, err := url.Parse(plane.server)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(server.Port())
	if err != nil {
		return nil, err
	}
	kubeconfig, err := clientcmd.Write(*plane.admin)
	return &hostprovider.ControlPlane{Kubeconfig: kubeconfig, Host: server.Hostname(), Port: port}, err
}

func (s *Stack) schedulerSpec(c *controlPlane) (process.Spec, error) {
	kubeconfig, err := c.userKubeconfig("system:kube-scheduler")
	return process.Spec{
		Name: c.prefix + "kube-scheduler", Path: s.tools.Bin("kube-scheduler"),
		Args: []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"},
	}, err
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
	problems := stopInLayers(ends)
	for _, p := range ends {
		h.drop(p)
	}
	h.options.changed(h.Stack)
	return errors.Join(append(problems, os.RemoveAll(h.planeDir(hostedPrefix(cluster))))...)
}

func (h hosts) StartNode(cluster types.NamespacedName, machine hostprovider.Machine) error {
	h.mu.Lock()
	hosted := h.hosted[cluster]
	h.mu.Unlock()
	if hosted == nil {
		return fmt.Errorf("%s has no control plane", cluster)
	}
	// The audit log tells its requests from those of others; its rights are none of its
	// subjects.
	user, err := hosted.plane.userConfig("system:node:"+machine.Name, "system:nodes", "system:masters")
	if err != nil {
		return err
	}
	config, err := clientcmd.NewDefaultClientConfig(*user, nil).ClientConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(h.ctx)
	played := &hostedNode{stop: stop, done: make(chan struct{})}
	node := &kubelet.Node{
		Name: machine.Name, ProviderID: machine.ProviderID, Taints: machine.Taints,
		Client: api, Server: hosted.plane.server, CA: hosted.plane.pki.CA(),
		Images: h.images(), Host: nodeHost{h.Stack, hostedPrefix(cluster)},
		Dir: filepath.Join(h.dir, "nodes", cluster.Namespace+"."+cluster.Name, machine.Name),
	}
	h.mu.Lock()
	hosted.nodes[machine.Name] = played
	h.mu.Unlock()
	h.wait.Go(func() {
		defer close(played.done)
		node.Run(ctx)
	})
	return nil
}

func (h hosts) StopNode(cluster types.NamespacedName, name string) {
	h.mu.Lock()
	var node *hostedNode
	if hosted := h.hosted[cluster]; hosted != nil {
		node = hosted.nodes[name]
		delete(hosted.nodes, name)
	}
	h.mu.Unlock()
	if node != nil {
		node.stop()
		<-node.done
	}
}

// nodeHost runs the processes of a node with those of the stack.
type nodeHost struct {
	*Stack
	prefix string
}

func (h nodeHost) Add(spec process.Spec) *process.Process {
	spec.Name = h.prefix + spec.Name
	p := h.add(spec)
	h.options.changed(h.Stack)
	return p
}

func (h nodeHost) Drop(p *process.Process) {
	h.drop(p)
	h.options.changed(h.Stack)
}

func (h nodeHost) Port(preferred int) (int, error) { return h.leases.Port(preferred) }

// images are those that nodes know. What is a program here is run as it is; what would
// change this host, or is not built, is played by a shell.
func (s *Stack) images() kubelet.Images {
	shell := func(script string) []string { return []string{"/bin/sh", "-c", script, "sh"} }
	waits := shell("exec sleep infinity")
	return kubelet.Images{
		"rancher/fleet-agent": {
			Programs: map[string][]string{"fleetagent": {s.tools.Bin("fleetagent")}},
			Env:      map[string]string{"FLEET_AGENT_METRICS_BIND_ADDRESS": ":8080", "FLEET_AGENT_PROBE_BIND_ADDRESS": ":8081"},
			Ports:    []int{8080, 8081},
		},
		"registry.k8s.io/pause": {Programs: map[string][]string{"": waits}},
		// Its configuration is copied as it is, its plugin and its daemon are not here.
		"ghcr.io/flannel-io/flannel":            {Programs: map[string][]string{"cp": {"cp"}, "flanneld": waits}},
		"ghcr.io/flannel-io/flannel-cni-plugin": {Programs: map[string][]string{"cp": shell("exit 0")}},
		// A cloud provider's controller manager, as far as nodes wait for it.
		"registry.example.com/cloud-controller-manager": {Programs: map[string][]string{"": shell(
			"until " + s.tools.Bin("kubectl") + " taint nodes --all node.cloudprovider.kubernetes.io/uninitialized-; do sleep 1; done; exec sleep infinity")}},
	}
}
