package registrar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

const (
	// registeredAnnotation on the Secret is the UID of the ClusterRegistration from which its credential
	// comes.
	registeredAnnotation = stamp.Domain + "/registered"
	// tokenKey is the key of the bare credential, in the Secret and in a record.
	tokenKey = "token"

	// fleetConfigKey is the key in Fleet's ConfigMaps.
	fleetConfigKey = "config"
	// agentName is the name of the ConfigMap and the Secret that Fleet's agent reads.
	agentName = "fleet-agent"
)

// server is how agents reach Fleet, and the other settings of Fleet that they get.
type server struct {
	URL                       string          `json:"apiServerURL"`
	CA                        []byte          `json:"apiServerCA"`
	AgentTLSMode              string          `json:"agentTLSMode"`
	GarbageCollectionInterval json.RawMessage `json:"garbageCollectionInterval"`
}

// serverOf reads Fleet's settings. Its errors say what to do.
func serverOf(config *corev1.ConfigMap) (server, error) {
	if config == nil {
		return server{}, errors.New("ConfigMap fleet-controller with Fleet's settings does not exist; install Fleet")
	}
	var result server
	if err := json.Unmarshal([]byte(config.Data[fleetConfigKey]), &result); err != nil {
		return server{}, fmt.Errorf("the ConfigMap fleet-controller with Fleet's settings cannot be read: %w", err)
	}
	if result.URL == "" {
		return server{}, errors.New("apiServerURL, at which agents find Fleet, is missing in Fleet's settings; set it in Fleet's chart")
	}
	if parsed, err := url.Parse(result.URL); err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return server{}, fmt.Errorf("apiServerURL in Fleet's settings, at which agents find Fleet, is %q; set an absolute https URL in Fleet's chart", result.URL)
	}
	return result, nil
}

// credential is the Secret that Fleet makes for a registration.
type credential struct {
	token, deploymentNamespace, clusterNamespace, clusterName string
}

// credentialSecret returns the name of the Secret in which Fleet leaves a registration's credential.
func credentialSecret(registration *fleetv1.ClusterRegistration) string {
	return ("c-" + digest(registration.Spec.ClientID+registration.Spec.ClientRandom))[:63]
}

func credentialOf(secret *corev1.Secret) *credential {
	return &credential{
		token:               string(secret.Data["token"]),
		deploymentNamespace: string(secret.Data["deploymentNamespace"]),
		clusterNamespace:    string(secret.Data["clusterNamespace"]),
		clusterName:         string(secret.Data["clusterName"]),
	}
}

// isFor reports whether a credential is for a Fleet Cluster. The registrar must check, because a
// tenant who may write ClusterRegistrations decides the name of the Secret that it reads.
func (c *credential) isFor(fleet *fleetv1.Cluster) bool {
	return c != nil && c.token != "" && c.clusterNamespace == fleet.Namespace && c.clusterName == fleet.Name &&
		c.deploymentNamespace == deploymentNamespace(fleet)
}

// deploymentNamespace is where Fleet keeps BundleDeployments and the agent's account for a cluster. It
// follows from the name of the Fleet Cluster, whatever its status says.
func deploymentNamespace(fleet *fleetv1.Cluster) string {
	return stamp.FleetNamespace(fleet.Namespace, fleet.Name)
}

// manifestSecret returns the Secret to issue. Before the Cluster is registered, its manifest lacks
// the credential.
func manifestSecret(s *scope) (*corev1.Secret, error) {
	manifest, err := manifest(s.server, s.fleet, s.token(), s.agent)
	if err != nil {
		return nil, err
	}
	secret := emptySecret(s.cluster)
	secret.Data = map[string][]byte{stamp.ManifestKey: manifest, tokenKey: []byte(s.token())}
	if current := s.current(); current != nil {
		secret.Annotations = map[string]string{registeredAnnotation: string(current.UID)}
	}
	return secret, nil
}

// emptySecret returns the Secret without a manifest.
func emptySecret(cluster *clusterv1.Cluster) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace,
			Name:      stamp.ManifestSecret(cluster.Name),
			Labels: map[string]string{
				stamp.ManagedByLabel: stamp.ManagedBy,
				// clusterctl move takes it along, and users of Cluster API find it.
				clusterv1.ClusterNameLabel: cluster.Name,
			},
			OwnerReferences: []metav1.OwnerReference{desired.Owner(cluster)},
		},
		Type: stamp.ManifestSecretType,
	}
}

// manifest returns the YAML to apply to the cluster: the agent's namespace, its settings and
// credential, and Fleet's own manifest of the agent, which Fleet's Bundle later takes over.
func manifest(server server, fleet *fleetv1.Cluster, token, agent string) ([]byte, error) {
	namespace := fleet.Spec.AgentNamespace
	if namespace == "" {
		namespace = defaultFleetNamespace
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: server.URL, CertificateAuthorityData: server.CA}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"default": {Cluster: "cluster", AuthInfo: "user", Namespace: deploymentNamespace(fleet)}},
		CurrentContext: "default",
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	settings := map[string]any{"agentTLSMode": server.AgentTLSMode}
	if len(server.GarbageCollectionInterval) > 0 {
		settings["garbageCollectionInterval"] = server.GarbageCollectionInterval
	}
	config, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("writing the agent's settings: %w", err)
	}
	var result bytes.Buffer
	for _, object := range []runtime.Object{
		&corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace},
		},
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentName},
			Data:       map[string]string{fleetConfigKey: string(config)},
		},
		&corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentName},
			Data: map[string][]byte{
				"kubeconfig":          kubeconfig,
				"deploymentNamespace": []byte(deploymentNamespace(fleet)),
				"clusterNamespace":    []byte(fleet.Namespace),
				"clusterName":         []byte(fleet.Name),
			},
		},
	} {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		delete(fields, "status")
		delete(fields, "spec")
		delete(fields["metadata"].(map[string]any), "creationTimestamp")
		text, err := yaml.Marshal(fields)
		if err != nil {
			return nil, err
		}
		result.Write(text)
		result.WriteString("---\n")
	}
	result.WriteString(strings.TrimPrefix(strings.TrimSpace(agent), "---\n"))
	result.WriteString("\n")
	return result.Bytes(), nil
}
