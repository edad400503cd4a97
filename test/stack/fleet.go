package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/test/stack/poll"
	"github.com/muster-fleet/muster/test/stack/process"
)

const (
	fleetNamespace = "cattle-fleet-system"
	fleetVersion   = "v0.16.0"
)

// configureFleet writes what Fleet's chart would: without the URL of the API server
// Fleet cannot import a cluster.
func (s *Stack) configureFleet(ctx context.Context) error {
	// "-" means that the local cluster is not managed.
	return s.writeFleetConfig(ctx, map[string]string{"namespace": "-"})
}

func (s *Stack) writeFleetConfig(ctx context.Context, bootstrap map[string]string) error {
	if err := s.hub.ensureNamespace(ctx, fleetNamespace); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"agentImage":                      "rancher/fleet-agent:" + fleetVersion,
		"agentImagePullPolicy":            "IfNotPresent",
		"apiServerURL":                    s.hub.server,
		"apiServerCA":                     s.hub.pki.CA(),
		"agentCheckinInterval":            "15m",
		"agentTLSMode":                    "system-store",
		"agentWorkers":                    map[string]string{"bundledeployment": "50", "drift": "50"},
		"garbageCollectionInterval":       "15m",
		"ignoreClusterRegistrationLabels": false,
		"bootstrap":                       bootstrap,
	})
	if err != nil {
		return err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "fleet-controller"},
		Data:       map[string]string{"config": string(config)},
	})
	if err != nil {
		return err
	}
	return s.client.applyObject(ctx, &unstructured.Unstructured{Object: object})
}

// fleetEnv is the environment of Fleet's controllers. Each wants it whole: the election
// settings even without election.
func (s *Stack) fleetEnv(more ...string) ([]string, error) {
	kubeconfig, err := s.hub.userKubeconfig("fleet-controller", "system:masters")
	env := append(electionEnv(),
		"HOME="+s.dir, "TMPDIR="+s.dir, "KUBECONFIG="+kubeconfig, "NAMESPACE="+fleetNamespace)
	for _, kind := range []string{"BUNDLE", "BUNDLEDEPLOYMENT", "CLUSTER", "CLUSTERGROUP", "HELMOPS", "GITREPO"} {
		// Unset means one worker.
		env = append(env, kind+"_RECONCILER_WORKERS=50")
	}
	return append(env, more...), err
}

// fleetSpecs are Fleet's controllers.
func (s *Stack) fleetSpecs() ([]process.Spec, error) {
	port, err := s.leases.Port(0)
	if err != nil {
		return nil, err
	}
	health := fmt.Sprintf("127.0.0.1:%d", port)
	env, err := s.fleetEnv()
	if err != nil {
		return nil, err
	}
	binary := s.tools.Bin("fleetcontroller")
	return []process.Spec{{
		Name: "fleet-controller", Path: binary, Port: port,
		Args:  []string{"--leader-elect=false", "--disable-metrics"},
		Env:   append(env[:len(env):len(env)], "FLEET_HEALTHPROBE_BIND_ADDRESS="+health),
		Ready: poll.Answers(http.DefaultClient, "http://"+health+"/readyz"),
	}, {
		Name: "fleet-agentmanagement", Path: binary,
		Args:    []string{"agentmanagement", "--disable-bootstrap"},
		Env:     append(env[:len(env):len(env)], "FLEET_HEALTHPROBE_BIND_ADDRESS=0"),
		LogSays: "Starting fleet.cattle.io/v1alpha1, Kind=Cluster controller",
	}, {
		Name: "fleet-helmops", Path: binary,
		Args:    []string{"helmops", "--leader-elect=false", "--disable-metrics"},
		Env:     append(env[:len(env):len(env)], "FLEET_HEALTHPROBE_BIND_ADDRESS=0"),
		LogSays: "Starting workers",
	}}, nil
}

// electionEnv are settings Fleet's programs parse whether they elect or not.
func electionEnv() []string {
	var env []string
	for _, prefix := range []string{"CATTLE", "FLEET_AGENT"} {
		env = append(env, prefix+"_ELECTION_LEASE_DURATION=12s", prefix+"_ELECTION_RETRY_PERIOD=2s", prefix+"_ELECTION_RENEW_DEADLINE=8s")
	}
	return env
}
