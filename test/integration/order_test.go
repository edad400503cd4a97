package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// namesakes is how many namespaces get their first Cluster at once. The delay until the syncer's cache shows the
// syncer's own writes differs between them.
const namesakes = 12

// Fleet does not watch groups and mappings, and does not correct a Fleet Cluster that came before them. So they exist
// first, whether the webhook or the syncer stamps the Cluster, and the Fleet Cluster records both from its first
// write on.
func TestOrder(t *testing.T) {
	for _, stamping := range []struct {
		name string
		// make creates initialized Clusters of the scenes' class, and makes Muster claim them, with these settings.
		make func(t *testing.T, g Gomega, scenes []scene, settings string)
	}{
		{"stamped by the webhook", stampedByWebhook},
		{"stamped by the syncer when it starts", stampedAtStart},
		{"stamped by the syncer when they are selected", stampedWhenSelected},
	} {
		for _, patch := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, patchResource %t", stamping.name, patch), func(t *testing.T) {
				g := NewWithT(t)
				scenes := []scene{newScene(t, g)}
				for len(scenes) < namesakes {
					scenes = append(scenes, scene{scenes[0].classNamespace, newNamespace(t, g, "team", nil), scenes[0].class})
				}
				since := time.Now()
				var first []<-chan *fleetv1.Cluster
				for _, s := range scenes {
					first = append(first, s.watch(t, g))
				}
				stamping.make(t, g, scenes, fmt.Sprintf("patchResource: %t", patch))
				for i, s := range scenes {
					s.checkOrder(g, since, first[i])
				}
			})
		}
	}
}

func stampedByWebhook(t *testing.T, g Gomega, scenes []scene, settings string) {
	configureCluster(t, g, "{"+settings+"}")
	for _, s := range scenes {
		s.initialized(g)
	}
}

func stampedAtStart(t *testing.T, g Gomega, scenes []scene, settings string) {
	configureCluster(t, g, "{"+settings+"}")
	start := stop(t, g, syncerProcess)
	var clusters []*clusterv1.Cluster
	for _, s := range scenes {
		clusters = append(clusters, s.initialized(g))
	}
	unstamp(t, g, clusters...)
	start()
}

func stampedWhenSelected(t *testing.T, g Gomega, scenes []scene, settings string) {
	configureCluster(t, g, "{"+settings+", namespaceSelector: {matchLabels: {selected: "+scenes[0].namespace+"}}}")
	configObserved(g)
	g.Eventually(func(g Gomega) { // The webhook may still use the earlier settings.
		cluster := scenes[0].cluster("one")
		g.Expect(admin.Create(ctx, cluster, client.DryRunAll)).To(Succeed())
		g.Expect(cluster.Annotations).To(BeEmpty())
	}).Should(Succeed())
	for _, s := range scenes {
		s.initialized(g)
	}
	time.Sleep(time.Second) // The syncer has reconciled all of them by now.
	for _, s := range scenes {
		patchf(g, named(&corev1.Namespace{}, "", s.namespace), `{"metadata":{"labels":{"selected":%q}}}`, scenes[0].namespace)
	}
}

// initialized creates a Cluster of the scene's class whose control plane is initialized. It refers to no object, so
// that it can be imported as soon as it is stamped.
func (s scene) initialized(g Gomega) *clusterv1.Cluster {
	cluster := s.cluster("one")
	create(g, cluster)
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// watch returns the first state of a Fleet Cluster of the scene.
func (s scene) watch(t *testing.T, g Gomega) <-chan *fleetv1.Cluster {
	t.Helper()
	watching, err := fixture.Client(env)
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

// checkOrder checks the syncer's requests since then, as the API server saw them.
func (s scene) checkOrder(g Gomega, since time.Time, first <-chan *fleetv1.Cluster) {
	var cluster *fleetv1.Cluster
	g.Eventually(first).Should(Receive(&cluster))
	group, mapping := s.group(), s.mapping()
	appears(g, group, mapping)
	created := func(resource string, object client.Object) stack.AuditEvent {
		events := requests(g, since, in(object.GetNamespace()), func(e stack.AuditEvent) bool {
			return e.Group == "fleet.cattle.io" && e.Resource == resource && e.Name == object.GetName() && e.Code == http.StatusCreated
		})
		g.Expect(events).To(HaveLen(1), "creates of %s %s/%s", resource, object.GetNamespace(), object.GetName())
		return events[0]
	}
	imported := created("clusters", cluster)
	for _, target := range []stack.AuditEvent{created("clustergroups", group), created("bundlenamespacemappings", mapping)} {
		g.Expect(target.Completed).To(BeTemporally("<=", imported.Received), "first\n%s\nand then\n%s", target, imported)
	}
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(desired.TargetingAnnotation, desired.Hash([]types.UID{group.UID, mapping.UID})))
}

// To start with only some Clusters, the FleetAddonConfig must exist before the syncer. Applied together with
// everything else, it is refused, because its webhook does not answer yet. The documented order is the CRD, the
// FleetAddonConfig, and then the rest.
func TestConfigIsAppliedFirst(t *testing.T) {
	g := NewWithT(t)
	fresh, err := stack.Up(ctx, stack.Options{Profile: stack.API, WithoutCertManager: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(fresh.Down()).To(Succeed()) })
	config := func(phase string) string {
		return configYAML("{cluster: {selector: {matchLabels: {phase: " + phase + "}}}}")
	}
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	commands, err := fixture.Commands("install.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(commands["config"]).To(HaveKey("first"))
	shell, err := fixture.NewShell(fresh, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Symlink(root, filepath.Join(shell.Home, "muster"))).To(Succeed())
	for name, content := range map[string]string{"fleetaddonconfig.yaml": config("first"), "kustomization.yaml": "resources: [muster/manifests/default]"} {
		g.Expect(os.WriteFile(filepath.Join(shell.Home, name), []byte(content), 0o600)).To(Succeed())
	}
	_, _, err = shell.Run(ctx, fresh.Kubeconfig, commands["config"]["first"])
	g.Expect(err).NotTo(HaveOccurred())

	out, err := fresh.Kubectl(ctx, "get", "fac", "fleet-addon-config", "-o", "jsonpath={.spec.cluster.selector.matchLabels.phase}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal("first"))
	// The webhook is configured by now but does not run, which is why the FleetAddonConfig had to come first.
	g.Eventually(func() error {
		_, err := fresh.KubectlInput(ctx, config("second"), "apply", "-f", "-")
		return err
	}).Should(MatchError(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`)))
}

// Tests that would disturb others, or be disturbed, run on a stack of their own, in this order.
func TestAlone(t *testing.T) {
	ownStack(t, NewWithT(t))
	t.Run("columns", testColumns)
	t.Run("a restart keeps the status", testRestartKeepsTheStatus)
	t.Run("Fleet is installed later", testFleetIsInstalledLater)
	// A second replica of the webhook stays once the test has started it.
	_, err := env.StartReplica(ctx, webhookProcess)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Run("one of two replicas is killed", testOneOfTwoKilled)
	t.Run("both replicas are killed", testBothKilled)
	t.Run("uninstall", testUninstall)
}

// All is well in this test, because no earlier test has left a waiting Cluster.
func testColumns(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{}")
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "fac")
		g.Expect(err).NotTo(HaveOccurred())
		lines := strings.Split(strings.TrimSpace(out), "\n")
		g.Expect(lines).To(HaveLen(2))
		g.Expect(strings.Fields(lines[0])).To(Equal([]string{"NAME", "READY", "REASON", "IMPORTED", "FLEET", "AGE"}))
		g.Expect(lines[1]).To(MatchRegexp(`^fleet-addon-config +True +Ready +\d+ `))
	}).Should(Succeed())
	out, err := env.Kubectl(ctx, "get", "cluster-api", "--all-namespaces")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(ContainSubstring("fleetaddonconfig.addons.cluster.x-k8s.io/fleet-addon-config"))
}

// A restart leaves the status of the FleetAddonConfig as it was: counts that grow from zero would say that Clusters
// were lost. Meanwhile, no Cluster may be in progress or waiting.
func testRestartKeepsTheStatus(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	provoked.Store(s.classNamespace, true) // A later test deletes the CRD of its mapping.
	configure(t, g, "{}")
	for _, name := range []string{"one", "two", "three"} {
		s.imported(g, name)
	}
	g.Eventually(func(g Gomega) {
		g.Expect(readConfig(g).Status.Clusters).To(HaveValue(And(HaveField("Imported", BeEquivalentTo(3)), HaveField("Pending", BeZero()))))
	}).Should(Succeed())
	quiet(g)
	before, since := readConfig(g).Status, time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	patch(g, s.class, entry("labels", "canary", `"sings"`)) // A change that affects no count must get through.
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "three").Labels).To(HaveKey("canary")) }).Should(Succeed())
	quiet(g)
	g.Expect(requests(g, since, isWrite, func(e stack.AuditEvent) bool { return e.Resource == "fleetaddonconfigs" })).To(BeEmpty())
	g.Expect(readConfig(g).Status).To(Equal(before))
}

// Muster may be installed before Fleet: it waits, says so, and needs no restart. Nor does it need one when a CRD is
// deleted and comes back.
func testFleetIsInstalledLater(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	start := stop(t, g, syncerProcess)
	restore := removeCRDs(g, "clusters.fleet.cattle.io", "clustergroups.fleet.cattle.io", "bundlenamespacemappings.fleet.cattle.io")
	configure(t, g, "{}")
	s.started(g, "early")
	start()
	messages := func(available, ready metav1.ConditionStatus, message string) {
		g.Eventually(func(g Gomega) {
			all := readConfig(g).Status.Conditions
			apis := meta.FindStatusCondition(all, "APIsAvailable")
			g.Expect(apis).NotTo(BeNil())
			g.Expect(apis.Status).To(Equal(available))
			g.Expect(apis.Message).To(ContainSubstring(message))
			g.Expect(meta.IsStatusConditionPresentAndEqual(all, "Ready", ready)).To(BeTrue(), "%v", all)
		}).Should(Succeed())
	}
	messages(metav1.ConditionFalse, metav1.ConditionFalse, "ClusterGroup.fleet.cattle.io")
	processes := env.Processes()
	restore()
	appears(g, s.fleet("early"), s.group(), s.mapping())
	messages(metav1.ConditionTrue, metav1.ConditionTrue, "")
	g.Expect(env.Processes()).To(Equal(processes), "a process was restarted")

	provoked.Store(s.classNamespace, true) // The API server refuses new objects while it deletes their CRD.
	restore = removeCRDs(g, "bundlenamespacemappings.fleet.cattle.io")
	messages(metav1.ConditionFalse, metav1.ConditionFalse, "BundleNamespaceMapping.fleet.cattle.io")
	restore()
	messages(metav1.ConditionTrue, metav1.ConditionTrue, "")
	appears(g, s.mapping())
}

func crdOf(name string) *unstructured.Unstructured {
	return target("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
}

// removeCRDs deletes CRDs, and returns a function that restores them.
func removeCRDs(g Gomega, names ...string) (restore func()) {
	var saved []*unstructured.Unstructured
	for _, name := range names {
		crd := crdOf(name)
		exists(g, crd)
		remove(g, crd.DeepCopy())
		saved = append(saved, crd)
	}
	for _, name := range names {
		vanishes(g, crdOf(name))
	}
	return func() {
		for _, crd := range saved {
			crd.SetResourceVersion("")
			crd.SetUID("")
			crd.SetManagedFields(nil)
			unstructured.RemoveNestedField(crd.Object, "status")
			create(g, crd)
		}
	}
}

const secondWebhookProcess = webhookProcess + "-2"

// bothReady starts both replicas, where they do not run, and waits until the Service connects to both.
func bothReady(g Gomega) {
	for _, replica := range []string{webhookProcess, secondWebhookProcess} {
		g.Expect(env.Start(ctx, replica)).To(Succeed())
	}
	g.Eventually(func() int { return env.ReadyReplicas(webhookProcess) }).Should(Equal(2))
}

// One of two replicas is killed while Clusters are being created: no create fails. Requests in flight may miss their
// stamp, and so may later ones until the Service stops routing to the dead replica; the syncer then sets it. After
// that, no stamp is missed.
func testOneOfTwoKilled(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "one-killed", nil)
	for _, victim := range []string{webhookProcess, secondWebhookProcess} {
		bothReady(g)
		load := startLoad(g, namespace)
		defer load.stop()
		time.Sleep(time.Second)
		g.Expect(env.Kill(ctx, victim)).To(Succeed())
		time.Sleep(3 * time.Second)
		g.Eventually(load.answered.Load).Should(BeNumerically(">", 100))
		load.stop()
		t.Logf("%d creates, %d of them without the stamp", load.answered.Load(), load.unstamped.Load())
		g.Expect(load.failed.Load()).To(BeZero(), "the last: %v", load.problem.Load())

		// The remaining replica is enough.
		rest := startLoad(g, namespace)
		defer rest.stop()
		g.Eventually(rest.answered.Load).Should(BeNumerically(">", 100))
		rest.verify(t, g)
	}
}

// With no replica left, Clusters are still created and imported. The API server refuses the changes that only the
// webhook can allow, with a message that says what is wrong.
func testBothKilled(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	newClass(g, s.namespace, "own", nil)
	bothReady(g)
	for _, replica := range []string{webhookProcess, secondWebhookProcess} {
		g.Expect(env.Kill(ctx, replica)).To(Succeed())
	}
	g.Eventually(func() int { return env.ReadyReplicas(webhookProcess) }).Should(BeZero())

	cluster := fixture.Cluster(s.namespace, "own", "own", "")
	create(g, cluster)
	g.Expect(stamp.PinOf(cluster.Annotations).IsComplete()).To(BeFalse(), "somebody stamped it")
	initialize(g, cluster)
	g.Eventually(func(g Gomega) {
		exists(g, s.fleet("own"))
		live := current(g, cluster)
		g.Expect(stamp.PinOf(live.Annotations)).To(Equal(stamp.Pin{OwnedBy: "fleet-addon-config", ClusterName: "own"}))
		g.Expect(live.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "own"))
	}).Should(Succeed())

	_, err := apply(t, s.yaml("cross"))
	g.Expect(err).To(MatchError(ContainSubstring(`failed calling webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io"`)))
	_, err = apply(t, configYAML(`{cluster: {hostNetwork: false}}`))
	g.Expect(err).To(MatchError(And(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`),
		ContainSubstring("muster-webhook.muster-system.svc"), ContainSubstring("connection refused"))))
	deleteNow(g, cluster)
	vanishes(g, s.fleet("own"))
	bothReady(g)
	g.Expect(admin.Create(ctx, s.cluster("cross"), client.DryRunAll)).To(Succeed(), "they are back")
}

// Muster can be uninstalled while everything that it imported stays: no object waits for it.
func testUninstall(t *testing.T) {
	g := NewWithT(t)
	g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, fixture.Config()))).To(Succeed())
	s := newScene(t, g)
	s.imported(g, "one")
	s.imported(g, "two")
	paused := s.imported(g, "paused")
	pause(g, paused)
	willReport(g, paused, "Paused")
	newClass(g, s.namespace, "own", nil)
	three := fixture.Cluster(s.namespace, "three", "own", "")
	create(g, three, fixture.Cluster(s.namespace, "waiting", "none", ""))
	initialize(g, three)
	appears(g, s.fleet("three"))

	for _, process := range []string{syncerProcess, webhookProcess, secondWebhookProcess} {
		g.Expect(env.Stop(ctx, process)).To(Succeed())
	}
	for _, object := range []client.Object{
		named(&corev1.Namespace{}, "", "muster-system"), crdOf("fleetaddonconfigs.addons.cluster.x-k8s.io"),
		named(&admissionregistrationv1.MutatingWebhookConfiguration{}, "", "muster-mutating-webhook"),
		named(&admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook"),
	} {
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
	}
	var clusters clusterv1.ClusterList
	g.Expect(admin.List(ctx, &clusters)).To(Succeed())
	g.Expect(len(clusters.Items)).To(BeNumerically(">=", 5))
	var classes clusterv1.ClusterClassList
	g.Expect(admin.List(ctx, &classes)).To(Succeed())
	var namespaces corev1.NamespaceList
	g.Expect(admin.List(ctx, &namespaces)).To(Succeed())
	var all []client.Object
	for i := range clusters.Items {
		all = append(all, &clusters.Items[i])
	}
	for i := range classes.Items {
		all = append(all, &classes.Items[i])
	}
	for i := range namespaces.Items {
		if name := namespaces.Items[i].Name; name != "default" && !strings.HasPrefix(name, "kube-") {
			all = append(all, &namespaces.Items[i])
		}
	}
	remove(g, all...)
	begin := time.Now()
	g.Eventually(func(g Gomega) { isGone(g, all...) }).WithTimeout(2 * time.Minute).Should(Succeed())
	t.Logf("%d objects were gone after %s", len(all), time.Since(begin).Round(100*time.Millisecond))
}
