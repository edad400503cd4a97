package move

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	classes = "classes"
	team    = "team"
	class   = "standard"
	ofClass = "[{clusterGroup: " + class + "." + classes + "}]"
	soon    = 2 * time.Minute
)

var (
	prod   = types.NamespacedName{Namespace: team, Name: "prod"}
	syncer = stack.ServiceAccount("muster-system", "muster-syncer")
)

// One cluster moves away and back home, by the commands of the page.
func TestMove(t *testing.T) {
	g := NewWithT(t)
	guide := newGuide(t)
	for _, s := range []*side{home, away} {
		s.prepare(g)
	}
	g.Expect(home.Apply(ctx, home.HostClusterClass(classes, class))).To(Succeed())
	g.Expect(home.WaitForClusterClass(ctx, classes, class)).To(Succeed())
	g.Expect(home.Apply(ctx, fixture.DataBundle(classes, "only-home", ofClass, "{from: home}"))).To(Succeed())
	g.Expect(home.Apply(ctx, stack.TopologyCluster{
		Namespace: prod.Namespace, Name: prod.Name, Class: class, ClassNamespace: classes, Workers: 1,
	}.YAML())).To(Succeed())
	home.waitDeployed(g, time.Time{}, "classes/hello", "classes/values", "classes/only-home", "team/of-team")
	applications := deployed(g)
	g.Expect(applications).To(HaveLen(4))

	t.Run("rehearsed: the Fleet Cluster is released and taken back", func(t *testing.T) { testRehearsal(t, guide) })

	here := home.state(g)
	begin := time.Now()
	t.Run("moved away", func(t *testing.T) { testMoved(t, guide, home, away) })
	t.Run("the applications stay, in a Fleet of which every object is accounted for", func(t *testing.T) {
		g := NewWithT(t)
		away.waitDeployed(g, begin, "classes/hello", "classes/values", "team/of-team")
		t.Logf("deployed by the new side %s after `clusterctl move` was run", time.Since(begin).Round(100*time.Millisecond))
		left := home.state(g)
		g.Expect(left.owners).To(BeEmpty())
		g.Expect(left.released).To(Equal("true"))
		g.Expect(left.uid).To(Equal(here.uid), "the Fleet Cluster of the old side")
		g.Expect(left.deployments).To(Equal(here.deployments), "its BundleDeployments")
		there := away.state(g)
		g.Expect(there.owners).To(ConsistOf(away.cluster(g).UID))
		g.Expect(there.released).To(BeEmpty())
	})
	t.Run("what only the old side has is uninstalled", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) { g.Expect(deployed(g)).NotTo(HaveKey("only-home")) }).Should(Succeed())
		delete(applications, "only-home")
		g.Expect(deployed(g)).To(Equal(applications), "the others are the same objects")
	})

	there := away.state(g)
	begin = time.Now()
	t.Run("moved back", func(t *testing.T) { testMoved(t, guide, away, home) })
	t.Run("the objects left on the old side are taken over, and the applications stay", func(t *testing.T) {
		g := NewWithT(t)
		home.waitDeployed(g, begin, "classes/hello", "classes/values", "classes/only-home", "team/of-team")
		back := home.state(g)
		g.Expect(back.uid).To(Equal(here.uid))
		g.Expect(back.owners).To(ConsistOf(home.cluster(g).UID))
		g.Expect(back.released).To(BeEmpty())
		g.Expect(back.deployments).To(Equal(here.deployments))
		left := away.state(g)
		g.Expect(left.uid).To(Equal(there.uid))
		g.Expect(left.deployments).To(Equal(there.deployments))
	})
	t.Run("the old side is cleaned up by the audit's commands, and the cluster does not notice", func(t *testing.T) {
		testCleanUp(t, guide, away)
	})
	t.Run("nothing was uninstalled but that", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) { g.Expect(deployed(g)).To(HaveKey("only-home"), "it does not come back") }).Should(Succeed())
		now := deployed(g)
		delete(now, "only-home")
		g.Expect(now).To(Equal(applications))
		deletions, err := home.HostedAuditLog(prod.Namespace, prod.Name, stack.AuditFilter{Where: func(e stack.AuditEvent) bool {
			return e.Resource == "configmaps" && e.Namespace == "default" && strings.HasPrefix(e.Verb, "delete")
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(deletions).To(HaveLen(1), fmt.Sprint(deletions))
		g.Expect(deletions[0].Name).To(Equal("only-home"))
	})
	t.Run("nothing was refused to Muster", testAudit)
}

// prepare makes a side ready for clusters: clusterctl recognizes Cluster API's kinds by the label that it gives them
// when it installs them.
func (s *side) prepare(g Gomega) {
	out, err := s.Kubectl(ctx, "get", "crds", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	for _, crd := range strings.Fields(out) {
		if strings.HasSuffix(crd, ".cluster.x-k8s.io") {
			_, err := s.Kubectl(ctx, "label", crd, "clusterctl.cluster.x-k8s.io=")
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	for _, namespace := range []string{classes, team} {
		g.Expect(s.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")).To(Succeed())
	}
	// The agent listens on no port of the node: docs/guides/cni.md.
	blocks, err := fixture.Guide("cni.md", 3)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Apply(ctx, blocks[0])).To(Succeed())
	g.Expect(s.Apply(ctx, fixture.DataBundle(classes, "hello", ofClass, "{from: both}"))).To(Succeed())
	g.Expect(s.Apply(ctx, fixture.DataBundle(classes, "values", ofClass, fixture.PodCIDRs))).To(Succeed())
	g.Expect(s.Apply(ctx, fixture.DataBundle(team, "of-team", "[{clusterName: prod}]", "{from: team}"))).To(Succeed())
}

// guide runs the commands of the page.
type guide struct {
	*fixture.Shell
	commands map[string]string
	// namespace is that of the clusters.
	namespace string
}

func newGuide(t *testing.T) *guide {
	t.Helper()
	g := NewWithT(t)
	all, err := fixture.Commands("operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all["move"]).To(HaveLen(5))
	shell, err := fixture.NewShell(home.Stack, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = fixture.Clusterctl(shell.Tools)
	g.Expect(err).NotTo(HaveOccurred())
	return &guide{Shell: shell, commands: all["move"], namespace: team}
}

// run runs a step on a side.
func (c *guide) run(t *testing.T, g Gomega, on *side, step string) string {
	t.Helper()
	to := home
	if on == home {
		to = away
	}
	g.Expect(c.commands).To(HaveKey(step))
	return c.sh(t, g, on, strings.NewReplacer("team-a", c.namespace, "new-management.kubeconfig", to.Kubeconfig).Replace(c.commands[step]))
}

func (c *guide) sh(t *testing.T, g Gomega, on *side, commands string) string {
	t.Helper()
	result, all, err := c.Run(ctx, on.Kubeconfig, commands)
	t.Logf("%s: %s\n%s", on.name, strings.TrimSpace(commands), all)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

func testRehearsal(t *testing.T, guide *guide) {
	g := NewWithT(t)
	before := home.state(g)
	guide.run(t, g, home, "pause")
	g.Eventually(func(g Gomega) {
		g.Expect(guide.run(t, g, home, "look")).To(BeEmpty())
	}).WithPolling(time.Second).Should(Succeed())
	g.Expect(conditions.GetReason(home.cluster(g), "FleetImported")).To(Equal("Paused"))
	guide.run(t, g, home, "unpause")
	g.Eventually(func(g Gomega) {
		g.Expect(home.state(g)).To(Equal(before))
	}).Should(Succeed())
}

// testMoved moves the cluster, and checks which program wrote what meanwhile.
func testMoved(t *testing.T, guide *guide, from, to *side) {
	g := NewWithT(t)
	original := from.cluster(g)
	begin := time.Now()
	guide.run(t, g, from, "move")
	err := from.admin.Get(ctx, prod, &clusterv1.Cluster{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the original is still there: %v", err)
	g.Expect(to.cluster(g).UID).NotTo(Equal(original.UID))

	// The side that the cluster leaves pauses it, releases it and deletes it, in this order.
	const ctl = "clusterctl/"
	paused := from.first(g, begin, func(e stack.AuditEvent) bool {
		return strings.Contains(e.UserAgent, ctl) && e.Resource == "clusters" && e.Verb == "patch" && e.Subresource == ""
	})
	deleted := from.first(g, begin, func(e stack.AuditEvent) bool {
		return strings.Contains(e.UserAgent, ctl) && e.Resource == "clusters" && e.Verb == "delete"
	})
	writes := from.syncerWrites(g, begin)
	g.Expect(writes).To(HaveLen(1), "while paused, the syncer releases the Fleet Cluster: %v", writes)
	released := writes[0]
	t.Logf("paused, released %s and deleted %s later", released.Completed.Sub(paused.Completed), deleted.Received.Sub(paused.Completed))
	g.Expect(released.Completed.Before(deleted.Received)).To(BeTrue(), "the original was deleted before the Fleet Cluster was released")

	// On the side that the cluster comes to, the syncer writes nothing before it is unpaused. The class is not paused
	// for Muster.
	unpaused := to.first(g, begin, func(e stack.AuditEvent) bool {
		return strings.Contains(e.UserAgent, ctl) && e.Resource == "clusters" && e.Verb == "patch" && e.Received.After(deleted.Received)
	})
	g.Eventually(func(g Gomega) { g.Expect(to.syncerWrites(g, begin)).NotTo(BeEmpty()) }).Should(Succeed())
	for _, write := range to.syncerWrites(g, begin) {
		g.Expect(write.Completed.After(unpaused.Received)).To(BeTrue(), "written while it was paused: %s", write)
	}
}

// first returns the first matching request to Cluster API's Clusters or Fleet's.
func (s *side) first(g Gomega, since time.Time, where func(stack.AuditEvent) bool) stack.AuditEvent {
	events, err := s.AuditLog(stack.AuditFilter{Since: since, Where: where})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(events).NotTo(BeEmpty())
	return events[0]
}

// syncerWrites returns the syncer's writes to Fleet's objects for the Cluster.
func (s *side) syncerWrites(g Gomega, since time.Time) []stack.AuditEvent {
	events, err := s.AuditLog(stack.AuditFilter{User: syncer, Since: since, Where: func(e stack.AuditEvent) bool {
		isOfClass := e.Resource == "clustergroups" && e.Namespace == classes
		return !isOfClass && e.Group == fleetv1.SchemeGroupVersion.Group && e.Verb != "get" && e.Verb != "list" && e.Verb != "watch"
	}})
	g.Expect(err).NotTo(HaveOccurred())
	return events
}

// testCleanUp deletes the leftovers with the commands of `kubectl muster audit`.
func testCleanUp(t *testing.T, guide *guide, on *side) {
	g := NewWithT(t)
	applications := deployed(g)
	audit := guide.sh(t, g, on, on.Program("kubectl-muster")+" audit || true") // It fails if it finds a mapping that is kept for a moved Cluster.
	_, list, found := strings.Cut(audit, "Released Fleet Clusters whose Cluster is gone: 1\n")
	g.Expect(found).To(BeTrue(), audit)
	command := list[strings.Index(list, "kubectl "):]
	command, _, _ = strings.Cut(command, "\n")
	its := on.state(g).namespace
	guide.sh(t, g, on, command)
	g.Eventually(func(g Gomega) {
		out, err := on.Kubectl(ctx, "get", "namespaces", its, "--ignore-not-found", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
		out, err = on.Kubectl(ctx, "get", "clustergroups.fleet.cattle.io,bundlenamespacemappings.fleet.cattle.io", "-n", team, "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
	}).WithTimeout(soon).Should(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(deployed(g)).To(Equal(applications)) }).WithTimeout(10 * time.Second).Should(Succeed())
}

func testAudit(t *testing.T) {
	for _, s := range []*side{home, away} {
		NewWithT(t).Expect(fixture.NothingRefused(s.Stack, "muster-system", []string{"muster-webhook", "muster-syncer"}, nil)).To(Succeed())
	}
}
