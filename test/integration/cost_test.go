package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// requests returns what the syncer asked of the API server, without what it does on
// its own account: leader election, and asking once per kind whether it may read it.
func requests(g Gomega, since time.Time, where func(stack.AuditEvent) bool) []stack.AuditEvent {
	events, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-syncer"), Since: since,
		Where: func(e stack.AuditEvent) bool {
			own := e.Resource == "leases" || e.Resource == "selfsubjectaccessreviews" || e.Namespace == "muster-system"
			return !own && (where == nil || where(e))
		}})
	g.Expect(err).NotTo(HaveOccurred())
	return events
}

func isWrite(e stack.AuditEvent) bool {
	return e.Verb != "get" && e.Verb != "list" && e.Verb != "watch"
}

// quiet waits until the syncer has asked nothing for a while.
func quiet(g Gomega) {
	g.Eventually(func(g Gomega) {
		g.Expect(requests(g, time.Now().Add(-2*time.Second), nil)).To(BeEmpty())
	}).WithTimeout(time.Minute).Should(Succeed())
}

// Importing a Cluster whose group and mapping are there already costs three writes and
// no read: the Fleet Cluster, the condition, the event.
func TestCostOfOneImport(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "first")
	cluster := fixture.Cluster(s.namespace, "second", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	quiet(g)

	since := time.Now()
	initialize(g, cluster)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "second") }).Should(Succeed())
	quiet(g)
	all := requests(g, since, nil)
	t.Logf("requests: %v", all)
	g.Expect(all).To(HaveLen(3))
	for _, event := range all {
		g.Expect(isWrite(event)).To(BeTrue(), event.String())
	}
}

// 200 imported Clusters cost no request while nothing happens, and no write and no read
// but the informers' own when the syncer starts again.
func TestUnchangedCostsNothing(t *testing.T) {
	const count = 200
	g := NewWithT(t)
	s := newScene(t, g)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range count {
		group.Go(func() (err error) {
			inner := NewGomega(func(message string, _ ...int) { err = fmt.Errorf("%s", message) })
			cluster := fixture.Cluster(s.namespace, fmt.Sprintf("c%d", i), "standard", s.classNamespace)
			if err := admin.Create(ctx, cluster); err != nil {
				return err
			}
			initialize(inner, cluster)
			return err
		})
	}
	g.Expect(group.Wait()).To(Succeed())
	g.Eventually(func(g Gomega) {
		var imported fleetv1.ClusterList
		g.Expect(admin.List(ctx, &imported, client.InNamespace(s.namespace))).To(Succeed())
		g.Expect(imported.Items).To(HaveLen(count))
		g.Expect(get(g, &corev1.Namespace{}, "", s.namespace).Annotations).To(HaveLen(1))
	}).WithTimeout(time.Minute).Should(Succeed())
	quiet(g)

	since := time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	// The start has to be over before its cost is counted: a change must get through.
	canary := fixture.Cluster(s.namespace, "canary", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, canary)).To(Succeed())
	initialize(g, canary)
	g.Eventually(func(g Gomega) { fleetCluster(g, s.namespace, "canary") }).Should(Succeed())
	quiet(g)
	others := requests(g, since, func(e stack.AuditEvent) bool {
		aboutCanary := e.Name == "canary" || e.Resource == "events"
		// Informers list and watch whole kinds; the RESTMapper reads discovery documents.
		informers := e.Verb == "watch" || e.Verb == "list" && e.Name == "" || e.Resource == ""
		return !aboutCanary && !informers
	})
	g.Expect(others).To(BeEmpty())
	lists := map[string]int{}
	for _, event := range requests(g, since, func(e stack.AuditEvent) bool { return e.Verb == "list" }) {
		lists[event.Group+"/"+event.Resource+event.Namespace]++
	}
	t.Logf("lists after the restart: %v", lists)
	for what, times := range lists {
		g.Expect(times).To(Equal(1), "an informer lists once: %s", what)
	}
}

// A restart leaves the status of the FleetAddonConfig as it was: counts that grow from
// zero would say that Clusters were lost. Nothing may be under way meanwhile, nor wait, of
// other tests either.
func TestRestartKeepsTheStatus(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	for _, name := range []string{"one", "two", "three"} {
		s.imported(g, name)
	}
	status := func(g Gomega) addonsv1.FleetAddonConfigStatus {
		return get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName).Status
	}
	g.Eventually(func(g Gomega) {
		g.Expect(status(g).Clusters).NotTo(BeNil())
		g.Expect(status(g).Clusters.Imported).To(BeNumerically(">=", 3))
		g.Expect(status(g).Clusters.Pending).To(BeZero())
	}).Should(Succeed())
	quiet(g)
	before := status(g)

	since := time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	// A change that counts nothing has to get through.
	class := get(g, &clusterv1.ClusterClass{}, s.classNamespace, "standard")
	g.Expect(admin.Patch(ctx, class, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"canary":"sings"}}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "three").Labels).To(HaveKey("canary"))
	}).Should(Succeed())
	quiet(g)
	g.Expect(requests(g, since, func(e stack.AuditEvent) bool { return e.Resource == "fleetaddonconfigs" && isWrite(e) })).To(BeEmpty())
	g.Expect(status(g)).To(Equal(before))
}
