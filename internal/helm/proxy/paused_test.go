package proxy

import (
	"testing"

	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/program"
)

// Muster leaves a HelmChartProxy with the annotation cluster.x-k8s.io/paused alone, whatever the value: it adds
// no finalizer, and does not read the chart.
func TestPaused(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"", "false", "true"} {
		of := proxyNamed("web")
		of.Annotations = map[string]string{clusterv1.PausedAnnotation: value}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(of).WithIndex(&addonsv1.HelmReleaseProxy{}, ByProxy, Index).Build()
		r := &Reconciler{Store: store.New(c, c, "muster", clock.RealClock{}), Inputs: &inputs.Reader{}} // It has nothing to read charts with.
		if result, err := r.reconcile(t.Context(), of.DeepCopy()); err != nil || result != (ctrl.Result{}) {
			t.Errorf("%q: %v, %v", value, result, err)
		}
		its := &addonsv1.HelmChartProxy{}
		if err := c.Get(t.Context(), plan.Key{Namespace: of.Namespace, Name: of.Name}, its); err != nil || len(its.Finalizers) > 0 || len(its.Status.Conditions) > 0 {
			t.Errorf("%q: finalizers %v, conditions %v (%v)", value, its.Finalizers, its.Status.Conditions, err)
		}
		var all addonsv1.HelmReleaseProxyList
		if err := c.List(t.Context(), &all, client.InNamespace(of.Namespace)); err != nil || len(all.Items) > 0 {
			t.Errorf("%q: %d HelmReleaseProxies (%v)", value, len(all.Items), err)
		}
	}
}
