package integration

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack/process"
)

// A node can be drained of a webhook that does not work, and the webhook of a fail-closed
// entry goes before pods that do not say how important they are.
func TestWebhookYieldsAndIsPreferred(t *testing.T) {
	g := NewWithT(t)
	budget := get(g, &policyv1.PodDisruptionBudget{}, "muster-system", "muster-webhook")
	g.Expect(budget.Spec.UnhealthyPodEvictionPolicy).To(HaveValue(Equal(policyv1.AlwaysAllow)))

	class := get(g, &schedulingv1.PriorityClass{}, "", "muster-webhook")
	g.Expect(class.GlobalDefault).To(BeFalse())
	deployment := get(g, &appsv1.Deployment{}, "muster-system", "muster-webhook")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: "priority", Labels: deployment.Spec.Template.Labels},
		Spec:       *deployment.Spec.Template.Spec.DeepCopy(),
	}
	g.Expect(admin.Create(ctx, pod, client.DryRunAll)).To(Succeed())
	g.Expect(pod.Spec.Priority).To(HaveValue(Equal(class.Value)))
	g.Expect(class.Value).To(And(BeNumerically(">", 0), BeNumerically("<", 1_000_000_000)))
}

// The API server and kubelets, which no selector names, reach their ports; the port of the
// metrics is reached from namespaces that say they scrape.
func TestNetworkPolicies(t *testing.T) {
	for component, open := range map[string][]string{"webhook": {"webhook", "health"}, "syncer": {"health"}} {
		t.Run(component, func(t *testing.T) {
			g := NewWithT(t)
			policy := get(g, &networkingv1.NetworkPolicy{}, "muster-system", "muster-"+component)
			deployment := get(g, &appsv1.Deployment{}, "muster-system", "muster-"+component)
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(selector.Matches(labels.Set(deployment.Spec.Template.Labels))).To(BeTrue())

			var toAll, toScrapers []string
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					if len(rule.From) == 0 {
						toAll = append(toAll, port.Port.StrVal)
						continue
					}
					toScrapers = append(toScrapers, port.Port.StrVal)
					for _, from := range rule.From {
						g.Expect(from.PodSelector).To(BeNil())
						g.Expect(from.NamespaceSelector.MatchLabels).To(Equal(map[string]string{"fleet.addons.cluster.x-k8s.io/scrapes-metrics": "true"}))
					}
				}
			}
			g.Expect(toAll).To(ConsistOf(open))
			g.Expect(toScrapers).To(ConsistOf("metrics"))
			declared := []string{}
			for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
				declared = append(declared, port.Name)
			}
			g.Expect(declared).To(ConsistOf(append(open, "metrics")))
		})
	}
}

// Go knows of the limit and collects harder before it is reached; and what is tested here
// runs with it.
func TestGoKnowsTheMemoryLimit(t *testing.T) {
	for _, name := range []string{webhookProcess, syncerProcess} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			container := get(g, &appsv1.Deployment{}, "muster-system", name).Spec.Template.Spec.Containers[0]
			i := slices.IndexFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == "GOMEMLIMIT" })
			g.Expect(i).To(BeNumerically(">=", 0))
			soft, err := resource.ParseQuantity(strings.TrimSuffix(container.Env[i].Value, "B"))
			g.Expect(err).NotTo(HaveOccurred())
			limit := container.Resources.Limits.Memory().AsApproximateFloat64()
			g.Expect(soft.AsApproximateFloat64() / limit).To(BeNumerically("~", 0.9, 0.01))

			i = slices.IndexFunc(env.Processes(), func(p process.Status) bool { return p.Name == name })
			g.Expect(i).To(BeNumerically(">=", 0))
			variables, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", env.Processes()[i].PID))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(bytes.Split(variables, []byte{0})).To(ContainElement(BeEquivalentTo("GOMEMLIMIT=" + soft.String() + "B")))
		})
	}
}
