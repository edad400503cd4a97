package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
)

// finalize deletes the HelmReleaseProxies of a HelmChartProxy that is being deleted, then its Bundles, and
// finally removes its finalizer. If clusterctl move deletes it, the HelmChartProxy lives on in another
// management cluster, with its releases.
func (r *Reconciler) finalize(ctx context.Context, proxy *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) (time.Duration, error) {
	_, isMoved := proxy.Annotations[DeleteForMove]
	releases = slices.DeleteFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool { // Ignore those that only foreign finalizers hold.
		return !its.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(its, plan.Finalizer) && !controllerutil.ContainsFinalizer(its, CAAPHReleaseFinalizer)
	})
	if len(releases) > 0 && !isMoved {
		var errs []error
		for _, release := range releases {
			errs = append(errs, r.Remove(ctx, release))
		}
		return 0, errors.Join(errs...)
	}
	if !isMoved {
		if left, err := r.removeBundles(ctx, proxy); left || err != nil {
			return time.Second, err
		}
	}
	return 0, r.RemoveFinalizers(ctx, proxy, plan.Finalizer, caaphFinalizer)
}

// bundlePatience limits how long remaining targets delay a deletion once the releases are gone: forged targets
// must not block it.
const bundlePatience = 30 * time.Second

// removeBundles deletes the Bundles of a HelmChartProxy whose releases are gone. It keeps Bundles whose
// Clusters move to another management cluster, and marks them: the Bundle controller removes what comes back. It
// reports whether other targets are left, because the cache may be behind.
func (r *Reconciler) removeBundles(ctx context.Context, proxy *addonsv1.HelmChartProxy) (left bool, err error) {
	var bundles fleetv1.BundleList
	key := client.ObjectKeyFromObject(proxy)
	if err := r.List(ctx, &bundles, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Bundles: %w", err)
	}
	isPatient := r.Now().Sub(proxy.DeletionTimestamp.Time) <= bundlePatience
	var errs []error
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		if !store.IsFor(bundle, key) || !plan.MayBeOurs(bundle.Name) {
			continue
		}
		released := 0
		for j := range bundle.Spec.Targets {
			fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: bundle.Namespace, Name: bundle.Spec.Targets[j].ClusterName})
			if err != nil {
				return false, err
			}
			if store.IsReleased(fleet) {
				released++
			}
		}
		switch {
		case released < len(bundle.Spec.Targets) && isPatient:
			left = true
		case released == 0:
			errs = append(errs, r.Remove(ctx, bundle))
		case !metav1.HasAnnotation(bundle.ObjectMeta, plan.DeletedAnnotation):
			errs = append(errs, r.UpdateBundle(ctx, bundle, func(its *fleetv1.Bundle) {
				metav1.SetMetaDataAnnotation(&its.ObjectMeta, plan.DeletedAnnotation, "true")
			}))
		}
	}
	return left, errors.Join(errs...)
}
