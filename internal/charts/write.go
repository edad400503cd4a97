package charts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// write brings what is there to what is to be there. What is wrong in one namespace holds up no
// other.
func (r *reconciler) write(ctx context.Context, v *visit) (again time.Duration, err error) {
	values, err := r.valuesOf(ctx, v.key)
	if err != nil {
		return 0, err
	}
	v.wrote = true
	var errs []error
	for _, namespace := range r.namespaces(v, values) {
		v.here = here{}
		if v.isWanted(namespace) {
			r.traces.guess(v, namespace)
		} else {
			if err := r.clearAway(ctx, v, namespace, in(values, namespace)); err != nil {
				logNotTheirs(ctx, namespace, err)
				again = pollInterval
			}
			continue
		}
		err := r.writeIn(ctx, v, namespace, in(values, namespace))
		var taken *takenError
		switch {
		case err == nil:
			continue
		case errors.As(err, &taken): // It tells of nothing when it goes.
			again = pollInterval
		default:
			errs = append(errs, err)
		}
		reason := addonsv1.HelmReleaseProxyCreationFailedReason
		if isTransient(err) {
			reason = addonsv1.HelmReleaseProxySpecsUpdatingReason
		}
		if !v.failIn(namespace, reason, err.Error()) {
			v.fail(reason, err.Error())
		}
	}
	return again, errors.Join(errs...)
}

// failIn says what is wrong with the Clusters of a namespace, if there are any.
func (v *visit) failIn(namespace, reason, message string) bool {
	found := false
	for _, cluster := range v.clusters {
		if cluster.Namespace == namespace {
			cluster.fail(reason, message)
			found = true
		}
	}
	return found
}

// notTheirs returns what went wrong in a namespace, unless nothing is wanted there: then it is no error
// of the HelmChartProxy, and is logged. What passes by itself is tried again soon.
func notTheirs(ctx context.Context, isWanted bool, namespace string, err error) error {
	if err == nil || isWanted || isTransient(err) {
		return err
	}
	logNotTheirs(ctx, namespace, err)
	return nil
}

// logNotTheirs logs what went wrong where nothing is wanted: whoever has it there may have forged it.
func logNotTheirs(ctx context.Context, namespace string, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "Clearing a namespace in which no Cluster is selected failed", "namespace", namespace)
}

// isWanted reports whether anything is to be written in a namespace: a Cluster in it is selected, or
// it is that of the HelmChartProxy. Whatever else is found elsewhere, somebody may have forged it.
func (v *visit) isWanted(namespace string) bool {
	return namespace == v.key.Namespace || v.isSelectedIn(namespace)
}

// isSelectedIn reports whether a Cluster in a namespace is selected.
func (v *visit) isSelectedIn(namespace string) bool {
	return slices.ContainsFunc(v.clusters, func(s *selected) bool { return s.Namespace == namespace })
}

// clearAway deletes what is in a namespace in which nothing is wanted. What stays for Clusters that
// were moved stays as it is.
func (r *reconciler) clearAway(ctx context.Context, v *visit, namespace string, values []client.Object) error {
	return r.sweep(ctx, v, namespace, nil, map[client.ObjectKey]bool{}, values)
}

// writeIn writes what is to be in one namespace: values before the Bundles that name them, and
// what nothing names any more last.
func (r *reconciler) writeIn(ctx context.Context, v *visit, namespace string, objects []client.Object) error {
	left, err := r.uninstall(ctx, v, namespace)
	if err != nil {
		return err
	}
	if left { // The end of the last one brings the HelmChartProxy back.
		v.failIn(namespace, addonsv1.HelmReleaseProxyReinstallingReason, "the release of another name or namespace is being uninstalled first")
		return nil
	}
	there, err := r.valuesIn(ctx, v, namespace, objects)
	if err != nil {
		return err
	}
	named, wanted := map[client.ObjectKey]bool{}, map[client.ObjectKey]bool{}
	v.keepFrozen(namespace, wanted, named)
	input := v.input(namespace, there)
	if input.Unowned, err = r.isUnowned(ctx, v, namespace); err != nil {
		return err
	}
	input.Chart = r.chartIn(ctx, v, input)
	if err := r.stage(ctx, v, &input, there); err != nil {
		return err
	}
	its := plan.Make(input)
	v.awaitReaders(its.Bundles)
	held, err := r.leave(ctx, v, input, its, there, named)
	if err != nil {
		return err
	}
	if err := r.writeValues(ctx, v, its.Values, there, held, named); err != nil {
		return err
	}
	var stay []*fleetv1.Bundle
	for _, bundle := range its.Bundles {
		wanted[client.ObjectKeyFromObject(bundle)] = true
		if options := bundle.Spec.HelmOpOptions; options != nil {
			named[client.ObjectKey{Namespace: namespace, Name: options.SecretName}] = true
		}
		if held.bundles[bundle.Name] {
			if have := v.bundle(client.ObjectKeyFromObject(bundle)); have != nil {
				stay = append(stay, have)
			}
			continue
		}
		v.pause(bundle)
		have := v.bundle(client.ObjectKeyFromObject(bundle))
		if err := r.noteSecrets(ctx, bundle, have, its.Values); err != nil {
			return err
		}
		v.remember(bundle, have)
		if err := r.put(ctx, v, bundle, have); err != nil {
			return errors.Join(err, r.dropDeselected(ctx, v, stay))
		}
	}
	if err := r.dropDeselected(ctx, v, stay); err != nil {
		return err
	}
	return r.sweep(ctx, v, namespace, wanted, named, objects)
}

// leave says what is left as it is. While a Cluster is moved, it does not go with the HelmChartProxy;
// what is written does not either.
func (r *reconciler) leave(ctx context.Context, v *visit, input plan.Input, its plan.Objects, there map[client.ObjectKey]client.Object, named map[client.ObjectKey]bool) (held, error) {
	for name := range its.Keep {
		named[client.ObjectKey{Namespace: input.Namespace, Name: name}] = true
	}
	held := v.hold(its.Bundles, input.Chart, named)
	if !input.Unowned {
		return held, nil
	}
	var bundles []fleetv1.Bundle
	for _, bundle := range its.Bundles {
		if have := v.bundle(client.ObjectKeyFromObject(bundle)); have != nil && held.bundles[bundle.Name] {
			bundles = append(bundles, *have)
		}
	}
	written := map[string]bool{}
	for _, object := range its.Values {
		written[object.GetName()] = true
	}
	var values []client.Object
	for key, object := range there {
		if its.Keep[key.Name] || held.values[key.Name] || v.here.staged && !written[key.Name] {
			values = append(values, object)
		}
	}
	return held, r.disownAll(ctx, bundles, values)
}

// writeValues writes objects with values, but for those that are held.
func (r *reconciler) writeValues(ctx context.Context, v *visit, objects []client.Object, there map[client.ObjectKey]client.Object, held held, named map[client.ObjectKey]bool) error {
	for _, object := range objects {
		key := client.ObjectKeyFromObject(object)
		named[key] = true
		if held.values[key.Name] {
			continue
		}
		if err := r.putValues(ctx, v, object, there[key]); err != nil {
			return err
		}
	}
	return nil
}

// putValues writes an object with values.
func (r *reconciler) putValues(ctx context.Context, v *visit, want, have client.Object) error {
	if secret, ok := want.(*corev1.Secret); ok {
		return r.putSecret(ctx, v, secret)
	}
	return r.putConfigMap(ctx, v.key, want, have)
}

// keepFrozen keeps what there is for Clusters that were installed once and for all.
func (v *visit) keepFrozen(namespace string, wanted, named map[client.ObjectKey]bool) {
	stay := func(fleetCluster string) {
		if its := v.frozen[deploymentKey{namespace, fleetCluster}]; its != nil {
			wanted[client.ObjectKeyFromObject(its)] = true
			v.nameValues(its, named)
		}
	}
	for _, cluster := range v.clusters {
		if cluster.Namespace == namespace {
			stay(cluster.fleet)
		}
	}
	for key, stays := range v.stays {
		if stays && key.namespace == namespace {
			stay(key.fleetCluster)
		}
	}
}

// nameValues notes the values that a Bundle may read.
func (v *visit) nameValues(bundle *fleetv1.Bundle, named map[client.ObjectKey]bool) {
	named[client.ObjectKey{Namespace: bundle.Namespace, Name: plan.SharedName(v.key, bundle.Namespace)}] = true
	if options := bundle.Spec.HelmOpOptions; options != nil {
		named[client.ObjectKey{Namespace: bundle.Namespace, Name: options.SecretName}] = true
	}
	for _, target := range bundle.Spec.Targets {
		named[client.ObjectKey{Namespace: bundle.Namespace, Name: plan.ValuesName(v.key, bundle.Namespace, target.ClusterName)}] = true
	}
	for _, name := range namedBy(bundle) {
		named[client.ObjectKey{Namespace: bundle.Namespace, Name: name}] = true
	}
}

// pause pauses a Bundle that is installed once and for all, and notes on which Cluster.
func (v *visit) pause(bundle *fleetv1.Bundle) {
	if bundle.Spec.Paused = v.isInstalledOnce(bundle); !bundle.Spec.Paused {
		return
	}
	for _, cluster := range v.clusters {
		if cluster.Namespace == bundle.Namespace && len(bundle.Spec.Targets) == 1 && cluster.fleet == bundle.Spec.Targets[0].ClusterName {
			bundle.Annotations[plan.InstalledOnAnnotation] = string(cluster.UID)
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
func (v *visit) namespaces(values []client.Object) []string {
	all := namespacesOf(v.bundles, values)
	for _, cluster := range v.clusters {
		all = append(all, cluster.Namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
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

// isOfOtherRelease reports whether a Bundle was made for a release of another name or namespace
// than the HelmChartProxy has now. Its name says so, whatever somebody has made of the rest.
func (v *visit) isOfOtherRelease(bundle *fleetv1.Bundle) bool {
	key := client.ObjectKeyFromObject(bundle)
	other, known := v.others[key]
	if !known { // It takes hundreds of hashes, and there may be thousands of Bundles.
		if v.others == nil {
			v.others = map[client.ObjectKey]bool{}
		}
		other = !plan.IsBundleName(v.proxy, bundle)
		v.others[key] = other
	}
	return other
}

// isCarried reports whether every Bundle that is to be there is there, with this chart as
// it was written.
func (v *visit) isCarried(chart *plan.Chart) bool {
	for _, namespace := range v.namespaces(nil) {
		if !v.isWanted(namespace) {
			continue
		}
		in := v.input(namespace, nil)
		in.Chart = chart
		for _, want := range plan.Make(in).Bundles {
			if !carries(v.bundle(client.ObjectKeyFromObject(want)), chart) {
				return false
			}
		}
	}
	return true
}

// carries reports whether a Bundle holds a chart, as it was written, or a HelmOp names it.
func carries(bundle *fleetv1.Bundle, chart *plan.Chart) bool {
	return bundle != nil && bundle.Annotations[plan.ChartAnnotation] == chart.Source &&
		bundle.Annotations[plan.VersionAnnotation] == chart.Version && plan.IsHelmOp(bundle) == chart.Agent &&
		(chart.Agent || bundle.Annotations[digestAnnotation] == digestOf(bundle.Spec.Resources))
}

// input returns what the objects in a namespace are made from. There are the objects with
// values; nil for none. A Cluster whose values could not be rendered, and never were, is no
// target: Fleet stops at the first target whose values are missing.
func (v *visit) input(namespace string, there map[client.ObjectKey]client.Object) plan.Input {
	bundles := v.ofRelease(namespace)
	in := plan.Input{Proxy: v.proxy, Namespace: namespace, Shared: v.shared, Chart: v.chart, Access: v.access, Placed: targetsIn(bundles)}
	lie := placesIn(v.key, bundles)
	has := func(fleetCluster string) bool {
		its := in.OwnName(plan.Target{Fleet: fleetCluster, Place: lie.own[fleetCluster]})
		return there[client.ObjectKey{Namespace: namespace, Name: its}] != nil
	}
	for _, cluster := range v.clusters {
		if cluster.Namespace != namespace || cluster.fleet == "" || v.isFrozen(cluster) || cluster.installed || cluster.paused && in.Placed[cluster.fleet] == "" {
			continue
		}
		target := plan.Target{Fleet: cluster.fleet, Release: cluster.releaseName, Values: cluster.values, Kept: cluster.kept}
		if cluster.kept && there != nil && !has(cluster.fleet) {
			if in.Placed[cluster.fleet] == "" {
				continue
			}
			target.Kept = false // It never had values of its own.
		}
		in.Targets = append(in.Targets, target)
	}
	names := v.releaseNames()
	for key, stays := range v.stays {
		if stays && key.namespace == namespace && in.Placed[key.fleetCluster] != "" && v.frozen[key] == nil {
			in.Targets = append(in.Targets, plan.Target{Fleet: key.fleetCluster, Release: names[key], Kept: has(key.fleetCluster)})
		}
	}
	lie.into(&in)
	return in
}

// valuesIn returns the objects with values of a namespace, and those that Clusters keep and the cache does
// not show: they may have been written a moment ago.
func (r *reconciler) valuesIn(ctx context.Context, v *visit, namespace string, objects []client.Object) (map[client.ObjectKey]client.Object, error) {
	there := map[client.ObjectKey]client.Object{}
	for _, object := range objects {
		there[client.ObjectKeyFromObject(object)] = object
	}
	isKept := func(its *selected) bool { return its.kept && its.Namespace == namespace }
	if !slices.ContainsFunc(v.clusters, isKept) {
		return there, nil
	}
	lie := placesIn(v.key, v.ofRelease(namespace))
	for _, cluster := range v.clusters {
		place, isNamed := lie.own[cluster.fleet]
		if !isKept(cluster) || !isNamed {
			continue
		}
		key := client.ObjectKey{Namespace: namespace, Name: place.Of(plan.ValuesName(v.key, namespace, cluster.fleet))}
		if there[key] != nil {
			continue
		}
		values := &corev1.ConfigMap{}
		if err := r.live.Get(ctx, key, values); err == nil {
			there[key] = values
		} else if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
		}
	}
	return there, nil
}

// targetsIn returns which Bundle each Fleet Cluster is a target of.
func targetsIn(bundles []*fleetv1.Bundle) map[string]string {
	placed := map[string]string{}
	for _, its := range bundles {
		for _, target := range its.Spec.Targets {
			placed[target.ClusterName] = its.Name
		}
	}
	return placed
}
