package hold

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// TestWhatFleetShows proves what package hold relies on: of a Bundle with values, Fleet's BundleDeployment shows neither
// its template nor which version Fleet has seen. A change of its values is the only trace of a new version, and one
// without values has none.
func TestWhatFleetShows(t *testing.T) {
	g := NewWithT(t)
	seen := upgraded{"seen"}
	seen.tell(t)
	g.Expect(env.Apply(ctx, seen.idle(203, "standard", "v1.35.0", "0s"))).To(Succeed())
	const targets = "[{clusterName: seen}]"
	g.Expect(env.Apply(ctx, fixture.DataBundle(team, "reads", targets, "{version: '${ .ClusterValues.Cluster.spec.topology.version }'}"))).To(Succeed())
	g.Expect(env.Apply(ctx, fixture.DataBundle(team, "other", targets, fixture.PodCIDRs))).To(Succeed())
	g.Expect(env.Apply(ctx, strings.Replace(fixture.DataBundle(team, "templated", targets, "{}"), "helm: {values: {data: {}}}",
		"helm: {templateValues: {data: 'version: ${ .ClusterValues.Cluster.spec.topology.version }'}}", 1))).To(Succeed())
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %s, name: plain}
spec: {targets: %s, resources: [{name: a.yaml, content: "{apiVersion: v1, kind: ConfigMap, metadata: {name: plain}}"}]}
`, team, targets))).To(Succeed())
	deployment := func(g Gomega, bundle string) *fleetv1.BundleDeployment {
		its := &fleetv1.BundleDeployment{}
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: stamp.FleetNamespace(team, seen.name), Name: bundle}, its)).To(Succeed())
		g.Expect(its.Spec.StagedDeploymentID).NotTo(BeEmpty())
		return its
	}
	all := []string{"reads", "other", "templated", "plain"}
	before := map[string]*fleetv1.BundleDeployment{}
	g.Eventually(func(g Gomega) {
		for _, name := range all {
			before[name] = deployment(g, name)
		}
	}).Should(Succeed())
	g.Consistently(func(g Gomega) { // Fleet is at rest.
		for _, name := range all {
			before[name] = deployment(g, name)
		}
	}).WithTimeout(3 * time.Second).Should(Succeed())
	for _, name := range all {
		helm := before[name].Spec.Options.Helm
		if helm == nil {
			helm = &fleetv1.HelmOptions{}
		}
		t.Logf("%s: valuesHash %q, values %v, templateValues %v", name, before[name].Spec.ValuesHash, helm.Values, helm.TemplateValues)
	}
	g.Expect(before["reads"].Spec.ValuesHash).NotTo(BeEmpty())
	g.Expect(before["other"].Spec.ValuesHash).NotTo(BeEmpty())
	g.Expect(before["templated"].Spec.ValuesHash).NotTo(BeEmpty())
	g.Expect(before["plain"].Spec.ValuesHash).To(BeEmpty())

	g.Expect(seen.setVersion(g, "v1.36.3")).To(BeEmpty(), "its bound is zero")
	var handed time.Time
	g.Eventually(func(g Gomega) {
		fleet := &fleetv1.Cluster{}
		g.Expect(admin.Get(ctx, seen.key(), fleet)).To(Succeed())
		version, _, _ := unstructured.NestedString(fleet.Spec.TemplateValues.Data, hold.TopologyVersion...)
		g.Expect(version).To(Equal("v1.36.3"))
		handed = time.Now()
	}).Should(Succeed())
	for _, name := range []string{"reads", "templated"} {
		g.Eventually(func(g Gomega) {
			g.Expect(deployment(g, name).Spec.StagedDeploymentID).NotTo(Equal(before[name].Spec.StagedDeploymentID))
		}).Should(Succeed())
		t.Logf("%s: changed %s after the Fleet Cluster", name, time.Since(handed).Round(10*time.Millisecond))
	}
	for _, name := range []string{"other", "plain"} {
		g.Expect(client.Object(deployment(g, name)).GetResourceVersion()).To(Equal(before[name].ResourceVersion), name+" has a trace")
	}
}
