package references

import (
	"errors"
	"hash/maphash"
	"testing"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
)

func everything(client.Object) bool { return true }

// The first reconcile reads the kinds that Warm has listed.
func TestWarm(t *testing.T) {
	w := newWorld()
	w.clusters = []clusterv1.Cluster{*referringCluster()}
	r := w.reader()
	if err := r.Warm(t.Context(), everything); err != nil {
		t.Fatal(err)
	}
	if w.informers["v1beta1"] == nil {
		t.Fatal("the kind is not watched")
	}
	asked := w.questions()
	if got, err := r.readValues(t.Context()); got != "v1beta1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if w.questions() != asked {
		t.Error("asked again whether the kind may be read")
	}
}

func TestWarmKeepsToWhatIsWatched(t *testing.T) {
	w := newWorld()
	w.clusters = []clusterv1.Cluster{*referringCluster()}
	if err := w.reader().Warm(t.Context(), func(client.Object) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if len(w.informers) > 0 {
		t.Errorf("watched: %v", w.informers)
	}
}

// A provider whose objects are never listed delays no other Clusters: no controller waits for its
// informer, and only Clusters that refer to the kind are retried.
func TestWarmIsNotForever(t *testing.T) {
	for name, change := range map[string]func(*world){
		"no list":      func(w *world) { w.unlisted = true },
		"no answer":    func(w *world) { w.hangs = map[string]chan struct{}{"things": make(chan struct{})} },
		"no discovery": func(w *world) { w.hangs = map[string]chan struct{}{"discovery": make(chan struct{})} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.clusters = []clusterv1.Cluster{*referringCluster()}
			change(w)
			r := w.reader()
			r.warmPatience = 100 * time.Millisecond
			within(t, "Warm", func() {
				if err := r.Warm(t.Context(), everything); err != nil {
					t.Error(err)
				}
			})
			for _, hang := range w.hangs {
				close(hang)
			}
			// If the list comes later, it is read.
			w.mu.Lock()
			w.unlisted, w.hangs = false, nil
			w.mu.Unlock()
			within(t, "a look", func() {
				for {
					if _, err := r.readValues(t.Context()); err == nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		})
	}
	w := newWorld()
	w.unlisted = true
	if _, err := w.reader().Values(t.Context(), settings.Default(), referringCluster()); !errors.Is(err, ErrListing) {
		t.Errorf("a look returns %v", err)
	}
}

// The digest of a Cluster's references follows their content, and waits for nothing.
func TestDigest(t *testing.T) {
	w := newWorld()
	r := w.reader()
	seed := maphash.MakeSeed()
	digest := func() (uint64, bool) {
		var hash maphash.Hash
		hash.SetSeed(seed)
		ok := r.Digest(t.Context(), referringCluster(), &hash)
		return hash.Sum64(), ok
	}
	if _, ok := digest(); ok {
		t.Error("there is a digest for a kind that was never read")
	}
	w.unlisted = true
	if _, err := r.readValues(t.Context()); !errors.Is(err, ErrListing) {
		t.Fatal(err)
	}
	if _, ok := digest(); ok {
		t.Error("there is a digest for a kind that is not listed")
	}
	w.mu.Lock()
	w.unlisted = false
	w.mu.Unlock()
	if _, err := r.readValues(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, ok := digest()
	if again, _ := digest(); !ok || again != first {
		t.Errorf("%d, then %d, %v", first, again, ok)
	}
	w.mu.Lock()
	w.exists = false
	w.mu.Unlock()
	if _, ok := digest(); ok {
		t.Error("there is a digest for an object that is gone")
	}
}
