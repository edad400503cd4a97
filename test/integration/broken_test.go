package integration

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/test/fixture"
)

// After a panic or an error of its own the webhook answers 500, on each path: TestOpenWithEverythingBroken in
// internal/admission. The API server then does what the failurePolicy of the shipped entry says.
func TestErrorsOfTheWebhook(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configure(t, g, "{}")
	var called atomic.Value
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called.Store(r.URL.Path)
		http.Error(w, "panic: broken [recovered]", http.StatusInternalServerError)
	}))
	defer broken.Close()
	to := func(of *admissionregistrationv1.WebhookClientConfig) {
		url := broken.URL + *of.Service.Path
		*of = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: broken.Certificate().Raw})}
	}
	mutating := get(g, &admissionregistrationv1.MutatingWebhookConfiguration{}, "", "muster-mutating-webhook").Webhooks
	validating := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook").Webhooks
	helm := &admissionregistrationv1.ValidatingWebhookConfigurationList{}
	g.Expect(admin.List(ctx, helm)).To(Succeed())
	for _, its := range helm.Items {
		if its.Name == "muster-helm-validating-webhook" {
			validating = append(validating, its.Webhooks...)
		}
	}
	all := map[string]client.Object{}
	name := metav1.ObjectMeta{Name: "test-broken"}
	fails := map[string]bool{}
	for _, its := range mutating {
		fails[its.Name] = *its.FailurePolicy == admissionregistrationv1.Fail
		to(&its.ClientConfig)
		all[its.Name] = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: name, Webhooks: []admissionregistrationv1.MutatingWebhook{its}}
	}
	for _, its := range validating {
		fails[its.Name] = *its.FailurePolicy == admissionregistrationv1.Fail
		to(&its.ClientConfig)
		all[its.Name] = &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: name, Webhooks: []admissionregistrationv1.ValidatingWebhook{its}}
	}
	chart := `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: HelmChartProxy, metadata: {name: web, namespace: ` + s.namespace + `}, spec: {clusterSelector: {}, repoURL: "https://charts.example.com", chartName: web}}`
	covered := map[string]bool{}
	for entry, configuration := range all {
		t.Run(entry, func(t *testing.T) {
			g := NewWithT(t)
			request := func() error { return admin.Create(ctx, s.cluster("one"), client.DryRunAll) }
			switch {
			case strings.HasPrefix(entry, "config-deletion."):
				request = func() error { return admin.Delete(ctx, fixture.Config(), client.DryRunAll) }
			case strings.HasPrefix(entry, "config."):
				request = func() error {
					return admin.Patch(ctx, fixture.Config(), mergePatch(`{"spec":{"cluster":{"agentNamespace":"other"}}}`), client.DryRunAll)
				}
			case strings.Contains(entry, "helmchartproxies"):
				request = func() error { return admin.Create(ctx, object(g, chart), client.DryRunAll) }
			}
			create(g, configuration)
			defer func() { g.Expect(admin.Delete(ctx, configuration)).To(Succeed()) }()
			called.Store("")
			var err error
			g.Eventually(func() any { err = request(); return called.Load() }).ShouldNot(BeEmpty(), "no request came")
			covered[called.Load().(string)] = true
			if fails[entry] {
				g.Expect(err).To(MatchError(And(ContainSubstring(`failed calling webhook "`+entry), ContainSubstring("panic: broken"))))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
	for _, path := range []string{admission.StampPath, admission.ClassAccessPath, admission.ClusterPath, admission.ValidateConfigPath} {
		g.Expect(covered).To(HaveKey(path))
	}
	g.Expect(fails).To(And(HaveKeyWithValue("config-deletion.fleet.addons.cluster.x-k8s.io", false), HaveKeyWithValue("config.fleet.addons.cluster.x-k8s.io", true)))
}
