// Command webhook stamps Cluster API's Clusters as they are applied, and refuses Clusters and FleetAddonConfigs
// that would fail later.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/program"
)

type options struct {
	program.Flags
	port          int
	certDir       string
	syncerAccount string
}

func (o *options) addTo(fs *pflag.FlagSet) {
	fs.IntVar(&o.port, "webhook-port", 9443, "The port on which the webhooks are served.")
	fs.StringVar(&o.syncerAccount, "syncer-service-account", "muster-syncer", "The ServiceAccount of the syncer, in the namespace that the environment variable POD_NAMESPACE names. Only this account may change the pin of a Cluster.")
	fs.StringVar(&o.certDir, "webhook-cert-dir", "/etc/muster/webhook-tls", "The directory with tls.crt and tls.key. A renewed certificate is served without a restart.")
}

func main() { program.Main("webhook", run) }

func run(ctx context.Context, args []string) error {
	var o options
	if err := o.Begin("webhook", args, o.addTo); err != nil {
		return err
	}
	own, syncer, err := syncerUser(o.syncerAccount, os.Getenv(namespaceVariable), namespaceFile)
	if err != nil {
		return err
	}
	mgr, err := newManager(&o)
	if err != nil {
		return err
	}
	if err := admission.Setup(mgr, own, syncer); err != nil {
		return err
	}
	readiness := &admission.Readiness{Cache: mgr.GetCache(), Port: o.port, CertDir: o.certDir}
	if err := mgr.AddReadyzCheck("serving", readiness.Check); err != nil {
		return err
	}
	if err := metrics.Certificate("mounted", readiness.Mounted); err != nil {
		return err
	}
	if err := metrics.Certificate("served", readiness.Served); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

const (
	namespaceVariable = "POD_NAMESPACE"
	// namespaceFile holds the namespace of a pod.
	namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// syncerUser returns the namespace of the programs, and the user name of the syncer's ServiceAccount there. It fails if
// the namespace is unknown, because the webhook would then undo the syncer's pins.
func syncerUser(account, namespace, file string) (own, user string, err error) {
	if problems := validation.IsDNS1123Subdomain(account); len(problems) > 0 {
		return "", "", fmt.Errorf("--syncer-service-account: %q: %s", account, problems[0])
	}
	if namespace == "" {
		content, err := os.ReadFile(file) //nolint:gosec // It is a constant.
		if err != nil {
			return "", "", fmt.Errorf("the namespace of the syncer's ServiceAccount is unknown: set %s, or run in a pod: %w", namespaceVariable, err)
		}
		namespace = strings.TrimSpace(string(content))
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return "", "", fmt.Errorf("%s: %q: %s", namespaceVariable, namespace, problems[0])
	}
	return namespace, "system:serviceaccount:" + namespace + ":" + account, nil
}

func newManager(o *options) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	tlsOptions, diagnostics, err := o.ManagerOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{SyncPeriod: &o.SyncPeriod, DefaultTransform: kube.Trim},
		Metrics:                *diagnostics,
		HealthProbeBindAddress: o.HealthAddress,
		WebhookServer:          admission.NewServer(webhook.Options{Port: o.port, CertDir: o.certDir, TLSOpts: tlsOptions}),
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return mgr, mgr.AddHealthzCheck("ping", healthz.Ping)
}
