package registrar

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
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

func TestHandOut(t *testing.T) {
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), fleet)).To(Succeed())
	g.Expect(registration.Spec.ClientID).To(Equal(fleet.Spec.ClientID))
	g.Expect(registration.Labels).NotTo(HaveKey("fleet.cattle.io/registration-token"))
	secret := s.secret(g)
	g.Expect(secret.OwnerReferences).To(HaveLen(1))
	g.Expect(secret.OwnerReferences[0].UID).To(Equal(s.cluster.UID))
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
	g.Expect(conditions.GetReason(cluster, "FleetImported")).To(Or(Equal("WaitingForAgent"), Equal("RegistrarMissing")))
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
		g.Expect(conditions.GetReason(cluster, "FleetImported")).To(Equal("WaitingForAgent"))
	}).WithTimeout(2 * 30e9).Should(Succeed())

	// The server's address changes: the manifest does, the credential does not.
	t.Cleanup(func() { g.Expect(setServer("https://fleet.example.com")).To(Succeed()) })
	g.Expect(setServer("https://elsewhere.example.com")).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(string(s.secret(g).Data["manifest"])).NotTo(Equal(string(secret.Data["manifest"])))
	}).Should(Succeed())
	g.Expect(string(s.handedOut(g, "first").Data["token"])).To(Equal("first"))
	g.Expect(s.registrations(g)).To(HaveLen(1))

	// A restart registers nobody twice.
	g.Expect(env.Restart(ctx, "muster-registrar")).To(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(1)) }).Should(Succeed())
	g.Expect(s.registrations(g)[0].UID).To(Equal(registration.UID))
}

func TestRotation(t *testing.T) {
	g := NewWithT(t)
	s, first := ready(g, "edge")
	s.annotate(g, stamp.RotateAnnotation, "1")
	second := s.granted(g, "second")
	s.handedOut(g, "second")
	g.Eventually(func(g Gomega) {
		g.Expect(s.registrations(g)).To(HaveLen(1), "the first is revoked")
		g.Expect(s.registrations(g)[0].UID).NotTo(Equal(first.UID))
	}).Should(Succeed())

	// Who takes the annotation away asks for nothing, nor does who looks again later.
	s.called(g, time.Now())
	for _, value := range []string{`""`, "null"} {
		s.patch(g, `{"metadata":{"annotations":{"`+stamp.RotateAnnotation+`":`+value+`}}}`)
		g.Consistently(func(g Gomega) {
			g.Expect(s.registrations(g)).To(HaveLen(1))
			g.Expect(s.registrations(g)[0].UID).To(Equal(second.UID))
			g.Expect(s.reason(g)).To(Equal("ManifestReady"))
		}).Should(Succeed())
	}
	s.handedOut(g, "second")
}

// What somebody deletes or changes is written again, with the same credential, also when Fleet
// has that no more. What is as it should be is not: an update that changes nothing is no write.
func TestMended(t *testing.T) {
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	g.Expect(admin.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-clusters-system", Name: oracle.CredentialName(&registration)}})).To(Succeed())
	g.Expect(admin.Delete(ctx, s.secret(g))).To(Succeed())
	s.look(g, "1")
	whole := s.handedOut(g, "first")

	changed := whole.DeepCopy()
	changed.Data["manifest"] = []byte("mine")
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	s.look(g, "2")
	g.Eventually(func(g Gomega) { g.Expect(s.secret(g).Data).To(Equal(whole.Data)) }).Should(Succeed())

	mended := s.secret(g)
	before := s.asked(g)
	s.look(g, "3")
	g.Eventually(func() int { return s.asked(g) - before }).Should(BeNumerically(">", 0), "the Secret is not updated")
	g.Expect(s.secret(g).ResourceVersion).To(Equal(mended.ResourceVersion))
	g.Expect(s.registrations(g)).To(HaveLen(1))
	g.Expect(s.registrations(g)[0].UID).To(Equal(registration.UID))
}

// asked is how often the registrar has asked for a Secret of the namespace.
func (s *site) asked(g Gomega) int {
	all, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-registrar"), Where: func(e stack.AuditEvent) bool {
		return e.Resource == "secrets" && e.Namespace == s.namespace && e.UserAgent != thiefAgent
	}})
	g.Expect(err).NotTo(HaveOccurred())
	return len(all)
}

// What is lost is not made anew behind anybody's back: that would cut off an agent that runs.
func TestLostCredential(t *testing.T) {
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	g.Expect(admin.Delete(ctx, s.record(g))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.record(g)).NotTo(BeNil()) }).Should(Succeed(), "Fleet still has it")
	g.Expect(admin.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-clusters-system", Name: oracle.CredentialName(&registration)}})).To(Succeed())
	g.Expect(admin.Delete(ctx, s.record(g))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("WaitingForFleet")) }).Should(Succeed()) // For five minutes.
	g.Expect(s.registrations(g)).To(HaveLen(1))
	g.Expect(s.registrations(g)[0].UID).To(Equal(registration.UID))
}

// record returns the registrar's record of the Cluster; nil if there is none.
func (s *site) record(g Gomega) *corev1.Secret {
	var all corev1.SecretList
	g.Expect(admin.List(ctx, &all, client.InNamespace("cattle-fleet-clusters-system"), client.MatchingFields{"type": "fleet.addons.cluster.x-k8s.io/agent-record"})).To(Succeed())
	for _, secret := range all.Items {
		if string(secret.Data["namespace"]) == s.namespace && string(secret.Data["name"]) == s.name {
			return &secret
		}
	}
	return nil
}

// Fleet keeps a credential for 40 minutes: nothing is registered while the manifest could not
// be handed out.
func TestNotRegisteredInVain(t *testing.T) {
	t.Run("without Fleet's Bundle", func(t *testing.T) {
		g := NewWithT(t)
		s := newSite(g, "edge")
		s.assigned(g)
		s.waits(g, "WaitingForFleet", "Bundle")
		s.bundled(g)
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
	t.Run("where no Secret can be written", func(t *testing.T) {
		g := NewWithT(t)
		s := newSite(g, "full")
		none := corev1.ResourceList{"count/secrets": resource.MustParse("0")}
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
		g.Expect(admin.Create(ctx, quota)).To(Succeed())
		before := quota.DeepCopy()
		quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // Nobody here counts.
		g.Expect(admin.Status().Patch(ctx, quota, client.MergeFrom(before))).To(Succeed())
		s.deployed(g)
		s.waits(g, "Failed", "exceeded quota")
		g.Expect(admin.Delete(ctx, quota)).To(Succeed())
		s.look(g, "again")
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
}

// Agents report, and Cluster API does: that is no reason to ask for a Secret.
func TestStatusIsNoNews(t *testing.T) {
	g := NewWithT(t)
	s, _ := ready(g, "edge")
	s.called(g, time.Now())
	g.Eventually(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("Imported")) }).Should(Succeed())
	before := s.asked(g)
	for i := range 20 {
		s.called(g, time.Now().Add(time.Duration(i)*time.Second))
		g.Expect(admin.Status().Patch(ctx, s.cluster, client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, 100+i))))).To(Succeed())
	}
	// It looks once a minute while the agent has not called, and may do so once more.
	g.Consistently(func() int { return s.asked(g) - before }).Should(BeNumerically("<=", 2))
}

// A refusal is told as what it is.
func TestRefused(t *testing.T) {
	g := NewWithT(t)
	s, _ := ready(g, "full")
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: not-on-fridays}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [secrets]}]}
  matchConditions: [{name: its, expression: "request.namespace == '%s'"}]
  validations: [{expression: "false", message: no Secrets on Fridays, reason: Forbidden}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: not-on-fridays}
spec: {policyName: not-on-fridays, validationActions: [Deny]}
`, s.namespace))).To(Succeed())
	t.Cleanup(func() {
		_, err := env.Kubectl(ctx, "delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "not-on-fridays")
		g.Expect(err).NotTo(HaveOccurred())
	})
	probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "probe"}}
	g.Eventually(func() error { return admin.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).Should(MatchError(ContainSubstring("Fridays")))
	s.look(g, "1")
	g.Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(admin.Get(ctx, s.key(), cluster)).To(Succeed())
		g.Expect(conditions.GetReason(cluster, stamp.ManifestCondition)).To(Equal("Failed"))
		g.Expect(conditions.GetMessage(cluster, stamp.ManifestCondition)).To(ContainSubstring("no Secrets on Fridays"))
	}).Should(Succeed())
}

// Fleet did not know the clientID yet, and has made a Fleet Cluster of its own for it.
func TestMistaken(t *testing.T) {
	g := NewWithT(t)
	s := newSite(g, "edge")
	s.deployed(g)
	g.Eventually(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(1)) }).Should(Succeed())
	asked := s.registrations(g)[0]
	before := asked.DeepCopy()
	asked.Status.Granted, asked.Status.ClusterName = true, "cluster-0123456789ab"
	g.Expect(admin.Status().Patch(ctx, &asked, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("RegistrationConflict")) }).Should(Succeed())
	// Fleet has given it another owner, with which it goes.
	g.Expect(admin.Delete(ctx, &asked)).To(Succeed())
	s.granted(g, "first")
	s.handedOut(g, "first")
}

// Who has rights in one namespace gets nothing of another's, and nothing of his is
// overwritten that does not claim to be a manifest.
func TestForgeries(t *testing.T) {
	t.Run("a Secret of the name stays what it is", func(t *testing.T) {
		g := NewWithT(t)
		s := &site{namespace: fmt.Sprintf("team-%d", counter.Add(1)), name: "forged"}
		g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata:
  namespace: %s
  name: forged-fleet-agent
  labels: {app.kubernetes.io/managed-by: muster}
stringData: {manifest: mine, token: mine}
`, s.namespace))).To(Succeed())
		s.create(g)
		s.deployed(g)
		g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("SecretConflict")) }).Should(Succeed())
		g.Expect(string(s.secret(g).Data["manifest"])).To(Equal("mine"))
		g.Expect(s.registrations(g)).To(BeEmpty(), "its credential lapses before it can be handed out")
		g.Expect(admin.Delete(ctx, s.secret(g))).To(Succeed())
		s.look(g, "again")
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
	t.Run("a Secret that looks like ours is written over", func(t *testing.T) {
		g := NewWithT(t)
		s := newSite(g, "edge")
		g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata:
  namespace: %s
  name: edge-fleet-agent
  ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: edge, uid: %s}]
type: fleet.addons.cluster.x-k8s.io/agent-manifest
stringData: {manifest: mine, token: mine}
`, s.namespace, s.cluster.UID))).To(Succeed())
		s.deployed(g)
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
	t.Run("a registration that leads to another's credential gives nothing", func(t *testing.T) {
		g := NewWithT(t)
		victim, its := ready(g, "edge")
		s := newSite(g, "edge")
		s.deployed(g)
		g.Eventually(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(1)) }).Should(Succeed())
		mine := s.registrations(g)[0]
		// He knows everything of the victim's but the credential, and has Fleet's answer
		// to his own registration say that it is there.
		s.leave(g, mine, victim.namespace, "stolen")
		before := mine.DeepCopy()
		mine.Status.Granted = true
		g.Expect(admin.Status().Patch(ctx, &mine, client.MergeFrom(before))).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(s.reason(g)).NotTo(Equal("ManifestReady"))
			err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "edge-fleet-agent"}, &corev1.Secret{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
		}).Should(Succeed())
		g.Expect(its.Name).NotTo(Equal(mine.Name))
	})
	t.Run("a pin on another's Fleet Cluster gives nothing", func(t *testing.T) {
		g := NewWithT(t)
		s, _ := ready(g, "edge")
		other := fixture.Cluster(s.namespace, "other", "", "")
		other.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent", stamp.ClusterNameAnnotation: "edge", stamp.OwnedByAnnotation: "fleet-addon-config"}
		err := admin.Create(ctx, other)
		if err != nil { // The webhook sees through it already.
			g.Expect(err).To(MatchError(ContainSubstring("edge")))
			return
		}
		g.Consistently(func(g Gomega) {
			err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "other-fleet-agent"}, &corev1.Secret{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
		}).Should(Succeed())
	})
}

// To turn to the manager takes nothing from an agent that calls: neither its registration nor
// what was handed out, until Fleet's own agent has registered, under the same clientID.
func TestTurnedOver(t *testing.T) {
	g := NewWithT(t)
	s, first := ready(g, "edge")
	s.called(g, time.Now())
	handed := s.secret(g)
	turn := func(by, kubeconfig string) {
		s.annotate(g, stamp.RegistrationAnnotation, by)
		g.Eventually(func(g Gomega) { g.Expect(s.fleet(g).Spec.KubeConfigSecret).To(Equal(kubeconfig)) }).Should(Succeed())
	}
	turn("manager", "edge-kubeconfig")
	g.Consistently(func(g Gomega) { s.isUnchanged(g, first, handed) }).Should(Succeed())
	turn("agent", "")
	g.Consistently(func(g Gomega) { s.isUnchanged(g, first, handed) }).Should(Succeed())
	g.Expect(s.reason(g)).To(Equal("ManifestReady"))

	// Fleet installs an agent, which registers, and revokes what was registered under the same clientID.
	turn("manager", "edge-kubeconfig")
	installed := s.register(g, "request-1", first.Spec.ClientID)
	g.Expect(admin.Delete(ctx, &first)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(s.secret(g).Data).To(BeEmpty(), "what was handed out works no more")
		g.Expect(s.reason(g)).To(BeEmpty())
	}).Should(Succeed())
	s.called(g, time.Now().Add(time.Second))

	// That one has called: back again, it is registered anew only if somebody asks for it.
	turn("agent", "")
	g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("AlreadyRegistered")) }).Should(Succeed())
	g.Expect(s.registrations(g)).To(HaveLen(1))
	g.Expect(s.registrations(g)[0].UID).To(Equal(installed.UID))
	g.Expect(s.secret(g).Data).To(BeEmpty())
	s.annotate(g, stamp.RotateAnnotation, "1")
	second := s.granted(g, "second")
	g.Expect(second.Spec.ClientID).To(Equal(first.Spec.ClientID))
	g.Expect(admin.Delete(ctx, installed)).To(Succeed())
	s.handedOut(g, "second")

	// A rotation that was followed is not asked for by turning over.
	turn("manager", "edge-kubeconfig")
	installed = s.register(g, "request-2", first.Spec.ClientID)
	g.Expect(admin.Delete(ctx, &second)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.secret(g).Data).To(BeEmpty()) }).Should(Succeed())
	turn("agent", "")
	g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("AlreadyRegistered")) }).Should(Succeed())
	g.Expect(s.registrations(g)).To(HaveLen(1))
	g.Expect(s.registrations(g)[0].UID).To(Equal(installed.UID))
}

// isUnchanged: its agent goes on, and could be applied again.
func (s *site) isUnchanged(g Gomega, registration fleetv1.ClusterRegistration, handed *corev1.Secret) {
	g.Expect(s.registrations(g)).To(HaveLen(1))
	g.Expect(s.registrations(g)[0].UID).To(Equal(registration.UID))
	g.Expect(s.fleet(g).Spec.ClientID).To(Equal(registration.Spec.ClientID))
	g.Expect(s.secret(g).Data).To(Equal(handed.Data))
}

// A FleetAddonConfig that is missing for a moment turns no agent that has called; a selector that
// is mistyped for a moment costs none its registration.
func TestConfigFlaps(t *testing.T) {
	g := NewWithT(t)
	const wanted = "{agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: edge}}}"
	configure(t, g, wanted)
	s := &site{namespace: fmt.Sprintf("team-%d", counter.Add(1)), name: "edge"}
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	s.cluster = fixture.Cluster(s.namespace, s.name, "", "")
	s.cluster.Labels = map[string]string{"site": "edge"}
	g.Expect(admin.Create(ctx, s.cluster)).To(Succeed())
	s.deployed(g)
	registration := s.granted(g, "first")
	handed := s.handedOut(g, "first")
	s.called(g, time.Now())
	g.Eventually(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("Imported")) }).Should(Succeed())

	g.Expect(admin.Delete(ctx, &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: "fleet-addon-config"}})).To(Succeed())
	s.annotate(g, "look", "1")
	g.Eventually(func(g Gomega) { g.Expect(s.fleet(g).Annotations).To(HaveKeyWithValue("look", "1")) }).Should(Succeed())
	g.Expect(s.fleet(g).Spec.KubeConfigSecret).To(BeEmpty())
	g.Consistently(func(g Gomega) { s.isUnchanged(g, registration, handed) }).Should(Succeed())

	set := func(cluster, kubeconfig string) {
		g.Expect(env.Apply(ctx, "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {cluster: "+cluster+"}}")).To(Succeed())
		g.Eventually(func(g Gomega) { g.Expect(s.fleet(g).Spec.KubeConfigSecret).To(Equal(kubeconfig)) }).Should(Succeed())
		s.isUnchanged(g, registration, handed)
	}
	set("{agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: egde}}}", "edge-kubeconfig")
	set(wanted, "")
	g.Eventually(func(g Gomega) { g.Expect(s.reason(g)).To(Equal("ManifestReady")) }).Should(Succeed())
	s.isUnchanged(g, registration, handed)
}

// A Cluster that Fleet imports costs the registrar nothing, also when it starts; a manifest that
// clusterctl move has brought along is left alone.
func TestImportedCostsNothing(t *testing.T) {
	g := NewWithT(t)
	s := &site{namespace: fmt.Sprintf("team-%d", counter.Add(1)), name: "edge"}
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	s.cluster = fixture.Cluster(s.namespace, s.name, "", "")
	g.Expect(admin.Create(ctx, s.cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, s.cluster)).To(Succeed())
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata:
  namespace: %s
  name: edge-fleet-agent
  ownerReferences: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: edge, uid: %s}]
type: fleet.addons.cluster.x-k8s.io/agent-manifest
stringData: {manifest: of the old side, token: of the old side}
`, s.namespace, s.cluster.UID))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("Imported")) }).Should(Succeed())
	g.Expect(env.Restart(ctx, "muster-registrar")).To(Succeed())
	ready(g, "after") // It looks at all Clusters when it starts.
	all, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", "muster-registrar"), Where: func(e stack.AuditEvent) bool {
		return e.Namespace == s.namespace
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(BeEmpty())
	g.Expect(string(s.secret(g).Data["manifest"])).To(Equal("of the old side"))
}

func TestDeletedWithItsCluster(t *testing.T) {
	g := NewWithT(t)
	s, first := ready(g, "edge")
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(s.registrations(g)).To(BeEmpty())
		err := admin.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "edge-fleet-agent"}, &corev1.Secret{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	}).Should(Succeed())
	s.create(g)
	s.deployed(g)
	second := s.granted(g, "second")
	g.Expect(second.Spec.ClientID).NotTo(Equal(first.Spec.ClientID))
	s.handedOut(g, "second")

	// It may go while nobody is there to see.
	g.Expect(s.record(g)).NotTo(BeNil())
	g.Expect(env.Stop(ctx, "muster-registrar")).To(Succeed())
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	g.Expect(env.Start(ctx, "muster-registrar")).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.record(g)).To(BeNil()) }).Should(Succeed())
}

// A Cluster that is made anew takes over a Fleet Cluster that was left, and nobody who was
// registered for the earlier one can call for it.
func TestTakenOver(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{setOwnerReferences: false}")
	s, first := ready(g, "edge")
	s.called(g, time.Now())
	g.Eventually(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("Imported")) }).Should(Succeed())
	// Fleet had installed one, too, at another time.
	installed := s.register(g, "request-1", first.Spec.ClientID+"-earlier")
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	made := time.Now().Unix()
	g.Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", made)) // Kubernetes knows no shorter time.

	s.create(g)
	s.called(g, time.Now().Add(2*time.Second))
	second := s.granted(g, "second")
	g.Expect(second.Spec.ClientID).NotTo(Or(Equal(first.Spec.ClientID), Equal(installed.Spec.ClientID)))
	g.Expect(s.imported(g)).To(Equal("WaitingForAgent"), "it was the agent of the first that called")
	s.handedOut(g, "second")
	g.Eventually(func(g Gomega) {
		g.Expect(s.registrations(g)).To(HaveLen(1))
		g.Expect(s.registrations(g)[0].UID).To(Equal(second.UID))
	}).Should(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("WaitingForAgent")) }).Should(Succeed())
	s.called(g, time.Now().Add(2*time.Second))
	g.Eventually(func(g Gomega) { g.Expect(s.imported(g)).To(Equal("Imported")) }).Should(Succeed())
}
