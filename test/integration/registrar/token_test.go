package registrar

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// Who has the registrar's token can do what the registrar does, and no more.
func TestRegistrarToken(t *testing.T) {
	g := NewWithT(t)
	s, registered := ready(g, "edge")
	token := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: "muster-registrar"}}
	g.Expect(admin.SubResource("token").Create(ctx, account, token)).To(Succeed())
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.UserAgent = token.Status.Token, thiefAgent
	thief, err := fixture.ClientOf(config)
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: edge-kubeconfig}
stringData: {value: secret}
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: other-fleet-agent}
type: fleet.addons.cluster.x-k8s.io/agent-manifest
`, s.namespace))).To(Succeed())
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	}
	patch := func(object client.Object, body string) func() error {
		return func() error {
			return thief.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
		}
	}
	patchOf := func(kind types.PatchType, body string) func() error {
		return func() error {
			return thief.Patch(ctx, secret("edge-kubeconfig"), client.RawPatch(kind, []byte(body)), client.DryRunAll, client.FieldOwner("thief"))
		}
	}
	deletion := func(object client.Object, options ...client.DeleteOption) func() error {
		return func() error { return thief.Delete(ctx, object, append(options, client.DryRunAll)...) }
	}
	update := func(object client.Object) func() error {
		return func() error { return thief.Update(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll) }
	}
	create := func(object client.Object) func() error {
		return func() error { return thief.Create(ctx, object, client.DryRunAll) }
	}
	named := secret("forged-by-thief")
	named.Type = stamp.ManifestSecretType
	keyed := secret("edge2-fleet-agent")
	keyed.Type = stamp.ManifestSecretType
	keyed.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "edge2", UID: "x"}}
	keyed.StringData = map[string]string{"value": "x"}
	recordIn := func(namespace, name string, change func(*corev1.Secret)) *corev1.Secret {
		record := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: "fleet.addons.cluster.x-k8s.io/agent-record"}
		if change != nil {
			change(record)
		}
		return record
	}
	const records = "cattle-fleet-clusters-system"
	withKey := func(secret *corev1.Secret) { secret.StringData = map[string]string{"server": "https://example.com"} }
	withLabel := func(secret *corev1.Secret) { secret.Labels = map[string]string{"example.com/secret-type": "cluster"} }
	labelledManifest := keyed.DeepCopy()
	labelledManifest.StringData = nil
	withLabel(labelledManifest)
	clinging := func(secret *corev1.Secret) { secret.Finalizers = []string{"example.com/stays"} }
	lasting := s.secret(g).DeepCopy()
	lasting.ManagedFields, lasting.Immutable = nil, ptr.To(true)
	clingingManifest := s.secret(g).DeepCopy()
	clingingManifest.ManagedFields = nil
	clinging(clingingManifest)
	managedByHelm := func(secret *corev1.Secret) { secret.Labels = map[string]string{stamp.ManagedByLabel: "Helm"} }
	// Somebody else has made this one; an update says what the policy says of what is there.
	elsewhere := recordIn("kube-system", "muster-agent-elsewhere", nil)
	g.Expect(admin.Create(ctx, elsewhere)).To(Succeed())
	changedRecord := s.record(g).DeepCopy()
	changedRecord.ManagedFields = nil
	withKey(changedRecord)
	relabelledRecord := s.record(g).DeepCopy()
	relabelledRecord.ManagedFields = nil
	withLabel(relabelledRecord)
	relabelledManifest := s.secret(g).DeepCopy()
	relabelledManifest.ManagedFields = nil
	withLabel(relabelledManifest)
	anothersManifest := s.secret(g).DeepCopy()
	anothersManifest.ManagedFields = nil
	anothersManifest.Labels[clusterv1.ClusterNameLabel] = "another"
	unownedManifest := secret("other-fleet-agent")
	unownedManifest.Type = stamp.ManifestSecretType
	given := secret("edge-fleet-agent")
	given.Type = stamp.ManifestSecretType
	given.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "edge", UID: "x"}}
	registration := &fleetv1.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "thief"}}
	labelled := &fleetv1.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "thief", Labels: map[string]string{
		stamp.ManagedByLabel: stamp.ManagedBy, "fleet.cattle.io/registration-token": "mine"}}}
	guessed := &fleetv1.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "thief", Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}}
	clingingRegistration := guessed.DeepCopy()
	clingingRegistration.Finalizers = []string{"example.com/stays"}
	unowned := registration.DeepCopy()
	unowned.Name = "unowned"
	g.Expect(admin.Create(ctx, unowned)).To(Succeed())
	cluster := func() *clusterv1.Cluster { return s.cluster.DeepCopy() }
	for name, test := range map[string]struct {
		try     func() error
		message string
	}{
		"read a Secret by a merge patch":     {patch(secret("edge-kubeconfig"), "{}"), "cannot patch resource"},
		"read a Secret by a JSON patch":      {patchOf(types.JSONPatchType, `[{"op":"copy","from":"/data/value","path":"/type"}]`), "cannot patch resource"},
		"read a Secret by a strategic patch": {patchOf(types.StrategicMergePatchType, "{}"), "cannot patch resource"},
		"compare a Secret by an apply":       {patchOf(types.ApplyPatchType, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"edge-kubeconfig"},"data":{"value":"c2VjcmV0"}}`), "cannot patch resource"},
		"read a manifest by a patch":         {patch(secret("edge-fleet-agent"), "{}"), "cannot patch resource"},
		"read a Secret by deleting it":       {deletion(secret("edge-kubeconfig"), client.PropagationPolicy(metav1.DeletePropagationForeground)), "cannot delete resource"},
		"read one by orphaning what it owns": {deletion(secret("edge-kubeconfig"), client.PropagationPolicy(metav1.DeletePropagationOrphan)), "cannot delete resource"},
		"read a manifest by deleting it":     {deletion(secret("edge-fleet-agent"), client.PropagationPolicy(metav1.DeletePropagationForeground)), "cannot delete resource"},
		"delete all Secrets": {func() error {
			return thief.DeleteAllOf(ctx, secret(""), client.InNamespace(s.namespace), client.DryRunAll)
		}, "cannot deletecollection resource"},
		"delete what Fleet leaves": {deletion(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-clusters-system", Name: oracle.CredentialName(&registered)}}), "only Secrets of type"},
		"delete all that Fleet leaves": {func() error {
			return thief.DeleteAllOf(ctx, secret(""), client.InNamespace("cattle-fleet-clusters-system"), client.DryRunAll)
		}, "cannot deletecollection resource"},
		"change one of the type of nobody":           {update(unownedManifest), "that one Cluster owns"},
		"make any Secret":                            {create(secret("any")), "only Secrets of type"},
		"make the token of an account":               {create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}), "only Secrets of type"},
		"make one that no Cluster owns":              {create(named), "that one Cluster owns"},
		"make one with another key":                  {create(keyed), "the keys manifest and token"},
		"make a record of another name":              {create(recordIn(records, "record", nil)), "that are named muster-agent-"},
		"make a record in another namespace":         {create(recordIn(s.namespace, "muster-agent-x", nil)), "only in cattle-fleet-clusters-system"},
		"make a record among the system's Secrets":   {create(recordIn("kube-system", "muster-agent-x", withKey)), "only in cattle-fleet-clusters-system"},
		"change a record in another namespace":       {update(elsewhere), "only in cattle-fleet-clusters-system"},
		"make a record with another key":             {create(recordIn(records, "muster-agent-x", withKey)), "into a record"},
		"put another key into a record":              {update(changedRecord), "into a record"},
		"make a record with another label":           {create(recordIn(records, "muster-agent-x", withLabel)), "no labels but"},
		"make a record that another program manages": {create(recordIn(records, "muster-agent-x", managedByHelm)), "no labels but"},
		"put another label on a record":              {update(relabelledRecord), "no labels but"},
		"make a manifest with another label":         {create(labelledManifest), "no labels but"},
		"put another label on a manifest":            {update(relabelledManifest), "no labels but"},
		"label a manifest as of another Cluster":     {update(anothersManifest), "no labels but"},
		"make a record that does not go":             {create(recordIn(records, "muster-agent-x", clinging)), "no finalizers"},
		"keep a manifest from going":                 {update(clingingManifest), "no finalizers"},
		"make a manifest immutable":                  {update(lasting), "make none immutable"},
		"make a registration that does not go":       {create(clingingRegistration), "no finalizer"},
		"give a manifest to another":                 {update(given), "whose a Secret is"},
		"get a Secret": {func() error {
			return thief.Get(ctx, client.ObjectKeyFromObject(secret("edge-fleet-agent")), secret(""))
		}, "cannot get resource"},
		"list Secrets":                        {func() error { return thief.List(ctx, &corev1.SecretList{}) }, "cannot list resource"},
		"list the keys of the webhook":        {func() error { return thief.List(ctx, &corev1.SecretList{}, client.InNamespace("muster-system")) }, "cannot list resource"},
		"register without a label":            {create(registration), "only ClusterRegistrations with the label"},
		"register for the holders of a token": {create(labelled), "no other label"},
		"register what is guessed":            {create(guessed), "that nobody guesses"},
		"delete what no Fleet Cluster owns":   {func() error { return thief.Delete(ctx, unowned.DeepCopy(), client.DryRunAll) }, "what a Fleet Cluster owns"},
		"say that a Cluster is imported": {func() error {
			return thief.Status().Patch(ctx, cluster(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"X","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)), client.DryRunAll)
		}, "only FleetAgentManifestReady"},
		"pause a Cluster":        {patch(cluster(), `{"spec":{"paused":true}}`), "cannot patch resource"},
		"change a Fleet Cluster": {patch(&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "edge"}}, `{"spec":{"clientID":"x"}}`), "cannot patch resource"},
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := test.try()
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		})
	}
	t.Run("what it replaces it does not see", func(t *testing.T) {
		g := NewWithT(t)
		// The API server lets nobody change a type, and says so before any policy is asked.
		for _, kind := range []corev1.SecretType{stamp.ManifestSecretType, corev1.SecretTypeOpaque} {
			replaced := secret("edge-kubeconfig")
			replaced.Type = kind
			err := thief.Update(ctx, replaced, client.DryRunAll)
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).NotTo(ContainSubstring("c2VjcmV0"))
			g.Expect(replaced.Data).To(BeEmpty())
		}
	})
	t.Run("may write its own again", func(t *testing.T) {
		g := NewWithT(t)
		for _, its := range []*corev1.Secret{s.record(g), s.secret(g)} {
			its.ManagedFields = nil
			g.Expect(update(its)()).To(Succeed())
		}
	})
	t.Run("may read its records", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(thief.List(ctx, &corev1.SecretList{}, client.InNamespace("cattle-fleet-clusters-system"))).To(Succeed())
	})
}
