package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

func newFleetCluster(g Gomega, namespace, name string, annotations map[string]string) *fleetv1.Cluster {
	cluster := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}}
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	return cluster
}

// warnedBy runs kubectl and returns the warnings it shows; what it was asked to do is done.
func warnedBy(g Gomega, input string, args ...string) string {
	_, err := env.KubectlInput(ctx, input, append(args, "--warnings-as-errors")...)
	if err == nil {
		return ""
	}
	g.Expect(err).To(MatchError(MatchRegexp(`error: \d+ warnings? received$`)))
	return err.Error()
}

func warnedApply(g Gomega, manifest string, args ...string) string {
	return warnedBy(g, manifest, append([]string{"apply", "-f", "-"}, args...)...)
}

// A name that is taken in Fleet is refused to the one who types it.
func TestNamesThatAreTaken(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	clusterYAML := func(name string) string {
		return fmt.Sprintf(topologyYAML, s.namespace, name, "standard", s.classNamespace)
	}
	refused := func(manifest string, says ...string) {
		t.Helper()
		g.Eventually(func(g Gomega) { // The webhook's cache hears of others a moment later.
			_, err := apply(t, manifest, "--dry-run=server")
			g.Expect(err).To(MatchError(ContainSubstring(`admission webhook "names.clusters.fleet.addons.cluster.x-k8s.io" denied the request`)))
		}).Should(Succeed())
		_, err := apply(t, manifest)
		for _, part := range says {
			g.Expect(err).To(MatchError(ContainSubstring(part)))
		}
	}

	t.Run("by a Fleet Cluster that somebody made", func(*testing.T) {
		newFleetCluster(g, s.namespace, "theirs", nil)
		refused(clusterYAML("theirs"), `Fleet Cluster "theirs" was made by somebody else; delete it, or annotate it fleet.addons.cluster.x-k8s.io/adopt=true to hand it over; or name this Cluster differently`)
	})
	t.Run("as v1beta1 too", func(*testing.T) {
		refused(fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {namespace: %s, name: theirs}
spec: {clusterNetwork: {pods: {cidrBlocks: [10.7.0.0/16]}}}
`, s.namespace), "was made by somebody else")
	})
	t.Run("by the Fleet Cluster of another Cluster", func(*testing.T) {
		newFleetCluster(g, s.namespace, "anothers", map[string]string{"fleet.addons.cluster.x-k8s.io/imported-from": "an.others"})
		refused(clusterYAML("anothers"), `Fleet Cluster "anothers" is that of Cluster "an.others"`)
	})
	t.Run("by another Cluster's pin, before it is in Fleet", func(*testing.T) {
		out, err := apply(t, clusterYAML("prod.eu"))
		g.Expect(err).NotTo(HaveOccurred(), out)
		refused(clusterYAML("prod-eu-2740657d"), `Cluster "prod.eu" of this namespace has the Fleet Cluster "prod-eu-2740657d", which would be this Cluster's as well; name this Cluster differently`)
	})
	t.Run("by the name with prefix and suffix", func(*testing.T) {
		newFleetCluster(g, s.namespace, "capi-blue", nil)
		setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "capi-"}}})
		refused(clusterYAML("blue"), `Fleet Cluster "capi-blue" was made by somebody else`)
	})
	t.Run("but not what is handed over, elsewhere, or not imported", func(*testing.T) {
		noConfig(t)
		newFleetCluster(g, s.namespace, "handed", map[string]string{stamp.AdoptAnnotation: "true"})
		newFleetCluster(g, s.classNamespace, "elsewhere", nil)
		for _, name := range []string{"handed", "elsewhere"} {
			out, err := apply(t, clusterYAML(name))
			g.Expect(err).NotTo(HaveOccurred(), out)
		}
		setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Enabled: ptr.To(false)}})
		g.Eventually(func() error {
			_, err := apply(t, clusterYAML("theirs"), "--dry-run=server")
			return err
		}).Should(Succeed())
	})
}

// A race that the webhook lost, or did not see, is the syncer's to find; and a Cluster
// that exists stays changeable.
func TestNameRaceIsFoundByTheSyncer(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	foreign := newFleetCluster(g, s.namespace, "late", nil)
	restart := stop(t, g, webhookProcess)
	cluster := fixture.Cluster(s.namespace, "late", "standard", "")
	g.Expect(admin.Create(ctx, cluster)).To(Succeed(), "the webhook for names fails open")
	restart()
	initialize(g, cluster)
	g.Eventually(func(g Gomega) {
		condition := importedCondition(g, cluster)
		g.Expect(condition.Reason).To(Equal("NameConflict"))
		g.Expect(condition.Message).To(ContainSubstring(`Fleet Cluster "late" was made by somebody else`))
	}).Should(Succeed())
	g.Expect(fleetCluster(g, s.namespace, "late").UID).To(Equal(foreign.UID))

	current := get(g, &clusterv1.Cluster{}, s.namespace, "late")
	before := current.DeepCopy()
	current.Labels = map[string]string{"changed": "yes"}
	g.Expect(admin.Patch(ctx, current, client.MergeFrom(before))).To(Succeed())
}

func TestWarningsOnClusters(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"fleet": "yes"}},
	}})
	warned := func(manifest string, says ...string) string {
		t.Helper()
		var out string
		g.Eventually(func(g Gomega) {
			out = warnedApply(g, manifest, "--dry-run=server")
			for _, part := range says {
				g.Expect(out).To(ContainSubstring("Warning: " + part))
			}
		}).Should(Succeed())
		return out
	}
	warned(fmt.Sprintf(topologyYAML, s.namespace, "unselected", "standard", s.classNamespace),
		"this Cluster is not imported into Fleet: its labels do not match spec.cluster.selector of the FleetAddonConfig (fleet=yes)")
	selected := fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %[1]s, name: selected.one, labels: {fleet: "yes"}}
spec: {topology: {classRef: {name: none}, version: v1.36.3}}
`, s.namespace)
	out := warned(selected,
		fmt.Sprintf(`ClusterClass "none" does not exist in namespace %q (yet)`, s.namespace),
		"the Cluster's name does not fit Fleet")
	g.Expect(out).NotTo(ContainSubstring("not imported into Fleet: its labels"))

	_, err := apply(t, fmt.Sprintf(topologyYAML, s.namespace, "relabelled", "standard", s.classNamespace))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(warnedBy(g, "", "-n", s.namespace, "annotate", "clusters.cluster.x-k8s.io", "relabelled", "note=one")).
		To(BeEmpty(), "nothing that is warned of has changed")
	g.Expect(warnedBy(g, "", "-n", s.namespace, "label", "clusters.cluster.x-k8s.io", "relabelled", "fleet=no")).
		To(ContainSubstring("Warning: this Cluster is not imported into Fleet"))
}

func TestWarningsOnTheConfig(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	cluster := fixture.Cluster(s.namespace, "pinned", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(stamp.ClusterNameAnnotation, "pinned"))

	g.Eventually(func(g Gomega) {
		g.Expect(warnedApply(g, configYAML(`{cluster: {selector: {matchLabels: {nobody: has-it}}, naming: {prefix: p-}}}`), "--dry-run=server")).To(And(
			MatchRegexp(`Warning: spec.cluster.selector: none of the [1-9]\d* existing Clusters is selected now`),
			MatchRegexp(`Warning: spec.cluster.naming: the [1-9]\d* Clusters that have a name in Fleet keep it`)))
	}).Should(Succeed())
	g.Expect(warnedApply(g, configYAML(fmt.Sprintf(`{cluster: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}}}`, s.namespace)))).
		To(BeEmpty(), "that one is selected")
	g.Expect(warnedApply(g, configYAML(fmt.Sprintf(`{cluster: {selector: {matchLabels: {nobody: has-it}}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}}}`, s.namespace)), "--dry-run=server")).
		To(ContainSubstring("1 Clusters match only one of the two and are not imported, as both must match: %s/pinned", s.namespace))
	g.Expect(warnedBy(g, "", "delete", "fac", "fleet-addon-config")).To(MatchRegexp(`Warning: [1-9]\d* Clusters stay imported into Fleet, and without a FleetAddonConfig the defaults hold`))

	_, err := apply(t, configYAML(`{}`))
	g.Expect(err).NotTo(HaveOccurred())
	stop(t, g, webhookProcess)
	_, err = env.Kubectl(ctx, "delete", "fac", "fleet-addon-config")
	g.Expect(err).NotTo(HaveOccurred(), "no deletion waits for the webhook")
}

// Whoever names a CA must be allowed to get it; Muster itself may read it only where a
// Role says so.
func TestNamedAuthorities(t *testing.T) {
	g := NewWithT(t)
	noConfig(t)
	namespace := newNamespace(t, g, "ca", nil)
	const (
		caKey  = "ca.crt"
		unread = "%s %s/fleet-ca is not checked, as Muster may not read it"
	)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fleet-ca"}}
	withCA := func(kind, name string) string {
		return configYAML(fmt.Sprintf(`{config: {server: {custom: {apiServerUrl: "https://a", apiServerCaConfigRef: {kind: %s, namespace: %s, name: %s}}}}}`, kind, namespace, name))
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		g.Expect(warnedApply(g, withCA(kind, "fleet-ca"), "--dry-run=server")).To(ContainSubstring(unread, kind, namespace), "no Role is bound")
	}

	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-configs}
rules: [{apiGroups: [addons.cluster.x-k8s.io], resources: [fleetaddonconfigs], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-configs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-configs}
subjects: [{kind: User, name: dora}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: fleet-ca}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: fleet-ca}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: fleet-ca}
subjects: [{kind: ServiceAccount, namespace: muster-system, name: muster-webhook}]
`, namespace))).To(Succeed())

	t.Run("who may not get it may not name it", func(t *testing.T) {
		g := NewWithT(t)
		dora := []string{"--as=dora", "--as-group=system:authenticated"}
		for kind, resource := range map[string]string{"ConfigMap": "configmaps", "Secret": "secrets"} {
			_, err := apply(t, withCA(kind, "fleet-ca"), dora...)
			g.Expect(err).To(MatchError(And(ContainSubstring("spec.config.server.custom.apiServerCaConfigRef: Forbidden"),
				ContainSubstring(`user "dora" may not get %s "fleet-ca" in namespace %q`, resource, namespace), ContainSubstring("ask for a Role there"))))
			g.Expect(err).NotTo(MatchError(ContainSubstring("no such")), "nor is she told what is there")
		}
		_, err := apply(t, configYAML(`{}`), append(dora, "--dry-run=server")...)
		g.Expect(err).NotTo(HaveOccurred())
	})

	refused := func(says string) {
		t.Helper()
		g.Eventually(func(g Gomega) { // Until the Role holds.
			_, err := apply(t, withCA("ConfigMap", "fleet-ca"), "--dry-run=server")
			g.Expect(err).To(MatchError(And(ContainSubstring("spec.config.server.custom.apiServerCaConfigRef: Invalid value"), ContainSubstring(says))))
		}).Should(Succeed())
	}
	refused("no such ConfigMap; create it first")
	g.Expect(admin.Create(ctx, configMap)).To(Succeed())
	put := func(text string) {
		configMap.Data = map[string]string{caKey: text}
		g.Expect(admin.Update(ctx, configMap)).To(Succeed())
	}
	refused("has no key ca.crt")
	put("nonsense")
	refused("holds no certificate in PEM")
	put(certificate(g, time.Now().Add(-time.Hour)))
	refused("expired on")
	put(certificate(g, time.Now().Add(time.Hour)))
	g.Expect(warnedApply(g, withCA("ConfigMap", "fleet-ca"))).NotTo(ContainSubstring("apiServerCaConfigRef"))

	// Another change asks nobody, and what went wrong since then is not held against it.
	g.Expect(warnedBy(g, "", "patch", "fac", "fleet-addon-config", "--type=merge", "-p", `{"spec":{"cluster":{"hostNetwork":false}}}`, "--as=dora", "--as-group=system:authenticated")).
		NotTo(ContainSubstring("apiServerCaConfigRef"))
	g.Expect(admin.Delete(ctx, configMap)).To(Succeed())
	g.Expect(warnedBy(g, "", "patch", "fac", "fleet-addon-config", "--type=merge", "-p", `{"spec":{"cluster":{"hostNetwork":true}}}`)).
		To(ContainSubstring("no such ConfigMap"), "but it is said")
	_, err := apply(t, withCA("ConfigMap", "another"))
	g.Expect(err).To(MatchError(ContainSubstring("no such ConfigMap")))
	g.Expect(warnedApply(g, withCA("Secret", "fleet-ca"))).To(ContainSubstring(unread, "Secret", namespace))
}

// certificate returns a CA certificate, in PEM, that is valid until then.
func certificate(g Gomega, until time.Time) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-24 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	g.Expect(err).NotTo(HaveOccurred())
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// What the webhooks that fail open cannot read they let through, and say so: it is the
// schema that refuses it.
func TestOpenMeansOpen(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	_, err := apply(t, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: unreadable}
spec: {topology: {classRef: standard, version: v1.36.3}}
`, s.namespace), "--validate=false")
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.topology.classRef: Invalid value"), Not(ContainSubstring("admission webhook")))))
	g.Expect(err).To(MatchError(ContainSubstring("Warning: Muster failed, and its log says why: this Cluster was not stamped; the syncer does it")))
}

// The one command for an emergency that the documentation names does what it says: with
// the webhook down, it lets through what failed closed.
func TestNamedEmergencyCommand(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	noConfig(t)
	stop(t, g, webhookProcess)
	cross := fmt.Sprintf(topologyYAML, s.namespace, "emergency", "standard", s.classNamespace)
	_, err := apply(t, cross)
	g.Expect(err).To(MatchError(ContainSubstring(`failed calling webhook "class-access.clusters.fleet.addons.cluster.x-k8s.io"`)))
	_, err = apply(t, configYAML(`{}`))
	g.Expect(err).To(MatchError(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`)))

	saved := get(g, &admissionregistrationv1.ValidatingWebhookConfiguration{}, "", "muster-validating-webhook")
	t.Cleanup(func() {
		saved.ResourceVersion, saved.UID, saved.ManagedFields = "", "", nil
		if err := admin.Create(ctx, saved); err != nil {
			t.Error(err)
		}
	})
	_, err = env.Kubectl(ctx, "delete", "validatingwebhookconfiguration", "muster-validating-webhook")
	g.Expect(err).NotTo(HaveOccurred())
	for _, manifest := range []string{cross, configYAML(`{}`)} {
		g.Eventually(func() error {
			_, err := apply(t, manifest)
			return err
		}).Should(Succeed())
	}
}

// makeAuthorities makes the CAs that a FleetAddonConfig refers to, if there are none.
func makeAuthorities(g Gomega, manifest []byte) {
	config := &addonsv1.FleetAddonConfig{}
	g.Expect(yaml.Unmarshal(manifest, config)).To(Succeed())
	if config.Spec.Config == nil || config.Spec.Config.Server == nil {
		return
	}
	server := config.Spec.Config.Server
	for _, ref := range []*corev1.ObjectReference{server.APIServerCAConfigRef, ptr.Deref(server.Custom, addonsv1.CustomServer{}).APIServerCAConfigRef} {
		if ref == nil || ref.Kind != "ConfigMap" {
			continue
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ref.Namespace}}
		g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, namespace))).To(Succeed())
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
		configMap.Data = map[string]string{"ca.crt": certificate(g, time.Now().Add(time.Hour))}
		g.Expect(client.IgnoreAlreadyExists(admin.Create(ctx, configMap))).To(Succeed())
	}
}
