package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// clusterReconciler keeps the stamp of a CAPI Cluster and its Fleet Cluster: it reads the
// Cluster, then does what it needs.
type clusterReconciler struct {
	client.Client
	live         client.Reader // past the cache
	scopes       *scopeReader
	applier      *kube.Applier
	settings     *settings.Reader
	fields       *fleetFields
	values       *memo
	targets      *targets
	reporter     *reporter
	bundlesReady bundlesReady
	// fleetNamespaces serializes Clusters that want the same namespace in Fleet.
	fleetNamespaces kube.Locks
	// watchFilter limits reconciling to Clusters whose watch label has this value; empty for all
	// Clusters.
	watchFilter string
}

func newClusterReconciler(c *common, reader *references.Reader) *clusterReconciler {
	return &clusterReconciler{
		Client: c.GetClient(), live: c.GetAPIReader(), applier: c.applier, settings: c.settings, fields: c.fields,
		scopes: &scopeReader{
			Reader: c.GetClient(), store: c.store, rancher: c.rancher,
			registrar: newPresence(c.GetAPIReader(), os.Getenv("POD_NAMESPACE"), stamp.RegistrarLease),
		},
		values: &memo{Reader: reader}, bundlesReady: c.bundlesReady, targets: c.targets,
		watchFilter: c.WatchFilter,
		reporter:    newReporter(c.GetClient(), c.store, c.GetEventRecorder("muster-syncer")),
	}
}

// setUp registers the events that wake the reconciler. Objects of other kinds that are found at
// startup do not wake it: it reconciles every Cluster then anyway.
func (r *clusterReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("cluster").
		WithOptions(controllerOptions(c.ClusterConcurrency)).
		For(&clusterv1.Cluster{}, builder.WithPredicates(watched(c.WatchFilter), kube.News)).
		Watches(&clusterv1.Cluster{}, notImportedFirst, builder.WithPredicates(watched(c.WatchFilter))).
		Watches(&clusterv1.Cluster{}, enqueue(c.events.clustersWaitingFor), builder.WithPredicates(removed)).
		Watches(&fleetv1.Cluster{}, enqueue(c.events.clusterOfFleetCluster), builder.WithPredicates(afterStart, fleetClusterNews(c.bundlesReady))).
		WatchesRawSource(r.values.Source()).
		WatchesRawSource(c.rancher.Source()).
		// Changes that may concern many Clusters at once.
		WatchesMetadata(references.CRD(), r.values.CRDs(), builder.WithPredicates(references.ContractNews)).
		WatchesMetadata(references.CRD(), atLowPriority(c.events.allClusters), builder.WithPredicates(rancher.CRDs, afterStart, existence)).
		WatchesMetadata(references.CRD(), atLowPriority(c.events.allClusters), builder.WithPredicates(requiredCRDs, afterStart)).
		Watches(&fleetv1.Cluster{}, enqueue(c.rancher.Concerned), builder.WithPredicates(fleetClusterNews(c.bundlesReady))).
		WatchesMetadata(newClass(), atLowPriority(c.events.clustersOfClass), builder.WithPredicates(afterStart, labelsOrExistence)).
		WatchesMetadata(namespaceMetadata(), enqueue(c.events.clusterOfFleetNamespace), builder.WithPredicates(afterStart, fleetNamespaceNews)).
		WatchesMetadata(namespaceMetadata(), atLowPriority(c.events.clustersInConflict), builder.WithPredicates(afterStart, fleetNamespaceNews)).
		WatchesMetadata(namespaceMetadata(), atLowPriority(c.events.clustersInNamespace), builder.WithPredicates(afterStart, predicate.LabelChangedPredicate{})).
		Watches(&fleetv1.ClusterGroup{}, atLowPriority(c.events.clustersOfGroup), builder.WithPredicates(afterStart, existenceOrMaker)).
		Watches(&fleetv1.BundleNamespaceMapping{}, atLowPriority(c.events.clustersInNamespace), builder.WithPredicates(afterStart, mappingNews)).
		Watches(&addonsv1.FleetAddonConfig{}, atLowPriority(c.events.allClusters), builder.WithPredicates(afterStart, settingsNews)).
		Complete(kube.Consistent(r))
}

// Reconcile brings one Cluster's stamp and Fleet Cluster to their desired state, and reports
// the result on the Cluster.
func (r *clusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, req.NamespacedName, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found || !isWatched(cluster, r.watchFilter) {
		r.reporter.forget(req.NamespacedName)
		r.values.known.Delete(req.NamespacedName)
		if found {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, r.scopes.rancher.Detach(ctx, req.NamespacedName, types.NamespacedName{})
	}
	// If the Cluster's class is gone, Cluster API's webhook rejects every change, so the finalizer
	// stays. The syncer still reconciles the Cluster.
	cluster, finalizerErr := kube.RemoveFinalizerOfCAAPF(ctx, r.applier, cluster)
	in, unread := r.settings.Current(ctx)
	if in == nil {
		return ctrl.Result{}, errors.Join(unread, finalizerErr)
	}
	if in, _, err = r.fields.limit(ctx, in); err != nil {
		return ctrl.Result{}, errors.Join(unread, finalizerErr, err)
	}
	result, err := r.reconcile(ctx, in, req, cluster)
	if errors.Is(err, kube.ErrBehind) {
		return result, err
	}
	if err = errors.Join(err, finalizerErr, unread); err != nil {
		// Retries of failing Clusters must not delay Clusters that have not been reconciled yet.
		result.Priority = new(lowPriority)
	}
	return result, err
}

// reconcile is Reconcile for a Cluster that exists.
func (r *clusterReconciler) reconcile(ctx context.Context, in *settings.InForce, req ctrl.Request, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	var result outcome
	s, err := r.scopes.newScope(ctx, in, cluster)
	if err == nil {
		s.namespace, err = r.readNamespace(ctx, s)
	}
	if err == nil {
		result, err = s.run(ctx, r)
		err = cmp.Or(err, s.rancher.Unknown) // What is said may be about Rancher.
	}
	switch {
	case err == nil:
	case errors.Is(err, kube.ErrBehind):
		return ctrl.Result{}, err
	case kube.IsAbsent(err): // The Cluster or its namespace is being deleted, or the cache does not show the Namespace yet.
		return ctrl.Result{}, nil
	case errors.Is(err, references.ErrUnresolved):
		return requeueAfter(references.Patience(err)), nil
	case errors.Is(err, rancher.ErrUnlisted):
		return requeueAfter(kube.Sooner(result.after, kinds.Patience)), nil
	case !in.Cluster.Enabled && kube.IsUnserved(err):
		return ctrl.Result{}, nil
	case !in.Cluster.Enabled:
		return ctrl.Result{}, err
	case kube.IsUnserved(err):
		result = failed(fmt.Errorf("a CRD is missing; install it again, nothing needs to be restarted: %w", err))
	case kube.IsTooLarge(err):
		result, err = failed(err).again(kube.TooLargeInterval), nil
	case apierrors.IsConflict(err):
		result = failed(fmt.Errorf("what is written here is refused as a conflict again and again: find out who else writes it (its managedFields), or which admission webhook refuses it; it is tried again every minute: %w", err))
	default:
		result = failed(err)
	}
	if err != nil && s != nil {
		result = s.untilNamespace(result)
	}
	if r.reporter.isBrief(req.NamespacedName, err) {
		return ctrl.Result{}, err // It is retried, and reported if it lasts.
	}
	if s != nil {
		cluster, result = s.cluster, r.bundlesReady.of(s, result)
	}
	if result.isNothing() && !result.isBare {
		return ctrl.Result{}, err // It is none of our business.
	}
	wait, reportErr := r.reporter.report(ctx, cluster, result)
	if err = errors.Join(err, reportErr); err != nil {
		return ctrl.Result{}, err
	}
	return requeueAfter(kube.Sooner(result.after, wait)), nil
}

// requeueAfter is the result for a Cluster that must be reconciled after a delay, if no event brings it back
// sooner. It queues behind Clusters that have changed. Zero means never.
func requeueAfter(after time.Duration) ctrl.Result {
	if after == 0 {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: after, Priority: new(lowPriority)}
}

// actions are all that a reconcile may do for a Cluster. Each returns its results, which only run notes.
type actions interface {
	// lock keeps other Clusters away from a Fleet Cluster and its namespace until the result is called.
	lock(s scope, fleetCluster string) (unlock func())
	checkNames(ctx context.Context, s scope, fleetCluster string) (fleetState, names, error)
	applyStamp(ctx context.Context, s scope, wanted stamp.Stamp) (*clusterv1.Cluster, error)
	ensureTargets(ctx context.Context, s scope) (targeting, error)
	readCopies(ctx context.Context, s scope) (copies, error)
	adopt(ctx context.Context, s scope) (fleetState, error)
	applyFleetCluster(ctx context.Context, s scope) (fleetState, error)
	retarget(ctx context.Context, s scope) (fleetState, error)
	touch(ctx context.Context, s scope) (fleetState, error)
	release(ctx context.Context, s scope) (fleetState, error)
	reclaim(ctx context.Context, s scope) (fleetState, error)
	attach(ctx context.Context, s scope) (attachment, targeting, error)
	detach(ctx context.Context, s scope) (attachment, error)
	withdraw(ctx context.Context, s scope) (*clusterv1.Cluster, error)
}

// run does what the Cluster needs, each action at most once, and returns what to report. Besides the actions, it reads
// nothing but the scope.
func (s *scope) run(ctx context.Context, do actions) (outcome, error) {
	result, err := s.decide(ctx, do)
	if err == nil {
		err = s.changeIf(ctx, s.needsTouch(), do.touch)
	}
	if err != nil {
		return outcome{}, err
	}
	return s.untilNamespace(result), nil
}

// changeIf changes the Fleet Cluster if that is needed.
func (s *scope) changeIf(ctx context.Context, isNeeded bool, change func(context.Context, scope) (fleetState, error)) (err error) {
	if isNeeded {
		s.fleetState, err = change(ctx, *s)
	}
	return err
}

// decide is run, whatever the state of the Fleet Cluster's namespace.
func (s *scope) decide(ctx context.Context, do actions) (result outcome, err error) {
	isDeleted := !s.cluster.DeletionTimestamp.IsZero()
	switch {
	case s.frozen && !s.isClaimed():
		return outcome{}, nil
	case s.frozen && s.paused:
		// One action does not wait: clusterctl may move Clusters while the import is turned off, and
		// Fleet would uninstall their applications.
		return s.unreported(), s.changeIf(ctx, s.isToBeReleased(), do.release)
	case s.unknown, isDeleted && s.paused: // Unknown is also whether the Fleet Cluster is to have an owner.
		return s.unreported(), nil
	case s.frozen, isDeleted:
		// One that was paused, deleted, then unpaused: its Fleet Cluster must be deleted with it.
		return s.unreported(), s.changeIf(ctx, s.isToBeReclaimed(), do.reclaim)
	case s.paused && !s.selected && !s.isClaimed():
		return unselected(false, false, s.why), nil
	case s.paused:
		// Everything stays as it is, except the owner reference.
		return paused(s.isIn()), s.changeIf(ctx, s.isToBeReleased(), do.release)
	case s.selected:
		return s.decideSelected(ctx, do)
	case s.isClaimed() && s.in.Cluster.OnDeselect == addonsv1.DeselectDelete:
		s.cluster, err = do.withdraw(ctx, *s)
		return unselected(false, false, ""), err
	}
	if s.cluster, err = do.applyStamp(ctx, *s, s.stamp()); err == nil {
		err = s.changeIf(ctx, s.isClaimed() && s.has() && s.fleet.DeletionTimestamp.IsZero(), do.retarget)
	}
	if err == nil {
		err = s.changeIf(ctx, s.isToBeReclaimed(), do.reclaim)
	}
	return unselected(s.isClaimed(), s.isIn(), s.why), err
}

// decideSelected is decide for a Cluster that is selected, and neither paused nor being deleted.
func (s *scope) decideSelected(ctx context.Context, do actions) (result outcome, err error) {
	wanted, has := s.stamp(), stamp.PinOf(s.cluster.Annotations)
	name := wanted.Pin.ClusterName
	defer do.lock(*s, name)()
	if s.fleetState, s.names, err = do.checkNames(ctx, *s, name); err != nil {
		return outcome{}, err
	}
	if s.namespaceOwner.Name != "" && !has.IsComplete() && !s.has() {
		wanted.Pin = has // A pin would hold the name against the owner of the namespace.
	}
	if s.cluster, err = do.applyStamp(ctx, *s, wanted); err != nil {
		return outcome{}, err
	}
	if s.rancher.Way != rancher.Import && !s.has() {
		return s.decideAttached(ctx, do)
	}
	if s.isElsewhere {
		if s.attachment, err = do.detach(ctx, *s); err != nil {
			return outcome{}, err
		}
	}
	if result := s.nameConflict(); !result.isNothing() {
		return result, s.changeIf(ctx, s.namespaceOwner.Name != "" && s.isToBeReclaimed(), do.reclaim)
	}
	if s.targeting, err = do.ensureTargets(ctx, *s); err != nil {
		return outcome{}, err
	}
	if result := s.obstacle(); !result.isNothing() {
		return result, nil
	}
	if s.copies, err = do.readCopies(ctx, *s); err != nil {
		return outcome{}, err
	}
	if result := s.lack(!s.has(), s.isNew()); !result.isNothing() {
		return result, nil
	}
	err = s.changeIf(ctx, s.fleet != nil && (s.relation == stamp.HandedOver || s.relation == stamp.Orphan), do.adopt)
	if err == nil { // The patch that gives the owner back must also remove what makes other tools spare the object.
		err = s.changeIf(ctx, s.isToBeReclaimed(), do.reclaim)
	}
	if err == nil {
		err = s.changeIf(ctx, true, do.applyFleetCluster)
	}
	if err != nil {
		return outcome{}, err
	}
	return s.placed(), nil
}

// decideAttached is decideSelected for a Cluster whose Fleet Cluster is, or will be, Rancher's.
func (s *scope) decideAttached(ctx context.Context, do actions) (result outcome, err error) {
	if s.rancher.Way == rancher.Wait {
		return waitingForRancher(s.rancher.For).again(s.wait()), nil
	}
	if s.copies, err = do.readCopies(ctx, *s); err != nil {
		return outcome{}, err
	}
	if result := s.lack(s.attached == nil, s.attached == nil); !result.isNothing() {
		return result, nil
	}
	if s.attachment, s.targeting, err = do.attach(ctx, *s); err != nil {
		return outcome{}, err
	}
	if s.attached == nil { // It is deleted; when it appears again, the event brings the Cluster back.
		return waitingForRancher(fmt.Sprintf("Fleet Cluster %q of Rancher", s.rancher.Fleet)), nil
	}
	if s.isElsewhere {
		if s.attachment, err = do.detach(ctx, *s); err != nil {
			return outcome{}, err
		}
	}
	return s.placedByRancher(), nil
}

var _ actions = (*clusterReconciler)(nil)

// lock keeps other Clusters away from a Fleet Cluster and its namespace until the result is called.
func (r *clusterReconciler) lock(s scope, fleetCluster string) (unlock func()) {
	return r.fleetNamespaces.Lock(stamp.FleetNamespace(s.cluster.Namespace, fleetCluster))
}

// checkNames reads again the objects that another Cluster may just have made. It checks whether the
// namespace in Fleet and the group that the Cluster needs are free.
func (r *clusterReconciler) checkNames(ctx context.Context, s scope, fleetCluster string) (_ fleetState, found names, err error) {
	if !s.has() {
		if s.fleetState, err = r.scopes.readFleetCluster(ctx, &s, fleetCluster); err == nil {
			s.namespace, err = r.readNamespace(ctx, &s)
		}
	}
	if err == nil {
		found.oldNamespace, err = r.scopes.oldNamespace(ctx, &s, fleetCluster)
	}
	if err == nil {
		found.namespaceOwner, err = r.scopes.namespaceOwner(ctx, &s, fleetCluster)
	}
	if err == nil {
		found.groupOwner, err = r.targets.groupOwner(ctx, s.in, useOf(s.cluster))
	}
	return s.fleetState, found, err
}

// ensureTargets makes the group and the mapping through which the Cluster's bundles are targeted,
// and returns their UIDs. The Fleet Cluster carries a hash of them: if one is recreated, the
// hash changes, and Fleet works out the bundles again.
func (r *clusterReconciler) ensureTargets(ctx context.Context, s scope) (made targeting, err error) {
	group, err := r.targets.ensureGroup(ctx, s.in, s.cluster.Namespace, s.subject.Class)
	if made.targets.Group, err = made.orForeign(group, err); err != nil {
		return made, err
	}
	mapping, err := r.targets.ensureMapping(ctx, s.in, useOf(s.cluster))
	made.targets.Mapping, err = made.orForeign(mapping, err)
	return made, err
}

// orForeign notes a target that Muster did not make. Muster still imports the Cluster: other bundles
// reach it, and the foreign object may select it, too.
func (t *targeting) orForeign(uid types.UID, err error) (types.UID, error) {
	var foreign *kube.ForeignError
	if !errors.As(err, &foreign) {
		return uid, err
	}
	if t.foreign != "" {
		t.foreign += "; "
	}
	t.foreign += foreign.Error()
	return foreign.UID(), nil
}

// readCopies reads the class and, unless there is too much to copy, the template values. A Cluster that has its values, or
// says why not, says nothing of a first list that has just begun: a start writes nothing.
func (r *clusterReconciler) readCopies(ctx context.Context, s scope) (read copies, err error) {
	if read.class, err = classMetadata(ctx, r.Client, s.subject.Class); err != nil {
		return read, err
	}
	if read.tooMuch = desired.TooMuch(s.in, s.cluster, read.class); read.tooMuch != "" {
		return read, nil
	}
	read.templateValues, err = r.values.of(ctx, s.in, s.cluster, s.attachedTo().Name != "")
	if !errors.Is(err, references.ErrUnresolved) {
		return read, err
	}
	last := meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	if references.Patience(err) > 0 && (!s.isNew() || s.attached != nil || last != nil && last.Reason == addonsv1.TemplateValuesUnresolvedReason) {
		return read, err
	}
	read.unresolved = err.Error()
	return read, nil
}

// applyStamp writes the stamp's keys to a Cluster, or nothing if they are right already. It uses a
// merge patch because the webhook's keys belong to the field manager of the user's request, and an
// apply could not remove them.
func (r *clusterReconciler) applyStamp(ctx context.Context, s scope, wanted stamp.Stamp) (*clusterv1.Cluster, error) {
	labels := stamp.Changes(s.cluster.Labels, wanted.LabelValues())
	values := wanted.AnnotationValues()
	if s.selected { // Muster leaves other Clusters to Rancher.
		values[rancher.NoteAnnotation] = s.rancher.Management
	}
	annotations := stamp.Changes(s.cluster.Annotations, values)
	if labels == nil && annotations == nil {
		return s.cluster, nil
	}
	metadata := map[string]any{}
	if labels != nil {
		metadata["labels"] = labels
	}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	written, err := r.applier.Patch(ctx, s.cluster, map[string]any{"metadata": metadata})
	if err != nil {
		return s.cluster, fmt.Errorf("stamping Cluster: %w", err)
	}
	return written.(*clusterv1.Cluster), nil
}

// isWatched reports whether the syncer reconciles an object. Events of other objects lead to Clusters
// and classes, too, so a predicate on their own events is not enough.
func isWatched(object client.Object, filter string) bool {
	return filter == "" || capilabels.HasWatchLabel(object, filter)
}
