// Package bundle reconciles the Bundles of HelmChartProxies, one at a time, and is their only writer: it
// takes the chart and the options from the HelmChartProxy, and the targets from the HelmReleaseProxies. What
// many releases ask for at once it writes once.
package bundle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// credentialsInterval is how often credentials are written again: they may have been deleted, and no event says so.
	credentialsInterval = 10 * time.Minute
	// conflictInterval is how long to wait until the cache shows what somebody has just written.
	conflictInterval = time.Second
)

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
	// Wake makes a HelmChartProxy reconcile, whose status reports Failures.
	Wake func(proxy plan.Key)

	// credentials are those that were written, by Bundle.
	credentials sync.Map
}

// written is the digest of credentials, the UID of the Bundle that owns them, and the time of the write.
type written struct {
	digest string
	bundle types.UID
	at     time.Time
}

// Reconcile reconciles one Bundle.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	have, of, releases, err := r.find(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if of == nil {
		r.Failures.Set(req.NamespacedName, nil)
		r.credentials.Delete(req.NamespacedName)
		return ctrl.Result{}, r.removeOrphan(ctx, have)
	}
	again, err := r.reconcile(ctx, req.NamespacedName, have, of, releases)
	if store.IsBehind(err) || errors.Is(err, inputs.ErrDownloading) {
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	}
	if r.Failures.Set(req.NamespacedName, err) {
		r.Wake(client.ObjectKeyFromObject(of))
	}
	return ctrl.Result{RequeueAfter: again}, err
}

func (r *Reconciler) reconcile(ctx context.Context, key plan.Key, have *fleetv1.Bundle, of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) (time.Duration, error) {
	if proxy.IsPaused(of) && of.DeletionTimestamp.IsZero() {
		return 0, nil
	}
	if isManaged, err := r.Managed.Is(ctx, of); err != nil || !isManaged {
		return 0, err
	}
	switch {
	case have == nil:
	case !have.DeletionTimestamp.IsZero():
		return 0, nil // Its end brings it back.
	case !store.IsFor(have, client.ObjectKeyFromObject(of)):
		return 0, store.Taken(have)
	}
	in, again := &inputs.Inputs{Incomplete: true}, time.Duration(0) // To be deleted, nothing is needed.
	if of.DeletionTimestamp.IsZero() {
		of = of.DeepCopy()
		plan.Default(of) // As the webhook has done, or would have.
		var err error
		if in, again, err = r.Inputs.Get(of); err != nil {
			return inputs.PollInterval, nil //nolint:nilerr // The HelmChartProxy wakes it before that.
		}
	}
	targets, isTurnedAway, err := r.targets(ctx, of, in, key, have, releases)
	if err != nil {
		return 0, err
	}
	if isTurnedAway && !isFrozen(of, releases) && (again == 0 || again > inputs.PollInterval) {
		again = inputs.PollInterval // Not everything that makes it a target is an event of the Bundle.
	}
	switch {
	case len(targets) == 0 && len(releases) == 0:
		if have != nil {
			r.credentials.Delete(key)
			return 0, r.Remove(ctx, have)
		}
		return 0, nil
	case isRetained(of, in, releases):
		return again, r.retain(ctx, of, have, targets, releases)
	}
	return again, r.write(ctx, of, in, key, have, targets)
}

// removeOrphan deletes a Bundle whose HelmChartProxy is gone once none of its Fleet Clusters is left. Until
// then it is retained: a HelmChartProxy is deleted only after its releases, unless somebody has forced that,
// or has moved it to another management cluster.
func (r *Reconciler) removeOrphan(ctx context.Context, have *fleetv1.Bundle) error {
	if have == nil || !plan.MayBeOurs(have.Name) {
		return nil
	}
	for i := range have.Spec.Targets {
		fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: have.Namespace, Name: have.Spec.Targets[i].ClusterName})
		if err != nil || fleet != nil {
			return err
		}
	}
	return r.Remove(ctx, have)
}

// find returns a Bundle from the cache, the HelmChartProxy that it is for, and the HelmReleaseProxies that this has
// in it; nil for what is not there. Whose a Bundle is, it says itself: only Muster and the people of its
// namespace write there. A HelmReleaseProxy for it anybody may forge, in a namespace of their own.
func (r *Reconciler) find(ctx context.Context, key plan.Key) (have *fleetv1.Bundle, of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy, err error) {
	if have, err = r.Bundle(ctx, key); err != nil {
		return nil, nil, nil, err
	}
	var all addonsv1.HelmReleaseProxyList
	if err := r.List(ctx, &all, client.MatchingFields{ByBundle: key.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	for name := range candidates(have, all.Items) {
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

// candidates returns the HelmChartProxies that a Bundle may be for.
func candidates(have *fleetv1.Bundle, releases []addonsv1.HelmReleaseProxy) map[plan.Key]bool {
	all := map[plan.Key]bool{}
	if have != nil && plan.MayBeOurs(have.Name) {
		of, _ := plan.ProxyOf(have)
		all[of] = true
		return all
	}
	for i := range releases {
		if owner := metav1.GetControllerOf(&releases[i]); owner != nil && proxy.IsProxy(*owner) {
			all[plan.Key{Namespace: releases[i].Namespace, Name: owner.Name}] = true
		}
	}
	return all
}

// targets returns the targets that a Bundle is to have, in order, and whether one was turned away. One without
// a HelmReleaseProxy goes if its Cluster does not live, or is not selected any more: otherwise the
// HelmReleaseProxy, or its record, was lost, and is made again.
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
		if target != nil {
			wanted[name] = *target
		} else if leaving[name] = !release.DeletionTimestamp.IsZero(); !leaving[name] {
			isTurnedAway = true
		}
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

// isKept reports whether a target stays that no HelmReleaseProxy has, or one that leaves: its Fleet Cluster is
// released, as its Cluster is moved to another management cluster and lives on, or nothing leaves, and its Cluster
// is selected and is to have the release of that Bundle.
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
			return isTarget && (in.Incomplete || proxy.IsBundleOf(of, cluster, bundle.Name)), err
		}
	}
	return in.Selector == nil, nil // Who is selected is not known.
}

// target returns the target for a release, nil for none; last is the one that is there. A target that has not
// changed was checked when it came. One that is not to change, or whose release does not tell the truth any
// more, stays until the HelmReleaseProxy or the Fleet Cluster is deleted.
func (r *Reconciler) target(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, have *fleetv1.Bundle, release *addonsv1.HelmReleaseProxy, last fleetv1.BundleTarget, isThere bool) (*fleetv1.BundleTarget, error) {
	target, ok := plan.TargetOf(of, release)
	isDeleted, record := !release.DeletionTimestamp.IsZero(), plan.RecordOf(release)
	if target.ClusterName == "" || isDeleted && have == nil {
		return nil, nil
	}
	retained := &last
	if !isThere {
		retained = nil
	} else if !plan.IsFrozen(of, release) { // Another Fleet Cluster of that name would get it.
		if fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: target.ClusterName}); err != nil || fleet == nil {
			return nil, err
		}
	}
	if isDeleted && record.Leaving != plan.Emptied {
		deployment, err := r.Deployment(ctx, client.ObjectKeyFromObject(have), target.ClusterName)
		if err != nil || !plan.MustBeEmptied(record, have, deployment) {
			return nil, err
		}
		return retained, nil // Its record will say so.
	}
	switch {
	case isDeleted && isThere && ok:
		return &target, nil
	case !ok, isDeleted, in.Incomplete, proxy.IsOutdated(of, release), isThere && equality.Semantic.DeepEqual(last, target):
		return retained, nil
	}
	cluster := plan.Key{Namespace: release.Spec.ClusterRef.Namespace, Name: release.Spec.ClusterRef.Name}
	if isTarget, err := r.isTarget(ctx, in, cluster, target.ClusterName); err != nil || !isTarget {
		return retained, err
	}
	return &target, nil
}

// isTarget reports whether a Cluster is selected, and a Fleet Cluster is that of the Cluster: a HelmReleaseProxy may
// say what is not true.
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

// isRetained reports whether a Bundle keeps all but its targets: what the HelmChartProxy asks for now is not to be had,
// or concerns none of its releases. Without releases, all that is left may be Clusters that are moved.
func isRetained(of *addonsv1.HelmChartProxy, in *inputs.Inputs, releases []*addonsv1.HelmReleaseProxy) bool {
	isOutdated := func(its *addonsv1.HelmReleaseProxy) bool { return proxy.IsOutdated(of, its) }
	return in.Incomplete || len(releases) == 0 || isFrozen(of, releases) || slices.ContainsFunc(releases, isOutdated)
}

// isFrozen reports whether a Bundle is installed once and for all.
func isFrozen(of *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) bool {
	return slices.ContainsFunc(releases, func(its *addonsv1.HelmReleaseProxy) bool { return plan.IsFrozen(of, its) })
}

// retain writes nothing but the targets, of which only those go whose Cluster is not selected any more. A Bundle
// that is installed once and for all is paused, which agents respect.
func (r *Reconciler) retain(ctx context.Context, of *addonsv1.HelmChartProxy, have *fleetv1.Bundle, targets []fleetv1.BundleTarget, releases []*addonsv1.HelmReleaseProxy) error {
	if have == nil {
		return nil
	}
	if store.IsCut(have) { // The cache does not show what is to stay.
		live := &fleetv1.Bundle{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(have), live); err != nil {
			return client.IgnoreNotFound(err)
		}
		have = live
	}
	want := have.DeepCopy()
	want.Spec.Targets = targets
	if isFrozen(of, releases) {
		want.Spec.Targets = have.Spec.Targets
		if len(targets) == 0 {
			want.Spec.Targets = nil
		}
		want.Spec.Paused = len(targets) > 0 // Nothing is uninstalled: it keeps its resources.
	}
	return r.UpdateBundle(ctx, have, want, nil)
}

// write makes a Bundle what it is to be. It is created without targets: values have it as their owner, and
// must be there before a target names them.
func (r *Reconciler) write(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, key plan.Key, have *fleetv1.Bundle, targets []fleetv1.BundleTarget) error {
	want := plan.NewBundle(of, key.Namespace, key.Name, in.Chart, in.CredentialsDigest())
	var files []fleetv1.BundleResource
	if !in.Chart.Agent && (have == nil || !store.HoldsFiles(have, in.Chart.Digest)) {
		var err error
		files, err = r.Inputs.Files(ctx, in)
		if err != nil {
			return fmt.Errorf("downloading the chart: %w", err)
		}
	}
	if have == nil {
		want.Spec.Resources = files
		return r.CreateBundle(ctx, want)
	}
	if err := r.putCredentials(ctx, of, in, have); err != nil {
		return err
	}
	want.Spec.Targets = targets
	if err := r.UpdateBundle(ctx, have, want, files); err != nil {
		return err
	}
	last, next := credentialsOf(have), credentialsOf(want)
	if last == "" || last == next {
		return nil
	}
	r.credentials.Delete(key)
	return r.RemoveSecret(ctx, client.ObjectKeyFromObject(of), plan.Key{Namespace: key.Namespace, Name: last}, plan.CredentialsSecretType)
}

func credentialsOf(bundle *fleetv1.Bundle) string {
	if bundle.Spec.HelmOpOptions == nil {
		return ""
	}
	return bundle.Spec.HelmOpOptions.SecretName
}

// putCredentials writes the Secret with which agents reach the repository, after a start and when it changes:
// whether it is as it should be nobody sees. Its owner is the Bundle.
func (r *Reconciler) putCredentials(ctx context.Context, of *addonsv1.HelmChartProxy, in *inputs.Inputs, have *fleetv1.Bundle) error {
	if in.Credentials == nil {
		return nil
	}
	now, key := written{digest: in.CredentialsDigest(), bundle: have.UID, at: r.Inputs.Now()}, client.ObjectKeyFromObject(have)
	if its, found := r.credentials.Load(key); found {
		last := its.(written)
		if last.digest == now.digest && last.bundle == now.bundle && now.at.Sub(last.at) < credentialsInterval {
			return nil
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: plan.Meta(client.ObjectKeyFromObject(of), have.Namespace, plan.CredentialsName(of, have.Name)),
		Type:       plan.CredentialsSecretType, Data: in.Credentials,
	}
	secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Bundle", Name: have.Name, UID: have.UID}}
	if err := r.PutValues(ctx, secret); err != nil {
		return err
	}
	r.credentials.Store(key, now)
	return nil
}
