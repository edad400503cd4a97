package sources

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing is a cache, and the informer of a kind, whose first list comes when a test says so.
type listing struct {
	cache.Cache
	cache.Informer
	done map[string]bool
	kind string
}

func (l listing) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return listing{done: l.done, kind: object.GetObjectKind().GroupVersionKind().Kind}, nil
}

func (l listing) HasSynced() bool { return l.done[l.kind] }

func TestLists(t *testing.T) {
	now := time.Now()
	objects := listing{done: map[string]bool{"Listed": true}}
	lists := newLists(objects)
	lists.now = func() time.Time { return now }
	kind := func(name string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: "g", Version: "v1", Kind: name}
	}
	cluster := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: name} }
	need := func(kindName, clusterName string) error {
		return lists.need(t.Context(), kind(kindName), cluster(clusterName))
	}
	wantReady := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, cluster := range lists.ready() {
			got = append(got, cluster.GetName())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: ready are %v, want %v", when, got, want)
		}
	}

	if err := need("Listed", "one"); err != nil {
		t.Errorf("a kind that is listed: %v", err)
	}
	for _, name := range []string{"one", "two", "one"} {
		if err := need("Slow", name); !errors.Is(err, ErrListing) {
			t.Errorf("a kind that is being listed: %v", err)
		}
	}
	if err := need("Slower", "three"); !errors.Is(err, ErrListing) {
		t.Errorf("a kind that is being listed: %v", err)
	}
	wantReady("before any list is there")
	objects.done["Slow"] = true
	wantReady("after the list", "one", "two")
	wantReady("after all were told")
	if err := need("Slow", "one"); err != nil {
		t.Errorf("a kind that is listed now: %v", err)
	}

	now = now.Add(ListPatience + time.Second)
	wantReady("when patience is over", "three")
	if err := need("Slower", "three"); err == nil || errors.Is(err, ErrListing) || !strings.Contains(err.Error(), "has not listed Slower.g in 2m1s") {
		t.Errorf("a kind that is never listed: %v", err)
	}
}
