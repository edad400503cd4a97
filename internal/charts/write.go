package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// write brings what is there to what is to be there: values before the Bundles that name
// them, and what nothing names any more last.
func (r *reconciler) write(ctx context.Context, v *visit) error {
	left, err := r.uninstall(ctx, v)
	if err != nil {
		return err
	}
	if left { // The end of the last one brings the HelmChartProxy back.
		v.fail(addonsv1.HelmReleaseProxyReinstallingReason, "the release of another name or namespace is being uninstalled first")
		return nil
	}
	objects, err := r.valuesOf(ctx, v.key)
	if err != nil {
		return err
	}
	there := map[client.ObjectKey]client.Object{}
	for _, object := range objects {
		there[client.ObjectKeyFromObject(object)] = object
	}
	named := map[client.ObjectKey]bool{}
	wanted := map[client.ObjectKey]bool{}
	v.keepFrozen(wanted, named)
	for _, namespace := range v.namespaces() {
		in := v.input(namespace, there)
		its := plan.Make(in)
		for name := range its.Keep {
			named[client.ObjectKey{Namespace: namespace, Name: name}] = true
		}
		for _, object := range its.Values {
			key := client.ObjectKeyFromObject(object)
			named[key] = true
			if err := r.putValues(ctx, object, there[key]); err != nil {
				return err
			}
		}
		for _, bundle := range its.Bundles {
			wanted[client.ObjectKeyFromObject(bundle)] = true
			bundle.Spec.Paused = v.isInstalledOnce(bundle)
			if err := r.putBundle(ctx, bundle, v.bundle(client.ObjectKeyFromObject(bundle))); err != nil {
				return err
			}
		}
	}
	return r.sweep(ctx, v, wanted, named, objects)
}

// keepFrozen keeps what there is for Clusters that were installed once and for all.
func (v *visit) keepFrozen(wanted, named map[client.ObjectKey]bool) {
	for _, cluster := range v.clusters {
		if its := v.frozen[deploymentKey{cluster.Namespace, cluster.fleet}]; its != nil {
			wanted[client.ObjectKeyFromObject(its)] = true
			named[client.ObjectKey{Namespace: cluster.Namespace, Name: plan.ValuesName(v.key, cluster.Namespace, cluster.fleet)}] = true
		}
	}
}

// isInstalledOnce reports whether a Bundle of a HelmChartProxy that installs once is
// installed: it is paused then, which agents respect.
func (v *visit) isInstalledOnce(bundle *fleetv1.Bundle) bool {
	if !bundle.Spec.KeepResources {
		return false
	}
	return !slices.ContainsFunc(bundle.Spec.Targets, func(target fleetv1.BundleTarget) bool {
		return !plan.ReleaseOf(v.deployments[deploymentKey{bundle.Namespace, target.ClusterName}]).Ready
	})
}

// namespaces returns those in which something is or is to be.
func (v *visit) namespaces() []string {
	all := map[string]bool{}
	for _, cluster := range v.clusters {
		all[cluster.Namespace] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// deploys reports whether there is a Cluster to deploy to.
func (v *visit) deploys() bool {
	return slices.ContainsFunc(v.clusters, func(s *selected) bool { return s.fleet != "" })
}

func (v *visit) bundle(key client.ObjectKey) *fleetv1.Bundle {
	for i := range v.bundles {
		if client.ObjectKeyFromObject(&v.bundles[i]) == key {
			return &v.bundles[i]
		}
	}
	return nil
}

// isOfOtherRelease reports whether a Bundle deploys a release of another name or namespace
// than the HelmChartProxy has now. Its own name tells: what it says could be anybody's word.
func (v *visit) isOfOtherRelease(bundle *fleetv1.Bundle) bool {
	return !plan.IsOfRelease(v.proxy, bundle)
}

// uninstall deletes the Bundles of another release first: what both have must not be deleted
// with the old one when the new one is there. It reports whether Fleet still has something
// of them.
func (r *reconciler) uninstall(ctx context.Context, v *visit) (left bool, err error) {
	for i := range v.bundles {
		its := &v.bundles[i]
		if !v.isOfOtherRelease(its) || its.Spec.Paused && its.Spec.KeepResources {
			continue
		}
		left = true
		if err := r.remove(ctx, its); err != nil {
			return true, err
		}
	}
	return left, nil
}

// isCarried reports whether every Bundle that is to be there is there, with this chart as
// it was written.
func (v *visit) isCarried(chart *plan.Chart) bool {
	for _, namespace := range v.namespaces() {
		in := v.input(namespace, nil)
		in.Chart = chart
		for _, want := range plan.Make(in).Bundles {
			have := v.bundle(client.ObjectKeyFromObject(want))
			if have == nil || have.Annotations[plan.ChartAnnotation] != chart.Source ||
				have.Annotations[plan.VersionAnnotation] != chart.Version ||
				have.Annotations[digestAnnotation] != digestOf(have.Spec.Resources) {
				return false
			}
		}
	}
	return true
}

// input returns what the objects in a namespace are made from. There are the objects with
// values; nil for none. A Cluster whose values could not be rendered, and never were, is no
// target: Fleet stops at the first target whose values are missing.
func (v *visit) input(namespace string, there map[client.ObjectKey]client.Object) plan.Input {
	in := plan.Input{Proxy: v.proxy, Namespace: namespace, Shared: v.shared, Chart: v.chart, Placed: map[string]string{}}
	for i := range v.bundles {
		if v.bundles[i].Namespace != namespace || v.isOfOtherRelease(&v.bundles[i]) {
			continue
		}
		for _, target := range v.bundles[i].Spec.Targets {
			in.Placed[target.ClusterName] = v.bundles[i].Name
		}
	}
	for _, cluster := range v.clusters {
		if cluster.Namespace != namespace || cluster.fleet == "" || v.isFrozen(cluster) || cluster.paused && in.Placed[cluster.fleet] == "" {
			continue
		}
		if cluster.kept && there != nil {
			if _, found := there[client.ObjectKey{Namespace: namespace, Name: plan.ValuesName(v.key, namespace, cluster.fleet)}]; !found {
				continue
			}
		}
		in.Targets = append(in.Targets, plan.Target{Fleet: cluster.fleet, Values: cluster.values, Kept: cluster.kept})
	}
	return in
}

// sweep deletes what is not wanted any more. Values stay as long as Fleet has something
// that may read them.
func (r *reconciler) sweep(ctx context.Context, v *visit, wanted, named map[client.ObjectKey]bool, values []client.Object) error {
	for i := range v.bundles {
		if !wanted[client.ObjectKeyFromObject(&v.bundles[i])] {
			if err := r.removeBundle(ctx, &v.bundles[i]); err != nil {
				return err
			}
		}
	}
	for _, object := range values {
		if named[client.ObjectKeyFromObject(object)] || v.isRead(object) {
			continue
		}
		if err := r.remove(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// isRead reports whether Fleet has something for the Cluster that values are of.
func (v *visit) isRead(values client.Object) bool {
	for key := range v.deployments {
		if key.namespace == values.GetNamespace() && strings.HasSuffix(values.GetName(), plan.ValuesSuffix(key.fleetCluster)) {
			return true
		}
	}
	return false
}

// removeBundle deletes a Bundle and the Secret that it names, which nothing else tells of.
func (r *reconciler) removeBundle(ctx context.Context, bundle *fleetv1.Bundle) error {
	if err := r.remove(ctx, bundle); err != nil {
		return err
	}
	return r.removeSecret(ctx, bundle)
}

// remove deletes an object of ours.
func (r *reconciler) remove(ctx context.Context, object client.Object) error {
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	err := r.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted", "object", describe(object))
	return nil
}

func describe(object client.Object) string {
	return fmt.Sprintf("%s %s", reflect.TypeOf(object).Elem().Name(), client.ObjectKeyFromObject(object))
}

// putValues writes an object with values. What the cache holds is short: see Trim.
func (r *reconciler) putValues(ctx context.Context, want, have client.Object) error {
	if secret, ok := want.(*corev1.Secret); ok && have == nil {
		var err error
		if have, err = r.liveSecret(ctx, secret); err != nil {
			return err
		}
	}
	if have == nil {
		return r.create(ctx, want)
	}
	if isSameMeta(want, have) && digestOfValues(want) == digestOfValues(have) {
		return nil
	}
	patch := map[string]any{"metadata": metaOf(want)}
	switch typed := want.(type) {
	case *corev1.ConfigMap:
		patch["data"] = typed.Data
	case *corev1.Secret:
		patch["data"] = typed.Data
	}
	return r.patch(ctx, have, toJSON(patch))
}

// liveSecret reads a Secret with values past the cache: to watch Secrets would take the
// right to read all of them at once. Nil stands for none.
func (r *reconciler) liveSecret(ctx context.Context, want *corev1.Secret) (client.Object, error) {
	have := &corev1.Secret{}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", describe(want), err)
	case have.Type != want.Type:
		return nil, fmt.Errorf("%s is not Muster's; delete it", describe(want))
	}
	return have, nil
}

// removeSecret deletes the Secret with values that a Bundle names.
func (r *reconciler) removeSecret(ctx context.Context, bundle *fleetv1.Bundle) error {
	for _, resource := range bundle.Spec.DownstreamResources {
		if resource.Kind != plan.SecretKind {
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: bundle.Namespace, Name: resource.Name}}
		if err := r.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", describe(secret), err)
		}
	}
	return nil
}

// putBundle writes a Bundle: of an existing one, only what differs.
func (r *reconciler) putBundle(ctx context.Context, want, have *fleetv1.Bundle) error {
	want.Spec.TargetCustomizationMode = fleetv1.TargetCustomizationModeFirstMatch // The API server's default.
	want.Annotations[digestAnnotation] = digestOf(want.Spec.Resources)
	if have == nil {
		if len(want.Spec.Resources) == 0 {
			return errors.New("the chart is missing")
		}
		return r.create(ctx, want)
	}
	resources := want.Spec.Resources
	if resources == nil { // The ones that are there are right.
		want.Annotations[digestAnnotation] = have.Annotations[digestAnnotation]
	}
	wanted, there := want.Spec, have.Spec
	wanted.Resources, there.Resources = nil, nil
	difference, err := jsonpatch.CreateMergePatch(toJSON(there), toJSON(wanted))
	if err != nil {
		return fmt.Errorf("comparing Bundle %s: %w", client.ObjectKeyFromObject(want), err)
	}
	spec := map[string]any{}
	if err := json.Unmarshal(difference, &spec); err != nil {
		return err
	}
	if resources != nil && digestOf(resources) != digestOf(have.Spec.Resources) {
		spec["resources"] = resources
	}
	if len(spec) == 0 && isSameMeta(want, have) {
		return nil
	}
	if err := r.patch(ctx, have, toJSON(map[string]any{"metadata": metaOf(want), "spec": spec})); err != nil {
		return err
	}
	if reflect.DeepEqual(want.Spec.DownstreamResources, have.Spec.DownstreamResources) {
		return nil
	}
	return r.removeSecret(ctx, have)
}

func (r *reconciler) create(ctx context.Context, object client.Object) error {
	if err := r.Create(ctx, object, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("creating %s: %w", describe(object), err)
	}
	ctrl.LoggerFrom(ctx).Info("Created", "object", describe(object))
	return nil
}

func (r *reconciler) patch(ctx context.Context, have client.Object, patch []byte) error {
	target := reflect.New(reflect.TypeOf(have).Elem()).Interface().(client.Object)
	target.SetNamespace(have.GetNamespace())
	target.SetName(have.GetName())
	if err := r.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("changing %s: %w", describe(have), err)
	}
	ctrl.LoggerFrom(ctx).Info("Changed", "object", describe(have))
	return nil
}

func metaOf(object client.Object) map[string]any {
	meta := map[string]any{"labels": object.GetLabels(), "annotations": object.GetAnnotations()}
	if owners := object.GetOwnerReferences(); len(owners) > 0 {
		meta["ownerReferences"] = owners
	}
	return meta
}

// isSameMeta reports whether an object has the labels, annotations and owners that it is to
// have; what others have added stays.
func isSameMeta(want, have client.Object) bool {
	contains := func(all, some map[string]string) bool {
		for key, value := range some {
			if its, found := all[key]; !found || its != value {
				return false
			}
		}
		return true
	}
	return contains(have.GetLabels(), want.GetLabels()) && contains(have.GetAnnotations(), want.GetAnnotations()) &&
		(len(want.GetOwnerReferences()) == 0 || reflect.DeepEqual(want.GetOwnerReferences(), have.GetOwnerReferences()))
}
