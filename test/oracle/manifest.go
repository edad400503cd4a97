package oracle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
)

// The other values in Fleet's settings.
const (
	// ServerCA signs the certificate of the address.
	ServerCA = "a certificate authority"
	// TLSMode is how strictly agents verify it.
	TLSMode = "strict"
)

// manifestText returns the issued manifest: the agent's namespace, its ConfigMap, its Secret with the credential of
// this one cluster, and Fleet's own manifest of the agent. It contains no clientID and no token with which a client
// could register.
func manifestText(server string, fleet *fleetv1.Cluster, bundle *fleetv1.Bundle, token string) []byte {
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a, namespace: %q}}],
clusters: [{name: a, cluster: {server: %q, certificate-authority-data: %q}}], users: [{name: a, user: {token: %q}}]}`,
		fleet.Status.Namespace, server, base64.StdEncoding.EncodeToString([]byte(ServerCA)), token)
	secret := fmt.Sprintf("{kubeconfig: %q, deploymentNamespace: %q, clusterNamespace: %q, clusterName: %q}",
		kubeconfig, fleet.Status.Namespace, fleet.Namespace, fleet.Name)
	return fmt.Appendf(nil, `{apiVersion: v1, kind: Namespace, metadata: {name: %[1]q}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: %[1]q, name: fleet-agent}, data: {config: '{"agentTLSMode":%[2]q}'}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]q, name: fleet-agent}, stringData: %[3]s}
---
%[4]s`, fleet.Spec.AgentNamespace, TLSMode, secret, bundle.Spec.Resources[0].Content)
}

// readManifest reads a manifest as a cluster would, in whatever form it is written.
func readManifest(text []byte) (map[string]any, error) {
	content := map[string]any{}
	var rest []any
	for reader := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := unstructured.Unstructured{}
		if err := reader.Decode(&object.Object); errors.Is(err, io.EOF) {
			content["agent"] = rest
			return content, nil
		} else if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		isAgents := object.GetName() == "fleet-agent"
		var err error
		switch {
		case len(object.Object) == 0:
		case object.GetKind() == "Namespace":
			content[name] = "is made"
		case isAgents && object.GetKind() == "ConfigMap":
			config, _, _ := unstructured.NestedString(object.Object, "data", "config")
			content[name], err = readConfig(config)
		case isAgents && object.GetKind() == "Secret":
			content[name], err = readSecret(object.Object)
		default:
			rest = append(rest, object.Object)
		}
		if err != nil {
			return nil, err
		}
	}
}

func readSecret(object map[string]any) (map[string]string, error) {
	var secret corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &secret); err != nil {
		return nil, err
	}
	content := map[string]string{}
	for key, value := range secret.Data {
		content[key] = string(value)
	}
	maps.Copy(content, secret.StringData)
	var err error
	content["kubeconfig"], err = readKubeconfig(content["kubeconfig"])
	return content, err
}

func readConfig(text string) (string, error) {
	var config struct{ AgentTLSMode, ClientID, APIServerURL string }
	err := json.Unmarshal([]byte(text), &config)
	return strings.TrimSpace(strings.Join([]string{config.AgentTLSMode, config.ClientID, config.APIServerURL}, " ")), err
}

func readKubeconfig(text string) (string, error) {
	config, err := clientcmd.Load([]byte(text))
	if err != nil {
		return "", err
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil || config.AuthInfos[context.AuthInfo] == nil {
		return "", fmt.Errorf("it leads nowhere: %q", text)
	}
	cluster, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	return fmt.Sprintf("%s at %s, which %q has signed, in namespace %s", user.Token, cluster.Server, cluster.CertificateAuthorityData, context.Namespace), nil
}

// viewManifest describes a Secret that has the name of a manifest.
func viewManifest(secret *corev1.Secret) map[string]any {
	view := map[string]any{"type": string(secret.Type)}
	for key, value := range secret.Data {
		view["data "+key] = string(value)
	}
	if secret.Type != manifestType {
		return view
	}
	if content, err := readManifest(secret.Data["manifest"]); err == nil {
		view["data manifest"] = content
	}
	return view
}
