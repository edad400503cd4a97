package sync

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/sources"
)

// chartsAvailable says whether anybody carries out HelmChartProxies; nil where their CRD is not there, or
// not ours.
func (r *configReconciler) chartsAvailable(ctx context.Context) (*metav1.Condition, error) {
	crd := sources.CRD()
	if err := r.Get(ctx, client.ObjectKey{Name: stamp.ChartsCRD}, crd); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading CustomResourceDefinition %q: %w", stamp.ChartsCRD, err)
	}
	if crd.Labels[stamp.ManagedByLabel] != stamp.ManagedBy {
		return nil, nil
	}
	if r.charts.isMissing(ctx) {
		return &metav1.Condition{Type: ChartsAvailableCondition, Status: metav1.ConditionFalse, Reason: "ChartsMissing",
			Message: "HelmChartProxies are not carried out, as the component helm does not run: kubectl apply -k manifests/helm, or charts.yaml of the release; or delete their CustomResourceDefinition"}, nil
	}
	return &metav1.Condition{Type: ChartsAvailableCondition, Status: metav1.ConditionTrue, Reason: "Available"}, nil
}
