package integration

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

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
	manifests := func(name string) string {
		path, err := filepath.Abs(filepath.Join("../../manifests", name))
		g.Expect(err).NotTo(HaveOccurred())
		return path
	}
	config := func(phase string) string {
		return `{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"},` +
			`"spec":{"cluster":{"selector":{"matchLabels":{"phase":"` + phase + `"}}}}}`
	}

	_, err = fresh.Kubectl(ctx, "apply", "--server-side", "-k", manifests("crd"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = fresh.Kubectl(ctx, "wait", "--for=condition=Established", "crd/fleetaddonconfigs.addons.cluster.x-k8s.io")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { // The API server's discovery follows a moment later.
		_, err := fresh.KubectlInput(ctx, config("first"), "apply", "-f", "-")
		return err
	}).Should(Succeed())
	_, err = fresh.Kubectl(ctx, "apply", "--server-side", "-k", manifests("default"))
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
