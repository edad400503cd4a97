// Package installer manages Fleet itself as the FleetAddonConfig specifies: its charts, as Helm releases that
// Helm's own commands understand, and its settings.
//
// A reconcile reads the state (observe.go), decides on the next step, reports it (report.go), takes it (act.go), and starts
// again until no step is left. Pure functions decide which step is next (decide.go has the table, by the owner of Fleet),
// the version (version.go), the values of the chart and Fleet's ConfigMap (settings.go), and the ConfigMap of Rancher
// (feature_gates.go). The package does not know Helm: internal/helm/repository reads repositories,
// internal/installer/releases installs releases, and the program puts the three together.
package installer

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/discovery"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
)

// server is the address at which agents reach the management cluster's API server.
type server struct {
	url string
	// ca is the certificate authority, in PEM.
	ca string
	// from says where the address was found.
	from string
}

// published has the cluster's own objects that say where its API server is.
type published struct {
	// clusterInfo is kube-public/cluster-info, which kubeadm and others make; empty if it does not exist.
	clusterInfo *corev1.ConfigMap
	// slice is the EndpointSlice default/kubernetes, which the API servers maintain themselves; empty if it does not exist.
	slice *discoveryv1.EndpointSlice
	// rootCA is the certificate authority with which the installer itself verifies the API server, in PEM.
	rootCA string
}

// infer finds the API server in the published objects. If the current address comes from there, it stays until it
// has been missing for as long as absence.
func (p *published) infer(inForce server, last *sighting, now time.Time) (*server, error) {
	isFirst := last.begin(now)
	if found := fromClusterInfo(p.clusterInfo); found != nil {
		return found, nil
	}
	if p.rootCA == "" {
		return nil, &Problem{addonsv1.ServerUnknownReason, "the installer has no certificate authority for the API server that it could give to agents; set spec.config.server.custom"}
	}
	found := endpoints(p.slice)
	switch {
	case slices.Contains(found, inForce.url), isFirst && inForce.ca == p.rootCA && isEndpoint(inForce.url):
		*last = sighting{inForce.url, now} // If it is the first, it was in effect before this installer started.
	case last.address != "" && last.address == inForce.url && now.Sub(last.at) < absence:
	case len(found) > 0:
		*last = sighting{found[0], now}
	default:
		return nil, &Problem{addonsv1.ServerUnknownReason, "the cluster publishes no address of its API server: there is neither a usable ConfigMap kube-public/cluster-info nor an EndpointSlice default/kubernetes with a port named https or 443; set spec.config.server.custom.apiServerUrl"}
	}
	return &server{url: last.address, ca: p.rootCA, from: "EndpointSlice default/kubernetes, CA from the installer's own ServiceAccount"}, nil
}

// absence is how long an address may be missing from the EndpointSlice, which does not say whether it comes back. A
// control plane machine that reboots must not make Fleet deploy all agents anew, twice.
const absence = 5 * time.Minute

// sighting is when the API servers last published the address that agents use.
type sighting struct {
	address string
	at      time.Time
}

// begin reports whether this is the first observation.
func (s *sighting) begin(now time.Time) bool {
	isFirst := s.at.IsZero()
	if isFirst {
		s.at = now
	}
	return isFirst
}

// isEndpoint reports whether a URL may come from an EndpointSlice.
func isEndpoint(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && parsed.Scheme == "https" && net.ParseIP(parsed.Hostname()) != nil
}

// fromClusterInfo reads kubeadm's ConfigMap: a kubeconfig without a user.
func fromClusterInfo(object *corev1.ConfigMap) *server {
	config, err := clientcmd.Load([]byte(object.Data["kubeconfig"]))
	if err != nil {
		return nil
	}
	for _, cluster := range config.Clusters {
		if strings.HasPrefix(cluster.Server, "https://") && len(cluster.CertificateAuthorityData) > 0 {
			return &server{url: cluster.Server, ca: string(cluster.CertificateAuthorityData), from: "ConfigMap kube-public/cluster-info"}
		}
	}
	return nil
}

// endpoints returns the URLs of the API servers that are ready, sorted, so that the order is stable.
func endpoints(slice *discoveryv1.EndpointSlice) (found []string) {
	port := httpsPort(slice.Ports)
	if port == nil || slice.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	for _, endpoint := range slice.Endpoints {
		if !ptr.Deref(endpoint.Conditions.Ready, true) {
			continue
		}
		for _, address := range endpoint.Addresses {
			found = append(found, "https://"+net.JoinHostPort(address, strconv.Itoa(int(*port))))
		}
	}
	slices.Sort(found)
	return found
}

// httpsPort returns the port named https, or 443, or the only port; nil if there is none.
func httpsPort(ports []discoveryv1.EndpointPort) (found *int32) {
	for _, port := range ports {
		switch {
		case port.Port == nil:
		case ptr.Deref(port.Name, "") == "https":
			return port.Port
		case *port.Port == 443 || len(ports) == 1:
			found = port.Port
		}
	}
	return found
}

// defaults are the defaults of the flags, and the options of a preview.
var defaults = Options{LookupInterval: time.Hour, HelmTimeout: 5 * time.Minute}

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.DurationVar(&o.LookupInterval, "lookup-interval", defaults.LookupInterval, "How often the installer asks the repository of Fleet's charts for newer versions, if spec.install specifies a range or the newest release.")
	fs.DurationVar(&o.HelmTimeout, "helm-timeout", defaults.HelmTimeout, "How long Helm waits for an install or upgrade to become ready. An upgrade that takes longer is rolled back.")
}

// Setup adds the installer to a manager. namespace is where its ServiceAccount lives.
func Setup(mgr ctrl.Manager, options Options, namespace string, releases Releases, repository OpenRepository) error {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	info, err := client.ServerVersion()
	if err != nil {
		return fmt.Errorf("asking for the version of Kubernetes: %w", err)
	}
	r := newReconciler(mgr.GetClient(), mgr.GetAPIReader(), options, namespace, releases, repository)
	r.kubernetes, _ = semver.NewVersion(info.GitVersion) // Of a version of another form, no range says anything.
	r.recorder = mgr.GetEventRecorder(account)
	r.rootCA = func(context.Context) (string, error) { // In a pod, it is that of its ServiceAccount, which only the kubelet writes.
		config := clientrest.CopyConfig(mgr.GetConfig())
		err := clientrest.LoadTLSFiles(config) // The file is rotated, so it is read each time.
		return string(config.CAData), err
	}
	metrics.HelmRelease(CRDChart)
	metrics.HelmRelease(FleetChart)
	return ctrl.NewControllerManagedBy(mgr).Named("fleet").
		WithOptions(controller.Options{
			// The CRDs, Fleet and a rollback may each take Helm's timeout; the fourth is for downloads.
			ReconciliationTimeout: 4 * options.HelmTimeout,
			RateLimiter:           r.limiter,
		}).
		// A change of the status needs no reconcile; an annotation may hand a release over.
		For(&addonsv1.FleetAddonConfig{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Complete(r)
}

func newReconciler(c client.Client, live client.Reader, options Options, namespace string, releases Releases, repository OpenRepository) *reconciler {
	return &reconciler{
		Client: c, Options: options, live: live, namespace: namespace, releases: releases, repository: repository,
		now: time.Now, attempts: map[string]*attempt{},
		limiter: workqueue.NewTypedWithMaxWaitRateLimiter(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request](), pollInterval),
	}
}
