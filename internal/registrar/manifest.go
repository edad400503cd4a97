package registrar

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
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
	// registeredAnnotation on the Secret is the UID of the ClusterRegistration that its
	// credential is of.
	registeredAnnotation = stamp.Domain + "/registered"
	// tokenKey is the key of the credential alone, here and in a record.
	tokenKey = "token"

	// fleetConfigKey is the key in Fleet's ConfigMaps.
	fleetConfigKey = "config"
	// agentName is the name that Fleet's agent looks for its ConfigMap and its Secret by.
	agentName = "fleet-agent"
)

// server is how agents reach Fleet, and what else of Fleet's settings they receive.
type server struct {
	URL                       string          `json:"apiServerURL"`
	CA                        []byte          `json:"apiServerCA"`
	AgentTLSMode              string          `json:"agentTLSMode"`
	GarbageCollectionInterval json.RawMessage `json:"garbageCollectionInterval"`
}

// serverOf reads Fleet's settings. The error says what to do.
func serverOf(config *corev1.ConfigMap) (server, error) {
	if config == nil {
		return server{}, errors.New("ConfigMap fleet-controller with Fleet's settings is not there; install Fleet")
	}
	var result server
	if err := json.Unmarshal([]byte(config.Data[fleetConfigKey]), &result); err != nil {
		return server{}, fmt.Errorf("the ConfigMap fleet-controller with Fleet's settings cannot be read: %w", err)
	}
	if result.URL == "" {
		return server{}, errors.New("no apiServerURL, by which agents find Fleet, is in its settings; set it in Fleet's chart")
	}
	if parsed, err := url.Parse(result.URL); err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return server{}, fmt.Errorf("apiServerURL of Fleet's settings, by which agents find it, is %q; set an absolute https URL in Fleet's chart", result.URL)
	}
	return result, nil
}

// credential is what Fleet makes for a registration.
type credential struct {
	token, deploymentNamespace, clusterNamespace, clusterName string
}

// credentialSecret is the name under which Fleet leaves the credential of a registration.
func credentialSecret(registration *fleetv1.ClusterRegistration) string {
	sum := sha256.Sum256([]byte(registration.Spec.ClientID + registration.Spec.ClientRandom))
	return ("c-" + hex.EncodeToString(sum[:]))[:63]
}

func credentialOf(secret *corev1.Secret) *credential {
	return &credential{
		token:               string(secret.Data["token"]),
		deploymentNamespace: string(secret.Data["deploymentNamespace"]),
		clusterNamespace:    string(secret.Data["clusterNamespace"]),
		clusterName:         string(secret.Data["clusterName"]),
	}
}

// isFor reports whether a credential is that of a Fleet Cluster. Who may write
// ClusterRegistrations decides by which name a credential is looked for.
func (c *credential) isFor(fleet *fleetv1.Cluster) bool {
	return c != nil && c.token != "" && c.clusterNamespace == fleet.Namespace && c.clusterName == fleet.Name &&
		c.deploymentNamespace == deploymentNamespace(fleet)
}

// deploymentNamespace is where Fleet keeps what is deployed to a cluster, and its agent's
// account: by the name of the Fleet Cluster, whatever its status says.
func deploymentNamespace(fleet *fleetv1.Cluster) string {
	return stamp.FleetNamespace(fleet.Namespace, fleet.Name)
}

// manifestSecret returns the Secret that is issued. Before the Cluster is registered it
// lacks the credential.
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

// emptySecret returns the Secret that is issued, without a manifest.
func emptySecret(cluster *clusterv1.Cluster) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace,
			Name:      stamp.ManifestSecret(cluster.Name),
			Labels: map[string]string{
				stamp.ManagedByLabel: stamp.ManagedBy,
				// clusterctl move takes it along, and Cluster API's users find it.
				clusterv1.ClusterNameLabel: cluster.Name,
			},
			OwnerReferences: []metav1.OwnerReference{desired.Owner(cluster)},
		},
		Type: stamp.ManifestSecretType,
	}
}

// manifest returns what to apply to the cluster: the namespace of the agent, what it must
// know, and Fleet's own manifest of it. Fleet's Bundle takes the last over.
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
