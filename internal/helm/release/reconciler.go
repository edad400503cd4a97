// Package release reconciles HelmReleaseProxies, each for the release on one Cluster: it renders and writes the
// values, keeps a record of them, and reports Fleet's state. Only events about a release trigger its reconcile,
// so the number of other releases does not matter.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Reconciler reconciles HelmReleaseProxies.
type Reconciler struct {
	*store.Store
	Inputs   *inputs.Reader
	Policies *policies.Reader
	Managed  *proxy.Managed
	Settings *settings.Reader
	Sources  Sources
	Renderer Renderer
	// Turns are those of the reconciles that may wait for the Renderer.
	Turns    *fair.Turns
	Recorder events.EventRecorder
	Now      func() time.Time

	// rendered maps the key of each release to its last values, written or not.
	rendered sync.Map
}

// scope is the state of one reconcile.
type scope struct {
	proxy   *addonsv1.HelmChartProxy
	release *addonsv1.HelmReleaseProxy
	inputs  *inputs.Inputs
	// settings are those for the values, read once; nil if they cannot be read, and there are no values.
	settings *settings.InForce
	cluster  *clusterv1.Cluster
	bundle   *fleetv1.Bundle
	// fleet is the UID of the Fleet Cluster that is the target; empty if it is not known to be the Cluster's.
	fleet types.UID
	// deployment is Fleet's BundleDeployment for the Cluster.
	deployment *fleetv1.BundleDeployment
	record     plan.Record
	turn       *fair.Turn
	trouble    plan.Trouble
	// shared is the trouble that another HelmChartProxy has the release, too. Both go on as before.
	shared plan.Trouble
	// isUnfinished says that the values will be rendered later, and isWaiting that it is not the release's turn yet.
	isUnfinished, isWaiting bool
	// again is the delay before the next reconcile without an event; zero for none.
	again time.Duration
}

func (s *scope) fail(reason, message string) {
	s.trouble = plan.Trouble{Reason: reason, Message: message}
}

func (s *scope) retryAfter(delay time.Duration) {
	s.again = kube.Sooner(s.again, delay)
}

// isInstalledOnce reports whether the release is InstallOnce and already installed.
func (s *scope) isInstalledOnce() bool { return plan.IsInstallOnce(s.proxy) && s.record.Installed }

// Reconcile reconciles one HelmReleaseProxy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	turn := r.Turns.Of(req.NamespacedName)
	defer turn.End()
	release := &addonsv1.HelmReleaseProxy{}
	if err := r.Get(ctx, req.NamespacedName, release); err != nil {
		if apierrors.IsNotFound(err) {
			r.rendered.Delete(req.NamespacedName)
			r.Inputs.ForgetRelease(req.NamespacedName)
			r.ForgetLook(waitOf(req.NamespacedName))
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.IsPast(release) {
		return ctrl.Result{RequeueAfter: store.BehindInterval}, nil
	}
	owner := plan.OwnerOf(release)
	if owner == nil {
		if !release.DeletionTimestamp.IsZero() { // Without its owner, the release stays as it is.
			return ctrl.Result{}, r.RemoveFinalizers(ctx, release, plan.Finalizer)
		}
		return ctrl.Result{}, nil
	}
	s := &scope{release: release, turn: turn, record: plan.RecordOf(release)}
	its, err := r.ChartProxy(ctx, client.ObjectKey{Namespace: release.Namespace, Name: owner.Name})
	if err != nil {
		return ctrl.Result{}, err
	}
	if its != nil && its.UID == owner.UID {
		s.proxy = its
		if writes, err := r.Managed.Writes(ctx, s.proxy); err != nil || !writes {
			return ctrl.Result{}, err
		}
	}
	err = r.reconcile(ctx, s)
	if store.IsBehind(err) || errors.Is(err, policies.ErrListing) {
		return ctrl.Result{RequeueAfter: store.BehindInterval}, nil
	}
	return ctrl.Result{RequeueAfter: s.again}, err
}

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (err error) {
	if !s.release.DeletionTimestamp.IsZero() {
		if err := r.findBundle(ctx, s); err != nil {
			return err
		}
		return r.uninstall(ctx, s)
	}
	if s.proxy == nil || !s.proxy.DeletionTimestamp.IsZero() || !proxy.Concerns(s.proxy, s.release) {
		return nil
	}
	plan.Default(s.proxy)
	if s.inputs, _, err = r.Inputs.Get(s.proxy); err != nil {
		s.again = inputs.PollInterval
		return nil //nolint:nilerr // The HelmChartProxy enqueues the release earlier.
	}
	// The spec comes first: its write triggers the next reconcile, and would meet those of the record and the status.
	if s.again = s.inputs.Patience(r.Now()); s.again > 0 && !proxy.IsOutdated(s.proxy, s.release) && !proxy.HasSpec(s.proxy, s.inputs, s.release) {
		return nil
	}
	s.again = 0
	if s.inputs, err = r.Policies.Limit(ctx, s.proxy, s.inputs, s.release.Spec.ClusterRef.Namespace); err != nil {
		return err
	}
	if s.settings, err = settingsOf(ctx, r.Settings, s.proxy); plan.HasValues(s.proxy) && (err != nil || s.settings == nil) {
		return err // The release stays as it is, its status included.
	}
	before := s.record
	s.record.Leaving, s.record.Until = "", nil
	s.record.Installed = s.record.Installed || plan.IsInstalledOnce(s.proxy, s.release)
	if isMadeAnew, err := r.find(ctx, s); isMadeAnew || err != nil {
		return err
	}
	if err := r.findBundle(ctx, s); err != nil {
		return err
	}
	s.noteInstalledOnce()
	if err := cmp.Or(r.forgetGone(ctx, s), r.renew(ctx, s)); err != nil {
		return err
	}
	return r.conclude(ctx, s, before, r.writeValues(ctx, s))
}

// noteInstalledOnce notes before anything is written that an InstallOnce release has been installed. The program may have been
// away since, or without settings, and its HelmChartProxy may have changed.
func (s *scope) noteInstalledOnce() {
	if s.record.Installed || !plan.IsInstallOnce(s.proxy) || s.bundle == nil {
		return
	}
	target, isTarget := plan.TargetOf(s.proxy, s.release, s.record)
	wanted := plan.Wanted{Content: s.bundle.Labels[plan.ContentLabel], Target: target}
	s.record.Installed = isTarget && plan.Observe(s.deployment, wanted).Deployed
}

// conclude writes down what a reconcile has seen, and returns its errors. The one of writing the values is failed.
func (r *Reconciler) conclude(ctx context.Context, s *scope, before plan.Record, failed error) error {
	if failed != nil && !store.IsBehind(failed) {
		s.fail(addonsv1.HelmReleaseProxyCreationFailedReason, failed.Error())
	}
	observed := s.observe(r.Now())
	stale := r.removeStale(ctx, s, observed) // Others would wait for the record and the status.
	s.trouble = cmp.Or(s.trouble, s.shared)
	if !equality.Semantic.DeepEqual(before, s.record) {
		s.record.Fleet = cmp.Or(s.record.Fleet, s.fleet)
		// The write triggers the next reconcile, which reports the recorded state.
		return cmp.Or(r.setRecord(ctx, s), failed, stale)
	}
	if r.isPatient(s) { // The status stays as it was.
		return cmp.Or(failed, stale)
	}
	isReported, err := r.report(ctx, s, observed)
	if isReported && failed == nil && !s.isUnfinished {
		r.Inputs.Saw(s.release, s.inputs)
	}
	return cmp.Or(err, failed, stale)
}

// isPatient reports whether the release only waits to be rendered, and has not waited long, or the program, since it started,
// could not find out yet whether the values are current.
func (r *Reconciler) isPatient(s *scope) bool {
	key, last := client.ObjectKeyFromObject(s.release), r.last(s)
	switch {
	case !s.isWaiting && !last.waits.IsZero():
		last.waits = time.Time{}
		r.rendered.Store(key, last)
	case s.isWaiting && last.waits.IsZero():
		last.waits = r.Now()
		r.rendered.Store(key, last)
	}
	if !s.isWaiting {
		return false
	}
	left := last.waits.Add(inputs.Patience).Sub(r.Now())
	if left > 0 {
		s.retryAfter(left)
	}
	return left > 0 || last.at.IsZero() && s.record.Digest != "" && s.release.Status.ObservedGeneration == s.release.Generation
}

// findBundle finds the Bundle of the release, if it belongs to the HelmChartProxy, and its BundleDeployment.
func (r *Reconciler) findBundle(ctx context.Context, s *scope) (err error) {
	if s.bundle, err = r.Bundle(ctx, proxy.BundleKey(s.release)); err != nil {
		return err
	}
	if s.bundle != nil && s.proxy != nil && !store.IsFor(s.bundle, client.ObjectKeyFromObject(s.proxy)) {
		s.bundle = nil
		return nil
	}
	if s.record.FleetCluster != "" {
		s.deployment, err = r.Deployment(ctx, proxy.BundleKey(s.release), s.record.FleetCluster)
	}
	return err
}

// setRecord writes the record of the release, unless that has changed meanwhile.
func (r *Reconciler) setRecord(ctx context.Context, s *scope) error {
	want := s.release.DeepCopy()
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, plan.RecordAnnotation, s.record.String())
	for _, key := range []string{plan.GrantedAnnotation, addonsv1.RolloutApprovedAnnotation} {
		if its := s.record.Rollout; its == nil || its.Pending != want.Annotations[key] { // The grant must not count if the same change comes back.
			delete(want.Annotations, key)
		}
	}
	if s.isInstalledOnce() { // With this annotation, CAAPH leaves the release alone if it is installed again.
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, addonsv1.ReleaseInstalledAnnotation, "true")
	}
	return client.IgnoreNotFound(r.Change(ctx, s.release, want, store.Unchanged))
}

// find finds the Cluster, and its Fleet Cluster by the pin. It verifies the pin, because every user who may
// write annotations can set it. Without a pin, the release keeps its target. find reports whether the Cluster
// was recreated under the same name: Muster then uninstalls the release, and installs it again.
func (r *Reconciler) find(ctx context.Context, s *scope) (isMadeAnew bool, err error) {
	const notInFleet = "the Cluster is not in Fleet; see its condition FleetImported"
	s.cluster = &clusterv1.Cluster{}
	key := plan.ClusterOf(s.release)
	if err := r.Get(ctx, key, s.cluster, client.UnsafeDisableDeepCopy); err != nil {
		s.fail(addonsv1.GetClusterFailedReason, "there is no Cluster "+key.String())
		s.cluster = nil
		return false, client.IgnoreNotFound(err)
	}
	of := plan.Of{Cluster: s.cluster.UID, Release: s.release.UID}
	if s.record.IsMadeAnew(of) {
		return true, r.Remove(ctx, s.release)
	}
	pin := stamp.PinOf(s.cluster.Annotations)
	isOwn := false
	if pin.IsComplete() {
		if isOwn, err = r.IsOwnFleetCluster(ctx, s.cluster, pin.ClusterName); err != nil {
			return false, err
		}
	}
	switch {
	case s.inputs.Selector == nil:
	case !s.inputs.Selector.Matches(s.cluster, proxy.NamespaceLabels(ctx, r.Client)):
		s.fail(addonsv1.GetClusterFailedReason, "the Cluster is not selected")
	case !isOwn:
		s.fail(addonsv1.GetClusterFailedReason, notInFleet)
	case s.record.FleetCluster == "":
		if !capiannotations.IsPaused(s.cluster, s.cluster) && !s.isInstalledOnce() { // A paused Cluster gets nothing new.
			s.record.FleetCluster = pin.ClusterName
		}
	case s.record.FleetCluster != pin.ClusterName:
		s.fail(addonsv1.GetClusterFailedReason, fmt.Sprintf("the release is on Fleet Cluster %s; delete the HelmReleaseProxy to install it on %s", s.record.FleetCluster, pin.ClusterName))
	}
	if s.record.FleetCluster != "" && isOwn { // A Cluster that was moved here is not in Fleet yet.
		s.record.Of = &of
	}
	if isOwn && s.record.FleetCluster == pin.ClusterName {
		fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: s.cluster.Namespace, Name: pin.ClusterName})
		if err != nil {
			return false, err
		}
		if fleet != nil {
			s.fleet = fleet.UID
		}
	}
	if isOwn && s.trouble == (plan.Trouble{}) {
		err = s.findOtherHolder(ctx, r, pin.ClusterName)
	}
	s.refuse()
	return false, err
}

// refuse notes that a Policy refuses the release. Whether another HelmChartProxy has it does not matter then: this one does not
// ask for it.
func (s *scope) refuse() {
	isFree := s.trouble == (plan.Trouble{}) || s.trouble.Reason == addonsv1.ReleaseTakenReason
	if isFree && s.inputs.Trouble.Reason == addonsv1.PolicyRefusesReason && !s.isInstalledOnce() {
		s.trouble = s.inputs.Trouble
	}
}

// findOtherHolder finds another HelmChartProxy that asks for the same release. While that has the release, or comes first, this one
// waits.
func (s *scope) findOtherHolder(ctx context.Context, reader client.Reader, fleetCluster string) error {
	own := client.ObjectKeyFromObject(s.proxy)
	claims, asking, err := proxy.Claims(ctx, reader, s.release, fleetCluster)
	if err != nil {
		return err
	}
	other, found := plan.OtherHolder(own, s.cluster.Namespace, claims)
	switch taken := plan.Taken(s.release, claims[own], other, claims[other]); {
	case !found:
	case claims[own] == plan.Has:
		s.shared = taken
	default:
		// The other may stop asking without an event for this one: a HelmChartProxy's own release alone hears of its spec.
		s.trouble, s.again = taken, kube.Sooner(s.again, proxy.UntilFree(asking))
	}
	return nil
}

// renew notes that the release has another Fleet Cluster of the same name, once its values are known to exist: until then,
// the Bundle may have to drop the target.
func (r *Reconciler) renew(ctx context.Context, s *scope) error {
	if !s.isReplaced(s.record) || s.isInstalledOnce() || s.record.Digest == "" && plan.HasValues(s.proxy) {
		return nil
	}
	if s.record.Digest != "" {
		if found, err := r.HasValues(ctx, s.key(s.record), s.record.Secret); err != nil || !found {
			return err
		}
	}
	s.record = s.record.On(s.fleet)
	return nil
}

// isReplaced reports whether a record describes an earlier Fleet Cluster of the same name.
func (s *scope) isReplaced(record plan.Record) bool {
	return s.fleet != "" && record.Fleet != "" && record.Fleet != s.fleet
}

// forgetGone empties the record of a release whose Fleet Cluster is gone, and removes its values, once no target names
// them: the Cluster may return to Fleet under another name, and another Cluster may get the old name.
func (r *Reconciler) forgetGone(ctx context.Context, s *scope) error {
	last := s.record
	if s.cluster == nil || last.FleetCluster == "" || s.isInstalledOnce() || last.Of == nil || *last.Of != (plan.Of{Cluster: s.cluster.UID, Release: s.release.UID}) {
		return nil
	}
	fleet, err := r.FleetCluster(ctx, plan.Key{Namespace: s.cluster.Namespace, Name: last.FleetCluster})
	wait, isGone := waitOf(client.ObjectKeyFromObject(s.release)), err == nil && fleet == nil
	if isGone && s.isTarget() {
		again := checkInterval // A person has to correct it.
		if !store.IsCut(s.bundle) {
			again = r.UntilLook(wait) // Updates of a Bundle enqueue no releases.
		}
		s.retryAfter(again)
		return nil
	}
	r.ForgetLook(wait)
	if !isGone {
		return err
	}
	s.record = plan.Record{Fleet: last.Fleet}
	return r.RemoveAllValues(ctx, client.ObjectKeyFromObject(s.proxy), s.cluster.Namespace, last.FleetCluster, last.Secret || last.Stale)
}

func waitOf(key plan.Key) string { return "HelmReleaseProxy " + key.String() }

// observe returns the state of the release, and updates the record with it.
func (s *scope) observe(now time.Time) plan.Release {
	// CAAPH installed the release, it was moved here, or a user deleted the Bundle: it stays installed.
	once := plan.Release{Ready: true, Deployed: true, Status: plan.Deployed, Reason: addonsv1.ReadyReason, Revision: max(1, s.release.Status.Revision)}
	if s.isInstalledOnce() && (s.record.FleetCluster == "" || s.bundle == nil) {
		return once
	}
	target, isTarget := plan.TargetOf(s.proxy, s.release, s.record)
	if !isTarget || s.bundle == nil {
		return plan.Observe(nil, plan.Wanted{})
	}
	wanted := plan.Wanted{Content: s.bundle.Labels[plan.ContentLabel], Target: target, Secretive: s.record.Secret || s.record.Stale}
	switch its := s.record.Rollout; {
	case its != nil && its.Pending == "" && its.Ready == nil:
		wanted.Content = its.Content
	case its != nil && s.deployment != nil: // Fleet labels the BundleDeployment with the content that another release has got.
		wanted.Content = s.deployment.Labels[plan.ContentLabel]
	case !s.inputs.Incomplete && !s.isInstalledOnce():
		wanted.Content = s.content()
	}
	observed := plan.Observe(s.deployment, wanted)
	if s.isInstalledOnce() && !observed.Deployed { // The Fleet Cluster was recreated; agents ignore a paused Bundle.
		return once
	}
	var wait time.Duration
	s.record, wait = s.record.After(observed, wanted.Content+" "+s.record.Digest, now)
	if s.record.Rollout != nil {
		var patience time.Duration
		s.record.Rollout, patience = s.record.Rollout.After(observed, plan.LongestSoak(s.proxy), now)
		s.retryAfter(patience)
	}
	s.retryAfter(wait)
	return observed
}

// content returns the wanted content label of the Bundle.
func (s *scope) content() string {
	return plan.NewBundle(s.proxy, s.bundle.Namespace, s.bundle.Name, s.inputs.Chart, s.inputs.CredentialsDigest).Labels[plan.ContentLabel]
}

// report writes the status if it differs.
func (r *Reconciler) report(ctx context.Context, s *scope, observed plan.Release) (isReported bool, err error) {
	before := s.release.DeepCopy()
	status := &s.release.Status
	status.Status, status.Revision, status.ObservedGeneration = observed.Status, observed.Revision, s.release.Generation
	proxy.SetConditions(&status.Conditions, s.release.Generation, plan.ReleaseConditions(s.trouble, observed), r.Now())
	if equality.Semantic.DeepEqual(before.Status, *status) {
		return true, nil
	}
	if err := r.Status().Patch(ctx, s.release, client.MergeFrom(before), client.FieldOwner(store.FieldManager)); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	r.Wrote(s.release)
	return false, nil
}
