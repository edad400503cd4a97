package charts

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
)

// uninstall deletes the Bundles of another release first: what both have must not be deleted
// with the old one when the new one is there. It reports whether Fleet still has something
// of them.
func (r *reconciler) uninstall(ctx context.Context, v *visit, namespace string) (left bool, err error) {
	var going []*fleetv1.Bundle
	named := map[client.ObjectKey]bool{}
	for i := range v.bundles {
		its := &v.bundles[i]
		switch {
		case its.Namespace != namespace:
		case v.isOfOtherRelease(its) && (!its.Spec.Paused || !its.Spec.KeepResources):
			going = append(going, its)
		default:
			v.nameValues(its, named)
		}
	}
	return r.retireAll(ctx, v, going, named)
}

// retireAll deletes Bundles, but for targets that stay: see retire. The Secrets that nothing else names
// go before them: nothing tells of these afterwards. It reports whether Fleet still has something of them.
func (r *reconciler) retireAll(ctx context.Context, v *visit, going []*fleetv1.Bundle, named map[client.ObjectKey]bool) (left bool, err error) {
	var gone []*fleetv1.Bundle
	for _, its := range going {
		stays, err := r.staysIn(ctx, its)
		if err != nil {
			return true, err
		}
		if stays {
			v.nameValues(its, named)
		} else {
			gone = append(gone, its)
		}
	}
	for _, its := range v.secretsOfAll(gone) {
		if err := r.sweepSecret(ctx, v, its, named); err != nil {
			return true, err
		}
	}
	for _, its := range going {
		kept, err := r.retire(ctx, its)
		if err != nil {
			return true, err
		}
		left = left || !kept
		v.awaitEnd(its)
	}
	return left, nil
}

// secretsOfAll returns the Secrets that go with Bundles. What another Bundle names or has named goes with
// that, or when nothing reads it any more: see sweepSecrets.
func (v *visit) secretsOfAll(going []*fleetv1.Bundle) (secrets []client.ObjectKey) {
	stays, isShared := map[string]bool{}, map[client.ObjectKey]bool{}
	for i := range v.bundles {
		its := &v.bundles[i]
		if !its.DeletionTimestamp.IsZero() || slices.Contains(going, its) {
			continue
		}
		stays[its.Namespace] = true
		for _, name := range secretsOf(v.key, its) {
			isShared[client.ObjectKey{Namespace: its.Namespace, Name: name}] = true
		}
	}
	for _, its := range going {
		names := secretsOf(v.key, its)
		if !stays[its.Namespace] && !v.isSelectedIn(its.Namespace) { // One may have been written that it was never told of.
			names = append(names, plan.SharedNames(v.key, its.Namespace)...)
		}
		for _, name := range names {
			if secret := (client.ObjectKey{Namespace: its.Namespace, Name: name}); !isShared[secret] {
				secrets = append(secrets, secret)
			}
		}
	}
	return secrets
}

// awaitEnd has the end of what Fleet has made of a HelmOp noticed: it may say too little of
// whose it was.
func (v *visit) awaitEnd(bundle *fleetv1.Bundle) {
	if bundle.Spec.HelmOpOptions != nil {
		v.again = pollInterval
	}
}

// sweep deletes what is not wanted any more. Values stay as long as Fleet has something
// that may read them.
func (r *reconciler) sweep(ctx context.Context, v *visit, namespace string, wanted, named map[client.ObjectKey]bool, values []client.Object) error {
	var going, staying []*fleetv1.Bundle
	for i := range v.bundles {
		its := &v.bundles[i]
		switch {
		case its.Namespace != namespace:
		case wanted[client.ObjectKeyFromObject(its)]:
			staying = append(staying, its)
		default:
			going = append(going, its)
		}
	}
	if _, err := r.retireAll(ctx, v, going, named); err != nil {
		return err
	}
	for _, its := range staying {
		if err := r.sweepSecrets(ctx, v, its, named); err != nil {
			return err
		}
		if v.leaving[client.ObjectKeyFromObject(its)] {
			if err := r.dissolve(ctx, its); err != nil {
				return err
			}
		}
	}
	if err := r.sweepValues(ctx, v, named, values); err != nil {
		return err
	}
	return r.sweepWritten(ctx, v, namespace, named)
}

// unnamed is for how long a ConfigMap that was just made is not deleted although nothing names it: the
// cache may be behind that of ConfigMaps, and not show the Bundle that does.
const unnamed = 10 * time.Second

// sweepValues deletes ConfigMaps with values that nothing names and nothing reads.
func (r *reconciler) sweepValues(ctx context.Context, v *visit, named map[client.ObjectKey]bool, values []client.Object) error {
	for _, object := range values {
		key := client.ObjectKeyFromObject(object)
		isLeft := v.isLeft(key)
		if named[key] && !isLeft {
			continue
		}
		if age := r.now().Sub(object.GetCreationTimestamp().Time); age < unnamed {
			v.again = sooner(v.again, unnamed-age)
			continue
		}
		if isRead, err := r.isRead(ctx, v, key); err != nil {
			return err
		} else if isRead && !isLeft {
			continue
		}
		if err := r.remove(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// isLeft reports whether a ConfigMap is left of values for all Clusters that are secret now: nothing names
// it any more, though something may name a Secret of its name.
func (v *visit) isLeft(its client.ObjectKey) bool {
	_, isShared := plan.NumberOf(its.Name, plan.SharedName(v.key, its.Namespace))
	if shared := cmp.Or(v.here.shared, v.shared); !isShared || v.here.untaken || shared == nil || !shared.Secret {
		return false
	}
	is := func(named fleetv1.DownstreamResource) bool {
		return named.Name == its.Name && named.Kind != plan.SecretKind
	}
	for i := range v.bundles {
		if v.bundles[i].Namespace == its.Namespace && slices.ContainsFunc(v.bundles[i].Spec.DownstreamResources, is) {
			return false
		}
	}
	for key, deployment := range v.deployments {
		if key.namespace == its.Namespace && slices.ContainsFunc(copiedFor(deployment), is) {
			return false
		}
	}
	return true
}

// sweepSecrets deletes the Secrets that a Bundle named, and none names any more. What a HelmOp named
// stays while Fleet has not followed.
func (r *reconciler) sweepSecrets(ctx context.Context, v *visit, its *fleetv1.Bundle, named map[client.ObjectKey]bool) error {
	key := client.ObjectKeyFromObject(its)
	var waits []string
	for _, name := range secretsOf(v.key, its) {
		its := client.ObjectKey{Namespace: its.Namespace, Name: name}
		if !named[its] {
			if isNeeded, err := r.isNeeded(ctx, v, key, its); err != nil {
				return err
			} else if isNeeded {
				waits = append(waits, name)
				continue
			}
		}
		if err := r.sweepSecret(ctx, v, its, named); err != nil {
			return err
		}
	}
	if former := v.former[key]; former != "" && former != strings.Join(waits, " ") {
		return r.patch(ctx, its, toJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{plan.FormerAnnotation: orNull(waits)}}}))
	}
	return nil
}

// isNeeded reports whether Fleet still reads a Secret that a Bundle or HelmOp named.
func (r *reconciler) isNeeded(ctx context.Context, v *visit, bundle, secret client.ObjectKey) (bool, error) {
	if !plan.IsAccessName(v.key, secret.Namespace, secret.Name) {
		if !v.here.staged {
			return false, nil
		}
		return r.isRead(ctx, v, secret) // The end of that brings the HelmChartProxy back.
	}
	if v.leaving[bundle] {
		return false, nil
	}
	made, err := r.made(ctx, bundle)
	if err != nil || made == nil || made.Spec.HelmOpOptions == nil || made.Spec.HelmOpOptions.SecretName != secret.Name {
		return false, err
	}
	v.again = sooner(v.again, pollInterval)
	return true, nil
}

func orNull(names []string) any {
	if len(names) == 0 {
		return nil
	}
	return strings.Join(names, " ")
}

// sweepSecret deletes a Secret of ours unless something names it.
func (r *reconciler) sweepSecret(ctx context.Context, v *visit, its client.ObjectKey, named map[client.ObjectKey]bool) error {
	if named[its] && !v.isConfigMap(its) {
		return nil
	}
	return r.removeSecret(ctx, v.key, its)
}

// isConfigMap reports whether a name is that of a ConfigMap now.
func (v *visit) isConfigMap(its client.ObjectKey) bool {
	_, isShared := plan.NumberOf(its.Name, plan.SharedName(v.key, its.Namespace))
	shared := cmp.Or(v.here.shared, v.shared)
	return isShared && shared != nil && !shared.Secret
}
