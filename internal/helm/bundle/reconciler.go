// Package bundle reconciles the Bundles of HelmChartProxies, and is their only writer. A Bundle gets its chart
// and options from the HelmChartProxy, and its targets from the HelmReleaseProxies. The controller reconciles
// one Bundle at a time, so that many releases can change it in one write.
package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
)

const (
	// ByBundle is the index of HelmReleaseProxies by their Bundle.
	ByBundle = "bundle"
	// unseenInterval is the delay before the next reconcile while releases take new inputs over.
	unseenInterval = 250 * time.Millisecond
)

// errUnseen says that releases still have values from earlier inputs.
var errUnseen = errors.New("releases have not taken the change over yet")

// Index returns the value of ByBundle.
func Index(object client.Object) []string {
	if key := proxy.BundleKey(object.(*addonsv1.HelmReleaseProxy)); key.Name != "" {
		return []string{key.String()}
	}
	return nil
}

// Reconciler reconciles Bundles.
type Reconciler struct {
	*store.Store
	Inputs   *inputs.Reader
	Managed  *proxy.Managed
	Failures *proxy.Failures
	// Wake enqueues a HelmChartProxy, whose status reports Failures.
	Wake func(proxy plan.Key)
}

// Reconcile reconciles one Bundle.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	have, of, releases, err := r.find(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if of == nil {
		r.Failures.Set(req.NamespacedName, nil)
		return ctrl.Result{}, r.removeOrphan(ctx, have)
	}
	again, err := r.reconcile(ctx, req.NamespacedName, have, of, releases)
	if errors.Is(err, errUnseen) {
		return ctrl.Result{RequeueAfter: unseenInterval}, nil
	}
	if store.IsBehind(err) || errors.Is(err, inputs.ErrDownloading) {
		return ctrl.Result{RequeueAfter: store.BehindInterval}, nil
	}
	if r.Failures.Set(req.NamespacedName, err) {
		r.Wake(client.ObjectKeyFromObject(of))
	}
	return ctrl.Result{RequeueAfter: again}, err
}

func (r *Reconciler) reconcile(ctx context.Context, key plan.Key, have *fleetv1.Bundle, of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) (time.Duration, error) {
	if writes, err := r.Managed.Writes(ctx, of); err != nil || !writes {
		return 0, err
	}
	switch {
	case have == nil:
	case !have.DeletionTimestamp.IsZero():
		return 0, nil // The deletion triggers the next reconcile.
	case !store.IsFor(have, client.ObjectKeyFromObject(of)):
		return 0, &store.TakenError{Object: have}
	case metav1.HasAnnotation(have.ObjectMeta, plan.DeletedAnnotation) && of.DeletionTimestamp.IsZero(): // A new HelmChartProxy.
		return 0, r.UpdateBundle(ctx, have, func(its *fleetv1.Bundle) { delete(its.Annotations, plan.DeletedAnnotation) })
	}
	in, again := &inputs.Inputs{Incomplete: true}, time.Duration(0) // Deleting a Bundle needs no inputs.
	if of.DeletionTimestamp.IsZero() {
		of = of.DeepCopy()
		plan.Default(of) // The webhook does the same, if it runs.
		var err error
		if in, again, err = r.Inputs.Get(of); err != nil {
			return inputs.PollInterval, nil //nolint:nilerr // The HelmChartProxy enqueues the Bundle earlier.
		}
	}
	targets, isTurnedAway, err := r.targets(ctx, of, in, key, have, releases)
	if err != nil {
		return 0, err
	}
	if isTurnedAway && !isFrozen(of, releases) && (again == 0 || again > inputs.PollInterval) {
		again = inputs.PollInterval // Some changes that make it a target enqueue no Bundle.
	}
	switch {
	case len(targets) == 0 && len(releases) == 0:
		if have != nil {
			return 0, r.Remove(ctx, have)
		}
		return 0, nil
	case isRetained(of, in, releases):
		return again, r.retain(ctx, of, have, targets, releases)
	}
	return again, r.write(ctx, of, in, key, have, targets, releases)
}

// removeOrphan removes the targets of a Bundle without a HelmChartProxy whose Fleet Clusters are gone, and then the
// Bundle. The others stay: a HelmChartProxy disappears before its releases only if a user forces the deletion, or moves
// it to another management cluster. If it was deleted while Clusters were on the move, the targets of those that come
// back go, too.
func (r *Reconciler) removeOrphan(ctx context.Context, have *fleetv1.Bundle) error {
	if have == nil || !plan.MayBeOurs(have.Name) || !have.DeletionTimestamp.IsZero() {
		return nil
	}
	wasDeleted := metav1.HasAnnotation(have.ObjectMeta, plan.DeletedAnnotation)
	var left, gone []fleetv1.BundleTarget
	for _, target := range have.Spec.Targets {
		fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: have.Namespace, Name: target.ClusterName})
		if err != nil {
			return err
		}
		if fleet != nil && (!wasDeleted || store.IsReleased(fleet)) {
			left = append(left, target)
		} else {
			gone = append(gone, target)
		}
	}
	if len(left) == 0 {
		return r.Remove(ctx, have)
	}
	errs := []error{r.retain(ctx, nil, have, left, nil)}
	of, _ := plan.ProxyOf(have)
	for _, target := range gone {
		isSecret := slices.ContainsFunc(target.DownstreamResources, func(its fleetv1.DownstreamResource) bool { return its.Kind == plan.SecretKind })
		errs = append(errs, r.RemoveAllValues(ctx, of, have.Namespace, target.ClusterName, isSecret))
	}
	return errors.Join(errs...)
}

// find returns a Bundle from the cache, its HelmChartProxy, and the HelmReleaseProxies of that HelmChartProxy
// in the Bundle; nil for each object that does not exist. find trusts the annotation of an existing Bundle:
// only Muster and users with access to its namespace write there. A HelmReleaseProxy for the Bundle may be
// forged, by users with access to another namespace.
func (r *Reconciler) find(ctx context.Context, key plan.Key) (have *fleetv1.Bundle, of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy, err error) {
	if have, err = r.Bundle(ctx, key); err != nil {
		return nil, nil, nil, err
	}
	var all addonsv1.HelmReleaseProxyList
	if err := r.List(ctx, &all, client.MatchingFields{ByBundle: key.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	for name := range owners(have, all.Items) {
		its := &addonsv1.HelmChartProxy{}
		if err := r.Get(ctx, name, its, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) || name.Name == "" {
			continue
		} else if err != nil {
			return nil, nil, nil, err
		}
		releases = nil
		for i := range all.Items {
			if proxy.Concerns(its, &all.Items[i]) && (have != nil || !proxy.IsOutdated(its, &all.Items[i])) {
				releases = append(releases, &all.Items[i])
			}
		}
		if have != nil || len(releases) > 0 { // No two HelmChartProxies have Bundles of the same name.
			return have, its, releases, nil
		}
	}
	return have, nil, nil, nil
}

// owners returns the HelmChartProxies that a Bundle may be for.
func owners(have *fleetv1.Bundle, releases []addonsv1.HelmReleaseProxy) map[plan.Key]bool {
	if have != nil && plan.MayBeOurs(have.Name) {
		its, _ := plan.ProxyOf(have)
		return map[plan.Key]bool{its: true}
	}
	all := map[plan.Key]bool{}
	for i := range releases {
		for _, name := range proxy.Index(&releases[i]) {
			all[plan.Key{Namespace: releases[i].Namespace, Name: name}] = true
		}
	}
	return all
}

// targets returns the wanted targets of a Bundle, sorted, and whether it turned a release away. A target
// without a HelmReleaseProxy goes if its Cluster no longer exists or is no longer selected. Otherwise, the
// HelmReleaseProxy or its record was lost, and Muster recreates it: the target stays.
func (r *Reconciler) targets(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, key plan.Key, have *fleetv1.Bundle, releases []*addonsv1.HelmReleaseProxy) (targets []fleetv1.BundleTarget, isTurnedAway bool, err error) {
	there, wanted, leaving := map[string]fleetv1.BundleTarget{}, map[string]fleetv1.BundleTarget{}, map[string]bool{}
	if have != nil {
		for _, target := range have.Spec.Targets {
			there[target.ClusterName] = target
		}
	}
	for _, release := range releases {
		name := plan.RecordOf(release).FleetCluster
		last, isThere := there[name]
		target, err := r.target(ctx, of, in, have, release, last, isThere)
		if err != nil {
			return nil, false, err
		}
		isDeleted := !release.DeletionTimestamp.IsZero()
		if target != nil {
			wanted[name] = *target
		}
		leaving[name] = isDeleted && target == nil
		isTurnedAway = isTurnedAway || isDeleted == (target != nil) // No event tells when it may come, or go.
	}
	for name, target := range there {
		if _, found := wanted[name]; found {
			continue
		}
		isKept, err := r.isKept(ctx, of, in, key, name, leaving[name])
		if err != nil {
			return nil, false, err
		}
		if isKept {
			wanted[name] = target
		}
	}
	targets = slices.Collect(maps.Values(wanted))
	plan.SortTargets(targets)
	return targets, isTurnedAway, nil
}

// isKept reports whether a target stays that has no HelmReleaseProxy, or whose HelmReleaseProxy is leaving. It stays
// if its Fleet Cluster is released, because the Cluster moves to another management cluster and lives on. Otherwise it
// stays if nothing is leaving, its Cluster is selected, and its release belongs in this Bundle.
func (r *Reconciler) isKept(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, bundle plan.Key, fleetCluster string, isLeaving bool) (bool, error) {
	fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: bundle.Namespace, Name: fleetCluster})
	if err != nil || fleet == nil {
		return false, err
	}
	if store.IsReleased(fleet) {
		return true, nil
	}
	if isLeaving || !of.DeletionTimestamp.IsZero() {
		return false, nil
	}
	for _, name := range store.ClustersOf(fleet) {
		cluster := plan.Key{Namespace: bundle.Namespace, Name: name}
		isTarget, err := r.isTarget(ctx, in, cluster, fleetCluster)
		if err != nil || isTarget {
			return isTarget && (in.Incomplete || plan.IsBundleOf(of, cluster, bundle.Name)), err
		}
	}
	return in.Selector == nil, nil // Without a Selector, the selection is unknown.
}

// target returns the target for a release, nil for none; last is its current target. An unchanged target was
// checked when it was added. If the target must not change, or the HelmReleaseProxy no longer tells the truth,
// the current target stays until the HelmReleaseProxy or the Fleet Cluster is deleted.
func (r *Reconciler) target(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, have *fleetv1.Bundle, release *addonsv1.HelmReleaseProxy, last fleetv1.BundleTarget, isThere bool) (*fleetv1.BundleTarget, error) {
	target, ok := plan.TargetOf(of, release)
	isDeleted, record := !release.DeletionTimestamp.IsZero(), plan.RecordOf(release)
	if target.ClusterName == "" || isDeleted && have == nil {
		return nil, nil
	}
	retained := &last
	if !isThere {
		retained = nil
	} else if !plan.IsFrozen(of, release) { // A new Fleet Cluster of that name would get the release.
		if fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: target.ClusterName}); err != nil || fleet == nil {
			return nil, err
		}
	}
	if record.Digest != "" && have != nil && record.Bundle != have.UID && !isDeleted {
		return retained, nil // Its values go with an earlier Bundle; the release writes them again.
	}
	if isDeleted && record.Leaving != plan.Emptied {
		deployment, err := r.Deployment(ctx, client.ObjectKeyFromObject(have), target.ClusterName)
		if err != nil || !plan.MustBeEmptied(record, have, deployment) {
			return nil, err
		}
		return retained, nil // The release controller records it first.
	}
	switch {
	case isDeleted && isThere && ok:
		return &target, nil
	case !ok, isDeleted, in.Incomplete, proxy.IsOutdated(of, release), isThere && equality.Semantic.DeepEqual(last, target):
		return retained, nil
	}
	if isTarget, err := r.isTarget(ctx, in, plan.ClusterOf(release), target.ClusterName); err != nil || !isTarget {
		return retained, err
	}
	return &target, nil
}

// isTarget reports whether a Cluster is selected and a Fleet Cluster belongs to it. The HelmReleaseProxy alone
// is no proof: it may be forged.
func (r *Reconciler) isTarget(ctx context.Context, in *inputs.Inputs, key plan.Key, fleetCluster string) (bool, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if in.Selector == nil || !in.Selector.Matches(cluster, proxy.NamespaceLabels(ctx, r.Client)) {
		return false, nil
	}
	return r.IsOwnFleetCluster(ctx, cluster, fleetCluster)
}

// isRetained reports whether a Bundle keeps everything but its targets: the inputs of the HelmChartProxy are
// incomplete, or do not apply to its releases. Without releases, the only Clusters left may be on the move.
func isRetained(of *addonsv1.HelmChartProxy, in *inputs.Inputs, releases []*addonsv1.HelmReleaseProxy) bool {
	isOutdated := func(its *addonsv1.HelmReleaseProxy) bool { return proxy.IsOutdated(of, its) }
	return in.Incomplete || len(releases) == 0 || isFrozen(of, releases) || slices.ContainsFunc(releases, isOutdated)
}

// isFrozen reports whether a Bundle holds an InstallOnce release that is already installed.
func isFrozen(of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) bool {
	return slices.ContainsFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool { return plan.IsFrozen(of, its) })
}

// retain updates only the targets, and removes only targets whose Clusters are no longer selected. It pauses a
// frozen Bundle, which agents respect.
func (r *Reconciler) retain(ctx context.Context, of *addonsv1.HelmChartProxy, have *fleetv1.Bundle, targets []fleetv1.BundleTarget, releases []*addonsv1.HelmReleaseProxy) error {
	if have == nil {
		return nil
	}
	return r.UpdateBundle(ctx, have, func(its *fleetv1.Bundle) {
		if !isFrozen(of, releases) {
			its.Spec.Targets = targets
			return
		}
		its.Spec.Paused = len(targets) > 0
		if len(targets) == 0 { // This uninstalls nothing, because of keepResources.
			its.Spec.Targets = nil
		}
	})
}

// write creates or updates a Bundle. It creates the Bundle without targets: the Bundle owns the values, which
// must exist before a target names them.
func (r *Reconciler) write(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, key plan.Key, have *fleetv1.Bundle, targets []fleetv1.BundleTarget, releases []*addonsv1.HelmReleaseProxy) error {
	want := plan.NewBundle(of, key.Namespace, key.Name, in.Chart, in.CredentialsDigest())
	if have != nil && have.Labels[plan.ContentLabel] != want.Labels[plan.ContentLabel] && r.hasUnseen(in, releases) {
		left := slices.DeleteFunc(slices.Clone(have.Spec.Targets), func(its fleetv1.BundleTarget) bool {
			return !slices.ContainsFunc(targets, func(target fleetv1.BundleTarget) bool { return target.ClusterName == its.ClusterName })
		})
		return cmp.Or(r.retain(ctx, of, have, left, releases), errUnseen)
	}
	var files []fleetv1.BundleResource
	if !in.Chart.Agent && (have == nil || store.FilesDigest(have) != in.Chart.Digest) {
		var err error
		files, err = r.Inputs.Files(ctx, in)
		if err != nil {
			return fmt.Errorf("downloading the chart: %w", err)
		}
	}
	if have == nil {
		want.Spec.Resources = files
		return r.CreateFor(ctx, want)
	}
	if err := r.putCredentials(ctx, of, in, have); err != nil {
		return err
	}
	// Afterwards, nobody would know the name of the last Secret. Agents have copies of it.
	if last := credentialsOf(have); last != "" && last != credentialsOf(want) {
		if err := r.RemoveSecret(ctx, client.ObjectKeyFromObject(of), plan.Key{Namespace: key.Namespace, Name: last}, plan.CredentialsSecretType); err != nil {
			return err
		}
	}
	return r.UpdateBundle(ctx, have, func(its *fleetv1.Bundle) {
		maps.Copy(its.Labels, want.Labels)
		maps.Copy(its.Annotations, want.Annotations)
		if files == nil && !in.Chart.Agent {
			files = its.Spec.Resources
		}
		its.Spec = want.Spec
		its.Spec.Targets, its.Spec.Resources = targets, files
	})
}

// hasUnseen reports whether a release of the Bundle still has values from earlier inputs. A new chart with those would
// be deployed first, and then again with the new ones.
func (r *Reconciler) hasUnseen(in *inputs.Inputs, releases []*addonsv1.HelmReleaseProxy) bool {
	return slices.ContainsFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool {
		return its.DeletionTimestamp.IsZero() && !r.Inputs.HasSeen(client.ObjectKeyFromObject(its), in)
	})
}

func credentialsOf(bundle *fleetv1.Bundle) string {
	if bundle.Spec.HelmOpOptions == nil {
		return ""
	}
	return bundle.Spec.HelmOpOptions.SecretName
}

// putCredentials writes the Secret with which agents reach the repository. The Bundle owns it.
func (r *Reconciler) putCredentials(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, have *fleetv1.Bundle) error {
	if in.Credentials == nil {
		return nil
	}
	secret := &corev1.Secret{
		ObjectMeta: plan.Meta(client.ObjectKeyFromObject(of), have.Namespace, plan.CredentialsName(of, have.Name)),
		Type:       plan.CredentialsSecretType, Data: in.Credentials,
	}
	secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Bundle", Name: have.Name, UID: have.UID}}
	return r.PutValues(ctx, secret)
}
