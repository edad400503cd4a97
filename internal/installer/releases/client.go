// Package releases reads and changes Fleet's releases through Helm's library, so that they stay
// usable with Helm's commands.
package releases

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/internal/installer"
)

// waiting makes Helm wait by reading the objects of a release by name. Helm's other strategies list
// and watch whole kinds, for which the installer has no rights.
const waiting = kube.LegacyStrategy

// Client works on the releases of one namespace.
type Client struct {
	config    *rest.Config
	namespace string
	log       logr.Logger
	typed     kubernetes.Interface
	// seen has decoded releases, by the name and the resourceVersion of their Secret.
	seen *lru.Cache
}

// New returns a client for the releases of one namespace.
func New(config *rest.Config, namespace string, log logr.Logger) (*Client, error) {
	// With any other field manager, Helm's commands would later run into conflicts.
	kube.ManagedFieldsManager = "helm"
	config = rest.CopyConfig(config)
	config.QPS = -1 // There is no limit here, because the API server limits its clients itself.
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{config: config, namespace: namespace, log: log, typed: typed, seen: lru.New(16)}, nil
}

// configuration returns Helm's configuration for one action: CRDs may have been installed since the last.
func (c *Client) configuration(ctx context.Context) (*action.Configuration, error) {
	// Only errors are logged, which have no level: Helm logs details, including values.
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(logr.ToSlogHandler(c.log.V(math.MaxInt8))))
	if err := configuration.Init(&access{c.config, c.namespace, memory.NewMemCacheClient(c.typed.Discovery())}, c.namespace, "secrets"); err != nil {
		return nil, fmt.Errorf("setting up Helm: %w", err)
	}
	client, isClient := configuration.KubeClient.(*kube.Client)
	if !isClient {
		return nil, fmt.Errorf("setting up Helm: unexpected client %T", configuration.KubeClient)
	}
	client.WaitContext = ctx //nolint:staticcheck // actions make their waiters themselves, and take no options for them
	return configuration, nil
}

// access gives Helm its connection to the API server.
type access struct {
	config    *rest.Config
	namespace string
	cached    discovery.CachedDiscoveryInterface
}

func (a *access) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(a.config), nil }

func (a *access) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return a.cached, nil
}

func (a *access) ToRESTMapper() (meta.RESTMapper, error) {
	return restmapper.NewDeferredDiscoveryRESTMapper(a.cached), nil
}

func (a *access) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: a.namespace}}
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), overrides)
}

const (
	// runLabel on a revision identifies the change that made it (installer.Release.MadeBy).
	runLabel = "fleet.addons.cluster.x-k8s.io/installer-run"
	// kubeVersionAnnotation is where Fleet's charts name the Kubernetes versions that they support.
	kubeVersionAnnotation = "catalog.cattle.io/kube-version"
	// statusLabel is Helm's own label on a revision.
	statusLabel = "status"
)

// Find returns the newest revision of a release, or nil if there is none or it was uninstalled.
func (c *Client) Find(ctx context.Context, name string) (*installer.Release, error) {
	all, err := c.revisions(ctx, name)
	if err != nil || len(all) == 0 || all[0].Labels[statusLabel] == string(common.StatusUninstalled) {
		return nil, err
	}
	last := &all[0]
	content, err := c.decode(ctx, last)
	if err != nil || content == nil {
		return nil, err
	}
	found := *content
	found.Status, found.MadeBy, found.Changed = last.Labels[statusLabel], last.Labels[runLabel], lastWrite(last)
	if len(all) > 1 {
		found.Before = all[1].Labels[runLabel]
	}
	i := slices.IndexFunc(all, func(revision metav1.PartialObjectMetadata) bool {
		return revision.Labels[statusLabel] == installer.StatusDeployed
	})
	if i < 0 {
		return &found, nil
	}
	serving, err := c.decode(ctx, &all[i])
	if serving != nil {
		found.Deployed = serving.Version
	}
	return &found, err
}

// revisions returns the Secrets with the revisions of a release, newest first. It reads only their metadata,
// because their data is large.
func (c *Client) revisions(ctx context.Context, name string) ([]metav1.PartialObjectMetadata, error) {
	client, err := metadata.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{"owner": "helm", "name": name}).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the revisions of Helm release %s: %w", name, err)
	}
	number := func(revision metav1.PartialObjectMetadata) int {
		number, _ := strconv.Atoi(revision.Labels["version"])
		return number // Helm's are positive.
	}
	all := slices.DeleteFunc(list.Items, func(revision metav1.PartialObjectMetadata) bool { return number(revision) == 0 })
	slices.SortFunc(all, func(a, b metav1.PartialObjectMetadata) int { return number(b) - number(a) })
	return all, nil
}

// lastWrite is when an object was last written, by the API server's clock.
func lastWrite(object metav1.Object) time.Time {
	last := object.GetCreationTimestamp().Time
	for _, entry := range object.GetManagedFields() {
		if entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

// decode reads the contents of a revision, or returns nil if it is gone. It drops the manifest and the rest of the chart:
// they are large, and no caller needs them.
func (c *Client) decode(ctx context.Context, revision *metav1.PartialObjectMetadata) (*installer.Release, error) {
	key := revision.Name + " " + revision.ResourceVersion
	if have, isSeen := c.seen.Get(key); isSeen {
		return have.(*installer.Release), nil
	}
	content, err := revisionOf(driver.NewSecrets(c.typed.CoreV1().Secrets(c.namespace)).Get(revision.Name))
	if err != nil || content == nil {
		return nil, err
	}
	if content.Chart == nil || content.Chart.Metadata == nil {
		return nil, fmt.Errorf("helm release %s has no chart", revision.Name)
	}
	chart := content.Chart.Metadata
	version, err := semver.NewVersion(chart.Version)
	if err != nil {
		return nil, fmt.Errorf("helm release %s: version %q of its chart: %w", revision.Name, chart.Version, err)
	}
	found := &installer.Release{AppVersion: chart.AppVersion, Version: version, KubeVersion: chart.Annotations[kubeVersionAnnotation], Values: content.Config}
	c.seen.Add(key, found)
	return found, ctx.Err()
}
