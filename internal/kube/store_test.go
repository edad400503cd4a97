package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/muster-fleet/muster/internal/program"
)

// lagging is a fake cache with fixed contents.
type lagging struct {
	client.Reader
	shows *fleetv1.Cluster
	err   error
	// then, if set, is what happens once, between a read and its result.
	then func()
}

func (l *lagging) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if then := l.then; then != nil {
		l.then = nil
		defer then()
	}
	if l.err != nil {
		return l.err
	}
	if l.shows == nil || client.ObjectKeyFromObject(l.shows) != key {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	l.shows.DeepCopyInto(object.(*fleetv1.Cluster))
	return nil
}

func version(uid, resourceVersion string) *fleetv1.Cluster {
	return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: types.UID(uid), ResourceVersion: resourceVersion}}
}

// The cache may show a write between a read of it and the look for own writes. The result is not older than the write.
func TestEventDuringGet(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *fleetv1.Cluster
		note          func(*Store, context.Context, client.Object) error
	}{
		"created": {nil, version("a", "1"), (*Store).Created},
		"changed": {version("a", "1"), version("a", "2"), (*Store).Wrote},
		"deleted": {version("a", "1"), nil, (*Store).Deleted},
		"anew":    {version("a", "1"), version("b", "2"), (*Store).Created},
	} {
		t.Run(name, func(t *testing.T) {
			cached := &lagging{shows: test.before}
			s := newStore(t, cached)
			wrote := test.before
			if test.after != nil {
				wrote = test.after
			}
			if err := test.note(s, t.Context(), wrote.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			cached.then = func() { cached.shows = test.after }
			key := client.ObjectKeyFromObject(wrote)
			if _, err := s.Get(t.Context(), key, &fleetv1.Cluster{}); !errors.Is(err, ErrBehind) {
				t.Errorf("what was read before the event: %v", err)
			}
			got := &fleetv1.Cluster{}
			found, err := s.Get(t.Context(), key, got)
			if err != nil || found != (test.after != nil) || found && (got.UID != wrote.UID || got.ResourceVersion != wrote.ResourceVersion) {
				t.Errorf("found: %t, version %s of %s (%v)", found, got.ResourceVersion, got.UID, err)
			}
		})
	}
}

func newStore(t *testing.T, cached client.Reader) *Store {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return NewStore(cached, scheme)
}

func TestStore(t *testing.T) {
	type step func(context.Context, *Store) error
	created := func(object *fleetv1.Cluster) step {
		return func(ctx context.Context, s *Store) error { return s.Created(ctx, object) }
	}
	changed := func(object *fleetv1.Cluster) step {
		return func(ctx context.Context, s *Store) error { return s.Wrote(ctx, object) }
	}
	deleted := func(object *fleetv1.Cluster) step {
		return func(ctx context.Context, s *Store) error { return s.Deleted(ctx, object) }
	}
	terminating := version("a", "11")
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	type steps []step
	tests := map[string]struct {
		steps    steps
		later    time.Duration
		cache    *fleetv1.Cluster
		isBehind bool
	}{
		"nothing anywhere":                         {},
		"what the cache shows":                     {cache: version("a", "5")},
		"created, not shown yet":                   {steps: steps{created(version("a", "5"))}, isBehind: true},
		"created, its predecessor shown":           {steps: steps{created(version("a", "5"))}, cache: version("b", "4"), isBehind: true},
		"created, shown":                           {steps: steps{created(version("a", "5"))}, cache: version("a", "5")},
		"created and changed, not shown yet":       {steps: steps{created(version("a", "5")), changed(version("a", "10"))}, isBehind: true},
		"created and changed, shown before":        {steps: steps{created(version("a", "5")), changed(version("a", "10"))}, cache: version("a", "5"), isBehind: true},
		"changed, shown as before":                 {steps: steps{changed(version("a", "10"))}, cache: version("a", "9"), isBehind: true},
		"changed, gone meanwhile":                  {steps: steps{changed(version("a", "10"))}},
		"changed, its predecessor created":         {steps: steps{created(version("b", "5")), changed(version("a", "10"))}},
		"changed, shown":                           {steps: steps{changed(version("a", "10"))}, cache: version("a", "10")},
		"another client wrote later":               {steps: steps{changed(version("a", "10"))}, cache: version("a", "11")},
		"numbers, not words":                       {steps: steps{changed(version("a", "99"))}, cache: version("a", "100")},
		"the last write counts":                    {steps: steps{changed(version("a", "10")), changed(version("a", "12"))}, cache: version("a", "11"), isBehind: true},
		"deleted, still shown":                     {steps: steps{deleted(version("a", "10"))}, cache: version("a", "10"), isBehind: true},
		"deleted, still shown, changed":            {steps: steps{deleted(version("a", "10"))}, cache: version("a", "11"), isBehind: true},
		"deleted, waits for its finalizers":        {steps: steps{deleted(version("a", "10"))}, cache: terminating},
		"deleted, gone":                            {steps: steps{deleted(version("a", "10"))}},
		"deleted, replaced by another client":      {steps: steps{deleted(version("a", "10"))}, cache: version("b", "12")},
		"deleted and created again":                {steps: steps{deleted(version("a", "10")), created(version("b", "12"))}, cache: version("a", "10"), isBehind: true},
		"created and deleted again":                {steps: steps{created(version("b", "12")), deleted(version("b", "12"))}, cache: version("b", "12"), isBehind: true},
		"not shown for long":                       {steps: steps{changed(version("a", "10"))}, later: Lag + time.Second, cache: version("a", "9")},
		"created, never shown":                     {steps: steps{created(version("a", "10"))}, later: Lag + time.Second},
		"shown long after the deletion":            {steps: steps{deleted(version("a", "10"))}, later: Lag + time.Second, cache: version("a", "10")},
		"just not too long":                        {steps: steps{changed(version("a", "10"))}, later: Lag - time.Second, cache: version("a", "9"), isBehind: true},
		"another object's write does not count":    {steps: steps{created(named("team", "other"))}, cache: version("a", "5")},
		"another namespace's write does not count": {steps: steps{created(named("else", "prod"))}, cache: version("a", "5")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			store := newStore(t, &lagging{shows: test.cache})
			store.now = func() time.Time { return now }
			for _, step := range test.steps {
				if err := step(t.Context(), store); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(test.later)
			for _, time := range []string{"first", "second"} {
				var got fleetv1.Cluster
				found, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &got)
				if isBehind := errors.Is(err, ErrBehind); isBehind != test.isBehind || err != nil && !isBehind {
					t.Fatalf("the %s time: %v", time, err)
				}
				if test.isBehind {
					continue
				}
				if found != (test.cache != nil) {
					t.Fatalf("the %s time, found: %v", time, found)
				}
				if diff := cmp.Diff(test.cache, &got); found && diff != "" {
					t.Errorf("the %s time (-want +got):\n%s", time, diff)
				}
			}
		})
	}
}

func named(namespace, name string) *fleetv1.Cluster {
	return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "o", ResourceVersion: "50"}}
}

// The Store forgets a write once the cache has caught up, or after the Lag, so it does not grow.
func TestStoreForgets(t *testing.T) {
	cache := &lagging{}
	store := newStore(t, cache)
	now := time.Now()
	store.now = func() time.Time { return now }
	if err := store.Wrote(t.Context(), version("a", "10")); err != nil {
		t.Fatal(err)
	}
	cache.shows = version("a", "10")
	if _, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{}); err != nil {
		t.Fatal(err)
	}
	if len(store.writes) > 0 {
		t.Errorf("it remembers %v", store.writes)
	}
	// Then the cache may go back in time only if the API server does.
	cache.shows = nil
	if found, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{}); err != nil || found {
		t.Errorf("found: %v, %v", found, err)
	}
	for _, never := range []string{"read", "again"} {
		if err := store.Created(t.Context(), named("team", never)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * Lag)
	}
	if len(store.writes) != 1 {
		t.Errorf("it remembers %v", store.writes)
	}
}

func TestStoreReportsErrors(t *testing.T) {
	broken := errors.New("the cache is broken")
	store := newStore(t, &lagging{err: broken})
	if err := store.Created(t.Context(), version("a", "10")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{}); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}

// Lists from the cache may lack what was just created.
func TestCreating(t *testing.T) {
	cache := &lagging{}
	store := newStore(t, cache)
	if err := errors.Join(store.Created(t.Context(), version("a", "10")), store.Wrote(t.Context(), named("team", "changed")),
		store.Created(t.Context(), named("team", "deleted")), store.Deleted(t.Context(), named("team", "deleted"))); err != nil {
		t.Fatal(err)
	}
	keys, err := store.Creating(&fleetv1.Cluster{})
	if want := []client.ObjectKey{{Namespace: "team", Name: "prod"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%v, %v", keys, err)
	}
	if groups, err := store.Creating(&fleetv1.ClusterGroup{}); err != nil || len(groups) > 0 {
		t.Errorf("groups: %v, %v", groups, err)
	}
	cache.shows = version("a", "10")
	if _, err := store.Get(t.Context(), client.ObjectKeyFromObject(cache.shows), &fleetv1.Cluster{}); err != nil {
		t.Fatal(err)
	}
	if keys, err := store.Creating(&fleetv1.Cluster{}); err != nil || len(keys) > 0 {
		t.Errorf("shown: %v, %v", keys, err)
	}
}

// A reconcile that meets its own write is put back, and one that created something comes back, because that may be gone before
// any event. One that only changed or deleted something does not: the cache has it, so its end has an event.
func TestConsistent(t *testing.T) {
	store, broken := newStore(t, &lagging{}), errors.New("broken")
	for name, test := range map[string]struct {
		reconcile reconcile.Func
		want      reconcile.Result
		err       error
	}{
		"nothing": {func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: time.Hour}, nil
		}, reconcile.Result{RequeueAfter: time.Hour}, nil},
		"created": {func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, errors.Join(store.Created(ctx, version("a", "10")), store.Wrote(ctx, version("a", "11")))
		}, reconcile.Result{RequeueAfter: Lag}, nil},
		"created, comes sooner": {func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: time.Second, Priority: new(-5)}, store.Created(ctx, version("a", "11"))
		}, reconcile.Result{RequeueAfter: time.Second, Priority: new(-5)}, nil},
		"created, failed": {func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, errors.Join(store.Created(ctx, named("team", "other")), broken)
		}, reconcile.Result{}, broken},
		"changed and deleted": {func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, errors.Join(store.Wrote(ctx, version("a", "11")), store.Deleted(ctx, named("team", "other")))
		}, reconcile.Result{}, nil},
		"behind": {func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			_, err := store.Get(ctx, client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{})
			return reconcile.Result{RequeueAfter: time.Hour, Priority: new(-5)}, fmt.Errorf("reading: %w", err)
		}, reconcile.Result{RequeueAfter: behindInterval}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := store.Created(t.Context(), version("a", "10")); err != nil {
				t.Fatal(err)
			}
			got, err := Consistent(test.reconcile).Reconcile(t.Context(), reconcile.Request{})
			if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.err) {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestNews(t *testing.T) {
	state := func(version, label, condition string) *clusterv1.Cluster {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, Labels: map[string]string{"env": label}}}
		cluster.Status.Conditions = []metav1.Condition{{Type: "FleetImported", Reason: condition}}
		return cluster
	}
	before := state("7", "prod", "Waiting")
	for name, test := range map[string]struct {
		after  *clusterv1.Cluster
		passes bool
	}{
		"nothing that is cached": {state("8", "prod", "Waiting"), false},
		"a resync":               {state("7", "prod", "Waiting"), true},
		"a condition":            {state("8", "prod", "Imported"), true},
		"a label":                {state("8", "dev", "Waiting"), true},
	} {
		if got := News.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: test.after}); got != test.passes {
			t.Errorf("%s passes: %v", name, got)
		}
	}
}

// Two reconcilers write a Cluster: the answer to the earlier write may come after the one to the later write.
func TestStoreKeepsTheLatestOfTwoWrites(t *testing.T) {
	object := func(version string) *fleetv1.Cluster {
		return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "g", UID: "uid", ResourceVersion: version}}
	}
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(&lagging{shows: object("10")}, scheme)
	for _, version := range []string{"11", "10"} {
		if err := store.Wrote(t.Context(), object(version)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Get(t.Context(), client.ObjectKeyFromObject(object("")), &fleetv1.Cluster{}); !errors.Is(err, ErrBehind) {
		t.Errorf("got %v, want ErrBehind: the cache lacks the later write", err)
	}
}
