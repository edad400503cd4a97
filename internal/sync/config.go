package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// statusInterval is how long the events of Clusters are collected before the counts are written: none is known to be the last.
const statusInterval = 2 * time.Second

// configReconciler writes the status of the FleetAddonConfig.
type configReconciler struct {
	client.Client
	settings *settings.Reader
	fields   *fleetFields
	gate     *Gate
	now      func() time.Time
	// watchFilter limits which Clusters are counted, and which FleetAddonConfig is
	// reported on; empty for all.
	watchFilter string
	// installer and helm report whether the installer and the program for HelmChartProxies run.
	installer, helm *presence
	// namespaces are those that the Client reads; empty for all.
	namespaces map[string]cache.Config

	recorder events.EventRecorder
	// goneSince is when the FleetAddonConfig was first found to be gone; zero if it is not.
	goneSince time.Time
	// controller is the one that this reconciler belongs to.
	controller controller.Controller
}

func (r *configReconciler) setUp(mgr ctrl.Manager) (err error) {
	r.controller, err = ctrl.NewControllerManagedBy(mgr).Named("fleetaddonconfig").
		For(&addonsv1.FleetAddonConfig{}, builder.WithPredicates(configNews)).
		// What the cache did not show yet may have been taken for the wanted status, and others may write it.
		Watches(&addonsv1.FleetAddonConfig{}, collected(theConfig, statusInterval)).
		WatchesMetadata(references.CRD(), enqueue(theConfig), builder.WithPredicates(reportedCRDs)).
		Build(r)
	return err
}

// configNews passes all changes but those of the syncer's own part of the status: while the counts change many times a second,
// each write would cause the next at once.
var configNews = changes(func(object client.Object) []any {
	config := object.(*addonsv1.FleetAddonConfig)
	installers := slices.DeleteFunc(slices.Clone(config.Status.Conditions), func(its metav1.Condition) bool {
		return !slices.Contains(installerConditions, its.Type)
	})
	return []any{config.Generation, config.Labels, config.Annotations, config.DeletionTimestamp.IsZero(), config.Status.InstalledVersion, installers}
})

// watchClusters makes the reconciler look again when a Cluster changes its state, at most once in a statusInterval.
func (r *configReconciler) watchClusters(c *common) error {
	return r.controller.Watch(source.Kind(c.GetCache(), client.Object(&clusterv1.Cluster{}), collected(theConfig, statusInterval), changes(func(object client.Object) []any {
		return []any{stateOf(object.(*clusterv1.Cluster)), isWatched(object, r.watchFilter)}
	})))
}

// theConfig returns the request for the FleetAddonConfig, whatever has changed.
func theConfig(context.Context, client.Object) []reconcile.Request {
	return requests(types.NamespacedName{Name: addonsv1.FleetAddonConfigName})
}

// configState is what a FleetAddonConfig's status is made of.
type configState struct {
	*settings.InForce
	// missing names the kinds that are not served. While it is not empty, the last three are not known.
	missing string
	// older says which CRDs of Muster's are older than the program.
	older string
	// ineffective says which settings have no effect.
	ineffective error
	// isAsked and isLacking are whether the installer is to act, and does not run.
	isAsked, isLacking bool
	helm               *metav1.Condition
	counts             map[state]int
	classes            *int32
	mappings           []addonsv1.BundleMappingStatus
}

// Reconcile writes the status if it has news.
func (r *configReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	config := in.Config // to be read only
	metrics.Condition(addonsv1.ConfigValidCondition, in.Invalid == nil || in.IsUnknown())
	later := r.reportGone(ctx, in)
	if config == nil || !isWatched(config, r.watchFilter) {
		// If several instances run, the one whose watch filter the FleetAddonConfig carries reports
		// its status. The others are not asked for the installer.
		metrics.Condition(addonsv1.InstallerAvailableCondition, true)
		return later, nil
	}
	missing, err := r.gate.missing(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if missing == "" && !r.gate.opened.Load() {
		return ctrl.Result{RequeueAfter: kinds.PollInterval}, nil
	}
	s, err := r.read(ctx, in, missing)
	if err != nil {
		return ctrl.Result{}, err
	}
	if missing != "" { // A CRD that exists may not be served yet.
		later.RequeueAfter = kinds.PollInterval
	}
	if s.isAsked || s.helm != nil || len(in.Mappings) > 0 {
		later.RequeueAfter = kube.Sooner(later.RequeueAfter, presenceInterval) // No event shows that a Lease grows old, or that a workspace has another Fleet Cluster.
	}
	metrics.Condition(addonsv1.InstallerAvailableCondition, !s.isLacking)
	wanted := s.status(r.now())
	if equality.Semantic.DeepEqual(own(&config.Status), &wanted) {
		return later, nil
	}
	object := &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: config.Name, UID: config.UID}}
	return later, client.IgnoreNotFound(kube.ApplyStatus(ctx, r, stamp.FieldManager, addonsv1.GroupVersion.WithKind("FleetAddonConfig"), object, &wanted))
}

// read reads what the status of the FleetAddonConfig is made of.
func (r *configReconciler) read(ctx context.Context, in *settings.InForce, missing string) (s *configState, err error) {
	s = &configState{InForce: in, missing: missing, isAsked: settings.AsksForInstall(in.Config) || settings.AsksForFleetSettings(in.Config)}
	s.isLacking = s.isAsked && r.installer.isMissing(ctx)
	var olderErr, helmErr error
	s.older, olderErr = olderCRDs(ctx, r, r.helm.lease.Namespace)
	s.helm, helmErr = r.helmAvailable(ctx)
	_, unserved, err := r.fields.limit(ctx, in)
	s.ineffective = errors.Join(r.unread(in.Mappings), unserved)
	if err := errors.Join(err, olderErr, helmErr); err != nil || missing != "" {
		return s, err
	}
	s.counts = map[state]int{}
	if err := countClusters(ctx, r, r.watchFilter, func(_ *clusterv1.Cluster, its state) { s.counts[its]++ }); err != nil {
		return nil, err
	}
	if s.classes, err = r.classes(ctx); err == nil {
		s.mappings, err = r.mappings(ctx, in.Mappings)
	}
	return s, err
}

// reportGone reports that the FleetAddonConfig is gone, or that this could not be recorded ahead, and returns when to
// look again.
func (r *configReconciler) reportGone(ctx context.Context, in *settings.InForce) ctrl.Result {
	if !in.IsUnknown() {
		r.goneSince = time.Time{}
		metrics.ConfigMissing(false)
		if err := r.settings.Record(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "If the FleetAddonConfig is deleted, a program that starts later takes the defaults for its settings")
			r.recorder.Eventf(in.Config, nil, corev1.EventTypeWarning, "NotRecorded", "Record", "%s", message.Short(
				"if the FleetAddonConfig is deleted, a program that starts later takes the defaults for its settings: "+err.Error(), message.Note))
			return ctrl.Result{RequeueAfter: longestWait}
		}
		return ctrl.Result{RequeueAfter: settings.UnwatchedInterval}
	}
	if r.goneSince.IsZero() {
		r.goneSince = r.now()
	}
	if left := patience - r.now().Sub(r.goneSince); left > 0 {
		return ctrl.Result{RequeueAfter: left}
	}
	metrics.ConfigMissing(true)
	ctrl.LoggerFrom(ctx).Info(in.Invalid.Error())
	key := r.settings.RecordKey()
	r.recorder.Eventf(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, nil,
		corev1.EventTypeWarning, "FleetAddonConfigMissing", "Wait", "%s", message.Short(in.Invalid.Error(), message.Note))
	return ctrl.Result{RequeueAfter: settings.UnwatchedInterval} // An event is kept for an hour.
}

// own returns the part of a status that the syncer writes. The installer writes the rest.
func own(status *addonsv1.FleetAddonConfigStatus) *addonsv1.FleetAddonConfigStatus {
	result := status.DeepCopy()
	result.InstalledVersion = ""
	result.Conditions = slices.DeleteFunc(result.Conditions, func(condition metav1.Condition) bool {
		return slices.Contains(installerConditions, condition.Type)
	})
	return result
}

// status returns the desired state of the syncer's part of the status. A condition whose status did
// not change keeps its transition time. Counts that are not known are as last reported.
func (s *configState) status(now time.Time) addonsv1.FleetAddonConfigStatus {
	config := s.Config
	status := *own(&config.Status)
	status.ObservedGeneration, status.Classes, status.BundleMappings = config.Generation, s.classes, s.mappings
	imported := clustersImported(s.counts)
	if s.counts != nil {
		status.Clusters = &addonsv1.ClusterCounts{
			Selected:   int32(s.counts[stateImported] + s.counts[statePending] + s.counts[stateConflicted] + s.counts[stateFailed]),
			Imported:   int32(s.counts[stateImported]),
			Pending:    int32(s.counts[statePending]),
			Conflicted: int32(s.counts[stateConflicted]),
		}
	} else if last := meta.FindStatusCondition(status.Conditions, imported.Type); last != nil {
		imported.Status, imported.Reason, imported.Message = last.Status, last.Reason, last.Message
	}

	conditions := []metav1.Condition{s.apisAvailable(), configValid(errors.Join(s.Invalid, s.ineffective)), imported}
	var others []metav1.Condition
	if s.isAsked {
		available := installerAvailable(s.isLacking)
		conditions = append([]metav1.Condition{available}, conditions...)
		others = ofInstaller(config, available)
	}
	ready := summary(append(others, conditions...))
	if ready.Status == metav1.ConditionTrue {
		ready.Message = s.older
	}
	conditions = append([]metav1.Condition{ready}, conditions...)
	if s.helm != nil {
		conditions = append(conditions, *s.helm)
	}
	status.Conditions, _ = kube.Merge(config.Status.Conditions, nil, config.Generation, now, conditions...)
	return status
}

// classes counts the ClusterGroups of ClusterClasses.
func (r *configReconciler) classes(ctx context.Context) (*int32, error) {
	var groups fleetv1.ClusterGroupList
	if err := r.List(ctx, &groups, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ClusterGroups: %w", err)
	}
	var count int32
	for i := range groups.Items {
		if stamp.IsOurs(&groups.Items[i]) && !isCrossNamespaceGroup(&groups.Items[i]) {
			count++
		}
	}
	return &count, nil
}

// unread returns an error that names the mappings of spec.rancher.bundleMappings that the flag
// --namespace keeps the syncer from reading; nil if there are none.
func (r *configReconciler) unread(asked []types.NamespacedName) error {
	var names []string
	for _, key := range asked {
		if !r.reads(key) {
			names = append(names, key.String())
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("spec.rancher.bundleMappings: the flag --namespace of the syncer leaves out the namespace or the workspace of %s", strings.Join(names, ", "))
}

// reads reports whether the Client reads a mapping and the Fleet Clusters that it reaches.
func (r *configReconciler) reads(key types.NamespacedName) bool {
	return rancher.Reads(r.namespaces, key.Namespace) && rancher.Reads(r.namespaces, key.Name)
}

// mappings counts, for each mapping into a workspace of Rancher that is in force, the Fleet Clusters
// that it reaches.
func (r *configReconciler) mappings(ctx context.Context, asked []types.NamespacedName) (reached []addonsv1.BundleMappingStatus, err error) {
	inWorkspace := map[string]int32{}
	for _, key := range asked {
		if !r.reads(key) {
			continue
		}
		var mapping fleetv1.BundleNamespaceMapping
		if err := r.Get(ctx, key, &mapping, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("reading BundleNamespaceMapping %s: %w", key, err)
		}
		if !stamp.IsOurs(&mapping) || !isLive(&mapping) {
			continue
		}
		count, counted := inWorkspace[key.Name]
		if !counted {
			var clusters fleetv1.ClusterList
			if err := r.List(ctx, &clusters, client.InNamespace(key.Name), client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("listing Fleet Clusters: %w", err)
			}
			count = int32(len(clusters.Items))
			inWorkspace[key.Name] = count
		}
		reached = append(reached, addonsv1.BundleMappingStatus{Namespace: key.Namespace, Workspace: key.Name, Clusters: count})
	}
	return reached, nil
}

// verdict returns a condition that is False with one reason if there is a problem, and otherwise True with another.
func verdict(kind, problem, reasonFalse, reasonTrue string) metav1.Condition {
	if problem != "" {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reasonFalse, Message: problem}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonTrue}
}

func (s *configState) apisAvailable() metav1.Condition {
	problem := ""
	if s.missing != "" {
		problem = "not served: " + s.missing + "; install Cluster API and Fleet, nothing needs to be restarted"
	}
	its := verdict(addonsv1.APIsAvailableCondition, problem, addonsv1.WaitingReason, addonsv1.AvailableReason)
	its.Message = cmp.Or(its.Message, s.older)
	return its
}

func configValid(invalid error) metav1.Condition {
	problem := ""
	if invalid != nil {
		problem = invalid.Error()
	}
	return verdict(addonsv1.ConfigValidCondition, problem, addonsv1.InvalidReason, addonsv1.ValidReason)
}

func clustersImported(counts map[state]int) metav1.Condition {
	problem := ""
	if counts[stateConflicted]+counts[stateFailed] > 0 {
		problem = fmt.Sprintf("%d conflicted, %d failed; see the condition %s of the Clusters", counts[stateConflicted], counts[stateFailed], addonsv1.FleetImportedCondition)
	}
	return verdict(addonsv1.ClustersImportedCondition, problem, addonsv1.ClustersStuckReason, addonsv1.NoneStuckReason)
}

// summary returns a Ready condition that copies the first False condition, or else is True.
func summary(conditions []metav1.Condition) metav1.Condition {
	for _, condition := range conditions {
		if condition.Status == metav1.ConditionFalse {
			return metav1.Condition{Type: addonsv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: condition.Reason, Message: condition.Message}
		}
	}
	return metav1.Condition{Type: addonsv1.ReadyCondition, Status: metav1.ConditionTrue, Reason: addonsv1.ReadyReason}
}

// state is the state that a Cluster is counted in.
type state string

const (
	stateImported   state = "imported"
	statePending    state = "pending"
	stateConflicted state = "conflicted"
	stateFailed     state = "failed"
	stateUnselected state = "unselected"
)

// stateOf returns the state of a Cluster, by its condition FleetImported, or, before it has that, by its pin.
func stateOf(cluster *clusterv1.Cluster) state {
	imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition)
	switch {
	case imported == nil && stamp.PinOf(cluster.Annotations).IsComplete(): // The webhook has claimed it just now.
		return statePending
	case imported == nil, imported.Reason == addonsv1.DeselectedReason:
		return stateUnselected
	case imported.Reason == addonsv1.NameConflictReason:
		return stateConflicted
	case imported.Reason == addonsv1.FailedReason:
		return stateFailed
	case isImported(imported):
		return stateImported
	default:
		return statePending
	}
}

// isImported reports whether a condition FleetImported says that the Cluster is in Fleet, and that Muster keeps it up to date.
func isImported(its *metav1.Condition) bool {
	switch its.Reason {
	case addonsv1.PausedReason, addonsv1.DeselectedReason, addonsv1.NameConflictReason, addonsv1.FailedReason:
		return false
	}
	return its.Status == metav1.ConditionTrue
}

var (
	clustersByState = metrics.NewGauge("muster_clusters",
		"CAPI Clusters by state: imported, pending, conflicted, failed, unselected.", "state",
		string(stateImported), string(statePending), string(stateConflicted), string(stateFailed), string(stateUnselected))
	clustersByReason = metrics.NewGauge("muster_clusters_by_reason",
		"CAPI Clusters by the reason of their condition FleetImported. Clusters without the condition are left out.", "reason", addonsv1.FleetImportedReasons...)
	crossNamespaceClass = metrics.NewGauge("muster_cross_namespace_class_clusters",
		"CAPI Clusters whose class is in another namespace, and which therefore receive the bundles of that namespace.", "")
	upgradesHeld = metrics.NewGauge("muster_upgrades_held", "CAPI Clusters whose upgrade waits for its add-ons.", "")
	released     = metrics.NewGauge("muster_released_fleet_clusters",
		"Fleet Clusters that were released for a move and whose CAPI Cluster is gone: it was moved, or deleted.", "")
)

// registerCounts registers the metrics that count Clusters and Fleet Clusters.
func registerCounts(c *common) error {
	count := func(ctx context.Context, counts metrics.Counts) error {
		return countAll(ctx, c.GetClient(), c.WatchFilter, counts)
	}
	return metrics.Count(c.Elected(), count, clustersByState, clustersByReason, crossNamespaceClass, upgradesHeld, released)
}

// countAll counts the Clusters of a cache that have the watch label, and released Fleet Clusters.
func countAll(ctx context.Context, cache client.Reader, watchFilter string, counts metrics.Counts) error {
	if err := countClusters(ctx, cache, watchFilter, func(cluster *clusterv1.Cluster, its state) {
		counts.Add(clustersByState, string(its), 1)
		if imported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); imported != nil {
			counts.Add(clustersByReason, imported.Reason, 1)
		}
		if !useOf(cluster).isZero() {
			counts.Add(crossNamespaceClass, "", 1)
		}
		if meta.IsStatusConditionTrue(cluster.Status.Conditions, addonsv1.FleetUpgradeHeldCondition) {
			counts.Add(upgradesHeld, "", 1)
		}
	}); err != nil {
		return err
	}
	return countReleased(ctx, cache, counts)
}

// countClusters calls a function for each Cluster of a cache that has the watch label, with its state. It must not change the
// Cluster, which is not copied.
func countClusters(ctx context.Context, cache client.Reader, watchFilter string, count func(*clusterv1.Cluster, state)) error {
	var clusters clusterv1.ClusterList
	if err := cache.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	for i := range clusters.Items {
		if cluster := &clusters.Items[i]; isWatched(cluster, watchFilter) {
			count(cluster, stateOf(cluster))
		}
	}
	return nil
}

// countReleased counts the Fleet Clusters that were released and whose Cluster is gone.
// They were moved, or left over: a syncer that was down while a Cluster was unpaused and
// deleted cannot distinguish the two, and deletes neither.
func countReleased(ctx context.Context, cache client.Reader, counts metrics.Counts) error {
	var list fleetv1.ClusterList
	if err := cache.List(ctx, &list, client.MatchingFields{byReleased: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Fleet Clusters: %w", err)
	}
	for i := range list.Items {
		var cluster clusterv1.Cluster
		key := client.ObjectKey{Namespace: list.Items[i].Namespace, Name: stamp.OriginOf(&list.Items[i]).Name}
		if err := cache.Get(ctx, key, &cluster, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading a Cluster from the cache: %w", err)
		} else if err != nil {
			counts.Add(released, "", 1)
		}
	}
	return nil
}

// installerConditions are written by the installer; the syncer only reads them.
var installerConditions = []string{addonsv1.FleetInstalledCondition, addonsv1.FleetConfiguredCondition}

// installerAvailable reports whether the installer acts on spec.install and spec.config.
func installerAvailable(missing bool) metav1.Condition {
	problem := ""
	if missing {
		problem = "spec.install and spec.config are not acted on, as the component installer does not run: kubectl apply -k manifests/installer, or installer.yaml of the release; or remove both sections"
	}
	return verdict(addonsv1.InstallerAvailableCondition, problem, addonsv1.InstallerMissingReason, addonsv1.AvailableReason)
}

// ofInstaller returns the conditions that the installer has reported for this generation of the
// FleetAddonConfig. A condition that it has not reported yet is False.
func ofInstaller(config *addonsv1.FleetAddonConfig, available metav1.Condition) []metav1.Condition {
	if available.Status == metav1.ConditionFalse {
		return []metav1.Condition{available} // Its last report may be old.
	}
	var result []metav1.Condition
	for _, entry := range []struct {
		kind, section string
		asks          bool
	}{
		{addonsv1.FleetConfiguredCondition, "spec.config", settings.AsksForFleetSettings(config)},
		{addonsv1.FleetInstalledCondition, "spec.install", settings.AsksForInstall(config)},
	} {
		if !entry.asks {
			continue
		}
		reported := meta.FindStatusCondition(config.Status.Conditions, entry.kind)
		switch {
		case reported == nil || reported.ObservedGeneration != config.Generation:
			result = append(result, metav1.Condition{Type: entry.kind, Status: metav1.ConditionFalse, Reason: addonsv1.WaitingForInstallerReason,
				Message: fmt.Sprintf("the installer has not acted on %s of this generation yet", entry.section)})
		case reported.Status == metav1.ConditionTrue && reported.Reason == addonsv1.UpgradingReason:
			under := *reported
			under.Status = metav1.ConditionFalse // Fleet runs, but not as spec.install asks.
			result = append(result, under)
		default:
			result = append(result, *reported)
		}
	}
	isFailure := func(its metav1.Condition) bool { return its.Reason != addonsv1.WaitingForInstallerReason }
	if i := slices.IndexFunc(result, isFailure); i > 0 { // A failure tells more than a wait.
		slices.Reverse(result)
	}
	return result
}

// helmAvailable reports whether the component helm carries out HelmChartProxies; nil if their CRD does
// not exist or is not Muster's.
func (r *configReconciler) helmAvailable(ctx context.Context) (*metav1.Condition, error) {
	crd := references.CRD()
	if err := r.Get(ctx, client.ObjectKey{Name: stamp.HelmCRD}, crd); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading CustomResourceDefinition %q: %w", stamp.HelmCRD, err)
	}
	if !stamp.IsHelmCRDOurs(crd, r.helm.lease.Namespace) {
		return nil, nil
	}
	problem := ""
	if r.helm.isMissing(ctx) {
		problem = "HelmChartProxies are not carried out, as the component helm does not run: kubectl apply -k manifests/helm, or helm.yaml of the release; or delete their CustomResourceDefinition"
	}
	return new(verdict(addonsv1.HelmAvailableCondition, problem, addonsv1.HelmMissingReason, addonsv1.AvailableReason)), nil
}
