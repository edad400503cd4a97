package e2e

import (
	"fmt"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// platformWatch looks several times a second at what of the namespace platform is open
// to whom: mappings, and what Fleet deploys of its bundles.
type platformWatch struct {
	once, done chan struct{}
	stopOnce   sync.Once

	mu      sync.Mutex
	found   map[types.UID]sighting
	problem error
}

type sighting struct {
	namespace, what string
	first, last     time.Time
}

func watchPlatform() *platformWatch {
	w := &platformWatch{once: make(chan struct{}), done: make(chan struct{}), found: map[types.UID]sighting{}}
	go func() {
		defer close(w.done)
		for {
			if err := w.look(); err != nil {
				w.mu.Lock()
				w.problem = err
				w.mu.Unlock()
			}
			select {
			case <-w.once:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	}()
	return w
}

func (w *platformWatch) stop() {
	w.stopOnce.Do(func() { close(w.once) })
	<-w.done
}

func (w *platformWatch) look() error {
	var mappings fleetv1.BundleNamespaceMappingList
	if err := admin.List(ctx, &mappings, client.InNamespace(platform)); err != nil {
		return err
	}
	for i := range mappings.Items {
		w.note(&mappings.Items[i], mappings.Items[i].Name, "the mapping")
	}
	var deployments fleetv1.BundleDeploymentList
	if err := admin.List(ctx, &deployments, client.MatchingLabels{fleetv1.BundleNamespaceLabel: platform}); err != nil {
		return err
	}
	for i := range deployments.Items {
		labels := deployments.Items[i].Labels
		w.note(&deployments.Items[i], labels[fleetv1.ClusterNamespaceLabel],
			fmt.Sprintf("bundle %s on cluster %s", labels[fleetv1.BundleLabel], labels[fleetv1.ClusterLabel]))
	}
	return nil
}

func (w *platformWatch) note(object client.Object, namespace, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	seen, again := w.found[object.GetUID()]
	if !again {
		seen = sighting{namespace: namespace, what: what, first: now}
	}
	seen.last = now
	w.found[object.GetUID()] = seen
}

// seen returns what was open to a namespace at some time since.
func (w *platformWatch) seen(namespace string, since time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var result []string
	for _, seen := range w.found {
		if seen.namespace == namespace && seen.last.After(since) {
			result = append(result, fmt.Sprintf("%s, for %s", seen.what, seen.last.Sub(seen.first).Round(100*time.Millisecond)))
		}
	}
	return result
}
