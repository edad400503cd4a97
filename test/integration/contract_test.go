package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// provider is one of infrastructure that nobody has heard of: its kind is served in two
// versions, and its CRD's labels say which of them Cluster API reads.
type provider struct{ kind, plural string }

const providerGroup = "infrastructure.cluster.x-k8s.io"

func (p provider) crd(contractVersion string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = p.plural + "." + providerGroup
	crd.Labels = map[string]string{"cluster.x-k8s.io/" + contractVersion: contractVersion}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: providerGroup, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: p.kind, ListKind: p.kind + "List", Plural: p.plural, Singular: p.plural[:len(p.plural)-1]},
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == "v1beta1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: ptr.To(true),
			}},
		})
	}
	return crd
}

// install makes the CRD, and deletes it when the test ends.
func (p provider) install(t *testing.T, g Gomega, contractVersion string) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.crd(contractVersion))
	g.Expect(err).NotTo(HaveOccurred())
	crd := &unstructured.Unstructured{Object: content}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	g.Expect(admin.Create(ctx, crd)).To(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, crd)); err != nil {
			t.Error(err)
		}
	})
	return crd
}

// allow lets the syncer read the kind, as operators are told to, and waits until it may.
func (p provider) allow(t *testing.T, g Gomega) {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	role.Name = "read-" + p.plural
	role.Labels = map[string]string{"fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer": "true"}
	role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{providerGroup}, Resources: []string{p.plural}, Verbs: []string{"get", "list", "watch"}}}
	g.Expect(admin.Create(ctx, role)).To(Succeed())
	t.Cleanup(func() {
		// The kind goes first: a watch of what may not be read any more would be refused.
		g := NewWithT(t)
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		crd.SetName(p.plural + "." + providerGroup)
		g.Expect(client.IgnoreNotFound(admin.Delete(ctx, crd))).To(Succeed())
		g.Eventually(func() int { return p.watches(g, "v1beta1") + p.watches(g, "v1beta2") }).Should(BeZero())
		g.Expect(admin.Delete(ctx, role)).To(Succeed())
	})
	g.Eventually(func(g Gomega) {
		aggregate := get(g, &rbacv1.ClusterRole{}, "", "muster-syncer-template-values")
		g.Expect(aggregate.Rules).To(ContainElement(HaveField("Resources", ContainElement(p.plural))))
		// Who decides hears of the role a moment later.
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               stack.ServiceAccount("muster-system", "muster-syncer"),
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: providerGroup, Resource: p.plural, Verb: "watch"},
		}}
		g.Expect(admin.Create(ctx, review)).To(Succeed())
		g.Expect(review.Status.Allowed).To(BeTrue(), review.Status.Reason)
	}).Should(Succeed())
}

func (p provider) object(namespace, version, size string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": size}}}
	object.SetAPIVersion(providerGroup + "/" + version)
	object.SetKind(p.kind)
	object.SetNamespace(namespace)
	object.SetName("infra")
	return object
}

// create creates an object once its kind is served.
func (p provider) create(g Gomega, object *unstructured.Unstructured) {
	g.Eventually(func() error { return admin.Create(ctx, object) }).Should(Succeed())
}

// cluster creates an initialized Cluster that refers to the provider's object.
func (p provider) cluster(t *testing.T, g Gomega, namespace string) *clusterv1.Cluster {
	t.Helper()
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = namespace, "one"
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: providerGroup, Kind: p.kind, Name: "infra"}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	// What it refers to goes with the test: left behind it would be unresolved for others.
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, cluster.DeepCopy())); err != nil {
			t.Error(err)
		}
	})
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// wantValues waits until the template values hold the object in this version and state.
func (p provider) wantValues(g Gomega, namespace, version, size string) {
	g.Eventually(func(g Gomega) {
		values := fleetCluster(g, namespace, "one").Spec.TemplateValues
		g.Expect(values).NotTo(BeNil())
		g.Expect(values.Data["InfrastructureCluster"]).To(And(
			HaveKeyWithValue("apiVersion", providerGroup+"/"+version),
			HaveKeyWithValue("spec", HaveKeyWithValue("size", size)),
		))
	}).Should(Succeed())
}

// watches returns how many watches of a version of the kind the API server has open.
func (p provider) watches(g Gomega, version string) int {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	metrics, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^apiserver_longrunning_requests\{.*resource="%s".*verb="WATCH",version="%s"\} (\d+)$`, p.plural, version))
	found := line.FindSubmatch(metrics)
	if found == nil {
		return 0
	}
	count, err := strconv.Atoi(string(found[1]))
	g.Expect(err).NotTo(HaveOccurred())
	return count
}

func relabel(g Gomega, crd *unstructured.Unstructured, from, to string) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"cluster.x-k8s.io/%s":null,"cluster.x-k8s.io/%s":%q}}}`, from, to, to)
	g.Expect(admin.Patch(ctx, crd, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

func resize(g Gomega, object *unstructured.Unstructured, size string) {
	patch := fmt.Sprintf(`{"spec":{"size":%q}}`, size)
	g.Expect(admin.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

// A provider moves to another version of the contract while the syncer runs: what is read,
// and what is watched, follow.
func TestTheWatchFollowsTheContract(t *testing.T) {
	g := NewWithT(t)
	p := provider{"MovingCluster", "movingclusters"}
	crd := p.install(t, g, "v1beta1")
	p.allow(t, g)
	// It adds up roles, which is over, and looks for new kinds every 30 s, to watch them, too.
	stop(t, g, garbageCollector)
	namespace := newNamespace(t, g, "moving", nil)
	object := p.object(namespace, "v1beta1", "small")
	p.create(g, object)
	p.cluster(t, g, namespace)
	p.wantValues(g, namespace, "v1beta1", "small")
	resize(g, object, "medium")
	p.wantValues(g, namespace, "v1beta1", "medium")
	g.Expect(p.watches(g, "v1beta1")).To(Equal(1))

	from, to := "v1beta1", "v1beta2"
	for _, size := range []string{"large", "larger", "largest"} {
		t.Run("from "+from+" to "+to, func(t *testing.T) {
			g := NewWithT(t)
			before := get(g, object.DeepCopy(), namespace, "infra").Object["spec"].(map[string]any)["size"].(string)
			relabel(g, crd, from, to)
			p.wantValues(g, namespace, to, before)
			resize(g, object, size)
			p.wantValues(g, namespace, to, size)
			g.Eventually(func(g Gomega) {
				g.Expect(p.watches(g, from)).To(BeZero(), "watches of "+from)
				g.Expect(p.watches(g, to)).To(Equal(1), "watches of "+to)
			}).Should(Succeed())
		})
		from, to = to, from
	}
}

// What a Cluster refers to may not be there: the object, or its kind. When it appears the
// Cluster is imported at once, and nobody asks for it meanwhile.
func TestWhatIsMissingWakesItsCluster(t *testing.T) {
	g := NewWithT(t)
	p := provider{"LateCluster", "lateclusters"}
	p.allow(t, g)
	namespace := newNamespace(t, g, "late", nil)
	cluster := p.cluster(t, g, namespace)
	unresolved := func(g Gomega, words string) {
		g.Eventually(func(g Gomega) {
			condition := importedCondition(g, cluster)
			g.Expect(condition.Reason).To(Equal("TemplateValuesUnresolved"))
			g.Expect(condition.Message).To(ContainSubstring(words))
		}).Should(Succeed())
	}
	// Soon: well before anything that is tried again after a while.
	soon := func(g Gomega, expectation func(g Gomega)) {
		g.Eventually(expectation).WithTimeout(8 * time.Second).Should(Succeed())
	}
	unresolved(g, "lateclusters."+providerGroup)

	crd := p.install(t, g, "v1beta1")
	g.Eventually(func(g Gomega) {
		g.Expect(importedCondition(g, cluster).Message).To(ContainSubstring(`"infra" not found`))
	}).WithTimeout(8 * time.Second).Should(Succeed())

	object := p.object(namespace, "v1beta1", "small")
	p.create(g, object)
	soon(g, func(g Gomega) { fleetCluster(g, namespace, "one") })
	p.wantValues(g, namespace, "v1beta1", "small")

	t.Run("an object that goes and comes back", func(t *testing.T) {
		g := NewWithT(t)
		deleteNow(g, object)
		unresolved(g, `"infra" not found`)
		p.create(g, p.object(namespace, "v1beta1", "medium"))
		soon(g, func(g Gomega) { g.Expect(importedCondition(g, cluster).Reason).To(Equal("Imported")) })
		p.wantValues(g, namespace, "v1beta1", "medium")
	})
	t.Run("a CRD that goes and comes back", func(t *testing.T) {
		g := NewWithT(t)
		restore := removeCRDs(g, crd.GetName())
		unresolved(g, crd.GetName())
		g.Eventually(func() int { return p.watches(g, "v1beta1") }).Should(BeZero())
		restore()
		p.create(g, p.object(namespace, "v1beta1", "large"))
		soon(g, func(g Gomega) { g.Expect(importedCondition(g, cluster).Reason).To(Equal("Imported")) })
		p.wantValues(g, namespace, "v1beta1", "large")
	})
}

// Whether a kind may be read is asked once a minute for all Clusters that refer to it.
func TestAccessIsAskedForOncePerKind(t *testing.T) {
	g := NewWithT(t)
	p := provider{"SecretiveCluster", "secretiveclusters"}
	p.install(t, g, "v1beta1")
	began := time.Now()
	var namespaces []string
	for range 5 {
		namespace := newNamespace(t, g, "secretive", nil)
		namespaces = append(namespaces, namespace)
		p.create(g, p.object(namespace, "v1beta1", "small"))
		cluster := p.cluster(t, g, namespace)
		g.Eventually(func(g Gomega) {
			g.Expect(importedCondition(g, cluster).Message).To(ContainSubstring("may not read secretiveclusters"))
		}).Should(Succeed())
	}
	p.allow(t, g)
	for _, namespace := range namespaces {
		g.Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "one"}, &fleetv1.Cluster{})
		}).WithTimeout(90 * time.Second).Should(Succeed())
	}
	asked, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-syncer"), Since: began, Where: func(e stack.AuditEvent) bool {
		return e.Resource == "selfsubjectaccessreviews"
	}})
	g.Expect(err).NotTo(HaveOccurred())
	minutes := int(time.Since(began)/time.Minute) + 1
	g.Expect(len(asked)).To(BeNumerically("<=", 3*(minutes+1)), "get, list and watch, once a minute")
}
