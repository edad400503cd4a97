package proxy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/stamp"
)

// CRDName is the name of the CRD of HelmChartProxies.
const CRDName = stamp.HelmCRD

// Finalizers of cluster-api-addon-provider-helm (CAAPH), which defines this API. CAAPH restores them as long as
// it runs. CAAPH and Muster must not reconcile the same HelmChartProxies: each would uninstall the other's
// releases.
const (
	caaphFinalizer        = "helmchartproxy.addons.cluster.x-k8s.io"
	CAAPHReleaseFinalizer = "helmreleaseproxy.addons.cluster.x-k8s.io"
)

var anotherController = plan.Trouble{
	Reason:  addonsv1.AnotherControllerReason,
	Message: "cluster-api-addon-provider-helm reconciles it, too; stop it, and remove its finalizer " + caaphFinalizer,
}

// setFinalizers takes over a HelmChartProxy: it replaces CAAPH's finalizer with ours.
func (r *Reconciler) setFinalizers(ctx context.Context, proxy *addonsv1.HelmChartProxy) (bool, error) {
	if controllerutil.ContainsFinalizer(proxy, plan.Finalizer) {
		return false, nil
	}
	want := proxy.DeepCopy()
	controllerutil.RemoveFinalizer(want, caaphFinalizer)
	controllerutil.AddFinalizer(want, plan.Finalizer)
	return true, client.IgnoreNotFound(r.Change(ctx, proxy, want, store.Unchanged))
}

// Managed decides which HelmChartProxies Muster reconciles.
type Managed struct {
	client.Reader
	// Namespace is the namespace of Muster.
	Namespace string
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter; empty for all.
	WatchFilter string
}

// Is reports whether Muster reconciles a HelmChartProxy: the CRD must be Muster's.
func (m *Managed) Is(ctx context.Context, proxy *addonsv1.HelmChartProxy) (bool, error) {
	crd := references.CRD()
	if err := m.Get(ctx, client.ObjectKey{Name: CRDName}, crd, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("reading CustomResourceDefinition %q: %w", CRDName, err)
	}
	return stamp.IsHelmCRDOurs(crd, m.Namespace) && m.isWatched(proxy), nil
}

// Writes reports whether Muster currently writes anything for a HelmChartProxy. A paused one can still be deleted.
func (m *Managed) Writes(ctx context.Context, proxy *addonsv1.HelmChartProxy) (bool, error) {
	if capiannotations.HasPaused(proxy) && proxy.DeletionTimestamp.IsZero() {
		return false, nil
	}
	return m.Is(ctx, proxy)
}

func (m *Managed) isWatched(proxy *addonsv1.HelmChartProxy) bool {
	return m.WatchFilter == "" || capilabels.HasWatchLabel(proxy, m.WatchFilter)
}

// reportNotManaged sets the condition NotManaged. The other conditions belong to the controller that reconciles
// the HelmChartProxy.
func (r *Reconciler) reportNotManaged(ctx context.Context, proxy *addonsv1.HelmChartProxy) error {
	if !r.Managed.isWatched(proxy) {
		return nil
	}
	before := proxy.DeepCopy()
	changed := meta.SetStatusCondition(&proxy.Status.Conditions, metav1.Condition{
		Type: addonsv1.NotManagedCondition, Status: metav1.ConditionTrue, Reason: addonsv1.AnotherControllerReason, LastTransitionTime: metav1.NewTime(r.Now()).Rfc3339Copy(),
		Message: "Muster does not reconcile it: CustomResourceDefinition " + CRDName + " has no label " + stamp.ManagedByLabel + "=" + stamp.ManagedBy +
			"; stop cluster-api-addon-provider-helm and apply manifests/helm to make Muster reconcile it",
	})
	if !changed {
		return nil
	}
	if proxy.Status.MatchingClusters == nil { // The CRD requires the field.
		proxy.Status.MatchingClusters = []corev1.ObjectReference{}
	}
	// Another controller writes the other conditions, and a patch replaces the whole list.
	patch := client.MergeFromWithOptions(before, store.Unchanged)
	return client.IgnoreNotFound(r.Status().Patch(ctx, proxy, patch, client.FieldOwner(store.FieldManager)))
}
