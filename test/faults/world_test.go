package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/oracle"
)

// world is the state that people have requested in a run, as the API server accepted it. It includes no object of
// Muster.
type world struct {
	id string
	// agentInitiated means that some Clusters' agents register themselves.
	agentInitiated bool
	// charts is the repository of charts, if there are HelmChartProxies.
	charts *repository.Repository

	mu    sync.Mutex
	state oracle.State
}

// These are the namespaces of a run: two for Clusters, and one with classes that they share.
var (
	teams    = []string{"red", "blue"}
	platform = "platform"
)

func (w *world) namespace(name string) string { return w.id + "-" + name }

// class draws one of the references that Clusters choose from; without a name there is no topology.
func (w *world) class(rng *rand.Rand) clusterv1.ClusterClassRef {
	shared := w.namespace(platform)
	return []clusterv1.ClusterClassRef{
		{Name: "own"}, {Name: "small", Namespace: shared}, {Name: "large", Namespace: shared}, {},
	}[rng.IntN(4)]
}

// newWorld makes the namespaces and classes of a run.
func newWorld(ctx context.Context, admin client.Client, id string) (*world, error) {
	w := &world{id: id, state: oracle.NewState()}
	for _, name := range append([]string{platform}, teams...) {
		namespace := &corev1.Namespace{}
		namespace.Name = w.namespace(name)
		if err := admin.Create(ctx, namespace); err != nil {
			return nil, err
		}
		w.state.Namespaces[namespace.Name] = namespace
	}
	for _, key := range []oracle.Key{
		{Namespace: w.namespace(platform), Name: "small"}, {Namespace: w.namespace(platform), Name: "large"},
		{Namespace: w.namespace("red"), Name: "own"}, {Namespace: w.namespace("blue"), Name: "own"},
	} {
		class := fixture.Class(key.Namespace, key.Name, nil)
		if err := admin.Create(ctx, class); err != nil {
			return nil, err
		}
		w.state.Classes[key] = class
	}
	config := fixture.Config()
	if err := admin.Get(ctx, client.ObjectKeyFromObject(config), config); err != nil {
		return nil, err
	}
	w.state.Config = config
	return w, nil
}

// change changes the wishes.
func (w *world) change(how func(*oracle.State)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how(&w.state)
}

// expected returns the final state: what the oracle derives from the wishes, starting without any object of Fleet,
// stamp or condition.
func (w *world) expected() oracle.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	wishes := w.state.Copy()
	for key, cluster := range wishes.Clusters {
		wishes.Clusters[key] = oracle.AsRequested(cluster)
	}
	if !w.agentInitiated {
		return oracle.Converge(wishes)
	}
	// Fleet grants every registration, and every agent whose manifest exists checks in.
	wishes.AgentInitiated.Registrar, wishes.AgentInitiated.Server = true, fleetServer
	return oracle.FleetAnswers(wishes, tokenOf)
}

// observe reads the current state.
func (w *world) observe(ctx context.Context, admin client.Client) (oracle.State, error) {
	seen, err := oracle.Observe(ctx, admin, w.id+"-", w.state.Namespaces)
	if err == nil && w.charts != nil {
		w.mu.Lock()
		known := w.state.Helm
		known.Proxies = maps.Clone(known.Proxies)
		w.mu.Unlock()
		seen.Helm, err = oracle.ObserveHelm(ctx, admin, w.id+"-", known)
	}
	return seen, err
}

// configObserved reports whether the syncer has read the current FleetAddonConfig.
func configObserved(ctx context.Context, admin client.Client) error {
	config := &addonsv1.FleetAddonConfig{}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(fixture.Config()), config); err != nil {
		return err
	}
	if config.Status.ObservedGeneration != config.Generation {
		return fmt.Errorf("the status of the FleetAddonConfig is that of generation %d, not %d", config.Status.ObservedGeneration, config.Generation)
	}
	return nil
}
