package references

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/muster-fleet/muster/internal/settings"
)

// world is everything around a Reader: a cache, a client on it, and one provider, whose kind is Thing.
type world struct {
	client.Client
	cache.Cache

	mu sync.Mutex
	// contract is the version in the CRD's label; empty if there is none.
	contract string
	crd      error // the error of reading the CRD
	noCRD    bool
	exists   bool // the object
	refused  bool
	unserved bool
	unlisted bool
	asked    int
	// discovered is how often the Reader discovered a version.
	discovered int
	// hangs are resources, or discovery, about which the API server does not answer until the channel is
	// closed.
	hangs map[string]chan struct{}
	// deadlines are those of the access reviews.
	deadlines []time.Duration
	clusters  []clusterv1.Cluster
	// informers are the running ones; log has what happened to them.
	informers map[string]toolscache.ResourceEventHandler
	log       []string
}

var things = schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "Thing"}

func newWorld() *world {
	return &world{contract: "v1beta1", exists: true, informers: map[string]toolscache.ResourceEventHandler{}}
}

func (w *world) reader() *Reader {
	return NewReader(w, w, handler.Funcs{})
}

func (w *world) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	thing, ok := object.(*unstructured.Unstructured)
	switch {
	case !ok && w.crd != nil:
		return w.crd
	case !ok && w.noCRD:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	case !ok:
		if w.contract != "" {
			object.SetLabels(map[string]string{"cluster.x-k8s.io/v1beta1": w.contract})
		}
		return nil
	case !w.exists:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, key.Name)
	}
	version := thing.GroupVersionKind().Version
	if w.unlisted {
		panic("a cached read waits for the first list, with everybody behind it")
	}
	w.log = append(w.log, "read "+version)
	if _, ok := w.informers[version]; !ok {
		w.log = append(w.log, "started anew "+version)
		w.informers[version] = nil
	}
	thing.SetResourceVersion("1")
	return nil
}

func (w *world) Create(ctx context.Context, object client.Object, _ ...client.CreateOption) error {
	review := object.(*authorizationv1.SelfSubjectAccessReview)
	w.mu.Lock()
	w.asked++
	if deadline, ok := ctx.Deadline(); ok {
		w.deadlines = append(w.deadlines, time.Until(deadline))
	}
	w.mu.Unlock()
	if err := w.hang(ctx, review.Spec.ResourceAttributes.Resource); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	review.Status.Allowed = !w.refused
	return nil
}

func (w *world) hang(ctx context.Context, what string) error {
	w.mu.Lock()
	end := w.hangs[what]
	w.mu.Unlock()
	if end == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-end:
		return nil
	}
}

// questions returns the number of access reviews.
func (w *world) questions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

func (w *world) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*clusterv1.ClusterList).Items = w.clusters
	return nil
}

type worldMapper struct {
	meta.RESTMapper
	*world
}

// discovery is the key in hangs for discovery.
const discovery = "discovery"

func (w *world) RESTMapper() meta.RESTMapper { return worldMapper{world: w} }

func (w worldMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if err := w.hang(context.Background(), discovery); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.discovered++
	if w.unserved || kind.Kind != things.Kind && strings.EqualFold(kind.Kind, things.Kind) {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return &meta.RESTMapping{}, nil
}

func (w worldMapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	kind := schema.GroupKind{Group: resource.Group, Kind: things.Kind}.WithVersion(resource.Version)
	_, err := w.RESTMapping(kind.GroupKind(), resource.Version)
	return kind, err
}

func (w *world) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	gvk := object.GetObjectKind().GroupVersionKind()
	if _, err := w.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.informers[gvk.Version]; !ok {
		w.log = append(w.log, "start "+gvk.Version)
		w.informers[gvk.Version] = nil
	}
	return worldInformer{world: w, version: gvk.Version}, nil
}

func (w *world) RemoveInformer(_ context.Context, object client.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	version := object.GetObjectKind().GroupVersionKind().Version
	w.log = append(w.log, "stop "+version)
	delete(w.informers, version)
	return nil
}

type worldInformer struct {
	cache.Informer
	world   *world
	version string
}

func (i worldInformer) HasSynced() bool {
	i.world.mu.Lock()
	defer i.world.mu.Unlock()
	return !i.world.unlisted
}

func (i worldInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.world.mu.Lock()
	defer i.world.mu.Unlock()
	i.world.log = append(i.world.log, "watch "+i.version)
	i.world.informers[i.version] = handler
	return worldRegistration{world: i.world}, nil
}

type worldRegistration struct {
	toolscache.ResourceEventHandlerRegistration
	world *world
}

func (r worldRegistration) HasSynced() bool { return worldInformer{world: r.world}.HasSynced() }

func referringCluster() *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = "team", "one"
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: things.Group, Kind: things.Kind, Name: "infra"}
	return cluster
}

func (r *Reader) readValues(ctx context.Context) (string, error) {
	values, err := r.Values(ctx, settings.Default(), referringCluster())
	if err != nil {
		return "", err
	}
	version, _ := values["InfrastructureCluster"].(map[string]any)["apiVersion"].(string)
	return strings.TrimPrefix(version, things.Group+"/"), nil
}

// A kind is watched before it is read, only in the version that its CRD declares.
func TestReaderFollowsTheContract(t *testing.T) {
	w := newWorld()
	r := w.reader()
	for _, step := range []struct {
		contract string
		log      []string
	}{
		{"v1beta1", []string{"start v1beta1", "watch v1beta1", "read v1beta1"}},
		{"v1beta1", []string{"read v1beta1"}},
		{"v1beta2", []string{"stop v1beta1", "start v1beta2", "watch v1beta2", "read v1beta2"}},
		{"", []string{"stop v1beta2"}},
		{"", nil},
		{"v1beta1_v1beta2", []string{"start v1beta2", "watch v1beta2", "read v1beta2"}},
		{"v1beta1", []string{"stop v1beta2", "start v1beta1", "watch v1beta1", "read v1beta1"}},
	} {
		w.contract, w.log = step.contract, nil
		if _, err := r.readValues(t.Context()); (err != nil) != (step.contract == "") {
			t.Errorf("contract %q: %v", step.contract, err)
		}
		if !slices.Equal(w.log, step.log) {
			t.Errorf("contract %q: %q, want %q", step.contract, w.log, step.log)
		}
	}
}

// Concurrent reads during a change of the CRD do not restart a stopped informer.
func TestReaderFollowsTheContractWhileOthersRead(t *testing.T) {
	w := newWorld()
	r := w.reader()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 200 {
				if _, err := r.readValues(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 50 {
		w.mu.Lock()
		w.contract = fmt.Sprintf("v1beta%d", i%2+1)
		w.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	readers.Wait()
	if version, err := r.readValues(t.Context()); err != nil || version != w.contract {
		t.Errorf("read at %s (%v), want %s", version, err, w.contract)
	}
	if running := slices.Collect(maps.Keys(w.informers)); !slices.Equal(running, []string{w.contract}) {
		t.Errorf("informers of %v run, want %s", running, w.contract)
	}
	for _, entry := range w.log {
		if strings.HasPrefix(entry, "started anew") {
			t.Error(entry)
		}
	}
}

// For most problems of a reference, an event shows the end, and no Cluster is retried. The rest is
// polled.
func TestRetryAfter(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		words  string
		after  time.Duration
	}{
		"no object":          {change: func(w *world) { w.exists = false }, words: `spec.infrastructureRef: failed to retrieve Thing team/infra: things "infra" not found`},
		"no CRD":             {change: func(w *world) { w.noCRD = true }, words: `"things.infrastructure.cluster.x-k8s.io" not found; install the provider`},
		"no contract":        {change: func(w *world) { w.contract = "" }, words: "contract version label"},
		"not served":         {change: func(w *world) { w.unserved = true }, words: "no matches for kind", after: firstRetry},
		"not allowed":        {change: func(w *world) { w.refused = true }, words: "the syncer may not read things.infrastructure.cluster.x-k8s.io", after: accessInterval},
		"no CRD can be read": {change: func(w *world) { w.crd = errors.New("broken") }, words: "broken", after: lastRetry},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			r, now := w.reader(), time.Now()
			r.now = func() time.Time { return now }
			_, err := r.readValues(t.Context())
			if !errors.Is(err, ErrUnresolved) || !strings.Contains(err.Error(), test.words) {
				t.Errorf("got %v, want an error with %q", err, test.words)
			}
			if got := RetryAfter(err); got != test.after {
				t.Errorf("again after %v, want %v", got, test.after)
			}
		})
	}
	t.Run("not listed", func(t *testing.T) {
		w := newWorld()
		w.unlisted = true
		r := w.reader()
		begun := time.Now()
		now := begun
		r.now = func() time.Time { return now }
		for waited, after := range map[time.Duration]time.Duration{0: firstRetry, 3 * time.Second: 3 * time.Second, time.Minute: lastRetry} {
			w.unlisted, now = true, begun
			_, _ = r.readValues(t.Context())
			now = begun.Add(waited)
			if _, err := r.readValues(t.Context()); !errors.Is(err, ErrListing) || RetryAfter(err) != after {
				t.Errorf("after %v: %v, again after %v", waited, err, RetryAfter(err))
			}
		}
		now = begun.Add(listPatience + time.Second)
		if _, err := r.readValues(t.Context()); !errors.Is(err, ErrUnresolved) || RetryAfter(err) != lastRetry || !strings.Contains(err.Error(), "has not listed Thing.infrastructure.cluster.x-k8s.io in 2m0s") {
			t.Errorf("when patience is over: %v, again after %v", err, RetryAfter(err))
		}
	})
	t.Run("a broken variable", func(t *testing.T) {
		cluster := referringCluster()
		cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "x"}}
		cluster.Spec.Topology.Variables[0].Value.Raw = []byte("{")
		if _, err := newWorld().reader().Values(t.Context(), settings.Default(), cluster); !errors.Is(err, ErrUnresolved) || RetryAfter(err) != 0 {
			t.Errorf("got %v", err)
		}
	})
	if RetryAfter(nil) != 0 || RetryAfter(errors.New("another")) != 0 {
		t.Error("an invalid reference is polled")
	}
}

// A problem that ends without an event is checked once for all Clusters, and not all the time.
func TestReaderAsksAgain(t *testing.T) {
	const questions = 3 // get, list, watch
	begin := func(change func(*world)) (w *world, r *Reader, wait func(time.Duration)) {
		w = newWorld()
		change(w)
		r = w.reader()
		now := time.Now()
		r.now = func() time.Time { return now }
		return w, r, func(passed time.Duration) { now = now.Add(passed) }
	}
	reads := func(r *Reader) (err error) {
		for range 5 { // as if from five Clusters
			_, err = r.readValues(t.Context())
		}
		return err
	}
	t.Run("access", func(t *testing.T) {
		w, r, wait := begin(func(w *world) { w.refused = true })
		for minute := range 3 {
			err := reads(r)
			if !errors.Is(err, ErrUnresolved) || w.asked != (minute+1)*questions {
				t.Errorf("minute %d: asked %d times: %v", minute, w.asked, err)
			}
			wait(RetryAfter(err))
		}
		w.refused = false
		if err := reads(r); err != nil || w.asked != 4*questions {
			t.Errorf("asked %d times: %v", w.asked, err)
		}
	})
	t.Run("access that was refused to a standby", func(t *testing.T) {
		w, r, wait := begin(func(w *world) { w.refused = true })
		_ = reads(r)
		wait(time.Hour)
		w.refused = false
		if err := reads(r); err != nil {
			t.Error(err)
		}
	})
	t.Run("a version that is not served", func(t *testing.T) {
		w, r, wait := begin(func(w *world) { w.unserved = true })
		var waited time.Duration
		for i := range 100 {
			before := w.discovered
			err := reads(r)
			if !errors.Is(err, ErrUnresolved) || RetryAfter(err) <= 0 {
				t.Fatalf("again after %v: %v", RetryAfter(err), err)
			}
			// A check takes two requests: one for the version, and one for another spelling of the kind.
			if got := w.discovered - before; got > 2 {
				t.Errorf("round %d: discovery was asked %d times", i, got)
			}
			wait(RetryAfter(err))
			waited += RetryAfter(err)
		}
		if waited < 90*lastRetry {
			t.Errorf("100 rounds took %v", waited)
		}
		w.unserved = false
		if version, err := r.readValues(t.Context()); version != "v1beta1" || len(r.unserved) != 0 {
			t.Errorf("read %q (%v), remembers %v", version, err, r.unserved)
		}
	})
	t.Run("a version that is not declared any more", func(t *testing.T) {
		w, r, _ := begin(func(w *world) { w.unserved = true })
		_ = reads(r)
		w.contract = ""
		if err := reads(r); RetryAfter(err) != 0 || len(r.unserved) != 0 {
			t.Errorf("again after %v: %v; remembers %v", RetryAfter(err), err, r.unserved)
		}
	})
}

// within fails the test if a function takes long.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	t.Cleanup(func() { <-done })
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatalf("%s waits for an answer that another caller waits for", what)
	}
}

// eventually waits for a condition that another goroutine fulfils.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A request without an answer holds up only those who need that answer.
func TestReaderWaitsForNobodyElsesAnswer(t *testing.T) {
	referringTo := func(kind string) *clusterv1.Cluster {
		cluster := referringCluster()
		cluster.Spec.InfrastructureRef.Kind = kind
		return cluster
	}
	begin := func(change func(*world)) (w *world, r *Reader, answer func()) {
		w = newWorld()
		change(w)
		w.clusters = []clusterv1.Cluster{*referringCluster()}
		end := make(chan struct{})
		answer = sync.OnceFunc(func() { close(end) })
		r = w.reader()
		w.hangs = map[string]chan struct{}{"things": end, discovery: end}
		return w, r, answer
	}
	t.Run("when a kind is asked about for the first time", func(t *testing.T) {
		w, r, answer := begin(func(*world) {})
		delete(w.hangs, discovery)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer answer()
		for range 3 {
			reading.Go(func() {
				if version, err := r.readValues(t.Context()); version != "v1beta1" {
					t.Errorf("read %q (%v)", version, err)
				}
			})
		}
		eventually(t, "asked", func() bool { return w.questions() == 1 })
		within(t, "a Cluster of another kind", func() {
			if _, err := r.Values(t.Context(), settings.Default(), referringTo("Other")); err != nil {
				t.Error(err)
			}
		})
		within(t, "one who has no time", func() {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := r.readValues(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		answer()
		reading.Wait()
		if got := w.questions(); got != 6 {
			t.Errorf("asked %d times, want get, list and watch of two kinds", got)
		}
		if len(w.deadlines) != w.asked || slices.Max(w.deadlines) > answerPatience {
			t.Errorf("asked with %v left", w.deadlines)
		}
	})
	t.Run("when the first caller gives up", func(t *testing.T) {
		w, r, answer := begin(func(*world) {})
		delete(w.hangs, discovery)
		ctx, cancel := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		defer reading.Wait()
		defer answer()
		reading.Go(func() { _, _ = r.readValues(ctx) })
		eventually(t, "asked", func() bool { return w.questions() == 1 })
		reading.Go(func() {
			if version, err := r.readValues(t.Context()); version != "v1beta1" {
				t.Errorf("read %q (%v)", version, err)
			}
		})
		cancel()
		time.Sleep(10 * time.Millisecond)
		answer()
		reading.Wait()
	})
}

// Tenants can refer to any number of kinds that do not exist, and spell existing ones in many ways.
func TestReaderRetainsNothingOfInventedKinds(t *testing.T) {
	read := func(r *Reader, group, kind string) error {
		cluster := referringCluster()
		cluster.Spec.InfrastructureRef.APIGroup, cluster.Spec.InfrastructureRef.Kind = group, kind
		_, err := r.Values(t.Context(), settings.Default(), cluster)
		return err
	}
	wantCached := func(t *testing.T, r *Reader, want int) {
		t.Helper()
		for what, cached := range map[string]int{"access": len(r.access), "kinds": len(r.kinds.all)} {
			if cached != want {
				t.Errorf("%s: %d entries, want %d", what, cached, want)
			}
		}
		if len(r.unserved) != 0 {
			t.Errorf("unserved: %v", r.unserved)
		}
	}
	t.Run("without a CRD", func(t *testing.T) {
		w := newWorld()
		w.noCRD, w.refused = true, true
		w.clusters = []clusterv1.Cluster{*referringCluster()}
		r := w.reader()
		for i := range 1500 {
			err := read(r, "evil.example", fmt.Sprintf("K%d", i))
			if !errors.Is(err, errUndeclared) || RetryAfter(err) != 0 {
				t.Fatalf("got %v", err)
			}
			if want := fmt.Sprintf(`CustomResourceDefinition "k%ds.evil.example" not found; install`, i); !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v, want an error with %s", err, want)
			}
		}
		r.sweep(t.Context())
		if w.asked != 0 {
			t.Errorf("asked %d times about kinds that do not exist", w.asked)
		}
		wantCached(t, r, 0)
	})
	t.Run("spelled in other ways", func(t *testing.T) {
		w := newWorld()
		r := w.reader()
		for range 2 {
			for _, kind := range []string{"THING", "tHING", "Thing", "ThInG"} {
				if err := read(r, things.Group, kind); (kind == things.Kind) != (err == nil) {
					t.Errorf("%s: %v", kind, err)
				} else if err != nil && (RetryAfter(err) != 0 || !strings.Contains(err.Error(), `is of kind "Thing", not "`+kind)) {
					t.Errorf("%s: %v", kind, err)
				}
			}
		}
		wantCached(t, r, 1)
		if want := []string{"start v1beta1", "watch v1beta1", "read v1beta1", "read v1beta1"}; !slices.Equal(w.log, want) {
			t.Errorf("%q, want %q", w.log, want)
		}
	})
	for name, notice := range map[string]func(*Reader){
		"whose CRD goes":                     func(r *Reader) { _ = read(r, things.Group, things.Kind) },
		"whose CRD goes after the last user": func(r *Reader) { r.sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			r := w.reader()
			if err := read(r, things.Group, things.Kind); err != nil {
				t.Fatal(err)
			}
			wantCached(t, r, 1)
			w.noCRD = true
			notice(r)
			wantCached(t, r, 0)
			if len(w.informers) != 0 {
				t.Errorf("watched: %v", w.informers)
			}
			w.noCRD, w.log = false, nil
			if err := read(r, things.Group, things.Kind); err != nil || !slices.Contains(w.log, "watch v1beta1") {
				t.Errorf("when it is back: %v, %q", err, w.log)
			}
		})
	}
}

// A CRD that goes and returns while others read leaves one watch.
func TestReaderDropsAKindWhileOthersRead(t *testing.T) {
	w := newWorld()
	r := w.reader()
	var others sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 8 {
		others.Go(func() {
			for range 300 {
				if _, err := r.readValues(t.Context()); err != nil && !errors.Is(err, errUndeclared) {
					t.Error(err)
				}
			}
		})
	}
	sweeping := make(chan struct{})
	go func() {
		defer close(sweeping)
		for ctx.Err() == nil {
			r.sweep(t.Context())
		}
	}()
	for i := range 50 {
		w.mu.Lock()
		w.noCRD = i%2 == 0
		w.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	others.Wait()
	stop()
	<-sweeping
	if version, err := r.readValues(t.Context()); version != "v1beta1" {
		t.Errorf("read %q (%v)", version, err)
	}
	watches := 0
	for _, entry := range w.log {
		switch {
		case strings.HasPrefix(entry, "started anew"):
			t.Error(entry)
		case entry == "watch v1beta1":
			watches++
		case entry == "stop v1beta1":
			watches--
		}
	}
	if watches != 1 {
		t.Errorf("%d watches, want 1", watches)
	}
}

func TestContractNews(t *testing.T) {
	crd := func(version string, age time.Duration, labels map[string]string) client.Object {
		crd := CRD()
		crd.ResourceVersion, crd.Labels = version, labels
		crd.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		return crd
	}
	old, young := time.Hour, time.Second
	for name, test := range map[string]struct {
		event  event.UpdateEvent
		passes bool
	}{
		"a label":                {event.UpdateEvent{ObjectOld: crd("1", old, nil), ObjectNew: crd("2", old, map[string]string{"cluster.x-k8s.io/v1beta2": "v1"})}, true},
		"anything else":          {event.UpdateEvent{ObjectOld: crd("1", old, nil), ObjectNew: crd("2", old, nil)}, false},
		"anything of a new one":  {event.UpdateEvent{ObjectOld: crd("1", young, nil), ObjectNew: crd("2", young, nil)}, true},
		"nothing, of a new one":  {event.UpdateEvent{ObjectOld: crd("1", young, nil), ObjectNew: crd("1", young, nil)}, false},
		"nothing, of an old one": {event.UpdateEvent{ObjectOld: crd("1", old, nil), ObjectNew: crd("1", old, nil)}, false},
	} {
		if got := ContractNews.Update(test.event); got != test.passes {
			t.Errorf("%s passes: %v, want %v", name, got, test.passes)
		}
	}
	if ContractNews.Create(event.CreateEvent{Object: crd("1", old, nil), IsInInitialList: true}) {
		t.Error("a CRD that is found at startup passes")
	}
	if !ContractNews.Create(event.CreateEvent{Object: crd("1", young, nil)}) || !ContractNews.Delete(event.DeleteEvent{Object: crd("1", old, nil)}) {
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
