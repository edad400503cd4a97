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

// DefaultAgentNamespace is where Fleet's agent lives unless configured otherwise.
const DefaultAgentNamespace = "fleet-addon-agent"

// StartAgent gives the downstream a node, if it has none, and waits until the agent runs there
// that Fleet, or its user, has deployed into this namespace.
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

// StartNode gives the management cluster a node, the scheduler and the controllers that make
// Pods. The taint keeps Muster's own Deployments off it, which run as processes already.
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
	// It has a network: its cluster is nothing that begins.
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

// playNode adds a node to a control plane. It is played until it is ended or the stack goes
// down.
func (s *Stack) playNode(c *controlPlane, machine hostprovider.Machine) (end func(), err error) {
	// The audit log tells its requests from those of others; its rights are no subject here.
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

// nodeHost runs the processes of a node with those of the stack.
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
		"rancher/fleet":         s.fleetImage(),
		"registry.k8s.io/pause": {Programs: map[string][]string{"": waits}},
		// Its configuration is copied as it is, its plugin and its daemon are not here.
		"ghcr.io/flannel-io/flannel":            {Programs: map[string][]string{"cp": {"cp"}, "flanneld": waits}},
		"ghcr.io/flannel-io/flannel-cni-plugin": {Programs: map[string][]string{"cp": shell("exit 0")}},
		// A cloud provider's controller manager, as far as nodes wait for it.
		"registry.example.com/cloud-controller-manager": {Programs: map[string][]string{"": shell(
			"until " + s.tools.Bin("kubectl") + " taint nodes --all node.cloudprovider.kubernetes.io/uninitialized-; do sleep 1; done; exec sleep infinity")}},
	}
}

// fleetImage is the image of Fleet's controllers, and of their jobs.
func (s *Stack) fleetImage() kubelet.Image {
	return kubelet.Image{
		Programs: map[string][]string{
			"fleet": {s.tools.Bin("fleetcli")},
			// Where gitjob listens is an argument, and here every Pod has ports of its own.
			"fleetcontroller": {"/bin/sh", "-c",
				`[ "$1" != gitjob ] || set -- "$@" --listen="$PLAYED_GITJOB_LISTEN"; exec ` + s.tools.Bin("fleetcontroller") + ` "$@"`, "sh"},
			// Its entrypoint runs what the arguments say.
			"": {"/bin/sh", "-c", `program=$1; shift; [ "$program" = fleet ] && exec ` + s.tools.Bin("fleetcli") + ` "$@"; exit 127`, "sh"},
		},
		Env: map[string]string{
			"FLEET_METRICS_BIND_ADDRESS": ":8080", "FLEET_HEALTHPROBE_BIND_ADDRESS": ":8082",
			"GITOPS_METRICS_BIND_ADDRESS": ":8081", "HELMOPS_METRICS_BIND_ADDRESS": ":8081", "PLAYED_GITJOB_LISTEN": ":8083",
		},
		Ports: []int{8080, 8081, 8082, 8083},
	}
}
