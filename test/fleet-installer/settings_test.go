package fleetinstaller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// Inferred and given settings reach Fleet's own settings, and follow their sources.
func TestSettings(t *testing.T) {
	g := fresh(t)
	t.Cleanup(func() { NewWithT(t).Expect(publish(env)).To(Succeed()) })
	secret(g, "charts", credentials())
	install := fromRepository("version: 0.16.0")
	ask(g, "{"+install+", config: {server: {inferLocal: true}, bootstrapLocalCluster: false}}")
	installed(g, "0.16.0")
	rest, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(settings(g)).To(And(HaveKeyWithValue("apiServerURL", rest.Host), HaveKeyWithValue("apiServerCA", encoded(string(rest.CAData)))))
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionTrue, "Configured")).To(ContainSubstring("from ConfigMap kube-public/cluster-info"))
	imports(g, "inferred")

	// The installer keeps a user's own values, byte for byte.
	_, err = shelf.run(shelf.authorized("upgrade", "fleet", "fleet", "--repo", shelf.repository.URL, "--version", "0.16.0", "-n", fleetNamespace,
		"--reuse-values", "--set-string", "extraEnv[0].name=MINE,extraEnv[0].value=yes", "--set", "garbageCollectionInterval=7m")...)
	g.Expect(err).NotTo(HaveOccurred())

	// A rotated CA arrives within half a minute.
	other := authority(t)
	g.Expect(env.Apply(ctx, clusterInfo("https://[fd00::1]:6443", other))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(settings(g)).To(And(HaveKeyWithValue("apiServerURL", "https://[fd00::1]:6443"), HaveKeyWithValue("apiServerCA", encoded(other)), HaveKeyWithValue("garbageCollectionInterval", "7m")))
	}).WithTimeout(30 * time.Second).Should(Succeed())
	g.Expect(values(g)).To(And(
		HaveKeyWithValue("extraEnv", []any{map[string]any{"name": "MINE", "value": "yes"}}),
		HaveKeyWithValue("garbageCollectionInterval", "7m")))

	// Without kubeadm's ConfigMap, the installer uses the EndpointSlice, and of several ports the right one.
	g.Expect(admin.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}})).To(Succeed())
	for name, address := range map[string]string{"kubernetes": "fd00::2", "kubernetes-of-another": "fd00::1"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: %s, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv6
ports: [{name: metrics, port: 9090}, {name: https, port: 6443}]
endpoints: [{addresses: [%q]}]
`, name, address))).To(Succeed())
		t.Cleanup(func() { _, _ = env.Kubectl(ctx, "delete", "endpointslice", name, "-n", "default") })
	}
	g.Eventually(func() map[string]any { return settings(g) }).Should(And(
		HaveKeyWithValue("apiServerURL", "https://[fd00::2]:6443"), HaveKeyWithValue("apiServerCA", encoded(string(rest.CAData)))))

	// A ConfigMap and a Secret that a user names arrive byte for byte.
	exact := "# two lines of comment\r\n\n" + other
	g.Expect(admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "authority"}, Data: map[string]string{"ca.crt": exact}})).To(Succeed())
	t.Cleanup(func() { _, _ = env.Kubectl(ctx, "delete", "configmap", "authority", "-n", "default") })
	custom := func(kind, namespace string) string {
		return fmt.Sprintf("{%s, config: {server: {custom: {apiServerUrl: 'https://fleet.example.com', apiServerCaConfigRef: {kind: %s, namespace: %s, name: authority}}}}}", install, kind, namespace)
	}
	ask(g, custom("ConfigMap", "default"))
	g.Eventually(func() map[string]any { return settings(g) }).Should(And(
		HaveKeyWithValue("apiServerURL", "https://fleet.example.com"), HaveKeyWithValue("apiServerCA", encoded(exact))))
	again := authority(t)
	secret(g, "authority", map[string]string{"ca.crt": again})
	ask(g, custom("Secret", fleetNamespace))
	g.Eventually(func() map[string]any { return settings(g) }).Should(HaveKeyWithValue("apiServerCA", encoded(again)))
	secret(g, "authority", map[string]string{"ca.crt": "broken"})
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionFalse, "CAUnusable")).To(ContainSubstring("no certificate in PEM"))
	g.Expect(settings(g)).To(HaveKeyWithValue("apiServerCA", encoded(again)), "the last good one stays")
	installed(g, "0.16.0")
	g.Expect(releases(g)).To(HaveLen(2))
}

// Where another user has installed Fleet, the installer changes only two keys of its settings; where Rancher has, it
// does not even change those.
func TestForeign(t *testing.T) {
	g := fresh(t)
	somebodyInstalls(g, "0.16.0")
	object := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: fleetNamespace, Name: "fleet-controller"}
	g.Expect(admin.Get(ctx, key, object)).To(Succeed())
	before := object.DeepCopy()

	ask(g, "{"+fromRepository("version: 0.16.1")+", config: {server: {custom: {apiServerUrl: 'https://fleet.example.com'}}}}")
	g.Expect(isReported(g, "FleetInstalled", metav1.ConditionFalse, "ForeignRelease")).To(ContainSubstring("adopt-fleet"))
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionTrue, "ConfiguredOutsideRelease")).To(ContainSubstring("put apiServerURL and apiServerCA into its values"))
	g.Expect(releases(g)).To(ConsistOf(
		release{"fleet", fleetNamespace, "1", "deployed", "fleet-0.16.0"}, release{"fleet-crd", fleetNamespace, "1", "deployed", "fleet-crd-0.16.0"}))
	g.Expect(admin.Get(ctx, key, object)).To(Succeed())
	g.Expect(object.Data["config"]).To(Equal(strings.Replace(before.Data["config"], `"apiServerURL": ""`, `"apiServerURL": "https://fleet.example.com"`, 1)))
	g.Expect(object.Labels).To(Equal(before.Labels))
	g.Expect(object.Annotations).To(Equal(before.Annotations))
	g.Expect(config(g).Status.InstalledVersion).To(Equal("0.16.0"))

	// The installer reports a configuration that a user has broken, and leaves it.
	configured := object.Data["config"]
	object.Data["config"] = `{"apiServerURL":`
	g.Expect(admin.Update(ctx, object)).To(Succeed())
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionFalse, "SettingsBroken")).To(ContainSubstring("the installer left ConfigMap"))
	g.Expect(admin.Get(ctx, key, object)).To(Succeed())
	// The user restores the same configuration. If it reverted a write of the installer, the installer would wait.
	object.Data["config"] = configured
	g.Expect(admin.Update(ctx, object)).To(Succeed())
	isReported(g, "FleetConfigured", metav1.ConditionTrue, "ConfiguredOutsideRelease")

	// In Rancher's Fleet, the installer leaves even those keys alone; it changes only the gates, where the spec sets
	// them.
	g.Expect(env.Apply(ctx, fixture.Rancher+`
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: cattle-system, name: rancher-config}
data: {other: stays}
`)).To(Succeed())
	ask(g, "{config: {server: {inferLocal: true}}}")
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionFalse, "ConfigureInRancher")).To(ContainSubstring("the installer left it unchanged"))
	ask(g, "{config: {featureGates: {experimentalOciStorage: false, configMap: {ref: {namespace: cattle-system, name: rancher-config}}}}}")
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionFalse, "FeatureGatesUnwritable")).To(ContainSubstring("has no key fleet"))
	_, err := env.Kubectl(ctx, "patch", "configmap", "rancher-config", "-n", "cattle-system", "--type=merge", "-p", `{"data":{"fleet":"debug: true # mine\n"}}`)
	g.Expect(err).NotTo(HaveOccurred())
	isReported(g, "FleetConfigured", metav1.ConditionTrue, "Configured")
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: "cattle-system", Name: "rancher-config"}, object)).To(Succeed())
	g.Expect(object.Data).To(Equal(map[string]string{"other": "stays", "fleet": "debug: true # mine\nextraEnv:\n    - name: OCI_STORAGE\n      value: \"false\"\nhelmops:\n    enabled: true\n"}))
	_, err = env.Kubectl(ctx, "delete", "namespace", "cattle-system")
	g.Expect(err).NotTo(HaveOccurred())

	// When the user hands Fleet over, the installer upgrades it with its present values.
	ask(g, "{"+fromRepository("version: 0.16.1")+"}")
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "ForeignRelease")
	handOver(g, adoptAnnotation+"=true")
	installed(g, "0.16.1")
}
