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
		Watches(&clusterv1.Cluster{}, first, builder.WithPredicates(watched(c.WatchFilter))).
		Watches(&clusterv1.Cluster{}, enqueue(c.events.rivals), builder.WithPredicates(removed)).
		Watches(&fleetv1.Cluster{}, enqueue(c.events.clusterOfFleetCluster), builder.WithPredicates(afterStart, fleetClusterNews(c.bundlesReady))).
		WatchesRawSource(r.values.Source()).
		WatchesRawSource(c.rancher.Source()).
		// Changes that may concern many Clusters at once.
		WatchesMetadata(references.CRD(), r.values.CRDs(), builder.WithPredicates(references.ContractNews)).
		WatchesMetadata(references.CRD(), behind(c.events.allClusters), builder.WithPredicates(rancher.CRDs, afterStart, changes(func(client.Object) []any { return nil }))).
		WatchesMetadata(references.CRD(), behind(c.events.allClusters), builder.WithPredicates(requiredCRDs, afterStart)).
		Watches(&fleetv1.Cluster{}, enqueue(c.rancher.Concerned), builder.WithPredicates(fleetClusterNews(c.bundlesReady))).
		WatchesMetadata(newClass(), behind(c.events.clustersOfClass), builder.WithPredicates(afterStart, labelsOrExistence)).
		WatchesMetadata(namespaceMetadata(), behind(c.events.clusterOfHome), builder.WithPredicates(afterStart, homeNews)).
		WatchesMetadata(namespaceMetadata(), behind(c.events.clustersInNamespace), builder.WithPredicates(afterStart, predicate.LabelChangedPredicate{})).
		Watches(&fleetv1.ClusterGroup{}, behind(c.events.clustersOfGroup), builder.WithPredicates(afterStart, existenceOrMaker)).
		Watches(&fleetv1.BundleNamespaceMapping{}, behind(c.events.clustersInNamespace), builder.WithPredicates(afterStart, mappingNews)).
		Watches(&addonsv1.FleetAddonConfig{}, behind(c.events.allClusters), builder.WithPredicates(afterStart, settingsNews)).
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
	if in, err = r.fields.limit(ctx, in); err != nil {
		return ctrl.Result{}, errors.Join(unread, finalizerErr, err)
	}
	result, err := r.reconcile(ctx, in, req, cluster)
	if errors.Is(err, kube.ErrBehind) {
		return result, err
	}
	if err = errors.Join(err, finalizerErr, unread); err != nil {
		// Retries of failing Clusters must not delay Clusters that have not been reconciled yet.
		result.Priority = new(behindPriority)
	}
	return result, err
}

// reconcile is Reconcile for a Cluster that exists.
func (r *clusterReconciler) reconcile(ctx context.Context, in *settings.InForce, req ctrl.Request, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	var result outcome
	s, err := r.scopes.newScope(ctx, in, cluster)
	if err == nil {
		err = r.readHome(ctx, s)
	}
	if err == nil {
		result, err = r.run(ctx, s)
	}
	switch {
	case err == nil:
	case errors.Is(err, kube.ErrBehind):
		return ctrl.Result{}, err
	case kube.IsAbsent(err): // The Cluster or its namespace is being deleted, or the cache does not show the Namespace yet.
		return ctrl.Result{}, nil
	case errors.Is(err, references.ErrUnresolved):
		return polled(references.Patience(err)), nil
	case errors.Is(err, rancher.ErrUnlisted):
		return polled(kube.Sooner(result.after, kinds.Patience)), nil
	case !in.Cluster.Enabled:
		return ctrl.Result{}, ignoreUnserved(err)
	case kube.IsUnserved(err):
		result = unserved(err)
	case kube.IsTooLarge(err):
		result, err = failed(err).again(kube.TooLargeInterval), nil
	case apierrors.IsConflict(err):
		result = contended(err)
	default:
		result = failed(err)
	}
	if err != nil && s != nil {
		result = s.untilHome(result)
	}
	if r.reporter.isBrief(req.NamespacedName, err) {
		return ctrl.Result{}, err // It is retried, and reported if it lasts.
	}
	if s != nil {
		cluster, result = s.cluster, r.bundlesReady.of(s, result)
	}
	if result.isNothing() && !result.bare {
		return ctrl.Result{}, err // It is none of our business.
	}
	wait, reportErr := r.reporter.report(ctx, cluster, result)
	if err = errors.Join(err, reportErr); err != nil {
		return ctrl.Result{}, err
	}
	return polled(kube.Sooner(result.after, wait)), nil
}

// polled is the result for a Cluster that must be reconciled after a delay, if no event brings it back
// sooner. It queues behind Clusters that have changed. Zero means never.
func polled(after time.Duration) ctrl.Result {
	if after == 0 {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: after, Priority: new(behindPriority)}
}

// run does what the Cluster needs and returns what to report on it.
func (r *clusterReconciler) run(ctx context.Context, s *scope) (outcome, error) {
	defer func() {
		if s.unlock != nil {
			s.unlock()
		}
	}()
	do := func(take func(context.Context, *scope) error) action {
		return func(s *scope) error { return take(ctx, s) }
	}
	result, err := s.run(actions{
		do(r.restamp), do(r.claim), do(r.target), do(r.resolve), do(r.takeOver), do(r.put), do(r.retarget), do(r.look),
		do(r.release), do(r.reclaim), do(r.attach), do(r.detach), do(r.withdraw),
	})
	return result, cmp.Or(err, s.beside.Unknown) // What is said may be about Rancher.
}

// restamp gives the Cluster the wanted stamp. It does not pin a Cluster to a name whose namespace in
// Fleet belongs to another Fleet Cluster: the pin would hold the name against that one.
func (r *clusterReconciler) restamp(ctx context.Context, s *scope) (err error) {
	existing := ""
	// A deselected Cluster gets a lost pin back, but what CAAPF imported never had one.
	if s.has() && (s.selected || stamp.PinOf(s.cluster.Annotations).IsComplete() || s.fleet.Labels[stamp.ManagedByLabel] == stamp.ManagedBy) {
		existing = s.fleet.Name
	}
	wanted := stamp.OnSync(s.in, s.withOwnPin(), existing)
	if has := stamp.PinOf(s.cluster.Annotations); !has.IsComplete() && wanted.Pin.IsComplete() && !s.has() {
		r.lock(s, wanted.Pin.ClusterName)
		if s.rival, err = r.scopes.rivalOf(ctx, s, wanted.Pin.ClusterName); err != nil {
			return err
		}
		if s.rival.Name != "" {
			wanted.Pin = has
		}
	}
	if s.selected {
		waits, err := r.scopes.rancher.Recheck(ctx, &s.beside)
		if err != nil {
			return err
		}
		if waits {
			s.again = longestWait
		}
	}
	return r.patchStamp(ctx, s, wanted)
}

// lock keeps other Clusters away from a Fleet Cluster and its namespace until the reconcile ends.
func (r *clusterReconciler) lock(s *scope, fleetCluster string) {
	if s.unlock == nil {
		s.unlock = r.fleetNamespaces.Lock(stamp.FleetNamespace(s.cluster.Namespace, fleetCluster))
	}
}

// claim reads again the objects that another Cluster may just have made. It checks whether the
// namespace in Fleet and the group that the Cluster needs are free. Until the reconcile ends, it locks
// out other Clusters that want the same Fleet Cluster.
func (r *clusterReconciler) claim(ctx context.Context, s *scope) (err error) {
	r.lock(s, s.pin())
	if !s.has() {
		if err := r.scopes.readFleetCluster(ctx, s, s.pin()); err != nil {
			return err
		}
		if err := r.readHome(ctx, s); err != nil {
			return err
		}
	}
	if err := r.scopes.findLeftover(ctx, s, s.pin()); err != nil {
		return err
	}
	if s.rival, err = r.scopes.rivalOf(ctx, s, s.pin()); err != nil {
		return err
	}
	s.displacing, err = r.targets.displacing(ctx, s.in, useOf(s.cluster))
	return err
}

// target makes the group and the mapping through which the Cluster's bundles are targeted,
// and records their UIDs. The Fleet Cluster carries a hash of them: if one is recreated, the
// hash changes, and Fleet works out the bundles again.
func (r *clusterReconciler) target(ctx context.Context, s *scope) error {
	group, err := r.targets.ensureGroup(ctx, s.in, s.cluster.Namespace, s.subject.Class)
	if s.targets.Group, err = s.orForeign(group, err); err != nil {
		return err
	}
	mapping, err := r.targets.ensureMapping(ctx, s.in, useOf(s.cluster))
	s.targets.Mapping, err = s.orForeign(mapping, err)
	return err
}

// orForeign notes a target that Muster did not make. Muster still imports the Cluster: other bundles
// reach it, and the foreign object may select it, too.
func (s *scope) orForeign(uid types.UID, err error) (types.UID, error) {
	var foreign *kube.ForeignError
	if !errors.As(err, &foreign) {
		return uid, err
	}
	if s.foreign != "" {
		s.foreign += "; "
	}
	s.foreign += foreign.Error()
	return foreign.UID(), nil
}

// resolve reads the class and, unless there is too much to copy, the template values. A Cluster that has its values, or
// says why not, says nothing of a first list that has just begun: a start writes nothing.
func (r *clusterReconciler) resolve(ctx context.Context, s *scope) (err error) {
	if s.class, err = classMetadata(ctx, r.Client, s.subject.Class); err != nil {
		return err
	}
	if s.tooMuch = desired.TooMuch(s.in, s.cluster, s.class); s.tooMuch != "" {
		return nil
	}
	s.templateValues, err = r.values.of(ctx, s.in, s.cluster, s.attachedTo().Name != "")
	if !errors.Is(err, references.ErrUnresolved) {
		return err
	}
	said := meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	if references.Patience(err) > 0 && (!s.isNew() || s.rancher != nil || said != nil && said.Reason == addonsv1.TemplateValuesUnresolvedReason) {
		return err
	}
	s.unresolved = err.Error()
	return nil
}

// patchStamp writes the stamp's keys to a Cluster, or nothing if they are right already. It uses a
// merge patch because the webhook's keys belong to the field manager of the user's request, and an
// apply could not remove them.
func (r *clusterReconciler) patchStamp(ctx context.Context, s *scope, wanted stamp.Stamp) error {
	labels := stamp.Changes(s.cluster.Labels, wanted.LabelValues())
	values := wanted.AnnotationValues()
	if s.selected { // Muster leaves other Clusters to Rancher.
		values[rancher.NoteAnnotation] = s.beside.Management
	}
	annotations := stamp.Changes(s.cluster.Annotations, values)
	if labels == nil && annotations == nil {
		return nil
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
		return fmt.Errorf("stamping Cluster: %w", err)
	}
	s.cluster = written.(*clusterv1.Cluster)
	return nil
}

func ignoreUnserved(err error) error {
	if kube.IsUnserved(err) {
		return nil
	}
	return err
}

// isWatched reports whether the syncer reconciles an object. Events of other objects lead to Clusters
// and classes, too, so a predicate on their own events is not enough.
func isWatched(object client.Object, filter string) bool {
	return filter == "" || capilabels.HasWatchLabel(object, filter)
}
