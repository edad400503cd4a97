package kube

import (
	"context"
	"errors"
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

// The event of a write may come between a read of the cache and the look for own writes. The result is not older than the write.
func TestEventDuringGet(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *fleetv1.Cluster
		remember      func(*Store, client.Object) error
	}{
		"created": {nil, version("a", "1"), (*Store).Created},
		"changed": {version("a", "1"), version("a", "2"), (*Store).Wrote},
		"deleted": {version("a", "1"), nil, (*Store).Deleted},
		"anew":    {version("a", "1"), version("b", "2"), (*Store).Created},
	} {
		t.Run(name, func(t *testing.T) {
			cached := &lagging{shows: test.before}
			scheme, err := program.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			s := NewStore(cached, scheme)
			wrote := test.before
			if test.after != nil {
				wrote = test.after
			}
			if err := test.remember(s, wrote.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			cached.then = func() {
				cached.shows = test.after
				s.Saw(wrote, test.after == nil)
			}
			got := &fleetv1.Cluster{}
			found, err := s.Get(t.Context(), client.ObjectKeyFromObject(wrote), got)
			if err != nil || found != (test.after != nil) || found && (got.UID != wrote.UID || got.ResourceVersion != wrote.ResourceVersion) {
				t.Errorf("found: %t, version %s of %s (%v)", found, got.ResourceVersion, got.UID, err)
			}
		})
	}
}

func TestStore(t *testing.T) {
	wrote := func(object *fleetv1.Cluster) func(*Store) error {
		return func(s *Store) error { return s.Created(object) }
	}
	changed := func(object *fleetv1.Cluster) func(*Store) error {
		return func(s *Store) error { return s.Wrote(object) }
	}
	deleted := func(object *fleetv1.Cluster) func(*Store) error {
		return func(s *Store) error { return s.Deleted(object) }
	}
	saw := func(object *fleetv1.Cluster, gone bool) func(*Store) error {
		return func(s *Store) error { s.Saw(object, gone); return nil }
	}
	type steps []func(*Store) error
	tests := map[string]struct {
		steps steps
		later time.Duration
		cache *fleetv1.Cluster
		want  *fleetv1.Cluster
	}{
		"nothing anywhere":       {},
		"what the cache shows":   {cache: version("a", "5"), want: version("a", "5")},
		"created, not shown yet": {steps: steps{wrote(version("a", "5"))}, want: version("a", "5")},
		// The event of the deletion may come before the answer to the write.
		"changed, gone meanwhile":             {steps: steps{saw(version("a", "11"), true), changed(version("a", "10"))}},
		"changed, shown as before":            {steps: steps{changed(version("a", "10"))}, cache: version("a", "9"), want: version("a", "10")},
		"created and changed, not shown yet":  {steps: steps{wrote(version("a", "5")), changed(version("a", "10"))}, want: version("a", "10")},
		"changed, its predecessor created":    {steps: steps{wrote(version("b", "5")), changed(version("a", "10"))}},
		"updated, shown as before":            {steps: steps{wrote(version("a", "10"))}, cache: version("a", "9"), want: version("a", "10")},
		"updated, shown":                      {steps: steps{wrote(version("a", "10"))}, cache: version("a", "10"), want: version("a", "10")},
		"another client wrote later":          {steps: steps{wrote(version("a", "10"))}, cache: version("a", "11"), want: version("a", "11")},
		"numbers, not words":                  {steps: steps{wrote(version("a", "99"))}, cache: version("a", "100"), want: version("a", "100")},
		"the last write counts":               {steps: steps{wrote(version("a", "10")), wrote(version("a", "12"))}, cache: version("a", "11"), want: version("a", "12")},
		"deleted, still shown":                {steps: steps{deleted(version("a", "10"))}, cache: version("a", "10")},
		"deleted, still shown, changed":       {steps: steps{deleted(version("a", "10"))}, cache: version("a", "11")},
		"deleted, gone":                       {steps: steps{deleted(version("a", "10"))}},
		"deleted, replaced by another client": {steps: steps{deleted(version("a", "10"))}, cache: version("b", "12"), want: version("b", "12")},
		"deleted and created again":           {steps: steps{deleted(version("a", "10")), wrote(version("b", "12"))}, cache: version("a", "10"), want: version("b", "12")},
		"created and deleted again":           {steps: steps{wrote(version("b", "12")), deleted(version("b", "12"))}, cache: version("b", "12")},
		"not shown for long: cache is true":   {steps: steps{wrote(version("a", "10"))}, later: Lag + time.Second, cache: version("a", "9"), want: version("a", "9")},
		"gone for long: cache is true":        {steps: steps{wrote(version("a", "10"))}, later: Lag + time.Second},
		"shown long after the deletion":       {steps: steps{deleted(version("a", "10"))}, later: Lag + time.Second, cache: version("a", "10"), want: version("a", "10")},
		"just not too long":                   {steps: steps{wrote(version("a", "10"))}, later: Lag - time.Second, cache: version("a", "9"), want: version("a", "10")},

		"saw the write, then it was deleted":       {steps: steps{wrote(version("a", "10")), saw(version("a", "10"), false)}},
		"saw its deletion":                         {steps: steps{wrote(version("a", "10")), saw(version("a", "11"), true)}},
		"saw the deletion of its predecessor":      {steps: steps{wrote(version("b", "10")), saw(version("a", "9"), true)}, want: version("b", "10")},
		"saw what was before":                      {steps: steps{wrote(version("a", "10")), saw(version("a", "9"), false)}, want: version("a", "10")},
		"saw a change of what it deleted":          {steps: steps{deleted(version("a", "10")), saw(version("a", "11"), false)}, cache: version("a", "11")},
		"saw the deletion it made":                 {steps: steps{deleted(version("a", "10")), saw(version("a", "11"), true)}, cache: version("c", "20"), want: version("c", "20")},
		"saw a successor of what it deleted":       {steps: steps{deleted(version("a", "10")), saw(version("b", "12"), false)}, cache: version("b", "12"), want: version("b", "12")},
		"saw something it never wrote":             {steps: steps{saw(version("a", "10"), false)}, cache: version("a", "10"), want: version("a", "10")},
		"another object's write does not count":    {steps: steps{wrote(&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "other", UID: "o", ResourceVersion: "50"}})}, cache: version("a", "5"), want: version("a", "5")},
		"another namespace's write does not count": {steps: steps{wrote(&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "else", Name: "prod", UID: "o", ResourceVersion: "50"}})}, cache: version("a", "5"), want: version("a", "5")},
	}
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			store := NewStore(&lagging{shows: test.cache}, scheme)
			store.now = func() time.Time { return now }
			for _, step := range test.steps {
				if err := step(store); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(test.later)
			for _, time := range []string{"first", "second"} {
				var got fleetv1.Cluster
				found, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &got)
				if err != nil {
					t.Fatal(err)
				}
				if found != (test.want != nil) {
					t.Fatalf("the %s time, found: %v", time, found)
				}
				if diff := cmp.Diff(test.want, &got); found && diff != "" {
					t.Errorf("the %s time (-want +got):\n%s", time, diff)
				}
			}
		})
	}
}

// The Store forgets a write once the cache has caught up, so it does not grow.
func TestStoreForgets(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cache := &lagging{}
	store := NewStore(cache, scheme)
	if err := errors.Join(store.Wrote(version("a", "10"))); err != nil {
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
}

// A caller may change an object after writing it.
func TestStoreKeepsACopy(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(&lagging{}, scheme)
	written := version("a", "10")
	written.Labels = map[string]string{"a": "1"}
	if err := store.Created(written); err != nil {
		t.Fatal(err)
	}
	written.Labels["a"] = "changed by the writer"
	var got fleetv1.Cluster
	if _, err := store.Get(t.Context(), client.ObjectKeyFromObject(written), &got); err != nil {
		t.Fatal(err)
	}
	if got.Labels["a"] != "1" {
		t.Fatalf("it was %s", got.Labels["a"])
	}
}

func TestStoreReportsErrors(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the cache is broken")
	store := NewStore(&lagging{err: broken}, scheme)
	if err := store.Created(version("a", "10")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{}); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}

// A write that the cache never shows is returned once, when it is overdue, even if it was read meanwhile.
func TestStoreMissed(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	store := NewStore(&lagging{}, scheme)
	store.now = func() time.Time { return now }
	seen, missed := version("a", "10"), version("b", "10")
	seen.Name = "seen"
	if err := errors.Join(store.Created(seen), store.Created(missed)); err != nil {
		t.Fatal(err)
	}
	store.Saw(seen, false)
	if early := store.Missed(); len(early) > 0 {
		t.Errorf("too early: %v", early)
	}
	now = now.Add(Lag + time.Second)
	if found, err := store.Get(t.Context(), client.ObjectKeyFromObject(missed), &fleetv1.Cluster{}); found || err != nil {
		t.Errorf("an overdue write is read: %v, %v", found, err)
	}
	if late := store.Missed(); len(late) != 1 || late[0].GetUID() != "b" {
		t.Errorf("overdue: %v", late)
	}
	if again := store.Missed(); len(again) > 0 {
		t.Errorf("again: %v", again)
	}
}

// A reconcile may have read the remembered write of an object whose deletion the cache showed first.
func TestStoreGoneBeforeSeen(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(&lagging{}, scheme)
	if err := store.Created(version("a", "10")); err != nil {
		t.Fatal(err)
	}
	store.Saw(version("b", "11"), true) // The deletion of an earlier object.
	if missed := store.Missed(); len(missed) > 0 {
		t.Errorf("after another's deletion: %v", missed)
	}
	store.Saw(version("a", "9"), true)
	if missed := store.Missed(); len(missed) != 1 {
		t.Errorf("after its deletion: %v", missed)
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
