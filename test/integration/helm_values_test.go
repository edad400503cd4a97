package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// A Fleet Cluster that is deleted, and made again before its Bundle is reconciled, leaves no target whose values do not exist,
// although its template fails now: Fleet would deploy nothing from the Bundle to anybody.
func TestHelmValuesOfAFleetClusterMadeAnew(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	one := s.imported(g, "one", "tier")
	s.imported(g, "two", "tier")
	charts := startHelm(t, g)
	mayReadSecrets(g, s.namespace)
	const template = `tier: {{ if hasKey .Cluster.metadata.labels "tier" }}{{ .Cluster.metadata.labels.tier }}{{ else }}{{ fail "no tier" }}{{ end }}`
	access := named(&corev1.Secret{Data: charts.Secret()}, s.namespace, "repository")
	proxy := named(&addonsv1.HelmChartProxy{}, s.namespace, "web")
	proxy.Spec = addonsv1.HelmChartProxySpec{
		RepoURL: charts.URL, ChartName: "web", Version: "1.0.0", ValuesTemplate: template,
		Credentials: &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"},
		TLSConfig:   &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "repository"}},
	}
	for _, its := range []client.Object{access, proxy} {
		g.Eventually(func() error { return admin.Create(ctx, its) }).Should(Succeed())
	}
	bundle := func(g Gomega) *fleetv1.Bundle {
		var all fleetv1.BundleList
		g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace), client.HasLabels{"helmchartproxy-name.fleet.addons.cluster.x-k8s.io"})).To(Succeed())
		g.Expect(all.Items).To(HaveLen(1))
		return &all.Items[0]
	}
	complete := func(g Gomega) {
		for _, target := range bundle(g).Spec.Targets {
			for _, its := range target.DownstreamResources {
				values := get(g, &corev1.ConfigMap{}, s.namespace, its.Name)
				g.Expect(values.Data).To(HaveKey(target.Helm.ValuesFrom[0].ConfigMapKeyRef.Key))
			}
		}
	}
	g.Eventually(func(g Gomega) {
		g.Expect(bundle(g).Spec.Targets).To(HaveLen(2))
		complete(g)
	}).WithTimeout(helmPatience).Should(Succeed())
	g.Expect(admin.Patch(ctx, one.DeepCopy(), mergePatch(`{"metadata":{"labels":{"tier":null}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		conditions := get(g, &addonsv1.HelmReleaseProxy{}, s.namespace, "web-one").Status.Conditions
		g.Expect(conditions).To(ContainElement(HaveField("Reason", "ValueParsingFailed")))
	}).Should(Succeed())

	for i := range 3 {
		before := bundle(g).Generation
		g.Expect(admin.Patch(ctx, proxy.DeepCopy(), mergePatch(fmt.Sprintf(`{"spec":{"options":{"upgrade":{"maxHistory":%d}}}}`, 20+i)))).To(Succeed())
		g.Eventually(func(g Gomega) { g.Expect(bundle(g).Generation).To(BeNumerically(">", before)) }).Should(Succeed())
		// The Bundle is not reconciled for a second now.
		last := fleetCluster(g, s.namespace, "one")
		g.Expect(admin.Delete(ctx, last)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, s.namespace, "one").UID).NotTo(Equal(last.UID))
		}).Should(Succeed())
		g.Eventually(complete).MustPassRepeatedly(30).Should(Succeed())
	}
	// The values of the Cluster come back with its label, wherever they have been.
	g.Expect(admin.Patch(ctx, one.DeepCopy(), mergePatch(`{"metadata":{"labels":{"tier":"c"}}}`))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(bundle(g).Spec.Targets).To(HaveLen(2))
		complete(g)
		g.Expect(get(g, &corev1.ConfigMap{}, s.namespace, bundle(g).Spec.Targets[0].DownstreamResources[0].Name).Data).To(ContainElement("tier: c"))
	}).Should(Succeed())
}
