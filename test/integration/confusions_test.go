package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// 13. A mapping that is retired waits for Fleet by the clock, however often the Clusters
// of its namespace are looked at, and lists BundleDeployments once a second at most.
func TestRetiringCountsTime(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	user := s.imported(g, "user")
	stays := fixture.Cluster(s.namespace, "stays", "", "")
	stays.Spec.Topology = clusterv1.Topology{}
	g.Expect(admin.Create(ctx, stays)).To(Succeed())
	g.Eventually(func(g Gomega) { exists(g, s.mapping()) }).Should(Succeed())
	// No Fleet runs here: what it would drop stays.
	deployment := &fleetv1.BundleDeployment{}
	deployment.Namespace, deployment.Name = newNamespace(t, g, "cluster", nil), "app"
	deployment.Labels = map[string]string{
		fleetv1.BundleLabel: "app", fleetv1.BundleNamespaceLabel: s.classNamespace,
		fleetv1.ClusterLabel: "user", fleetv1.ClusterNamespaceLabel: s.namespace,
	}
	g.Expect(admin.Create(ctx, deployment)).To(Succeed())
	t.Cleanup(func() { _ = admin.Delete(ctx, deployment) })

	begin := time.Now()
	deleteNow(g, user)
	for i := range 80 { // Each wakes the mapping that this Cluster names and then does not.
		before := stays.DeepCopy()
		stays.Spec.Topology = clusterv1.Topology{}
		if i%2 == 0 {
			stays.Spec.Topology = fixture.Cluster(s.namespace, "stays", "standard", s.classNamespace).Spec.Topology
			metav1.SetMetaDataAnnotation(&stays.ObjectMeta, "cluster.x-k8s.io/paused", "true")
		}
		g.Expect(admin.Patch(ctx, stays, client.MergeFrom(before))).To(Succeed())
	}
	time.Sleep(4 * time.Second)
	exists(g, s.mapping())
	g.Expect(isRetired(g, s)).To(BeTrue())
	lists := requests(g, begin, func(e stack.AuditEvent) bool { return e.Resource == "bundledeployments" && e.Verb == "list" })
	g.Expect(len(lists)).To(BeNumerically("<=", int(time.Since(begin).Seconds())+2), "%v", lists)
	g.Expect(lists).NotTo(BeEmpty())
	for _, list := range lists {
		g.Expect(list.URI).To(ContainSubstring("limit="))
	}
	g.Expect(admin.Delete(ctx, deployment)).To(Succeed())
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).Should(Succeed())
	deleteNow(g, stays) // Paused, it would count as pending for others.
}

func isRetired(g Gomega, s scene) bool {
	mapping := s.mapping()
	exists(g, mapping)
	return mapping.BundleSelector == nil && mapping.NamespaceSelector == nil
}

// 15. An imported Cluster stays so while something is wrong with a write, and a gate on
// FleetImported stays open; a Fleet that counts aloud is not repeated word by word.
func TestConditionsDoNotFlap(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "steady")
	g.Eventually(func(g Gomega) { g.Expect(importedCondition(g, cluster).Reason).To(Equal("Imported")) }).Should(Succeed())
	imported := importedCondition(g, cluster).LastTransitionTime

	t.Run("an error", func(t *testing.T) {
		g := NewWithT(t)
		refuse := refusing(t, g, s.namespace, "nobody changes Fleet Clusters today")
		before := get(g, cluster, s.namespace, "steady").DeepCopy()
		metav1.SetMetaDataLabel(&cluster.ObjectMeta, "env", "prod")
		g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			condition := importedCondition(g, cluster)
			g.Expect(condition.Reason).To(Equal("Failed"))
			g.Expect(condition.Message).To(ContainSubstring("nobody changes Fleet Clusters today"))
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
		}).Should(Succeed())
		refuse()
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "steady").Labels).To(HaveKeyWithValue("env", "prod"))
			g.Expect(importedCondition(g, cluster).Reason).To(Equal("Imported"))
		}).WithTimeout(time.Minute).Should(Succeed())
		g.Expect(importedCondition(g, cluster).LastTransitionTime).To(Equal(imported))
	})
	t.Run("messages", func(t *testing.T) {
		g := NewWithT(t)
		quiet(g)
		begin := time.Now()
		for i := range 20 {
			g.Eventually(func() error {
				live := fleetCluster(g, s.namespace, "steady")
				live.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False", Message: fmt.Sprintf("NotReady(%d)", i)}}
				return admin.Status().Update(ctx, live)
			}).Should(Succeed())
			time.Sleep(100 * time.Millisecond)
		}
		writes := requests(g, begin, func(e stack.AuditEvent) bool { return e.Subresource == "status" && e.Name == "steady" })
		g.Expect(len(writes)).To(BeNumerically("<=", 3), "%v", writes)
		g.Eventually(func(g Gomega) {
			condition := conditions.Get(get(g, cluster, s.namespace, "steady"), "FleetBundlesReady")
			g.Expect(condition.Message).To(ContainSubstring("NotReady(19)"), "the last one comes in the end")
		}).Should(Succeed())
	})
}

// refusing has the API server refuse all changes of the Fleet Clusters of a namespace.
func refusing(t *testing.T, g Gomega, namespace, message string) (stop func()) {
	t.Helper()
	policy := object(g, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: test-%[1]s}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
    resourceRules: [{apiGroups: [fleet.cattle.io], apiVersions: ["*"], operations: [UPDATE], resources: [clusters]}]
  validations: [{expression: "false", message: %[2]q, reason: Invalid}]
`, namespace, message))
	binding := object(g, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: test-%[1]s}
spec: {policyName: test-%[1]s, validationActions: [Deny]}
`, namespace))
	stop = func() {
		for _, object := range []client.Object{binding, policy} {
			if err := client.IgnoreNotFound(admin.Delete(ctx, object)); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	g.Expect(admin.Create(ctx, policy)).To(Succeed())
	g.Expect(admin.Create(ctx, binding)).To(Succeed())
	g.Eventually(func() error { // It takes a moment to be in force.
		return admin.Patch(ctx, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "steady"}},
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"probe":"x"}}}`)), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(message)))
	return stop
}

// 16. Class std.classes of a namespace and class std of namespace classes want groups of
// one name. The class's own keeps it, and nothing is targeted through the wrong one.
func TestGroupOfTwoClasses(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	before := s.imported(g, "before")
	g.Eventually(func(g Gomega) { exists(g, s.group()) }).Should(Succeed())
	dotted := newClass(g, s.namespace, "standard."+s.classNamespace, nil)
	g.Eventually(func(g Gomega) {
		group := s.group()
		exists(g, group)
		g.Expect(group.Spec.Selector.MatchLabels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, s.namespace))
		condition := importedCondition(g, before)
		g.Expect(condition.Reason).To(Equal("NameConflict"))
		g.Expect(condition.Status).To(Equal(metav1.ConditionTrue), "it is in Fleet as it was")
		g.Expect(condition.Message).To(ContainSubstring("rename one of the two classes"))
	}).Should(Succeed())
	later := fixture.Cluster(s.namespace, "later", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, later)).To(Succeed())
	initialize(g, later)
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, later).Reason).To(Equal("NameConflict"))
	}).Should(Succeed())
	isGone(g, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "later"}})

	deleteNow(g, dotted)
	g.Eventually(func(g Gomega) {
		group := s.group()
		exists(g, group)
		g.Expect(group.Spec.Selector.MatchLabels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, s.classNamespace))
		g.Expect(importedCondition(g, later).Reason).To(Equal("Imported"))
		g.Expect(importedCondition(g, before).Reason).To(Equal("Imported"))
	}).Should(Succeed())
}

// 17. Of instances with watch filters, that one reports on the FleetAddonConfig whose
// filter it carries; and a Cluster that is relabelled out of a filter is not counted.
func TestWatchFilters(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	namespace := newNamespace(t, g, "team", nil)
	deployment := get(g, &appsv1.Deployment{}, "muster-system", "muster-syncer")
	args := deployment.Spec.Template.Spec.Containers[0].Args
	run := func(args []string) {
		before := deployment.DeepCopy()
		deployment.Spec.Template.Spec.Containers[0].Args = args
		g.Expect(admin.Patch(ctx, deployment, client.MergeFrom(before))).To(Succeed())
		g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	}
	run(append(args[:len(args):len(args)], "--watch-filter=blue"))
	t.Cleanup(func() { run(args) })

	cluster := fixture.Cluster(namespace, "one", "", "")
	cluster.Spec.Topology = clusterv1.Topology{}
	cluster.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	g.Eventually(func(g Gomega) {
		fleetCluster(g, namespace, "one")
		g.Expect(metric(g, `muster_clusters{state="imported"}`)).To(BeEquivalentTo(1))
	}).Should(Succeed())

	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	config := fixture.Config()
	g.Consistently(func(g Gomega) {
		exists(g, config)
		g.Expect(config.Status.Conditions).To(BeEmpty(), "it is another instance's to report on")
	}).Should(Succeed())
	before := config.DeepCopy()
	config.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
	g.Expect(admin.Patch(ctx, config, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) {
		exists(g, config)
		g.Expect(ptr.Deref(config.Status.Clusters, addonsv1.ClusterCounts{}).Imported).To(BeEquivalentTo(1))
	}).Should(Succeed())

	g.Eventually(func() error {
		current := get(g, cluster, namespace, "one")
		current.Labels[clusterv1.WatchLabel] = "red"
		return admin.Update(ctx, current)
	}).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(metric(g, `muster_clusters{state="imported"}`)).To(BeZero())
		exists(g, config)
		g.Expect(config.Status.Clusters.Imported).To(BeZero())
	}).Should(Succeed())
}

// metric returns the value of one of the syncer's metrics.
func metric(g Gomega, name string) float64 {
	_, body := scrape(g, syncerProcess, readerToken(g))
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(body)
	g.Expect(found).NotTo(BeNil(), "no %s", name)
	value, err := strconv.ParseFloat(found[1], 64)
	g.Expect(err).NotTo(HaveOccurred())
	return value
}

// 20. An invalid FleetAddonConfig makes nobody try again and again: nothing is done until
// it is valid, and then all is.
func TestInvalidConfigIsWaitedOut(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "one")
	webhooks := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook")
	g.Expect(admin.Delete(ctx, webhooks.DeepCopy())).To(Succeed())
	back := webhooks.DeepCopy()
	back.ResourceVersion, back.UID = "", ""
	t.Cleanup(func() { NewWithT(t).Expect(admin.Create(ctx, back)).To(Succeed()) })
	quiet(g)
	g.Eventually(func() error { // The API server forgets the webhook a moment later.
		config := fixture.Config()
		config.Spec.Cluster = &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"no key!": "x"}}}
		return admin.Create(ctx, config)
	}).Should(Succeed())
	t.Cleanup(func() { noConfig(t) })
	config := fixture.Config()
	g.Eventually(func(g Gomega) {
		exists(g, config)
		g.Expect(conditionsOf(config)).To(HaveKeyWithValue("ConfigValid", metav1.ConditionFalse))
	}).Should(Succeed())

	errors := func() float64 {
		return metric(g, `controller_runtime_reconcile_total{controller="cluster",result="error"}`) +
			metric(g, `controller_runtime_reconcile_total{controller="clustergroup",result="error"}`) +
			metric(g, `controller_runtime_reconcile_total{controller="bundlenamespacemapping",result="error"}`) +
			metric(g, `controller_runtime_reconcile_total{controller="namespace",result="error"}`)
	}
	count := errors()
	before := get(g, cluster, s.namespace, "one").DeepCopy()
	metav1.SetMetaDataLabel(&cluster.ObjectMeta, "env", "prod")
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(errors()).To(Equal(count)) }).Should(Succeed())
	noConfig(t)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(HaveKeyWithValue("env", "prod"))
	}).Should(Succeed())
}

func conditionsOf(config *addonsv1.FleetAddonConfig) map[string]metav1.ConditionStatus {
	result := map[string]metav1.ConditionStatus{}
	for _, condition := range config.Status.Conditions {
		result[condition.Type] = condition.Status
	}
	return result
}

// 21. CAAPF imports what either of two selectors matches, Muster what both match. What it
// imported stays as it is until somebody decides.
func TestMigrationOfWhatOneSelectorMatches(t *testing.T) {
	for _, policy := range []addonsv1.DeselectPolicy{addonsv1.DeselectKeep, addonsv1.DeselectDelete} {
		t.Run(string(policy), func(t *testing.T) {
			g := NewWithT(t)
			startSyncer := stop(t, g, syncerProcess)
			classNamespace, namespace := newNamespace(t, g, "classes", nil), newNamespace(t, g, "team", map[string]string{"import": "yes"})
			newClass(g, classNamespace, "standard", nil)
			cluster := fixture.Cluster(namespace, "one", "standard", classNamespace)
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			initialize(g, cluster)
			unstamp(t, g, cluster)
			leaveCAAPFObjects(g, cluster, classNamespace)
			key := func(object client.Object, namespace, name string) client.Object {
				object.SetNamespace(namespace)
				object.SetName(name)
				return object
			}
			left := []client.Object{
				key(&fleetv1.Cluster{}, namespace, "capi-one"),
				key(&fleetv1.ClusterGroup{}, namespace, "standard."+classNamespace),
				key(&fleetv1.BundleNamespaceMapping{}, classNamespace, namespace),
			}
			versions := map[string]string{}
			for _, object := range left {
				exists(g, object)
				versions[fmt.Sprintf("%T", object)] = object.GetResourceVersion()
			}
			setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
				Selector:          &metav1.LabelSelector{MatchLabels: map[string]string{"fleet": "yes"}},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"import": "yes"}},
				Naming:            &addonsv1.NamingStrategy{Prefix: "capi-"},
				OnDeselect:        policy,
			}})
			startSyncer()
			if policy == addonsv1.DeselectDelete {
				g.Eventually(func(g Gomega) {
					for _, object := range left {
						isGone(g, object)
					}
				}).Should(Succeed())
				return
			}
			g.Eventually(func(g Gomega) {
				condition := importedCondition(g, cluster)
				g.Expect(condition.Reason).To(Equal("Deselected"))
				g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			}).Should(Succeed())
			g.Consistently(func(g Gomega) {
				for _, object := range left {
					exists(g, object)
					g.Expect(object.GetResourceVersion()).To(Equal(versions[fmt.Sprintf("%T", object)]), "%T", object)
				}
				g.Expect(get(g, &corev1.Namespace{}, "", namespace).Annotations).To(HaveKey(workspace))
			}).Should(Succeed())
			// Somebody decides.
			before := get(g, cluster, namespace, "one").DeepCopy()
			metav1.SetMetaDataLabel(&cluster.ObjectMeta, "fleet", "yes")
			g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
			uid := left[0].GetUID()
			g.Eventually(func(g Gomega) {
				g.Expect(importedCondition(g, cluster).Reason).To(Equal("Imported"))
				live := fleetCluster(g, namespace, "capi-one")
				g.Expect(live.UID).To(Equal(uid))
				g.Expect(strings.Join(managersOf(live), " ")).NotTo(ContainSubstring("cluster-capi-"))
			}).Should(Succeed())
		})
	}
}

func managersOf(object client.Object) []string {
	var names []string
	for _, entry := range object.GetManagedFields() {
		names = append(names, entry.Manager)
	}
	return names
}
