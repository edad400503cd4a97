package sync

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// server is an API server with a cache that never lags. It records the objects that are read.
type server struct {
	client.WithWatch
	direct client.WithWatch // It records nothing.
	noted  gosync.Mutex
	reads  map[string]client.Object
	writes []string
	// withoutFleet turns off the simulated Fleet, which gives each Fleet Cluster a namespace at once.
	withoutFleet bool
	// unlisted means that the objects that Clusters refer to cannot be listed by a new reconciler.
	unlisted atomic.Bool
	// refuse returns why a write is refused; it may be nil.
	refuse func(client.Object) error
}

// noteRead records a read. The end of a list of Rancher's objects reads, too.
func (s *server) noteRead(key string, read client.Object) {
	s.noted.Lock()
	defer s.noted.Unlock()
	s.reads[key] = read
}

func (s *server) takeReads() map[string]client.Object {
	s.noted.Lock()
	defer s.noted.Unlock()
	taken := s.reads
	s.reads = map[string]client.Object{}
	return taken
}

// indexes are the indexes of a server.
type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, object client.Object, name string, values client.IndexerFunc) error {
	i.WithIndex(object, name, values)
	return nil
}

func newServer(t testing.TB, objects ...client.Object) *server {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &server{reads: map[string]client.Object{}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&clusterv1.Cluster{}).
		WithIndex(&fleetv1.Cluster{}, byOrigin, origins).
		WithIndex(&clusterv1.Cluster{}, byGroup, groupOf).WithIndex(&fleetv1.Cluster{}, byGroup, groupOf).
		WithIndex(&fleetv1.BundleNamespaceMapping{}, byMapped, mappedBy).
		WithReturnManagedFields()
	if err := rancher.IndexFields(t.Context(), indexes{builder}); err != nil {
		t.Fatal(err)
	}
	for name, values := range rancher.Indexes {
		builder.WithIndex(rancher.Object(rancher.ManagementKind), name, values).WithIndex(rancher.Object(rancher.ProvisioningKind), name, values)
	}
	s.direct = builder.Build()
	s.WithWatch = interceptor.NewClient(s.direct, interceptor.Funcs{
		Get: func(ctx context.Context, direct client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			kind, err := apiutil.GVKForObject(into, scheme)
			if err != nil {
				return err
			}
			if err = direct.Get(ctx, key, into, options...); err == nil {
				_, err = kube.Trim(into)
			}
			read := into.DeepCopyObject().(client.Object)
			read.GetObjectKind().SetGroupVersionKind(kind)
			read.SetNamespace(key.Namespace)
			read.SetName(key.Name)
			s.noteRead(kind.GroupKind().String()+" "+key.String(), read)
			return err
		},
		List: func(ctx context.Context, direct client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
			s.noteRead(fmt.Sprintf("%T %v", into, options), nil)
			return direct.List(ctx, into, options...)
		},
		Patch: func(ctx context.Context, direct client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			s.writes = append(s.writes, fmt.Sprintf("%T %s", object, object.GetName()))
			if s.refuse != nil {
				if err := s.refuse(object); err != nil {
					return err
				}
			}
			if err := direct.Patch(ctx, object, patch, options...); err != nil || object.GetUID() != "" {
				return err
			}
			object.SetUID(types.UID(s.writes[len(s.writes)-1]))
			change := fmt.Appendf(nil, `{"metadata":{"uid":%q}}`, object.GetUID())
			if kind, err := apiutil.GVKForObject(object, scheme); err == nil && kind.GroupKind() == fleetv1.SchemeGroupVersion.WithKind("Cluster").GroupKind() && !s.withoutFleet {
				namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stamp.FleetNamespace(object.GetNamespace(), object.GetName())}}
				if err := direct.Create(ctx, namespace); err != nil {
					return err
				}
				change = fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"namespace":%q}}`, object.GetUID(), namespace.Name)
			}
			return direct.Patch(ctx, object, client.RawPatch(types.MergePatchType, change))
		},
	})
	return s
}

// listed is a cache of the objects that Clusters refer to.
type listed struct {
	*informertest.FakeInformers
	*server
}

func (l listed) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return l.server.Get(ctx, key, object, options...)
}

func (l listed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return l.server.List(ctx, list, options...)
}

// reconciler returns the reconciler of Clusters on the server.
func (s *server) reconciler(t testing.TB) *clusterReconciler {
	t.Helper()
	store := kube.NewStore(s, s.Scheme())
	applier := &kube.Applier{Client: s.WithWatch, Live: s.direct, Store: store}
	in := settings.NewReader(s)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, object := range []*unstructured.Unstructured{fixture.ControlPlane(&clusterv1.Cluster{}), fixture.Infrastructure(&clusterv1.Cluster{})} {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			mapper.Add(object.GroupVersionKind().GroupKind().WithVersion(version), meta.RESTScopeNamespace)
		}
	}
	reader := references.NewReader(t.Context(), s, mapper, func(toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
		informers := &informertest.FakeInformers{Scheme: s.Scheme()}
		if s.unlisted.Load() {
			informers.Error = errors.New("no answer yet")
		}
		return listed{informers, s}, nil
	}, handler.Funcs{}, handler.Funcs{})
	reflects := bundlesReady{staleAfter: stamp.DefaultStaleAfter, now: time.Now}
	return &clusterReconciler{
		Client: s.WithWatch, live: s.direct, applier: applier, settings: in, values: &memo{Reader: reader},
		scopes:   &scopeReader{Reader: s, store: store, registrar: newPresence(s.direct, "muster-system", stamp.RegistrarLease)},
		targets:  &targets{Reader: s, Applier: applier, live: s.direct, retiring: map[types.NamespacedName]*retirement{}},
		reporter: newReporter(s.WithWatch, store, events.NewFakeRecorder(100)), bundlesReady: reflects,
	}
}

// scene is a server with a Cluster, its reconciler, and the objects around the Cluster.
type scene struct {
	*server
	*clusterReconciler
	key types.NamespacedName
	// woken is the queue that Rancher's objects fill; see rancherOf.
	woken workqueue.TypedRateLimitingInterface[ctrl.Request]
}

func newScene(t testing.TB, class, classNamespace string, change func(*clusterv1.Cluster)) *scene {
	t.Helper()
	named := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}
	}
	crd := func(name string) client.Object {
		return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta2"}}}
	}
	cluster := fixture.Cluster("team", "prod", class, classNamespace)
	cluster.UID = "prod"
	controlPlane, infrastructure := fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)
	for object, ref := range map[*unstructured.Unstructured]*clusterv1.ContractVersionedObjectReference{
		controlPlane: &cluster.Spec.ControlPlaneRef, infrastructure: &cluster.Spec.InfrastructureRef,
	} {
		object.SetUID(types.UID(object.GetName()))
		*ref = clusterv1.ContractVersionedObjectReference{APIGroup: object.GroupVersionKind().Group, Kind: object.GetKind(), Name: object.GetName()}
	}
	if change != nil {
		change(cluster)
	}
	selecting := &metav1.LabelSelector{MatchLabels: map[string]string{"name": "team"}}
	config := fixture.Config()
	config.Spec.Cluster = &addonsv1.ClusterConfig{NamespaceSelector: selecting}
	s := newServer(t, cluster, controlPlane, infrastructure, config,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: selecting.MatchLabels}},
		&clusterv1.ClusterClass{ObjectMeta: named("team", "standard")}, &clusterv1.ClusterClass{ObjectMeta: named("classes", "standard")},
		crd("kubeadmcontrolplanes.controlplane.cluster.x-k8s.io"), crd("devclusters.infrastructure.cluster.x-k8s.io"))
	result := &scene{server: s, key: client.ObjectKeyFromObject(cluster)}
	result.restart(t)
	result.reconcile(t) // It is stamped, and waits for its control plane.
	result.change(t, &clusterv1.Cluster{}, func(object client.Object) {
		object.(*clusterv1.Cluster).Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	})
	return result
}

// restart gives the scene a new reconciler, which has listed what the Cluster refers to.
func (s *scene) restart(t testing.TB) {
	t.Helper()
	s.clusterReconciler = s.reconciler(t)
	s.list(t)
}

// list waits until what the Cluster refers to is listed: another CRD has another watch.
func (s *scene) list(t testing.TB) {
	t.Helper()
	var cluster clusterv1.Cluster
	if err := s.direct.Get(t.Context(), s.key, &cluster); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, _, err := s.values.Objects(t.Context(), &cluster); references.Patience(err) == 0 {
			return
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// reconcile runs one reconcile, and returns its reads and writes.
func (s *scene) reconcile(t testing.TB) (reads map[string]client.Object, writes []string) {
	t.Helper()
	s.takeReads()
	s.writes = nil
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key}); err != nil {
		t.Fatal(err)
	}
	return s.takeReads(), s.writes
}

// change changes an object that has the Cluster's name, including its status.
func (s *scene) change(t testing.TB, object client.Object, change func(client.Object)) {
	t.Helper()
	if err := s.direct.Get(t.Context(), s.key, object); err != nil {
		t.Fatal(err)
	}
	change(object)
	err := s.direct.Status().Update(t.Context(), object)
	if apierrors.IsNotFound(err) { // It has no such subresource here.
		err = s.direct.Update(t.Context(), object)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Once Fleet has made the namespace of a new Fleet Cluster, a reconcile writes nothing: none of the events of an import's own
// writes causes another. What others change is put back, with whole template values.
func TestImportIsWrittenOnce(t *testing.T) {
	for _, classNamespace := range []string{"", "classes"} {
		s := newScene(t, "standard", classNamespace, nil)
		if _, writes := s.reconcile(t); len(writes) != 1 {
			t.Fatalf("it is not imported: written %q", writes)
		}
		for range 2 {
			if _, writes := s.reconcile(t); len(writes) != 0 {
				t.Errorf("written %q when Fleet had made its namespace", writes)
			}
		}
		var before, after fleetv1.Cluster
		if err := s.direct.Get(t.Context(), s.key, &before); err != nil {
			t.Fatal(err)
		}
		if before.Spec.TemplateValues.Data[desired.ClusterValue] == nil {
			t.Errorf("the template values are not whole: %v", before.Spec.TemplateValues.Data)
		}
		for what, disturb := range map[string]func(){
			"it lost its labels": func() { s.change(t, &fleetv1.Cluster{}, func(object client.Object) { object.SetLabels(nil) }) },
			"it was deleted":     func() { s.delete(t, before.DeepCopy(), s.homeNamespace()) },
		} {
			disturb()
			if _, writes := s.reconcile(t); len(writes) != 1 {
				t.Errorf("%s: written %q", what, writes)
			}
			if err := s.direct.Get(t.Context(), s.key, &after); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(before.Labels, after.Labels) || !reflect.DeepEqual(before.Annotations, after.Annotations) || !reflect.DeepEqual(before.Spec, after.Spec) {
				t.Errorf("%s: it is %+v, was %+v", what, after, before)
			}
		}
		s.change(t, &clusterv1.Cluster{}, func(object client.Object) { object.(*clusterv1.Cluster).Status.Conditions = nil })
		s.reconcile(t)
		if state, _, _ := s.imported(t); state != "True Imported" {
			t.Errorf("without its conditions, it says %q", state)
		}
	}
}

// homeNamespace is the namespace that the played Fleet gives to the Cluster.
func (s *scene) homeNamespace() client.Object {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stamp.FleetNamespace(s.key.Namespace, s.key.Name)}}
}

// A start says nothing of first lists that have just begun, except on a Cluster that has nothing better to say.
func TestFirstListsAreNotReported(t *testing.T) {
	s := newScene(t, "", "", nil)
	restart := func(unlisted bool) (result ctrl.Result, said string, isWritten bool) {
		t.Helper()
		_, _, before := s.imported(t)
		if s.unlisted.Store(unlisted); unlisted {
			s.clusterReconciler = s.reconciler(t)
		} else {
			s.restart(t)
		}
		result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key})
		if err != nil {
			t.Fatal(err)
		}
		state, message, after := s.imported(t)
		return result, state + ": " + message, before.ResourceVersion != after.ResourceVersion
	}
	isQuiet := func(result ctrl.Result) bool { return result.RequeueAfter > 0 && result.RequeueAfter <= 30*time.Second }
	if result, said, isWritten := restart(true); !isWritten || isQuiet(result) || !strings.HasPrefix(said, "False TemplateValuesUnresolved: ") || !strings.Contains(said, "cannot be read yet") {
		t.Errorf("a Cluster that waits: again after %v, says %s", result.RequeueAfter, said)
	}
	if result, said, isWritten := restart(true); isWritten || !isQuiet(result) {
		t.Errorf("after another start: again after %v, says %s", result.RequeueAfter, said)
	}
	restart(false)
	s.reconcile(t) // Fleet has made its namespace.
	if result, said, isWritten := restart(true); isWritten || !isQuiet(result) || !strings.HasPrefix(said, "True Imported") {
		t.Errorf("an imported Cluster: again after %v, says %s", result.RequeueAfter, said)
	}
}
