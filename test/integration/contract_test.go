package integration

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// provider is an infrastructure provider that Muster does not know. The API server serves its kind in two versions,
// and the labels of its CRD say which of them Cluster API reads.
type provider struct{ kind, plural string }

const providerGroup = "infrastructure.cluster.x-k8s.io"

func (p provider) crd() *unstructured.Unstructured { return crdOf(p.plural + "." + providerGroup) }

// install creates the CRD, and deletes it when the test ends.
func (p provider) install(t *testing.T, g Gomega) *unstructured.Unstructured {
	t.Helper()
	const version = "{name: %s, served: true, storage: %t, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}"
	crd := object(g, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.%[2]s, labels: {cluster.x-k8s.io/v1beta1: v1beta1}}
spec:
  group: %[2]s
  scope: Namespaced
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[1]s, singular: %[4]s}
  versions: [%[5]s, %[6]s]
`, p.plural, providerGroup, p.kind, p.plural[:len(p.plural)-1], fmt.Sprintf(version, "v1beta1", true), fmt.Sprintf(version, "v1beta2", false)))
	create(g, crd)
	t.Cleanup(func() { remove(NewWithT(t), p.crd()) })
	return crd
}

// allow lets the syncer read the kind, as the documentation tells operators to, and waits until the syncer may.
func (p provider) allow(t *testing.T, g Gomega) {
	t.Helper()
	role := named(&rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{may(providerGroup, p.plural, "get", "list", "watch")}}, "", "read-"+p.plural)
	role.Labels = map[string]string{"fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer": "true"}
	create(g, role)
	t.Cleanup(func() {
		// The kind goes first: without the right to read it, the syncer's watch would be refused.
		g := NewWithT(t)
		remove(g, p.crd())
		p.isWatched(g, "v1beta1", 0)
		p.isWatched(g, "v1beta2", 0)
		provoked.Store(p.plural, true) // The syncer may try once more before it has seen that the kind is gone.
		remove(g, role)
	})
	knows(g, rbacv1.Subject{Kind: rbacv1.UserKind, Name: stack.ServiceAccount("muster-system", syncerProcess)}, "", role.Rules...)
}

func (p provider) object(namespace, size string) *unstructured.Unstructured {
	object := target(providerGroup+"/v1beta1", p.kind, namespace, "infra")
	object.Object["spec"] = map[string]any{"size": size}
	return object
}

// create creates an object once its kind is served.
func (p provider) create(g Gomega, object *unstructured.Unstructured) {
	g.Eventually(func() error { return admin.Create(ctx, object) }).Should(Succeed())
}

// cluster creates an initialized Cluster that refers to the provider's object.
func (p provider) cluster(t *testing.T, g Gomega, namespace string) *clusterv1.Cluster {
	t.Helper()
	cluster := named(&clusterv1.Cluster{}, namespace, "one")
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: providerGroup, Kind: p.kind, Name: "infra"}
	create(g, cluster)
	// The object goes with the test: the reference of a Cluster that stays would be unresolved in other tests.
	t.Cleanup(func() { remove(NewWithT(t), cluster.DeepCopy()) })
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// wantValues waits until the template values hold the object in this version and state.
func (p provider) wantValues(g Gomega, namespace, version, size string) {
	g.Eventually(func(g Gomega) {
		values := fleetCluster(g, namespace, "one").Spec.TemplateValues
		g.Expect(values).NotTo(BeNil())
		g.Expect(values.Data["InfrastructureCluster"]).To(And(
			HaveKeyWithValue("apiVersion", providerGroup+"/"+version), HaveKeyWithValue("spec", HaveKeyWithValue("size", size))))
	}).Should(Succeed())
}

// isWatched waits until the API server has this many open watches of a version of the kind.
func (p provider) isWatched(g Gomega, version string, times int) {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^apiserver_longrunning_requests\{.*resource="%s".*verb="WATCH",version="%s"\} (\d+)$`, p.plural, version))
	g.Eventually(func(g Gomega) {
		metrics, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		count := "0"
		if found := line.FindSubmatch(metrics); found != nil {
			count = string(found[1])
		}
		g.Expect(count).To(Equal(strconv.Itoa(times)), "watches of %s", version)
	}).Should(Succeed())
}

// While the syncer runs, a provider moves to another version of the contract. The syncer reads and watches the new
// version.
func TestTheWatchFollowsTheContract(t *testing.T) {
	g := NewWithT(t)
	p := provider{"MovingCluster", "movingclusters"}
	crd := p.install(t, g)
	p.allow(t, g)
	// This process aggregates roles, which is done by now, and every 30 s it looks for new kinds and watches them,
	// too.
	stop(t, g, garbageCollector)
	namespace := newNamespace(t, g, "moving", nil)
	object := p.object(namespace, "small")
	p.create(g, object)
	p.cluster(t, g, namespace)
	p.wantValues(g, namespace, "v1beta1", "small")
	from, to, before := "v1beta2", "v1beta1", "small"
	for _, size := range []string{"medium", "large", "larger", "largest"} {
		// In the first round the version stays the same.
		patchf(g, crd, `{"metadata":{"labels":{"cluster.x-k8s.io/%[1]s":null,"cluster.x-k8s.io/%[2]s":%[2]q}}}`, from, to)
		p.wantValues(g, namespace, to, before)
		patchf(g, object, `{"spec":{"size":%q}}`, size)
		p.wantValues(g, namespace, to, size)
		p.isWatched(g, from, 0)
		p.isWatched(g, to, 1)
		from, to, before = to, from, size
	}
}

// The object that a Cluster refers to, or its kind, may be missing. When it appears, the syncer imports the Cluster
// at once; meanwhile it does not ask for the object.
func TestWhatIsMissingWakesItsCluster(t *testing.T) {
	g := NewWithT(t)
	p := provider{"LateCluster", "lateclusters"}
	p.allow(t, g)
	namespace := newNamespace(t, g, "late", nil)
	cluster := p.cluster(t, g, namespace)
	// soon is well before any retry after a delay.
	soon := func(expectation func(g Gomega)) {
		g.Eventually(expectation).WithTimeout(8 * time.Second).Should(Succeed())
	}
	const notFound, unresolved = `"infra" not found`, "TemplateValuesUnresolved"
	willReport(g, cluster, unresolved, p.crd().GetName())

	p.install(t, g)
	soon(func(g Gomega) { reports(g, cluster, unresolved, notFound) })
	object := p.object(namespace, "small")
	p.create(g, object)
	soon(func(g Gomega) { fleetCluster(g, namespace, "one") })
	p.wantValues(g, namespace, "v1beta1", "small")

	// An object is deleted and comes back.
	deleteNow(g, object)
	willReport(g, cluster, unresolved, notFound)
	p.create(g, p.object(namespace, "medium"))
	soon(func(g Gomega) { reports(g, cluster, "Imported") })
	p.wantValues(g, namespace, "v1beta1", "medium")

	// A CRD is deleted and comes back.
	restore := removeCRDs(g, p.crd().GetName())
	willReport(g, cluster, unresolved, p.crd().GetName())
	p.isWatched(g, "v1beta1", 0)
	restore()
	p.create(g, p.object(namespace, "large"))
	soon(func(g Gomega) { reports(g, cluster, "Imported") })
	p.wantValues(g, namespace, "v1beta1", "large")
}

// Twenty Clusters refer to kinds that the syncer may not read. Each says so, also after a start, which writes nothing;
// the syncer tries each kind every 30 s, and a Cluster beside them is imported at once. Access that is granted is
// noticed within a minute.
func TestKindsThatMayNotBeRead(t *testing.T) {
	g := NewWithT(t)
	const forbidden, unresolved = 20, "False TemplateValuesUnresolved"
	its := func(i int) provider {
		return provider{fmt.Sprintf("Forbidden%cCluster", 'A'+i), fmt.Sprintf("forbidden%cclusters", 'a'+i)}
	}
	var clusters []*clusterv1.Cluster
	for i := range forbidden {
		p := its(i)
		provoked.Store(p.plural, true)
		p.install(t, g)
		clusters = append(clusters, p.cluster(t, g, newNamespace(t, g, "forbidden", nil)))
	}
	say := func() {
		for i, cluster := range clusters {
			willReport(g, cluster, unresolved, "the syncer may not read "+its(i).crd().GetName(), "aggregate-to-muster-syncer")
		}
	}
	beside := newNamespace(t, g, "beside", nil)
	importSoon := func(name string) {
		cluster := plainCluster(g, beside, name, nil)
		begun := time.Now()
		g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
		g.Eventually(func(g Gomega) { fleetCluster(g, beside, name) }).WithPolling(10 * time.Millisecond).Should(Succeed())
		g.Expect(time.Since(begun)).To(BeNumerically("<=", time.Second))
	}
	importSoon("at-once")
	say()
	importSoon("later")
	quiet(g)

	since := time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	denied := func(e stack.AuditEvent) bool {
		return e.Verb == "list" && e.Code == http.StatusForbidden && strings.HasPrefix(e.Resource, "forbidden")
	}
	g.Eventually(func(g Gomega) { g.Expect(len(requests(g, since, denied))).To(BeNumerically(">=", forbidden)) }).Should(Succeed())
	quiet(g)
	say()
	importSoon("after-a-start")
	for _, cluster := range clusters {
		g.Expect(requests(g, since, in(cluster.Namespace), isWrite)).To(BeEmpty())
	}

	p := its(0)
	p.create(g, p.object(clusters[0].Namespace, "small"))
	p.allow(t, g)
	g.Eventually(func(g Gomega) { reports(g, clusters[0], "Imported") }).WithTimeout(time.Minute).Should(Succeed())
	p.wantValues(g, clusters[0].Namespace, "v1beta1", "small")
	reports(g, clusters[1], unresolved)
	g.Expect(len(requests(g, since, denied))).To(BeNumerically("<=", forbidden*(2+int(time.Since(since)/(30*time.Second)))))
}

// The first list of a kind does not end, because its conversion webhook is down. That holds up neither a start nor
// other Clusters. A Cluster that is in Fleet says so after 30 s, others at once. When the list ends, all go on.
func TestAListThatDoesNotEnd(t *testing.T) {
	g := NewWithT(t)
	p := provider{"StuckCluster", "stuckclusters"}
	crd := p.install(t, g)
	p.allow(t, g)
	namespace := newNamespace(t, g, "stuck", nil)
	p.create(g, p.object(namespace, "small"))
	imported := p.cluster(t, g, namespace)
	p.wantValues(g, namespace, "v1beta1", "small")
	willReport(g, imported, "True Imported")

	convert := func(conversion string) { patchf(g, crd, `{"spec":{"conversion":%s}}`, conversion) }
	convert(`{"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://127.0.0.1:1/convert"},"conversionReviewVersions":["v1"]}}`)
	t.Cleanup(func() { convert(`{"strategy":"None","webhook":null}`) })
	patch(g, crd, `{"metadata":{"labels":{"cluster.x-k8s.io/v1beta1":null,"cluster.x-k8s.io/v1beta2":"v1beta2"}}}`)
	p.isWatched(g, "v1beta1", 0)
	other := newNamespace(t, g, "stuck", nil)
	waiting := p.cluster(t, g, other)
	willReport(g, waiting, "False TemplateValuesUnresolved", "StuckCluster cannot be read yet")
	reports(g, imported, "True Imported")

	moved := time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	beside := plainCluster(g, other, "beside", nil)
	g.Expect(fixture.Initialize(ctx, admin, beside)).To(Succeed())
	g.Eventually(func(g Gomega) { fleetCluster(g, other, "beside") }).WithTimeout(15 * time.Second).Should(Succeed())
	reports(g, imported, "True Imported")
	g.Eventually(func(g Gomega) {
		reports(g, imported, "True TemplateValuesUnresolved", "the last good template values are kept", "StuckCluster cannot be read yet")
	}).WithTimeout(time.Minute).Should(Succeed())
	g.Expect(time.Since(moved)).To(BeNumerically(">=", 30*time.Second))

	convert(`{"strategy":"None","webhook":null}`)
	p.create(g, p.object(other, "large"))
	g.Eventually(func(g Gomega) {
		reports(g, imported, "True Imported")
		reports(g, waiting, "True Imported")
	}).WithTimeout(90 * time.Second).Should(Succeed()) // The informer waits up to a minute between two lists.
}
