package fleetinstaller

import (
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/test/bench/usage"
)

// image returns the image of Fleet's controller.
func image(g Gomega) string {
	deployment := controller(g)
	g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
	return deployment.Spec.Template.Spec.Containers[0].Image
}

// From a registry, the installer upgrades by version, by range and by followLatest, and for no other reason.
func TestUpgrade(t *testing.T) {
	g := fresh(t)
	ask(g, "{"+fromRegistry("version: 0.15.3")+"}")
	installed(g, "0.15.3")

	ask(g, "{"+fromRegistry("version: 0.16.0")+"}")
	installed(g, "0.16.0")
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.0"))
	// A gate, and any other setting, never changes the version.
	ask(g, "{"+fromRegistry("version: 0.16.0")+", config: {featureGates: {experimentalHelmOps: false}}, cluster: {hostNetwork: false}}")
	isReported(g, "FleetConfigured", metav1.ConditionTrue, "Configured")
	installed(g, "0.16.0")
	g.Expect(values(g)).To(HaveKeyWithValue("helmops", map[string]any{"enabled": false}))
	_, err := env.Kubectl(ctx, "get", "deployment", "helmops", "-n", fleetNamespace)
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")))

	ask(g, "{"+fromRegistry("version: 0.16.x")+", config: {featureGates: {}}}")
	installed(g, "0.16.1")
	g.Expect(shelf.publish("0.16.2", nil)).To(Succeed())
	installed(g, "0.16.2") // The installer looks again by itself.
	g.Expect(shelf.publish("0.17.0", nil)).To(Succeed())
	g.Consistently(func() string { return config(g).Status.InstalledVersion }, "12s").Should(Equal("0.16.2"))

	ask(g, "{"+fromRegistry("version: 0.15.3")+"}")
	message := isReported(g, "FleetInstalled", metav1.ConditionFalse, "DowngradeRefused")
	g.Expect(message).To(ContainSubstring("Fleet 0.16.2 is installed and stays"))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.2"))

	ask(g, "{"+fromRegistry("followLatest: true")+"}")
	installed(g, "0.17.0")
	g.Expect(shelf.publish("0.17.1", nil)).To(Succeed())
	installed(g, "0.17.1")

	// A version does not start: the old one still serves, and Helm's own message says why.
	without := func(more string) func(string) string {
		return func(values string) string {
			values = strings.ReplaceAll(values, "repository: rancher/fleet\n", "repository: rancher/fleet-that-is-not\n")
			return strings.ReplaceAll(values, "gitrepoHelmURLRegexMigration: true", "gitrepoHelmURLRegexMigration: "+more)
		}
	}
	g.Expect(shelf.publish("0.18.0", without("false"))).To(Succeed())
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "UpgradeFailed", "Fleet 0.17.1 keeps running", "helm upgrade of chart fleet 0.18.0",
		"Deployment fleet-controller", "rolled back")
	g.Expect(config(g).Status.InstalledVersion).To(Equal("0.17.1"))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.17.1"))
	// The broken version does not block the next one, which fails earlier: a Job comes first.
	g.Expect(shelf.publish("0.18.1", without("true"))).To(Succeed())
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "UpgradeFailed", "helm upgrade of chart fleet 0.18.1: pre-upgrade hooks failed",
		"Job fleet-migrate-gitrepo-helm-url-regex")
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.17.1"))
	g.Expect(shelf.publish("0.18.2", nil)).To(Succeed())
	installed(g, "0.18.2")
	for _, process := range env.Processes() {
		if process.Name == "muster-installer" && process.Running {
			memory, err := usage.MemoryOf(process.PID)
			g.Expect(err).NotTo(HaveOccurred())
			t.Logf("the installer holds %.0f MiB, and has held %.0f", memory.Now, memory.Peak)
			g.Expect(memory.Peak).To(BeNumerically("<", 460), "GOMEMLIMIT of the shipped Deployment")
		}
	}
}

// The command shows the next changes, and makes none.
func TestPlan(t *testing.T) {
	g := fresh(t)
	ask(g, "{"+fromRepository("version: 0.16.0, mode: Plan")+"}")
	g.Expect(isReported(g, "FleetInstalled", metav1.ConditionFalse, "Planned")).To(ContainSubstring("Fleet 0.16.0 would be installed"))
	g.Expect(releases(g)).To(BeEmpty())
	cmd := exec.CommandContext(ctx, env.Program("kubectl-muster"), "plan")
	cmd.Env = []string{"KUBECONFIG=" + env.Kubeconfig, "HOME=" + t.TempDir()}
	shown, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(shown))
	g.Expect(string(shown)).To(And(
		ContainSubstring("Helm release fleet-crd would be installed at 0.16.0:\n  + CustomResourceDefinition bundledeployments.fleet.cattle.io\n"),
		ContainSubstring("  + Deployment fleet-controller\n")))
	g.Expect(releases(g)).To(BeEmpty())
}
