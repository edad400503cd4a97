package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// Paths of the webhooks, as the shipped webhook configurations have them.
const (
	StampPath          = "/stamp-cluster"
	ClassAccessPath    = "/validate-class-access"
	ClusterPath        = "/validate-cluster"
	ValidateConfigPath = "/validate-fleetaddonconfig"
	DefaultChartPath   = "/default-helmchartproxy"
	ValidateChartPath  = "/validate-helmchartproxy"
)

// Setup adds the webhooks to a manager, and starts the informers they read. Syncer is the
// user name of the syncer.
func Setup(mgr ctrl.Manager, syncer string) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	for _, object := range []client.Object{namespace, &addonsv1.FleetAddonConfig{}} {
		if _, err := mgr.GetCache().GetInformer(context.Background(), object); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	others, err := NewInventory(mgr)
	if err != nil {
		return err
	}
	if err := mgr.Add(others); err != nil {
		return err
	}
	requests := newBudget()
	for path, handler := range handlers(mgr.GetScheme(), mgr.GetClient(), others, mgr.GetClient(), mgr.GetAPIReader(), syncer) {
		mgr.GetWebhookServer().Register(path, requests.limit(path, handler))
	}
	return nil
}

// handlers returns the webhooks by path.
func handlers(scheme *runtime.Scheme, cached client.Reader, others inventory, reviewer client.Client, live client.Reader, syncer string) map[string]admission.Handler {
	config := admission.WithValidator(scheme, ConfigValidator{Others: others, Namespaces: cached, Reviewer: reviewer, Live: live})
	current := settings.NewReader(cached)
	return map[string]admission.Handler{
		StampPath:          &Stamper{Settings: current, Namespaces: cached, Syncer: syncer},
		ClassAccessPath:    &ClassAccess{Settings: current, Reviewer: reviewer},
		ClusterPath:        &ClusterValidator{Settings: current, Namespaces: cached, Others: others},
		ValidateConfigPath: config.Handler,
		DefaultChartPath:   ChartDefaulter{},
		ValidateChartPath:  admission.WithValidator(scheme, ChartValidator{Reviewer: reviewer}).Handler,
	}
}
