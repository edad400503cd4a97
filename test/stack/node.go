package stack

import (
	"context"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/test/stack/hostprovider"
	"github.com/muster-fleet/muster/test/stack/kubelet"
	"github.com/muster-fleet/muster/test/stack/process"
)

// playedNode is a node of a control plane, played until it is ended or the stack goes down.
type playedNode struct {
	stop context.CancelFunc
	done chan struct{}
}

func (n *playedNode) end() {
	n.stop()
	<-n.done
}

// nodeDir holds the files of a node.
func (s *Stack) nodeDir(c *controlPlane, name string) string {
	return filepath.Join(s.dir, "nodes", c.prefix+name)
}

// playNode adds a node to a control plane.
func (s *Stack) playNode(c *controlPlane, machine hostprovider.Machine) (*playedNode, error) {
	// The audit log tells its requests from those of others; its rights are no subject here.
	user, err := c.userConfig("system:node:"+machine.Name, "system:nodes", "system:masters")
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*user, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
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
	played := &playedNode{stop: stop, done: make(chan struct{})}
	s.wait.Go(func() {
		defer close(played.done)
		node.Run(ctx)
	})
	return played, nil
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
