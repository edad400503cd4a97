package registrar

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// deed is one row of a table.
type deed fixture.Deed

// The registrar's token allows exactly what the registrar does.
func TestRegistrarToken(t *testing.T) {
	g := NewWithT(t)
	s, registered := ready(g, "edge")
	thief, err := fixture.ClientOfAccount(ctx, env, admin, "muster-system", process, thiefAgent)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: edge-kubeconfig}, stringData: {value: secret}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: other-fleet-agent}, type: fleet.addons.cluster.x-k8s.io/agent-manifest}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: kube-system, name: muster-agent-elsewhere}, type: fleet.addons.cluster.x-k8s.io/agent-record}
---
{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterRegistration, metadata: {namespace: %[1]s, name: unowned}}
`, s.namespace))).To(Succeed())

	type change = func(client.Object)
	made := func(object client.Object, namespace, name string, changes ...change) client.Object {
		object.SetNamespace(namespace)
		object.SetName(name)
		for _, change := range changes {
			change(object)
		}
		return object
	}
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	}
	record := func(namespace, name string, changes ...change) client.Object {
		return made(&corev1.Secret{Type: "fleet.addons.cluster.x-k8s.io/agent-record"}, namespace, name, changes...)
	}
	manifest := func(name string, changes ...change) client.Object {
		return made(&corev1.Secret{Type: stamp.ManifestSecretType}, s.namespace, name, changes...)
	}
	registration := func(name string, changes ...change) client.Object {
		return made(&fleetv1.ClusterRegistration{}, s.namespace, name, changes...)
	}
	// An update changes an existing object, so the policy also sees the old one.
	theRecord := func(change change) client.Object {
		return made(s.record(g).DeepCopy(), records, s.record(g).Name, unmanaged, change)
	}
	theManifest := func(change change) client.Object {
		return made(s.secret(g), s.namespace, "edge-fleet-agent", unmanaged, change)
	}
	withKey := func(object client.Object) {
		object.(*corev1.Secret).StringData = map[string]string{"server": "https://example.com"}
	}
	immutable := func(object client.Object) { object.(*corev1.Secret).Immutable = ptr.To(true) }
	clinging := func(object client.Object) { object.SetFinalizers([]string{"example.com/stays"}) }
	labelled := func(key, value string) change {
		return func(object client.Object) {
			object.SetLabels(stamp.Merge(object.GetLabels(), map[string]string{key: value}))
		}
	}
	extra := labelled("example.com/secret-type", "cluster")
	ours := labelled(stamp.ManagedByLabel, stamp.ManagedBy)
	ownedBy := func(name string) change {
		return func(object client.Object) {
			object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: name, UID: "x"}})
		}
	}
	kubeconfig, its := secret("edge-kubeconfig"), secret("edge-fleet-agent")
	credential := made(&corev1.Secret{}, records, oracle.CredentialName(&registered))
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "token",
		Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type: corev1.SecretTypeServiceAccountToken}
	const (
		cannot    = "cannot patch resource"
		imported  = `status {"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"X","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
		foreign   = "only in " + records
		noLabels  = "no labels but"
		onlyTypes = "only Secrets of type"
	)
	for _, test := range []deed{
		{"may not read a Secret by a merge patch", kubeconfig, "{}", cannot},
		{"may not compare a Secret by an apply", kubeconfig, "apply", cannot},
		{"may not read a manifest by a patch", its, "{}", cannot},
		{"may not read a Secret by deleting it", kubeconfig, "delete", "cannot delete resource"},
		{"may not read a manifest by deleting it", its, "delete", "cannot delete resource"},
		{"may not get a Secret", its, "get", "cannot get resource"},
		{"may not delete what Fleet leaves", credential, "delete", onlyTypes},
		{"may not change one of the type of nobody", manifest("other-fleet-agent"), "update", "that one Cluster owns"},
		{"may not make any Secret", secret("any"), "create", onlyTypes},
		{"may not make the token of an account", token, "create", onlyTypes},
		{"may not make one that no Cluster owns", manifest("forged-by-thief"), "create", "that one Cluster owns"},
		{"may not make one with another key", manifest("edge2-fleet-agent", ownedBy("edge2"), withKey), "create", "the keys manifest and token"},
		{"may not make a record of another name", record(records, "record"), "create", "that are named muster-agent-"},
		{"may not make a record in another namespace", record(s.namespace, "muster-agent-x"), "create", foreign},
		{"may not make a record among the system's Secrets", record("kube-system", "muster-agent-x", withKey), "create", foreign},
		{"may not change a record in another namespace", record("kube-system", "muster-agent-elsewhere"), "update", foreign},
		{"may not make a record with another key", record(records, "muster-agent-x", withKey), "create", "into a record"},
		{"may not put another key into a record", theRecord(withKey), "update", "into a record"},
		{"may not make a record with another label", record(records, "muster-agent-x", extra), "create", noLabels},
		{"may not make a record that another program manages", record(records, "muster-agent-x", labelled(stamp.ManagedByLabel, "Helm")), "create", noLabels},
		{"may not put another label on a record", theRecord(extra), "update", noLabels},
		{"may not make a manifest with another label", manifest("edge2-fleet-agent", ownedBy("edge2"), extra), "create", noLabels},
		{"may not put another label on a manifest", theManifest(extra), "update", noLabels},
		{"may not label a manifest as of another Cluster", theManifest(labelled(clusterv1.ClusterNameLabel, "another")), "update", noLabels},
		{"may not make a record that does not go", record(records, "muster-agent-x", clinging), "create", "no finalizers"},
		{"may not keep a manifest from going", theManifest(clinging), "update", "no finalizers"},
		{"may not make a manifest immutable", theManifest(immutable), "update", "make none immutable"},
		{"may not give a manifest to another", manifest("edge-fleet-agent", ownedBy("edge")), "update", "whose a Secret is"},
		{"may not make a registration that does not go", registration("thief", ours, clinging), "create", "no finalizer"},
		{"may not register without a label", registration("thief"), "create", "only ClusterRegistrations with the label"},
		{"may not register for the holders of a token", registration("thief", ours, labelled("fleet.cattle.io/registration-token", "mine")), "create",
			"no other label"},
		{"may not register what is guessed", registration("thief", ours), "create", "that nobody guesses"},
		{"may not delete what no Fleet Cluster owns", registration("unowned"), "delete", "what a Fleet Cluster owns"},
		{"may not say that a Cluster is imported", s.cluster, imported, "only FleetAgentManifestReady"},
		{"may not pause a Cluster", s.cluster, `{"spec":{"paused":true}}`, cannot},
		{"may not change a Fleet Cluster", s.fleet(g), `{"spec":{"clientID":"x"}}`, cannot},
		{"may write its record again", made(s.record(g), records, s.record(g).Name, unmanaged), "update", ""},
		{"may write its manifest again", made(s.secret(g), s.namespace, "edge-fleet-agent", unmanaged), "update", ""},
	} {
		t.Run(test.Name, func(t *testing.T) {
			g := NewWithT(t)
			err := fixture.Deed(test).Try(ctx, thief)
			if test.Refused == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.Refused)))
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		})
	}
	// Other requests need verbs of their own. TestNoAccountDisclosesSecrets also tries every request that is answered
	// with a Secret.
	for verb, err := range map[string]error{
		"patch": thief.Patch(ctx, kubeconfig, client.RawPatch(types.JSONPatchType,
			[]byte(`[{"op":"copy","from":"/data/value","path":"/type"}]`)), client.DryRunAll),
		"deletecollection": thief.DeleteAllOf(ctx, secret(""), client.InNamespace(s.namespace), client.DryRunAll),
		"list":             thief.List(ctx, &corev1.SecretList{}),
	} {
		g.Expect(err).To(MatchError(ContainSubstring("cannot " + verb + " resource")))
	}
	g.Expect(thief.DeleteAllOf(ctx, secret(""), client.InNamespace(records),
		client.DryRunAll)).To(MatchError(ContainSubstring("cannot deletecollection resource")))
	g.Expect(thief.List(ctx, &corev1.SecretList{}, client.InNamespace("muster-system"))).To(MatchError(ContainSubstring("cannot list resource")),
		"the keys of the webhook")
	g.Expect(thief.List(ctx, &corev1.SecretList{}, client.InNamespace(records))).To(Succeed(), "its records")
	// The registrar does not see the Secret that it replaces. The API server lets no client change a type, and says
	// so before it evaluates any policy.
	for _, kind := range []corev1.SecretType{stamp.ManifestSecretType, corev1.SecretTypeOpaque} {
		replaced := secret("edge-kubeconfig")
		replaced.Type = kind
		err := thief.Update(ctx, replaced, client.DryRunAll)
		g.Expect(err).To(MatchError(Not(ContainSubstring("c2VjcmV0"))))
		g.Expect(replaced.Data).To(BeEmpty())
	}
}

func unmanaged(object client.Object) { object.SetManagedFields(nil) }
