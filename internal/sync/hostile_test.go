package sync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// forged is a Fleet Cluster as large as etcd takes it, owned by ten thousand Clusters that
// do not exist.
func forged(t *testing.T, i int, extra ...metav1.OwnerReference) *fleetv1.Cluster {
	t.Helper()
	result := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("f%d", i), OwnerReferences: extra}}
	for n := range 10_000 {
		id := fmt.Sprintf("%d-%d", i, n)
		result.OwnerReferences = append(result.OwnerReferences, metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: id, UID: types.UID(id)})
	}
	return trimmedCluster(t, result)
}

func trimmedCluster(t *testing.T, cluster *fleetv1.Cluster) *fleetv1.Cluster {
	t.Helper()
	trimmed, err := kube.Trim(cluster)
	if err != nil {
		t.Fatal(err)
	}
	return trimmed.(*fleetv1.Cluster)
}

// filled is a Fleet Cluster with a list of as many empty items as etcd takes.
func filled(t *testing.T, i int, list string) *fleetv1.Cluster {
	t.Helper()
	const items = 450_000
	document := fmt.Sprintf(`{"metadata":{"namespace":"team","name":"f%d"},`+list+`}`, i, "[{}"+strings.Repeat(",{}", items-1)+"]")
	result := &fleetv1.Cluster{}
	if err := json.Unmarshal([]byte(document), result); err != nil {
		t.Fatal(err)
	}
	return trimmedCluster(t, result)
}

// docs/operations.md says what a quota lets a tenant fill.
func TestForgedFleetClustersTakeLittleMemory(t *testing.T) {
	const limit = 1.4 // MiB each
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	for name, make := range map[string]func(i int) *fleetv1.Cluster{
		"owners":      func(i int) *fleetv1.Cluster { return forged(t, i) },
		"tolerations": func(i int) *fleetv1.Cluster { return filled(t, i, `"spec":{"agentTolerations":%s}`) },
		"environment": func(i int) *fleetv1.Cluster { return filled(t, i, `"spec":{"agentEnvVars":%s}`) },
		"affinity": func(i int) *fleetv1.Cluster {
			return filled(t, i, `"spec":{"agentAffinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":%s}}}`)
		},
		"pull secrets": func(i int) *fleetv1.Cluster { return filled(t, i, `"spec":{"agentPullSecrets":%s}`) },
		"conditions":   func(i int) *fleetv1.Cluster { return filled(t, i, `"status":{"conditions":%s}`) },
	} {
		t.Run(name, func(t *testing.T) {
			const count = 10
			indexer := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{
				// As controller-runtime does it: by value, and by namespace and value.
				"field:" + byOrigin: func(cached any) ([]string, error) {
					var keys []string
					for _, value := range origins(cached.(client.Object)) {
						keys = append(keys, "team/"+value, "__all_namespaces/"+value)
					}
					return keys, nil
				},
			})
			before := heap()
			for i := range count {
				if err := indexer.Add(make(i)); err != nil {
					t.Fatal(err)
				}
			}
			each := (float64(heap()) - float64(before)) / count / (1 << 20)
			runtime.KeepAlive(indexer)
			if each > limit {
				t.Errorf("one takes %.1f MiB of the cache", each)
			}
		})
	}
}

func TestForgedOwnersEnqueueFew(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const count, limit = 5, 100
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "1"}}
	builder := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&fleetv1.Cluster{}, byOrigin, origins).
		WithIndex(&clusterv1.Cluster{}, byPin, func(object client.Object) []string {
			return nonEmpty(stamp.PinOf(object.GetAnnotations()).ClusterName)
		})
	for i := range count {
		builder = builder.WithObjects(forged(t, i, metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "a", UID: "1"}))
	}
	e := &enqueuer{Reader: builder.Build()}
	keys := map[types.NamespacedName]bool{}
	for _, request := range e.clustersWaitingFor(t.Context(), cluster) {
		keys[request.NamespacedName] = true
	}
	if len(keys) > limit {
		t.Errorf("one deletion has %d Clusters looked at", len(keys))
	}
}

// If a Cluster's class is gone, Cluster API's webhook rejects every change to the Cluster, so the
// finalizer that CAAPF left stays on it. The syncer must still reconcile the Cluster.
func TestRetainedFinalizer(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("ClusterClass nope can not be retrieved")
	key, reports := types.NamespacedName{Namespace: "team", Name: "prod"}, 0
	cache := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&fleetv1.Cluster{}, byOrigin, origins).
		WithObjects(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}},
			&clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Finalizers: []string{kube.FinalizerOfCAAPF}},
				Spec:       clusterv1.ClusterSpec{Paused: new(true)},
			}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				reports++
				return nil
			},
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return refused
			},
		}).Build()
	store := kube.NewStore(cache, scheme)
	r := &clusterReconciler{
		Client: cache, applier: &kube.Applier{Client: cache, Live: cache, Store: store},
		scopes: &scopeReader{Reader: cache, store: store}, settings: settings.NewReader(cache),
		reporter: newReporter(cache, store, events.NewFakeRecorder(1)),
	}
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	if !errors.Is(err, refused) {
		t.Errorf("the error is %v", err)
	}
	if ptr.Deref(result.Priority, 0) != lowPriority {
		t.Errorf("it is tried again at %v, want it behind all others", result.Priority)
	}
	if reports != 1 {
		t.Error("the Cluster was not looked at")
	}
}

// lateCache is a cache that shows a Cluster as it was.
type lateCache struct {
	client.Client
	shows *clusterv1.Cluster
}

func (s *lateCache) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if cluster, ok := into.(*clusterv1.Cluster); ok {
		s.shows.DeepCopyInto(cluster)
		return nil
	}
	return s.Client.Get(ctx, key, into, options...)
}

// While the cache lags, the finalizer that CAAPF left is not removed a second time: the write would fail.
func TestFinalizerOfCAAPFGoesOnce(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	key, patches := types.NamespacedName{Namespace: "team", Name: "prod"}, 0
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "prod", Finalizers: []string{kube.FinalizerOfCAAPF}},
		Spec:       clusterv1.ClusterSpec{Paused: new(true)},
	}
	live := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&fleetv1.Cluster{}, byOrigin, origins).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}, cluster).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				patches++
				return c.Patch(ctx, object, patch, options...)
			},
		}).Build()
	if err := live.Get(t.Context(), key, cluster); err != nil {
		t.Fatal(err)
	}
	store := kube.NewStore(&lateCache{live, cluster}, scheme)
	r := &clusterReconciler{
		Client: live, applier: &kube.Applier{Client: live, Live: live, Store: store},
		scopes: &scopeReader{Reader: live, store: store}, settings: settings.NewReader(live),
		reporter: newReporter(live, store, nil),
	}
	for range 2 {
		if _, err := kube.Consistent(r).Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Error(err)
		}
	}
	if patches != 1 {
		t.Errorf("patched %d times", patches)
	}
}
