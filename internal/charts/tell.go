package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/picture"
	"github.com/muster-fleet/muster/internal/stamp"
)

// tell writes the status of the HelmChartProxy, and a HelmReleaseProxy for each selected
// Cluster, where they have news.
func (r *reconciler) tell(ctx context.Context, v *visit) error {
	if !v.looked { // Which Clusters are selected is not known.
		return r.tellOwn(ctx, v)
	}
	// What is wrong with one mirror does not keep the rest from being told.
	return errors.Join(r.mirror(ctx, v), r.tellOwn(ctx, v))
}

// tellOwn writes the status of the HelmChartProxy.
func (r *reconciler) tellOwn(ctx context.Context, v *visit) error {
	var current addonsv1.HelmChartProxy
	if err := r.Get(ctx, v.key, &current); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := current.DeepCopy()
	conditions, matching := v.conditions()
	v.ready = meta.FindStatusCondition(conditions, addonsv1.ReadyCondition).Reason
	r.setConditions(&current.Status.Conditions, v.proxy.Generation, conditions)
	meta.RemoveStatusCondition(&current.Status.Conditions, addonsv1.LeftAloneCondition)
	if v.looked {
		current.Status.MatchingClusters = matching
	}
	current.Status.ObservedGeneration = v.proxy.Generation
	if equality.Semantic.DeepEqual(before.Status, current.Status) {
		return nil
	}
	if err := r.patchStatus(ctx, before, &current); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.announce(before, &current)
	return nil
}

const (
	// mostMatches is how large the list of selected Clusters in a status becomes, in bytes: etcd takes
	// 1.5 MiB with everything else.
	mostMatches = 768 << 10
	// matchSize is what an entry takes beside the names.
	matchSize = 100
)

// conditions returns the conditions and the selected Clusters; how releases fare only if it is
// known.
func (v *visit) conditions() ([]metav1.Condition, []corev1.ObjectReference) {
	var outcomes []plan.Outcome
	matching, size := []corev1.ObjectReference{}, 0
	for _, cluster := range v.clusters {
		outcomes = append(outcomes, cluster.outcome)
		if size += matchSize + len(cluster.Namespace) + len(cluster.Name); size > mostMatches {
			continue
		}
		matching = append(matching, corev1.ObjectReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: cluster.Namespace, Name: cluster.Name,
		})
	}
	trouble, reason := v.trouble, v.reason
	if trouble == "" && v.untaken != "" && !slices.ContainsFunc(outcomes, func(its plan.Outcome) bool { return its.Trouble != "" }) {
		trouble, reason = v.untaken, addonsv1.HelmReleaseProxySpecsUpdatingReason
	}
	conditions := plan.Conditions(trouble, reason, outcomes)
	for i := range conditions {
		if its := &conditions[i]; its.Type == addonsv1.HelmReleaseProxySpecsUpToDateCondition && its.Status == metav1.ConditionTrue {
			its.Message = v.aside
			if left := len(v.clusters) - len(matching); left > 0 && its.Message == "" {
				its.Message = fmt.Sprintf("status.matchingClusters has no room for %d more", left)
			}
		}
	}
	return slices.DeleteFunc(conditions, func(its metav1.Condition) bool {
		return !v.looked && its.Type == addonsv1.HelmReleaseProxiesReadyCondition
	}), matching
}

// announce makes an event of another reason of Ready.
func (r *reconciler) announce(before, after *addonsv1.HelmChartProxy) {
	was := meta.FindStatusCondition(before.Status.Conditions, addonsv1.ReadyCondition)
	is := meta.FindStatusCondition(after.Status.Conditions, addonsv1.ReadyCondition)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return
	}
	kind, text := corev1.EventTypeWarning, is.Message
	switch {
	case is.Status == metav1.ConditionTrue:
		kind, text = corev1.EventTypeNormal, "the release is ready on every selected Cluster"
	case is.Reason == addonsv1.HelmReleasePendingReason, is.Reason == addonsv1.HelmReleaseProxySpecsUpdatingReason:
		return // It is on its way.
	}
	r.recorder.Eventf(after, nil, kind, is.Reason, "Deploy", "%s", message.Short(text, message.Note))
}

// setConditions sets conditions. What Fleet and Helm say of a release has no bound and may have been
// written by others.
func (r *reconciler) setConditions(conditions *[]metav1.Condition, generation int64, wanted []metav1.Condition) {
	for _, condition := range wanted {
		condition.Message = message.Short(picture.Text(condition.Message), message.Condition)
		condition.ObservedGeneration = generation
		condition.LastTransitionTime = metav1.NewTime(r.now().Truncate(time.Second))
		meta.SetStatusCondition(conditions, condition)
	}
}

// mirror keeps a HelmReleaseProxy for each selected Cluster.
func (r *reconciler) mirror(ctx context.Context, v *visit) error {
	all, err := r.mirrorsOf(ctx, v.key)
	if err != nil {
		return err
	}
	var errs []error
	there := map[plan.Key]*addonsv1.HelmReleaseProxy{}
	for i := range all {
		its := &all[i]
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
		errs = append(errs, r.mirrorOne(ctx, v, cluster, there[key]))
		delete(there, key)
	}
	for _, left := range there {
		errs = append(errs, r.remove(ctx, left))
	}
	return errors.Join(errs...)
}

// mirrorsOf returns the HelmReleaseProxies of a HelmChartProxy.
func (r *reconciler) mirrorsOf(ctx context.Context, key plan.Key) ([]addonsv1.HelmReleaseProxy, error) {
	var all addonsv1.HelmReleaseProxyList
	if err := r.List(ctx, &all, client.InNamespace(key.Namespace), client.MatchingLabels(mirrorLabel(key)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	return all.Items, nil
}

func mirrorLabel(key plan.Key) map[string]string {
	return map[string]string{addonsv1.HelmChartProxyLabel: plan.Labels(key)[plan.ProxyLabel]}
}

// createMirror creates a HelmReleaseProxy, or returns the one that the cache does not show yet. If
// another HelmChartProxy or Cluster has that name, it gets another one.
func (r *reconciler) createMirror(ctx context.Context, v *visit, cluster plan.Key, want *addonsv1.HelmReleaseProxy) (*addonsv1.HelmReleaseProxy, error) {
	for _, name := range []string{want.Name, plan.OtherMirrorName(v.key, cluster)} {
		have := want.DeepCopy()
		have.Name = name
		err := r.create(ctx, have)
		if !apierrors.IsAlreadyExists(err) {
			return have, err
		}
		live := &addonsv1.HelmReleaseProxy{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(have), live); err != nil {
			return nil, fmt.Errorf("reading %s: %w", describe(have), err)
		}
		if live.Labels[addonsv1.HelmChartProxyLabel] == want.Labels[addonsv1.HelmChartProxyLabel] &&
			live.Spec.ClusterRef.Namespace == cluster.Namespace && live.Spec.ClusterRef.Name == cluster.Name {
			return live, nil
		}
	}
	return nil, &takenError{want}
}

func (r *reconciler) mirrorOne(ctx context.Context, v *visit, cluster *selected, have *addonsv1.HelmReleaseProxy) error {
	want := mirrorOf(v, cluster)
	if have == nil {
		var err error
		if have, err = r.createMirror(ctx, v, client.ObjectKeyFromObject(cluster.Cluster), want); err != nil {
			return err
		}
	}
	if !equality.Semantic.DeepEqual(have.Spec, want.Spec) || !isSameMeta(want, have) {
		changed := have.DeepCopy()
		changed.Spec = want.Spec
		for key, value := range want.Labels {
			metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
		}
		for key, value := range want.Annotations {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, key, value)
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
			Annotations: annotationsOf(v, cluster),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: v.key.Name, UID: v.proxy.UID, Controller: ptr.To(true),
			}},
		},
		Spec: addonsv1.HelmReleaseProxySpec{
			ClusterRef: corev1.ObjectReference{
				APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: key.Namespace, Name: key.Name,
			},
			ChartName: spec.ChartName, RepoURL: spec.RepoURL, ReleaseName: cmp.Or(cluster.releaseName, plan.ReleaseName(v.proxy)), ReleaseNamespace: plan.ReleaseNamespace(v.proxy),
			Version: version, ReconcileStrategy: spec.ReconcileStrategy, Options: plan.StoredOptions(spec.Options), Credentials: spec.Credentials, TLSConfig: spec.TLSConfig,
		},
	}
}
