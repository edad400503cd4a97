package integration

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// To begin with some Clusters, the FleetAddonConfig has to be there before the syncer.
// Applied with everything else, it is refused: its webhook does not answer yet. The
// documented order is the CRD, the FleetAddonConfig, and then the rest.
func TestConfigIsAppliedFirst(t *testing.T) {
	g := NewWithT(t)
	fresh, err := stack.Up(ctx, stack.Options{Profile: stack.API, WithoutCertManager: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := fresh.Down(); err != nil {
			t.Error(err)
		}
	})
	config := func(phase string) string {
		return `{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"},` +
			`"spec":{"cluster":{"selector":{"matchLabels":{"phase":"` + phase + `"}}}}}`
	}

	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	commands, err := fixture.Commands("operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(commands["config"]).To(HaveKey("first"))
	shell, err := fixture.NewShell(fresh, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Symlink(root, filepath.Join(shell.Home, "muster"))).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(shell.Home, "fleetaddonconfig.yaml"), []byte(config("first")), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(shell.Home, "kustomization.yaml"), []byte("resources: [muster/manifests/default]"), 0o600)).To(Succeed())
	_, _, err = shell.Run(ctx, fresh.Kubeconfig, commands["config"]["first"])
	g.Expect(err).NotTo(HaveOccurred())

	out, err := fresh.Kubectl(ctx, "get", "fac", "fleet-addon-config", "-o", "jsonpath={.spec.cluster.selector.matchLabels.phase}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal("first"))
	// The webhook is configured by now, and does not run: this is why it had to be first.
	g.Eventually(func() error {
		_, err := fresh.KubectlInput(ctx, config("second"), "apply", "-f", "-")
		return err
	}).Should(MatchError(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`)))
}
