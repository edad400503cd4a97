package integration

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
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

// The syncer retries a lasting conflict at growing intervals, and reports it.
func TestConflictThatLasts(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := s.imported(g, "one")
	allow := answerConflict(t, g, s.namespace)
	quiet(g)

	since := time.Now()
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		told := importedCondition(g, cluster)
		g.Expect(told.Status).To(Equal(metav1.ConditionTrue), "it is in Fleet")
		g.Expect(told.Reason).To(Equal("Failed"))
		g.Expect(told.Message).To(And(ContainSubstring("refused as a conflict again and again"), ContainSubstring("which admission webhook"), ContainSubstring("come back later")))
	}).WithTimeout(4 * patience).Should(Succeed())
	tries := requests(g, since, func(e stack.AuditEvent) bool { return e.Resource == "clusters" && e.Code == http.StatusConflict })
	t.Logf("%d tries in %s", len(tries), time.Since(since))
	g.Expect(len(tries)).To(BeNumerically("<", 20))

	allow()
	g.Expect(admin.Patch(ctx, cluster, mergePatch(`{"metadata":{"labels":{"c":"d"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "one").Labels).To(And(HaveKey("a"), HaveKey("c")))
		g.Expect(importedReason(g, cluster)).To(Equal("Imported"))
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
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "test-conflict"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "conflict.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"fleet.cattle.io"}, APIVersions: []string{"*"}, Resources: []string{"clusters"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	g.Expect(admin.Create(ctx, configuration)).To(Succeed())
	allow = func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, configuration)); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(allow)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Patch(ctx, fleetCluster(g, namespace, "one"), mergePatch(`{"metadata":{"labels":{"probe":"x"}}}`), client.DryRunAll)).
			To(MatchError(ContainSubstring("come back later")))
	}).Should(Succeed())
	return allow
}

// A mapping stays while the syncer may not annotate its Bundle. The syncer tries at growing
// intervals, and an event says what to do.
func TestBundleThatMayNotBeAnnotated(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	user := s.imported(g, "user")
	provoked[s.classNamespace] = true
	bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: s.classNamespace, Name: "app"}}
	g.Expect(admin.Create(ctx, bundle)).To(Succeed())
	deployment := &fleetv1.BundleDeployment{}
	deployment.Namespace, deployment.Name = newNamespace(t, g, "cluster", nil), "app"
	deployment.Labels = map[string]string{
		fleetv1.BundleLabel: "app", fleetv1.BundleNamespaceLabel: s.classNamespace,
		fleetv1.ClusterLabel: "user", fleetv1.ClusterNamespaceLabel: s.namespace,
	}
	g.Expect(admin.Create(ctx, deployment)).To(Succeed())
	denySyncer(t, g, s.classNamespace, "bundles")

	since := time.Now()
	deleteNow(g, user)
	tries := func(g Gomega) []stack.AuditEvent {
		return requests(g, since, func(e stack.AuditEvent) bool { return e.Resource == "bundles" && e.Verb == "patch" })
	}
	g.Eventually(func(g Gomega) { g.Expect(len(tries(g))).To(BeNumerically(">=", 4)) }).Should(Succeed())
	all := tries(g)
	t.Logf("%v", all)
	g.Expect(all[3].Received.Sub(all[2].Received)).To(BeNumerically(">=", 2*all[1].Received.Sub(all[0].Received)), "the waits do not grow")
	g.Eventually(func(g Gomega) {
		var events eventsv1.EventList
		g.Expect(admin.List(ctx, &events, client.InNamespace(s.classNamespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("Reason", "RetargetRefused"), HaveField("Regarding.Name", s.namespace),
			HaveField("Note", And(ContainSubstring("must be allowed to annotate them"), ContainSubstring(s.classNamespace+"/app"))))))
	}).Should(Succeed())
	g.Expect(isRetired(g, s)).To(BeTrue())

	allowSyncer(g)
	g.Expect(admin.Delete(ctx, deployment)).To(Succeed())
	g.Eventually(func(g Gomega) { isGone(g, s.mapping()) }).WithTimeout(3 * patience).Should(Succeed())
}
