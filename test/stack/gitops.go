package stack

import (
	"context"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/process"
)

// LocalNamespace is the namespace in which Fleet keeps the management cluster as one of its own.
const LocalNamespace = "fleet-local"

// fleetInstallation holds the objects of Fleet's chart besides its programs: its Deployment, whose tolerations
// Fleet copies to its jobs and its local agent; the account with which it manages the local cluster; and the hosts
// that it knows. Muster's own Deployments do not tolerate the node, because they run as processes already.
var fleetInstallation = `
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
      containers: [{name: fleet-controller, image: "rancher/fleet:` + parts.Chosen.Fleet + `"}]
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

// StartGitOps lets Fleet deploy from Git, also to the management cluster itself. The cluster gets a node, the
// scheduler and the controllers that make Pods; Fleet gets its gitjob and a local agent.
func (s *Stack) StartGitOps(ctx context.Context) error {
	if _, err := s.process("fleet-gitjob"); err == nil {
		return nil
	}
	if err := s.Apply(ctx, fleetInstallation); err != nil {
		return err
	}
	if err := s.StartNode(ctx, corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}); err != nil {
		return err
	}
	port, listen, err := s.lease()
	if err != nil {
		return err
	}
	env, err := s.fleetEnv()
	if err != nil {
		return err
	}
	if err := s.run(ctx, process.Spec{
		Name: "fleet-gitjob", Path: s.tools.Bin("fleetcontroller"), Port: port,
		Args: []string{
			"gitjob", "--leader-elect=false", "--disable-metrics", "--listen=" + listen,
			"--gitjob-image=rancher/fleet:" + parts.Chosen.Fleet, "--insecure-skip-host-key-checks",
		},
		Env: env, LogContains: "Starting workers",
	}); err != nil {
		return err
	}
	// Fleet's controllers reload their configuration, but not the settings of flags.
	if err := s.configureFleet(ctx, map[string]string{"namespace": LocalNamespace, "agentNamespace": "cattle-fleet-local-system"}); err != nil {
		return err
	}
	management, err := s.agentManagementSpec()
	if err != nil {
		return err
	}
	p, err := s.process(management.Name)
	if err != nil {
		return err
	}
	if err := s.Stop(ctx, management.Name); err != nil {
		return err
	}
	s.drop(p)
	return s.run(ctx, management)
}

// StartRegistry runs an OCI registry at an address of this host, with this certificate. Clients need the password.
func (s *Stack) StartRegistry(ctx context.Context, address, certificate, key, user, password string) error {
	tools, err := parts.Build(ctx, s.tools.Root, []parts.Module{parts.Registry}, s.options.Progress)
	if err != nil {
		return err
	}
	return s.run(ctx, process.Spec{
		Name: "registry", Path: tools.Bin("registry"),
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
