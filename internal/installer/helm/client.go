// Package helm makes and changes Fleet's releases with Helm's library, so that Helm's own
// commands find what they know.
package helm

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// waiting is how Helm waits: by reading the objects of a release one by one, by name. Its
// other way lists and watches whole kinds, for which the installer has no rights.
const waiting = kube.LegacyStrategy

// Client works on the releases of one namespace.
type Client struct {
	config    *rest.Config
	namespace string
	log       logr.Logger
	typed     kubernetes.Interface
	// seen are releases as they were decoded, by the Secret they lie in.
	seen map[string]decoded
}

// New returns a client.
func New(config *rest.Config, namespace string, log logr.Logger) (*Client, error) {
	// Whoever goes on with Helm's own commands must not find the fields to be somebody else's.
	kube.ManagedFieldsManager = "helm"
	config = rest.CopyConfig(config)
	config.QPS = -1 // The API server knows best.
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{config: config, namespace: namespace, log: log, typed: typed, seen: map[string]decoded{}}, nil
}

// configuration is Helm's own for one action: CRDs may have come since the last.
func (c *Client) configuration(ctx context.Context) (*action.Configuration, error) {
	// Helm tells in detail what it does, values included.
	quiet := slog.NewTextHandler(logWriter{c.log}, &slog.HandlerOptions{Level: slog.LevelError})
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(quiet))
	if err := configuration.Init(&access{config: c.config, namespace: c.namespace}, c.namespace, "secrets"); err != nil {
		return nil, fmt.Errorf("setting up Helm: %w", err)
	}
	client, isClient := configuration.KubeClient.(*kube.Client)
	if !isClient {
		return nil, fmt.Errorf("setting up Helm: it talks through %T", configuration.KubeClient)
	}
	client.WaitContext = ctx //nolint:staticcheck // actions make their waiters themselves, and take no options for them
	return configuration, nil
}

// logWriter writes what Helm has to say about errors.
type logWriter struct{ log logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.Info("Helm says", "line", string(line))
	return len(line), nil
}

// access is how Helm finds the API server.
type access struct {
	config    *rest.Config
	namespace string
	cached    discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
}

func (a *access) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(a.config), nil }

func (a *access) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	if a.cached == nil {
		client, err := discovery.NewDiscoveryClientForConfig(a.config)
		if err != nil {
			return nil, err
		}
		a.cached = memory.NewMemCacheClient(client)
	}
	return a.cached, nil
}

func (a *access) ToRESTMapper() (meta.RESTMapper, error) {
	if a.mapper == nil {
		client, err := a.ToDiscoveryClient()
		if err != nil {
			return nil, err
		}
		a.mapper = restmapper.NewDeferredDiscoveryRESTMapper(client)
	}
	return a.mapper, nil
}

func (a *access) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: a.namespace}}
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), overrides)
}
