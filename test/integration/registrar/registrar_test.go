package registrar

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

func TestHandOut(t *testing.T) {
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	g.Expect(registration.Spec.ClientID).To(Equal(s.fleet(g).Spec.ClientID))
	g.Expect(registration.Labels).NotTo(HaveKey("fleet.cattle.io/registration-token"))
	secret := s.secret(g)
	g.Expect(secret.OwnerReferences).To(ConsistOf(HaveField("UID", s.cluster.UID)))
	s.isImported(g, "WaitingForAgent")

	// When the server's address changes, the manifest follows and the credential stays.
	t.Cleanup(func() { g.Expect(setServer("https://fleet.example.com")).To(Succeed()) })
	g.Expect(setServer("https://elsewhere.example.com")).To(Succeed())
	s.data(g, Not(HaveKeyWithValue("manifest", secret.Data["manifest"])))
	s.handedOut(g, "first")

	// After a restart, no Cluster is registered again.
	g.Expect(env.Restart(ctx, process)).To(Succeed())
	g.Consistently(func(g Gomega) { s.isRegistered(g, registration) }).Should(Succeed())
}

func TestRotation(t *testing.T) {
	t.Parallel()
	rotates(t, nil)
}

// Labels and annotations that are too many to copy change nothing for the registration.
func TestRotationAboveTheBoundOfCopies(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 600 {
		many[fmt.Sprintf("a%d", i)] = ""
	}
	rotates(t, many)
}

func rotates(t *testing.T, annotations map[string]string) {
	g := NewWithT(t)
	s, first := ready(g, "edge")
	if annotations != nil {
		change, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
		g.Expect(err).NotTo(HaveOccurred())
		s.patch(g, string(change))
	}
	s.annotate(g, stamp.RotateAnnotation, "1")
	// Until Fleet grants the new registration, which it may refuse, the old one and its credential stay.
	g.Eventually(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(2)) }).Should(Succeed())
	g.Consistently(func(g Gomega) {
		g.Expect(s.registrations(g)).To(ContainElement(HaveField("UID", first.UID)))
		g.Expect(s.secret(g).Data).To(HaveKeyWithValue("token", []byte("first")))
	}).Should(Succeed())
	second := s.granted(g, "second")
	s.handedOut(g, "second")
	g.Eventually(func(g Gomega) { s.isRegistered(g, second) }).Should(Succeed(), "the first is revoked")

	// Removing the annotation requests no rotation, and neither does a later reconcile.
	s.checkIn(g, time.Now())
	for _, value := range []string{`""`, "null"} {
		s.patch(g, `{"metadata":{"annotations":{"`+stamp.RotateAnnotation+`":`+value+`}}}`)
		g.Consistently(func(g Gomega) {
			s.isRegistered(g, second)
			g.Expect(s.reason(g)).To(Equal("ManifestReady"))
		}).Should(Succeed())
	}
	s.handedOut(g, "second")
}

// The registrar restores a manifest that a user deletes or changes, with the same credential, even if Fleet
// no longer has it. It does not rewrite a correct one: an update that changes nothing is no write.
func TestMended(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	forget(g, registration)
	g.Expect(admin.Delete(ctx, s.secret(g))).To(Succeed())
	s.observe(g, "1")
	whole := s.handedOut(g, "first")

	changed := whole.DeepCopy()
	changed.Data["manifest"] = []byte("mine")
	g.Expect(admin.Update(ctx, changed)).To(Succeed())
	s.observe(g, "2")
	s.data(g, Equal(whole.Data))

	mended, before := s.secret(g), s.asked(g)
	s.observe(g, "3")
	g.Eventually(func() int { return s.asked(g) - before }).Should(BeNumerically(">", 0), "the Secret is not updated")
	g.Expect(s.secret(g).ResourceVersion).To(Equal(mended.ResourceVersion))
	s.isRegistered(g, registration)
}

// The registrar does not replace a lost credential by itself: that would cut off a running agent.
func TestLostCredential(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, registration := ready(g, "edge")
	g.Expect(admin.Delete(ctx, s.record(g))).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.record(g)).NotTo(BeNil()) }).Should(Succeed(), "Fleet still has it")
	forget(g, registration)
	g.Expect(admin.Delete(ctx, s.record(g))).To(Succeed())
	s.waits(g, "WaitingForFleet", "") // For five minutes.
	s.isRegistered(g, registration)
}

// Fleet keeps a credential for 40 minutes, so the registrar registers no Cluster while the manifest could not be
// issued.
func TestNotRegisteredInVain(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	bundleless := newSite(g, "edge")
	bundleless.assigned(g)

	full := newSite(g, "full")
	none := corev1.ResourceList{"count/secrets": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: full.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	create(g, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // No controller runs that would count the quota.
	g.Expect(admin.Status().Update(ctx, quota)).To(Succeed())
	full.deployed(g)

	bundleless.waits(g, "WaitingForFleet", "Bundle")
	full.waits(g, "Failed", "exceeded quota")
	for _, s := range []*site{bundleless, full} {
		g.Expect(s.registrations(g)).To(BeEmpty())
	}
	bundleless.bundled(g)
	g.Expect(admin.Delete(ctx, quota)).To(Succeed())
	full.observe(g, "again")
	for _, s := range []*site{bundleless, full} {
		s.granted(g, "first")
		s.handedOut(g, "first")
	}
}

// Status updates by agents and by Cluster API make the registrar read no Secret.
func TestStatusIsNoNews(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, _ := ready(g, "edge")
	s.checkIn(g, time.Now())
	s.isImported(g, "Imported")
	before := s.asked(g)
	for i := range 20 {
		s.checkIn(g, time.Now().Add(time.Duration(i)*time.Second))
		g.Expect(admin.Status().Patch(ctx, s.cluster, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"observedGeneration":%d}}`,
			100+i)))).To(Succeed())
	}
	// The registrar looks once a minute while the agent has not checked in, and may look once more.
	g.Consistently(func() int { return s.asked(g) - before }).Should(BeNumerically("<=", 2))
}

// The condition shows a refusal as a refusal.
func TestRefused(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, _ := ready(g, "full")
	g.Expect(env.Apply(ctx, fixture.Deny("not-on-fridays", s.namespace, "", "secrets", "no Secrets on Fridays"))).To(Succeed())
	t.Cleanup(func() {
		_, err := env.Kubectl(ctx, "delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "not-on-fridays")
		g.Expect(err).NotTo(HaveOccurred())
	})
	probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "probe"}}
	g.Eventually(func() error { return admin.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).Should(MatchError(ContainSubstring("Fridays")))
	s.observe(g, "1")
	s.waits(g, "Failed", "no Secrets on Fridays")
}

// Fleet did not know the clientID yet, and made a Fleet Cluster of its own for it.
func TestMistaken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newSite(g, "edge")
	s.deployed(g)
	g.Eventually(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(1)) }).Should(Succeed())
	asked := s.registrations(g)[0]
	g.Expect(fixture.Grant(ctx, admin, &asked, "cluster-0123456789ab")).To(Succeed())
	s.waits(g, "RegistrationConflict", "")
	s.revoked(g, asked) // Fleet gave the registration another owner, and deletes it with that owner.
	s.granted(g, "first")
	s.handedOut(g, "first")
}

// A user with rights in one namespace gets nothing from another namespace. The registrar overwrites none of the
// user's Secrets except those that claim to be a manifest.
func TestForgeries(t *testing.T) {
	t.Run("another Secret of the name stays unchanged", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		s := emptySite(g, "forged")
		create(g, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "forged-fleet-agent", Labels: map[string]string{stamp.ManagedByLabel: "muster"}},
			StringData: map[string]string{"manifest": "mine", "token": "mine"},
		})
		s.create(g, map[string]string{stamp.RegistrationAnnotation: "agent"}, nil)
		s.deployed(g)
		s.waits(g, "SecretConflict", "")
		g.Expect(string(s.secret(g).Data["manifest"])).To(Equal("mine"))
		g.Expect(s.registrations(g)).To(BeEmpty(), "its credential lapses before it can be issued")
		g.Expect(admin.Delete(ctx, s.secret(g))).To(Succeed())
		s.observe(g, "again")
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
	t.Run("a Secret that looks like ours is written over", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		s := newSite(g, "edge")
		s.put(g)
		s.deployed(g)
		s.granted(g, "first")
		s.handedOut(g, "first")
	})
	t.Run("a registration that leads to another's credential gives nothing", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		victim, its := ready(g, "edge")
		s := newSite(g, "edge")
		s.deployed(g)
		g.Eventually(func(g Gomega) { g.Expect(s.registrations(g)).To(HaveLen(1)) }).Should(Succeed())
		mine := s.registrations(g)[0]
		// The attacker knows everything about the victim except the credential, and makes Fleet's answer to his own
		// registration say that the credential is there.
		s.leave(g, mine, victim.namespace, "stolen")
		g.Expect(fixture.Grant(ctx, admin, &mine, "")).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(s.reason(g)).NotTo(Equal("ManifestReady"))
			s.hasNone(g, "edge")
		}).Should(Succeed())
		g.Expect(its.Name).NotTo(Equal(mine.Name))
	})
	t.Run("a pin on another's Fleet Cluster gives nothing", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		s, _ := ready(g, "edge")
		other := fixture.Cluster(s.namespace, "edg", "", "") // "edge" contains its name, so the pin may be its own.
		other.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent", stamp.ClusterNameAnnotation: "edge", stamp.OwnedByAnnotation: "fleet-addon-config"}
		if err := admin.Create(ctx, other); err != nil { // The webhook may already refuse this.
			g.Expect(err).To(MatchError(ContainSubstring("edge")))
			return
		}
		g.Consistently(func(g Gomega) { s.hasNone(g, "edg") }).Should(Succeed())
	})
}

// Handing a Cluster to the manager takes nothing from its running agent: the registration and the issued credential
// stay until Fleet's own agent has registered, under the same clientID.
func TestTurnedOver(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, first := ready(g, "edge")
	s.checkIn(g, time.Now())
	handed := s.secret(g)
	for _, to := range [][2]string{{"manager", "edge-kubeconfig"}, {"agent", ""}} {
		s.turn(g, to[0], to[1])
		g.Consistently(func(g Gomega) { s.isUnchanged(g, first, handed) }).Should(Succeed())
	}
	s.waits(g, "ManifestReady", "")

	// Fleet installs an agent, which registers, and revokes the earlier registration with the same clientID. After
	// the Cluster is handed back, the registrar registers it anew only if a user asks; a rotation that is already
	// done does not count as asking.
	for i, registration := range []fleetv1.ClusterRegistration{first, {}} {
		if i > 0 {
			registration = s.registrations(g)[0]
		}
		s.turn(g, "manager", "edge-kubeconfig")
		installed := s.register(g, fmt.Sprintf("request-%d", i), first.Spec.ClientID)
		s.revoked(g, registration)
		s.data(g, BeEmpty()) // The issued credential no longer works.
		s.waits(g, "", "")
		s.checkIn(g, time.Now().Add(time.Second))
		s.turn(g, "agent", "")
		s.waits(g, "AlreadyRegistered", "")
		s.isRegistered(g, installed)
		g.Expect(s.secret(g).Data).To(BeEmpty())
		if i == 0 {
			s.annotate(g, stamp.RotateAnnotation, "1")
			second := s.granted(g, "second")
			g.Expect(second.Spec.ClientID).To(Equal(first.Spec.ClientID))
			s.revoked(g, installed)
			s.handedOut(g, "second")
		}
	}
}

// isUnchanged expects the agent to keep its registration, and its manifest to be still the one that was handed out.
func (s *site) isUnchanged(g Gomega, registration fleetv1.ClusterRegistration, handed *corev1.Secret) {
	s.isRegistered(g, registration)
	g.Expect(s.fleet(g).Spec.ClientID).To(Equal(registration.Spec.ClientID))
	g.Expect(s.secret(g).Data).To(Equal(handed.Data))
}

// While the FleetAddonConfig is gone, everything stays. If a selector is mistyped for a moment, no agent loses its
// registration.
func TestConfigFlaps(t *testing.T) {
	g := NewWithT(t)
	const wanted = "{agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: edge}}}"
	configure(t, g, wanted)
	s := emptySite(g, "edge")
	s.create(g, nil, map[string]string{"site": "edge"})
	s.deployed(g)
	registration := s.granted(g, "first")
	handed := s.handedOut(g, "first")
	s.checkIn(g, time.Now())
	s.isImported(g, "Imported")

	g.Expect(admin.Delete(ctx, fixture.Config())).To(Succeed())
	s.annotate(g, "look", "1")
	g.Consistently(func(g Gomega) {
		g.Expect(s.fleet(g).Annotations).NotTo(HaveKey("look"))
		g.Expect(s.fleet(g).Spec.KubeConfigSecret).To(BeEmpty())
		s.isUnchanged(g, registration, handed)
	}).Should(Succeed())

	setConfig(g, "{agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: egde}}}")
	s.hasKubeconfig(g, "edge-kubeconfig")
	s.isUnchanged(g, registration, handed)
	setConfig(g, wanted)
	s.hasKubeconfig(g, "")
	s.waits(g, "ManifestReady", "")
	s.isUnchanged(g, registration, handed)
}

// A Cluster that Fleet imports costs the registrar no request, not even at its start. The registrar leaves alone a
// manifest that clusterctl move has brought along.
func TestImportedCostsNothing(t *testing.T) {
	g := NewWithT(t)
	s := emptySite(g, "edge")
	s.create(g, nil, nil)
	g.Expect(fixture.Initialize(ctx, admin, s.cluster)).To(Succeed())
	s.put(g)
	s.isImported(g, "Imported")
	g.Expect(env.Restart(ctx, process)).To(Succeed())
	ready(g, "after") // The registrar reconciles all Clusters at its start.
	all, err := asked(env, func(e stack.AuditEvent) bool { return e.Namespace == s.namespace })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(BeEmpty())
	g.Expect(string(s.secret(g).Data["manifest"])).To(Equal("mine"))
}

func TestDeletedWithItsCluster(t *testing.T) {
	g := NewWithT(t)
	s, first := ready(g, "edge")
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(s.registrations(g)).To(BeEmpty())
		s.hasNone(g, "edge")
	}).Should(Succeed())
	s.create(g, map[string]string{stamp.RegistrationAnnotation: "agent"}, nil)
	s.deployed(g)
	second := s.granted(g, "second")
	g.Expect(second.Spec.ClientID).NotTo(Equal(first.Spec.ClientID))
	s.handedOut(g, "second")

	// The Cluster may go while the registrar does not run.
	g.Expect(s.record(g)).NotTo(BeNil())
	g.Expect(env.Stop(ctx, process)).To(Succeed())
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	g.Expect(env.Start(ctx, process)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.record(g)).To(BeNil()) }).Should(Succeed())
}

// A recreated Cluster takes over a Fleet Cluster that was left. No agent registered for the earlier Cluster can
// report for the new one.
func TestTakenOver(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{setOwnerReferences: false}")
	s, first := ready(g, "edge")
	s.checkIn(g, time.Now())
	s.isImported(g, "Imported")
	// Earlier, Fleet had installed an agent, too.
	installed := s.register(g, "request-1", first.Spec.ClientID+"-earlier")
	g.Expect(admin.Delete(ctx, s.cluster)).To(Succeed())
	made := time.Now().Unix()
	g.Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", made)) // Kubernetes knows no shorter time.

	s.create(g, map[string]string{stamp.RegistrationAnnotation: "agent"}, nil)
	s.checkIn(g, time.Now().Add(2*time.Second))
	second := s.granted(g, "second")
	g.Expect(second.Spec.ClientID).NotTo(BeElementOf(first.Spec.ClientID, installed.Spec.ClientID))
	s.isImported(g, "WaitingForAgent") // Only the first Cluster's agent has reported.
	s.handedOut(g, "second")
	g.Eventually(func(g Gomega) { s.isRegistered(g, second) }).Should(Succeed())
	g.Consistently(func(g Gomega) (its string) { its, _ = s.condition(g, "FleetImported"); return its }).Should(Equal("WaitingForAgent"))
	s.checkIn(g, time.Now().Add(2*time.Second))
	s.isImported(g, "Imported")
}
