package hold

import (
	"errors"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// TestWithoutRuntimeSDK upgrades a Cluster where Cluster API waits for nobody: it upgrades at once, Muster says so, and
// leaves no hold behind.
func TestWithoutRuntimeSDK(t *testing.T) {
	g := NewWithT(t)
	shared := env
	own, err := stack.Up(ctx, stack.Options{Profile: stack.Full, Muster: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		env = shared
		var err error
		admin, err = fixture.Client(shared)
		if err := errors.Join(err, own.Down()); err != nil {
			t.Error(err)
		}
	})
	g.Expect(prepare(own)).To(Succeed())
	off := upgraded{"gateless"}
	off.tell(t)
	g.Expect(env.Apply(ctx, off.idle(204, "standard", "v1.35.0", "10m"))).To(Succeed())
	g.Expect(env.Apply(ctx, fixture.DataBundle(team, "never", "[{clusterName: gateless}]", "{from: never}"))).To(Succeed())
	g.Eventually(func(g Gomega) { off.says(g, "False NoUpgrade") }).Should(Succeed())
	g.Expect(off.setVersion(g, "v1.36.3")).NotTo(BeEmpty())
	g.Eventually(func(g Gomega) {
		off.says(g, "False NotHeld")
		g.Expect(conditions.Get(off.live(g), addonsv1.FleetUpgradeHeldCondition).Message).To(ContainSubstring("RuntimeSDK is off"))
		g.Expect(off.live(g).Annotations).NotTo(HaveKey(stamp.HookAnnotation))
		g.Expect(off.controlPlane(g)).To(Equal("v1.36.3"))
	}).Should(Succeed())
}
