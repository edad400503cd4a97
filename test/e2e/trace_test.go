package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/picture/source"
	"github.com/muster-fleet/muster/internal/picture/trace"
	"github.com/muster-fleet/muster/test/fixture"
)

const (
	traceLib   = "trace-lib"
	traceClass = "std"
)

// tracePlaces are where Clusters are made; the class is in the first and in the second.
var tracePlaces = []string{traceLib, "trace-a", "trace-b"}

// tracedBundle is a Bundle, and which Clusters it is for, said without the rules of Fleet
// that are tested: by what the operations below did.
type tracedBundle struct {
	namespace, name, target string
	wants                   func(tracedCluster) bool
	// step is the step that fails where the Cluster is reached and not wanted.
	step string
}

// tracedCluster is what the operations made of a Cluster.
type tracedCluster struct {
	key     types.NamespacedName
	class   string // its namespace
	env     string
	inFleet bool
}

func tracedBundles() []tracedBundle {
	// A target names a group of the Cluster's namespace, wherever the Bundle is: there, that
	// of the class beside the Cluster has the class's bare name.
	ofOwnClass := func(c tracedCluster) bool { return c.class == c.key.Namespace }
	group := traceClass + "." + traceLib
	return []tracedBundle{
		{traceLib, "all", "{clusterSelector: {}}", func(tracedCluster) bool { return true }, trace.StepTarget},
		{traceLib, "prod", "{clusterSelector: {matchLabels: {env: prod}}}", func(c tracedCluster) bool { return c.env == "prod" }, trace.StepTarget},
		{traceLib, "grouped", fmt.Sprintf("{clusterGroup: %s}", group), func(c tracedCluster) bool { return c.class == traceLib && c.key.Namespace != traceLib }, trace.StepTarget},
		{traceLib, "beside", fmt.Sprintf("{clusterGroup: %s}", traceClass), ofOwnClass, trace.StepTarget},
		{
			traceLib, "prod-group", fmt.Sprintf("{clusterGroup: %s, clusterSelector: {matchLabels: {env: prod}}}", group),
			func(c tracedCluster) bool {
				return c.class == traceLib && c.key.Namespace != traceLib && c.env == "prod"
			}, trace.StepTarget,
		},
		{traceLib, "named", "{clusterName: c1}", func(c tracedCluster) bool { return c.key.Name == "c1" }, trace.StepTarget},
		{
			traceLib, "not-dev", "{name: forbidden, clusterSelector: {matchLabels: {env: dev}}, doNotDeploy: true}\n  - {clusterSelector: {}}",
			func(c tracedCluster) bool { return c.env != "dev" }, trace.StepAllowed,
		},
		{
			traceLib, "templated", "clusterSelector: {}\n    helm: {values: {name: '${ .ClusterValues.Cluster.metadata.name }'}}",
			func(tracedCluster) bool { return true }, trace.StepTarget,
		},
		{"trace-a", "own", "{clusterSelector: {}}", func(tracedCluster) bool { return true }, trace.StepTarget},
		{"trace-a", "own-class", fmt.Sprintf("{clusterGroup: %s}", traceClass), ofOwnClass, trace.StepTarget},
	}
}

// walk is a walk through states, by operations drawn at random.
type walk struct {
	*testing.T
	rng      *rand.Rand
	clusters map[types.NamespacedName]*tracedCluster
	selected map[string]bool // by namespace
	program  string
	counts   map[string]int
}

// TestTrace holds `kubectl muster trace` against Fleet: for pairs of Bundle and Cluster
// drawn at random, while Clusters come and go and are changed.
func TestTrace(t *testing.T) {
	g := NewWithT(t)
	seed := uint64(1)
	if text := os.Getenv("MUSTER_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		g.Expect(err).NotTo(HaveOccurred())
	}
	w := &walk{
		T: t, rng: rand.New(rand.NewPCG(seed, 0)), clusters: map[types.NamespacedName]*tracedCluster{},
		selected: map[string]bool{}, counts: map[string]int{}, program: env.Program("kubectl-muster"),
	}
	w.setUp(g)
	t.Cleanup(func() { w.leaveNothing() })
	const rounds, steps, pairs = 8, 4, 8
	for round := range rounds {
		var done []string
		for range steps {
			done = append(done, w.step(g))
		}
		t.Logf("round %d: %s", round, strings.Join(done, "; "))
		w.rest(g)
		for range pairs {
			w.draw(g)
		}
	}
	t.Logf("seed %d: %v", seed, w.counts)
	targeted, not := w.counts["targeted"], w.counts["not targeted"]
	if targeted < 10 || not < 10 || len(w.counts) < 5 {
		t.Errorf("%d pairs were targeted and %d not, for reasons %v: too few to say anything", targeted, not, w.counts)
	}
}

func (w *walk) setUp(g Gomega) {
	w.Helper()
	g.Expect(env.Apply(ctx, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec:
  cluster:
    onDeselect: Delete
    namespaceSelector: {matchExpressions: [{key: trace-unselected, operator: DoesNotExist}]}
`)).To(Succeed())
	for _, namespace := range tracePlaces {
		g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))).To(Succeed())
		w.selected[namespace] = true
	}
	for _, namespace := range tracePlaces[:2] {
		g.Expect(env.Apply(ctx, fmt.Sprintf(classYAML, namespace, traceClass))).To(Succeed())
		acceptClass(g, namespace, traceClass)
	}
	for _, bundle := range tracedBundles() {
		bundles(g, bundle.namespace, bundle.name, bundle.target)
	}
}

// leaveNothing takes away what was made, so that other tests find what they expect.
func (w *walk) leaveNothing() {
	for key := range w.clusters {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := client.IgnoreNotFound(admin.Delete(ctx, cluster)); err != nil {
			w.Error(err)
		}
	}
	config := fixture.Config()
	if err := client.IgnoreNotFound(admin.Delete(ctx, config)); err != nil {
		w.Error(err)
	}
}

// step does one operation and says which.
func (w *walk) step(g Gomega) string {
	operations := []func(Gomega) string{w.create, w.create, w.create, w.initialize, w.initialize, w.relabel, w.relabel, w.delete, w.toggle, w.rebase, w.foreign}
	for {
		if done := operations[w.rng.IntN(len(operations))](g); done != "" {
			return done
		}
	}
}

// any returns one of the Clusters there are, or nil.
func (w *walk) any(want func(*tracedCluster) bool) *tracedCluster {
	var all []*tracedCluster
	for _, cluster := range w.clusters {
		if want(cluster) {
			all = append(all, cluster)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *tracedCluster) int { return strings.Compare(a.key.String(), b.key.String()) })
	return all[w.rng.IntN(len(all))]
}

func (w *walk) create(g Gomega) string {
	key := types.NamespacedName{Namespace: tracePlaces[w.rng.IntN(3)], Name: fmt.Sprintf("c%d", 1+w.rng.IntN(3))}
	if w.clusters[key] != nil {
		return ""
	}
	class := tracePlaces[w.rng.IntN(2)]
	made := &tracedCluster{key: key, class: class, env: []string{"prod", "dev"}[w.rng.IntN(2)]}
	cluster := fixture.Cluster(key.Namespace, key.Name, traceClass, class)
	cluster.Labels = map[string]string{"env": made.env}
	if err := admin.Create(ctx, cluster); err != nil {
		g.Expect(err).NotTo(HaveOccurred())
	}
	w.clusters[key] = made
	if w.rng.IntN(3) > 0 {
		g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
		made.inFleet = true
	}
	return fmt.Sprintf("create %s of %s, env=%s, initialized=%v", key, class, made.env, made.inFleet)
}

func (w *walk) initialize(g Gomega) string {
	cluster := w.any(func(c *tracedCluster) bool { return !c.inFleet })
	if cluster == nil {
		return ""
	}
	g.Expect(fixture.Initialize(ctx, admin, getCluster(g, cluster.key))).To(Succeed())
	cluster.inFleet = true
	return "initialize " + cluster.key.String()
}

func (w *walk) relabel(g Gomega) string {
	cluster := w.any(func(*tracedCluster) bool { return true })
	if cluster == nil {
		return ""
	}
	cluster.env = map[string]string{"prod": "dev", "dev": "prod"}[cluster.env]
	w.patch(g, getCluster(g, cluster.key), map[string]any{"metadata": map[string]any{"labels": map[string]any{"env": cluster.env}}})
	return fmt.Sprintf("relabel %s env=%s", cluster.key, cluster.env)
}

func (w *walk) patch(g Gomega, object client.Object, patch map[string]any) {
	text, err := json.Marshal(patch)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Patch(ctx, object, client.RawPatch(types.MergePatchType, text))).To(Succeed())
}

func (w *walk) delete(g Gomega) string {
	cluster := w.any(func(*tracedCluster) bool { return true })
	if cluster == nil || len(w.clusters) < 3 {
		return ""
	}
	live := getCluster(g, cluster.key)
	g.Expect(admin.Delete(ctx, live)).To(Succeed())
	// Cluster API waits for objects that never were.
	w.patch(g, live, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	g.Eventually(func() bool {
		return client.IgnoreNotFound(admin.Get(ctx, cluster.key, &clusterv1.Cluster{})) == nil && admin.Get(ctx, cluster.key, &clusterv1.Cluster{}) != nil
	}).Should(BeTrue())
	delete(w.clusters, cluster.key)
	return "delete " + cluster.key.String()
}

// toggle selects a namespace, or does no longer.
func (w *walk) toggle(g Gomega) string {
	namespace := &corev1.Namespace{}
	namespace.Name = tracePlaces[1+w.rng.IntN(2)]
	var value any = "yes"
	if !w.selected[namespace.Name] {
		value = nil
	}
	w.patch(g, namespace, map[string]any{"metadata": map[string]any{"labels": map[string]any{"trace-unselected": value}}})
	w.selected[namespace.Name] = value == nil
	return fmt.Sprintf("select %s: %v", namespace.Name, value == nil)
}

// rebase has a Cluster use the class of the other namespace.
func (w *walk) rebase(g Gomega) string {
	cluster := w.any(func(*tracedCluster) bool { return true })
	if cluster == nil {
		return ""
	}
	other := map[string]string{tracePlaces[0]: tracePlaces[1], tracePlaces[1]: tracePlaces[0]}[cluster.class]
	text := fmt.Sprintf(`{"spec":{"topology":{"classRef":{"name":%q,"namespace":%q}}}}`, traceClass, other)
	if err := admin.Patch(ctx, getCluster(g, cluster.key), client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
		w.Logf("Cluster API refuses a rebase: %v", err)
		return ""
	}
	cluster.class = other
	return fmt.Sprintf("rebase %s to %s", cluster.key, other)
}

// foreign has somebody change a Fleet Cluster, which Muster puts right.
func (w *walk) foreign(g Gomega) string {
	cluster := w.any(func(c *tracedCluster) bool { return c.inFleet && w.selected[c.key.Namespace] })
	if cluster == nil {
		return ""
	}
	fleet := &fleetv1.Cluster{}
	if err := admin.Get(ctx, cluster.key, fleet); err != nil {
		return ""
	}
	w.patch(g, fleet, map[string]any{"metadata": map[string]any{"labels": map[string]any{"env": "forged"}}})
	return "relabel Fleet Cluster " + cluster.key.String()
}

// expected returns what is right of a Bundle and a Cluster, by what the operations did: the
// first step that fails, or "" if none does.
func (w *walk) expected(bundle tracedBundle, key types.NamespacedName) string {
	cluster := w.clusters[key]
	switch {
	case cluster == nil, !cluster.inFleet, !w.selected[key.Namespace]:
		return trace.StepCluster
	case bundle.namespace != key.Namespace && !w.isMapped(bundle.namespace, key.Namespace):
		return trace.StepNamespace
	case !bundle.wants(*cluster):
		return bundle.step
	default:
		return ""
	}
}

// isMapped reports whether any Cluster of a namespace brings the Bundles of another there.
func (w *walk) isMapped(from, to string) bool {
	for key, cluster := range w.clusters {
		if key.Namespace == to && cluster.class == from && w.selected[to] {
			return true
		}
	}
	return false
}

// keys are the Clusters that may exist.
func (w *walk) keys() []types.NamespacedName {
	var keys []types.NamespacedName
	for _, namespace := range tracePlaces {
		for i := range 3 {
			keys = append(keys, types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("c%d", i+1)})
		}
	}
	return keys
}

// rest waits until Fleet has done, for all pairs, what is right. That is not what is tested
// here, but where trace is asked.
func (w *walk) rest(g Gomega) {
	w.Helper()
	begin, asked := time.Now(), map[tracedKey]bool{}
	g.Eventually(func() error {
		var wrong []error
		for _, bundle := range tracedBundles() {
			for _, key := range w.keys() {
				is, err := isDeployed(bundle, key)
				if want := w.expected(bundle, key) == ""; err != nil || is != want {
					wrong = append(wrong, fmt.Errorf("%s/%s on %s: deployed %v, want %v, %w", bundle.namespace, bundle.name, key, is, want, errOf(err)))
					if place := (tracedKey{bundle.namespace, bundle.name}); want && bundle.namespace != key.Namespace && !asked[place] && time.Since(begin) > patience {
						asked[place] = true
						w.lookAgain(g, place)
					}
				}
			}
		}
		return errors.Join(wrong...)
	}).WithTimeout(2 * soon).WithPolling(time.Second).Should(Succeed())
}

// tracedKey names a Bundle.
type tracedKey struct{ namespace, name string }

// patience is how long Fleet is waited for before it is asked to look again.
const patience = 15 * time.Second

// lookAgain does what trace advises. A Cluster may bring a mapping to a namespace without
// being wanted itself by all Bundles that it leads there: those Fleet looks at only when
// they change, or a Cluster that they want does.
func (w *walk) lookAgain(g Gomega, key tracedKey) {
	w.Logf("Fleet is asked to look again at %s/%s", key.namespace, key.name)
	bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.name}}
	w.patch(g, bundle, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"looked-at": time.Now().Format(time.RFC3339Nano)}}})
}

var errNone = errors.New("no error")

func errOf(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// isDeployed asks Fleet, by the labels of its BundleDeployments.
func isDeployed(bundle tracedBundle, key types.NamespacedName) (bool, error) {
	list := &fleetv1.BundleDeploymentList{}
	err := admin.List(ctx, list, client.MatchingLabels{
		fleetv1.BundleLabel: bundle.name, fleetv1.BundleNamespaceLabel: bundle.namespace,
		fleetv1.ClusterLabel: key.Name, fleetv1.ClusterNamespaceLabel: key.Namespace,
	})
	return len(list.Items) > 0, err
}

// draw asks for one pair, and compares the answer with what Fleet did.
func (w *walk) draw(g Gomega) {
	w.Helper()
	all := tracedBundles()
	bundle, keys := all[w.rng.IntN(len(all))], w.keys()
	key := keys[w.rng.IntN(len(keys))]
	if w.rng.IntN(2) == 0 { // Half of them among those that can be targeted.
		if known := w.any(func(c *tracedCluster) bool { return c.inFleet && w.selected[c.key.Namespace] }); known != nil {
			key = known.key
		}
	}
	got, err := w.ask(bundle.namespace+"/"+bundle.name, key.String())
	g.Expect(err).NotTo(HaveOccurred())
	deployed, err := isDeployed(bundle, key)
	g.Expect(err).NotTo(HaveOccurred())
	want := w.expected(bundle, key)
	if (got.Verdict == trace.Targeted) != deployed || (got.Deployed != nil) != deployed || got.FailedStep != want {
		text, _ := json.MarshalIndent(got, "", "  ")
		w.Errorf("%s/%s on %s: Fleet has deployed it: %v; the step that fails is %q:\n%s", bundle.namespace, bundle.name, key, deployed, want, text)
	}
	if deployed {
		w.counts["targeted"]++
	} else {
		w.counts["not targeted"]++
		w.counts["failed at "+got.FailedStep]++
	}
}

// ask asks as a person does.
func (w *walk) ask(bundle, cluster string) (*trace.Trace, error) {
	cmd := exec.Command(w.program, "trace", bundle, cluster, "-o", "json", "--kubeconfig="+env.Kubeconfig)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	result := &trace.Trace{}
	return result, json.Unmarshal(out, result)
}

// TestTraceBlocked holds what trace says of a Bundle that one Cluster stops for all, and of
// one that is left over because Fleet does not watch mappings.
func TestTraceBlocked(t *testing.T) {
	g := NewWithT(t)
	for _, namespace := range []string{"blocked-lib", "blocked"} {
		g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))).To(Succeed())
	}
	for _, name := range []string{"with", "without"} {
		value := "{}"
		if name == "with" {
			value = "{zone: a}"
		}
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
	bundles(g, "blocked-lib", "zoned", "clusterSelector: {}\n    helm: {values: {zone: '${ .ClusterValues.zone }'}}")
	bundles(g, "blocked-lib", "plain", "{clusterSelector: {}}")
	g.Eventually(func(g Gomega) {
		bundle := &fleetv1.Bundle{}
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: "blocked-lib", Name: "zoned"}, bundle)).To(Succeed())
		g.Expect(fmt.Sprint(bundle.Status.Conditions)).To(ContainSubstring("targeting error"))
		g.Expect(deployments(g, types.NamespacedName{Namespace: "blocked", Name: "with"})).To(ContainElement("blocked-lib/plain"))
	}).WithTimeout(soon).Should(Succeed())
	explain := func(bundle, cluster string) *trace.Trace {
		in, err := source.Trace(ctx, admin, "blocked", bundle, cluster)
		g.Expect(err).NotTo(HaveOccurred())
		return trace.Explain(in)
	}
	for _, name := range []string{"with", "without"} {
		got := explain("blocked-lib/zoned", name)
		g.Expect(got.Verdict).To(Equal(trace.Blocked), name)
		g.Expect(got.FailedStep).To(Equal(trace.StepValues))
		g.Expect(got.Deployed).To(BeNil())
	}
	g.Expect(explain("plain", "with").Verdict).To(Equal(trace.Targeted))

	mapped := &fleetv1.BundleNamespaceMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "blocked-lib", Name: "by-hand"}}
	g.Expect(admin.Delete(ctx, mapped)).To(Succeed())
	got := explain("blocked-lib/plain", "with")
	g.Expect(got.Verdict).To(Equal(trace.NotTargeted))
	g.Expect(got.FailedStep).To(Equal(trace.StepNamespace))
	g.Expect(got.Deployed).NotTo(BeNil(), "Fleet does not watch mappings")
	_, command, found := strings.Cut(got.Do, "To have it look now: ")
	g.Expect(found).To(BeTrue(), got.Do)
	out, err := runAsPerson(command)
	g.Expect(err).NotTo(HaveOccurred(), out)
	g.Eventually(func() *trace.Deployed { return explain("blocked-lib/plain", "with").Deployed }).WithTimeout(soon).Should(BeNil())
}

// runAsPerson runs a line of a shell with kubectl on the path.
func runAsPerson(line string) (string, error) {
	cmd := exec.Command("bash", "-c", line)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+env.Kubeconfig, "PATH="+filepath.Dir(env.Program("kubectl"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
