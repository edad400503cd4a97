package integration

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/test/stack"
)

// Fleet does not watch groups and mappings: what it does for a Fleet Cluster that comes
// before them it does not mend by itself. So they are there first, whoever stamps the
// Cluster, and the Fleet Cluster notes both of them from its first write on.
func TestOrder(t *testing.T) {
	for _, stamping := range []struct {
		name string
		// make leads to a Cluster of the scene's class that is initialized and claimed.
		make func(t *testing.T, g Gomega, s scene, spec addonsv1.ClusterConfig)
	}{
		{"stamped by the webhook", stampedByWebhook},
		{"stamped by the syncer when it starts", stampedAtStart},
		{"stamped by the syncer when it is selected", stampedWhenSelected},
	} {
		for _, patch := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, patchResource %t", stamping.name, patch), func(t *testing.T) {
				g := NewWithT(t)
				s := newScene(t, g)
				since, first := time.Now(), s.watch(t, g)
				stamping.make(t, g, s, addonsv1.ClusterConfig{PatchResource: ptr.To(patch)})
				s.checkOrder(g, since, first)
			})
		}
	}
}

func stampedByWebhook(t *testing.T, g Gomega, s scene, spec addonsv1.ClusterConfig) {
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	cluster := topologyCluster(s.namespace, "one", s.class.Name, s.class.Namespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
}

func stampedAtStart(t *testing.T, g Gomega, s scene, spec addonsv1.ClusterConfig) {
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	start := stop(t, g, syncerProcess)
	cluster := topologyCluster(s.namespace, "one", s.class.Name, s.class.Namespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	unstamp(t, g, cluster)
	start()
}

func stampedWhenSelected(t *testing.T, g Gomega, s scene, spec addonsv1.ClusterConfig) {
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"selected": s.namespace}}
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	var cluster *clusterv1.Cluster
	g.Eventually(func(g Gomega) { // The webhook may still have the settings of before.
		cluster = topologyCluster(s.namespace, "one", s.class.Name, s.class.Namespace)
		g.Expect(admin.Create(ctx, cluster, client.DryRunAll)).To(Succeed())
		g.Expect(cluster.Annotations).To(BeEmpty())
	}).Should(Succeed())
	cluster = topologyCluster(s.namespace, "one", s.class.Name, s.class.Namespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	time.Sleep(time.Second) // All of that has been looked at.
	_, err := env.Kubectl(ctx, "label", "namespace", s.namespace, "selected="+s.namespace)
	g.Expect(err).NotTo(HaveOccurred())
}

// watch returns the first state that a Fleet Cluster of the scene has.
func (s scene) watch(t *testing.T, g Gomega) <-chan *fleetv1.Cluster {
	t.Helper()
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	watching, err := client.NewWithWatch(config, client.Options{Scheme: admin.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	events, err := watching.Watch(ctx, &fleetv1.ClusterList{}, client.InNamespace(s.namespace))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(events.Stop)
	first := make(chan *fleetv1.Cluster, 1)
	go func() {
		for event := range events.ResultChan() {
			if cluster, ok := event.Object.(*fleetv1.Cluster); ok && event.Type == watch.Added {
				first <- cluster
				return
			}
		}
	}()
	return first
}

// checkOrder checks what the API server saw of the syncer since then.
func (s scene) checkOrder(g Gomega, since time.Time, first <-chan *fleetv1.Cluster) {
	var cluster *fleetv1.Cluster
	g.Eventually(first).Should(Receive(&cluster))
	group, mapping := s.group(), s.mapping()
	g.Eventually(func(g Gomega) { exists(g, group); exists(g, mapping) }).Should(Succeed())

	created := func(resource, namespace, name string) stack.AuditEvent {
		events, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Since: since,
			Where: func(e stack.AuditEvent) bool {
				return e.Group == "fleet.cattle.io" && e.Resource == resource && e.Namespace == namespace && e.Name == name && e.Code == http.StatusCreated
			}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events).To(HaveLen(1), "creates of %s %s/%s", resource, namespace, name)
		return events[0]
	}
	imported := created("clusters", s.namespace, cluster.Name)
	for _, target := range []stack.AuditEvent{
		created("clustergroups", group.Namespace, group.Name), created("bundlenamespacemappings", mapping.Namespace, mapping.Name),
	} {
		g.Expect(target.Completed).To(BeTemporally("<=", imported.Received), "first\n%s\nand then\n%s", target, imported)
	}
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(desired.TargetingAnnotation, desired.Hash([]types.UID{group.UID, mapping.UID})))
}
