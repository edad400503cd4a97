package integration

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// fleetReports plays Fleet. It reports on the bundles of a cluster, and that the agent was last seen this long ago.
func fleetReports(g Gomega, cluster *clusterv1.Cluster, ready corev1.ConditionStatus, message string, ago time.Duration) {
	fleet := fleetCluster(g, cluster.Namespace, cluster.Name)
	before := fleet.DeepCopy()
	fleet.Status.Summary.DesiredReady = 2 // Fleet's own Bundle with its agent, and a user's.
	fleet.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: ready, Message: message}}
	fleet.Status.Agent.LastSeen = metav1.NewTime(time.Now().Add(-ago))
	g.Expect(admin.Status().Patch(ctx, fleet, client.MergeFrom(before))).To(Succeed())
}

// bundlesReady waits until FleetBundlesReady has this status and reason, and a message with these parts.
func bundlesReady(g Gomega, cluster *clusterv1.Cluster, state, messages string) {
	g.Eventually(func(g Gomega) {
		its := conditions.Get(current(g, cluster), "FleetBundlesReady")
		g.Expect(its).NotTo(BeNil())
		g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(HavePrefix(state))
		g.Expect(its.Message).To(ContainSubstring(messages))
	}).Should(Succeed())
}

// FleetBundlesReady shows what Fleet reports in every state in which a Cluster has a Fleet Cluster, and FleetImported
// stays true.
func TestBundlesReadyInEveryState(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, "{selector: {matchExpressions: [{key: out, operator: DoesNotExist}]}}")
	cluster := s.imported(g, "one")
	// A patch of the Cluster or of the FleetAddonConfig enters each state, and another leaves it.
	var allow func()
	nothing := func() {}
	for _, state := range []struct {
		name, reason string
		of           client.Object
		begin, end   string
		before       func()
		after        func()
	}{
		{"imported", "Imported", cluster, `{}`, `{}`, nothing, nothing},
		{"deselected", "Deselected", cluster, entry("labels", "out", `"x"`), entry("labels", "out", "null"), nothing, nothing},
		{"paused", "Paused", cluster, entry("annotations", clusterv1.PausedAnnotation, `""`), entry("annotations", clusterv1.PausedAnnotation, "null"),
			nothing, nothing},
		{"displaced", "NameConflict", cluster, `{}`, `{}`, func() { newClass(g, s.namespace, "standard."+s.classNamespace, nil) }, func() {
			deleteNow(g, fixture.Class(s.namespace, "standard."+s.classNamespace, nil))
		}},
		{"failed", "Failed", cluster, entry("labels", "changed", `"x"`), `{}`, func() { allow = deny(t, g, s.fleet("one"), "clusters", "not today") },
			func() { allow() }},
		{"import is off", "Imported", fixture.Config(), `{"spec":{"cluster":{"enabled":false}}}`, `{"spec":{"cluster":{"enabled":true}}}`, nothing, nothing},
		{"the config does not parse", "Imported", fixture.Config(), `{"spec":{"cluster":{"selector":{"matchLabels":{"a":"b c"}}}}}`,
			`{"spec":{"cluster":{"selector":{"matchLabels":null}}}}`, func() { withoutValidation(t, g) }, nothing},
	} {
		t.Run(state.name, func(t *testing.T) {
			g := NewWithT(t)
			fleetReports(g, cluster, corev1.ConditionTrue, "", 0)
			bundlesReady(g, cluster, "True", "")
			willReport(g, cluster, "Imported")
			state.before()
			patch(g, state.of, state.begin)
			willReport(g, cluster, state.reason)
			version := fleetCluster(g, s.namespace, "one").Generation

			fleetReports(g, cluster, corev1.ConditionFalse, "NotReady(1) in "+state.name, 0)
			bundlesReady(g, cluster, "False", "NotReady(1) in "+state.name)
			willReport(g, cluster, "True "+state.reason)
			fleetReports(g, cluster, corev1.ConditionTrue, "", time.Hour)
			bundlesReady(g, cluster, "Unknown AgentStale", "")
			g.Expect(fleetCluster(g, s.namespace, "one").Generation).To(Equal(version), "Fleet was written to")
			patch(g, state.of, state.end)
			state.after()
		})
	}

	// A Cluster whose Fleet Cluster is gone has nothing to mirror.
	patch(g, fixture.Config(), `{"spec":{"cluster":{"enabled":false}}}`)
	g.Eventually(func(g Gomega) {
		config := readConfig(g)
		g.Expect(config.Status.ObservedGeneration).To(Equal(config.Generation))
	}).Should(Succeed())
	g.Expect(admin.Delete(ctx, s.fleet("one"))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(conditions.Get(current(g, cluster), "FleetBundlesReady")).To(BeNil()) }).Should(Succeed())
}

// withoutValidation removes the validating webhooks until the test ends. The API server takes a moment to notice.
func withoutValidation(t *testing.T, g Gomega) {
	t.Helper()
	validates := func(matcher gomegatypes.GomegaMatcher) {
		g.Eventually(func() error {
			config := object(g, configYAML(`{cluster: {selector: {matchLabels: {a: "b c"}}}}`))
			return client.IgnoreAlreadyExists(admin.Create(ctx, config, client.DryRunAll))
		}).Should(matcher)
	}
	t.Cleanup(func() { validates(MatchError(ContainSubstring("a valid label must be"))) })
	withoutWebhooks(t, g, named(&admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook"))
	validates(Succeed())
}

// A condition of the syncer's that another writer applies stays in the status when the syncer gives it up. It is not written
// against for ever: a tenant could have thousands of such Clusters.
func TestConditionsOfAnotherWriter(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("one")
	create(g, cluster)
	willReport(g, cluster, "False WaitingForControlPlane")
	for _, conditionType := range []string{"FleetBundlesReady", "FleetUpgradeHeld"} {
		foreign := object(g, fmt.Sprintf(`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: %s, name: one},
  status: {conditions: [{type: %s, status: "False", reason: Mine, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`, s.namespace, conditionType))
		g.Expect(admin.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(foreign), client.FieldOwner("tenant-"+conditionType))).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		g.Expect(requests(g, time.Now().Add(-time.Minute), in(s.namespace), of("clusters", "patch"))).NotTo(BeEmpty())
	}).Should(Succeed())
	quiet(g, in(s.namespace))
	since := time.Now()
	g.Consistently(func(g Gomega) {
		g.Expect(requests(g, since, in(s.namespace), isWrite)).To(BeEmpty(), "it is written again without an event")
	}).WithTimeout(kube.Lag + 2*time.Second).WithPolling(time.Second).Should(Succeed())
}

// When an agent falls silent, the condition becomes Unknown after a set time; when the agent reports again, the
// condition shows what Fleet says. Heartbeats in between cost nothing.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	fleetReports(g, cluster, corev1.ConditionTrue, "", 20*time.Minute)
	bundlesReady(g, cluster, "True", "")
	quiet(g, in(s.namespace))
	since := time.Now()
	for ago := 10; ago > 0; ago-- {
		fleetReports(g, cluster, corev1.ConditionTrue, "", time.Duration(ago)*time.Minute)
	}
	quiet(g, in(s.namespace))
	g.Expect(requests(g, since, in(s.namespace))).To(BeEmpty(), "heartbeats cost requests")

	// The agent last reported almost as long ago as allowed, to within a few seconds. The change of the message
	// starts the timer.
	fleetReports(g, cluster, corev1.ConditionTrue, "soon", stamp.DefaultStaleAfter-5*time.Second)
	bundlesReady(g, cluster, "Unknown AgentStale", "has not reported for more than")
	reports(g, cluster, "True Imported")
	quiet(g, in(s.namespace))
	g.Expect(requests(g, since, in(s.namespace), isWrite)).To(HaveLen(2), "one for the message, and one says that it is silent")

	fleetReports(g, cluster, corev1.ConditionTrue, "soon", 0)
	bundlesReady(g, cluster, "True", "")
}

// An imported Cluster stays imported while a write fails, and a gate on FleetImported stays open.
func TestConditionsDoNotFlap(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "steady")
	willReport(g, cluster, "Imported")
	since := func() metav1.Time { return conditions.Get(current(g, cluster), "FleetImported").LastTransitionTime }
	imported := since()
	allow := deny(t, g, s.fleet("steady"), "clusters", "nobody changes Fleet Clusters today")
	patch(g, cluster, entry("labels", "env", `"prod"`))
	willReport(g, cluster, "True Failed", "nobody changes Fleet Clusters today")
	allow()
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "steady").Labels).To(HaveKeyWithValue("env", "prod"))
		reports(g, cluster, "Imported")
	}).WithTimeout(time.Minute).Should(Succeed())
	g.Expect(since()).To(Equal(imported))
}

// filtered runs the syncer with a watch filter until the test ends.
func filtered(t *testing.T, g Gomega, filter string) {
	t.Helper()
	deployment := get(g, &appsv1.Deployment{}, "muster-system", syncerProcess)
	args := deployment.Spec.Template.Spec.Containers[0].Args
	run := func(args []string) {
		before := deployment.DeepCopy()
		deployment.Spec.Template.Spec.Containers[0].Args = args
		g.Expect(admin.Patch(ctx, deployment, client.MergeFrom(before))).To(Succeed())
		g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	}
	run(append(args[:len(args):len(args)], "--watch-filter="+filter))
	t.Cleanup(func() { run(args) })
}

// Among instances with watch filters, the one whose filter the FleetAddonConfig carries reports on it. A Cluster that
// is relabelled out of a filter is not counted.
func TestWatchFilters(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	filtered(t, g, "blue")
	cluster := fixture.Cluster(namespace, "one", "", "")
	cluster.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
	create(g, cluster)
	initialize(g, cluster)
	appears(g, named(&fleetv1.Cluster{}, namespace, "one"))
	token := readerToken(g)
	g.Eventually(func(g Gomega) {
		g.Expect(metric(g, token, `muster_clusters\{state="imported"\}`)).To(BeEquivalentTo(1))
	}).Should(Succeed())

	configure(t, g, "{}")
	g.Consistently(func(g Gomega) {
		g.Expect(readConfig(g).Status.Conditions).To(BeEmpty(), "it is another instance's to report on")
	}).Should(Succeed())
	patch(g, fixture.Config(), entry("labels", clusterv1.WatchLabel, `"blue"`))
	counts := func(g Gomega, count int) {
		g.Expect(readConfig(g).Status.Clusters).To(HaveValue(HaveField("Imported", BeEquivalentTo(count))))
	}
	g.Eventually(counts).WithArguments(1).Should(Succeed())
	patch(g, cluster, entry("labels", clusterv1.WatchLabel, `"red"`))
	g.Eventually(counts).WithArguments(0).Should(Succeed())
	g.Expect(metric(g, token, `muster_clusters\{state="imported"\}`)).To(BeZero())
}

// metric sums the syncer's metrics whose names and labels match.
func metric(g Gomega, token, pattern string) (sum float64) {
	_, body := scrape(g, syncerProcess, token)
	found := regexp.MustCompile(`(?m)^`+pattern+` (\S+)$`).FindAllStringSubmatch(body, -1)
	g.Expect(found).NotTo(BeEmpty(), "no %s", pattern)
	for _, match := range found {
		value, err := strconv.ParseFloat(match[len(match)-1], 64)
		g.Expect(err).NotTo(HaveOccurred())
		sum += value
	}
	return sum
}

// An invalid FleetAddonConfig causes no retries: the syncer does nothing until it is valid, and then everything.
func TestInvalidConfigIsWaitedOut(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	withoutValidation(t, g)
	quiet(g)
	configureCluster(t, g, `{selector: {matchLabels: {"no key!": x}}}`)
	g.Eventually(func(g Gomega) {
		g.Expect(conditionsOf(readConfig(g))).To(HaveKeyWithValue("ConfigValid", metav1.ConditionFalse))
	}).Should(Succeed())
	token := readerToken(g)
	errors := func() float64 {
		return metric(g, token, `controller_runtime_reconcile_total\{controller="(cluster|clustergroup|bundlenamespacemapping|namespace)",result="error"\}`)
	}
	count := errors()
	patch(g, cluster, entry("labels", "env", `"prod"`))
	g.Consistently(errors).Should(Equal(count))
	patch(g, fixture.Config(), `{"spec":{"cluster":null}}`)
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

// When group and mapping exist, importing a Cluster costs no read and three writes: the Fleet Cluster, the condition,
// the event.
func TestCostOfOneImport(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "first")
	cluster := s.cluster("second")
	create(g, cluster)
	quiet(g)

	since := time.Now()
	initialize(g, cluster)
	appears(g, s.fleet("second"))
	quiet(g)
	all := requests(g, since, isNoStatus)
	g.Expect(all).To(HaveLen(3))
	for _, event := range all {
		g.Expect(isWrite(event)).To(BeTrue(), event.String())
	}
}

// 200 imported Clusters cost no request while nothing happens. When the syncer restarts, they cost no write, and only
// the informers' own reads.
func TestUnchangedCostsNothing(t *testing.T) {
	const count = 200
	g := NewWithT(t)
	s := newScene(t, g)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range count {
		group.Go(func() (err error) {
			s.started(NewGomega(func(message string, _ ...int) { err = fmt.Errorf("%s", message) }), fmt.Sprintf("c%d", i))
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
	s.imported(g, "canary") // The start must end before its cost is counted: a change must get through.
	quiet(g)
	g.Expect(requests(g, since, func(e stack.AuditEvent) bool {
		aboutCanary := e.Name == "canary" || e.Resource == "events"
		// Informers list and watch whole kinds; the RESTMapper reads discovery documents.
		informers := e.Verb == "watch" || e.Verb == "list" && e.Name == "" || e.Resource == ""
		return !aboutCanary && !informers && isNoStatus(e)
	})).To(BeEmpty())
	lists := map[string]int{}
	for _, event := range requests(g, since, func(e stack.AuditEvent) bool { return e.Verb == "list" }) {
		lists[event.Group+"/"+event.Resource+event.Namespace]++
	}
	g.Expect(lists).To(Or(BeEmpty(), HaveEach(1)), "an informer lists once at most")
}

// The syncer retries a lasting conflict at growing intervals, and reports it.
func TestConflictThatLasts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.imported(g, "one")
	allow := answerConflict(t, g, s.namespace)
	quiet(g, in(s.namespace))

	since := time.Now()
	patch(g, cluster, entry("labels", "a", `"b"`))
	g.Eventually(func(g Gomega) { // The Cluster is in Fleet.
		reports(g, cluster, "True Failed", "refused as a conflict again and again", "which admission webhook", "come back later")
	}).WithTimeout(4 * patience).Should(Succeed())
	tries := requests(g, since, in(s.namespace), func(e stack.AuditEvent) bool { return e.Resource == "clusters" && e.Code == http.StatusConflict })
	t.Logf("%d tries in %s", len(tries), time.Since(since))
	g.Expect(len(tries)).To(BeNumerically("<", 20))

	allow()
	patch(g, cluster, entry("labels", "c", `"d"`))
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(haveKeys("a", "c"))
		reports(g, cluster, "Imported")
	}).Should(Succeed())
}

// answerConflict runs a webhook that answers 409 to every update of a Fleet Cluster in a namespace.
func answerConflict(t *testing.T, g Gomega, namespace string) (allow func()) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(request.Body).Decode(&review) != nil || review.Request == nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "come back later",
		}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	configuration := object(g, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: test-conflict}
webhooks:
- name: conflict.example.com
  clientConfig: {url: %q, caBundle: %s}
  rules: [{operations: [UPDATE], apiGroups: [fleet.cattle.io], apiVersions: ["*"], resources: [clusters]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  sideEffects: None
  admissionReviewVersions: [v1]
`, server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), namespace))
	create(g, configuration)
	allow = func() { remove(g, configuration) }
	t.Cleanup(allow)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Patch(ctx, fleetCluster(g, namespace, "one"), mergePatch(entry("labels", "probe", `"x"`)), client.DryRunAll)).
			To(MatchError(ContainSubstring("come back later")))
	}).Should(Succeed())
	return allow
}

// A mapping stays while the syncer may not annotate its Bundle. The syncer retries at growing intervals, and an event
// says what to do.
func TestBundleThatMayNotBeAnnotated(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	user := s.imported(g, "user")
	bundle := named(&fleetv1.Bundle{}, s.classNamespace, "app")
	create(g, bundle)
	deployment := s.deployed(t, g, "app", "user")
	allow := deny(t, g, bundle, "bundles", "not today")

	since := time.Now()
	deleteNow(g, user)
	var all []stack.AuditEvent
	g.Eventually(func(g Gomega) {
		all = requests(g, since, in(s.classNamespace), of("bundles", "patch"))
		g.Expect(len(all)).To(BeNumerically(">=", 4))
	}).Should(Succeed())
	g.Expect(all[3].Received.Sub(all[2].Received)).To(BeNumerically(">=", 2*all[1].Received.Sub(all[0].Received)), "the waits do not grow: %v", all)
	g.Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(admin.List(ctx, &events, client.InNamespace(s.classNamespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("Reason", "RetargetRefused"), HaveField("Regarding.Name", s.namespace),
			HaveField("Note", And(ContainSubstring("must be allowed to annotate them"), ContainSubstring(s.classNamespace+"/app"))))))
	}).Should(Succeed())
	s.isRetired(g)

	allow()
	remove(g, deployment)
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).WithTimeout(3 * patience).Should(Succeed())
}

// A retired mapping waits for Fleet for a set time, however often the Clusters of its namespace are reconciled, and
// lists BundleDeployments at most once a second.
func TestRetiringCountsTime(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	user := s.imported(g, "user")
	other := plainCluster(g, s.namespace, "other", nil)
	appears(g, s.mapping())
	deployment := s.deployed(t, g, "app", "user") // No Fleet runs here, so the BundleDeployment stays.

	begin := time.Now()
	deleteNow(g, user)
	for range 40 { // Each change wakes the mapping: the Cluster names it, then no longer does.
		patchf(g, other, `{"spec":{"topology":{"classRef":{"name":"standard","namespace":%q},"version":%q}},"metadata":{"annotations":{"cluster.x-k8s.io/paused":"true"}}}`,
			s.classNamespace, fixture.KubernetesVersion)
		patch(g, other, `{"spec":{"topology":null}}`)
	}
	time.Sleep(4 * time.Second)
	s.isRetired(g)
	lists := requests(g, begin, of("bundledeployments", "list"), about(s.classNamespace))
	g.Expect(len(lists)).To(BeNumerically("<=", int(time.Since(begin).Seconds())+2), "%v", lists)
	g.Expect(lists).NotTo(BeEmpty())
	for _, list := range lists {
		g.Expect(list.URI).To(ContainSubstring("limit="))
	}
	remove(g, deployment)
	vanishes(g, s.mapping())
	deleteNow(g, other) // Left paused, it would count as pending in other tests.
}

// A tenant may claim that a bundle of the class's namespace is deployed in his namespace. The claim keeps nothing
// deployed: the syncer makes Fleet reconcile every bundle, and does not wait in vain.
func TestRetiringIsNotMisled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	user := s.imported(g, "user")
	appears(g, s.mapping())
	create(g, named(&fleetv1.Bundle{}, s.classNamespace, "real"))
	rest := s.deployed(t, g, "real", "user")
	for _, namespace := range []string{s.namespace, rest.Namespace} {
		nameless := named(&fleetv1.BundleDeployment{}, namespace, "nameless")
		nameless.Labels = map[string]string{fleetv1.BundleNamespaceLabel: s.classNamespace, fleetv1.ClusterNamespaceLabel: s.namespace}
		create(g, nameless)
	}
	since := time.Now()
	deleteNow(g, user)
	g.Eventually(func(g Gomega) {
		g.Expect(requests(g, since, in(s.classNamespace), of("bundles", "patch"))).NotTo(BeEmpty())
	}).Should(Succeed())
	remove(g, rest)
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).WithTimeout(15*time.Second).Should(Succeed(), "nothing real is left")
}

// The syncer retires a mapping that a user has edited like any other. An apply leaves alone the fields that it does
// not mention, so the mapping would go on mapping.
func TestEditedMappingIsRetired(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	user := s.imported(g, "user")
	mapping := s.mapping()
	appears(g, mapping)
	deployment := s.deployed(t, g, "app", "user")
	startSyncer := stop(t, g, syncerProcess)
	g.Expect(admin.Patch(ctx, mapping, mergePatch(`{"bundleSelector":{"matchExpressions":null,"matchLabels":{"edited":"yes"}},"namespaceSelector":{"matchLabels":null}}`),
		client.FieldOwner("somebody"))).To(Succeed())
	deleteNow(g, user)
	startSyncer()
	g.Eventually(s.isRetired).Should(Succeed())
	remove(g, deployment)
	vanishes(g, s.mapping())
}
