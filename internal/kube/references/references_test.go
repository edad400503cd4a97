package references

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/settings"
)

// world is everything around a Reader: a cache of CRDs and Clusters, and an API server with one provider, whose kind
// is Thing.
type world struct {
	client.Reader
	meta.RESTMapper

	mu sync.Mutex
	// contract is the version in the CRD's label; empty if there is none.
	contract string
	uid      types.UID
	crd      error // the error of reading the CRD
	noCRD    bool
	exists   bool // the object
	unserved bool
	// denied means that the API server denies lists; unlisted that it does not answer them.
	denied, unlisted bool
	// silent is closed when discovery answers; nil if it answers at once.
	silent chan struct{}
	// asked counts questions to discovery, lists the attempts to list.
	asked, lists int
	clusters     []clusterv1.Cluster
	running      map[*worldCache]string // the version that it watches
	// told counts how often the Clusters of a kind were enqueued, events those of an object.
	told, events int
}

var things = schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "Thing"}

func newWorld() *world {
	return &world{contract: "v1beta1", uid: "1", exists: true, running: map[*worldCache]string{}}
}

// change changes the world.
func (w *world) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// count counts events.
func (w *world) count(into *int) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		w.change(func() { *into++ })
		return nil
	})
}

// reader returns a Reader that ends with the test.
func (w *world) reader(t *testing.T) *Reader {
	t.Helper()
	return NewReader(t.Context(), w, w, w.newCache, w.count(&w.events), w.count(&w.told))
}

// queue is that of a controller.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// lead makes a Reader that of a leader.
func lead(t *testing.T, r *Reader) {
	t.Helper()
	if err := r.Source().Start(t.Context(), queue{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.crd != nil:
		return w.crd
	case w.noCRD:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	case w.contract != "":
		object.SetLabels(map[string]string{"cluster.x-k8s.io/v1beta1": w.contract})
	}
	object.SetName(key.Name)
	object.SetUID(w.uid)
	return nil
}

func (w *world) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*clusterv1.ClusterList).Items = w.clusters
	return nil
}

func (w *world) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	w.mu.Lock()
	w.asked++
	silent, unserved := w.silent, w.unserved
	w.mu.Unlock()
	if silent != nil {
		<-silent
	}
	if unserved {
		return schema.GroupVersionKind{}, &meta.NoResourceMatchError{PartialResource: resource}
	}
	kind := strings.ToUpper(resource.Resource[:1]) + strings.TrimSuffix(resource.Resource[1:], "s")
	return resource.GroupVersion().WithKind(kind), nil
}

// worldCache is the cache of one watch.
type worldCache struct {
	cache.Cache
	w *world
	*controllertest.FakeInformer
	failed toolscache.WatchErrorHandlerWithContext
}

func (w *world) newCache(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
	return &worldCache{w: w, FakeInformer: controllertest.NewFakeInformer(), failed: failed}, nil
}

func (c *worldCache) Start(ctx context.Context) error {
	<-ctx.Done()
	c.w.change(func() { delete(c.w.running, c) })
	return nil
}

func (c *worldCache) GetInformer(ctx context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if ctx.Err() == nil {
		c.w.running[c] = object.GetObjectKind().GroupVersionKind().Version
	}
	switch {
	case c.w.denied:
		go c.list(ctx)
	case !c.w.unlisted:
		c.w.lists++
		c.Synced()
	}
	return worldInformer{c.FakeInformer}, nil
}

// list lists again and again, as an informer does, until that is not denied.
func (c *worldCache) list(ctx context.Context) {
	for ctx.Err() == nil {
		var denied bool
		c.w.change(func() { c.w.lists, denied = c.w.lists+1, c.w.denied })
		if !denied {
			c.Synced()
			return
		}
		c.failed(ctx, &toolscache.Reflector{}, apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no")))
	}
}

// worldInformer is an informer that has listed an object before a handler is added.
type worldInformer struct{ *controllertest.FakeInformer }

func (i worldInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	handler.OnAdd(&unstructured.Unstructured{}, true)
	return i.FakeInformer.AddEventHandlerWithOptions(handler, options)
}

func (c *worldCache) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if !c.HasSynced() {
		panic("a read before the first list finds nothing, or waits")
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if !c.w.exists {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, key.Name)
	}
	object.SetResourceVersion("1")
	return nil
}

// watched returns the versions that are watched.
func (w *world) watched() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.running))
}

func referringCluster() *clusterv1.Cluster { return referringTo(things.Group, things.Kind) }

func referringTo(group, kind string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = "team", "one"
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: "infra"}
	return cluster
}

// Values returns the template values of a Cluster.
func (r *Reader) Values(ctx context.Context, in settings.Settings, cluster *clusterv1.Cluster) (map[string]any, error) {
	referred, err := r.Read(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return referred.Values(in, cluster)
}

func (r *Reader) readValues(ctx context.Context) (string, error) {
	values, err := r.Values(ctx, settings.Default(), referringCluster())
	if err != nil {
		return "", err
	}
	version, _ := values["InfrastructureCluster"].(map[string]any)["apiVersion"].(string)
	return strings.TrimPrefix(version, things.Group+"/"), nil
}

// settled reads values until all watches that a read begins have come as far as they come at once.
func (r *Reader) settled(ctx context.Context) (string, error) {
	_, _ = r.readValues(ctx)
	synctest.Wait()
	return r.readValues(ctx)
}

// A kind is watched only in the version that its CRD declares, and only while it does.
func TestReaderFollowsTheContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.reader(t)
		lists := 0
		for _, step := range []struct {
			contract string
			uid      types.UID
			want     string
			isNew    bool
		}{
			{"v1beta1", "1", "v1beta1", true},
			{"v1beta1", "1", "v1beta1", false},
			{"v1beta2", "1", "v1beta2", true},
			{"", "1", "", false},
			{"v1beta1_v1beta2", "1", "v1beta2", true},
			{"v1beta1", "1", "v1beta1", true},
			{"v1beta1", "2", "v1beta1", true}, // The CRD has gone and come back.
		} {
			w.change(func() { w.contract, w.uid = step.contract, step.uid })
			got, err := r.settled(t.Context())
			if got != step.want || (err != nil) != (step.want == "") {
				t.Errorf("contract %q: read %q (%v)", step.contract, got, err)
			}
			if got := strings.Join(w.watched(), " "); got != step.want {
				t.Errorf("contract %q: watched %q", step.contract, got)
			}
			if (w.lists > lists) != step.isNew {
				t.Errorf("contract %q: listed %d times", step.contract, w.lists-lists)
			}
			lists = w.lists
		}
	})
}

// Reads, changes of the CRD's contract and the end of the CRD meet in any order. In the end there is one watch, of
// the last version.
func TestReaderFollowsTheContractWhileOthersRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.reader(t)
		lead(t, r)
		var readers sync.WaitGroup
		for range 8 {
			readers.Go(func() {
				for range 300 {
					if _, err := r.readValues(t.Context()); err != nil && !errors.Is(err, ErrUnresolved) {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for i := range 100 {
			w.change(func() { w.contract, w.noCRD = fmt.Sprintf("v1beta%d", i%2+1), i%5 == 0 })
			if i%5 == 0 {
				crd := CRD()
				crd.Name = resourceOf(things).String()
				r.CRDs().Delete(t.Context(), event.DeleteEvent{Object: crd}, queue{})
			}
			time.Sleep(3 * time.Millisecond)
		}
		readers.Wait()
		if version, err := r.settled(t.Context()); err != nil || version != w.contract {
			t.Errorf("read at %s (%v), want %s", version, err, w.contract)
		}
		if running := w.watched(); !slices.Equal(running, []string{w.contract}) {
			t.Errorf("%v are watched, want %s", running, w.contract)
		}
	})
}

// Each problem has a message, and a time during which it is not reported.
func TestProblems(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*world)
		cluster  *clusterv1.Cluster
		words    string
		patience time.Duration
		unread   bool // It is no ErrUnresolved.
	}{
		"no object":          {change: func(w *world) { w.exists = false }, words: `spec.infrastructureRef: failed to retrieve Thing team/infra: things "infra" not found`},
		"no CRD":             {change: func(w *world) { w.noCRD = true }, words: `spec.infrastructureRef: the kind is not served for Cluster API: CustomResourceDefinition "things.infrastructure.cluster.x-k8s.io" not found; install the provider`},
		"no contract":        {change: func(w *world) { w.contract = "" }, words: "contract version label"},
		"not served":         {change: func(w *world) { w.unserved = true }, words: "no matches for", patience: kinds.Patience},
		"not allowed":        {change: func(w *world) { w.denied = true }, words: `spec.infrastructureRef: the syncer may not read things.infrastructure.cluster.x-k8s.io; give it a ClusterRole with get, list and watch on them, labelled fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer: "true"`},
		"being listed":       {change: func(w *world) { w.unlisted = true }, words: "infrastructure.cluster.x-k8s.io/v1beta1, Kind=Thing cannot be read yet: it is being listed", patience: kinds.Patience},
		"spelled otherwise":  {change: func(*world) {}, cluster: referringTo(things.Group, "THING"), words: `is of kind "Thing", not "THING"; correct the reference`},
		"no CRD can be read": {change: func(w *world) { w.crd = errors.New("broken") }, words: "broken", unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				test.change(w)
				r := w.reader(t)
				cluster := test.cluster
				if cluster == nil {
					cluster = referringCluster()
				}
				_, _ = r.Values(t.Context(), settings.Default(), cluster)
				synctest.Wait()
				_, err := r.Values(t.Context(), settings.Default(), cluster)
				if err == nil || errors.Is(err, ErrUnresolved) == test.unread || !strings.Contains(err.Error(), test.words) {
					t.Errorf("got %v, want an error with %q", err, test.words)
				}
				if got := Patience(err); got != test.patience {
					t.Errorf("patience for %v, want %v", got, test.patience)
				}
				time.Sleep(kinds.Patience - time.Second)
				synctest.Wait()
				_, err = r.Values(t.Context(), settings.Default(), cluster)
				if got := Patience(err); got != min(test.patience, time.Second) {
					t.Errorf("patience for %v more", got)
				}
				time.Sleep(2 * time.Second)
				if _, err = r.Values(t.Context(), settings.Default(), cluster); Patience(err) != 0 || !strings.Contains(err.Error(), test.words) {
					t.Errorf("in the end: %v; patience for %v", err, Patience(err))
				}
			})
		})
	}
	t.Run("a broken variable", func(t *testing.T) {
		cluster := referringCluster()
		cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{}
		cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "x"}}
		cluster.Spec.Topology.Variables[0].Value.Raw = []byte("{")
		if _, err := newWorld().reader(t).Values(t.Context(), settings.Default(), cluster); !errors.Is(err, ErrUnresolved) || Patience(err) != 0 {
			t.Errorf("got %v", err)
		}
	})
	if Patience(nil) != 0 || Patience(errors.New("another")) != 0 {
		t.Error("there is patience without a list")
	}
}

// The Clusters of a kind are enqueued when its first list ends, and when they have something new to report. A problem
// that ends without an event is checked once for all Clusters, at an interval.
func TestReaderTellsOfEachKind(t *testing.T) {
	for name, test := range map[string]struct {
		change, end func(*world)
		told        int
	}{
		"a list":         {change: func(*world) {}, end: func(*world) {}, told: 1},
		"access":         {change: func(w *world) { w.denied = true }, end: func(w *world) { w.denied = false }, told: 2},
		"a version":      {change: func(w *world) { w.unserved = true }, end: func(w *world) { w.unserved = false }, told: 2},
		"both, by turns": {change: func(w *world) { w.unserved, w.denied = true, true }, end: func(w *world) { w.unserved, w.denied = false, false }, told: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				test.change(w)
				r := w.reader(t)
				lead(t, r)
				for range 60 * 60 { // an hour
					_, _ = r.readValues(t.Context())
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if w.told != max(1, test.told-1) || w.asked > 60*60/2+1 || w.lists > 60*60/30+1 {
					t.Errorf("in an hour: told %d times, asked %d and listed %d times", w.told, w.asked, w.lists)
				}
				w.change(func() { test.end(w) })
				time.Sleep(time.Minute)
				synctest.Wait()
				if version, err := r.readValues(t.Context()); err != nil || version != "v1beta1" || w.told != test.told || w.events != 0 {
					t.Errorf("read %q (%v), told %d times, and of %d objects", version, err, w.told, w.events)
				}
			})
		})
	}
	t.Run("soon after a CRD", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.unserved = true
			r := w.reader(t)
			_, _ = r.readValues(t.Context())
			w.change(func() { w.unserved = false })
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if _, err := r.readValues(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

// The changes of an object enqueue its Clusters; what the first list has does not.
func TestReaderTellsOfEachObject(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *Reader){
		"a leader":  func(t *testing.T, r *Reader) { lead(t, r); _, _ = r.settled(t.Context()) },
		"a standby": func(t *testing.T, r *Reader) { _, _ = r.settled(t.Context()); lead(t, r) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				r := w.reader(t)
				begin(t, r)
				object, changed := &unstructured.Unstructured{}, &unstructured.Unstructured{}
				object.SetUID("1")
				changed.SetUID("2")
				for of := range w.running {
					of.Add(object)
					of.Update(object, changed)
					of.Delete(changed)
				}
				if w.events != 4 { // The old and the new object of a change.
					t.Errorf("told of %d", w.events)
				}
			})
		})
	}
}

// Discovery that does not answer, and a list that does not end, delay no other read.
func TestReaderWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.silent = make(chan struct{})
		w.clusters = []clusterv1.Cluster{*referringCluster()}
		r := w.reader(t)
		if err := r.Warm(t.Context(), func(client.Object) bool { return true }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := r.readValues(t.Context()); Patience(err) == 0 {
			t.Errorf("got %v", err)
		}
		silent := w.silent
		w.change(func() { w.silent = nil })
		other := referringTo(things.Group, "Other")
		_ = r.Digest(t.Context(), other, &maphash.Hash{})
		synctest.Wait()
		if _, err := r.Values(t.Context(), settings.Default(), other); err != nil {
			t.Errorf("another kind waits: %v", err)
		}
		close(silent)
		synctest.Wait()
		if version, err := r.readValues(t.Context()); version != "v1beta1" {
			t.Errorf("read %q (%v)", version, err)
		}
	})
}

// Tenants can refer to any number of kinds that do not exist, and spell existing ones in many ways.
func TestReaderRetainsNothingOfInventedKinds(t *testing.T) {
	read := func(r *Reader, group, kind string) error {
		_, err := r.Values(t.Context(), settings.Default(), referringTo(group, kind))
		return err
	}
	t.Run("without a CRD", func(t *testing.T) {
		w := newWorld()
		w.noCRD = true
		r := w.reader(t)
		for i := range 1500 {
			err := read(r, "evil.example", fmt.Sprintf("K%d", i))
			if want := fmt.Sprintf(`CustomResourceDefinition "k%ds.evil.example" not found; install`, i); !errors.Is(err, errUndeclared) || !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v, want an error with %s", err, want)
			}
		}
		if w.asked+w.lists+len(r.watches) != 0 {
			t.Errorf("asked %d times, listed %d times, and watches %d", w.asked, w.lists, len(r.watches))
		}
	})
	t.Run("spelled in other ways", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			r := w.reader(t)
			for range 3 {
				for _, kind := range []string{"THING", "tHING", "Thing", "ThInG"} {
					_ = read(r, things.Group, kind)
					synctest.Wait()
					if err := read(r, things.Group, kind); (kind == things.Kind) != (err == nil) {
						t.Errorf("%s: %v", kind, err)
					}
				}
			}
			if w.asked != 1 || w.lists != 1 || len(r.watches) != 1 {
				t.Errorf("asked %d times, listed %d times, and watches %d", w.asked, w.lists, len(r.watches))
			}
		})
	})
	for name, notice := range map[string]func(*testing.T, *Reader){
		"whose CRD goes": func(_ *testing.T, r *Reader) { _ = read(r, things.Group, things.Kind) },
		"whose CRD goes after the last user": func(t *testing.T, r *Reader) {
			crd := CRD()
			crd.Name = resourceOf(things).String()
			r.CRDs().Delete(t.Context(), event.DeleteEvent{Object: crd}, queue{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				r := w.reader(t)
				if _, err := r.settled(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.change(func() { w.noCRD = true })
				notice(t, r)
				synctest.Wait()
				if len(r.watches) != 0 || len(w.watched()) != 0 {
					t.Errorf("watches %d, of which %v run", len(r.watches), w.watched())
				}
				w.change(func() { w.noCRD = false })
				if version, err := r.settled(t.Context()); version != "v1beta1" {
					t.Errorf("when it is back: read %q (%v)", version, err)
				}
			})
		})
	}
}

// Warm watches all that Clusters refer to, of which this program watches some.
func TestWarm(t *testing.T) {
	for watched, want := range map[bool]int{true: 2, false: 0} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			cluster := referringCluster()
			cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: things.Group, Kind: "Other", Name: "control-plane"}
			w.clusters = []clusterv1.Cluster{*cluster, *cluster}
			r := w.reader(t)
			if err := r.Warm(t.Context(), func(client.Object) bool { return watched }); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := len(w.watched()); got != want || w.lists != want {
				t.Errorf("%d watches, %d lists, want %d", got, w.lists, want)
			}
			if _, err := r.readValues(t.Context()); watched && err != nil {
				t.Errorf("the first read: %v", err)
			}
		})
	}
}

// The digest of a Cluster's references follows their content, and there is none while a value could not be read.
func TestDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.unlisted = true
		r := w.reader(t)
		seed := maphash.MakeSeed()
		digest := func() (uint64, error) {
			var hash maphash.Hash
			hash.SetSeed(seed)
			err := r.Digest(t.Context(), referringCluster(), &hash)
			return hash.Sum64(), err
		}
		_, _ = digest()
		synctest.Wait()
		if _, err := digest(); Patience(err) == 0 {
			t.Errorf("there is a digest for a kind that is not listed: %v", err)
		}
		for of := range w.running {
			of.Synced()
		}
		synctest.Wait()
		first, err := digest()
		if again, _ := digest(); err != nil || again != first {
			t.Errorf("%d, then %d (%v)", first, again, err)
		}
		w.change(func() { w.exists = false })
		if _, err := digest(); !apierrors.IsNotFound(err) {
			t.Errorf("there is a digest for an object that is gone: %v", err)
		}
	})
}

func TestContractNews(t *testing.T) {
	crd := func(version string, uid types.UID, labels map[string]string) client.Object {
		crd := CRD()
		crd.ResourceVersion, crd.UID, crd.Labels = version, uid, labels
		return crd
	}
	for name, test := range map[string]struct {
		event  event.UpdateEvent
		passes bool
	}{
		"a label":       {event.UpdateEvent{ObjectOld: crd("1", "a", nil), ObjectNew: crd("2", "a", map[string]string{"cluster.x-k8s.io/v1beta2": "v1"})}, true},
		"another CRD":   {event.UpdateEvent{ObjectOld: crd("1", "a", nil), ObjectNew: crd("2", "b", nil)}, true},
		"anything else": {event.UpdateEvent{ObjectOld: crd("1", "a", nil), ObjectNew: crd("2", "a", nil)}, false},
		"nothing":       {event.UpdateEvent{ObjectOld: crd("1", "a", nil), ObjectNew: crd("1", "a", nil)}, false},
	} {
		if got := ContractNews.Update(test.event); got != test.passes {
			t.Errorf("%s passes: %v, want %v", name, got, test.passes)
		}
	}
	if ContractNews.Create(event.CreateEvent{Object: crd("1", "a", nil), IsInInitialList: true}) {
		t.Error("a CRD that is found at startup passes")
	}
	if !ContractNews.Create(event.CreateEvent{Object: crd("1", "a", nil)}) || !ContractNews.Delete(event.DeleteEvent{Object: crd("1", "a", nil)}) {
		t.Error("a CRD that is created or deleted does not pass")
	}
}

// Passed are the end of a pause, and objects that are paused when they appear.
func TestNotPaused(t *testing.T) {
	object := func(paused bool) client.Object {
		object := &unstructured.Unstructured{}
		if paused {
			object.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
		}
		return object
	}
	if !notPaused.Create(event.CreateEvent{Object: object(true)}) || !notPaused.Delete(event.DeleteEvent{Object: object(true)}) {
		t.Error("a paused object that is created or deleted does not pass")
	}
	if notPaused.Update(event.UpdateEvent{ObjectOld: object(true), ObjectNew: object(true)}) ||
		!notPaused.Update(event.UpdateEvent{ObjectOld: object(true), ObjectNew: object(false)}) {
		t.Error("a change of a paused object passes, or the end of its pause does not")
	}
}
