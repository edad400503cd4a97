package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	gosync "sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

var (
	managementKind   = schema.GroupVersionKind{Group: "management.cattle.io", Version: "v3", Kind: "Cluster"}
	provisioningKind = schema.GroupVersionKind{Group: "provisioning.cattle.io", Version: "v1", Kind: "Cluster"}
)

const provisioningCRD = "clusters.provisioning.cattle.io"

// Indexes of Rancher's objects.
const (
	byOwner      = "muster.owner"      // "<namespace>/<name>" of the CAPI Cluster that a management Cluster names
	byManagement = "muster.management" // name of the management Cluster of a provisioning Cluster
	byAttached   = "muster.attached"   // "<namespace>/<name>" of the CAPI Cluster that is attached to a Fleet Cluster
	byRancher    = "muster.rancher"    // name of the management Cluster that the label of a Fleet Cluster names, or the annotation of a CAPI Cluster
)

// rancherPatience is how long the API server may take to list Rancher's objects before a Cluster
// reports the delay.
const rancherPatience = 30 * time.Second

// errRancherUnlisted means that the cache does not hold all of Rancher's objects yet. Until it does,
// Muster imports no Cluster, since Rancher may manage it.
var errRancherUnlisted = errors.New("the Clusters of Rancher are not all read yet")

// rancher reads Rancher's objects. It watches them while Rancher's CRD exists, from the first read on.
type rancher struct {
	client.Reader
	newCache kinds.NewCache
	ctx      context.Context //nolint:containedctx // the program's, which ends the watches
	// namespaces are those that the Reader reads; empty for all.
	namespaces map[string]cache.Config
	now        func() time.Time

	mu gosync.Mutex
	// queue belongs to the controller of Clusters. Changes of Rancher's objects add Clusters to it.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// crd is the UID of the CRD at the time the watches began, and stops end them; empty while nothing is watched.
	crd    types.UID
	since  time.Time
	stops  []context.CancelFunc
	listed map[schema.GroupVersionKind]kinds.Listed
}

func newRancher(ctx context.Context, reader client.Reader, newCache kinds.NewCache) *rancher {
	return &rancher{Reader: reader, newCache: newCache, ctx: ctx, now: time.Now}
}

// source gives rancher the queue of the controller that reconciles Clusters.
func (r *rancher) source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = queue
		return nil
	})
}

// surroundings are what a reconcile reads around a Cluster before all else, once.
type surroundings struct {
	namespaceLabels map[string]string
	beside          stamp.Beside
	// attached are the Fleet Clusters to which a Cluster of this name is attached, read-only.
	attached []fleetv1.Cluster
}

// around reads the surroundings of a Cluster.
func (r *rancher) around(ctx context.Context, in settings.Cluster, cluster *clusterv1.Cluster, namespaceLabels map[string]string) (found surroundings, err error) {
	found.namespaceLabels = namespaceLabels
	if found.beside, err = r.beside(ctx, in, cluster, namespaceLabels); err != nil {
		return found, err
	}
	found.attached, err = r.attached(ctx, client.ObjectKeyFromObject(cluster))
	return found, err
}

// beside uses Rancher's objects to decide how a Cluster comes into Fleet.
func (r *rancher) beside(ctx context.Context, in settings.Cluster, cluster *clusterv1.Cluster, namespaceLabels map[string]string) (stamp.Beside, error) {
	if r == nil || stamp.RancherMode(in, cluster.Annotations) == addonsv1.RancherOff {
		return stamp.Beside{Way: stamp.Import}, nil
	}
	if err := r.watch(ctx); err != nil {
		return stamp.Beside{}, err
	}
	read := &rancherObjects{r, ctx, nil}
	result := stamp.BesideRancher(in, cluster, namespaceLabels, read)
	return result, read.err
}

// attached lists the Fleet Clusters to which a CAPI Cluster of this name is attached.
func (r *rancher) attached(ctx context.Context, cluster types.NamespacedName) ([]fleetv1.Cluster, error) {
	var list fleetv1.ClusterList
	if r == nil {
		return nil, nil
	}
	if err := r.List(ctx, &list, client.MatchingFields{byAttached: cluster.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing attached Fleet Clusters: %w", err)
	}
	return list.Items, nil
}

// watch begins to watch Rancher's objects when Rancher's CRD appears, and stops when the CRD is gone. It returns
// errRancherUnlisted until the caches hold all of them.
func (r *rancher) watch(ctx context.Context) error {
	crd, err := r.crdOf(ctx, stamp.ManagementCRD)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crd != crd {
		for _, stop := range r.stops {
			stop()
		}
		ctrl.LoggerFrom(ctx).Info("Rancher's CRD has come or gone", "exists", crd != "")
		r.crd, r.since, r.stops, r.listed = crd, r.now(), nil, map[schema.GroupVersionKind]kinds.Listed{}
	}
	if crd == "" {
		return nil
	}
	return r.list(ctx)
}

// crdOf returns the UID of a CRD; empty if it does not exist. While it is being deleted, Rancher's
// objects and its agents are still there.
func (r *rancher) crdOf(ctx context.Context, name string) (types.UID, error) {
	crd := references.CRD()
	err := r.Get(ctx, client.ObjectKey{Name: name}, crd, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading CRD %s: %w", name, err)
	default:
		return crd.UID, nil
	}
}

// list begins the watches that are missing, and returns nil if the caches hold all objects. The caller holds the
// lock.
func (r *rancher) list(ctx context.Context) error {
	// Without Rancher's other CRD, no Cluster has a Fleet Cluster of Rancher's.
	provisioning, err := r.crdOf(ctx, provisioningCRD)
	if err != nil {
		return err
	}
	r.begin(managementKind, map[string]client.IndexerFunc{byOwner: ownerOf})
	if provisioning != "" {
		r.begin(provisioningKind, map[string]client.IndexerFunc{byManagement: managementNameOf})
	}
	for _, its := range r.listed {
		switch {
		case its.Objects != nil:
		case r.now().Sub(r.since) < rancherPatience:
			return errRancherUnlisted
		default:
			return fmt.Errorf("the API server has not listed Rancher's Clusters in %s; the syncer needs the ClusterRole muster-syncer-rancher, or spec.rancher.mode: \"Off\" in the FleetAddonConfig", rancherPatience)
		}
	}
	return nil
}

// begin watches a kind, unless it is watched. The caller holds the lock.
func (r *rancher) begin(kind schema.GroupVersionKind, indexes map[string]client.IndexerFunc) {
	if _, isBegun := r.listed[kind]; isBegun {
		return
	}
	ctx, stop := context.WithCancel(r.ctx) //nolint:gosec // The stops are called when the CRD goes.
	r.listed[kind], r.stops = kinds.Listed{}, append(r.stops, stop)
	go kinds.Watch(ctx, r.newCache, kinds.Of(ofRancher(kind), indexes), func(listed kinds.Listed) {
		if listed.Err != nil {
			ctrl.LoggerFrom(ctx).Info("Rancher's objects cannot be listed yet", "kind", kind.String(), "reason", listed.Err.Error())
			return
		}
		r.mu.Lock()
		if ctx.Err() == nil {
			r.listed[kind] = listed
		}
		r.mu.Unlock()
		if _, err := listed.Informer.AddEventHandler(r.events()); err != nil { // The informer has been stopped.
			return
		}
		r.enqueueAll(ctx)
	})
}

// enqueueAll enqueues all CAPI Clusters: any of them may have waited for a list.
func (r *rancher) enqueueAll(ctx context.Context) {
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	if queue == nil {
		return
	}
	clusters := (&enqueuer{Reader: r.Reader}).allClusters(ctx, nil)
	kube.Enqueue(queue, priorityqueue.AddOpts{Priority: new(behindPriority)}, clusters...)
}

// events enqueues the CAPI Clusters that changes of Rancher's objects concern; the end of the list enqueues all.
func (r *rancher) events() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, isInInitialList bool) {
			if !isInInitialList {
				r.enqueue(object.(client.Object))
			}
		},
		UpdateFunc: func(before, after any) {
			if old, object := before.(client.Object), after.(client.Object); !isSameToRancher(old, object) {
				r.enqueue(old)
				r.enqueue(object)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			r.enqueue(object.(client.Object))
		},
	}
}

func (r *rancher) enqueue(object client.Object) {
	ctx := context.Background() // All reads are from the cache.
	read := &rancherObjects{r, ctx, nil}
	var keys map[types.NamespacedName]bool
	if object.GetObjectKind().GroupVersionKind().Group == managementKind.Group {
		keys = read.concernedBy(object.GetName())
		keys[managementOf(object).Owner] = true
	} else {
		provisioning := provisioningOf(object)
		keys = read.concernedBy(provisioning.Management)
		keys[provisioning.NamespacedName] = true
	}
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	for key := range keys {
		if key.Name != "" && queue != nil {
			queue.Add(reconcile.Request{NamespacedName: key})
		}
	}
}

// rancherObjects gives one decision its view of Rancher's objects.
type rancherObjects struct {
	*rancher
	ctx context.Context //nolint:containedctx // of the one decision that it is made for
	err error
}

var _ stamp.RancherObjects = (*rancherObjects)(nil)

// concernedBy returns the CAPI Clusters that a management Cluster of this name may concern, or that it
// has concerned.
func (o *rancherObjects) concernedBy(management string) map[types.NamespacedName]bool {
	keys := map[types.NamespacedName]bool{}
	if found, ok := o.Management(management); ok {
		keys[found.Owner] = true
	}
	for _, provisioning := range o.ProvisioningOf(management) {
		keys[provisioning.NamespacedName] = true
	}
	var noted clusterv1.ClusterList
	if management != "" && o.found(o.List(o.ctx, &noted, client.MatchingFields{byRancher: management}, client.UnsafeDisableDeepCopy)) {
		for i := range noted.Items {
			keys[client.ObjectKeyFromObject(&noted.Items[i])] = true
		}
	}
	return keys
}

// Claims returns the management Clusters whose labels name a CAPI Cluster.
func (o *rancherObjects) Claims(cluster types.NamespacedName) (claims []stamp.Management) {
	for _, object := range o.listOf(managementKind, byOwner, cluster.String()) {
		claims = append(claims, managementOf(&object))
	}
	return claims
}

// Management returns a management Cluster.
func (o *rancherObjects) Management(name string) (stamp.Management, bool) {
	object := ofRancher(managementKind)
	found := o.get(types.NamespacedName{Name: name}, object)
	return managementOf(object), found
}

// Provisioning returns a provisioning Cluster.
func (o *rancherObjects) Provisioning(key types.NamespacedName) (stamp.Provisioning, bool) {
	object := ofRancher(provisioningKind)
	found := o.get(key, object)
	return provisioningOf(object), found
}

// ProvisioningOf returns the provisioning Clusters of a management Cluster.
func (o *rancherObjects) ProvisioningOf(management string) (provisioned []stamp.Provisioning) {
	for _, object := range o.listOf(provisioningKind, byManagement, management) {
		provisioned = append(provisioned, provisioningOf(&object))
	}
	return provisioned
}

// FleetCluster returns a Fleet Cluster, or nil.
func (o *rancherObjects) FleetCluster(key types.NamespacedName) metav1.Object {
	fleet := &fleetv1.Cluster{}
	if !o.found(o.Get(o.ctx, key, fleet, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	return fleet
}

// FleetClustersOf returns the Fleet Clusters that carry the label of a management Cluster.
func (o *rancherObjects) FleetClustersOf(management string) (keys []types.NamespacedName) {
	var list fleetv1.ClusterList
	if !o.found(o.List(o.ctx, &list, client.MatchingFields{byRancher: management}, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	for i := range list.Items {
		keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
	}
	return keys
}

// Reads reports whether the flag --namespace lets the syncer read a namespace.
func (o *rancherObjects) Reads(namespace string) bool {
	return isRead(o.namespaces, namespace)
}

// isRead reports whether a namespace is one of these, which stand for all if there are none.
func isRead(namespaces map[string]cache.Config, namespace string) bool {
	_, found := namespaces[namespace]
	return found || len(namespaces) == 0
}

// IsThere reports whether Rancher's CRD exists.
func (o *rancherObjects) IsThere() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.crd != ""
}

// reader returns a reader of a kind, or nil if its objects are not listed.
func (o *rancherObjects) reader(kind schema.GroupVersionKind) client.Reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	if objects := o.listed[kind].Objects; objects != nil {
		return objects
	}
	return nil
}

func (o *rancherObjects) get(key types.NamespacedName, object *unstructured.Unstructured) bool {
	reader := o.reader(object.GroupVersionKind())
	return key.Name != "" && reader != nil && o.found(reader.Get(o.ctx, key, object, client.UnsafeDisableDeepCopy))
}

func (o *rancherObjects) listOf(kind schema.GroupVersionKind, index, value string) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if reader := o.reader(kind); value == "" || reader == nil || !o.found(reader.List(o.ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	return list.Items
}

// found notes an error, unless it says that the object does not exist.
func (o *rancherObjects) found(err error) bool {
	if client.IgnoreNotFound(err) != nil {
		o.err = errors.Join(o.err, fmt.Errorf("reading Rancher's objects: %w", err))
	}
	return err == nil
}

func ofRancher(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// trimRancher is a cache transform: it keeps only the fields of Rancher's objects that the syncer
// reads.
func trimRancher(object any) (any, error) {
	whole, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	slim := ofRancher(whole.GroupVersionKind())
	slim.SetNamespace(whole.GetNamespace())
	slim.SetName(whole.GetName())
	slim.SetUID(whole.GetUID())
	slim.SetResourceVersion(whole.GetResourceVersion())
	slim.SetDeletionTimestamp(whole.GetDeletionTimestamp())
	slim.SetLabels(stamp.RancherKeys(whole.GetLabels()))
	slim.SetAnnotations(stamp.RancherKeys(whole.GetAnnotations()))
	for _, path := range [][]string{{"spec", "fleetWorkspaceName"}, {"status", "clusterName"}} {
		if value, _, _ := unstructured.NestedString(whole.Object, path...); value != "" {
			_ = unstructured.SetNestedField(slim.Object, value, path...) // The parent is missing, or a map.
		}
	}
	if isReady(whole) {
		_ = unstructured.SetNestedSlice(slim.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
	}
	return slim, nil
}

func isReady(object *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(condition any) bool {
		fields, _ := condition.(map[string]any)
		return fields["type"] == "Ready" && fields["status"] == "True"
	})
}

// isSameToRancher reports whether an update changes no cached field.
func isSameToRancher(before, after client.Object) bool {
	old, object := before.(*unstructured.Unstructured).DeepCopy(), after.(*unstructured.Unstructured).DeepCopy()
	old.SetResourceVersion("")
	object.SetResourceVersion("")
	return equality.Semantic.DeepEqual(old, object)
}

func managementOf(object client.Object) stamp.Management {
	whole := object.(*unstructured.Unstructured)
	workspace, _, _ := unstructured.NestedString(whole.Object, "spec", "fleetWorkspaceName")
	return stamp.ManagementOf(whole, workspace, isReady(whole))
}

func provisioningOf(object client.Object) stamp.Provisioning {
	whole := object.(*unstructured.Unstructured)
	name, _, _ := unstructured.NestedString(whole.Object, "status", "clusterName")
	return stamp.Provisioning{NamespacedName: client.ObjectKeyFromObject(whole), UID: whole.GetUID(), Management: name}
}

// rancherCRD passes Rancher's CRDs when they appear or go.
var rancherCRD = predicate.And(predicate.NewPredicateFuncs(func(crd client.Object) bool {
	return crd.GetName() == stamp.ManagementCRD || crd.GetName() == provisioningCRD
}), predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	},
})
