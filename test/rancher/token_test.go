package rancher

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
)

// fieldManagers are the field managers that a thief may name in a request: those of Muster's own objects and of
// attachments, and none.
var fieldManagers = []string{"addon-provider-fleet", "one-addon-provider-fleet", manager, ""}

// owner is an owner reference that a thief may write.
const owner = `{"apiVersion":"v1","kind":"ConfigMap","name":"mine","uid":"mine"}`

// refused are merge patches of a Fleet Cluster of Rancher's that the policy refuses, each with the field that the
// message names.
var refused = map[string]string{
	`{"metadata":{"labels":{"management.cattle.io/cluster-name":"c-other"}}}`:     "management.cattle.io/cluster-name",
	`{"metadata":{"labels":{"management.cattle.io/cluster-name":null}}}`:          "management.cattle.io/cluster-name",
	`{"metadata":{"labels":{"fleet.cattle.io/cluster-management":"true"}}}`:       "fleet.cattle.io/cluster-management",
	`{"metadata":{"annotations":{"objectset.rio.cattle.io/applied":"x"}}}`:        "objectset.rio.cattle.io/applied",
	`{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/adopt":"true"}}}`: "fleet.addons.cluster.x-k8s.io/adopt",
	`{"metadata":{"finalizers":["example.com/mine"]}}`:                            "finalizers",
	`{"metadata":{"finalizers":null}}`:                                            "finalizers",
	`{"metadata":{"ownerReferences":[` + owner + `]}}`:                            "owners",
	`{"metadata":{"labels":{"region":"us"}}}`:                                     "another client has set",
	`{"metadata":{"labels":{"region":null}}}`:                                     "another client has set",
	`{"metadata":{"managedFields":[{}]}}`:                                         "another client has set",
	`{"spec":{"privateRepoURL":"registry.evil.example.com"}}`:                     "privateRepoURL",
	`{"spec":{"kubeConfigSecret":"other"}}`:                                       "kubeConfigSecret",
	`{"spec":{"clientID":"mine"}}`:                                                "clientID",
	`{"spec":{"agentEnvVars":[{"name":"HTTPS_PROXY","value":"http://evil"}]}}`:    "agentEnvVars",
	`{"spec":{"agentNamespace":"fleet-addon-agent","redeployAgentGeneration":7}}`: "agentNamespace",
}

// isGuarded expects every forbidden write to a Fleet Cluster of Rancher's to be refused. All requests are real.
func isGuarded(g Gomega, thief client.Client, d *downstream, by string) {
	before := d.fleet(g)
	for body, message := range refused {
		err := thief.Patch(ctx, d.fleet(g), client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner(by))
		g.Expect(err).To(MatchError(ContainSubstring(message)), "%s as %q", body, by)
	}
	g.Expect(thief.Delete(ctx, d.fleet(g))).To(MatchError(ContainSubstring("muster-syncer may not delete")), "as %q", by)
	after := d.fleet(g)
	g.Expect(after.UID).To(Equal(before.UID))
	g.Expect(after.DeletionTimestamp).To(BeNil())
	g.Expect(after.Spec.KubeConfigSecret).To(Equal(d.FleetCluster().Spec.KubeConfigSecret))
}

// With the syncer's token, a thief may write to Rancher's Fleet Cluster only what the syncer writes there, also
// after having written to it.
func TestPolicies(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	thief := newThief(g)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := imports(g, newCluster(g, namespace, "one", "std", "", marked("region", "eu")), workspace)
	willReport(g, d.Cluster, "True Attached")
	for i, by := range fieldManagers {
		body := fmt.Sprintf(`{"metadata":{"labels":{"stolen-%[1]d":"x"},"annotations":{"note-%[1]d":"x"}},"spec":{"templateValues":{"Stolen%[1]d":"x"}}}`, i)
		g.Expect(thief.Patch(ctx, d.fleet(g), client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner(by))).To(Succeed(), "as %q", by)
		claim := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"muster"}}}`))
		g.Expect(thief.Patch(ctx, d.fleet(g), claim, client.FieldOwner(by))).To(MatchError(ContainSubstring("app.kubernetes.io/managed-by")), "as %q", by)
		isGuarded(g, thief, d, by)
	}
	// Sharing a field with its owner gives no right to change it.
	region := func(value string) error {
		return thief.Patch(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster",
			"metadata": map[string]any{"namespace": workspace, "name": d.Key().Name, "labels": map[string]any{"region": value}},
		}}, client.Apply, client.FieldOwner("addon-provider-fleet"), client.ForceOwnership) //nolint:staticcheck // as somebody else's client
	}
	g.Expect(region("eu")).To(Succeed())
	g.Expect(region("us")).To(MatchError(ContainSubstring("another client has set")))
	isGuarded(g, thief, d, "addon-provider-fleet")
	d.applies(g)

	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"namespace":"kube-system"}}`))
	g.Expect(thief.Status().Patch(ctx, d.fleet(g), status)).To(MatchError(ContainSubstring("forbidden")))
	for _, object := range []client.Object{d.Management, d.Provisioning} {
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		g.Expect(thief.Patch(ctx, object, label)).To(MatchError(ContainSubstring("forbidden")))
	}
	// An agent of the thief's could register with these.
	for _, object := range []client.Object{
		&fleetv1.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "thief"}},
		&fleetv1.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "thief"}},
	} {
		g.Expect(thief.Create(ctx, object)).To(MatchError(ContainSubstring("forbidden")))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "default"}}
	g.Expect(thief.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{})).To(MatchError(ContainSubstring("forbidden")))
}

// Rancher takes over a Fleet Cluster that it finds under the name of its own. A thief who was faster gains nothing.
func TestTakenName(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	thief := newThief(g)
	namespace, workspace := newNamespace(g, "team", nil), newNamespace(g, "workspace", nil)
	d := turtlesImports(g, newCluster(g, namespace, "one", "", "", marked("region", "eu")), nil)
	d.assignsWorkspace(g, workspace)
	d.provisions(g)
	forged := func(labels, annotations map[string]string) *fleetv1.Cluster {
		fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: d.Key().Name, Labels: labels, Annotations: annotations}}
		if fleet.Labels == nil {
			fleet.Labels = map[string]string{}
		}
		fleet.Labels["app.kubernetes.io/managed-by"] = "muster"
		return fleet
	}
	for message, fleet := range map[string]*fleetv1.Cluster{
		player.ClusterNameLabel:               forged(map[string]string{player.ClusterNameLabel: d.Management.GetName()}, nil),
		"fleet.cattle.io/cluster-management":  forged(map[string]string{"fleet.cattle.io/cluster-management": "true"}, nil),
		"fleet.addons.cluster.x-k8s.io/adopt": forged(nil, map[string]string{"fleet.addons.cluster.x-k8s.io/adopt": "true"}),
	} {
		g.Expect(thief.Create(ctx, fleet, client.FieldOwner("addon-provider-fleet"))).To(MatchError(ContainSubstring(message)))
	}
	fleet := forged(nil, nil)
	g.Expect(thief.Create(ctx, fleet, client.FieldOwner("addon-provider-fleet"))).To(Succeed())
	d.becomesReady(g)
	d.applies(g)
	g.Expect(d.fleet(g).UID).To(Equal(fleet.UID))
	isGuarded(g, thief, d, "addon-provider-fleet")

	// A person may hand it over, as any other.
	patch(g, d.fleet(g), `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/adopt":"true"}}}`)
	body := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hostNetwork":true},"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/adopt":null}}}`))
	g.Expect(thief.Patch(ctx, d.fleet(g), body)).To(Succeed())
	g.Expect(thief.Patch(ctx, d.fleet(g), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hostNetwork":false}}`)))).
		To(MatchError(ContainSubstring("hostNetwork")), "Rancher applies it")
	patch(g, d.fleet(g), fmt.Sprintf(`{"metadata":{"annotations":{"objectset.rio.cattle.io/owner-gvk":null},"ownerReferences":[
		{"apiVersion":"provisioning.cattle.io/v1","kind":"Cluster","name":%q,"uid":%q}]}}`, d.Provisioning.GetName(), d.Provisioning.GetUID()))
	g.Expect(thief.Patch(ctx, d.fleet(g), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hostNetwork":false}}`)))).
		To(MatchError(ContainSubstring("hostNetwork")), "Rancher's provisioning Cluster owns it")
	patch(g, d.fleet(g), `{"metadata":{"ownerReferences":null}}`)
	g.Expect(thief.Patch(ctx, d.fleet(g), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hostNetwork":false}}`)))).To(Succeed())
}

func newThief(g Gomega) client.Client {
	thief, err := fixture.ClientOfAccount(ctx, env, admin, "muster-system", syncerProcess, thiefAgent)
	g.Expect(err).NotTo(HaveOccurred())
	return thief
}
