package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/test/oracle"
)

// playedWorkers is the number of Fleet Clusters that are served at once.
const playedWorkers = 10

// byHome indexes Fleet Clusters by their namespace in Fleet.
const byHome = "home"

// fleetPlayer plays the part of Fleet that every import waits for, where no controller of Fleet's does it: it makes the
// namespaces of Fleet Clusters, names them in the statuses, and removes them with the Fleet Clusters. A Fleet Cluster
// that Fleet does not import itself gets its namespace only when a test has named it in the status, or its agent has
// reported. Unlike Fleet, it makes a namespace again without being made to look.
type fleetPlayer struct {
	clusters, namespaces dynamic.NamespaceableResourceInterface
	knownClusters        cache.Indexer
	knownNamespaces      cache.Store
	queue                workqueue.TypedRateLimitingInterface[string]
	mayDelete            func() bool
}

// playFleet plays Fleet until the stack stops.
func (s *Stack) playFleet(ctx context.Context) error {
	user, err := s.hub.userConfig("fleet-player", "system:masters")
	if err != nil {
		return err
	}
	config, err := restConfig(user)
	if err != nil {
		return err
	}
	writer, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	clusters, namespaces := fleetv1.SchemeGroupVersion.WithResource("clusters"), schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(writer, 0)
	seesClusters, seesNamespaces := factory.ForResource(clusters).Informer(), factory.ForResource(namespaces).Informer()
	p := &fleetPlayer{
		clusters: writer.Resource(clusters), namespaces: writer.Resource(namespaces),
		knownClusters: seesClusters.GetIndexer(), knownNamespaces: seesNamespaces.GetStore(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Second)),
		// Nobody else would empty the namespace.
		mayDelete: func() bool {
			manager, err := s.process("kube-controller-manager")
			return err == nil && manager.Running()
		},
	}
	if err := errors.Join(seesClusters.SetTransform(trimPlayed), seesClusters.AddIndexers(cache.Indexers{byHome: func(object any) ([]string, error) {
		return []string{homeOf(object.(*unstructured.Unstructured))}, nil
	}})); err != nil {
		return err
	}
	_, err = seesClusters.AddEventHandler(handle(func(object *unstructured.Unstructured) { p.queue.Add(object.GetNamespace() + "/" + object.GetName()) }))
	_, err2 := seesNamespaces.AddEventHandler(handle(p.wake))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	factory.Start(s.ctx.Done())
	s.wait.Go(func() {
		<-s.ctx.Done()
		p.queue.ShutDown()
		factory.Shutdown()
	})
	s.wait.Go(func() {
		if !cache.WaitForCacheSync(s.ctx.Done(), seesClusters.HasSynced, seesNamespaces.HasSynced) {
			return
		}
		for range playedWorkers {
			s.wait.Go(func() {
				for p.next(s.ctx) {
				}
			})
		}
	})
	return ctx.Err()
}

// handle calls a function for every object that appears, changes or disappears.
func handle(do func(*unstructured.Unstructured)) cache.ResourceEventHandler {
	saw := func(news any) {
		if last, ok := news.(cache.DeletedFinalStateUnknown); ok {
			news = last.Obj
		}
		if object, ok := news.(*unstructured.Unstructured); ok {
			do(object)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, news any) { saw(news) }, DeleteFunc: saw}
}

// trimPlayed keeps of a Fleet Cluster what the player reads.
func trimPlayed(object any) (any, error) {
	cluster, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kubeconfig, _, _ := unstructured.NestedString(cluster.Object, "spec", "kubeConfigSecret")
	home, _, _ := unstructured.NestedString(cluster.Object, "status", "namespace")
	seen, _, _ := unstructured.NestedString(cluster.Object, "status", "agent", "lastSeen")
	cluster.SetManagedFields(nil)
	cluster.SetAnnotations(nil)
	cluster.Object["spec"], cluster.Object["status"] = map[string]any{"kubeConfigSecret": kubeconfig}, map[string]any{"namespace": home, "agent": map[string]any{"lastSeen": seen}}
	return cluster, nil
}

// homeOf returns the namespace that a Fleet Cluster has, or would get.
func homeOf(cluster *unstructured.Unstructured) string {
	if home, _, _ := unstructured.NestedString(cluster.Object, "status", "namespace"); home != "" {
		return home
	}
	return oracle.FleetNamespace(types.NamespacedName{Namespace: cluster.GetNamespace(), Name: cluster.GetName()})
}

// wake serves the Fleet Clusters that a Namespace may be for.
func (p *fleetPlayer) wake(namespace *unstructured.Unstructured) {
	keys, _ := p.knownClusters.IndexKeys(byHome, namespace.GetName())
	for _, key := range keys {
		p.queue.Add(key)
	}
	if its := namespace.GetAnnotations(); its[fleetv1.ClusterAnnotation] != "" {
		p.queue.Add(its[fleetv1.ClusterNamespaceAnnotation] + "/" + its[fleetv1.ClusterAnnotation])
	}
}

// next serves the next Fleet Cluster.
func (p *fleetPlayer) next(ctx context.Context) bool {
	key, ends := p.queue.Get()
	if ends {
		return false
	}
	defer p.queue.Done(key)
	if err := p.serve(ctx, key); err != nil {
		p.queue.AddRateLimited(key)
	} else {
		p.queue.Forget(key)
	}
	return true
}

// errNotNow means that the player should try again.
var errNotNow = errors.New("kube-controller-manager does not run")

func (p *fleetPlayer) serve(ctx context.Context, key string) error {
	known, exists, err := p.knownClusters.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		return p.remove(ctx, key)
	}
	cluster := known.(*unstructured.Unstructured)
	kubeconfig, _, _ := unstructured.NestedString(cluster.Object, "spec", "kubeConfigSecret")
	home, _, _ := unstructured.NestedString(cluster.Object, "status", "namespace")
	seen, _, _ := unstructured.NestedString(cluster.Object, "status", "agent", "lastSeen")
	isIgnored := cluster.GetDeletionTimestamp() != nil || cluster.GetLabels()[fleetv1.ClusterManagementLabel] != ""
	if isIgnored || home == "" && kubeconfig == "" && seen == "" {
		return nil
	}
	if _, exists, err := p.knownNamespaces.GetByKey(homeOf(cluster)); err != nil || !exists {
		if err = errors.Join(err, p.make(ctx, cluster)); err != nil {
			return err
		}
	}
	if home != "" {
		return nil
	}
	_, err = p.clusters.Namespace(cluster.GetNamespace()).Patch(ctx, cluster.GetName(), types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"namespace":%q}}`, cluster.GetUID(), homeOf(cluster)), metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // It is gone, and perhaps there is another.
		return nil
	}
	return err
}

// make makes the namespace of a Fleet Cluster. If several would get it, it is the oldest's.
func (p *fleetPlayer) make(ctx context.Context, cluster *unstructured.Unstructured) error {
	claims, err := p.knownClusters.ByIndex(byHome, homeOf(cluster))
	if err != nil {
		return err
	}
	for _, claim := range claims {
		other := claim.(*unstructured.Unstructured)
		at, since := other.GetCreationTimestamp(), cluster.GetCreationTimestamp()
		if at.Before(&since) || at.Equal(&since) && other.GetNamespace()+"/"+other.GetName() < cluster.GetNamespace()+"/"+cluster.GetName() {
			cluster = other
		}
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(homeOf(cluster))
	namespace.SetLabels(map[string]string{fleetv1.ManagedLabel: "true"})
	namespace.SetAnnotations(map[string]string{fleetv1.ClusterNamespaceAnnotation: cluster.GetNamespace(), fleetv1.ClusterAnnotation: cluster.GetName()})
	if _, err = p.namespaces.Create(ctx, namespace, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// remove deletes the namespace of a Fleet Cluster that is gone.
func (p *fleetPlayer) remove(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	known, exists, err := p.knownNamespaces.GetByKey(oracle.FleetNamespace(types.NamespacedName{Namespace: namespace, Name: name}))
	if err != nil || !exists {
		return err
	}
	home := known.(*unstructured.Unstructured)
	its := home.GetAnnotations()
	switch {
	case its[fleetv1.ClusterNamespaceAnnotation] != namespace || its[fleetv1.ClusterAnnotation] != name || home.GetLabels()[fleetv1.ManagedLabel] != "true" || home.GetDeletionTimestamp() != nil:
		return nil
	case !p.mayDelete():
		return errNotNow
	}
	err = p.namespaces.Delete(ctx, home.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(home.GetUID()))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
