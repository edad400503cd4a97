package fleetinstaller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/fixture"
)

// The installer's token allows exactly what the installer does. That is much; RBAC refuses the rest, and the policies
// do where RBAC cannot.
func TestToken(t *testing.T) {
	g := fresh(t)
	install(g, "0.16.0")
	thief, err := fixture.ClientOfAccount(ctx, env, admin, "muster-system", "muster-installer", thiefAgent)
	g.Expect(err).NotTo(HaveOccurred())

	apply := func(text string) func() error {
		return func() error {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
				return err
			}
			return thief.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("thief"), client.ForceOwnership, client.DryRunAll)
		}
	}
	patch := func(object client.Object, text string) func() error {
		return func() error {
			return thief.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(text)), client.DryRunAll)
		}
	}
	remove := func(object client.Object) func() error {
		return func() error { return thief.Delete(ctx, object, client.DryRunAll) }
	}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "fleet-controller"}}
	// These ConfigMaps belong to no Helm release.
	g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: cattle-system}}")).To(Succeed())
	g.Expect(admin.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "somebodys"}})).To(Succeed())
	rancher := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-system", Name: "rancher-config"}, Data: map[string]string{"fleet": "a: 1"}}
	g.Expect(admin.Create(ctx, rancher)).To(Succeed())
	t.Cleanup(func() { _, _ = env.Kubectl(ctx, "delete", "namespace", "cattle-system") })
	merge := func(namespace, name, text string) func() error {
		return patch(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, text)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNamespace}}
	for name, test := range map[string]struct {
		try     func() error
		message string
	}{
		"read Secrets elsewhere": {func() error { return thief.List(ctx, &corev1.SecretList{}, client.InNamespace("default")) }, "cannot list resource"},
		"read a Secret of Muster's": {func() error {
			return thief.Get(ctx, client.ObjectKey{Namespace: "muster-system", Name: "muster-webhook-tls"}, &corev1.Secret{})
		}, "cannot get resource"},
		"list ConfigMaps": {func() error { return thief.List(ctx, &corev1.ConfigMapList{}) }, "cannot list resource"},
		"make any Secret": {func() error {
			return thief.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "any"}}, client.DryRunAll)
		}, "only those Secrets that are Helm releases"},
		"delete credentials":           {remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: "charts"}}), "only those Secrets that are Helm releases"},
		"delete a CRD":                 {remove(crd("clusters.fleet.cattle.io")), "cannot delete resource"},
		"change another's CRD":         {patch(crd("clusters.cluster.x-k8s.io"), "{}"), "cannot patch resource"},
		"bind cluster-admin to itself": {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: helmops-binding}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, namespace: muster-system, name: muster-installer}]}`), "forbidden"},
		"bind Fleet's role to itself":  {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: fleet-controller-bootstrap}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fleet-controller}, subjects: [{kind: ServiceAccount, namespace: muster-system, name: muster-installer}]}`), "only to Fleet's accounts"},
		"give gitjob every right":      {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: gitjob}, rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]}`), "every right to the cluster role fleet-controller-bootstrap only"},
		"make another cluster role":    {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: other}}`), "forbidden"},
		"bind its role elsewhere":      {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: kube-system, name: muster-installer}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: muster-installer-fleet-namespace}, subjects: [{kind: ServiceAccount, namespace: muster-system, name: muster-installer}]}`), "only in namespace cattle-fleet-system"},
		"bind its role to another":     {apply(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: cattle-fleet-system, name: muster-installer}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: muster-installer-fleet-namespace}, subjects: [{kind: User, name: thief}]}`), "forbidden"},
		"make a Deployment of its own": {apply(`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: cattle-fleet-system, name: mine}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {serviceAccountName: fleet-controller, containers: [{name: a, image: b}]}}}}`), "only objects of the Helm release fleet"},
		"make a Deployment elsewhere":  {apply(`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: default, name: mine}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}}`), "cannot patch resource"},
		"delete Fleet's namespace":     {remove(namespace), "cannot delete resource"},
		"label Fleet's namespace":      {patch(namespace, `{"metadata":{"labels":{"a":"b"}}}`), "nothing else to Namespaces"},
		"change the FleetAddonConfig":  {patch(fixture.Config(), `{"spec":{"install":null}}`), "cannot patch resource"},
		"say that all is well": {func() error {
			return thief.Status().Patch(ctx, fixture.Config(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[]}}`)), client.DryRunAll)
		}, "only FleetInstalled and FleetConfigured"},
		"take a ConfigMap over":      {merge(fleetNamespace, "somebodys", `{"metadata":{"annotations":{"meta.helm.sh/release-name":"fleet"}},"data":{"a":"b"}}`), "only the one key"},
		"own Rancher's ConfigMap":    {merge("cattle-system", "rancher-config", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"gone","uid":"1"}]}}`), "only in namespace cattle-fleet-system"},
		"keep Rancher's ConfigMap":   {merge("cattle-system", "rancher-config", `{"metadata":{"finalizers":["example.com/kept"]}}`), "only in namespace cattle-fleet-system"},
		"freeze Rancher's ConfigMap": {merge("cattle-system", "rancher-config", `{"immutable":true}`), "only in namespace cattle-fleet-system"},
		"set other keys for Rancher": {merge("cattle-system", "rancher-config", `{"data":{"other":"b"}}`), "only in namespace cattle-fleet-system"},
		"import a cluster":           {func() error { return thief.Create(ctx, fixture.Cluster("default", "mine", "", ""), client.DryRunAll) }, "cannot create resource"},
		"read any object":            {func() error { return thief.List(ctx, &rbacv1.ClusterRoleList{}) }, "cannot list resource"},
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := test.try()
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		})
	}
	t.Run("may read Fleet's settings", func(t *testing.T) {
		NewWithT(t).Expect(thief.Get(ctx, client.ObjectKeyFromObject(configMap), configMap)).To(Succeed())
	})
	t.Run("may set the gates for Rancher", func(t *testing.T) {
		NewWithT(t).Expect(merge("cattle-system", "rancher-config", `{"data":{"fleet":"a: 2"}}`)()).To(Succeed())
	})

	// In a Fleet without a Helm release, the installer may change the server only.
	g.Expect(admin.Patch(ctx, configMap, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"meta.helm.sh/release-name":null}}}`)))).To(Succeed())
	before := configMap.Data["config"]
	for name, test := range map[string]struct {
		from, to string
		may      bool
	}{
		"the URL":               {`"apiServerURL": "`, `"apiServerURL": "https://another.`, true},
		"the URL anew":          {`{`, `{"apiServerURL":"https://a",`, false}, // One exists.
		"the agent's image":     {`"agentImage": "`, `"agentImage": "example.com/`, false},
		"both":                  {`"apiServerURL": "`, `"agentImage": "b", "apiServerURL": "https://another.`, false},
		"the image once more":   {`{`, `{"agent\u0049mage": "b", `, false},
		"the image differently": {`{`, `{"AgentImage": "b", `, false},
	} {
		t.Run(fmt.Sprintf("%v: set %s", test.may, name), func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(before).To(ContainSubstring(test.from))
			patch, err := json.Marshal(map[string]any{"data": map[string]string{"config": strings.Replace(before, test.from, test.to, 1)}})
			g.Expect(err).NotTo(HaveOccurred())
			err = merge(fleetNamespace, "fleet-controller", string(patch))()
			if test.may {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring("only the one key")))
		})
	}
}

func crd(name string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return object
}
