package hold

import (
	"encoding/base64"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
)

const configMapTemplate = `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-for, namespace: {{ .Release.Namespace }}}
data: {version: {{ .Values.version | quote }}}
`

// addOn is a HelmChartProxy for one Cluster, whose values are those for one version of Kubernetes.
func addOn(name, cluster, version string) string {
	return fmt.Sprintf(`
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  clusterSelector: {matchLabels: {addon: %[5]s}}
  repoURL: %[3]s
  chartName: addon
  releaseName: %[2]s
  namespace: addons
  version: 1.0.0
  options: {wait: true, timeout: 2m, install: {createNamespace: true}}
  valuesTemplate: 'version: {{ %[4]s }}'
  credentials: {secret: {name: repository}, key: config.json}
  tlsConfig: {caSecret: {name: repository}}
`, team, name, charts.URL, version, cluster)
}

// upgraded is a Cluster that the tests upgrade.
type upgraded struct{ name string }

func (c upgraded) yaml(number int, version, annotations string) string {
	return fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: %s, labels: {addon: %[2]s}, annotations: {%[5]s}}
spec:
  clusterNetwork:
    pods: {cidrBlocks: [10.%[3]d.0.0/16]}
    services: {cidrBlocks: [10.128.0.0/12]}
  topology:
    classRef: {name: standard, namespace: classes}
    version: %[4]s
    controlPlane: {replicas: 1}
    workers: {machineDeployments: [{class: default-worker, name: md-0, replicas: 1}]}
`, team, c.name, number, version, annotations)
}

func (c upgraded) key() types.NamespacedName {
	return types.NamespacedName{Namespace: team, Name: c.name}
}

func (c upgraded) live(g Gomega) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, c.key(), cluster)).To(Succeed())
	return cluster
}

// setVersion changes the version as a user does, and returns the hold that the answer has.
func (c upgraded) setVersion(g Gomega, version string) string {
	cluster := c.live(g)
	patch := fmt.Sprintf(`{"spec":{"topology":{"version":%q}}}`, version)
	g.Expect(admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
	return cluster.Annotations[stamp.HookAnnotation]
}

// says expects a status and reason of the condition about holds.
func (c upgraded) says(g Gomega, state string) {
	its := conditions.Get(c.live(g), addonsv1.FleetUpgradeHeldCondition)
	g.Expect(its).NotTo(BeNil())
	g.Expect(fmt.Sprintf("%s %s", its.Status, its.Reason)).To(Equal(state), its.Message)
}

// controlPlane returns the control plane's version, as Cluster API asks for it.
func (c upgraded) controlPlane(g Gomega) string {
	its := &unstructured.Unstructured{}
	its.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
	its.SetKind("HostControlPlane")
	g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: team, Name: c.live(g).Spec.ControlPlaneRef.Name}, its)).To(Succeed())
	version, _, _ := unstructured.NestedString(its.Object, "spec", "version")
	return version
}

// deployed returns the version for which the add-on on the cluster is.
func (c upgraded) deployed(g Gomega) string {
	out, err := env.HostedKubectl(ctx, team, c.name, "-n", "addons", "get", "configmap", c.name+"-for", "-o", "jsonpath={.data.version}")
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// isAtRest waits until the Cluster is imported, and its add-on is there for this version.
func (c upgraded) isAtRest(g Gomega, version string) {
	g.Eventually(func(g Gomega) {
		g.Expect(c.deployed(g)).To(Equal(version))
		c.says(g, "False NoUpgrade")
		g.Expect(conditions.IsTrue(c.live(g), "FleetBundlesReady")).To(BeTrue())
	}).WithTimeout(4 * time.Minute).Should(Succeed())
}

// clock notes when something first happens, by events.
type clock struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (c *clock) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[what].IsZero() {
		c.seen[what] = time.Now()
	}
}

func (c *clock) at(what string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[what]
}

// watch notes when the add-on is ready with something else than now, and when a hold begins and ends.
func (c upgraded) watch(t *testing.T, g Gomega) *clock {
	t.Helper()
	its := &clock{seen: map[string]time.Time{}}
	before := map[string]string{}
	var deployments fleetv1.BundleDeploymentList
	of := client.MatchingLabels{fleetv1.ClusterLabel: c.name}
	g.Expect(admin.List(ctx, &deployments, of)).To(Succeed())
	for i := range deployments.Items {
		before[deployments.Items[i].Name] = deployments.Items[i].Spec.DeploymentID
	}
	bundles, err := admin.Watch(ctx, &fleetv1.BundleDeploymentList{}, of)
	g.Expect(err).NotTo(HaveOccurred())
	clusters, err := admin.Watch(ctx, &clusterv1.ClusterList{}, client.InNamespace(team))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		bundles.Stop()
		clusters.Stop()
	})
	go func() {
		for event := range bundles.ResultChan() {
			if is, ok := event.Object.(*fleetv1.BundleDeployment); ok && is.Spec.DeploymentID != before[is.Name] &&
				is.Status.AppliedDeploymentID == is.Spec.DeploymentID && is.Status.Ready {
				its.note("ready")
			}
		}
	}()
	go func() {
		for event := range clusters.ResultChan() {
			is, ok := event.Object.(*clusterv1.Cluster)
			if !ok || is.Name != c.name {
				continue
			}
			if _, held := is.Annotations[stamp.HookAnnotation]; held {
				its.note("held")
			} else if !its.at("held").IsZero() {
				its.note("released")
			}
		}
	}()
	return its
}

// tell prints the state of a Cluster if the test fails.
func (c upgraded) tell(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, args := range [][]string{
			{"get", "clusters.cluster.x-k8s.io", c.name, "-o", "yaml"}, {"get", "hostcontrolplanes,machines,machinedeployments,hcp,hrp,clusters.fleet.cattle.io"},
			{"get", "bundledeployments", "-A"}, {"get", "events"},
		} {
			t.Log(env.Kubectl(ctx, append([]string{"-n", team}, args...)...))
		}
		t.Log(env.HostedKubectl(ctx, team, c.name, "get", "nodes,pods,events", "-A"))
	})
}

func prepareCharts(g Gomega) {
	g.Expect(charts.Publish("addon", "1.0.0", map[string]string{"configmap.yaml": configMapTemplate})).To(Succeed())
	data := charts.Secret()
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: repository}
data: {config.json: %s, ca.crt: %s}
`, team, base64.StdEncoding.EncodeToString(data["config.json"]), base64.StdEncoding.EncodeToString(data["ca.crt"])))).To(Succeed())
}

// TestHold upgrades a Cluster. Cluster API waits until the add-on for the new version is ready, and goes on then.
func TestHold(t *testing.T) {
	g := NewWithT(t)
	prepareCharts(g)
	one := upgraded{"one"}
	one.tell(t)
	g.Expect(env.Apply(ctx, one.yaml(200, "v1.35.0", stamp.HoldAnnotation+": 10m, "+unchecked+`: ""`))).To(Succeed())
	g.Expect(env.Apply(ctx, addOn("one", "one", ".Cluster.spec.topology.version"))).To(Succeed())
	g.Expect(env.Apply(ctx, addOn("major", "one", ".Cluster.spec.topology.version | trunc 2"))).To(Succeed()) // It stays v1.
	one.isAtRest(g, "v1.35.0")
	t.Run("without muster-helm, it waits for the values", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(env.Stop(ctx, "muster-helm")).To(Succeed())
		defer func() { g.Expect(env.Start(ctx, "muster-helm")).To(Succeed()) }()
		g.Expect(one.setVersion(g, "v1.36.3")).NotTo(BeEmpty())
		g.Eventually(func(g Gomega) {
			g.Expect(conditions.GetMessage(one.live(g), addonsv1.FleetUpgradeHeldCondition)).To(ContainSubstring("not ready: HelmChartProxy major, HelmChartProxy one"))
		}).Should(Succeed())
		g.Consistently(func(g Gomega) { one.says(g, "True WaitingForAddOns") }).WithTimeout(10 * time.Second).Should(Succeed())
		t.Log(conditions.GetMessage(one.live(g), addonsv1.FleetUpgradeHeldCondition))
		g.Expect(one.setVersion(g, "v1.35.0")).To(BeEmpty(), "it is changed back")
		g.Eventually(func(g Gomega) { one.says(g, "False Reverted") }).Should(Succeed())
	})

	seen := one.watch(t, g)
	began, isHold := hold.Parse(one.setVersion(g, "v1.36.3"))
	g.Expect(isHold).To(BeTrue(), "the answer carries the hold")
	g.Expect(began.From).To(Equal("v1.35.0"))
	g.Eventually(func(g Gomega) { one.says(g, "True WaitingForAddOns") }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		its := conditions.Get(one.live(g), clusterv1.ClusterTopologyReconciledCondition)
		g.Expect(its).NotTo(BeNil())
		g.Expect(its.Message).To(ContainSubstring(stamp.HookAnnotation), "Cluster API says what it waits for")
		t.Logf("Cluster API: %s", its.Message)
	}).Should(Succeed())
	g.Expect(one.controlPlane(g)).To(Equal("v1.35.0"))

	g.Eventually(func(g Gomega) { g.Expect(seen.at("released")).NotTo(BeZero()) }).Should(Succeed())
	g.Expect(one.deployed(g)).To(Equal("v1.36.3"), "the add-on comes first")
	g.Expect(seen.at("ready")).NotTo(BeZero())
	t.Logf("held for %s; released %s after the add-on was ready",
		seen.at("released").Sub(seen.at("held")).Round(10*time.Millisecond), seen.at("released").Sub(seen.at("ready")).Round(10*time.Millisecond))
	g.Eventually(func(g Gomega) {
		one.says(g, "False AddOnsReady")
		g.Expect(one.controlPlane(g)).To(Equal("v1.36.3"))
	}).Should(Succeed())
	t.Log("Cluster API has upgraded the control plane")
}
