package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/muster-fleet/muster/test/stack/parts"
	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

const fleetNamespace = "cattle-fleet-system"

// configureFleet writes the configuration that Fleet's chart would write. Without the URL of the API server, Fleet
// cannot import a cluster.
func (s *Stack) configureFleet(ctx context.Context, bootstrap map[string]string) error {
	config, err := json.Marshal(map[string]any{
		"agentImage":                      "rancher/fleet-agent:" + parts.Chosen.Fleet,
		"agentImagePullPolicy":            "IfNotPresent",
		"apiServerURL":                    s.hub.server,
		"apiServerCA":                     s.hub.pki.CA(),
		"agentCheckinInterval":            cmp.Or(s.options.CheckIn, "15m"),
		"agentTLSMode":                    "system-store",
		"agentWorkers":                    map[string]string{"bundledeployment": "50", "drift": "50"},
		"garbageCollectionInterval":       "15m",
		"ignoreClusterRegistrationLabels": false,
		"bootstrap":                       bootstrap,
	})
	if err != nil {
		return err
	}
	return s.Apply(ctx, fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: %[1]s, name: fleet-controller}, data: {config: %[2]q}}
`, fleetNamespace, config))
}

// fleetEnv returns the environment of Fleet's controllers. Each controller requires all of it, even the election
// settings if it does not elect a leader.
func (s *Stack) fleetEnv(more ...string) ([]string, error) {
	kubeconfig, err := s.hub.userKubeconfig("fleet-controller", "system:masters")
	env := []string{"HOME=" + s.dir, "TMPDIR=" + s.dir, "KUBECONFIG=" + kubeconfig, "NAMESPACE=" + fleetNamespace}
	for _, prefix := range []string{"CATTLE", "FLEET_AGENT"} {
		env = append(env, prefix+"_ELECTION_LEASE_DURATION=12s", prefix+"_ELECTION_RETRY_PERIOD=2s", prefix+"_ELECTION_RENEW_DEADLINE=8s")
	}
	for _, kind := range []string{"BUNDLE", "BUNDLEDEPLOYMENT", "CLUSTER", "CLUSTERGROUP", "HELMOPS", "GITREPO"} {
		// Unset means one worker.
		env = append(env, kind+"_RECONCILER_WORKERS=50")
	}
	return append(env, more...), err
}

// FleetController is the process that makes BundleDeployments from Bundles.
const FleetController = "fleet-controller"

// StartFleetController starts that process on a stack of the profile API that has parts.Fleet among its Parts.
// Fleet Clusters get namespaces there, which the stack plays, and no agents.
func (s *Stack) StartFleetController(ctx context.Context) error {
	if _, err := s.process(FleetController); err == nil {
		return s.Start(ctx, FleetController)
	}
	if err := s.configureFleet(ctx, map[string]string{"namespace": "-"}); err != nil {
		return err
	}
	spec, err := s.fleetControllerSpec()
	if err != nil {
		return err
	}
	return s.run(ctx, spec)
}

func (s *Stack) fleetControllerSpec() (process.Spec, error) {
	port, health, err := s.lease()
	if err != nil {
		return process.Spec{}, err
	}
	env, err := s.fleetEnv("FLEET_HEALTHPROBE_BIND_ADDRESS=" + health)
	return process.Spec{
		Name: FleetController, Path: s.tools.Bin("fleetcontroller"), Port: port,
		Args:  []string{"--leader-elect=false", "--disable-metrics"},
		Env:   env,
		Ready: poll.Answers(http.DefaultClient, "http://"+health+"/readyz"),
	}, err
}

// fleetSpecs are Fleet's controllers.
func (s *Stack) fleetSpecs() ([]process.Spec, error) {
	controller, err := s.fleetControllerSpec()
	if err != nil {
		return nil, err
	}
	management, err := s.agentManagementSpec("--disable-bootstrap")
	if err != nil {
		return nil, err
	}
	return []process.Spec{controller, management, {
		Name: "fleet-helmops", Path: s.tools.Bin("fleetcontroller"),
		Args:        []string{"helmops", "--leader-elect=false", "--disable-metrics"},
		Env:         management.Env,
		LogContains: "Starting workers",
	}}, nil
}

func (s *Stack) agentManagementSpec(flags ...string) (process.Spec, error) {
	env, err := s.fleetEnv("FLEET_HEALTHPROBE_BIND_ADDRESS=0")
	return process.Spec{
		Name: "fleet-agentmanagement", Path: s.tools.Bin("fleetcontroller"),
		Args: append([]string{"agentmanagement"}, flags...), Env: env,
		LogContains: "Starting fleet.cattle.io/v1alpha1, Kind=Cluster controller",
	}, err
}
