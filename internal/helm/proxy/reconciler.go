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

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// DeleteForMove is the annotation that clusterctl move sets before it deletes an object from the source
	// cluster.
	DeleteForMove = "clusterctl.cluster.x-k8s.io/delete-for-move"
)

// Reconciler reconciles HelmChartProxies.
type Reconciler struct {
	*store.Store
	Inputs   *inputs.Reader
	Managed  *Managed
	Failures *Failures
	Recorder events.EventRecorder
	Now      func() time.Time
	// Wake enqueues the HelmReleaseProxies and Bundles of a HelmChartProxy after a change of their inputs.
	Wake func(proxy plan.Key)
}

// Reconcile reconciles one HelmChartProxy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
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
	if store.IsBehind(err) || errors.Is(err, inputs.ErrDownloading) {
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
		again, err := r.finalize(ctx, proxy, releases)
		return ctrl.Result{RequeueAfter: again}, err
	}
	if IsPaused(proxy) {
		return ctrl.Result{}, nil
	}
	if hasCAAPH(proxy) && slices.Contains(proxy.Finalizers, plan.Finalizer) {
		// CAAPH has restored its finalizer.
		return ctrl.Result{}, r.report(ctx, proxy, state{trouble: rival})
	}
	if written, err := r.setFinalizers(ctx, proxy); written || err != nil {
		return ctrl.Result{}, err // The write triggers the next reconcile.
	}
	proxy = proxy.DeepCopy()
	plan.Default(proxy) // The webhook does the same, if it runs.
	in, again, err := r.Inputs.Get(proxy)
	if err != nil {
		return ctrl.Result{}, r.report(ctx, proxy, state{releases: releases, trouble: plan.Trouble{
			Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: err.Error(), // Inputs.Wake follows.
		}})
	}
	if r.Inputs.IsNews(client.ObjectKeyFromObject(proxy), in) {
		r.Wake(client.ObjectKeyFromObject(proxy))
	}
	now := state{trouble: in.Trouble, notice: in.Notice, releases: releases}
	var failed error
	if in.Selector != nil {
		failed = r.selectClusters(ctx, proxy, in, &now)
	}
	if trouble, err := r.untaken(ctx, now.releases); err != nil {
		return ctrl.Result{}, err
	} else if trouble != (plan.Trouble{}) {
		now.fail(trouble.Reason, errors.New(trouble.Message))
	}
	if unseen := r.unseen(proxy, in, now.releases); unseen > 0 {
		now.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, fmt.Errorf("%d of %d releases have not taken the change over yet", unseen, len(now.releases)))
		again = store.BehindInterval
	}
	return ctrl.Result{RequeueAfter: again}, cmp.Or(r.report(ctx, proxy, now), failed)
}

// unseen returns how many releases still report about earlier inputs. After a restart, what is Ready stays so unless
// it has changed.
func (r *Reconciler) unseen(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, releases []*addonsv1.HelmReleaseProxy) (count int) {
	isReady := meta.IsStatusConditionTrue(proxy.Status.Conditions, addonsv1.ReadyCondition) && proxy.Status.ObservedGeneration == proxy.Generation
	if isReady && !r.Inputs.HasChanged(client.ObjectKeyFromObject(proxy)) {
		return 0
	}
	for _, release := range releases {
		if release.DeletionTimestamp.IsZero() && !r.Inputs.HasSeen(client.ObjectKeyFromObject(release), in) {
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
	now.isSelectionKnown = true
	now.releases, err = r.putReleases(ctx, proxy, in, now.clusters, now.releases)
	switch {
	case err == nil, store.IsBehind(err):
	case errors.Is(err, inputs.ErrDownloading):
		now.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, err)
	default:
		now.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err)
	}
	if len(now.releases) < len(now.clusters) {
		now.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, errors.New("not every selected Cluster has its HelmReleaseProxy yet"))
	}
	if slices.ContainsFunc(now.releases, func(its *addonsv1.HelmReleaseProxy) bool { return !its.DeletionTimestamp.IsZero() }) {
		now.fail(addonsv1.HelmReleaseProxyReinstallingReason, errors.New("a release is uninstalled first, and then installed again"))
	}
	return err
}

// IsPaused reports whether a HelmChartProxy is paused: Muster writes nothing for it.
func IsPaused(proxy *addonsv1.HelmChartProxy) bool {
	_, is := proxy.Annotations[clusterv1.PausedAnnotation]
	return is
}

// finalize deletes the HelmReleaseProxies of a HelmChartProxy that is being deleted, then its Bundles, and
// finally removes its finalizer. If clusterctl move deletes it, the HelmChartProxy lives on in another
// management cluster, with its releases.
func (r *Reconciler) finalize(ctx context.Context, proxy *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) (time.Duration, error) {
	_, isMoved := proxy.Annotations[DeleteForMove]
	releases = slices.DeleteFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool { // Ignore those that only foreign finalizers hold.
		return !its.DeletionTimestamp.IsZero() && !slices.Contains(its.Finalizers, plan.Finalizer) && !slices.Contains(its.Finalizers, CAAPHReleaseFinalizer)
	})
	if len(releases) > 0 && !isMoved {
		var errs []error
		for _, release := range releases {
			errs = append(errs, r.Remove(ctx, release))
		}
		return 0, errors.Join(errs...)
	}
	if left, err := r.removeBundles(ctx, proxy, isMoved); left || err != nil {
		return time.Second, err
	}
	return 0, r.RemoveFinalizers(ctx, proxy, plan.Finalizer, caaphFinalizer)
}

// bundlePatience limits how long remaining targets delay a deletion once the releases are gone: forged targets
// must not block it.
const bundlePatience = 30 * time.Second

// removeBundles deletes the Bundles of a HelmChartProxy whose releases are gone. It keeps Bundles whose
// Clusters move to another management cluster. It reports whether targets are left, because the cache may be
// behind.
func (r *Reconciler) removeBundles(ctx context.Context, proxy *addonsv1.HelmChartProxy, isMoved bool) (left bool, err error) {
	var bundles fleetv1.BundleList
	key := client.ObjectKeyFromObject(proxy)
	if err := r.List(ctx, &bundles, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing Bundles: %w", err)
	}
	isPatient := r.Now().Sub(proxy.DeletionTimestamp.Time) <= bundlePatience
	var errs []error
	for i := range bundles.Items {
		bundle := &bundles.Items[i]
		if isMoved || !store.IsFor(bundle, key) || !plan.MayBeOurs(bundle.Name) {
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
		case len(bundle.Spec.Targets) == 0:
			errs = append(errs, r.Remove(ctx, bundle))
		case released == len(bundle.Spec.Targets): // All its Clusters move.
		case isPatient:
			left = true
		case released == 0:
			errs = append(errs, r.Remove(ctx, bundle))
		}
	}
	return left, errors.Join(errs...)
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
	if owner := metav1.GetControllerOf(release); owner != nil && IsProxy(*owner) {
		return []string{owner.Name}
	}
	return nil
}

// Concerns reports whether a HelmReleaseProxy may belong to a HelmChartProxy. A user who may write
// HelmReleaseProxies could forge one for a Cluster in another namespace.
func Concerns(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	owner := metav1.GetControllerOf(release)
	return owner != nil && IsProxy(*owner) && owner.UID == proxy.UID && release.Namespace == proxy.Namespace &&
		(release.Spec.ClusterRef.Namespace == proxy.Namespace || proxy.Spec.NamespaceSelector != nil)
}

// IsOutdated reports whether a HelmChartProxy no longer asks for the release of a HelmReleaseProxy. Muster
// uninstalls it before it installs the new one. A frozen release is never outdated.
func IsOutdated(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	if plan.IsFrozen(proxy, release) {
		return false
	}
	return release.Spec.ReleaseNamespace != plan.ReleaseNamespace(proxy) ||
		release.Spec.ReleaseName != plan.ReleaseName(proxy) && !isGenerated(release, proxy) ||
		release.Annotations[plan.BundleAnnotation] != "" && !isBundleOf(proxy, release)
}

// IsProxy reports whether an owner is a HelmChartProxy.
func IsProxy(owner metav1.OwnerReference) bool {
	return owner.APIVersion == addonsv1.GroupVersion.String() && owner.Kind == "HelmChartProxy"
}

// selected returns the selected Clusters, sorted.
func (r *Reconciler) selected(ctx context.Context, selector *plan.Selector) ([]*clusterv1.Cluster, error) {
	var all clusterv1.ClusterList
	if err := r.List(ctx, &all, client.InNamespace(selector.Namespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	namespaceLabels := NamespaceLabels(ctx, r.Client)
	var clusters []*clusterv1.Cluster
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
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

// putReleases keeps a HelmReleaseProxy for each selected Cluster, and returns them. If the name or namespace of
// the release changes, it first removes the old HelmReleaseProxy: a later uninstallation would remove objects
// that both releases have. The old one stays until the chart is available.
func (r *Reconciler) putReleases(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, clusters []*clusterv1.Cluster, all []*addonsv1.HelmReleaseProxy) ([]*addonsv1.HelmReleaseProxy, error) {
	there, counts := map[plan.Key]*addonsv1.HelmReleaseProxy{}, map[string]int{}
	var errs []error
	for _, release := range all {
		cluster := plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Spec.ClusterRef.Name}
		counts[cluster.Namespace+"/"+release.Annotations[plan.BundleAnnotation]]++
		if there[cluster] != nil { // Muster creates only one.
			errs = append(errs, r.Remove(ctx, release))
			continue
		}
		there[cluster] = release
	}
	var releases []*addonsv1.HelmReleaseProxy
	lacking := sync.OnceValue(func() error { // Called once: it may take a moment.
		err := r.Inputs.AtHand(ctx, in)
		if err != nil && !in.Incomplete { // If Incomplete, the status says so already.
			errs = append(errs, fmt.Errorf("a release of another name stays until the chart is there: %w", err))
		}
		return err
	})
	for _, cluster := range clusters {
		key := client.ObjectKeyFromObject(cluster)
		have := there[key]
		delete(there, key)
		if have != nil && have.DeletionTimestamp.IsZero() && IsOutdated(proxy, have) && lacking() != nil {
			releases = append(releases, have)
			continue
		}
		release, err := r.putRelease(ctx, proxy, in, key, have, counts)
		errs = append(errs, err)
		if release != nil {
			releases = append(releases, release)
		}
	}
	for _, deselected := range there {
		errs = append(errs, r.Remove(ctx, deselected))
	}
	return releases, errors.Join(errs...)
}

func (r *Reconciler) putRelease(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, cluster plan.Key, have *addonsv1.HelmReleaseProxy, counts map[string]int) (*addonsv1.HelmReleaseProxy, error) {
	want := wantedRelease(proxy, in, cluster, have)
	if have == nil {
		bundle := plan.Shard(proxy, cluster, counts)
		want.Annotations[plan.BundleAnnotation] = bundle
		counts[cluster.Namespace+"/"+bundle]++
		return r.createRelease(ctx, proxy, cluster, want)
	}
	switch {
	case !have.DeletionTimestamp.IsZero():
		return have, nil // The deletion triggers the next reconcile.
	case IsOutdated(proxy, have):
		return have, r.Remove(ctx, have)
	case have.Annotations[plan.BundleAnnotation] == "": // It comes from cluster-api-addon-provider-helm.
		want.Annotations[plan.BundleAnnotation] = plan.Shard(proxy, cluster, counts)
	}
	if equality.Semantic.DeepEqual(have.Spec, want.Spec) && hasMeta(have, want) {
		return have, nil
	}
	changed := have.DeepCopy()
	changed.Spec, changed.OwnerReferences = want.Spec, want.OwnerReferences
	for key, value := range want.Labels {
		metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
	}
	for key, value := range want.Annotations {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, key, value)
	}
	changed.Finalizers = append(slices.DeleteFunc(slices.Clone(have.Finalizers), func(its string) bool {
		return its == plan.Finalizer || its == CAAPHReleaseFinalizer
	}), plan.Finalizer)
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(have, client.MergeFromWithOptimisticLock{}), client.FieldOwner(store.FieldManager)); err != nil {
		return have, client.IgnoreNotFound(err)
	}
	return changed, nil
}

// isBundleOf reports whether a HelmReleaseProxy names a Bundle that it may be in.
func isBundleOf(proxy *addonsv1.HelmChartProxy, release *addonsv1.HelmReleaseProxy) bool {
	cluster := plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Spec.ClusterRef.Name}
	return plan.IsBundleOf(proxy, cluster, release.Annotations[plan.BundleAnnotation])
}

func hasMeta(have, want *addonsv1.HelmReleaseProxy) bool {
	for key, value := range want.Labels {
		if have.Labels[key] != value {
			return false
		}
	}
	for key, value := range want.Annotations {
		if its, found := have.Annotations[key]; !found || its != value {
			return false
		}
	}
	return equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
		slices.Contains(have.Finalizers, plan.Finalizer) && !slices.Contains(have.Finalizers, CAAPHReleaseFinalizer)
}

// createRelease creates a HelmReleaseProxy. If another HelmChartProxy and Cluster use its name, it gets the
// next name.
func (r *Reconciler) createRelease(ctx context.Context, proxy *addonsv1.HelmChartProxy, cluster plan.Key, want *addonsv1.HelmReleaseProxy) (*addonsv1.HelmReleaseProxy, error) {
	var err error
	for _, name := range plan.ReleaseProxyNames(client.ObjectKeyFromObject(proxy), cluster) {
		want := want.DeepCopy()
		want.Name = name
		if err = r.Create(ctx, want); !apierrors.IsAlreadyExists(err) {
			return want, err
		}
		live := &addonsv1.HelmReleaseProxy{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if live.Spec.ClusterRef.Namespace == cluster.Namespace && live.Spec.ClusterRef.Name == cluster.Name && metav1.IsControlledBy(live, proxy) {
			return nil, err // The cache is behind.
		}
		err = store.Taken(live)
	}
	return nil, err
}

// wantedRelease returns the HelmReleaseProxy for a Cluster. While the inputs are incomplete, it keeps the
// chart's version; a frozen release stays as it is.
func wantedRelease(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, cluster plan.Key, have *addonsv1.HelmReleaseProxy) *addonsv1.HelmReleaseProxy {
	spec, key := &proxy.Spec, client.ObjectKeyFromObject(proxy)
	clusterLabel, _ := stamp.LabelValue(cluster.Name)
	release := &addonsv1.HelmReleaseProxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: proxy.Namespace, Finalizers: []string{plan.Finalizer},
			Labels:      map[string]string{clusterv1.ClusterNameLabel: clusterLabel, addonsv1.HelmChartProxyLabel: plan.Labels(key)[plan.ProxyLabel]},
			Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: proxy.Name, UID: proxy.UID, Controller: ptr.To(true),
			}},
		},
		Spec: addonsv1.HelmReleaseProxySpec{
			ClusterRef: corev1.ObjectReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: cluster.Namespace, Name: cluster.Name},
			ChartName:  spec.ChartName, RepoURL: spec.RepoURL, ReleaseName: plan.ReleaseName(proxy), ReleaseNamespace: plan.ReleaseNamespace(proxy),
			Version: in.Chart.Version, ReconcileStrategy: spec.ReconcileStrategy, Options: plan.StoredOptions(spec.Options),
			Credentials: spec.Credentials, TLSConfig: spec.TLSConfig,
		},
	}
	if have != nil && plan.IsFrozen(proxy, have) {
		release.Spec = have.Spec // A frozen release no longer follows the HelmChartProxy.
		release.Spec.Values = "" // CAAPH wrote them, and they may contain secrets.
	} else if have != nil {
		if in.Chart.Version == "" {
			release.Spec.Version = have.Spec.Version
		}
		if isGenerated(have, proxy) {
			release.Spec.ReleaseName = have.Spec.ReleaseName
		}
	}
	if spec.ReleaseName == "" {
		release.Annotations[addonsv1.ReleaseNameGeneratedAnnotation] = "true"
	}
	return release
}

// isGenerated reports whether Helm generated the name of a release for cluster-api-addon-provider-helm. The
// name must fit the chart: a user who may write HelmReleaseProxies must not be able to overwrite another
// release.
func isGenerated(release *addonsv1.HelmReleaseProxy, proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.ReleaseName == "" && release.Annotations[addonsv1.ReleaseNameGeneratedAnnotation] == "true" &&
		release.Spec.ReleaseNamespace == plan.ReleaseNamespace(proxy) && plan.IsGeneratedOf(proxy.Spec.ChartName, release.Spec.ReleaseName)
}

// untaken reports the first Bundle that Muster could not write, or that Fleet has not processed in its current
// version; empty if there is none.
func (r *Reconciler) untaken(ctx context.Context, releases []*addonsv1.HelmReleaseProxy) (plan.Trouble, error) {
	known := map[plan.Key]bool{}
	for _, release := range releases {
		key := BundleKey(release)
		if known[key] || key.Name == "" {
			continue
		}
		known[key] = true
		if its := r.Failures.Of(key); its != "" {
			return plan.Trouble{Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: "Bundle " + key.Name + ": " + its}, nil
		}
		bundle, err := r.Bundle(ctx, key)
		if err != nil {
			return plan.Trouble{}, err
		}
		if bundle != nil && len(bundle.Spec.Targets) > 0 && bundle.Status.ObservedGeneration != bundle.Generation {
			return plan.Trouble{Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: fmt.Sprintf("Fleet has not taken Bundle %s over yet", bundle.Name)}, nil
		}
	}
	return plan.Trouble{}, nil
}

// Failures holds the errors of Bundles whose last write failed.
type Failures struct{ all sync.Map }

// Of returns the error of a Bundle; empty for none.
func (f *Failures) Of(bundle plan.Key) string {
	its, _ := f.all.Load(bundle)
	text, _ := its.(string)
	return text
}

// Set sets the error of a Bundle, nil for none. It reports whether the error has changed.
func (f *Failures) Set(bundle plan.Key, err error) bool {
	if err == nil {
		_, had := f.all.LoadAndDelete(bundle)
		return had
	}
	last, had := f.all.Swap(bundle, err.Error())
	return !had || last != err.Error()
}

// BundleKey returns the key of a HelmReleaseProxy's Bundle.
func BundleKey(release *addonsv1.HelmReleaseProxy) plan.Key {
	return plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Annotations[plan.BundleAnnotation]}
}
