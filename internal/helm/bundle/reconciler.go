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
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// ByBundle is the index of HelmReleaseProxies by their Bundle.
const ByBundle = "bundle"

// errUnseen says that releases still have values from earlier inputs.
var errUnseen = errors.New("some releases have not processed the change yet")

// mostGone is how many targets of Fleet Clusters that are gone one reconcile removes from a Bundle without a HelmChartProxy.
// Each costs requests, because it may have values, and others can forge hundreds of them at a time.
const mostGone = 10

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
	Policies *policies.Reader
	Managed  *proxy.Managed
	// Failures maps the key of each Bundle to the error of its last write, as text; empty for none.
	Failures *sync.Map
	// Wake enqueues a HelmChartProxy, whose status reports Failures.
	Wake func(proxy plan.Key)

	// Busy has those wait for each other who may take a release on the same Fleet Cluster.
	Busy   kube.Locks
	taking taking
}

// scope is the state of one reconcile: a Bundle, nil before it exists, its HelmChartProxy, nil if there is none any more,
// with its inputs, and the HelmReleaseProxies in the Bundle.
type scope struct {
	key      plan.Key
	have     *fleetv1.Bundle
	of       *addonsv1.HelmChartProxy
	in       *inputs.Inputs
	releases []*addonsv1.HelmReleaseProxy
	// asking is the largest number of HelmChartProxies that ask for one of its releases.
	asking int
}

// Reconcile reconciles one Bundle.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if left := r.UntilBundle(req.NamespacedName); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	s, err := r.find(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if s.of == nil {
		r.Failures.Delete(req.NamespacedName)
		r.ForgetLook(waitOf(req.NamespacedName))
		r.settle(s.key, nil)
		return ctrl.Result{}, r.removeOrphan(ctx, s)
	}
	again, err := r.reconcile(ctx, s)
	if isUnwritten(err) {
		r.settle(s.key, nil)
	}
	if wait := r.wait(req.NamespacedName, err); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if last, _ := r.Failures.Swap(req.NamespacedName, failure); last != failure {
		r.Wake(client.ObjectKeyFromObject(s.of))
	}
	return ctrl.Result{RequeueAfter: again}, err
}

// isUnwritten reports whether a Bundle was not written, and will not be until an object changes. What it would
// take is free for others until then.
func isUnwritten(err error) bool {
	var taken *store.TakenError
	var cut *store.CutError
	return kube.IsRefused(err) || kube.IsTooLarge(err) || errors.As(err, &taken) || errors.As(err, &cut)
}

// wait returns the delay after an error that says only that something else comes first; zero after any other result.
func (r *Reconciler) wait(key plan.Key, err error) time.Duration {
	switch {
	case errors.Is(err, errUnseen):
		return r.UntilLook(waitOf(key))
	case errors.Is(err, inputs.ErrReading): // The HelmChartProxy enqueues the Bundle earlier.
		r.ForgetLook(waitOf(key))
		return inputs.PollInterval
	case store.IsBehind(err), errors.Is(err, inputs.ErrDownloading), errors.Is(err, policies.ErrListing):
		return store.BehindInterval
	default:
		r.ForgetLook(waitOf(key))
		return 0
	}
}

func waitOf(key plan.Key) string { return "Bundle " + key.String() }

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (again time.Duration, err error) {
	if writes, err := r.Managed.Writes(ctx, s.of); err != nil || !writes {
		return 0, errors.Join(err, r.settleUnwritten(ctx, s.key))
	}
	switch {
	case s.have == nil:
	case !s.have.DeletionTimestamp.IsZero():
		return 0, nil // The deletion triggers the next reconcile.
	case !store.IsFor(s.have, client.ObjectKeyFromObject(s.of)):
		return 0, &store.TakenError{Object: s.have}
	case store.IsCut(s.have):
		return 0, &store.CutError{Object: s.have}
	case metav1.HasAnnotation(s.have.ObjectMeta, plan.DeletedAnnotation) && s.of.DeletionTimestamp.IsZero(): // The HelmChartProxy was created again.
		return 0, r.UpdateBundle(ctx, s.have, func(its *fleetv1.Bundle) { delete(its.Annotations, plan.DeletedAnnotation) })
	}
	if s.of.DeletionTimestamp.IsZero() {
		plan.Default(s.of)
		if s.in, again, err = r.Inputs.Get(s.of); err != nil {
			return 0, cmp.Or(r.settleUnwritten(ctx, s.key), err)
		}
	}
	return r.carryOut(ctx, s, again)
}

// carryOut writes or removes a Bundle whose inputs are known.
func (r *Reconciler) carryOut(ctx context.Context, s *scope, again time.Duration) (_ time.Duration, err error) {
	if s.in, err = r.Policies.Limit(ctx, s.of, s.in, s.key.Namespace); err != nil {
		return 0, err
	}
	targets, isTurnedAway, err := r.targets(ctx, s)
	if err != nil {
		return 0, err
	}
	if isTurnedAway && !s.isInstalledOnce() { // Some changes that make a Cluster a target enqueue no Bundle.
		again = kube.Sooner(again, proxy.UntilFree(s.asking))
	}
	goes := len(targets) == 0 && len(s.releases) == 0
	if len(targets) == 0 && s.have != nil && s.isLeft() {
		// Fleet looks at no target that goes while a Policy refuses the Bundle, but uninstalls all that is in a deleted one.
		refusal, err := r.Policies.Refusal(ctx, s.have.Spec.ServiceAccount, s.key.Namespace)
		if err != nil {
			return 0, err
		}
		goes = goes || refusal != nil
	}
	switch {
	case !goes:
		err := r.put(ctx, s, targets)
		if err == nil {
			again, err = r.askAgain(ctx, s, again)
		}
		return again, err
	case s.have != nil:
		return 0, r.Remove(ctx, s.have)
	}
	return 0, nil
}

// askAgain makes Fleet look at a Bundle that it has refused and that no Policy refuses any more. Fleet does not watch Policies,
// does not try again, and may see that a Policy is gone later than this program.
func (r *Reconciler) askAgain(ctx context.Context, s *scope, again time.Duration) (_ time.Duration, err error) {
	id := "refused " + waitOf(s.key)
	if s.have == nil || !store.IsRefused(s.have) || s.in.Trouble.Reason == addonsv1.PolicyRefusesReason {
		r.ForgetLook(id)
		return again, nil
	}
	if r.MayLook(id) {
		err = r.UpdateBundle(ctx, s.have, func(its *fleetv1.Bundle) {
			capiannotations.AddAnnotations(its, map[string]string{desired.RetargetAnnotation: s.have.ResourceVersion})
		})
	}
	return kube.Sooner(again, r.UntilLook(id)), err
}

// isLeft reports whether all releases of a Bundle are being uninstalled.
func (s *scope) isLeft() bool {
	return !slices.ContainsFunc(s.releases, func(its *addonsv1.HelmReleaseProxy) bool { return its.DeletionTimestamp.IsZero() })
}

// removeOrphan removes the targets of a Bundle without a HelmChartProxy whose Fleet Clusters are gone, and then
// the Bundle. The others stay: a HelmChartProxy disappears before its releases only if a user forces the deletion,
// or moves it to another management cluster. If it was deleted while Clusters were being moved, the targets of
// Clusters that come back are removed, too.
func (r *Reconciler) removeOrphan(ctx context.Context, s *scope) error {
	have := s.have
	if have == nil || !have.DeletionTimestamp.IsZero() {
		return nil
	}
	if store.IsCut(have) {
		ctrl.LoggerFrom(ctx).Info((&store.CutError{Object: have}).Error())
		return nil
	}
	wasDeleted := metav1.HasAnnotation(have.ObjectMeta, plan.DeletedAnnotation)
	var left, gone []fleetv1.BundleTarget
	isKnown := map[string]bool{}
	for _, target := range have.Spec.Targets {
		if isKnown[target.ClusterName] || !stamp.IsFleetName(target.ClusterName) { // Others have added it.
			continue
		}
		isKnown[target.ClusterName] = true
		key := plan.Key{Namespace: have.Namespace, Name: target.ClusterName}
		fleet, err := r.FleetCluster(ctx, key)
		isKept := fleet != nil
		if err == nil && isKept && wasDeleted {
			_, isKept, err = r.LiveFleetCluster(ctx, key)
		}
		if err != nil {
			return err
		}
		if isKept {
			left = append(left, target)
		} else {
			gone = append(gone, target)
		}
	}
	if len(left) == 0 {
		return r.Remove(ctx, have)
	}
	of, _ := plan.ProxyOf(have)
	now := min(mostGone, len(gone))
	left = append(left, gone[now:]...)
	plan.SortTargets(left)
	for _, target := range gone[:now] { // Only the target says that there are values, so it goes after them.
		isSecret := slices.ContainsFunc(target.DownstreamResources, func(its fleetv1.DownstreamResource) bool { return its.Kind == plan.SecretKind })
		if err := r.RemoveAllValues(ctx, of, have.Namespace, target.ClusterName, isSecret); err != nil {
			return err
		}
	}
	return r.retain(ctx, s, left)
}

// find returns a Bundle from the cache, its HelmChartProxy, and the HelmReleaseProxies of that HelmChartProxy
// in the Bundle. find trusts the annotation of an existing Bundle: only Muster and users with access to its namespace
// write there. A HelmReleaseProxy for the Bundle may be forged, by users with access to another namespace.
func (r *Reconciler) find(ctx context.Context, key plan.Key) (s *scope, err error) {
	s = &scope{key: key, in: &inputs.Inputs{Incomplete: true}} // Deleting a Bundle needs no inputs.
	if !plan.MayBeOurs(key.Name) {
		return s, nil
	}
	if s.have, err = r.Bundle(ctx, key); err != nil {
		return nil, err
	}
	var all addonsv1.HelmReleaseProxyList
	if err := r.List(ctx, &all, client.MatchingFields{ByBundle: key.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing HelmReleaseProxies: %w", err)
	}
	for _, name := range owners(s.have, all.Items) {
		of, err := r.ChartProxy(ctx, name)
		if err != nil {
			return nil, err
		}
		if of == nil {
			continue
		}
		var releases []*addonsv1.HelmReleaseProxy
		for i := range all.Items {
			if proxy.Concerns(of, &all.Items[i]) && (s.have != nil || !proxy.IsOutdated(of, &all.Items[i])) {
				releases = append(releases, &all.Items[i])
			}
		}
		if s.have != nil || len(releases) > 0 { // No two HelmChartProxies have Bundles of the same name.
			s.of, s.releases = of, releases
			break
		}
	}
	return s, nil
}

// owners returns the HelmChartProxies that a Bundle may be for.
func owners(have *fleetv1.Bundle, releases []addonsv1.HelmReleaseProxy) (all []plan.Key) {
	if have != nil {
		its, _ := plan.ProxyOf(have)
		return []plan.Key{its}
	}
	for i := range releases {
		for _, name := range proxy.Index(&releases[i]) {
			all = append(all, plan.Key{Namespace: releases[i].Namespace, Name: name})
		}
	}
	return slices.Compact(all)
}

// isRetained reports whether a Bundle keeps everything but its targets: the inputs of the HelmChartProxy are
// incomplete, or do not apply to its releases. Without releases, the only Clusters left may be on the move.
func (s *scope) isRetained() bool {
	isOutdated := func(its *addonsv1.HelmReleaseProxy) bool { return proxy.IsOutdated(s.of, its) }
	return s.in.Incomplete || len(s.releases) == 0 || s.isInstalledOnce() || slices.ContainsFunc(s.releases, isOutdated)
}

// isInstalledOnce reports whether a Bundle holds an InstallOnce release that is already installed.
func (s *scope) isInstalledOnce() bool {
	return slices.ContainsFunc(s.releases, func(its *addonsv1.HelmReleaseProxy) bool { return plan.IsInstalledOnce(s.of, its) })
}

// retain updates only the targets, and removes only targets whose Clusters are no longer selected. It pauses a
// Bundle whose InstallOnce release is installed, which agents respect.
func (r *Reconciler) retain(ctx context.Context, s *scope, targets []fleetv1.BundleTarget) error {
	if s.have == nil {
		return nil
	}
	return r.UpdateBundle(ctx, s.have, func(its *fleetv1.Bundle) {
		if !s.isInstalledOnce() {
			its.Spec.Targets = targets
			if s.of != nil { // Otherwise it would be unknown what waits.
				its.Spec.RolloutStrategy = s.strategy(targets, its.Labels[plan.ContentLabel])
			}
			return
		}
		its.Spec.Paused = len(targets) > 0
		if len(targets) == 0 { // This uninstalls nothing, because of keepResources.
			its.Spec.Targets = nil
		}
	})
}

// put creates or updates a Bundle. If that is not possible, put at least removes the targets that go: their
// HelmReleaseProxies wait for it.
func (r *Reconciler) put(ctx context.Context, s *scope, targets []fleetv1.BundleTarget) error {
	if s.isRetained() {
		return r.retain(ctx, s, targets)
	}
	err := r.write(ctx, s, targets)
	if err == nil || s.have == nil || store.IsBehind(err) {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(s.have.Spec.Targets), func(its fleetv1.BundleTarget) bool {
		return !slices.ContainsFunc(targets, func(target fleetv1.BundleTarget) bool { return target.ClusterName == its.ClusterName })
	})
	return cmp.Or(r.UpdateBundle(ctx, s.have, func(its *fleetv1.Bundle) { its.Spec.Targets = left }), err)
}

// write creates or updates a Bundle. It creates the Bundle without targets: the Bundle owns the values, which must exist
// before a target names them.
func (r *Reconciler) write(ctx context.Context, s *scope, targets []fleetv1.BundleTarget) error {
	want := plan.NewBundle(s.of, s.key.Namespace, s.key.Name, s.in.Chart, s.in.CredentialsDigest)
	content := want.Labels[plan.ContentLabel]
	switch isNew := s.have != nil && s.have.Labels[plan.ContentLabel] != content; {
	case isNew && s.isHeld(content):
		return r.retain(ctx, s, targets)
	case isNew && r.hasUnseen(s):
		return errUnseen
	}
	files, err := r.newFiles(ctx, s)
	if err != nil {
		return err
	}
	if s.have == nil {
		want.Spec.Resources = files
		return r.CreateFor(ctx, want)
	}
	if err := r.putCredentials(ctx, s); err != nil {
		return err
	}
	strategy := s.strategy(targets, content)
	if err := r.keepContents(ctx, s, strategy); err != nil {
		return err
	}
	// After the write, the name of the last Secret would be unknown. Agents have copies of it.
	if last := credentialsOf(s.have); last != "" && last != credentialsOf(want) {
		if err := r.RemoveSecret(ctx, client.ObjectKeyFromObject(s.of), plan.Key{Namespace: s.key.Namespace, Name: last}, plan.CredentialsSecretType); err != nil {
			return err
		}
	}
	return r.UpdateBundle(ctx, s.have, func(its *fleetv1.Bundle) {
		maps.Copy(its.Labels, want.Labels)
		maps.Copy(its.Annotations, want.Annotations)
		if files == nil && !s.in.Chart.Agent {
			files = its.Spec.Resources
		}
		if its.Spec.TargetCustomizationMode == "" { // The CRD of Fleet before 0.16 has no such field, newer ones have a default.
			want.Spec.TargetCustomizationMode = ""
		}
		its.Spec = want.Spec
		its.Spec.Targets, its.Spec.Resources, its.Spec.RolloutStrategy = targets, files, strategy
	})
}

// newFiles returns the files of the chart if the Bundle has others.
func (r *Reconciler) newFiles(ctx context.Context, s *scope) ([]fleetv1.BundleResource, error) {
	if s.in.Chart.Agent || s.have != nil && store.FilesDigest(s.have) == s.in.Chart.Digest {
		return nil, nil
	}
	files, err := r.Inputs.Files(ctx, s.in)
	if err != nil {
		return nil, fmt.Errorf("downloading the chart: %w", err)
	}
	return files, nil
}

// hasUnseen reports whether a release of the Bundle still has values from earlier inputs. Fleet would deploy a new
// chart with these values first, and then again with the new ones.
func (r *Reconciler) hasUnseen(s *scope) bool {
	return slices.ContainsFunc(s.releases, func(its *addonsv1.HelmReleaseProxy) bool {
		hasSeen := r.Inputs.HasSeen
		if plan.IsStaged(s.of) {
			hasSeen = r.Inputs.HasReported // The rollout may have to hold the release back, however long that takes.
		}
		return its.DeletionTimestamp.IsZero() && !hasSeen(its, s.in)
	})
}

func credentialsOf(bundle *fleetv1.Bundle) string {
	if bundle.Spec.HelmOpOptions == nil {
		return ""
	}
	return bundle.Spec.HelmOpOptions.SecretName
}

// putCredentials writes the Secret with which agents reach the repository. The Bundle owns the Secret.
func (r *Reconciler) putCredentials(ctx context.Context, s *scope) error {
	if s.in.Credentials == nil {
		return nil
	}
	secret := &corev1.Secret{
		ObjectMeta: plan.Meta(client.ObjectKeyFromObject(s.of), s.key.Namespace, plan.CredentialsName(s.of, s.key.Name)),
		Type:       plan.CredentialsSecretType, Data: s.in.Credentials,
	}
	secret.OwnerReferences = plan.OwnedBy(s.have)
	return r.PutValues(ctx, secret)
}
