package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
)

// putReleases keeps a HelmReleaseProxy for each selected Cluster, and returns the first Cluster's trouble that is not
// an error. If the name or namespace of the release changes, it first removes the old HelmReleaseProxy: a later
// uninstallation would remove objects that both releases have. The old one stays until the chart is available, and while a
// Policy of Fleet refuses the new one.
func (r *Reconciler) putReleases(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, now *state) (some plan.Trouble, err error) {
	there, counts := map[plan.Key]*addonsv1.HelmReleaseProxy{}, map[plan.Key]int{}
	var errs []error
	fail := func(cluster plan.Key, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", plan.About(cluster, ""), err))
		}
	}
	for _, release := range now.releases {
		cluster := plan.ClusterOf(release)
		counts[BundleKey(release)]++
		if there[cluster] != nil { // Muster creates only one.
			fail(cluster, r.Remove(ctx, release))
			continue
		}
		there[cluster] = release
	}
	var releases []*addonsv1.HelmReleaseProxy
	lacking := sync.OnceValue(func() error { // It is called once, because it may take a moment.
		err := r.Inputs.AtHand(ctx, in)
		if err != nil && !in.Incomplete { // If the inputs are Incomplete, the status already says so.
			errs = append(errs, fmt.Errorf("the release with the earlier name or namespace stays until the chart is available: %w", err))
		}
		return err
	})
	for _, cluster := range now.clusters {
		key := client.ObjectKeyFromObject(cluster)
		release := there[key]
		delete(there, key)
		if release == nil || !release.DeletionTimestamp.IsZero() || !IsOutdated(proxy, release) {
			release, err = r.putRelease(ctx, proxy, in, key, release, counts)
			fail(key, err)
		} else if refusal, err := r.Policies.Refusal(ctx, proxy.Spec.ServiceAccount, key.Namespace); err != nil {
			fail(key, err)
		} else if refusal == nil && lacking() == nil {
			fail(key, r.Remove(ctx, release))
		}
		if release == nil {
			some = cmp.Or(some, plan.Trouble{Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: plan.About(key, "there is no HelmReleaseProxy yet")})
			continue
		}
		if !release.DeletionTimestamp.IsZero() {
			some = cmp.Or(some, plan.Trouble{Reason: addonsv1.HelmReleaseProxyReinstallingReason, Message: plan.About(key, "the release is uninstalled first, and then installed again")})
		}
		releases = append(releases, release)
	}
	for key, deselected := range there {
		fail(key, r.Remove(ctx, deselected))
	}
	now.releases = releases
	return some, errors.Join(errs...)
}

func (r *Reconciler) putRelease(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, cluster plan.Key, have *addonsv1.HelmReleaseProxy, counts map[plan.Key]int) (*addonsv1.HelmReleaseProxy, error) {
	want := wantedRelease(proxy, in, cluster, have)
	if have == nil {
		bundle := plan.Shard(proxy, cluster, counts)
		want.Annotations[plan.BundleAnnotation] = bundle
		counts[plan.Key{Namespace: cluster.Namespace, Name: bundle}]++
		return r.createRelease(ctx, proxy, cluster, want)
	}
	switch {
	case !have.DeletionTimestamp.IsZero():
		return have, nil // The deletion triggers the next reconcile.
	case have.Annotations[plan.BundleAnnotation] == "": // It comes from cluster-api-addon-provider-helm.
		want.Annotations[plan.BundleAnnotation] = plan.Shard(proxy, cluster, counts)
	case isAs(have, want):
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
	controllerutil.RemoveFinalizer(changed, CAAPHReleaseFinalizer)
	controllerutil.AddFinalizer(changed, plan.Finalizer)
	if err := r.changeRelease(ctx, have, changed); err != nil {
		return have, client.IgnoreNotFound(err)
	}
	return changed, nil
}

// changeRelease changes a HelmReleaseProxy. If only its spec and labels differ, that needs no lock, and meets no conflict with the
// record or the status, which the release writes. For InstallOnce, the record decides about the spec.
func (r *Reconciler) changeRelease(ctx context.Context, have, want *addonsv1.HelmReleaseProxy) error {
	rest := have.DeepCopy()
	rest.Spec, rest.Labels = want.Spec, want.Labels
	if have.Labels == nil || want.Spec.ReconcileStrategy == addonsv1.ReconcileStrategyInstallOnce || !equality.Semantic.DeepEqual(rest, want) {
		return r.Change(ctx, have, want, store.Unchanged)
	}
	return r.ChangeSpec(ctx, have, want)
}

// HasSpec reports whether a HelmReleaseProxy has the spec that its HelmChartProxy wants.
func HasSpec(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, release *addonsv1.HelmReleaseProxy) bool {
	return reflect.DeepEqual(&release.Spec, &wantedRelease(proxy, in, plan.ClusterOf(release), release).Spec)
}

// isAs reports whether a HelmReleaseProxy needs no change. In a reconcile of a HelmChartProxy, hardly any does.
func isAs(have, want *addonsv1.HelmReleaseProxy) bool {
	return reflect.DeepEqual(&have.Spec, &want.Spec) && reflect.DeepEqual(&have.OwnerReferences, &want.OwnerReferences) &&
		kube.Contains(have.Labels, want.Labels) && kube.Contains(have.Annotations, want.Annotations) &&
		controllerutil.ContainsFinalizer(have, plan.Finalizer) && !controllerutil.ContainsFinalizer(have, CAAPHReleaseFinalizer)
}

// createRelease creates a HelmReleaseProxy. If another HelmChartProxy and Cluster use its name, it gets the
// next name.
func (r *Reconciler) createRelease(ctx context.Context, proxy *addonsv1.HelmChartProxy, cluster plan.Key, want *addonsv1.HelmReleaseProxy) (*addonsv1.HelmReleaseProxy, error) {
	isOurs := func(live client.Object) bool {
		return plan.ClusterOf(live.(*addonsv1.HelmReleaseProxy)) == cluster && metav1.IsControlledBy(live, proxy)
	}
	var err error
	for _, name := range plan.ReleaseProxyNames(client.ObjectKeyFromObject(proxy), cluster) {
		want := want.DeepCopy()
		want.Name = name
		if err = r.CreateOurs(ctx, want, isOurs); err == nil {
			return want, nil
		}
		if taken := (*store.TakenError)(nil); !errors.As(err, &taken) {
			break
		}
	}
	return nil, err
}

// wantedRelease returns the HelmReleaseProxy for a Cluster. While the inputs are incomplete, it keeps the
// chart's version; an installed InstallOnce release stays as it is.
func wantedRelease(proxy *addonsv1.HelmChartProxy, in *inputs.Inputs, cluster plan.Key, have *addonsv1.HelmReleaseProxy) *addonsv1.HelmReleaseProxy {
	spec := &proxy.Spec
	clusterLabel, _ := stamp.LabelValue(cluster.Name)
	proxyLabel, _ := stamp.LabelValue(proxy.Name)
	release := &addonsv1.HelmReleaseProxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: proxy.Namespace, Finalizers: []string{plan.Finalizer},
			Labels:      map[string]string{clusterv1.ClusterNameLabel: clusterLabel, addonsv1.HelmChartProxyLabel: proxyLabel},
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
	if have != nil && plan.IsInstalledOnce(proxy, have) {
		release.Spec = have.Spec // An installed InstallOnce release no longer follows the HelmChartProxy.
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
