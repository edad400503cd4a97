package registrar

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
)

var counter atomic.Int64

// site is a Cluster whose agent is to call, in a namespace of its own.
type site struct {
	namespace, name string
	cluster         *clusterv1.Cluster
}

func newSite(g Gomega, name string) *site {
	s := &site{namespace: fmt.Sprintf("team-%d", counter.Add(1)), name: name}
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	s.create(g)
	return s
}

func (s *site) create(g Gomega) {
	s.cluster = fixture.Cluster(s.namespace, s.name, "", "")
	s.cluster.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent"}
	g.Expect(admin.Create(ctx, s.cluster)).To(Succeed())
}

func (s *site) key() client.ObjectKey { return client.ObjectKey{Namespace: s.namespace, Name: s.name} }

// deployed plays Fleet: the Fleet Cluster gets a namespace, and a Bundle with its agent.
func (s *site) deployed(g Gomega) {
	s.assigned(g)
	s.bundled(g)
}

func (s *site) assigned(g Gomega) {
	fleet := &fleetv1.Cluster{}
	g.Eventually(func() error { return admin.Get(ctx, s.key(), fleet) }).Should(Succeed())
	g.Expect(fixture.AssignNamespace(ctx, admin, fleet)).To(Succeed())
}

func (s *site) bundled(g Gomega) {
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %s, name: fleet-agent-%s, labels: {objectset.rio.cattle.io/hash: x}}
spec: {resources: [{name: agent.yaml, content: "kind: Deployment"}], targets: [{clusterName: %[2]s}]}
`, s.namespace, s.name))).To(Succeed())
}

func (s *site) registrations(g Gomega) []fleetv1.ClusterRegistration {
	var all fleetv1.ClusterRegistrationList
	g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace))).To(Succeed())
	return all.Items
}

// granted plays Fleet: it grants the newest registration and leaves a credential.
func (s *site) granted(g Gomega, token string) fleetv1.ClusterRegistration {
	var asked fleetv1.ClusterRegistration
	g.Eventually(func(g Gomega) {
		for _, registration := range s.registrations(g) {
			if !registration.Status.Granted {
				asked = registration
				return
			}
		}
		g.Expect(s.registrations(g)).To(BeEmpty(), "all are granted")
		g.Expect(asked.Name).NotTo(BeEmpty(), "nothing was registered")
	}).Should(Succeed())
	s.leave(g, asked, s.namespace, token)
	g.Expect(fixture.Grant(ctx, admin, &asked, s.name)).To(Succeed())
	return asked
}

// register plays an agent that registers by itself, and Fleet, which grants it.
func (s *site) register(g Gomega, name, clientID string) *fleetv1.ClusterRegistration {
	asked := fixture.RegistersItself(name, clientID, s.fleet(g))
	g.Expect(admin.Create(ctx, asked)).To(Succeed())
	g.Expect(fixture.Grant(ctx, admin, asked, s.name)).To(Succeed())
	return asked
}

// called plays an agent that reports, from a cluster whose control plane is up.
func (s *site) called(g Gomega, at time.Time) {
	g.Expect(fixture.Initialize(ctx, admin, s.cluster.DeepCopy())).To(Succeed())
	g.Expect(fixture.Call(ctx, admin, s.fleet(g), at)).To(Succeed())
}

func (s *site) fleet(g Gomega) *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), fleet)).To(Succeed())
	return fleet
}

// leave leaves a credential where Fleet leaves it, for the cluster of a namespace.
func (s *site) leave(g Gomega, registration fleetv1.ClusterRegistration, namespace, token string) {
	g.Expect(admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-clusters-system", Name: oracle.CredentialName(&registration)},
		StringData: map[string]string{
			"token": token, "deploymentNamespace": stamp.FleetNamespace(namespace, s.name), "clusterNamespace": namespace, "clusterName": s.name,
		},
	})).To(Succeed())
}

func (s *site) secret(g Gomega) *corev1.Secret {
	secret := &corev1.Secret{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: s.name + "-fleet-agent"}, secret)).To(Succeed())
	return secret
}

func (s *site) handedOut(g Gomega, token string) *corev1.Secret {
	var secret *corev1.Secret
	g.Eventually(func(g Gomega) {
		secret = s.secret(g)
		g.Expect(string(secret.Data["token"])).To(Equal(token))
		g.Expect(s.reason(g)).To(Equal("ManifestReady"))
	}).Should(Succeed())
	return secret
}

func (s *site) reason(g Gomega) string { return s.condition(g, stamp.ManifestCondition) }

// waits waits for a reason with that in its message, and nothing is registered meanwhile.
func (s *site) waits(g Gomega, reason, message string) {
	g.Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
		g.Expect(conditions.GetReason(cluster, stamp.ManifestCondition)).To(Equal(reason))
		g.Expect(conditions.GetMessage(cluster, stamp.ManifestCondition)).To(ContainSubstring(message))
	}).Should(Succeed())
	g.Expect(s.registrations(g)).To(BeEmpty())
}

func (s *site) imported(g Gomega) string { return s.condition(g, "FleetImported") }

func (s *site) condition(g Gomega, name string) string {
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
	return conditions.GetReason(cluster, name)
}

// configure has a FleetAddonConfig with this as spec.cluster for as long as a test runs.
func configure(t *testing.T, g Gomega, cluster string) {
	t.Helper()
	g.Expect(env.Apply(ctx, "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: "+cluster+"}}")).To(Succeed())
	t.Cleanup(func() {
		g.Expect(admin.Delete(ctx, &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: "fleet-addon-config"}})).To(Succeed())
	})
}

func (s *site) annotate(g Gomega, key, value string) {
	s.patch(g, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
}

// look has the registrar look at the Cluster, as any change of a label does.
func (s *site) look(g Gomega, value string) {
	s.patch(g, fmt.Sprintf(`{"metadata":{"labels":{"look":%q}}}`, value))
}

func (s *site) patch(g Gomega, merge string) {
	g.Expect(admin.Patch(ctx, s.cluster, client.RawPatch(types.MergePatchType, []byte(merge)))).To(Succeed())
}

// ready returns a site whose manifest is handed out.
func ready(g Gomega, name string) (*site, fleetv1.ClusterRegistration) {
	s := newSite(g, name)
	s.deployed(g)
	registration := s.granted(g, "first")
	s.handedOut(g, "first")
	return s, registration
}

// The registrar may be installed before Fleet's CRDs: it waits, and needs no restart. With the
// CRDs goes all that is registered, of other tests, too: a stack of its own.
func TestFleetIsInstalledLater(t *testing.T) {
	g := NewWithT(t)
	own, err := stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	shared, sharedAdmin := env, admin
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(own.LogTail("muster-registrar"))
		}
		env, admin = shared, sharedAdmin
		g.Expect(own.Down()).To(Succeed())
	})
	g.Expect(fixture.Use(&env, &admin)(own)).To(Succeed())
	g.Expect(setServer("https://fleet.example.com")).To(Succeed())

	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: "clusterregistrations.fleet.cattle.io"}, crd)).To(Succeed())
	g.Expect(admin.Delete(ctx, crd.DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy())
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
	}).Should(Succeed())
	g.Expect(env.StartComponent(ctx, "registrar")).To(Succeed())
	g.Eventually(func() string { return env.LogTail("muster-registrar") }).Should(ContainSubstring("ClusterRegistration.fleet.cattle.io"))
	processes := env.Processes()

	crd.SetResourceVersion("")
	crd.SetUID("")
	crd.SetManagedFields(nil)
	unstructured.RemoveNestedField(crd.Object, "status")
	g.Expect(admin.Create(ctx, crd)).To(Succeed())
	ready(g, "early")
	g.Expect(env.Processes()).To(Equal(processes), "a process was restarted")
}

const process = "muster-registrar"

// What the shipped alerts ask of the registrar is exposed, to the account that ships for it,
// and with a certificate that can be verified.
func TestMonitoring(t *testing.T) {
	g := NewWithT(t)
	ready(g, "edge")
	code, _, err := fixture.Scrape(ctx, env, process, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusUnauthorized))
	token, err := fixture.MetricsReader(ctx, env, admin)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		code, body, err := fixture.Scrape(ctx, env, process, token)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(Equal(http.StatusOK))
		missing, asked, err := fixture.Unexposed(map[string]string{process: body})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(missing).To(BeEmpty())
		g.Expect(asked).To(BeNumerically(">", 5))
		g.Expect(body).To(MatchRegexp(`muster_manifests_by_reason\{reason="ManifestReady"\} [1-9]`))
		for _, kind := range []string{"ClusterRegistration", "Secret"} {
			g.Expect(body).To(MatchRegexp(`muster_apply_total\{kind="` + kind + `",result="created"\} [1-9]`))
		}
	}).Should(Succeed())

	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, process) }).Should(Succeed())
}
