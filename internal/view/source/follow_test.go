package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/view"
)

// server is a fake API server with chosen faults. It runs on the clock of synctest.
type server struct {
	client.WithWatch // Any other method panics.

	mu             sync.Mutex
	lists, watches int // for Clusters
	clusters       []clusterv1.Cluster
	mappings       []fleetv1.BundleNamespaceMapping // in the namespace in scope
	deployments    []fleetv1.BundleDeployment
	denied         error // of their lists
	// get and watch replace the methods of these names.
	get   func(key types.NamespacedName) error
	watch func(ctx context.Context, list client.ObjectList) (watch.Interface, error)
}

func (s *server) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list.SetResourceVersion("1")
	switch list := list.(type) {
	case *clusterv1.ClusterList:
		s.lists++
		list.Items = s.clusters
	case *fleetv1.BundleNamespaceMappingList:
		list.Items = s.mappings
	case *fleetv1.BundleDeploymentList:
		for _, its := range s.deployments {
			if its.Namespace == (&client.ListOptions{}).ApplyOptions(options).Namespace {
				list.Items = append(list.Items, its)
			}
		}
		return s.denied
	}
	return nil
}

func (s *server) Get(_ context.Context, key types.NamespacedName, object client.Object, _ ...client.GetOption) error {
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	if s.get == nil {
		return nil
	}
	return s.get(key)
}

func (s *server) Watch(ctx context.Context, list client.ObjectList, _ ...client.ListOption) (watch.Interface, error) {
	if _, is := list.(*clusterv1.ClusterList); is {
		s.mu.Lock()
		s.watches++
		tooMany := s.watches > 10_000
		s.mu.Unlock()
		if tooMany { // The Follower loops without a pause, so the clock would stand still.
			return living(ctx, time.Hour), nil
		}
	}
	return s.watch(ctx, list)
}

// played is a simulated watch: it lives for a while, sends some events, and ends.
type played chan watch.Event

func (p played) Stop()                          {}
func (p played) ResultChan() <-chan watch.Event { return p }

func living(ctx context.Context, life time.Duration, events ...watch.Event) watch.Interface {
	result := make(played, len(events))
	go func() {
		defer close(result)
		select {
		case <-ctx.Done():
			return
		case <-time.After(life):
		}
		for _, event := range events {
			result <- event
		}
	}()
	return result
}

// following follows a server for a while, and passes the follower to a test.
func following(t *testing.T, s *server, scope Scope, test func(*testing.T, *Follower)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f, err := Follow(ctx, s, scope)
		if err != nil {
			t.Fatal(err)
		}
		test(t, f)
	})
}

// expiring is a watch that ends after ten seconds, so that everything must be listed again.
func expiring(ctx context.Context, _ client.ObjectList) (watch.Interface, error) {
	return living(ctx, 10*time.Second, expired()), nil
}

func expired() watch.Event {
	gone := apierrors.NewResourceExpired("too old").Status()
	return watch.Event{Type: watch.Error, Object: &gone}
}

var errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "clusters"}, "", nil)

// TestFollowPauses counts the requests to an API server, or a proxy in front of it, whose watches are useless: a
// few in ten minutes, finally one in half a minute.
func TestFollowPauses(t *testing.T) {
	moved := &clusterv1.Cluster{}
	moved.ResourceVersion = "2"
	for name, test := range map[string]struct {
		watch                                          func(ctx context.Context, calls int) (watch.Interface, error)
		fewestLists, mostLists, fewestTries, mostTries int
	}{
		"watching is forbidden": {
			func(context.Context, int) (watch.Interface, error) { return nil, errForbidden }, 15, 30, 15, 30,
		},
		"watches end at once": {
			func(ctx context.Context, _ int) (watch.Interface, error) { return living(ctx, 0), nil }, 1, 1, 15, 30,
		},
		"watches fail at once": {
			func(ctx context.Context, _ int) (watch.Interface, error) {
				return living(ctx, 0, expired()), nil
			}, 15, 30, 15, 30,
		},
		"watches end at once, after an event": {
			func(ctx context.Context, calls int) (watch.Interface, error) {
				reported := moved.DeepCopy()
				reported.ResourceVersion = fmt.Sprint(calls + 1)
				return living(ctx, 0, watch.Event{Type: watch.Modified, Object: reported}), nil
			}, 1, 1, 500, 610,
		},
		"watches last a minute": {
			func(ctx context.Context, _ int) (watch.Interface, error) { return living(ctx, time.Minute), nil }, 1, 1, 10, 11,
		},
		"watches last six seconds": {
			func(ctx context.Context, _ int) (watch.Interface, error) { return living(ctx, 6*time.Second), nil }, 1, 1, 80, 101,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			s.watch = func(ctx context.Context, list client.ObjectList) (watch.Interface, error) {
				if _, is := list.(*clusterv1.ClusterList); !is {
					return living(ctx, time.Hour), nil
				}
				s.mu.Lock()
				calls := s.watches
				s.mu.Unlock()
				return test.watch(ctx, calls)
			}
			following(t, s, Scope{}, func(t *testing.T, _ *Follower) {
				time.Sleep(10 * time.Minute)
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.lists < test.fewestLists || s.lists > test.mostLists {
					t.Errorf("%d lists, want %d to %d", s.lists, test.fewestLists, test.mostLists)
				}
				if s.watches < test.fewestTries || s.watches > test.mostTries {
					t.Errorf("%d watches, want %d to %d", s.watches, test.fewestTries, test.mostTries)
				}
			})
		})
	}
}

// TestFollowWithoutWatch: objects that may be listed but not watched are reported as old, not as
// unreadable.
func TestFollowWithoutWatch(t *testing.T) {
	s := &server{watch: func(context.Context, client.ObjectList) (watch.Interface, error) { return nil, errForbidden }}
	following(t, s, Scope{}, func(t *testing.T, f *Follower) {
		time.Sleep(time.Second / 2)
		if why := f.Snapshot().Unread[view.Cluster]; !strings.HasPrefix(why, "not updated since ") {
			t.Errorf("got %q", why)
		}
	})
}

func clusterOf(namespace, name string, class types.NamespacedName) clusterv1.Cluster {
	result := clusterv1.Cluster{}
	result.Namespace, result.Name = namespace, name
	result.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: class.Namespace, Name: class.Name}
	return result
}

// TestFollowNamespace: a new list of the namespace keeps the objects outside it.
func TestFollowNamespace(t *testing.T) {
	class := types.NamespacedName{Namespace: "classes", Name: "standard"}
	leads := types.NamespacedName{Namespace: "classes", Name: "team-a"}
	own := types.NamespacedName{Namespace: "team-a", Name: "elsewhere"}
	mapping := fleetv1.BundleNamespaceMapping{ObjectMeta: metav1.ObjectMeta{Namespace: own.Namespace, Name: own.Name}}
	s := &server{clusters: []clusterv1.Cluster{clusterOf("team-a", "prod", class)}, mappings: []fleetv1.BundleNamespaceMapping{mapping}}
	s.watch = expiring
	following(t, s, Scope{Namespace: "team-a"}, func(t *testing.T, f *Follower) {
		for second := range 120 {
			objects := f.Snapshot()
			if !objects.Classes[class] || objects.Mappings[leads] == nil || objects.Namespaces["team-a"] == nil {
				t.Fatalf("after %d s, the classes are %v, the mappings %v and the namespaces %v", second, objects.Classes, objects.Mappings, objects.Namespaces)
			}
			if there := objects.Mappings[own] != nil; second < 10 && !there || second > 12 && there {
				t.Fatalf("after %d s, the mapping of the namespace itself exists: %v", second, there)
			}
			if second == 5 {
				s.mu.Lock()
				s.mappings = nil
				s.mu.Unlock()
			}
			time.Sleep(time.Second)
		}
	})
}

// TestFollowBeyond: objects outside the namespace become unreadable, and readable again. The note goes with
// the next successful read of them, not with a list of the namespace itself.
func TestFollowBeyond(t *testing.T) {
	class := types.NamespacedName{Namespace: "classes", Name: "standard"}
	leads := types.NamespacedName{Namespace: "classes", Name: "team-a"}
	begin := time.Time{}
	s := &server{clusters: []clusterv1.Cluster{clusterOf("team-a", "prod", class)}}
	s.get = func(key types.NamespacedName) error {
		switch passed := time.Since(begin); {
		case passed > 3*time.Minute && key == leads:
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		case passed > 2*time.Minute && passed < 3*time.Minute && key.Namespace == "classes":
			return errForbidden
		case passed > time.Minute && passed < 2*time.Minute:
			return errors.New("the API server is gone")
		}
		return nil
	}
	s.watch = expiring // Lists of the namespace itself always succeed.
	synctest.Test(t, func(t *testing.T) {
		begin = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f, err := Follow(ctx, s, Scope{Namespace: "team-a"})
		if err != nil {
			t.Fatal(err)
		}
		until := func(passed time.Duration) (unread string, mapping, class bool) {
			time.Sleep(passed - time.Since(begin))
			objects := f.Snapshot()
			return objects.Unread[view.Mapping], objects.Mappings[leads] != nil, len(objects.Classes) == 1
		}
		for _, want := range []struct {
			passed         time.Duration
			note           string
			mapping, class bool
		}{
			{50 * time.Second, "", true, true},
			{105 * time.Second, "not updated since", true, true}, // The objects read last stay.
			{170 * time.Second, "you may not read them", false, false},
			{225 * time.Second, "", false, true},
		} {
			note, mapping, class := until(want.passed)
			if !strings.HasPrefix(note, want.note) || (note == "") != (want.note == "") || mapping != want.mapping || class != want.class {
				t.Errorf("after %s: the note is %q, mapping %v, class %v; want %+v", want.passed, note, mapping, class, want)
			}
		}
	})
}

// A HelmChartProxy is noted during its rollout. While the kind is not served, nothing is noted.
func TestRolloutsAreNoted(t *testing.T) {
	rolling := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	rolling.Status.Conditions = []metav1.Condition{{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionFalse, Reason: "Soaking", Message: "stage canary, 1 of 1 updated"}}
	rolling.Status.Rollout = &addonsv1.RolloutStatus{Stages: []addonsv1.RolloutStageStatus{{Name: "canary", Clusters: 1, Updated: 1}, {Name: "rest", Clusters: 3, Held: 2}, {Held: 1}}}
	completed := rolling.DeepCopy()
	completed.Status.Conditions[0].Status = metav1.ConditionTrue
	const note = "the rollout of HelmChartProxy team/web is Soaking: stage canary, 1 of 1 updated; 2 of stage rest wait; 1 of no stage wait"
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var isServed atomic.Bool
		events := make(chan watch.Event)
		s := &server{}
		s.watch = func(ctx context.Context, list client.ObjectList) (watch.Interface, error) {
			if _, is := list.(*addonsv1.HelmChartProxyList); !is {
				return living(ctx, time.Hour), nil
			}
			if !isServed.Load() {
				return nil, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: addonsv1.GroupVersion.Group, Kind: "HelmChartProxy"}}
			}
			return played(events), nil
		}
		f, err := Follow(ctx, s, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		notes := func() string { synctest.Wait(); return strings.Join(view.Build(f.Snapshot()).Notes, "\n") }
		if got := notes(); got != "" {
			t.Errorf("the kind is not served: %s", got)
		}
		isServed.Store(true)
		time.Sleep(2 * longest)
		events <- watch.Event{Type: watch.Added, Object: rolling}
		if got := notes(); got != note {
			t.Errorf("while it rolls out: %s", got)
		}
		events <- watch.Event{Type: watch.Modified, Object: completed}
		if got := notes(); got != "" {
			t.Errorf("once it is completed: %s", got)
		}
		events <- watch.Event{Type: watch.Added, Object: rolling}
		events <- watch.Event{Type: watch.Deleted, Object: rolling}
		if got := notes(); got != "" {
			t.Errorf("once it is gone: %s", got)
		}
		cancel()
		close(events)
		synctest.Wait()
	})
}

// The BundleDeployments of a selected Cluster are there once Select returns, and follow their events. Those of too many
// are given up, and what may not be read is noted.
func TestSelect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		deployment := func(name string, ready bool) *fleetv1.BundleDeployment {
			its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-0", Name: name}}
			its.Status.Ready, its.Status.NonModified = ready, true
			return its
		}
		var watched, ended atomic.Int32
		events := make(chan watch.Event)
		s := &server{deployments: []fleetv1.BundleDeployment{*deployment("cni", true), *deployment("dns", true)}}
		s.watch = func(ctx context.Context, list client.ObjectList) (watch.Interface, error) {
			if _, is := list.(*fleetv1.BundleDeploymentList); !is {
				return living(ctx, time.Hour), nil
			}
			if watched.Add(1); watched.Load() == 1 {
				context.AfterFunc(ctx, func() { close(events) })
				return played(events), nil
			}
			context.AfterFunc(ctx, func() { ended.Add(1) })
			return living(ctx, time.Hour), nil
		}
		f, err := Follow(ctx, s, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		states := func() (result []string) {
			synctest.Wait()
			for _, its := range f.Snapshot().Deployments["cluster-0"] {
				result = append(result, its.Name+" "+string(its.State))
			}
			return result
		}
		if first := f.Select("cluster-0"); !f.Select("cluster-0").Equal(first) || first.IsZero() {
			t.Error("it is selected twice")
		}
		if got := states(); !slices.Equal(got, []string{"cni Ready", "dns Ready"}) {
			t.Errorf("once it is selected: %q", got)
		}
		select {
		case <-f.Changed(): // The first lists.
		default:
		}
		events <- watch.Event{Type: watch.Modified, Object: deployment("cni", false)}
		events <- watch.Event{Type: watch.Deleted, Object: deployment("dns", true)}
		if got := states(); !slices.Equal(got, []string{"cni NotReady"}) {
			t.Errorf("after events: %q", got)
		}
		select {
		case <-f.Changed():
		default:
			t.Error("nobody is told")
		}
		for i := range mostSelected {
			f.Select(fmt.Sprintf("cluster-%d", i+1))
		}
		if got := states(); len(got) > 0 || watched.Load() != mostSelected+1 || ended.Load() != 0 {
			t.Errorf("after too many: %q; %d were watched, %d ended", got, watched.Load(), ended.Load())
		}
		s.mu.Lock()
		s.denied = errForbidden
		s.mu.Unlock()
		f.Select("cluster-denied")
		synctest.Wait()
		if why := f.Snapshot().Unread[view.Deployment]; why != "you may not read them" || ended.Load() != 1 {
			t.Errorf("the note is %q; %d ended", why, ended.Load())
		}
	})
}

// Wait returns once a second while objects change, twice a minute while none does, and at the end of the context.
func TestWait(t *testing.T) {
	s := &server{watch: func(ctx context.Context, _ client.ObjectList) (watch.Interface, error) {
		return living(ctx, time.Hour), nil
	}}
	following(t, s, Scope{}, func(t *testing.T, f *Follower) {
		waited := func(ctx context.Context) time.Duration {
			begin := time.Now()
			f.Wait(ctx)
			return time.Since(begin)
		}
		for range 3 {
			f.update(func(*view.Objects) {})
			if took := waited(t.Context()); took != again {
				t.Errorf("with a change: %s", took)
			}
		}
		if took := waited(t.Context()); took != again+longest {
			t.Errorf("without a change: %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if took := waited(ctx); took != 3*time.Second {
			t.Errorf("at the end: %s", took)
		}
	})
}
