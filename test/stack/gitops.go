package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/hostprovider"
	"github.com/muster-fleet/muster/test/stack/process"
)

const (
	// LocalNamespace is where Fleet keeps the management cluster as one of its own.
	LocalNamespace = "fleet-local"
	localNode      = "management"
)

// fleetInstallation is what Fleet's chart has beside the programs: its Deployment, whose
// tolerations Fleet gives to its jobs and its local agent, the account with which it
// manages the local cluster, and the hosts that it knows. Muster's own Deployments do not tolerate the node: they run
// as processes already.
const fleetInstallation = `
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: cattle-fleet-system, name: fleet-controller}
spec:
  replicas: 0
  selector: {matchLabels: {app: fleet-controller}}
  template:
    metadata: {labels: {app: fleet-controller}}
    spec:
      tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
      containers: [{name: fleet-controller, image: "rancher/fleet:v0.16.0"}]
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: cattle-fleet-system, name: known-hosts}
data: {known_hosts: ""}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: cattle-fleet-system, name: fleet-controller-bootstrap}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fleet-controller-bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, namespace: cattle-fleet-system, name: fleet-controller-bootstrap}]
`

// StartGitOps lets Fleet deploy from Git, also to the management cluster itself: it gets
// a node, the scheduler and the controllers that make Pods, and Fleet its gitjob and a
// local agent.
func (s *Stack) StartGitOps(ctx context.Context) error {
	if s.remote != nil {
		return s.remote.do(ctx, "start-gitops", "", nil)
	}
	if _, err := s.process("fleet-gitjob"); err == nil {
		return nil
	}
	if err := s.Apply(ctx, fleetInstallation); err != nil {
		return err
	}
	if err := s.StartNode(ctx, corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}); err != nil {
		return err
	}
	gitjob, err := s.gitjobSpec()
	if err != nil {
		return err
	}
	if err := s.run(ctx, gitjob); err != nil {
		return err
	}
	// Fleet's controllers follow their configuration, but for what a flag has switched off.
	if err := s.writeFleetConfig(ctx, map[string]string{"namespace": LocalNamespace, "agentNamespace": "cattle-fleet-local-system"}); err != nil {
		return err
	}
	return s.startLocalCluster(ctx)
}

// StartNode gives the management cluster a node, the scheduler and the controllers that make
// Pods. The taint keeps Muster's own Deployments off it, which run as processes already.
func (s *Stack) StartNode(ctx context.Context, taint corev1.Taint) error {
	manager, err := s.controllerManagerSpec(s.hub, "kube-controller-manager-workloads", workloadControllers)
	if err != nil {
		return err
	}
	scheduler, err := s.schedulerSpec(s.hub)
	if err != nil {
		return err
	}
	if err := s.runAll(ctx, []process.Spec{manager, scheduler}); err != nil {
		return err
	}
	// It has a network: a management cluster is nothing that begins.
	if err := files.WriteAtomically(filepath.Join(s.nodeDir(s.hub, localNode), "root", "etc", "cni", "net.d", "10-host.conflist"), []byte("{}")); err != nil {
		return err
	}
	_, err = s.playNode(s.hub, hostprovider.Machine{Name: localNode, Taints: []corev1.Taint{taint}})
	return err
}

// startLocalCluster replaces agentmanagement by one that registers the local cluster.
func (s *Stack) startLocalCluster(ctx context.Context) error {
	const name = "fleet-agentmanagement"
	p, err := s.process(name)
	if err != nil {
		return err
	}
	if err := s.Stop(ctx, name); err != nil {
		return err
	}
	s.drop(p)
	env, err := s.fleetEnv("FLEET_HEALTHPROBE_BIND_ADDRESS=0")
	if err != nil {
		return err
	}
	return s.run(ctx, process.Spec{
		Name: name, Path: s.tools.Bin("fleetcontroller"), Args: []string{"agentmanagement"}, Env: env,
		LogSays: "Starting fleet.cattle.io/v1alpha1, Kind=Cluster controller",
	})
}

func (s *Stack) gitjobSpec() (process.Spec, error) {
	port, err := s.leases.Port(0)
	if err != nil {
		return process.Spec{}, err
	}
	env, err := s.fleetEnv()
	return process.Spec{
		Name: "fleet-gitjob", Path: s.tools.Bin("fleetcontroller"), Port: port,
		Args: []string{
			"gitjob", "--leader-elect=false", "--disable-metrics", fmt.Sprintf("--listen=127.0.0.1:%d", port),
			"--gitjob-image=rancher/fleet:" + fleetVersion, "--insecure-skip-host-key-checks",
		},
		Env: env, LogSays: "Starting workers",
	}, err
}

const mainModule = "github.com/muster-fleet/muster"

// RepoRoot returns the root of the work tree that the working directory is in.
func RepoRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		switch {
		case err == nil && strings.HasPrefix(string(content), "module "+mainModule+"\n"):
			return dir, nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return "", err
		case dir == filepath.Dir(dir):
			return "", fmt.Errorf("%s is not inside a work tree of %s", start, mainModule)
		}
	}
}

// StartRegistry runs an OCI registry at an address of this host, with this certificate, for
// those who know the password.
func (s *Stack) StartRegistry(ctx context.Context, address, certificate, key, user, password string) error {
	return s.run(ctx, process.Spec{
		Name: "registry", Path: s.tools.Bin("registry"),
		Args: []string{"-address=" + address, "-cert=" + certificate, "-key=" + key, "-user=" + user, "-password=" + password},
		Ready: func(ctx context.Context) error {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return fmt.Errorf("registry: %w", err)
			}
			return connection.Close()
		},
	})
}
