package release

import (
	"context"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/stamp"
)

// emptyPatience is how long Fleet's agent may take to install the empty chart.
const emptyPatience = time.Minute

// uninstallPatience limits how long a HelmReleaseProxy that is being deleted waits until Fleet has removed the
// BundleDeployment: if the agent is gone, that never happens. An agent that is there has checked in by then.
const uninstallPatience = plan.CheckInInterval

// uninstall removes the finalizer of a HelmReleaseProxy that is being deleted, once Fleet has removed the
// BundleDeployment and the values are gone. A release stays installed if its Cluster or HelmReleaseProxy moves
// to another management cluster, or if its HelmChartProxy is gone.
func (r *Reconciler) uninstall(ctx context.Context, s *scope) error {
	_, isMoved := s.release.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	if s.proxy == nil || isMoved || s.record.FleetCluster == "" {
		return r.finish(ctx, s)
	}
	key := plan.Key{Namespace: s.release.Spec.ClusterRef.Namespace, Name: s.record.FleetCluster}
	cached, err := r.FleetCluster(ctx, key)
	if err != nil {
		return err
	}
	// While it only waits, the cache will do.
	isReleased := cached != nil && cached.Annotations[stamp.ReleasedAnnotation] == "true"
	if !isReleased && !s.isEmptying() && r.mustWait(s, cached != nil) {
		return nil
	}
	fleet, isReleased, err := r.LiveFleetCluster(ctx, key)
	if err != nil {
		return err
	}
	if isReleased {
		return r.finish(ctx, s)
	}
	if isWaiting, err := r.empty(ctx, s); isWaiting || err != nil {
		return err
	}
	if r.mustWait(s, fleet != nil) {
		return nil
	}
	if s.isInstalled(fleet != nil) {
		r.warnNotConfirmed(s)
	}
	// In another namespace, only the Bundle proves that the values belong to this HelmChartProxy.
	isProven := s.bundle != nil || s.release.Spec.ClusterRef.Namespace == s.release.Namespace
	if !s.isTarget() && isProven { // The values of a target are deleted with the Bundle.
		err := r.RemoveAllValues(ctx, client.ObjectKeyFromObject(s.proxy), s.release.Spec.ClusterRef.Namespace, s.record.FleetCluster, s.record.Secret || s.record.Stale)
		if err != nil {
			return err
		}
	}
	return r.finish(ctx, s)
}

func (r *Reconciler) finish(ctx context.Context, s *scope) error {
	return r.RemoveFinalizers(ctx, s.release, plan.Finalizer, proxy.CAAPHReleaseFinalizer)
}

// isTarget reports whether the release may still be a target.
func (s *scope) isTarget() bool {
	isIt := func(its fleetv1.BundleTarget) bool { return its.ClusterName == s.record.FleetCluster }
	return s.bundle != nil && s.bundle.DeletionTimestamp.IsZero() && (store.IsCut(s.bundle) || slices.ContainsFunc(s.bundle.Spec.Targets, isIt))
}

// isInstalled reports whether the release is still a target, or has a BundleDeployment on a Fleet Cluster that exists. While a
// target of the Bundle names values that do not exist, Fleet stops at it if its Fleet Cluster comes back.
func (s *scope) isInstalled(hasFleetCluster bool) bool {
	return s.isTarget() || hasFleetCluster && s.deployment != nil
}

// mustWait reports whether the release is still installed, until uninstallPatience is over.
func (r *Reconciler) mustWait(s *scope, hasFleetCluster bool) bool {
	age := r.Now().Sub(s.release.DeletionTimestamp.Time)
	if age >= uninstallPatience || !s.isInstalled(hasFleetCluster) {
		return false
	}
	if s.again = uninstallPatience - age; s.isTarget() { // Updates of a Bundle enqueue no releases; events of a BundleDeployment do.
		s.again = min(max(age/4, store.BehindInterval), inputs.PollInterval)
	}
	return true
}

func (r *Reconciler) warnNotConfirmed(s *scope) {
	note := "Fleet has not removed BundleDeployment %s of Cluster %s within %s; the release may still be installed"
	if s.isTarget() { // Fleet was not asked to.
		note = "Muster has not removed the target from Bundle %s of Cluster %s within %s: the log of muster-helm says why; the release may still be installed"
	}
	r.Recorder.Eventf(s.proxy, nil, corev1.EventTypeWarning, "UninstallNotConfirmed", "Uninstall", note,
		proxy.BundleKey(s.release).Name, s.release.Spec.ClusterRef.Name, uninstallPatience)
}

// isEmptying reports whether the release has to be emptied, or is.
func (s *scope) isEmptying() bool {
	return s.record.Leaving == plan.Emptied || plan.MustBeEmptied(s.record, s.bundle, s.deployment)
}

// empty makes the agent replace a release that Helm has refused with an empty chart: see plan.Emptied. It
// reports whether the withdrawal must wait.
func (r *Reconciler) empty(ctx context.Context, s *scope) (bool, error) {
	switch {
	case plan.MustBeEmptied(s.record, s.bundle, s.deployment):
		s.record.Leaving, s.record.Until = plan.Emptied, ptr.To(metav1.NewTime(r.Now().Add(emptyPatience)))
	case s.record.Leaving == plan.Emptied:
		left := ptr.Deref(s.record.Until, metav1.Time{}).Sub(r.Now())
		if s.deployment != nil && s.deployment.Status.Release == "" && left > 0 && left <= emptyPatience { // Others may have written more.
			s.again = left
			return true, nil
		}
		s.record.Leaving = plan.Withdrawn
	default:
		return false, nil
	}
	return true, r.setRecord(ctx, s)
}

// ByTarget is the index of HelmReleaseProxies by Fleet Cluster, and by Fleet Cluster and Bundle.
const ByTarget = "target"

// Target returns the value of ByTarget for a Fleet Cluster in a Bundle.
func Target(bundle plan.Key, fleetCluster string) string {
	return bundle.Namespace + "/" + fleetCluster + "/" + bundle.Name
}

// TargetIndex returns the values of ByTarget.
func TargetIndex(object client.Object) []string {
	its := object.(*addonsv1.HelmReleaseProxy)
	bundle, fleetCluster := proxy.BundleKey(its), plan.RecordOf(its).FleetCluster
	if fleetCluster == "" {
		return nil
	}
	return []string{bundle.Namespace + "/" + fleetCluster, Target(bundle, fleetCluster)}
}
