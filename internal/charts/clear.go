package charts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// clear deletes what was made for a HelmChartProxy that is gone: in each namespace first what
// deploys, then what it reads.
func (r *reconciler) clear(ctx context.Context, key plan.Key) (ctrl.Result, error) {
	r.rendered.forget(key)
	r.versions.forget(key)
	r.large.forget(key)
	r.tally.forget(key)
	bundles, err := r.bundlesOf(ctx, key, nil)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(bundles) == 0 { // Nothing is remembered of it then: anybody may make up names.
		r.pace.forget(key)
	} else {
		defer r.pace.during(key)()
	}
	values, err := r.valuesOf(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	var errs []error
	var result ctrl.Result
	for _, namespace := range namespacesOf(bundles, values) {
		stays, err := r.clearIn(ctx, key, inNamespace(bundles, namespace), in(values, namespace))
		failed := notTheirs(ctx, namespace == key.Namespace, namespace, err)
		errs = append(errs, failed)
		// No event of the Fleet Cluster leads to a HelmChartProxy that is gone; none of what Fleet
		// has made of a HelmOp may.
		if stays || err != nil && failed == nil || slices.ContainsFunc(bundles, func(its fleetv1.Bundle) bool { return its.Spec.HelmOpOptions != nil }) {
			result.RequeueAfter = pollInterval
		}
	}
	return result, errors.Join(append(errs, r.clearWritten(ctx, key, bundles))...)
}

// clearIn clears one namespace. It reports whether something stays, for clusters that were moved.
func (r *reconciler) clearIn(ctx context.Context, key plan.Key, bundles []fleetv1.Bundle, values []client.Object) (stays bool, err error) {
	var going []fleetv1.Bundle
	var needed map[string]bool // nil if nothing stays
	for i := range bundles {
		kept, err := r.staysIn(ctx, &bundles[i])
		switch {
		case err != nil:
			return stays, err
		case !kept:
			going = append(going, bundles[i])
			continue
		}
		if stays = true; needed == nil {
			needed = map[string]bool{}
		}
		for _, name := range secretsOf(key, &bundles[i]) {
			needed[name] = true
		}
	}
	// They go first: nothing tells of them afterwards.
	if err := r.removeSecrets(ctx, key, going, needed); err != nil {
		return stays, err
	}
	left := false
	for i := range bundles {
		kept, err := r.retire(ctx, &bundles[i])
		if err != nil {
			return stays, err
		}
		left, stays = left || !kept, stays || kept // A Cluster may be paused meanwhile.
	}
	switch {
	case stays:
		if err := r.disownAll(ctx, bundles, values); err != nil {
			return true, err
		}
		return true, r.clearLeft(ctx, key, bundles, values)
	case left:
		return false, nil // The end of the last one brings it back.
	}
	for _, object := range values {
		if err := r.remove(ctx, object); err != nil {
			return false, err
		}
	}
	return false, nil
}

// clearLeft deletes the values that Bundles, which stay for targets that were moved, do not need: those for
// the others. What was written last may not be in the cache yet: before anything goes, it is read past it.
func (r *reconciler) clearLeft(ctx context.Context, key plan.Key, bundles []fleetv1.Bundle, values []client.Object) error {
	v := &visit{key: key, bundles: slices.Clone(bundles)}
	if err := r.lookAtDeployments(ctx, v); err != nil {
		return err
	}
	left := v.unneeded(values)
	if len(left) == 0 {
		return nil
	}
	for i := range v.bundles {
		live, err := r.liveBundle(ctx, &v.bundles[i])
		if err != nil {
			return client.IgnoreNotFound(err) // Its end brings the HelmChartProxy back.
		}
		v.bundles[i] = *live
	}
	if err := r.askDeployments(ctx, v, v.bundles[0].Namespace); err != nil {
		return err
	}
	for _, object := range v.unneeded(left) {
		if err := r.remove(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// unneeded returns the ConfigMaps, of those in the namespace of the Bundles, that no Bundle names and Fleet
// does not read.
func (v *visit) unneeded(values []client.Object) []client.Object {
	needed := map[string]bool{}
	note := func(namespace string, all []fleetv1.DownstreamResource, targets ...string) {
		for _, its := range all {
			needed[its.Name] = needed[its.Name] || its.Kind != plan.SecretKind
		}
		ofOne := plan.ValuesName(v.key, namespace, "")
		for _, fleetCluster := range targets {
			needed[ofOne+fleetCluster] = true
		}
	}
	for i := range v.bundles {
		its := &v.bundles[i]
		note(its.Namespace, its.Spec.DownstreamResources)
		for _, target := range its.Spec.Targets {
			note(its.Namespace, target.DownstreamResources, target.ClusterName)
		}
	}
	for its, deployment := range v.deployments {
		if read := copiedFor(deployment); len(read) > 0 {
			note(its.namespace, read)
		} else {
			note(its.namespace, nil, its.fleetCluster)
		}
	}
	return slices.DeleteFunc(slices.Clone(values), func(its client.Object) bool { return needed[its.GetName()] })
}

// staysIn reports whether a Bundle stays, for targets whose Fleet Cluster is released.
func (r *reconciler) staysIn(ctx context.Context, bundle *fleetv1.Bundle) (bool, error) {
	released, err := r.released(ctx, bundle)
	return len(released) > 0 && bundle.DeletionTimestamp.IsZero(), err
}

// retire deletes a Bundle, but for targets whose Fleet Cluster is released: see keep.
func (r *reconciler) retire(ctx context.Context, bundle *fleetv1.Bundle) (kept bool, err error) {
	released, err := r.released(ctx, bundle)
	if err != nil {
		return false, err
	}
	if len(released) == 0 || !bundle.DeletionTimestamp.IsZero() {
		return false, r.remove(ctx, bundle)
	}
	if len(released) == len(bundle.Spec.Targets) {
		return true, nil
	}
	if bundle, err = r.whole(ctx, bundle); err == nil {
		released, err = r.released(ctx, bundle)
	}
	if err != nil {
		return true, err
	}
	return true, r.patch(ctx, bundle, toJSON(map[string]any{"spec": map[string]any{"targets": released}}))
}

// disown has nothing deleted with a HelmChartProxy that is paused: who moves it to another
// management cluster pauses it first.
func (r *reconciler) disown(ctx context.Context, key plan.Key) error {
	bundles, err := r.bundlesOf(ctx, key, nil)
	if err != nil {
		return err
	}
	values, err := r.valuesOf(ctx, key)
	if err != nil {
		return err
	}
	return r.disownAll(ctx, inNamespace(bundles, key.Namespace), in(values, key.Namespace))
}

// disownAll has nothing deleted with a HelmChartProxy. Secrets stay with the Bundles that name them: see
// addOwner.
func (r *reconciler) disownAll(ctx context.Context, bundles []fleetv1.Bundle, values []client.Object) error {
	objects := slices.Clone(values)
	for i := range bundles {
		objects = append(objects, &bundles[i])
	}
	for _, object := range objects {
		if !isOwned(object) {
			continue
		}
		change := map[string]any{"metadata": map[string]any{"ownerReferences": withoutProxies(object.GetOwnerReferences())}}
		if err := r.patch(ctx, object, toJSON(change)); err != nil {
			return err
		}
	}
	return nil
}

func isProxy(owner metav1.OwnerReference) bool {
	return owner.APIVersion == addonsv1.GroupVersion.String() && owner.Kind == "HelmChartProxy"
}

func isOwned(object client.Object) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), isProxy)
}

// withoutProxies returns the owners that are no HelmChartProxies.
func withoutProxies(owners []metav1.OwnerReference) []metav1.OwnerReference {
	return append([]metav1.OwnerReference{}, slices.DeleteFunc(slices.Clone(owners), isProxy)...)
}

// mostFormer is how many Secrets that a Bundle or HelmOp named before are looked for.
const mostFormer = 8

// secretsOf returns the names of the Secrets that a Bundle names, or has named, if they are those that
// we give.
func secretsOf(key plan.Key, bundle *fleetv1.Bundle) []string {
	// Whoever may write Bundles may write the annotation, and each name costs a request.
	names := strings.Fields(bundle.Annotations[plan.FormerAnnotation])
	names = names[:min(len(names), mostFormer)]
	for _, its := range bundle.Spec.DownstreamResources {
		if _, isShared := plan.NumberOf(its.Name, plan.SharedName(key, bundle.Namespace)); isShared && its.Kind == plan.SecretKind {
			names = append(names, its.Name)
		}
	}
	if options := bundle.Spec.HelmOpOptions; options != nil {
		names = append(names, options.SecretName)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		_, isShared := plan.NumberOf(name, plan.SharedName(key, bundle.Namespace))
		return !isShared && !plan.IsAccessName(key, bundle.Namespace, name)
	})
}

// removeSecrets deletes the Secrets that Bundles name, but for those that others need.
func (r *reconciler) removeSecrets(ctx context.Context, key plan.Key, bundles []fleetv1.Bundle, needed map[string]bool) error {
	for i := range bundles {
		names := secretsOf(key, &bundles[i])
		if needed == nil { // One may have been written that it was never told of.
			names = append(names, plan.SharedNames(key, bundles[i].Namespace)...)
		}
		for _, name := range names {
			if needed[name] {
				continue
			}
			if err := r.removeSecret(ctx, key, client.ObjectKey{Namespace: bundles[i].Namespace, Name: name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// valuesOf returns the ConfigMaps with values of a HelmChartProxy.
func (r *reconciler) valuesOf(ctx context.Context, key plan.Key) ([]client.Object, error) {
	var all corev1.ConfigMapList
	if err := r.List(ctx, &all, client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ConfigMaps with values: %w", err)
	}
	var result []client.Object
	for i := range all.Items {
		if its := &all.Items[i]; isFor(its, key) && plan.IsValuesName(key, client.ObjectKeyFromObject(its)) {
			result = append(result, its)
		}
	}
	return result, nil
}

// namespacesOf returns the namespaces in which something is.
func namespacesOf(bundles []fleetv1.Bundle, values []client.Object) []string {
	var all []string
	for i := range bundles {
		all = append(all, bundles[i].Namespace)
	}
	for _, object := range values {
		all = append(all, object.GetNamespace())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func inNamespace(bundles []fleetv1.Bundle, namespace string) []fleetv1.Bundle {
	return slices.DeleteFunc(slices.Clone(bundles), func(its fleetv1.Bundle) bool { return its.Namespace != namespace })
}

func in(objects []client.Object, namespace string) []client.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(its client.Object) bool { return its.GetNamespace() != namespace })
}
