package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/hostprovider"
	"github.com/muster-fleet/muster/test/stack/kubelet"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

// DefaultAgentNamespace is the namespace of Fleet's agent unless configured otherwise.
const DefaultAgentNamespace = "fleet-addon-agent"

// StartAgent gives the downstream a node, if it has none, and waits until the agent in this namespace runs there.
// Fleet or its user must have deployed the agent.
func (s *Stack) StartAgent(ctx context.Context, namespace string) error {
	if s.remote != nil {
		return s.remote.do("start-agent", namespace, nil)
	}
	if s.downstream == nil {
		return errors.New("there is no downstream to run an agent for")
	}
	if _, err := s.process(downstreamPrefix + "kube-scheduler"); err != nil {
		if err := s.startNode(ctx, s.downstream); err != nil {
			return err
		}
	}
	return poll.Until(ctx, "Fleet's agent on the downstream", defaultReadyTimeout, func(ctx context.Context) error {
		agents, err := s.downstream.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=fleet-agent"})
		if err != nil {
			return err
		}
		for _, agent := range agents.Items {
			if agent.Status.Phase == corev1.PodRunning && agent.DeletionTimestamp == nil {
				return nil
			}
		}
		return fmt.Errorf("%d Pods are there, and none runs", len(agents.Items))
	})
}

// StartNode gives the management cluster a node, the scheduler and the controllers that make Pods. The taint keeps
// Muster's own Deployments off the node, because they run as processes already.
func (s *Stack) StartNode(ctx context.Context, taint corev1.Taint) error {
	return s.startNode(ctx, s.hub, taint)
}

func (s *Stack) startNode(ctx context.Context, c *controlPlane, taints ...corev1.Taint) error {
	specs, err := s.workloadSpecs(ctx, c, "kube-controller-manager-workloads", workloadControllers)
	if err != nil {
		return err
	}
	if err := s.runAll(ctx, specs); err != nil {
		return err
	}
	const name = "node"
	// The node has a network already, because its cluster is not a new one.
	if err := files.WriteAtomically(filepath.Join(s.nodeDir(c, name), "root", "etc", "cni", "net.d", "10-host.conflist"), []byte("{}")); err != nil {
		return err
	}
	_, err = s.playNode(c, hostprovider.Machine{Name: name, Taints: taints})
	return err
}

// nodeDir holds the files of a node.
func (s *Stack) nodeDir(c *controlPlane, name string) string {
	return filepath.Join(s.dir, "nodes", c.prefix+name)
}

// playNode adds a node to a control plane. The node runs until the caller ends it or the stack stops.
func (s *Stack) playNode(c *controlPlane, machine hostprovider.Machine) (end func(), err error) {
	// The audit log needs a user of its own; the node's permissions are not under test.
	user, err := c.userConfig("system:node:"+machine.Name, "system:nodes", "system:masters")
	if err != nil {
		return nil, err
	}
	config, err := restConfig(user)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	node := &kubelet.Node{
		Name: machine.Name, ProviderID: machine.ProviderID, Taints: machine.Taints,
		Client: client, Server: c.server, CA: c.pki.CA(),
		Images: s.images(), Host: nodeHost{s, c.prefix}, Dir: s.nodeDir(c, machine.Name),
	}
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.wait.Go(func() {
		defer close(done)
		node.Run(ctx)
	})
	return func() { stop(); <-done }, nil
}

// nodeHost runs the processes of a node in the stack.
type nodeHost struct {
	*Stack
	prefix string
}

func (h nodeHost) Start(spec process.Spec) (*process.Process, error) {
	spec.Name = h.prefix + spec.Name
	defer h.options.changed(h.Stack)
	p := h.add(spec)
	return p, p.Start()
}

func (h nodeHost) Drop(p *process.Process) {
	h.drop(p)
	h.options.changed(h.Stack)
}

func (h nodeHost) Port(preferred int) (int, error) { return h.leases.Port(preferred) }

// images returns the images that nodes know. Real programs run if they were built. A shell plays programs that
// would change this host or are not built.
func (s *Stack) images() kubelet.Images {
	shell := func(script string) []string { return []string{"/bin/sh", "-c", script, "sh"} }
	waits := shell("exec sleep infinity")
	return kubelet.Images{
		"rancher/fleet-agent": {
			Programs: map[string][]string{"fleetagent": {s.tools.Bin("fleetagent")}},
			Env:      map[string]string{"FLEET_AGENT_METRICS_BIND_ADDRESS": ":8080", "FLEET_AGENT_PROBE_BIND_ADDRESS": ":8081"},
			Ports:    []int{8080, 8081},
		},
		"rancher/fleet":         s.fleetImage(),
		"registry.k8s.io/pause": {Programs: map[string][]string{"": waits}},
		// The CNI's configuration is copied as it is; its plugin and its daemon are played.
		"ghcr.io/flannel-io/flannel":            {Programs: map[string][]string{"cp": {"cp"}, "flanneld": waits}},
		"ghcr.io/flannel-io/flannel-cni-plugin": {Programs: map[string][]string{"cp": shell("exit 0")}},
		// A cloud provider's controller manager that removes its taint from nodes.
		"registry.example.com/cloud-controller-manager": {Programs: map[string][]string{"": shell(
			"until " + s.tools.Bin("kubectl") + " taint nodes --all node.cloudprovider.kubernetes.io/uninitialized-; do sleep 1; done; exec sleep infinity")}},
	}
}

// fleetImage returns the image of Fleet's controllers and their jobs.
func (s *Stack) fleetImage() kubelet.Image {
	return kubelet.Image{
		Programs: map[string][]string{
			"fleet": {s.tools.Bin("fleetcli")},
			// An argument sets where gitjob listens, and here every Pod has ports of its own.
			"fleetcontroller": {"/bin/sh", "-c",
				`[ "$1" != gitjob ] || set -- "$@" --listen="$PLAYED_GITJOB_LISTEN"; exec ` + s.tools.Bin("fleetcontroller") + ` "$@"`, "sh"},
			// Its entrypoint runs the program that the arguments name.
			"": {"/bin/sh", "-c", `program=$1; shift; [ "$program" = fleet ] && exec ` + s.tools.Bin("fleetcli") + ` "$@"; exit 127`, "sh"},
		},
		Env: map[string]string{
			"FLEET_METRICS_BIND_ADDRESS": ":8080", "FLEET_HEALTHPROBE_BIND_ADDRESS": ":8082",
			"GITOPS_METRICS_BIND_ADDRESS": ":8081", "HELMOPS_METRICS_BIND_ADDRESS": ":8081", "PLAYED_GITJOB_LISTEN": ":8083",
		},
		Ports: []int{8080, 8081, 8082, 8083},
	}
}
