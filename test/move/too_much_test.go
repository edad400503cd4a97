package move

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// crowd writes 600 annotations on the Cluster, more than Muster copies from, or removes them.
func (s *side) crowd(g Gomega, value any) {
	annotations := map[string]any{}
	for i := range 600 {
		annotations[fmt.Sprintf("crowd.example.com/%03d", i)] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.admin.Patch(ctx, s.cluster(g), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

// imports waits for a status and reason of FleetImported.
func (s *side) imports(g Gomega, state string) {
	g.Eventually(func(g Gomega) {
		its := conditions.Get(s.cluster(g), "FleetImported")
		g.Expect(its).NotTo(BeNil())
		g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(Equal(state), its.Message)
	}).WithTimeout(soon).Should(Succeed())
}

// A Cluster that has too many annotations to be copied from moves: its Fleet Cluster is released as any other, and the
// applications stay. The side that it comes to waits until it can be copied from, and then takes back what it has left.
func TestMoveCrowded(t *testing.T) {
	g := NewWithT(t)
	guide := newGuide(t)
	home.crowd(g, "x")
	home.imports(g, "True TooMuchMetadata")
	here, applications := home.state(g), deployed(g)

	guide.run(t, g, home, "move")
	away.imports(g, "False TooMuchMetadata")
	g.Consistently(func(g Gomega) {
		err := away.admin.Get(ctx, prod, &fleetv1.Cluster{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "it was imported: %v", err)
		left := home.state(g)
		g.Expect(left.released).To(Equal("true"))
		g.Expect([]any{left.uid, left.owners, left.deployments}).To(Equal([]any{here.uid, []types.UID(nil), here.deployments}))
		g.Expect(deployed(g)).To(Equal(applications))
	}).WithTimeout(10 * time.Second).Should(Succeed())

	guide.run(t, g, away, "move")
	home.imports(g, "False TooMuchMetadata")
	home.crowd(g, nil)
	home.imports(g, "True Imported")
	back := home.state(g)
	g.Expect(back.owners).To(ConsistOf(home.cluster(g).UID))
	g.Expect([]any{back.uid, back.released, back.deployments}).To(Equal([]any{here.uid, "", here.deployments}))
	g.Expect(deployed(g)).To(Equal(applications))
}
