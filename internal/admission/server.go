// Package admission decides at apply time. It stamps CAPI Clusters (stamper.go, with the rules of package stamp),
// refuses those whose author may not use their class (class_access.go) or whose name in Fleet is taken
// (cluster_policy.go), and refuses FleetAddonConfigs that would fail later (config_policy.go, which is pure;
// config_authority.go, which asks whether the author may name a CA; and config_cluster.go, which looks at the
// Clusters). Policies see the rest of the cluster as an inventory (inventory.go), so that check.go can give the
// same answers about manifests, without a cluster. A webhook that fails open also does so after a failure of its
// own (open.go).
package admission

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// Limits on the bytes of unread request bodies that the server accepts from a connection. The API server sends all
// its requests through one connection. If requests that wait for their share of the budget could fill it, small
// ones would wait behind them, so the server accepts as much as all streams together may send. With more streams,
// the API server opens another connection.
const (
	receivedPerStream = 64 << 10 // A client may send as much before it learns of a lower limit.
	maxStreams        = 60
	receivedInAll     = maxStreams * receivedPerStream // Go allows less than 4 MiB.
)

// server is controller-runtime's but for the limits above, for which that has no option. With Go's own, 1 MiB for a
// connection, a small request took 1 s in the median and up to 3 s while 40 requests of 2.9 MB were sent without end; with
// these it took 70 ms.
type server struct{ *webhook.DefaultServer }

// NewServer returns the server of the webhooks for a manager. It uses only the options Port, CertDir and TLSOpts.
func NewServer(options webhook.Options) webhook.Server {
	return server{&webhook.DefaultServer{Options: options}}
}

// Start serves until the context ends, then finishes the open requests.
func (s server) Start(ctx context.Context) error {
	certificate, err := certwatcher.New(filepath.Join(s.Options.CertDir, "tls.crt"), filepath.Join(s.Options.CertDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("reading the certificate of the webhooks: %w", err)
	}
	go func() {
		if err := certificate.Start(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "A renewed certificate is not served before the next start")
		}
	}()
	config := &tls.Config{NextProtos: []string{"h2"}, GetCertificate: certificate.GetCertificate}
	for _, option := range s.Options.TLSOpts {
		option(config)
	}
	listener, err := tls.Listen("tcp", fmt.Sprintf(":%d", s.Options.Port), config)
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	return (&manager.Server{Name: "webhooks", Server: newHTTPServer(s.WebhookMux()), Listener: listener}).Start(ctx)
}

func newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler,
		// No client that waits for an answer waits longer.
		ReadHeaderTimeout: longestTimeout, IdleTimeout: 3 * longestTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     receivedPerStream,
			MaxReceiveBufferPerConnection: receivedInAll,
		},
	}
}

// Paths of the webhooks, as in the shipped webhook configurations.
const (
	StampPath          = "/stamp-cluster"
	ClassAccessPath    = "/validate-class-access"
	ClusterPath        = "/validate-cluster"
	ValidateConfigPath = "/validate-fleetaddonconfig"
	ValidateChartPath  = "/validate-helmchartproxy"
	// DefaultChartPath allows everything: `kubectl apply` leaves the configuration of earlier versions behind, in which the
	// webhook set defaults. The CRD has them now.
	DefaultChartPath = "/default-helmchartproxy"
)

// Setup adds the webhooks to a manager, and starts the informers that they read. The arguments are the namespace of
// the programs and the user name of the syncer.
func Setup(mgr ctrl.Manager, own, syncer string) error {
	current := settings.NewReader(mgr.GetClient()).WithRecord(mgr.GetAPIReader(), nil, own)
	if _, err := mgr.GetCache().GetInformer(context.Background(), ofKind(namespaceKind)); err != nil {
		return fmt.Errorf("watching Namespaces: %w", err)
	}
	configs, err := mgr.GetCache().GetInformer(context.Background(), &addonsv1.FleetAddonConfig{})
	if err == nil {
		_, err = configs.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { current.Saw(nil) }})
	}
	if err != nil {
		return fmt.Errorf("watching FleetAddonConfigs: %w", err)
	}
	others := NewInventory(mgr)
	if err := mgr.Add(others); err != nil {
		return err
	}
	requests := newBudget()
	for path, handler := range handlers(mgr.GetScheme(), current, mgr.GetClient(), others, mgr.GetClient(), mgr.GetAPIReader(), syncer) {
		mgr.GetWebhookServer().Register(path, requests.limit(path, handler))
	}
	return nil
}

// handlers returns the webhooks by path.
func handlers(scheme *runtime.Scheme, current *settings.Reader, cached client.Reader, others inventory, reviewer client.Client, live client.Reader, syncer string) map[string]admission.Handler {
	config := admission.WithValidator(scheme, ConfigValidator{Others: others, Namespaces: cached, Reviewer: reviewer, Live: live})
	return map[string]admission.Handler{
		StampPath:          &Stamper{Settings: current, Namespaces: cached, Others: others, Syncer: syncer},
		ClassAccessPath:    &ClassAccess{Settings: current, Reviewer: reviewer},
		ClusterPath:        &ClusterValidator{Settings: current, Namespaces: cached, Others: others},
		ValidateConfigPath: config.Handler,
		DefaultChartPath:   admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") }),
		ValidateChartPath:  admission.WithValidator(scheme, ChartValidator{Reviewer: reviewer}).Handler,
	}
}
