package settings

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// apiServer has the namespace of the programs, and may have the record in it.
type apiServer struct {
	client.Reader
	client.Writer
	record     *corev1.ConfigMap
	isGoing    bool
	fails      error
	gets, puts int
}

func (a *apiServer) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if namespace, is := into.(*metav1.PartialObjectMetadata); is && key.Name == "muster" {
		if a.isGoing {
			namespace.DeletionTimestamp = new(metav1.Now())
		}
		return nil
	}
	a.gets++
	switch {
	case a.fails != nil:
		return a.fails
	case a.record == nil || key != client.ObjectKeyFromObject(a.record):
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	a.record.DeepCopyInto(into.(*corev1.ConfigMap))
	return nil
}

func (a *apiServer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	a.puts++
	if a.record != nil {
		return errors.New("there is one")
	}
	a.record = object.(*corev1.ConfigMap)
	return nil
}

func (a *apiServer) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	a.puts++
	if a.record == nil {
		return errors.New("there is none")
	}
	a.record = object.(*corev1.ConfigMap)
	return nil
}

func configOf(uid types.UID) *addonsv1.FleetAddonConfig {
	return &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName, UID: uid}}
}

func recorded(uid string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "muster", Name: "muster-config"}, Data: map[string]string{"uid": uid}}
}

// TestConfigThatIsGone checks what is in force without a FleetAddonConfig: the defaults only if there never was one.
func TestConfigThatIsGone(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, RecordName, errors.New("no"))
	for name, test := range map[string]struct {
		server apiServer
		// saw is whether the process saw a FleetAddonConfig.
		saw               bool
		isUnknown, isPast bool
		gets              int
	}{
		"there never was one":                            {gets: 1},
		"there was one, before the start":                {server: apiServer{record: recorded("1")}, isUnknown: true, gets: 1},
		"there was one, and it could not be recorded":    {saw: true, isUnknown: true},
		"the process remembers, whatever the API server": {server: apiServer{fails: forbidden}, saw: true, isUnknown: true},
		"reading the record is refused":                  {server: apiServer{fails: forbidden}, isUnknown: true, isPast: true, gets: 3},
		"no answer yet":                                  {server: apiServer{fails: errors.New("timeout")}, isUnknown: true, isPast: true, gets: 3},
		"the namespace of the programs is being deleted": {server: apiServer{isGoing: true}, isUnknown: true, isPast: true, gets: 3},
	} {
		t.Run(name, func(t *testing.T) {
			cache := &oneConfig{}
			reader := NewReader(cache).WithRecord(&test.server, nil, "muster")
			if test.saw {
				reader.Saw(cache.config)
			}
			for range 3 {
				in, err := reader.Current(t.Context())
				if (err != nil) != test.isPast || in == nil {
					t.Fatalf("got %v, %v", in, err)
				}
				if in.IsUnknown() != test.isUnknown || in.Cluster.Enabled == test.isUnknown || in.Cluster.Unconfigured != true {
					t.Errorf("unknown: %t, enabled: %t (%v)", in.IsUnknown(), in.Cluster.Enabled, in.Invalid)
				}
			}
			if test.server.gets != test.gets || test.server.puts != 0 {
				t.Errorf("%d GETs and %d writes, want %d and none", test.server.gets, test.server.puts, test.gets)
			}
		})
	}
}

// TestReplacedConfig follows a FleetAddonConfig that goes and comes back.
func TestReplacedConfig(t *testing.T) {
	server, cache := &apiServer{record: recorded("1")}, &oneConfig{config: configOf("1")}
	cache.config.Spec.Cluster = &addonsv1.ClusterConfig{TemplateValues: &addonsv1.TemplateValuesConfig{Exclude: &[]string{"/Variables"}}}
	before := cache.config
	reader := NewReader(cache).WithRecord(server, nil, "muster")
	for i, config := range []*addonsv1.FleetAddonConfig{before, nil, nil, before, nil, configOf("2")} {
		cache.config = config
		in, err := reader.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if in.IsUnknown() != (config == nil) || in.Cluster.Enabled == (config == nil) {
			t.Errorf("%d: unknown: %t, enabled: %t", i, in.IsUnknown(), in.Cluster.Enabled)
		}
		if config == nil && !strings.Contains(in.Invalid.Error(), "ConfigMap muster/muster-config") || config == nil && !strings.Contains(in.Invalid.Error(), "spec: {}") {
			t.Errorf("%d: %q does not say what to do", i, in.Invalid)
		}
	}
	// An invalid one has settings, so it is not unknown.
	cache.config = configOf("3")
	cache.config.Spec.Cluster = &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}}
	if in, err := reader.Current(t.Context()); err != nil || in.Invalid == nil || in.IsUnknown() {
		t.Errorf("invalid: %v, unknown: %t, %v", in.Invalid, in.IsUnknown(), err)
	}
}

// TestRecordIsWrittenAgain checks that a deleted record is back within UnwatchedInterval, and that a ConfigMap
// of that name without a UID is none.
func TestRecordIsWrittenAgain(t *testing.T) {
	server, cache, now := &apiServer{}, &oneConfig{config: configOf("1")}, time.Now()
	syncer := NewReader(cache).WithRecord(server, server, "muster")
	syncer.record.now = func() time.Time { return now }
	look := func() {
		t.Helper()
		for range 3 {
			if _, err := syncer.Current(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := syncer.Record(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	look()
	server.record = nil // It was deleted, or etcd restored.
	now = now.Add(UnwatchedInterval)
	if look(); server.record == nil || server.puts != 2 || server.gets != 2 {
		t.Fatalf("the record is %v after %d writes and %d GETs", server.record, server.puts, server.gets)
	}
	cache.config = nil
	for uid, isUnknown := range map[string]bool{"1": true, "": false} {
		server.record = recorded(uid)
		if in, err := NewReader(cache).WithRecord(server, nil, "muster").Current(t.Context()); err != nil || in.IsUnknown() != isUnknown {
			t.Errorf("with UID %q: %v, %v", uid, in, err)
		}
	}
}

// TestRecordIsWrittenFirst checks that the syncer records a FleetAddonConfig before it uses its settings, once, and
// that a write that fails stops nothing and is repeated.
func TestRecordIsWrittenFirst(t *testing.T) {
	server, cache := &apiServer{}, &oneConfig{config: configOf("1")}
	reader := NewReader(cache).WithRecord(server, server, "muster")
	has := func(uid string, gets, puts int) {
		t.Helper()
		for range 3 {
			if in, err := reader.Current(t.Context()); err != nil || in.IsUnknown() {
				t.Fatalf("got %v, %v", in.Invalid, err)
			}
		}
		if server.record == nil || server.record.Data["uid"] != uid || server.record.Namespace != "muster" || server.gets != gets || server.puts != puts {
			t.Errorf("record %v after %d GETs and %d writes, want %s, %d and %d", server.record, server.gets, server.puts, uid, gets, puts)
		}
	}
	has("1", 1, 1)
	cache.config = configOf("2")
	has("2", 2, 2)
	reader = NewReader(cache).WithRecord(server, server, "muster") // A restart.
	has("2", 3, 2)

	server.fails = errors.New("refused")
	cache.config = configOf("3")
	has("2", 4, 2)
	if err := reader.Record(t.Context()); err == nil {
		t.Error("nobody says that it is not recorded")
	}
	server.fails = nil
	if err := reader.Record(t.Context()); err != nil {
		t.Error(err)
	}
	has("3", 6, 3)
}

// slowServer answers a GET when answer is closed.
type slowServer struct {
	*apiServer
	asked, answer chan struct{}
}

func (s *slowServer) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	s.asked <- struct{}{}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.answer:
		return s.apiServer.Get(ctx, key, into, options...)
	}
}

// TestNobodyWaitsForAnother checks that a slow answer of the API server delays no other reader: each waits at most
// for its own deadline, and a reader that needs no answer gets the settings at once.
func TestNobodyWaitsForAnother(t *testing.T) {
	soon := func(what string, do func()) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			do()
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s waits", what)
		}
	}
	slow := &slowServer{apiServer: &apiServer{}, asked: make(chan struct{}, 10), answer: make(chan struct{})}
	cache, now := &oneConfig{}, time.Now()
	reader := NewReader(cache).WithRecord(slow, slow, "muster")
	reader.record.now = func() time.Time { return now }
	first := make(chan error)
	go func() {
		_, err := reader.Current(context.WithoutCancel(t.Context()))
		first <- err
	}()
	<-slow.asked
	impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	soon("another", func() {
		if in, err := reader.Current(impatient); !errors.Is(err, context.DeadlineExceeded) || !in.IsUnknown() {
			t.Errorf("got %+v, %v", in, err)
		}
	})
	soon("an event", func() { reader.Saw(nil) })
	close(slow.answer)
	if err := <-first; err != nil {
		t.Error(err)
	}

	cache.config = configOf("1")
	if _, err := reader.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow.asked, slow.answer, now = make(chan struct{}, 10), make(chan struct{}), now.Add(UnwatchedInterval)
	go func() { first <- reader.Record(context.WithoutCancel(t.Context())) }()
	<-slow.asked
	soon("a reader", func() {
		if in, err := reader.Current(t.Context()); err != nil || in.IsUnknown() {
			t.Errorf("got %+v, %v", in, err)
		}
	})
	close(slow.answer)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// Without a namespace, as outside a cluster, there is no record.
func TestNoRecord(t *testing.T) {
	server := &apiServer{record: recorded("1")}
	if in, err := NewReader(&oneConfig{}).WithRecord(server, server, "").Current(t.Context()); err != nil || in.IsUnknown() || server.gets != 0 {
		t.Errorf("unknown: %t, %v, %d GETs", in.IsUnknown(), err, server.gets)
	}
}
