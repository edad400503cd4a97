package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/source"
	"github.com/muster-fleet/muster/internal/view/trace"
	"github.com/muster-fleet/muster/test/fixture"
)

const (
	traceLib   = "trace-lib"
	traceClass = "std"
)

// tracedCluster is a Cluster, with the namespace of its class.
type tracedCluster struct {
	namespace, name, class, env string
	inFleet                     bool
}

// tracedBundle is a Bundle, with the Clusters that it should reach. These are stated without Fleet's rules, which
// are under test.
type tracedBundle struct {
	namespace, name, target string
	wants                   func(tracedCluster) bool
	// step is the step of the trace that fails if the Bundle reaches a Cluster's namespace and does not want the
	// Cluster.
	step string
}

func tracedBundles() []tracedBundle {
	const group = traceClass + "." + traceLib
	every := func(tracedCluster) bool { return true }
	isProd := func(c tracedCluster) bool { return c.env == "prod" }
	// A target names a group in the Cluster's namespace, wherever the Bundle is. If the class is in that namespace,
	// its group has the class's bare name.
	ofOwnClass := func(c tracedCluster) bool { return c.class == c.namespace }
	isGrouped := func(c tracedCluster) bool { return c.class == traceLib && c.namespace != traceLib }
	return []tracedBundle{
		{traceLib, "all", "{clusterSelector: {}}", every, trace.StepTarget},
		{traceLib, "prod", "{clusterSelector: {matchLabels: {env: prod}}}", isProd, trace.StepTarget},
		{traceLib, "grouped", "{clusterGroup: " + group + "}", isGrouped, trace.StepTarget},
		{traceLib, "beside", "{clusterGroup: " + traceClass + "}", ofOwnClass, trace.StepTarget},
		{
			traceLib, "prod-group", "{clusterGroup: " + group + ", clusterSelector: {matchLabels: {env: prod}}}",
			func(c tracedCluster) bool { return isGrouped(c) && isProd(c) }, trace.StepTarget,
		},
		{traceLib, "named", "{clusterName: c1}", func(c tracedCluster) bool { return c.name == "c1" }, trace.StepTarget},
		{
			traceLib, "not-dev", "{name: forbidden, clusterSelector: {matchLabels: {env: dev}}, doNotDeploy: true}, {clusterSelector: {}}",
			isProd, trace.StepAllowed,
		},
		{traceLib, "templated", "{clusterSelector: {}, helm: {values: {name: '${ .ClusterValues.Cluster.metadata.name }'}}}", every, trace.StepTarget},
		{"trace-a", "own", "{clusterSelector: {}}", every, trace.StepTarget},
		{"trace-a", "own-class", "{clusterGroup: " + traceClass + "}", ofOwnClass, trace.StepTarget},
	}
}

// TestTrace compares `kubectl muster trace` with Fleet, for every pair of a Bundle and a
// Cluster, before and after Clusters change.
func TestTrace(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec:
  cluster:
    onDeselect: Delete
    namespaceSelector: {matchExpressions: [{key: trace-unselected, operator: DoesNotExist}]}
`)).To(Succeed())
	selected := map[string]bool{traceLib: true, "trace-a": true, "trace-b": true}
	unselect := func(namespace string) {
		kubectl(g, "label", "namespace", namespace, "trace-unselected=")
		delete(selected, namespace)
	}
	namespaces(g, traceLib, "trace-a", "trace-b", "trace-c")
	unselect("trace-c")
	for _, namespace := range []string{traceLib, "trace-a"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf(classYAML, namespace, traceClass))).To(Succeed())
		acceptClass(g, namespace, traceClass)
	}
	for _, bundle := range tracedBundles() {
		bundles(g, bundle.namespace, bundle.name, bundle.target)
	}
	clusters := []*tracedCluster{
		{traceLib, "c1", traceLib, "prod", true}, {traceLib, "c2", "trace-a", "dev", true},
		{"trace-a", "c1", traceLib, "prod", true}, {"trace-a", "c2", "trace-a", "dev", true}, {"trace-a", "c3", traceLib, "prod", false},
		{"trace-b", "c1", "trace-a", "prod", true}, {"trace-b", "c2", "trace-a", "dev", false},
		{"trace-c", "c1", traceLib, "prod", true},
	}
	for _, c := range clusters {
		cluster := fixture.Cluster(c.namespace, c.name, traceClass, c.class)
		cluster.Labels = map[string]string{"env": c.env}
		g.Expect(admin.Create(ctx, cluster)).To(Succeed())
		if c.inFleet {
			g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
		}
	}
	t.Cleanup(func() {
		for _, c := range clusters {
			kubectl(g, "-n", c.namespace, "delete", "clusters.cluster.x-k8s.io", c.name, "--wait=false")
		}
		withDefaults(g)
	})
	isMapped := func(from, to string) bool {
		return slices.ContainsFunc(clusters, func(c *tracedCluster) bool { return c.namespace == to && c.class == from && selected[to] })
	}
	// expected returns the first step that fails for a Bundle and a Cluster, or "" if none does.
	expected := func(bundle tracedBundle, c tracedCluster) string {
		switch {
		case !c.inFleet, !selected[c.namespace]:
			return trace.StepCluster
		case bundle.namespace != c.namespace && !isMapped(bundle.namespace, c.namespace):
			return trace.StepNamespace
		case !bundle.wants(c):
			return bundle.step
		default:
			return ""
		}
	}
	agree := func(t *testing.T) {
		g := NewWithT(t)
		// As trace advises: a Cluster may open a mapping for Bundles that do not want the Cluster itself, and Fleet
		// reconciles those only when they change.
		for _, namespace := range []string{traceLib, "trace-a"} {
			kubectl(g, "-n", namespace, "annotate", "--overwrite", "bundles.fleet.cattle.io", "--all", "reconcile-at="+time.Now().Format("150405.000"))
		}
		counts := map[string]int{}
		all := append(slices.Clone(clusters), &tracedCluster{namespace: "trace-a", name: "absent"})
		g.Eventually(func(g Gomega) {
			clear(counts)
			deployed := allDeployments(g)
			for _, bundle := range tracedBundles() {
				for _, c := range all {
					pair := fmt.Sprintf("%s/%s on %s/%s", bundle.namespace, bundle.name, c.namespace, c.name)
					want := expected(bundle, *c)
					counts[want]++
					g.Expect(deployed[pair]).To(Equal(want == ""), pair)
				}
			}
			for _, bundle := range tracedBundles() {
				for _, c := range all {
					want := expected(bundle, *c)
					got := explain(g, bundle.namespace, bundle.namespace+"/"+bundle.name, c.namespace+"/"+c.name)
					g.Expect(got.FailedStep).To(Equal(want), "%s/%s on %v: %+v", bundle.namespace, bundle.name, *c, got)
					g.Expect(got.Verdict == trace.Targeted).To(Equal(want == ""))
					g.Expect(got.Deployed != nil).To(Equal(want == ""))
				}
			}
		}).WithTimeout(2 * soon).WithPolling(time.Second).Should(Succeed())
		t.Logf("pairs, by the step that fails: %v", counts)
		g.Expect(len(counts)).To(BeNumerically(">=", 4), "too few steps fail")
	}
	t.Run("at first", agree)
	for _, c := range clusters[2:4] {
		c.env = map[string]string{"prod": "dev", "dev": "prod"}[c.env]
		kubectl(g, "-n", c.namespace, "label", "--overwrite", "clusters.cluster.x-k8s.io", c.name, "env="+c.env)
	}
	g.Expect(fixture.Initialize(ctx, admin, getCluster(g, types.NamespacedName{Namespace: "trace-a", Name: "c3"}))).To(Succeed())
	clusters[4].inFleet = true
	unselect("trace-b")
	// Muster reverts this.
	kubectl(g, "-n", traceLib, "label", "--overwrite", "clusters.fleet.cattle.io", "c1", "env=forged")
	t.Run("changed", agree)
}

// allDeployments returns what Fleet deploys where, by the labels of its BundleDeployments.
func allDeployments(g Gomega) map[string]bool {
	list := &fleetv1.BundleDeploymentList{}
	g.Expect(admin.List(ctx, list)).To(Succeed())
	result := map[string]bool{}
	for _, one := range list.Items {
		result[fmt.Sprintf("%s/%s on %s/%s", one.Labels[fleetv1.BundleNamespaceLabel], one.Labels[fleetv1.BundleLabel],
			one.Labels[fleetv1.ClusterNamespaceLabel], one.Labels[fleetv1.ClusterLabel])] = true
	}
	return result
}

// explain runs trace in a namespace.
func explain(g Gomega, namespace, bundle, cluster string) *trace.Trace {
	in, err := source.Trace(ctx, admin, namespace, bundle, cluster)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(in).To(HaveLen(1))
	return trace.Explain(in[0])
}

// needAction returns the Bundles for the Clusters of a namespace that need action, with the reason, as `kubectl muster
// check` shows them.
func needAction(g Gomega, namespace string) []string {
	objects, err := source.Read(ctx, admin, source.Scope{})
	g.Expect(err).NotTo(HaveOccurred())
	graph := view.Build(objects)
	for _, root := range graph.Roots {
		root.Children = slices.DeleteFunc(root.Children, func(of *view.Node) bool { return of.Name != namespace })
	}
	inspection, err := source.Inspect(ctx, admin, source.Scope{}, objects, graph)
	g.Expect(err).NotTo(HaveOccurred())
	problems, notes, err := inspection.Problems(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(notes).To(BeEmpty())
	var result []string
	for _, problem := range problems {
		result = append(result, problem.Key()+" "+problem.Reason)
	}
	return result
}

// TestTraceBlocked checks trace for a Bundle that one Cluster blocks for all Clusters, and for a deployment that is
// left over because Fleet does not watch mappings.
func TestTraceBlocked(t *testing.T) {
	g := NewWithT(t)
	namespaces(g, "blocked-lib", "blocked")
	for name, value := range map[string]string{"with": "{zone: a}", "without": "{}"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: blocked, name: %s, labels: {a: b}}
spec: {clientID: %s, templateValues: %s}
`, name, name, value))).To(Succeed())
	}
	mapping := `{apiVersion: fleet.cattle.io/v1alpha1, kind: BundleNamespaceMapping, metadata: {namespace: blocked-lib, name: by-hand}, bundleSelector: {}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: blocked}}}`
	g.Expect(env.Apply(ctx, mapping)).To(Succeed())
	g.Eventually(func(g Gomega) {
		for _, name := range []string{"with", "without"} {
			g.Expect(fleetNamespace(g, types.NamespacedName{Namespace: "blocked", Name: name})).NotTo(BeEmpty())
		}
	}).Should(Succeed())
	bundles(g, "blocked-lib", "zoned", "{clusterSelector: {}, helm: {values: {zone: '${ .ClusterValues.zone }'}}}")
	bundles(g, "blocked-lib", "plain", "{clusterSelector: {}}")
	g.Eventually(func(g Gomega) {
		bundle := &fleetv1.Bundle{}
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: "blocked-lib", Name: "zoned"}, bundle)).To(Succeed())
		g.Expect(fmt.Sprint(bundle.Status.Conditions)).To(ContainSubstring("targeting error"))
		g.Expect(deployments(g, types.NamespacedName{Namespace: "blocked", Name: "with"})).To(ContainElement("blocked-lib/plain"))
	}).WithTimeout(soon).Should(Succeed())
	explain := func(bundle, cluster string) *trace.Trace { return explain(g, "blocked", bundle, cluster) }
	for _, name := range []string{"with", "without"} {
		got := explain("blocked-lib/zoned", name)
		g.Expect(got.Verdict).To(Equal(trace.Blocked), name)
		g.Expect(got.FailedStep).To(Equal(trace.StepError))
		g.Expect(got.Deployed).To(BeNil())
	}
	g.Expect(explain("plain", "with").Verdict).To(Equal(trace.Targeted))
	g.Expect(needAction(g, "blocked")).To(Equal([]string{"blocked-lib/zoned TargetingError"}), "the others wait for agents")

	// Fleet gives two Bundles of one name the same BundleDeployment.
	bundles(g, "blocked-lib", "twin", "{clusterSelector: {}}")
	bundles(g, "blocked", "twin", "{clusterSelector: {}}")
	g.Eventually(func(g Gomega) {
		g.Expect(needAction(g, "blocked")).To(Equal([]string{"blocked-lib/twin SameName", "blocked-lib/zoned TargetingError"}))
		lib, own := explain("blocked-lib/twin", "with"), explain("blocked/twin", "with")
		if lib.FailedStep == "" {
			lib, own = own, lib
		}
		g.Expect(lib.FailedStep).To(Equal(trace.StepName))
		g.Expect(lib.Conclusion).To(ContainSubstring("belongs to Bundle " + own.Bundle))
		g.Expect(own.Deployed).NotTo(BeNil())
		g.Expect(fmt.Sprint(own.Steps)).To(ContainSubstring("Bundle " + lib.Bundle + " has the same name"))
	}).WithTimeout(soon).Should(Succeed())

	kubectl(g, "-n", "blocked-lib", "delete", "bundlenamespacemapping", "by-hand")
	got := explain("blocked-lib/plain", "with")
	g.Expect(got.Verdict).To(Equal(trace.NotTargeted))
	g.Expect(got.FailedStep).To(Equal(trace.StepNamespace))
	g.Expect(got.Deployed).NotTo(BeNil(), "Fleet does not watch mappings")
	_, command, found := strings.Cut(got.Do, "To make Fleet look now: ")
	g.Expect(found).To(BeTrue(), got.Do)
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = shell.Run(ctx, env.Kubeconfig, command)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() *trace.Deployed { return explain("blocked-lib/plain", "with").Deployed }).WithTimeout(soon).Should(BeNil())
}
