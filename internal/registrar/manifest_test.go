package registrar

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func TestServerOf(t *testing.T) {
	for name, test := range map[string]struct {
		config *corev1.ConfigMap
		wrong  string
	}{
		"all":         {config: fleetConfig(`{"apiServerURL":"https://fleet.example.com:6443","apiServerCA":"Y2E=","agentTLSMode":"strict","garbageCollectionInterval":"15m"}`)},
		"no CA":       {config: fleetConfig(`{"apiServerURL":"https://fleet.example.com"}`)},
		"none":        {wrong: "install Fleet"},
		"no settings": {config: fleetConfig(""), wrong: "cannot be read"},
		"no URL":      {config: fleetConfig(`{}`), wrong: "is missing in Fleet's settings"},
		"http":        {config: fleetConfig(`{"apiServerURL":"http://fleet.example.com"}`), wrong: "absolute https"},
		"no host":     {config: fleetConfig(`{"apiServerURL":"https:///x"}`), wrong: "absolute https"},
	} {
		_, err := serverOf(test.config)
		if (err != nil) != (test.wrong != "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: got %v, want %q", name, err, test.wrong)
		}
	}
}

func fleetConfig(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{"config": text}}
}

func TestManifest(t *testing.T) {
	server, err := serverOf(fleetConfig(`{"apiServerURL":"https://fleet.example.com:6443","apiServerCA":"Y2E=","agentTLSMode":"strict","garbageCollectionInterval":"15m"}`))
	if err != nil {
		t.Fatal(err)
	}
	fleet := met{}.scope().fleet
	for given, namespace := range map[string]string{"": "cattle-fleet-system", "agents": "agents"} {
		fleet.Spec.AgentNamespace = given
		text, err := manifest(server, fleet, "secret", "---\nkind: Deployment\n---\nkind: ServiceAccount\n")
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, document := range strings.Split(string(text), "---\n") {
			var object metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, object.Kind)
			switch object.Kind {
			case "Namespace":
				if object.Name != namespace {
					t.Errorf("Namespace %q", object.Name)
				}
			case "Secret":
				var secret corev1.Secret
				if err := yaml.Unmarshal([]byte(document), &secret); err != nil {
					t.Fatal(err)
				}
				checkAgentSecret(t, &secret, namespace)
			case "ConfigMap":
				var config corev1.ConfigMap
				if err := yaml.Unmarshal([]byte(document), &config); err != nil {
					t.Fatal(err)
				}
				// Not the clientID: a registered agent needs none, and with it and a token anyone could register.
				if diff := cmp.Diff(map[string]string{"config": `{"agentTLSMode":"strict","garbageCollectionInterval":"15m"}`}, config.Data); diff != "" {
					t.Errorf("settings (-want +got):\n%s", diff)
				}
			}
		}
		if diff := cmp.Diff([]string{"Namespace", "ConfigMap", "Secret", "Deployment", "ServiceAccount"}, kinds); diff != "" {
			t.Errorf("kinds (-want +got):\n%s", diff)
		}
	}
}

func checkAgentSecret(t *testing.T, secret *corev1.Secret, namespace string) {
	t.Helper()
	if secret.Namespace != namespace || secret.Name != "fleet-agent" || string(secret.Data["clusterName"]) != "prod-1" ||
		string(secret.Data["clusterNamespace"]) != "team" || string(secret.Data["deploymentNamespace"]) != deployedIn {
		t.Errorf("Secret %+v", secret)
	}
	client, err := clientcmd.NewClientConfigFromBytes(secret.Data["kubeconfig"])
	if err != nil {
		t.Fatal(err)
	}
	config, err := client.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	in, _, err := client.Namespace()
	if err != nil || in != deployedIn || config.Host != "https://fleet.example.com:6443" || config.BearerToken != "secret" || string(config.CAData) != "ca" {
		t.Errorf("kubeconfig: namespace %q, %+v, %v", in, config, err)
	}
}

// Fleet chooses this name (github.com/rancher/fleet/internal/registration, an internal package).
func TestCredentialSecret(t *testing.T) {
	registration := &fleetv1.ClusterRegistration{Spec: fleetv1.ClusterRegistrationSpec{ClientID: "id", ClientRandom: "random"}}
	if got := credentialSecret(registration); got != "c-a419805eeabb1f6c6792905a86ba0cc210ce6464bb0b909c15a8e4831c999" {
		t.Errorf("got %q", got)
	}
}
