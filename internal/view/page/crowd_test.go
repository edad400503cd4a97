package page

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
)

// crowd is a management cluster with many Clusters, all of them in Fleet with two Bundles each. It changes
// only through its methods.
type crowd struct {
	mu      sync.Mutex
	objects *view.Objects
	changed chan struct{}
	// watched are the Fleet namespaces whose BundleDeployments have been watched.
	watched chan string
}

var standard = types.NamespacedName{Namespace: "classes", Name: "standard"}

func newCrowd(many, namespaces int) *crowd {
	objects := view.NewObjects()
	objects.Now = time.Now()
	objects.Classes[standard] = true
	for i := range many {
		key := crowdKey(i, namespaces)
		objects.Namespaces[key.Namespace] = map[string]string{}
		objects.Clusters[key] = &view.CAPICluster{
			Class: standard, Pin: stamp.Pin{ClusterName: key.Name},
			Imported: &view.Condition{Status: metav1.ConditionTrue, Reason: "Imported", Since: objects.Now},
		}
		objects.FleetClusters[key] = &view.InFleet{
			Class: standard, Origin: stamp.Origin{Name: key.Name}, Ours: true,
			Namespace: "cluster-" + key.Name, LastSeen: objects.Now, ReadyBundles: "2/2", ResourcesReady: 12, ResourcesDesired: 12,
		}
	}
	return &crowd{objects: objects, changed: make(chan struct{}, 1), watched: make(chan string, 10)}
}

func crowdKey(i, namespaces int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprintf("team-%02d", i%namespaces), Name: fmt.Sprintf("c%05d", i)}
}

// become gives a Cluster another state.
func (c *crowd) become(key types.NamespacedName, state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fleet := *c.objects.FleetClusters[key]
	fleet.State = state
	c.objects.FleetClusters[key] = &fleet
}

// without removes Clusters and their Fleet Clusters.
func (c *crowd) without(keys ...types.NamespacedName) {
	for _, key := range keys {
		delete(c.objects.Clusters, key)
		delete(c.objects.FleetClusters, key)
	}
}

func (c *crowd) Snapshot() *view.Objects {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects.Clone()
}

func (c *crowd) Changed() <-chan struct{} { return c.changed }

func (c *crowd) Bundles(_ context.Context, namespace string, objects *view.Objects) error {
	for _, name := range []string{"cni", "monitoring"} {
		bundle := types.NamespacedName{Namespace: standard.Namespace, Name: name}
		objects.Deployments[namespace] = append(objects.Deployments[namespace], &view.Deployed{Bundle: bundle, State: "Ready", Ready: 6, Desired: 6})
	}
	return nil
}

func (c *crowd) WatchBundles(_ context.Context, namespace string, _ func()) { c.watched <- namespace }

// serve returns a Server of a crowd, and a request for one of its paths.
func (c *crowd) serve(tb testing.TB, path string) (*Server, *http.Request) {
	tb.Helper()
	listener := listen(tb)
	server := New(c, "many", listener)
	return server, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "http://"+listener.Addr().String()+server.Path()+path, nil)
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = listener.Close() })
	return listener
}
