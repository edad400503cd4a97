package charts

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/pages"
)

// waitsForPlace says that every object that values may be put into is read somewhere.
const waitsForPlace = "too many changes of the values are on their way; the next one follows as soon as the rollout has gone on, or spec.rollout is removed"

// places are where the values in one namespace lie, as Bundles or HelmOps say.
type places struct {
	shared plan.Place
	// sharedKind is the kind of the object with the values for all Clusters; empty if there is none.
	sharedKind string
	// by is the Bundle or HelmOp that says so; nil if there is none.
	by  *fleetv1.Bundle
	own map[string]plan.Place // by Fleet Cluster
}

// placesIn returns where values lie. If several Bundles disagree, one was written last.
func placesIn(proxy plan.Key, bundles []*fleetv1.Bundle) places {
	result := places{own: map[string]plan.Place{}}
	for _, bundle := range bundles {
		if its, kind := plan.SharedPlace(proxy, bundle); kind != "" && (result.sharedKind == "" || its.Revision > result.shared.Revision) {
			result.shared, result.sharedKind, result.by = its, kind, bundle
		}
		for i := range bundle.Spec.Targets {
			if its, kind := plan.OwnPlace(proxy, bundle.Namespace, &bundle.Spec.Targets[i]); kind != "" {
				result.own[bundle.Spec.Targets[i].ClusterName] = its
			}
		}
	}
	return result
}

func (p places) into(in *plan.Input) {
	in.SharedPlace = p.shared
	for i := range in.Targets {
		in.Targets[i].Place = p.own[in.Targets[i].Fleet]
	}
}

// ofRelease returns the Bundles of the release in a namespace.
func (v *visit) ofRelease(namespace string) []*fleetv1.Bundle {
	var result []*fleetv1.Bundle
	for i := range v.bundles {
		if its := &v.bundles[i]; its.Namespace == namespace && !v.isOfOtherRelease(its) {
			result = append(result, its)
		}
	}
	return result
}

// stage puts values that have changed elsewhere: see plan.Place. What agents read stays as it is until they
// read something else.
func (r *reconciler) stage(ctx context.Context, v *visit, in *plan.Input, there map[client.ObjectKey]client.Object) error {
	if v.here.staged = in.IsStaged(); !v.here.staged {
		return nil
	}
	bundles := v.ofRelease(in.Namespace)
	s := staging{r: r, v: v, in: in, there: there, places: placesIn(v.key, bundles)}
	if changed, err := s.changed(ctx); err != nil || len(changed) == 0 {
		return err
	}
	// What was written last may not be in the cache yet.
	for i, its := range bundles {
		live, err := r.liveBundle(ctx, its)
		if err != nil {
			return err
		}
		bundles[i] = live
		if made, err := r.madeOf(ctx, its); err != nil {
			return err
		} else if made != nil {
			s.made = append(s.made, made)
		}
	}
	s.places = placesIn(v.key, bundles)
	s.places.into(in)
	changed, err := s.changed(ctx)
	if err != nil {
		return err
	}
	for _, its := range changed {
		if next, found := s.next(its); found {
			*its.place = next
		} else if plan.MaxUnavailable(&in.Proxy.Spec) != nil {
			s.wait()
		}
	}
	return nil
}

// wait has the values for all Clusters stay as they are until a place is free, and everything else be
// written. The end of that is an event of a BundleDeployment. For the values of one there is always a
// place: what is known that it reads are four objects, see Trim.
func (s *staging) wait() {
	s.in.Shared = plan.KeptShared(s.v.key, s.places.by)
	s.v.here.shared = s.in.Shared
	for _, cluster := range s.v.clusters {
		if cluster.Namespace == s.in.Namespace && cluster.outcome.Trouble == "" {
			cluster.fail(addonsv1.HelmReleaseProxySpecsUpdatingReason, waitsForPlace)
		}
	}
}

// next returns the place that follows; none if all are used.
func (s *staging) next(its place) (next plan.Place, found bool) {
	isSecret := its.fleetCluster == "" && s.in.Shared.Secret
	there := map[string]bool{} // As far as Bundles tell.
	for _, bundle := range s.v.ofRelease(s.in.Namespace) {
		for _, name := range secretsOf(s.v.key, bundle) {
			there[name] = true
		}
	}
	next, found = its.place.Next(
		func(number int) bool { return s.isUsed(its.first, its.fleetCluster, number) },
		func(number int) bool {
			key := client.ObjectKey{Namespace: s.in.Namespace, Name: plan.Place{Number: number}.Of(its.first)}
			return s.there[key] != nil || isSecret && there[key.Name]
		})
	return next, found
}

// liveBundle reads a Bundle, or the HelmOp that it stands for, past the cache.
func (r *reconciler) liveBundle(ctx context.Context, its *fleetv1.Bundle) (*fleetv1.Bundle, error) {
	var live client.Object = &fleetv1.Bundle{}
	if plan.IsHelmOp(its) {
		live = &fleetv1.HelmOp{}
	}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(its), live); err != nil {
		return nil, fmt.Errorf("reading %s: %w", describe(its), err)
	}
	if op, ok := live.(*fleetv1.HelmOp); ok {
		bundle := plan.BundleFor(op)
		return &bundle, nil
	}
	return live.(*fleetv1.Bundle), nil
}

// madeOf returns what Fleet has made of a HelmOp; nil if there is nothing.
func (r *reconciler) madeOf(ctx context.Context, its *fleetv1.Bundle) (*fleetv1.Bundle, error) {
	if !plan.IsHelmOp(its) {
		return nil, nil
	}
	return r.made(ctx, client.ObjectKeyFromObject(its))
}

// staging puts the values of one namespace elsewhere.
type staging struct {
	r     *reconciler
	v     *visit
	in    *plan.Input
	there map[client.ObjectKey]client.Object
	// places are where values lie now, and made are Bundles that may still say that they lie elsewhere.
	places places
	made   []*fleetv1.Bundle
}

// place is one that holds other values than it is to hold.
type place struct {
	place *plan.Place
	// first is the name of the first of the objects that take turns, and fleetCluster whose they are;
	// empty for all.
	first, fleetCluster string
}

// changed returns the places that are read, and hold other values than they are to hold.
func (s *staging) changed(ctx context.Context) ([]place, error) {
	var result []place
	look := func(want client.Object, isNamed bool, its place) error {
		differs, err := s.differs(ctx, want, isNamed)
		if err != nil || !differs {
			return err
		}
		if isNamed || s.isUsed(its.first, its.fleetCluster, its.place.Number) {
			result = append(result, its)
		}
		return nil
	}
	if want := s.in.SharedValues(); want != nil {
		its := place{&s.in.SharedPlace, plan.SharedName(s.v.key, s.in.Namespace), ""}
		if kind := s.places.sharedKind; kind != "" && kind != want.GetObjectKind().GroupVersionKind().Kind {
			result = append(result, its) // Under the same name, the one before would go as unread.
		} else if err := look(want, kind != "", its); err != nil {
			return nil, err
		}
	}
	for i := range s.in.Targets {
		its := &s.in.Targets[i]
		if want := s.in.ValuesOf(*its); want != nil {
			_, isNamed := s.places.own[its.Fleet]
			if err := look(want, isNamed, place{&its.Place, plan.ValuesName(s.v.key, s.in.Namespace, its.Fleet), its.Fleet}); err != nil {
				return nil, err
			}
		}
	}
	return result, nil
}

// differs reports whether an object is there that holds other values. What a Secret holds that no Bundle
// names, nothing tells.
func (s *staging) differs(ctx context.Context, want client.Object, isNamed bool) (bool, error) {
	if secret, ok := want.(*corev1.Secret); ok {
		wanted, err := s.r.digests.of(ctx, secret)
		if err != nil || !isNamed {
			return err == nil, err
		}
		known := s.places.by.Annotations[plan.ValuesDigestAnnotation]
		return known != "" && known != wanted, nil
	}
	have, err := s.valuesAt(ctx, want, isNamed)
	return have != nil && digestOfValues(have) != digestOfValues(want), err
}

// valuesAt returns the ConfigMap that is there under the name of another; nil if there is none.
func (s *staging) valuesAt(ctx context.Context, want client.Object, isNamed bool) (client.Object, error) {
	key := client.ObjectKeyFromObject(want)
	if have := s.there[key]; have != nil || !isNamed {
		return have, nil
	}
	have := &corev1.ConfigMap{} // It was written a moment ago, or somebody has deleted it.
	if err := s.r.live.Get(ctx, key, have); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return have, nil
}

// isUsed reports whether anybody reads one of the objects that take turns, or is about to.
func (s *staging) isUsed(first, fleetCluster string, number int) bool {
	is := func(name string) bool {
		its, found := plan.NumberOf(name, first)
		return found && its == number
	}
	if fleetCluster != "" {
		its := s.v.deployments[deploymentKey{s.in.Namespace, fleetCluster}]
		return its != nil && slices.ContainsFunc(readBy(its), is) || s.isMade(is)
	}
	for key, its := range s.v.deployments {
		if key.namespace == s.in.Namespace && slices.ContainsFunc(readBy(its), is) {
			return true
		}
	}
	return s.isMade(is)
}

// isMade reports whether what Fleet has made of a HelmOp names such an object.
func (s *staging) isMade(is func(name string) bool) bool {
	for _, bundle := range s.made {
		if slices.ContainsFunc(namedBy(bundle), is) {
			return true
		}
	}
	return false
}

// copiedFor returns the objects that are copied for a Cluster, now or when the rollout reaches it.
func copiedFor(its *fleetv1.BundleDeployment) []fleetv1.DownstreamResource {
	return slices.Concat(its.Spec.Options.DownstreamResources, its.Spec.StagedOptions.DownstreamResources)
}

// readBy returns their names.
func readBy(its *fleetv1.BundleDeployment) []string { return namesOf(copiedFor(its)) }

// namedBy returns the names of the objects that a Bundle names.
func namedBy(bundle *fleetv1.Bundle) []string {
	return append(namesOf(bundle.Spec.DownstreamResources), namedByTargets(bundle)...)
}

// namedByTargets returns the names of those that only one Cluster reads.
func namedByTargets(bundle *fleetv1.Bundle) (names []string) {
	for i := range bundle.Spec.Targets {
		names = append(names, namesOf(bundle.Spec.Targets[i].DownstreamResources)...)
	}
	return names
}

func namesOf(resources []fleetv1.DownstreamResource) []string {
	names := make([]string, 0, len(resources))
	for _, its := range resources {
		names = append(names, its.Name)
	}
	return names
}

// awaitReaders has no release called ready that reads other values than it should: a BundleDeployment may
// be older in the cache than its Bundle.
func (v *visit) awaitReaders(bundles []*fleetv1.Bundle) {
	wanted := map[deploymentKey][]string{}
	for _, bundle := range bundles {
		for i := range bundle.Spec.Targets {
			its := &bundle.Spec.Targets[i]
			wanted[deploymentKey{bundle.Namespace, its.ClusterName}] = append(namesOf(bundle.Spec.DownstreamResources), namesOf(its.DownstreamResources)...)
		}
	}
	for _, cluster := range v.clusters {
		key := deploymentKey{cluster.Namespace, cluster.fleet}
		deployment := v.deployments[key]
		if deployment == nil || !cluster.outcome.Release.Ready {
			continue
		}
		reads := namesOf(deployment.Spec.Options.DownstreamResources)
		isUnread := func(name string) bool { return !slices.Contains(reads, name) }
		if len(reads) > 0 && slices.ContainsFunc(wanted[key], isUnread) {
			cluster.outcome.Release = cluster.outcome.Release.Behind()
		}
	}
}

// isRead reports whether Fleet reads an object with values, or may. What is staged is made once: before
// it goes, the BundleDeployments are read past the cache, which may be behind that of Bundles.
func (r *reconciler) isRead(ctx context.Context, v *visit, values client.ObjectKey) (bool, error) {
	if v.isRead(values) || !v.here.staged || v.here.asked {
		return v.isRead(values), nil
	}
	err := r.askDeployments(ctx, v, values.Namespace)
	return err != nil || v.isRead(values), err
}

// askDeployments reads the BundleDeployments of one namespace past the cache. Anyone can label others like
// them, in any number and size, so it reads whole only those that belong to a Bundle and have changed
// since the cache saw them.
func (r *reconciler) askDeployments(ctx context.Context, v *visit, namespace string) error {
	const atOnce = 50
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("BundleDeploymentList"))
	var changed []client.ObjectKey
	_, err := pages.Each(ctx, r.live, all, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			its := &page.Items[i]
			key, found := v.isDeploymentOf(its)
			if have := v.deployments[key]; found && (have == nil || have.UID != its.UID || have.ResourceVersion != its.ResourceVersion) {
				changed = append(changed, client.ObjectKeyFromObject(its))
			}
		}
	}, client.MatchingLabels(plan.Labels(v.key)), client.MatchingLabels{fleetv1.BundleNamespaceLabel: namespace}, client.Limit(atOnce))
	if err != nil {
		return fmt.Errorf("listing BundleDeployments: %w", err)
	}
	for _, key := range changed {
		its := &fleetv1.BundleDeployment{}
		if err := r.live.Get(ctx, key, its); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading BundleDeployment %s: %w", key, err)
		}
		_, _ = Trim(its) // It always can.
		v.noteDeployment(its)
	}
	v.here.asked = true
	return nil
}

// isRead reports whether Fleet reads an object with values, or may, as far as is known.
func (v *visit) isRead(values client.ObjectKey) bool {
	if v.here.staged && v.here.untaken {
		return true // What Fleet does not know yet, it may still read as it was.
	}
	for key, its := range v.deployments {
		if key.namespace != values.Namespace {
			continue
		}
		names := readBy(its)
		if slices.Contains(names, values.Name) || len(names) == 0 && strings.HasSuffix(values.Name, plan.ValuesSuffix(key.fleetCluster)) {
			return true
		}
	}
	return false
}
