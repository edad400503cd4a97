package charts

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// tell writes the status of the HelmChartProxy, and a HelmReleaseProxy for each selected
// Cluster, where they have news.
func (r *reconciler) tell(ctx context.Context, v *visit) error {
	if err := r.mirror(ctx, v); err != nil {
		return err
	}
	var current addonsv1.HelmChartProxy
	if err := r.Get(ctx, v.key, &current); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := current.DeepCopy()
	var outcomes []plan.Outcome
	current.Status.MatchingClusters = []corev1.ObjectReference{}
	for _, cluster := range v.clusters {
		outcomes = append(outcomes, cluster.outcome)
		current.Status.MatchingClusters = append(current.Status.MatchingClusters, corev1.ObjectReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: cluster.Namespace, Name: cluster.Name,
		})
	}
	r.setConditions(&current.Status.Conditions, v.proxy.Generation, plan.Conditions(v.trouble, v.reason, outcomes))
	current.Status.ObservedGeneration = v.proxy.Generation
	if equality.Semantic.DeepEqual(before.Status, current.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, &current, client.MergeFrom(before), client.FieldOwner(FieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.announce(before, &current)
	return nil
}

// announce makes an event of another reason of Ready.
func (r *reconciler) announce(before, after *addonsv1.HelmChartProxy) {
	was := meta.FindStatusCondition(before.Status.Conditions, addonsv1.ReadyCondition)
	is := meta.FindStatusCondition(after.Status.Conditions, addonsv1.ReadyCondition)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return
	}
	kind, message := corev1.EventTypeWarning, is.Message
	switch {
	case is.Status == metav1.ConditionTrue:
		kind, message = corev1.EventTypeNormal, "the release is ready on every selected Cluster"
	case is.Reason == addonsv1.HelmReleasePendingReason:
		return // It is on its way.
	}
	r.recorder.Eventf(after, nil, kind, is.Reason, "Deploy", "%s", message)
}

func (r *reconciler) setConditions(conditions *[]metav1.Condition, generation int64, wanted []metav1.Condition) {
	for _, condition := range wanted {
		condition.ObservedGeneration = generation
		condition.LastTransitionTime = metav1.NewTime(r.now().Truncate(time.Second))
		meta.SetStatusCondition(conditions, condition)
	}
}

// mirror keeps a HelmReleaseProxy for each selected Cluster.
func (r *reconciler) mirror(ctx context.Context, v *visit) error {
	var all addonsv1.HelmReleaseProxyList
	label := plan.Labels(v.key)[plan.ProxyLabel]
	if err := r.List(ctx, &all, client.InNamespace(v.key.Namespace), client.MatchingLabels{addonsv1.HelmChartProxyLabel: label}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	there := map[plan.Key]*addonsv1.HelmReleaseProxy{}
	for i := range all.Items {
		its := &all.Items[i]
		cluster := plan.Key{Namespace: its.Spec.ClusterRef.Namespace, Name: its.Spec.ClusterRef.Name}
		if slices.Contains(its.Finalizers, peersReleaseFinalizer) {
			if err := r.peer.removeFinalizer(ctx, its, peersReleaseFinalizer); err != nil {
				return err
			}
		}
		if there[cluster] != nil {
			if err := r.remove(ctx, its); err != nil {
				return err
			}
			continue
		}
		there[cluster] = its
	}
	for _, cluster := range v.clusters {
		key := client.ObjectKeyFromObject(cluster.Cluster)
		if err := r.mirrorOne(ctx, v, cluster, there[key]); err != nil {
			return err
		}
		delete(there, key)
	}
	for _, left := range there {
		if err := r.remove(ctx, left); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) mirrorOne(ctx context.Context, v *visit, cluster *selected, have *addonsv1.HelmReleaseProxy) error {
	want := mirrorOf(v, cluster)
	if have == nil {
		have = want.DeepCopy()
		if err := r.create(ctx, have); err != nil {
			return err
		}
	}
	if !equality.Semantic.DeepEqual(have.Spec, want.Spec) || !isSameMeta(want, have) {
		changed := have.DeepCopy()
		changed.Spec = want.Spec
		for key, value := range want.Labels {
			metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
		}
		changed.OwnerReferences = want.OwnerReferences
		if err := r.Patch(ctx, changed, client.MergeFrom(have), client.FieldOwner(FieldManager)); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("changing %s: %w", describe(have), err))
		}
		have = changed
	}
	changed := have.DeepCopy()
	release := cluster.outcome.Release
	changed.Status.Status, changed.Status.Revision = release.Status, release.Revision
	changed.Status.ObservedGeneration = have.Generation
	r.setConditions(&changed.Status.Conditions, have.Generation, plan.MirrorConditions(cluster.outcome))
	if equality.Semantic.DeepEqual(changed.Status, have.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, changed, client.MergeFrom(have), client.FieldOwner(FieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status of %s: %w", describe(have), err))
	}
	return nil
}

func mirrorOf(v *visit, cluster *selected) *addonsv1.HelmReleaseProxy {
	spec := &v.proxy.Spec
	key := client.ObjectKeyFromObject(cluster.Cluster)
	clusterLabel, _ := stamp.LabelValue(key.Name)
	version := spec.Version
	if v.chart != nil {
		version = v.chart.Version
	}
	return &addonsv1.HelmReleaseProxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.key.Namespace, Name: plan.MirrorName(v.key, key),
			Labels: map[string]string{
				clusterv1.ClusterNameLabel:   clusterLabel,
				addonsv1.HelmChartProxyLabel: plan.Labels(v.key)[plan.ProxyLabel],
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: v.key.Name, UID: v.proxy.UID, Controller: ptr.To(true),
			}},
		},
		Spec: addonsv1.HelmReleaseProxySpec{
			ClusterRef: corev1.ObjectReference{
				APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: key.Namespace, Name: key.Name,
			},
			ChartName: spec.ChartName, RepoURL: spec.RepoURL, ReleaseName: plan.ReleaseName(v.proxy), ReleaseNamespace: plan.ReleaseNamespace(v.proxy),
			Version: version, ReconcileStrategy: spec.ReconcileStrategy, Options: plan.StoredOptions(spec.Options), Credentials: spec.Credentials, TLSConfig: spec.TLSConfig,
		},
	}
}
