package rancher

import (
	"context"
	"slices"
	"strings"
	"sync"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack"
)

// witness records every Fleet Cluster and every Bundle of an agent that ever existed.
type witness struct {
	stop context.CancelFunc

	mu sync.Mutex
	// fleetClusters holds the Fleet Clusters that an event showed without Rancher's label; agents holds the Bundles
	// that deploy an agent.
	fleetClusters, agents map[types.NamespacedName]bool
	// events counts, for each Fleet Cluster, the events that changed more than its status.
	events map[types.NamespacedName]int
}

func newWitness(s *stack.Stack) (*witness, error) {
	w := &witness{fleetClusters: map[types.NamespacedName]bool{}, agents: map[types.NamespacedName]bool{}, events: map[types.NamespacedName]int{}}
	config, err := s.RESTConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	watched, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	bundles := &metav1.PartialObjectMetadata{}
	bundles.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Bundle"))
	for _, object := range []client.Object{&fleetv1.Cluster{}, bundles} {
		informer, err := watched.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: w.saw, UpdateFunc: func(before, after any) {
				w.saw(after)
				w.changed(before, after)
			},
		}); err != nil {
			return nil, err
		}
	}
	watching, stop := context.WithCancel(ctx)
	w.stop = stop // The API server does not stop while a watch is open.
	go func() { _ = watched.Start(watching) }()
	watched.WaitForCacheSync(ctx)
	return w, nil
}

func (w *witness) saw(news any) {
	object := news.(client.Object)
	key := client.ObjectKeyFromObject(object)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch object.(type) {
	case *fleetv1.Cluster:
		if object.GetLabels()[player.ClusterNameLabel] == "" {
			w.fleetClusters[key] = true
		}
	default:
		if strings.HasPrefix(object.GetName(), "fleet-agent-") {
			w.agents[key] = true
		}
	}
}

func (w *witness) changed(before, after any) {
	old, ok := before.(*fleetv1.Cluster)
	if !ok || old.Generation == after.(*fleetv1.Cluster).Generation && equalKeys(old, after.(*fleetv1.Cluster)) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[client.ObjectKeyFromObject(old)]++
}

// own returns the objects that ever existed in a namespace: Fleet Clusters that are not Rancher's, and Bundles of
// agents.
func (w *witness) own(namespace string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, keys := range map[string]map[types.NamespacedName]bool{"Fleet Cluster ": w.fleetClusters, "Bundle ": w.agents} {
		for key := range keys {
			if key.Namespace == namespace {
				found = append(found, of+key.Name)
			}
		}
	}
	slices.Sort(found)
	return found
}

func (w *witness) changes(key types.NamespacedName) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[key]
}
