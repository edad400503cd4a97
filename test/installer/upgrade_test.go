package installer

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// image is that of Fleet's controller.
func image(g Gomega) string {
	deployment := &appsv1.Deployment{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: fleetNamespace, Name: "fleet-controller"}, deployment)).To(Succeed())
	g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
	return deployment.Spec.Template.Spec.Containers[0].Image
}

// From a registry: by version, by range and by followLatest, but by nothing else.
func TestUpgrade(t *testing.T) {
	g := fresh(t)
	secret(g, "charts", credentials())
	ask(g, "{"+fromRegistry("version: 0.15.3")+"}")
	installed(g, "0.15.3")

	ask(g, "{"+fromRegistry("version: 0.16.0")+"}")
	installed(g, "0.16.0")
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.0"))
	// A gate, and whatever else is said, never moves the version.
	ask(g, "{"+fromRegistry("version: 0.16.0")+", config: {featureGates: {experimentalHelmOps: false}}, cluster: {hostNetwork: false}}")
	says(g, "FleetConfigured", metav1.ConditionTrue, "Configured")
	installed(g, "0.16.0")
	g.Expect(values(g)).To(HaveKeyWithValue("helmops", map[string]any{"enabled": false}))
	_, err := env.Kubectl(ctx, "get", "deployment", "helmops", "-n", fleetNamespace)
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")))

	ask(g, "{"+fromRegistry("version: 0.16.x")+", config: {featureGates: {}}}")
	installed(g, "0.16.1")
	g.Expect(shelf.publish("0.16.2", nil)).To(Succeed())
	installed(g, "0.16.2") // It looks again by itself.
	g.Expect(shelf.publish("0.17.0", nil)).To(Succeed())
	g.Consistently(func() string { return config(g).Status.InstalledVersion }, "12s").Should(Equal("0.16.2"))

	ask(g, "{"+fromRegistry("version: 0.15.3")+"}")
	message := says(g, "FleetInstalled", metav1.ConditionFalse, "DowngradeRefused")
	g.Expect(message).To(ContainSubstring("Fleet 0.16.2 is installed and stays"))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.2"))

	ask(g, "{"+fromRegistry("followLatest: true")+"}")
	installed(g, "0.17.0")
	g.Expect(shelf.publish("0.17.1", nil)).To(Succeed())
	installed(g, "0.17.1")

	// A version that does not start: the old one serves, and Helm's own words say why.
	g.Expect(shelf.publish("0.18.0", func(values string) string {
		return strings.ReplaceAll(values, "repository: rancher/fleet\n", "repository: rancher/fleet-that-is-not\n")
	})).To(Succeed())
	message = says(g, "FleetInstalled", metav1.ConditionFalse, "UpgradeFailed")
	g.Expect(message).To(And(ContainSubstring("Fleet 0.17.1 goes on"), ContainSubstring("helm upgrade of chart fleet 0.18.0"),
		ContainSubstring("not ready: Deployments fleet-controller"), ContainSubstring("rolled back")))
	g.Expect(config(g).Status.InstalledVersion).To(Equal("0.17.1"))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.17.1"))
	g.Expect(shelf.publish("0.18.1", nil)).To(Succeed())
	installed(g, "0.18.1") // The next one is not held back by it.
}

// What would be done is shown, and nothing is done.
func TestPlan(t *testing.T) {
	g := fresh(t)
	secret(g, "charts", credentials())
	ask(g, "{"+fromRepository("version: 0.16.0, mode: Plan")+"}")
	g.Expect(says(g, "FleetInstalled", metav1.ConditionFalse, "Planned")).To(ContainSubstring("Fleet 0.16.0 would be installed"))
	g.Expect(releases(g)).To(BeEmpty())
}
