// Package rancher attaches Clusters that Rancher manages to Rancher's Fleet Clusters. relation.go decides how a Cluster
// comes into Fleet; client.go watches Rancher's objects while its CRD exists, and attach.go writes.
package rancher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
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

const (
	byAttached = "muster.attached" // "<namespace>/<name>" of the CAPI Cluster that is attached to a Fleet Cluster
	byRancher  = "muster.rancher"  // name of the management Cluster that the label of a Fleet Cluster names, or the note on a CAPI Cluster
)

// IndexFields indexes Clusters and Fleet Clusters as a Client needs it.
func IndexFields(ctx context.Context, indexer client.FieldIndexer) error {
	return errors.Join(
		indexer.IndexField(ctx, &clusterv1.Cluster{}, byRancher, func(cluster client.Object) []string { return value(NotedOn(cluster)) }),
		indexer.IndexField(ctx, &fleetv1.Cluster{}, byRancher, func(fleet client.Object) []string { return value(objectOf(fleet).Management) }),
		indexer.IndexField(ctx, &fleetv1.Cluster{}, byAttached, func(fleet client.Object) []string {
			if !IsAttached(fleet) {
				return nil
			}
			return value(fleet.GetAnnotations()[stamp.AttachedAnnotation])
		}),
	)
}

// ErrUnlisted means that the cache does not hold all of Rancher's objects yet.
var ErrUnlisted = errors.New("the Clusters of Rancher are not all read yet")

// Client reads Rancher's objects, and attaches Clusters to its Fleet Clusters. It watches the objects while Rancher's
// CRD exists, from the first question on. A nil Client stands for a management cluster without Rancher.
type Client struct {
	*kube.Applier
	client.Reader
	// namespaces are those that the Reader reads; empty for all.
	namespaces map[string]cache.Config
	newCache   kinds.NewCache
	ctx        context.Context //nolint:containedctx // the program's, which ends the watches
	// queue belongs to the controller of Clusters, once started is closed. Changes of Rancher's objects add Clusters to it.
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	started chan struct{}
	// Listed gets an event, of an empty FleetAddonConfig, when a kind has been listed, or Rancher's CRD has gone: namespaces may
	// have waited for that.
	Listed chan event.GenericEvent

	mu sync.Mutex
	// crd is the UID of the CRD when the watches began; empty while nothing is watched. since is when the last of them began,
	// and watching is their context.
	crd      types.UID
	since    time.Time
	watching context.Context //nolint:containedctx // of the watches
	stop     context.CancelFunc
	// listed are the kinds that are watched, with nil for those that are not listed yet.
	listed map[schema.GroupVersionKind]client.Reader
}

// NewClient returns a Client. Its caches hold Rancher's objects, and are to Trim them.
func NewClient(ctx context.Context, applier *kube.Applier, namespaces map[string]cache.Config, newCache kinds.NewCache) *Client {
	return &Client{Applier: applier, Reader: applier.Client, namespaces: namespaces, newCache: newCache, ctx: ctx, started: make(chan struct{}), Listed: make(chan event.GenericEvent, 1), stop: func() {}}
}

// Source gives the Client the queue of the controller that reconciles Clusters. It may be started once.
func (c *Client) Source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		c.queue = queue
		close(c.started)
		return nil
	})
}

// Relation returns the relation of a Cluster to Rancher.
func (c *Client) Relation(ctx context.Context, in settings.Cluster, cluster *clusterv1.Cluster, namespaceLabels map[string]string) (its Relation) {
	if c == nil {
		return Relation{}
	}
	if modeOf(in, cluster) != addonsv1.RancherOff {
		read, err := c.read(ctx)
		if err == nil {
			its = decide(in, cluster, namespaceLabels, read)
			err = read.err
		}
		if err != nil {
			its = Relation{Way: Wait, Management: cluster.Annotations[NoteAnnotation], Unknown: err}
		}
	}
	attached, err := c.attached(ctx, client.ObjectKeyFromObject(cluster))
	its.Attached, its.Unknown = attached, errors.Join(its.Unknown, err)
	return its
}

// Recheck reads past the cache whether Rancher has a Fleet Cluster for a Cluster that it no longer manages, before
// Muster forgets that Rancher has managed the Cluster. If so, the Cluster waits.
func (c *Client) Recheck(ctx context.Context, its *Relation) (waits bool, err error) {
	if its.Left == "" {
		return false, nil
	}
	left := &metav1.PartialObjectMetadataList{}
	left.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterList"))
	if err := c.Live.List(ctx, left, client.MatchingLabels{stamp.RancherClusterLabel: its.Left}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("listing the Fleet Clusters of Rancher: %w", err)
	}
	if len(left.Items) == 0 {
		return false, nil
	}
	its.Way, its.For, its.Management = Wait, leftBehind(its.Left, client.ObjectKeyFromObject(&left.Items[0])), its.Left
	return true, nil
}

// attached lists the Fleet Clusters to which a CAPI Cluster of this name is attached.
func (c *Client) attached(ctx context.Context, cluster types.NamespacedName) ([]fleetv1.Cluster, error) {
	var list fleetv1.ClusterList
	if err := c.List(ctx, &list, client.MatchingFields{byAttached: cluster.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing attached Fleet Clusters: %w", err)
	}
	return list.Items, nil
}

// read returns Rancher's objects. It begins to watch them when Rancher's CRD appears, and stops when the CRD is gone.
// The error is ErrUnlisted until the caches hold all of them.
func (c *Client) read(ctx context.Context) (*reading, error) {
	var provisioning types.UID
	crd, err := c.crdOf(ctx, ManagementCRD)
	if err == nil && crd != "" {
		provisioning, err = c.crdOf(ctx, ProvisioningCRD)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crd != crd {
		ctrl.LoggerFrom(ctx).Info("Rancher's CRD has come or gone", "exists", crd != "")
		c.stop()
		c.crd, c.listed = crd, map[schema.GroupVersionKind]client.Reader{}
		c.watching, c.stop = context.WithCancel(c.ctx)
		c.wakeNamespaces()
	}
	if crd == "" {
		return &reading{Client: c, ctx: ctx}, nil
	}
	c.begin(ManagementKind)
	if provisioning != "" { // Without, no Cluster has a Fleet Cluster of Rancher's.
		c.begin(ProvisioningKind)
	}
	for _, objects := range c.listed {
		switch {
		case objects != nil:
		case time.Since(c.since) < kinds.Patience:
			return nil, ErrUnlisted
		default:
			return nil, fmt.Errorf("the API server has not listed Rancher's Clusters in %s; the syncer needs the ClusterRole muster-syncer-rancher, or spec.rancher.mode: \"Off\" in the FleetAddonConfig", kinds.Patience)
		}
	}
	return &reading{Client: c, ctx: ctx, listed: maps.Clone(c.listed)}, nil
}

// crdOf returns the UID of a CRD; empty if it does not exist. While it is being deleted, Rancher's objects and its
// agents are still there.
func (c *Client) crdOf(ctx context.Context, name string) (types.UID, error) {
	crd := references.CRD()
	err := c.Get(ctx, client.ObjectKey{Name: name}, crd, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading CRD %s: %w", name, err)
	}
	return crd.UID, nil
}

// begin watches a kind, unless it is watched. The caller holds the lock. The end of the list enqueues all Clusters and namespaces:
// any of them may have waited for it.
func (c *Client) begin(kind schema.GroupVersionKind) {
	if _, isBegun := c.listed[kind]; isBegun {
		return
	}
	ctx := c.watching
	c.since, c.listed[kind] = time.Now(), nil
	go kinds.Watch(ctx, c.newCache, kinds.Of(Object(kind), Indexes), func(listed kinds.Listed) {
		if listed.Err != nil {
			ctrl.LoggerFrom(ctx).Info("Rancher's objects cannot be listed yet", "kind", kind.String(), "reason", listed.Err.Error())
			return
		}
		select {
		case <-c.started:
		case <-ctx.Done():
			return
		}
		changes := source.Informer{Informer: listed.Informer, Handler: handler.EnqueueRequestsFromMapFunc(c.Concerned), Predicates: []predicate.Predicate{news}}
		if changes.Start(ctx, c.queue) != nil { // The informer has been stopped.
			return
		}
		c.mu.Lock()
		if ctx.Err() == nil {
			c.listed[kind] = listed.Objects
		}
		c.mu.Unlock()
		var all clusterv1.ClusterList
		if err := c.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing from the cache failed; Clusters that wait for Rancher's objects are reconciled later")
		}
		for i := range all.Items {
			kube.Enqueue(c.queue, priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
		c.wakeNamespaces()
	})
}

// wakeNamespaces makes the reconciler of namespaces look at all of them, unless it is about to.
func (c *Client) wakeNamespaces() {
	select {
	case c.Listed <- event.GenericEvent{Object: &addonsv1.FleetAddonConfig{}}:
	default:
	}
}

// Concerned returns the CAPI Clusters that an object of Rancher's concerns, or has concerned. All reads are from the
// cache.
func (c *Client) Concerned(ctx context.Context, changed client.Object) (concerned []reconcile.Request) {
	its := objectOf(changed)
	c.mu.Lock()
	read := &reading{Client: c, ctx: ctx, listed: maps.Clone(c.listed)}
	c.mu.Unlock()
	keys := map[types.NamespacedName]bool{its.Owner: true}
	for _, kind := range []schema.GroupVersionKind{ManagementKind, ProvisioningKind} {
		for _, related := range read.list(kind, byManagement, its.Management) {
			keys[related.Owner] = true
		}
	}
	var noted clusterv1.ClusterList
	if its.Management != "" && read.found(c.List(ctx, &noted, client.MatchingFields{byRancher: its.Management}, client.UnsafeDisableDeepCopy)) {
		for i := range noted.Items {
			keys[client.ObjectKeyFromObject(&noted.Items[i])] = true
		}
	}
	for key := range keys {
		if key.Name != "" {
			concerned = append(concerned, reconcile.Request{NamespacedName: key})
		}
	}
	return concerned
}

// reading gives one decision its view of Rancher's objects.
type reading struct {
	*Client
	ctx    context.Context //nolint:containedctx // of the one decision that it is made for
	listed map[schema.GroupVersionKind]client.Reader
	err    error
}

var _ objects = (*reading)(nil)

func (r *reading) isThere() bool { return r.listed != nil }

func (r *reading) reads(namespace string) bool { return Reads(r.namespaces, namespace) }

// Reads reports whether a namespace is one of these, which stand for all if there are none.
func Reads(namespaces map[string]cache.Config, namespace string) bool {
	_, found := namespaces[namespace]
	return found || len(namespaces) == 0
}

func (r *reading) list(kind schema.GroupVersionKind, index, value string) (found []object) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if reader := r.listed[kind]; value == "" || reader == nil || !r.found(reader.List(r.ctx, list, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	for i := range list.Items {
		found = append(found, objectOf(&list.Items[i]))
	}
	return found
}

func (r *reading) fleetCluster(key types.NamespacedName) metav1.Object {
	fleet := &fleetv1.Cluster{}
	if !r.found(r.Get(r.ctx, key, fleet, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	return fleet
}

func (r *reading) fleetClustersOf(management string) (keys []types.NamespacedName) {
	var list fleetv1.ClusterList
	if !r.found(r.List(r.ctx, &list, client.MatchingFields{byRancher: management}, client.UnsafeDisableDeepCopy)) {
		return nil
	}
	for i := range list.Items {
		keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
	}
	return keys
}

// found notes an error, unless it says that the object does not exist.
func (r *reading) found(err error) bool {
	if client.IgnoreNotFound(err) != nil {
		r.err = errors.Join(r.err, fmt.Errorf("reading Rancher's objects: %w", err))
	}
	return err == nil
}
