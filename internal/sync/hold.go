package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// holdManager is the field manager of the condition about holds: the reporter of imports applies
	// without it.
	holdManager = "muster-hold"

	// holdInterval is how often the add-ons of a held Cluster are read, if nothing else is held: BundleDeployments are not
	// watched. If very many are held, and are read quickly, it is the longestWait.
	holdInterval = kinds.PollInterval
	// perHeld and restFactor lengthen the interval, so that many holds, or one Cluster whose add-ons take long to read, do
	// not load the API server: perHeld holds double it, and it is at least restFactor times as long as the last look took.
	perHeld    = 100
	restFactor = 10
)

// holdReconciler ends the holds that the webhook puts on Clusters whose version changes. It says on each
// Cluster that asks for holds how the last one went. It reads add-ons past the cache, and only for Clusters
// that are held now.
type holdReconciler struct {
	client.Client
	live        client.Reader // past the cache
	scopes      *scopeReader
	applier     *kube.Applier
	references  *references.Reader
	recorder    events.EventRecorder
	now         func() time.Time
	watchFilter string
	addOns      addOnReader

	mu sync.Mutex
	// held maps each held Cluster to its observed state.
	held map[types.NamespacedName]*heldCluster
	// messages are when a changed message alone was last written.
	messages times
}

// heldCluster is used by one reconcile at a time.
type heldCluster struct {
	memory hold.Memory
	// took is how long the last look at its add-ons took.
	took time.Duration
	// failed is the error of the last look, which is logged once.
	failed string
}

func newHoldReconciler(c *common, reader *references.Reader) *holdReconciler {
	scopes := &scopeReader{Reader: c.GetClient(), store: c.store}
	return &holdReconciler{
		Client: c.GetClient(), live: c.GetAPIReader(), scopes: scopes, applier: c.applier, references: reader,
		recorder: c.GetEventRecorder("muster-syncer"), now: time.Now, watchFilter: c.WatchFilter,
		addOns: addOnReader{live: c.GetAPIReader(), settings: c.settings, scopes: scopes, now: time.Now}, held: map[types.NamespacedName]*heldCluster{},
	}
}

func (r *holdReconciler) setUp(c *common) error {
	return ctrl.NewControllerManagedBy(c).Named("hold").
		WithOptions(controllerOptions(c.ClassConcurrency)).
		For(&clusterv1.Cluster{}, builder.WithPredicates(predicate.Or(watched(c.WatchFilter), isHeld), holdNews)).
		WatchesMetadata(newClass(), atLowPriority(c.events.clustersOfClass), builder.WithPredicates(classHoldNews)).
		Watches(&fleetv1.Cluster{}, enqueue(r.heldOf(c.events)), builder.WithPredicates(afterStart, fleetClusterNews(c.bundlesReady))).
		Complete(kube.Consistent(r))
}

// holdNews passes Clusters that ask for holds, and changes after which others may begin to, by their class.
var holdNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return asksForHolds(e.Object.(*clusterv1.Cluster)) },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*clusterv1.Cluster), e.ObjectNew.(*clusterv1.Cluster)
		return (asksForHolds(before) || asksForHolds(after)) && kube.News.Update(e) ||
			before.GetClassKey() != after.GetClassKey() || placeOf(before) != placeOf(after) ||
			capiannotations.IsPaused(before, before) != capiannotations.IsPaused(after, after)
	},
}

// isHeld passes Clusters whose upgrade is held. Any syncer ends a hold that is overdue.
var isHeld = predicate.NewPredicateFuncs(func(cluster client.Object) bool {
	_, found := cluster.GetAnnotations()[stamp.HookAnnotation]
	return found
})

// classHoldNews passes ClusterClasses that ask for holds, at the start too, and changes of that.
var classHoldNews = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return e.Object.GetAnnotations()[stamp.HoldAnnotation] != "" },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetAnnotations()[stamp.HoldAnnotation] != e.ObjectNew.GetAnnotations()[stamp.HoldAnnotation]
	},
}

// asksForHolds reports whether a Cluster asks for holds, or has the traces of one.
func asksForHolds(cluster *clusterv1.Cluster) bool {
	for _, key := range []string{stamp.HoldAnnotation, stamp.ClassHoldAnnotation, stamp.HookAnnotation} {
		if _, found := cluster.Annotations[key]; found {
			return true
		}
	}
	return meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetUpgradeHeldCondition) != nil
}

// placeOf returns where a Cluster is, by its condition.
func placeOf(cluster *clusterv1.Cluster) hold.Place {
	if last := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition); last != nil {
		return hold.PlaceOf(last.Status, last.Reason)
	}
	return hold.Out
}

// heldOf returns the Cluster of a Fleet Cluster if it is held.
func (r *holdReconciler) heldOf(all *enqueuer) func(context.Context, client.Object) []reconcile.Request {
	return func(ctx context.Context, fleetCluster client.Object) []reconcile.Request {
		its := all.clusterOfFleetCluster(ctx, fleetCluster)
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.DeleteFunc(its, func(request reconcile.Request) bool { return r.held[request.NamespacedName] == nil })
	}
}

// Reconcile ends the hold of one Cluster, or looks when to do so.
func (r *holdReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	found, err := r.applier.Store.Get(ctx, req.NamespacedName, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found || !cluster.DeletionTimestamp.IsZero() {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if isWatched(cluster, r.watchFilter) {
		if isMarked, err := r.mark(ctx, cluster); isMarked || err != nil {
			return settled(ctrl.Result{}, err)
		}
	}
	if !asksForHolds(cluster) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	return settled(r.reconcile(ctx, cluster))
}

// settled drops the errors of writes to a Cluster that has gone meanwhile, or has changed: the cache shows it soon, and
// its event need not pass holdNews.
func settled(result ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{}, kube.ErrBehind
	case kube.IsAbsent(err):
		return result, nil
	}
	return result, err
}

func (r *holdReconciler) reconcile(ctx context.Context, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(cluster)
	_, isHeld := cluster.Annotations[stamp.HookAnnotation]
	isUnwatched := !isWatched(cluster, r.watchFilter)
	if !isHeld || isUnwatched {
		r.forget(key)
	}
	reported := meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetUpgradeHeldCondition)
	state := hold.State{
		Cluster: hold.Cluster{
			Annotations: cluster.Annotations, Version: cluster.Spec.Topology.Version,
			Paused: capiannotations.IsPaused(cluster, cluster), Place: placeOf(cluster),
		},
		Unwatched: isUnwatched,
		Reported:  reported, Now: r.now(),
		Progress: func(of hold.Hold) hold.Progress { return r.progress(ctx, cluster, of) },
	}
	if isHeld {
		state.ControlPlane = r.controlPlaneVersion(ctx, cluster)
	}
	decision := hold.Decide(state)
	if decision.Release {
		written, err := r.applier.Patch(ctx, cluster, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{stamp.HookAnnotation: nil}},
		})
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("ending the hold of an upgrade: %w", err)
		}
		cluster = written.(*clusterv1.Cluster)
		r.forget(key)
	}
	wait, err := r.report(ctx, cluster, reported, decision.Tell)
	if err != nil {
		return ctrl.Result{}, err
	}
	if decision.End != nil {
		r.announce(cluster, decision.End)
	}
	again := kube.Sooner(decision.Again, wait)
	if isHeld && !decision.Release && !state.Paused && !isUnwatched {
		again = kube.Sooner(again, r.interval(key))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// mark copies the wish of a ClusterClass to a Cluster: the conditions of the webhook see nothing but the
// Cluster. It reports whether it wrote.
func (r *holdReconciler) mark(ctx context.Context, cluster *clusterv1.Cluster) (bool, error) {
	if capiannotations.IsPaused(cluster, cluster) || placeOf(cluster) == hold.Out {
		return false, nil
	}
	class, err := classMetadata(ctx, r, cluster.GetClassKey())
	if err != nil {
		return false, err
	}
	wanted := ""
	if class != nil {
		wanted = class.Annotations[stamp.HoldAnnotation]
	}
	if _, err := hold.Bound(map[string]string{stamp.HoldAnnotation: wanted}); err != nil {
		wanted = "" // It would only be repeated on every Cluster.
	}
	changes := stamp.Changes(cluster.Annotations, map[string]string{stamp.ClassHoldAnnotation: wanted})
	if changes == nil {
		return false, nil
	}
	_, err = r.applier.Patch(ctx, cluster, map[string]any{"metadata": map[string]any{"annotations": changes}})
	return true, err
}

// controlPlaneVersion returns the version that Cluster API has given the control plane; empty if unknown.
func (r *holdReconciler) controlPlaneVersion(ctx context.Context, cluster *clusterv1.Cluster) string {
	controlPlane, _, err := r.references.Objects(ctx, cluster)
	if err != nil {
		return ""
	}
	return givenVersion(controlPlane)
}

// givenVersion returns the version that a control plane should have. Those in a status are no proof of an upgrade: EKS and
// GKE report versions such as v1.31.4-eks-2d98532, which are older than v1.31.4 for Cluster API, for ever.
func givenVersion(controlPlane map[string]any) string {
	version, _, _ := unstructured.NestedString(controlPlane, "spec", "version")
	return version
}

// progress returns how far the add-ons of a held Cluster are. It logs an error instead of returning it: the next look would
// come sooner, however long this one took.
func (r *holdReconciler) progress(ctx context.Context, cluster *clusterv1.Cluster, of hold.Hold) hold.Progress {
	its := r.enter(client.ObjectKeyFromObject(cluster))
	began, last := r.now(), its.failed
	progress, err := r.observe(ctx, cluster, of, &its.memory)
	its.took, its.failed = r.now().Sub(began), ""
	if err == nil {
		return progress
	}
	if !kube.IsAbsent(err) {
		its.failed = err.Error()
	}
	if its.failed != "" && its.failed != last {
		ctrl.LoggerFrom(ctx).Error(err, "Reading the add-ons of a held Cluster failed")
	}
	return hold.Progress{Unreadable: true}
}

// observe reads how far the add-ons of a held Cluster are. It reads no HelmReleaseProxies while a Bundle is not ready.
func (r *holdReconciler) observe(ctx context.Context, cluster *clusterv1.Cluster, of hold.Hold, memory *hold.Memory) (hold.Progress, error) {
	deployments, err := r.addOns.deployments(ctx, cluster)
	if err != nil {
		return hold.Progress{}, err
	}
	// It is read after the BundleDeployments: Fleet deletes these together with it.
	seen, err := r.addOns.inFleet(ctx, cluster, of)
	if err != nil || seen.Home == "" {
		return hold.Progress{}, err
	}
	for i := range deployments {
		seen.All = append(seen.All, bundleOn(&deployments[i], cluster.Namespace))
	}
	if progress, isUnready := memory.Unready(of, seen); isUnready {
		return progress, nil
	}
	releases, err := r.addOns.releases(ctx, cluster, deployments)
	if err != nil {
		return hold.Progress{}, err
	}
	seen.All = append(seen.All, releases...)
	return memory.See(of, seen, r.now()), nil
}

// report gives the Cluster the wanted condition, unless it has it already. It returns the delay if only the
// message differs, and was written just now.
func (r *holdReconciler) report(ctx context.Context, cluster *clusterv1.Cluster, reported, wanted *metav1.Condition) (time.Duration, error) {
	var want []metav1.Condition
	if wanted != nil {
		want = append(want, *wanted)
	}
	conditions, changed := kube.Merge(cluster.Status.Conditions, []string{addonsv1.FleetUpgradeHeldCondition}, cluster.Generation, r.now(), want...)
	if changed == nil {
		return 0, nil
	}
	if wanted != nil && reported != nil && reported.Reason == wanted.Reason { // Only the message changes.
		if wait := r.messages.throttle(client.ObjectKeyFromObject(cluster), r.now()); wait > 0 {
			return wait, nil
		}
	}
	answer, err := kube.ApplyConditions(ctx, r, holdManager, cluster, conditions)
	if err != nil {
		return 0, err
	}
	if wanted != nil && wanted.Status == metav1.ConditionTrue && (reported == nil || reported.Status != wanted.Status) {
		r.announce(cluster, wanted)
	}
	return 0, r.applier.Store.Wrote(ctx, answer)
}

// announce emits the event of a hold that begins or ends, and counts the ends.
func (r *holdReconciler) announce(cluster *clusterv1.Cluster, condition *metav1.Condition) {
	kind := corev1.EventTypeNormal
	if hold.IsWarning(condition.Reason) {
		kind = corev1.EventTypeWarning
	}
	if condition.Status == metav1.ConditionFalse {
		metrics.UpgradeHoldEnded(condition.Reason)
	}
	r.recorder.Eventf(cluster, nil, kind, condition.Reason, "HoldUpgrade", "%s", message.Short(condition.Message, message.Note))
}

// interval is how often the add-ons of a held Cluster are read.
func (r *holdReconciler) interval(key types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	interval := min(holdInterval+holdInterval*time.Duration(len(r.held))/perHeld, longestWait)
	if its := r.held[key]; its != nil {
		interval = max(interval, restFactor*its.took)
	}
	return interval
}

// enter returns the state of a held Cluster, and creates the state if there is none.
func (r *holdReconciler) enter(key types.NamespacedName) *heldCluster {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[key] == nil {
		r.held[key] = &heldCluster{}
	}
	return r.held[key]
}

// forget drops the state of a hold that is over.
func (r *holdReconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, key)
	r.messages.Delete(key)
}

// mostReleaseNamespaces bounds how many namespaces are searched for the releases on one Cluster.
const mostReleaseNamespaces = 20

// addOnReader reads the add-ons of held Clusters from the API server.
type addOnReader struct {
	live     client.Reader
	settings *settings.Reader
	scopes   *scopeReader
	now      func() time.Time
}

// deployments returns the BundleDeployments of a Cluster, except that of Fleet's agent. Their namespace
// follows from names: what a Fleet Cluster says of it, tenants can write.
func (r addOnReader) deployments(ctx context.Context, cluster *clusterv1.Cluster) ([]fleetv1.BundleDeployment, error) {
	name := stamp.PinOf(cluster.Annotations).ClusterName
	var all fleetv1.BundleDeploymentList
	if err := r.live.List(ctx, &all, client.InNamespace(stamp.FleetNamespace(cluster.Namespace, name)), client.MatchingLabels{
		fleetv1.ClusterNamespaceLabel: cluster.Namespace, fleetv1.ClusterLabel: name,
	}); err != nil {
		return nil, fmt.Errorf("listing the BundleDeployments of a held Cluster: %w", err)
	}
	var result []fleetv1.BundleDeployment
	for i := range all.Items {
		if all.Items[i].Labels[fleetv1.BundleLabel] != stamp.AgentBundle(name) {
			result = append(result, all.Items[i])
		}
	}
	return result, nil
}

// inFleet returns which Fleet Cluster and namespace a Cluster has in Fleet, since when, and whether the Fleet Cluster has the
// new version or will not get it. Home is empty while one of them is missing or being deleted: Fleet then takes the
// BundleDeployments away, and deploys everything again afterwards.
func (r addOnReader) inFleet(ctx context.Context, cluster *clusterv1.Cluster, of hold.Hold) (hold.AddOns, error) {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return hold.AddOns{}, err
	}
	fleet, namespace := &fleetv1.Cluster{}, namespaceMetadata()
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName}
	err = r.live.Get(ctx, key, fleet)
	if err == nil && fleet.Labels[fleetv1.ClusterManagementLabel] == "" { // Otherwise Fleet ignores it.
		err = r.live.Get(ctx, client.ObjectKey{Name: stamp.FleetNamespace(key.Namespace, key.Name)}, namespace)
	}
	if err != nil {
		if kube.IsAbsent(err) {
			return hold.AddOns{}, nil
		}
		return hold.AddOns{}, fmt.Errorf("reading the Fleet Cluster of a held Cluster: %w", err)
	}
	relation, _ := r.scopes.relationOf(ctx, fleet, cluster)
	if relation != stamp.Own || !fleet.DeletionTimestamp.IsZero() || namespace.DeletionTimestamp != nil {
		return hold.AddOns{}, nil
	}
	seen := hold.AddOns{Home: string(fleet.UID + namespace.UID), Since: fleet.CreationTimestamp.Time}
	if namespace.CreationTimestamp.After(seen.Since) {
		seen.Since = namespace.CreationTimestamp.Time
	}
	version, found := "", false
	if fleet.Spec.TemplateValues != nil {
		version, found, _ = unstructured.NestedString(fleet.Spec.TemplateValues.Data, hold.TopologyVersion...)
	}
	switch {
	case in.Invalid != nil: // The Fleet Cluster may get the version later.
		seen.Handed = found && version == of.To
	case !in.Cluster.Enabled, !in.Cluster.PatchResource:
		seen.Handed = true
	default:
		seen.Handed = !found || version == of.To // It is not found if the settings exclude it.
	}
	return seen, nil
}

// hasValues reports whether Fleet renders values for a BundleDeployment. It keeps them in a Secret, and of
// a template in them only the result: whether they depend on the version cannot be seen.
func hasValues(deployment *fleetv1.BundleDeployment) bool {
	helm := deployment.Spec.Options.Helm
	return (helm == nil || !helm.DisablePreProcess) &&
		(deployment.Spec.ValuesHash != "" || helm != nil && (len(helm.TemplateValues) > 0 || helm.Values != nil && len(helm.Values.Data) > 0))
}

// bundleOn returns the add-on of a BundleDeployment. The values of Bundles that Muster made for
// HelmChartProxies are not Fleet's to render.
func bundleOn(deployment *fleetv1.BundleDeployment, namespace string) hold.AddOn {
	bundle := deployment.Labels[fleetv1.BundleLabel]
	name := bundle
	if of := deployment.Labels[fleetv1.BundleNamespaceLabel]; of != namespace {
		name = of + "/" + name
	}
	spec, status := &deployment.Spec, &deployment.Status
	its := hold.AddOn{
		Name: "Bundle " + name, ID: spec.StagedDeploymentID, Changed: specTime(deployment), ByFleet: true,
		Ready: spec.StagedDeploymentID == spec.DeploymentID && status.AppliedDeploymentID == spec.DeploymentID && status.Ready,
	}
	if hasValues(deployment) && !plan.MayBeOurs(bundle) {
		its.Patience = hold.Settle
	}
	return its
}

// specTime returns when the fields of an object, other than its status, were last changed.
func specTime(object metav1.Object) time.Time {
	var last time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

const (
	// mostReleasePages bounds the HelmReleaseProxies of one Cluster in one namespace, and mostProxyPages all
	// HelmChartProxies that one look reads: some tools make one for each Cluster and add-on.
	mostReleasePages, mostProxyPages = 25, 500
	// mostSelecting bounds the HelmChartProxies that select one Cluster.
	mostSelecting = 500
)

// releases returns the releases of HelmChartProxies on a Cluster; none if there are no such kinds.
func (r addOnReader) releases(ctx context.Context, cluster *clusterv1.Cluster, deployments []fleetv1.BundleDeployment) ([]hold.AddOn, error) {
	round := &releaseRound{addOnReader: r, cluster: cluster, deployments: deployments, proxyPages: mostProxyPages, proxies: map[types.NamespacedName]*chartProxy{}, has: map[types.NamespacedName]bool{}}
	for namespace := range releaseNamespaces(cluster, deployments) {
		err := round.list(ctx, namespace)
		if kube.IsUnserved(err) || meta.IsNoMatchError(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the HelmChartProxies of a held Cluster in namespace %s: %w", namespace, err)
		}
	}
	return round.all, nil
}

// list adds the releases of the HelmChartProxies in a namespace that select the Cluster, also those that do not exist
// yet. Anyone who may write HelmReleaseProxies somewhere could hold the upgrade, so the others do not count.
func (r *releaseRound) list(ctx context.Context, namespace string) error {
	var proxies addonsv1.HelmChartProxyList
	if err := r.pages(ctx, &proxies, &r.proxyPages, func() {
		for i := range proxies.Items {
			// With the finalizer of cluster-api-addon-provider-helm, that installs the release.
			its := &proxies.Items[i]
			isOfOthers := len(its.Finalizers) > 0 && !controllerutil.ContainsFinalizer(its, plan.Finalizer)
			if its.DeletionTimestamp.IsZero() && !isOfOthers && len(r.proxies) <= mostSelecting && r.selects(ctx, its, r.cluster) {
				r.proxies[client.ObjectKeyFromObject(its)] = newChartProxy(its, r.now())
			}
		}
		proxies.Items = nil
	}, client.InNamespace(namespace)); err != nil {
		return err
	}
	if len(r.proxies) > mostSelecting {
		return fmt.Errorf("more than %d select it", mostSelecting)
	}
	label, _ := stamp.LabelValue(r.cluster.Name)
	var releases addonsv1.HelmReleaseProxyList
	left := mostReleasePages
	if err := r.pages(ctx, &releases, &left, func() {
		for i := range releases.Items {
			r.add(&releases.Items[i])
		}
		releases.Items = nil
	}, client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: label}); err != nil {
		return err
	}
	for key, proxy := range r.proxies {
		if key.Namespace == namespace && !r.has[key] && proxy.isAwaited {
			r.all = append(r.all, hold.AddOn{Name: r.nameOf(proxy)})
		}
	}
	return nil
}

// pages lists objects, and calls each after each page. It takes the pages from left.
func (r addOnReader) pages(ctx context.Context, list client.ObjectList, left *int, each func(), options ...client.ListOption) error {
	for ; *left > 0; *left-- {
		next := list.GetContinue()
		list.SetContinue("") // The last page leaves it as it is.
		if err := r.live.List(ctx, list, append(options, pager.Small, client.Continue(next))...); err != nil {
			return err
		}
		each()
		if list.GetContinue() == "" {
			return nil
		}
	}
	return errors.New("there are too many")
}

// releaseNamespaces returns the namespaces whose HelmChartProxies reach the Cluster.
func releaseNamespaces(cluster *clusterv1.Cluster, deployments []fleetv1.BundleDeployment) map[string]bool {
	namespaces := map[string]bool{cluster.Namespace: true}
	for i := range deployments {
		its := deployments[i].Labels
		if namespace := its[plan.ProxyNamespaceLabel]; namespace != "" && plan.MayBeOurs(its[fleetv1.BundleLabel]) && len(namespaces) < mostReleaseNamespaces {
			namespaces[namespace] = true
		}
	}
	return namespaces
}

// releaseRound collects the releases on one Cluster.
type releaseRound struct {
	addOnReader
	cluster     *clusterv1.Cluster
	deployments []fleetv1.BundleDeployment
	// proxyPages is how many more pages of HelmChartProxies may be read.
	proxyPages int
	// proxies are the HelmChartProxies that select the Cluster, and has those with a HelmReleaseProxy for it.
	proxies map[types.NamespacedName]*chartProxy
	has     map[types.NamespacedName]bool
	all     []hold.AddOn
}

// chartProxy is the part of a HelmChartProxy that a round keeps. The object itself may have a megabyte, and tenants may
// write hundreds. The fields below are computed once for all HelmReleaseProxies, as many of them may be forged.
type chartProxy struct {
	// HelmChartProxy has only the fields that count here for plan.TargetOf and plan.IsInstallOnce.
	*addonsv1.HelmChartProxy
	isUpToDate, isPolled, isAwaited bool
}

func newChartProxy(of *addonsv1.HelmChartProxy, now time.Time) *chartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, UID: of.UID}}
	if plan.IsInstallOnce(of) {
		its.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	}
	if plan.HasValues(of) {
		its.Spec.ValuesTemplate = "any"
	}
	return &chartProxy{HelmChartProxy: its, isUpToDate: plan.IsUpToDate(of), isPolled: len(of.Spec.ValuesFrom) > 0, isAwaited: isAwaited(of, now)}
}

// isAwaited reports whether Muster installs a HelmChartProxy on Clusters that have no HelmReleaseProxy for it yet. One that has
// no finalizer of Muster's for long does not hold upgrades: component helm is off, or its watch filter excludes it.
func isAwaited(proxy *addonsv1.HelmChartProxy, now time.Time) bool {
	return controllerutil.ContainsFinalizer(proxy, plan.Finalizer) || !capiannotations.HasPaused(proxy) &&
		!meta.IsStatusConditionTrue(proxy.Status.Conditions, addonsv1.NotManagedCondition) && now.Sub(proxy.CreationTimestamp.Time) < patience
}

// nameOf names a HelmChartProxy in a message.
func (r *releaseRound) nameOf(proxy *chartProxy) string {
	if proxy.Namespace != r.cluster.Namespace {
		return "HelmChartProxy " + proxy.Namespace + "/" + proxy.Name
	}
	return "HelmChartProxy " + proxy.Name
}

// add adds the add-on of a HelmReleaseProxy, if there is one.
func (r *releaseRound) add(release *addonsv1.HelmReleaseProxy) {
	owner := plan.OwnerOf(release)
	if owner == nil || plan.ClusterOf(release) != client.ObjectKeyFromObject(r.cluster) || !release.DeletionTimestamp.IsZero() {
		return
	}
	key := types.NamespacedName{Namespace: release.Namespace, Name: owner.Name}
	proxy := r.proxies[key]
	if proxy == nil || proxy.UID != owner.UID {
		return
	}
	r.has[key] = true
	record := plan.RecordOf(release)
	addOn := hold.AddOn{Name: r.nameOf(proxy), ID: fmt.Sprintf("%s %d", record.Digest, record.Revision)}
	if plan.IsInstallOnce(proxy.HelmChartProxy) && record.Installed {
		addOn.Ready = true
		r.all = append(r.all, addOn)
		return
	}
	if proxy.isPolled { // The ConfigMap may have changed together with the version.
		addOn.ReadAtIntervals, addOn.Patience = true, plan.PollInterval+hold.Settle
	}
	// Without a BundleDeployment of its own, the release is that of another HelmChartProxy, if that has deployed it.
	isTaken := plan.IsTaken(release)
	addOn.Ready = isTaken && slices.ContainsFunc(r.deployments, func(its fleetv1.BundleDeployment) bool { return plan.Deploys(&its, plan.ReleaseOf(release)) })
	target, isTarget := plan.TargetOf(proxy.HelmChartProxy, release, record)
	for i := range r.deployments {
		its := &r.deployments[i]
		if !isTarget || its.Name != release.Annotations[plan.BundleAnnotation] {
			continue
		}
		addOn.Changed = specTime(its)
		addOn.Ready = proxy.isUpToDate && r.isRendered(release, record) && plan.Observe(its, plan.Wanted{Content: its.Labels[plan.ContentLabel], Target: target}).Ready &&
			(isTaken || plan.IsReady(release)) &&
			(record.Rollout == nil || record.Rollout.Pending == "")
	}
	r.all = append(r.all, addOn)
}

// isRendered reports whether the values of a release are those for the Cluster's version. A record without a version says
// that they cannot depend on it. One that is copied from another release, or older than clusterctl move, is not about this one.
func (r *releaseRound) isRendered(release *addonsv1.HelmReleaseProxy, record plan.Record) bool {
	return record.Version == "" || record.Version == r.cluster.Spec.Topology.Version &&
		record.Of != nil && *record.Of == plan.Of{Cluster: r.cluster.UID, Release: release.UID}
}

// selects reports whether a HelmChartProxy selects a Cluster.
func (r addOnReader) selects(ctx context.Context, proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) bool {
	selector, trouble := plan.NewSelector(proxy)
	if trouble != nil || selector.Namespace() != "" && selector.Namespace() != cluster.Namespace {
		return false
	}
	return selector.Matches(cluster, func(name string) labels.Set {
		namespace := namespaceMetadata()
		if r.scopes.Get(ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy) != nil {
			return nil // The only error of a cache is NotFound.
		}
		return labels.Merge(nil, namespace.Labels) // Not nil: the Namespace exists.
	})
}
