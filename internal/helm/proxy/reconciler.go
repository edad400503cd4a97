// Package proxy reconciles HelmChartProxies: it selects Clusters, keeps a HelmReleaseProxy for each of them,
// and writes the status. Packages release and bundle handle the values, the Bundles and Fleet's reports on
// them. A reconcile follows changes of the HelmChartProxy, of the selected Clusters and of the
// HelmReleaseProxies.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
)

// Reconciler reconciles HelmChartProxies.
type Reconciler struct {
	*store.Store
	Inputs   *inputs.Reader
	Policies *policies.Reader
	Managed  *Managed
	// Failures maps the key of each Bundle to the error of its last write, as text; empty for none.
	Failures *sync.Map
	Recorder events.EventRecorder
	Now      func() time.Time
	// Knows reports whether a release has rendered its values from the current state of their sources.
	Knows func(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, release *addonsv1.HelmReleaseProxy, cluster *clusterv1.Cluster) bool

	// reported maps the key of a HelmChartProxy to its versions before and after its status was written last.
	reported sync.Map
}

// IsOwn reports whether an update of a HelmChartProxy only shows the status that this program wrote last, and that leads
// to no other decision. In a rollout, the status does.
func (r *Reconciler) IsOwn(before, after client.Object) bool {
	last, _ := r.reported.Load(client.ObjectKeyFromObject(after))
	return last == versions(before, after) && !plan.IsStaged(after.(*addonsv1.HelmChartProxy))
}

func versions(before, after client.Object) [2]string {
	return [2]string{before.GetResourceVersion(), after.GetResourceVersion()}
}

// Reconcile reconciles one HelmChartProxy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.reported.Delete(req.NamespacedName) // The cache may lack that status yet, and then its event has to wake this again.
	proxy := &addonsv1.HelmChartProxy{}
	if err := r.Get(ctx, req.NamespacedName, proxy); err != nil {
		if apierrors.IsNotFound(err) {
			r.Inputs.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch isManaged, err := r.Managed.Is(ctx, proxy); {
	case err != nil:
		return ctrl.Result{}, err
	case !isManaged:
		return ctrl.Result{}, r.reportNotManaged(ctx, proxy)
	}
	result, err := r.reconcile(ctx, proxy)
	if store.IsBehind(err) || errors.Is(err, inputs.ErrDownloading) || errors.Is(err, policies.ErrListing) {
		return ctrl.Result{RequeueAfter: store.BehindInterval}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, proxy *addonsv1.HelmChartProxy) (ctrl.Result, error) {
	releases, err := r.releases(ctx, proxy)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !proxy.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, proxy, releases)
	}
	if capiannotations.HasPaused(proxy) { // Muster writes nothing for it.
		return ctrl.Result{}, nil
	}
	if controllerutil.ContainsFinalizer(proxy, caaphFinalizer) && controllerutil.ContainsFinalizer(proxy, plan.Finalizer) { // CAAPH has restored its own.
		return r.report(ctx, proxy, state{trouble: anotherController})
	}
	if written, err := r.setFinalizers(ctx, proxy); written || err != nil {
		return ctrl.Result{}, err // The write triggers the next reconcile.
	}
	before := proxy.DeepCopy()
	plan.Default(proxy)
	in, again, err := r.Inputs.Get(proxy)
	begun, isResumed := r.Inputs.Begun(proxy)
	patience := begun.Add(inputs.Patience).Sub(r.Now())
	if err != nil {
		return r.reportReading(ctx, before, releases, patience, err) // Inputs.Wake follows.
	}
	now := state{trouble: in.Trouble, notice: in.Notice, releases: releases, version: in.Chart.Version}
	var failed error
	if in.Selector != nil {
		failed = r.selectClusters(ctx, proxy, in, &now)
	}
	if plan.IsStaged(proxy) && now.clusters != nil && !in.Incomplete {
		soon, err := r.rollOut(ctx, proxy, in, &now)
		again, failed = kube.Sooner(again, soon), cmp.Or(failed, err)
		if isResumed && patience > 0 && unseen(in, now, r.Inputs.HasReported) > 0 { // The status has what was decided before the restart.
			now.rollout, again = nil, store.BehindInterval
		}
	}
	if isKnown, err := r.failUntaken(ctx, &now); err != nil || !isKnown && isResumed && patience > 0 { // A Bundle enqueues this.
		return ctrl.Result{RequeueAfter: max(0, patience)}, cmp.Or(err, failed)
	}
	// After a restart, a HelmChartProxy stays up to date unless its inputs have changed.
	if count := unseen(in, now, r.Inputs.HasSeen); count > 0 && !(isResumed && plan.IsUpToDate(proxy)) {
		now.trouble = cmp.Or(now.trouble, plan.Trouble{
			Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: fmt.Sprintf("%d of %d releases have not taken the change over yet", count, len(now.releases)),
		})
		again = store.BehindInterval
	}
	result, err := r.report(ctx, before, now)
	result.RequeueAfter = kube.Sooner(result.RequeueAfter, again)
	return result, cmp.Or(err, failed)
}

// reportReading reports that the inputs are being read. For a while, conditions of the same generation may still hold, and stay.
func (r *Reconciler) reportReading(ctx context.Context, proxy *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy, patience time.Duration, reading error) (ctrl.Result, error) {
	trouble := plan.Trouble{Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: reading.Error()}
	if proxy.Status.ObservedGeneration == proxy.Generation {
		if patience > 0 {
			return ctrl.Result{RequeueAfter: patience}, nil
		}
		trouble.Reason = addonsv1.ReadingInputsReason
	}
	return r.report(ctx, proxy, state{releases: releases, trouble: trouble})
}

// unseen returns how many releases still report about earlier inputs.
func unseen(in *inputs.Inputs, now state, hasSeen func(*addonsv1.HelmReleaseProxy, *inputs.Inputs) bool) (count int) {
	for _, release := range now.releases {
		if release.DeletionTimestamp.IsZero() && !hasSeen(release, in) {
			count++
		}
	}
	return count
}

// selectClusters keeps a HelmReleaseProxy for each selected Cluster.
func (r *Reconciler) selectClusters(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, now *state) (err error) {
	if now.clusters, err = r.selected(ctx, in.Selector); err != nil {
		return err
	}
	some, err := r.putReleases(ctx, proxy, in, now)
	switch {
	case err == nil, store.IsBehind(err):
	case errors.Is(err, inputs.ErrDownloading), errors.Is(err, policies.ErrListing):
		now.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, err.Error())
	default:
		now.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err.Error())
	}
	now.some = cmp.Or(now.some, some)
	return err
}

// releases returns the HelmReleaseProxies of a HelmChartProxy from the cache. Callers must not change them.
func (r *Reconciler) releases(ctx context.Context, proxy *addonsv1.HelmChartProxy) ([]*addonsv1.HelmReleaseProxy, error) {
	var all addonsv1.HelmReleaseProxyList
	of := client.MatchingFields{ByProxy: proxy.Name}
	if err := r.List(ctx, &all, client.InNamespace(proxy.Namespace), of, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	var releases []*addonsv1.HelmReleaseProxy
	for i := range all.Items {
		releases = append(releases, &all.Items[i])
	}
	slices.SortFunc(releases, func(a, b *addonsv1.HelmReleaseProxy) int { // putReleases keeps the first one for a Cluster.
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return releases, nil
}

// ByProxy is the index of HelmReleaseProxies by the name of their HelmChartProxy. A label has the name, too,
// but users who may write HelmReleaseProxies can remove it.
const ByProxy = "proxy"

// Index returns the value of ByProxy.
func Index(release client.Object) []string {
	if owner := plan.OwnerOf(release); owner != nil {
		return []string{owner.Name}
	}
	return nil
}

// Concerns reports whether a HelmReleaseProxy may belong to a HelmChartProxy. A user who may write
// HelmReleaseProxies could forge one for a Cluster in another namespace.
func Concerns(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	return metav1.IsControlledBy(release, proxy) && release.Namespace == proxy.Namespace &&
		(release.Spec.ClusterRef.Namespace == proxy.Namespace || proxy.Spec.NamespaceSelector != nil)
}

// IsOutdated reports whether a HelmChartProxy no longer asks for the release of a HelmReleaseProxy. Muster
// uninstalls it before it installs the new one. An installed InstallOnce release is never outdated.
func IsOutdated(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	if plan.IsInstalledOnce(proxy, release) {
		return false
	}
	return release.Spec.ReleaseNamespace != plan.ReleaseNamespace(proxy) ||
		release.Spec.ReleaseName != plan.ReleaseName(proxy) && !isGenerated(release, proxy) ||
		release.Annotations[plan.BundleAnnotation] != "" && !plan.IsBundleOf(proxy, plan.ClusterOf(release), release.Annotations[plan.BundleAnnotation])
}

// selected returns the selected Clusters, sorted; nil only with an error.
func (r *Reconciler) selected(ctx context.Context, selector *plan.Selector) ([]*clusterv1.Cluster, error) {
	var all clusterv1.ClusterList
	if err := r.List(ctx, &all, client.InNamespace(selector.Namespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	namespaceLabels := NamespaceLabels(ctx, r.Client)
	clusters := []*clusterv1.Cluster{}
	for i := range all.Items {
		if selector.Matches(&all.Items[i], namespaceLabels) {
			clusters = append(clusters, &all.Items[i])
		}
	}
	slices.SortFunc(clusters, func(a, b *clusterv1.Cluster) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return clusters, nil
}

// NamespaceLabels returns a function that reads the labels of a Namespace from the cache; nil if it does not
// exist.
func NamespaceLabels(ctx context.Context, reader client.Reader) func(string) labels.Set {
	return func(name string) labels.Set {
		namespace := NamespaceMetadata()
		if reader.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy) != nil {
			return nil // The only error of a cache is NotFound.
		}
		return labels.Merge(nil, namespace.Labels)
	}
}

// NamespaceMetadata returns an empty Namespace, of which only the metadata is read.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
}

// failUntaken reports a Bundle that Muster could not write, or that Fleet has not processed in its current version, and whether it
// knows of each whether it could be written. Bundles of other releases may be fine, so the message begins with a Cluster.
func (r *Reconciler) failUntaken(ctx context.Context, now *state) (isKnown bool, err error) {
	isKnown = true
	known := map[plan.Key]bool{}
	for _, release := range now.releases {
		key := BundleKey(release)
		if known[key] || key.Name == "" {
			continue
		}
		known[key] = true
		if its, found := r.Failures.Load(key); !found {
			isKnown = false
		} else if its != "" {
			now.fail(addonsv1.HelmReleaseProxyCreationFailedReason, plan.About(plan.ClusterOf(release), fmt.Sprintf("Bundle %s: %s", key.Name, its)))
		}
		bundle, err := r.Bundle(ctx, key)
		if err != nil {
			return false, err
		}
		if bundle != nil && len(bundle.Spec.Targets) > 0 && bundle.Status.ObservedGeneration != bundle.Generation {
			now.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, plan.About(plan.ClusterOf(release), "Fleet has not taken Bundle "+bundle.Name+" over yet"))
		}
	}
	return isKnown, nil
}

// BundleKey returns the key of a HelmReleaseProxy's Bundle.
func BundleKey(release *addonsv1.HelmReleaseProxy) plan.Key {
	return plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Annotations[plan.BundleAnnotation]}
}
