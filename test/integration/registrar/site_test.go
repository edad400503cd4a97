package registrar

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// site is a Cluster whose agent registers itself, in a namespace of its own.
type site struct {
	namespace, name string
	cluster         *clusterv1.Cluster
}

// emptySite returns a site without a Cluster.
func emptySite(g Gomega, name string) *site {
	s := &site{namespace: fmt.Sprintf("team-%d", counter.Add(1)), name: name}
	create(g, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	return s
}

func newSite(g Gomega, name string) *site {
	s := emptySite(g, name)
	s.create(g, map[string]string{stamp.RegistrationAnnotation: "agent"}, nil)
	return s
}

func create(g Gomega, object client.Object) { g.Expect(admin.Create(ctx, object)).To(Succeed()) }

func (s *site) create(g Gomega, annotations, labels map[string]string) {
	s.cluster = fixture.Cluster(s.namespace, s.name, "", "")
	s.cluster.Annotations, s.cluster.Labels = annotations, labels
	create(g, s.cluster)
}

// put creates the Secret of a manifest as another user would, with a claim to be the Cluster's.
func (s *site) put(g Gomega) {
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata:
  namespace: %s
  name: %s-fleet-agent
  ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: %[2]s, uid: %s}]
type: fleet.addons.cluster.x-k8s.io/agent-manifest
stringData: {manifest: mine, token: mine}
`, s.namespace, s.name, s.cluster.UID))).To(Succeed())
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

// isRegistered expects exactly one registration, which is this one.
func (s *site) isRegistered(g Gomega, by fleetv1.ClusterRegistration) {
	g.Expect(s.registrations(g)).To(ConsistOf(HaveField("UID", by.UID)))
}

// granted plays Fleet: it grants the newest registration and leaves a credential.
func (s *site) granted(g Gomega, token string) (asked fleetv1.ClusterRegistration) {
	g.Eventually(func(g Gomega) {
		g.Expect(s.registrations(g)).To(ContainElement(HaveField("Status.Granted", BeFalse()), &asked))
	}).Should(Succeed())
	s.leave(g, asked, s.namespace, token)
	g.Expect(fixture.Grant(ctx, admin, &asked, s.name)).To(Succeed())
	return asked
}

// register plays an agent that registers by itself, and Fleet, which grants the registration.
func (s *site) register(g Gomega, name, clientID string) fleetv1.ClusterRegistration {
	asked := fixture.RegistersItself(name, clientID, s.fleet(g))
	create(g, asked)
	g.Expect(fixture.Grant(ctx, admin, asked, s.name)).To(Succeed())
	return *asked
}

// revoked plays Fleet, which deletes a registration.
func (s *site) revoked(g Gomega, registration fleetv1.ClusterRegistration) {
	g.Expect(admin.Delete(ctx, &registration)).To(Succeed())
}

// checkIn plays an agent that reports, from a cluster whose control plane is initialized.
func (s *site) checkIn(g Gomega, at time.Time) {
	g.Expect(fixture.Initialize(ctx, admin, s.cluster.DeepCopy())).To(Succeed())
	g.Expect(fixture.Call(ctx, admin, s.fleet(g), at)).To(Succeed())
}

func (s *site) fleet(g Gomega) *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), fleet)).To(Succeed())
	return fleet
}

// leave puts a credential where Fleet puts it, for the cluster of a namespace.
func (s *site) leave(g Gomega, registration fleetv1.ClusterRegistration, namespace, token string) {
	create(g, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: records, Name: oracle.CredentialName(&registration)},
		StringData: map[string]string{
			"token": token, "deploymentNamespace": stamp.FleetNamespace(namespace, s.name), "clusterNamespace": namespace, "clusterName": s.name,
		},
	})
}

// forget deletes that credential.
func forget(g Gomega, registration fleetv1.ClusterRegistration) {
	g.Expect(admin.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: records, Name: oracle.CredentialName(&registration)}})).To(Succeed())
}

func (s *site) secret(g Gomega) *corev1.Secret {
	secret := &corev1.Secret{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: s.name + "-fleet-agent"}, secret)).To(Succeed())
	return secret
}

// hasNone expects no manifest with that name.
func (s *site) hasNone(g Gomega, name string) {
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name + "-fleet-agent"}, &corev1.Secret{})).To(Satisfy(apierrors.IsNotFound))
}

func (s *site) handedOut(g Gomega, token string) (secret *corev1.Secret) {
	g.Eventually(func(g Gomega) {
		secret = s.secret(g)
		g.Expect(string(secret.Data["token"])).To(Equal(token))
		g.Expect(s.reason(g)).To(Equal("ManifestReady"))
	}).Should(Succeed())
	return secret
}

// record returns the registrar's record of the Cluster, or nil if there is none.
func (s *site) record(g Gomega) *corev1.Secret {
	var all corev1.SecretList
	g.Expect(admin.List(ctx, &all, client.InNamespace(records), client.MatchingFields{"type": "fleet.addons.cluster.x-k8s.io/agent-record"})).To(Succeed())
	for _, secret := range all.Items {
		if string(secret.Data["namespace"]) == s.namespace && string(secret.Data["name"]) == s.name {
			return &secret
		}
	}
	return nil
}

// asked returns how often the registrar has read or written Secrets of the namespace.
func (s *site) asked(g Gomega) int {
	all, err := asked(env, func(e stack.AuditEvent) bool { return e.Resource == "secrets" && e.Namespace == s.namespace })
	g.Expect(err).NotTo(HaveOccurred())
	return len(all)
}

func (s *site) condition(g Gomega, name string) (reason, message string) {
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
	return conditions.GetReason(cluster, name), conditions.GetMessage(cluster, name)
}

func (s *site) reason(g Gomega) string {
	reason, _ := s.condition(g, addonsv1.FleetAgentManifestReadyCondition)
	return reason
}

// waits waits for a reason with this text in its message.
func (s *site) waits(g Gomega, reason, text string) {
	g.Eventually(func(g Gomega) {
		its, message := s.condition(g, addonsv1.FleetAgentManifestReadyCondition)
		g.Expect(its).To(Equal(reason))
		g.Expect(message).To(ContainSubstring(text))
	}).Should(Succeed())
}

// isImported waits for the reason of FleetImported.
func (s *site) isImported(g Gomega, reason string) {
	g.Eventually(func(g Gomega) (its string) { its, _ = s.condition(g, "FleetImported"); return its }).Should(Equal(reason))
}

// configure sets a FleetAddonConfig with this spec.cluster until the test ends. After that it has the defaults.
func configure(t *testing.T, g Gomega, cluster string) {
	t.Helper()
	setConfig(g, cluster)
	t.Cleanup(func() { setConfig(g, "{}") })
}

func setConfig(g Gomega, cluster string) {
	g.Expect(env.Apply(ctx, "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: "+cluster+"}}")).To(Succeed())
}

func (s *site) annotate(g Gomega, key, value string) {
	s.patch(g, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
}

// observe makes the registrar reconcile the Cluster, as any change of a label does.
func (s *site) observe(g Gomega, value string) {
	s.patch(g, fmt.Sprintf(`{"metadata":{"labels":{"look":%q}}}`, value))
}

func (s *site) patch(g Gomega, merge string) {
	g.Expect(admin.Patch(ctx, s.cluster, client.RawPatch(types.MergePatchType, []byte(merge)))).To(Succeed())
}

// turn changes which side registers the Cluster, and waits for this kubeconfig.
func (s *site) turn(g Gomega, by, kubeconfig string) {
	s.annotate(g, stamp.RegistrationAnnotation, by)
	s.hasKubeconfig(g, kubeconfig)
}

func (s *site) hasKubeconfig(g Gomega, name string) {
	g.Eventually(func(g Gomega) string { return s.fleet(g).Spec.KubeConfigSecret }).Should(Equal(name))
}

// data waits until the Secret of the manifest has matching data.
func (s *site) data(g Gomega, matcher gomegatypes.GomegaMatcher) {
	g.Eventually(func(g Gomega) map[string][]byte { return s.secret(g).Data }).Should(matcher)
}

// ready returns a site whose manifest is issued.
func ready(g Gomega, name string) (*site, fleetv1.ClusterRegistration) {
	s := newSite(g, name)
	s.deployed(g)
	registration := s.granted(g, "first")
	s.handedOut(g, "first")
	return s, registration
}

// The registrar exposes everything that the shipped alerts query, to the account that ships for it, and with a
// certificate that clients can verify.
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
		for _, metric := range []string{`manifests_by_reason\{reason="ManifestReady"\}`, `apply_total\{kind="ClusterRegistration",result="created"\}`,
			`apply_total\{kind="Secret",result="created"\}`} {
			g.Expect(body).To(MatchRegexp("muster_" + metric + " [1-9]"))
		}
	}).Should(Succeed())
	g.Eventually(func() error { return fixture.ServesItsCertificate(ctx, env, admin, process) }).Should(Succeed())
}
