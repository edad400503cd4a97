package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
)

// finalize deletes the HelmReleaseProxies of a HelmChartProxy that is being deleted, then its Bundles, and
// finally removes its finalizer. If clusterctl move deletes it, the HelmChartProxy lives on in another
// management cluster, with its releases.
func (r *Reconciler) finalize(ctx context.Context, proxy *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) error {
	_, isMoved := proxy.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	releases = slices.DeleteFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool { // HelmReleaseProxies that only foreign finalizers hold do not count.
		return !its.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(its, plan.Finalizer) && !controllerutil.ContainsFinalizer(its, CAAPHReleaseFinalizer)
	})
	if len(releases) > 0 && !isMoved {
		var errs []error
		for _, release := range releases {
			errs = append(errs, r.Remove(ctx, release))
		}
		return errors.Join(errs...)
	}
	if !isMoved {
		if err := r.removeBundles(ctx, proxy); err != nil {
			return err
		}
	}
	return r.RemoveFinalizers(ctx, proxy, plan.Finalizer, caaphFinalizer)
}

// removeBundles deletes the Bundles of a HelmChartProxy whose releases are gone. It marks those that still have targets,
// because Clusters move to another management cluster, or others have forged targets: the Bundle controller decides.
func (r *Reconciler) removeBundles(ctx context.Context, proxy *addonsv1.HelmChartProxy) error {
	var bundles fleetv1.BundleList
	key := client.ObjectKeyFromObject(proxy)
	if err := r.List(ctx, &bundles, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Bundles: %w", err)
	}
	var errs []error
	for i := range bundles.Items {
		switch bundle := &bundles.Items[i]; {
		case !store.IsFor(bundle, key) || !plan.MayBeOurs(bundle.Name):
		case len(bundle.Spec.Targets) == 0 && !store.IsCut(bundle):
			errs = append(errs, r.Remove(ctx, bundle))
		default:
			err := r.UpdateBundle(ctx, bundle, func(its *fleetv1.Bundle) {
				metav1.SetMetaDataAnnotation(&its.ObjectMeta, plan.DeletedAnnotation, "true")
			})
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
				// A Bundle that others have changed, or forged in their own namespace, must not hold the HelmChartProxy.
				log.FromContext(ctx).Error(err, "Left a Bundle of a deleted HelmChartProxy alone", "bundle", client.ObjectKeyFromObject(bundle))
				err = nil
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
