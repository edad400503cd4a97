package charts

import (
	"cmp"
	"context"
	"errors"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// holdAll leaves everything as it is, but for Clusters that are not selected any more, and the values
// that were for them; and what is moved does not go with the HelmChartProxy.
func (r *reconciler) holdAll(ctx context.Context, v *visit) error {
	var bundles []*fleetv1.Bundle
	for i := range v.bundles {
		bundles = append(bundles, &v.bundles[i])
	}
	errs := []error{r.dropDeselected(ctx, v, bundles), r.sweepHeld(ctx, v)}
	unowned, err := r.isUnowned(ctx, v, v.key.Namespace)
	if unowned {
		err = r.disown(ctx, v.key)
	}
	return errors.Join(append(errs, err)...)
}

// dropDeselected takes Clusters that are not selected any more out of Bundles that are held: for what
// they need not be known what the others are to get. A Bundle that is left without targets goes, with
// the Secrets that only such Bundles name.
func (r *reconciler) dropDeselected(ctx context.Context, v *visit, bundles []*fleetv1.Bundle) error {
	going := map[string][]*fleetv1.Bundle{}
	var errs []error
	for _, bundle := range bundles {
		left, err := r.stillSelected(ctx, v, bundle)
		if err == nil && len(left) == len(bundle.Spec.Targets) {
			continue
		}
		isBehind := false
		if err == nil {
			isBehind, err = r.isBehind(ctx, bundle)
		}
		switch {
		case err != nil:
			errs = append(errs, notTheirs(ctx, v.isWanted(bundle.Namespace), bundle.Namespace, err))
		case isBehind: // The event of what it has become brings the HelmChartProxy back.
		case len(left) == 0:
			going[bundle.Namespace] = append(going[bundle.Namespace], bundle)
		default:
			errs = append(errs, notTheirs(ctx, v.isWanted(bundle.Namespace), bundle.Namespace, r.takeOut(ctx, v, bundle)))
		}
	}
	for namespace, its := range going {
		named := map[client.ObjectKey]bool{}
		for i := range v.bundles {
			if other := &v.bundles[i]; other.Namespace == namespace && other.DeletionTimestamp.IsZero() && !slices.Contains(its, other) {
				v.nameValues(other, named)
			}
		}
		_, err := r.retireAll(ctx, v, its, named)
		errs = append(errs, notTheirs(ctx, v.isWanted(namespace), namespace, err))
	}
	return errors.Join(errs...)
}

// takeOut takes Clusters that are not selected any more out of one Bundle.
func (r *reconciler) takeOut(ctx context.Context, v *visit, bundle *fleetv1.Bundle) error {
	its, err := r.whole(ctx, bundle)
	if err != nil {
		return err
	}
	left, err := r.stillSelected(ctx, v, its)
	if err != nil {
		return err
	}
	return r.patch(ctx, its, toJSON(map[string]any{"spec": map[string]any{"targets": left}}))
}

// isBehind reports whether a Bundle has become another than the cache shows: it may have targets again that
// could not be made anew.
func (r *reconciler) isBehind(ctx context.Context, bundle *fleetv1.Bundle) (bool, error) {
	live, err := r.liveBundle(ctx, bundle)
	if err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	return live.UID != bundle.UID || live.Generation != bundle.Generation, nil
}

// stillSelected returns the targets of a Bundle whose Clusters are selected. A Fleet Cluster that somebody
// has deleted comes back, and while everything is held, its target could not be made anew.
func (r *reconciler) stillSelected(ctx context.Context, v *visit, bundle *fleetv1.Bundle) (left []fleetv1.BundleTarget, err error) {
	isIn, isToBeIn := map[string]bool{}, map[string]bool{}
	for _, cluster := range v.clusters {
		if cluster.Namespace == bundle.Namespace {
			isIn[cluster.fleet], isToBeIn[cluster.fleetName()] = true, true
		}
	}
	for _, target := range bundle.Spec.Targets {
		its := deploymentKey{bundle.Namespace, target.ClusterName}
		isLeft := v.stays[its] || isIn[its.fleetCluster]
		if !isLeft && isToBeIn[its.fleetCluster] {
			fleet, err := r.fleetCluster(ctx, client.ObjectKey{Namespace: its.namespace, Name: its.fleetCluster})
			if err != nil {
				return nil, err
			}
			isLeft = fleet == nil
		}
		if isLeft {
			left = append(left, target)
		}
	}
	return left, nil
}

// fleetName returns the name of its Fleet Cluster, or that which it is to have.
func (s *selected) fleetName() string {
	return cmp.Or(s.fleet, stamp.PinOf(s.Annotations).ClusterName)
}

// sweepHeld deletes values that no Bundle names, and that are for no Cluster that is selected: a Bundle
// that names those may not be in the cache yet.
func (r *reconciler) sweepHeld(ctx context.Context, v *visit) error {
	values, err := r.valuesOf(ctx, v.key)
	if err != nil {
		return err
	}
	var errs []error
	for _, namespace := range r.namespaces(v, values) {
		v.here = here{staged: true} // They may have been, and what agents read is then read past the cache.
		named := map[client.ObjectKey]bool{}
		for i := range v.bundles {
			if its := &v.bundles[i]; its.Namespace == namespace {
				v.nameValues(its, named)
			}
		}
		isSelected, first := v.isSelectedIn(namespace), map[string]bool{}
		first[plan.SharedName(v.key, namespace)] = isSelected
		for _, cluster := range v.clusters {
			if cluster.Namespace == namespace {
				first[plan.ValuesName(v.key, namespace, cluster.fleetName())] = true
			}
		}
		theirs := slices.DeleteFunc(in(values, namespace), func(its client.Object) bool { return first[plan.FirstOf(its.GetName())] || first[its.GetName()] })
		err := r.sweepValues(ctx, v, named, theirs)
		if !isSelected { // The Secrets are for all of them.
			err = errors.Join(err, r.sweepWritten(ctx, v, namespace, named))
		}
		errs = append(errs, notTheirs(ctx, v.isWanted(namespace), namespace, err))
	}
	return errors.Join(errs...)
}
