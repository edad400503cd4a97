package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const secondWebhookProcess = webhookProcess + "-2"

// A second replica of the webhook stays once it has been started, so these tests have a
// stack of their own.
func TestTwoWebhookReplicas(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	_, err := env.StartReplica(ctx, webhookProcess)
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("one is killed", testOneOfTwoKilled)
	t.Run("both are killed", testBothKilled)
}

// bothReady starts what is dead and waits until the Service connects to both.
func bothReady(g Gomega) {
	for _, replica := range []string{webhookProcess, secondWebhookProcess} {
		g.Expect(env.Start(ctx, replica)).To(Succeed())
	}
	g.Expect(poll.Until(ctx, "both replicas to be ready", patience, func(context.Context) error {
		if ready := env.ReadyReplicas(webhookProcess); ready != 2 {
			return fmt.Errorf("%d are", ready)
		}
		return nil
	})).To(Succeed())
}

// One of two replicas is killed while Clusters are being created: no create fails. The
// stamp of what was in flight, and of what comes before the death is known to those who
// route, may be missed, for the syncer to set. After that nothing is missed.
func testOneOfTwoKilled(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "one-killed", nil)
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	bothReady(g)
	t.Cleanup(func() { bothReady(NewWithT(t)) })
	for _, victim := range []string{webhookProcess, secondWebhookProcess} {
		t.Run(victim, func(t *testing.T) {
			g := NewWithT(t)
			load := startLoad(g, kube, namespace)
			defer load.stop()
			time.Sleep(time.Second)
			g.Expect(env.Kill(ctx, victim)).To(Succeed())
			time.Sleep(3 * time.Second)
			load.stop()
			t.Logf("%d creates, %d of them without the stamp", load.answered.Load(), load.unstamped.Load())
			g.Expect(load.failed.Load()).To(BeZero(), "the last: %v", load.problem.Load())
			g.Expect(load.answered.Load()).To(BeNumerically(">", 100))

			// The other one is enough.
			rest := startLoad(g, kube, namespace)
			defer rest.stop()
			time.Sleep(2 * time.Second)
			rest.verify(t, g)
			bothReady(g)
		})
	}
}

// With no replica left, Clusters are created as ever and imported all the same. What
// only the webhook can allow is refused, in words that say what is wrong.
func testBothKilled(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	newClass(g, s.namespace, "own", nil)
	bothReady(g)
	t.Cleanup(func() { bothReady(NewWithT(t)) })
	for _, replica := range []string{webhookProcess, secondWebhookProcess} {
		g.Expect(env.Kill(ctx, replica)).To(Succeed())
	}
	g.Eventually(func() int { return env.ReadyReplicas(webhookProcess) }).Should(BeZero())

	t.Run("a Cluster in its own namespace is created and imported", func(t *testing.T) {
		g := NewWithT(t)
		cluster := fixture.Cluster(s.namespace, "own", "own", "")
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeFalse(), "somebody stamped it")
		initialize(g, cluster)
		g.Eventually(func(g Gomega) {
			fleetCluster(g, s.namespace, "own")
			current := get(g, &clusterv1.Cluster{}, s.namespace, "own")
			g.Expect(stamp.PinOf(current.Annotations).ClusterName).To(Equal("own"))
			g.Expect(current.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "own"))
		}).Should(Succeed())
	})
	t.Run("a class of another namespace is refused", func(t *testing.T) {
		g := NewWithT(t)
		_, err := apply(t, fmt.Sprintf(topologyYAML, s.namespace, "cross", "standard", s.classNamespace))
		g.Expect(err).To(MatchError(ContainSubstring(`failed calling webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io"`)))
		t.Logf("a person is told: %v", err)
		isGone(g, fixture.Cluster(s.namespace, "cross", "standard", s.classNamespace))
	})
	t.Run("a FleetAddonConfig is refused", func(t *testing.T) {
		g := NewWithT(t)
		_, err := apply(t, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {cluster: {hostNetwork: false}}
`)
		g.Expect(err).To(MatchError(And(
			ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`),
			ContainSubstring("muster-webhook.muster-system.svc"), ContainSubstring("connection refused"))))
		t.Logf("a person is told: %v", err)
	})
	t.Run("and deleted as ever", func(t *testing.T) {
		g := NewWithT(t)
		cluster := get(g, &clusterv1.Cluster{}, s.namespace, "own")
		deleteNow(g, cluster)
		g.Eventually(func(g Gomega) {
			isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "own"}})
		}).Should(Succeed())
	})
	t.Run("until they are back", func(t *testing.T) {
		g := NewWithT(t)
		bothReady(g)
		g.Expect(admin.Create(ctx, fixture.Cluster(s.namespace, "cross", "standard", s.classNamespace), client.DryRunAll)).To(Succeed())
	})
}
