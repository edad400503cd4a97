package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// thiefAgent is the user agent of requests made with the syncer's token by somebody else.
const thiefAgent = "thief"

// thief returns a client with a token of the syncer's ServiceAccount.
func thief(g Gomega) client.Client {
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.UserAgent = tokenOfAccount(g, "muster-system", "muster-syncer"), thiefAgent
	result, err := fixture.ClientOf(config)
	g.Expect(err).NotTo(HaveOccurred())
	return result
}

// target refers to an object by its kind and key alone.
func target(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func mergePatch(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }

const (
	capiVersion  = "cluster.x-k8s.io/v1beta2"
	fleetVersion = "fleet.cattle.io/v1alpha1"
)

// Who has the syncer's token can do what the syncer does, and no more. RBAC lets all of
// these pass but where the test says so: it is the shipped policies that refuse them.
func TestSyncerToken(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	s.imported(g, "plain")
	syncer := thief(g)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: foreign}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: handed-over, annotations: {fleet.addons.cluster.x-k8s.io/adopt: "true"}}
spec: {privateRepoURL: registry.example}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: ClusterGroup
metadata: {namespace: %[1]s, name: foreign}
spec: {selector: {}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %[1]s, name: foreign}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: %[1]s, name: bundle, labels: {kept: "1"}, annotations: {kept: "1"}}
spec: {resources: []}
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: secret}
`, s.namespace))).To(Succeed())

	// What is there, and is nobody's business: it may be neither changed nor removed.
	kept := `{"metadata":{"labels":{"kept":"1"},"annotations":{"kept":"1"}}}`
	for _, object := range []client.Object{
		target(capiVersion, "Cluster", s.namespace, "one"), target("v1", "Namespace", "", s.namespace),
		target(capiVersion, "ClusterClass", s.classNamespace, "standard"),
	} {
		g.Expect(admin.Patch(ctx, object, mergePatch(kept))).To(Succeed())
	}
	g.Expect(admin.Patch(ctx, target(capiVersion, "Cluster", s.namespace, "one"), mergePatch(`{"spec":{"topology":{
		"variables":[{"name":"region","value":"west"},{"name":"disks","value":{"root":{"size":1}}},{"name":"zones","value":["a","b"]}],
		"controlPlane":{"replicas":1,"variables":{"overrides":[{"name":"region","value":"east"}]}},
		"workers":{"machineDeployments":[
			{"class":"default","name":"md","replicas":1,"variables":{"overrides":[{"name":"region","value":"north"}]}},
			{"class":"default","name":"plain","replicas":1}]}
	}}}`))).To(Succeed())

	foreign := func(kind string) *unstructured.Unstructured {
		return target(fleetVersion, kind, s.namespace, "foreign")
	}
	own := func() *unstructured.Unstructured { return target(fleetVersion, "Cluster", s.namespace, "one") }
	cluster := func() *unstructured.Unstructured { return target(capiVersion, "Cluster", s.namespace, "one") }
	class := func() *unstructured.Unstructured {
		return target(capiVersion, "ClusterClass", s.classNamespace, "standard")
	}
	bundle := func() *unstructured.Unstructured { return target(fleetVersion, "Bundle", s.namespace, "bundle") }
	namespace := func() *unstructured.Unstructured { return target("v1", "Namespace", "", s.namespace) }
	patch := func(object client.Object, body string) func() error {
		return func() error {
			return syncer.Patch(ctx, object.DeepCopyObject().(client.Object), mergePatch(body), client.DryRunAll)
		}
	}
	label := `{"metadata":{"labels":{"a":"b"}}}`
	annotation := `{"metadata":{"annotations":{"a":"b"}}}`
	entry := func(where, key, value string) string {
		return fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, where, key, value)
	}
	topology := func(body string) string { return `{"spec":{"topology":{` + body + `}}}` }
	workers := func(md string) string {
		return topology(`"workers":{"machineDeployments":[` + md + `,{"class":"default","name":"plain","replicas":1}]}`)
	}
	finalizer := `{"metadata":{"finalizers":["a.example/b"]}}`
	owner := `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`
	condition := `{"status":{"conditions":[{"type":"Available","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`

	for _, test := range []struct {
		name    string
		try     func() error
		message string
	}{
		{"label a foreign Fleet Cluster", patch(foreign("Cluster"), label), "may not change a Fleet object that is not Muster's"},
		{"claim a foreign Fleet Cluster", patch(foreign("Cluster"), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"muster"}}}`), "may not change a Fleet object that is not Muster's"},
		{"adopt a foreign Fleet Cluster", patch(foreign("Cluster"), `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/adopt":"true"}}}`), "may not change a Fleet object that is not Muster's"},
		{"edit the spec of a foreign Fleet Cluster", patch(foreign("Cluster"), `{"spec":{"kubeConfigSecret":"x"}}`), "may not change a Fleet object that is not Muster's"},
		{"apply over a foreign Fleet Cluster", func() error {
			object := foreign("Cluster")
			object.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "muster"})
			return syncer.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("addon-provider-fleet"), client.ForceOwnership)
		}, "may not change a Fleet object that is not Muster's"},
		{"delete a foreign Fleet Cluster", func() error { return syncer.Delete(ctx, foreign("Cluster"), client.DryRunAll) }, "may not delete a Fleet object that is not Muster's"},
		{"edit a foreign ClusterGroup", patch(foreign("ClusterGroup"), label), "may not change a Fleet object that is not Muster's"},
		{"edit a foreign BundleNamespaceMapping", patch(foreign("BundleNamespaceMapping"), `{"bundleSelector":{}}`), "may not change a Fleet object that is not Muster's"},
		{"delete a foreign BundleNamespaceMapping", func() error { return syncer.Delete(ctx, foreign("BundleNamespaceMapping"), client.DryRunAll) }, "may not delete a Fleet object that is not Muster's"},
		{"create a Fleet Cluster that is nobody's", func() error {
			return syncer.Create(ctx, target(fleetVersion, "Cluster", s.namespace, "new"), client.DryRunAll)
		}, "only with the label app.kubernetes.io/managed-by=muster"},

		{"choose the image of an agent", patch(own(), `{"spec":{"privateRepoURL":"registry.evil.example"}}`), "spec.privateRepoURL of a Fleet Cluster"},
		{"make a Fleet Cluster with such an image", func() error {
			object := target(fleetVersion, "Cluster", s.namespace, "new")
			object.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "muster"})
			g.Expect(unstructured.SetNestedField(object.Object, "registry.evil.example", "spec", "privateRepoURL")).To(Succeed())
			return syncer.Create(ctx, object, client.DryRunAll)
		}, "spec.privateRepoURL of a Fleet Cluster"},
		{"read a kubeconfig of another namespace", patch(own(), `{"spec":{"kubeConfigSecretNamespace":"kube-system"}}`), "spec.kubeConfigSecretNamespace of a Fleet Cluster"},
		{"choose how agents log in to a registry", patch(own(), `{"spec":{"agentPullSecrets":[{"name":"x"}]}}`), "spec.agentPullSecrets of a Fleet Cluster"},
		{"place an agent", patch(own(), `{"spec":{"agentAffinity":{}}}`), "spec.agentAffinity of a Fleet Cluster"},
		{"starve an agent", patch(own(), `{"spec":{"agentResources":{}}}`), "spec.agentResources of a Fleet Cluster"},
		{"outrank others with an agent", patch(own(), `{"spec":{"agentSchedulingCustomization":{"priorityClass":{"value":1}}}}`), "spec.agentSchedulingCustomization of a Fleet Cluster"},
		{"keep a Fleet Cluster from going", patch(own(), `{"metadata":{"finalizers":["example.com/stays"]}}`), "no finalizers"},
		{"pause a Fleet Cluster", patch(own(), `{"spec":{"paused":true}}`), "spec.paused of a Fleet Cluster"},
		{"take off what others set", patch(target(fleetVersion, "Cluster", s.namespace, "handed-over"), `{"spec":{"privateRepoURL":null}}`), "spec.privateRepoURL of a Fleet Cluster"},

		{"edit a Bundle's spec", patch(bundle(), `{"spec":{"paused":true}}`), "may not change a Bundle's spec"},
		{"put a label of Fleet on a Bundle", patch(bundle(), entry("labels", "objectset.rio.cattle.io/hash", `"x"`)), "reserved domain to a Bundle: objectset.rio.cattle.io/hash"},
		{"put an owner on a Bundle", patch(bundle(), owner), "may not change a Bundle's owners"},
		{"put a finalizer on a Bundle", patch(bundle(), finalizer), "may not change a Bundle's finalizers"},

		{"edit a CAPI Cluster's spec", patch(cluster(), `{"spec":{"topology":{"version":"v1.99.0"}}}`), "may not change a Cluster's spec"},
		{"take a CAPI Cluster's topology off", patch(cluster(), `{"spec":{"topology":null}}`), "may not change a Cluster's spec"},
		{"change a CAPI Cluster's class", patch(cluster(), `{"spec":{"topology":{"classRef":{"name":"x"}}}}`), "may not change a Cluster's spec"},
		{"pause a CAPI Cluster", patch(cluster(), `{"spec":{"paused":true}}`), "may not change a Cluster's spec"},
		{"edit it as v1beta1", patch(target("cluster.x-k8s.io/v1beta1", "Cluster", s.namespace, "plain"), `{"spec":{"paused":true}}`), "may not change a Cluster's spec"},
		{"pause a CAPI Cluster by annotation", patch(cluster(), entry("annotations", "cluster.x-k8s.io/paused", `""`)), "reserved domain to a Cluster: cluster.x-k8s.io/paused"},
		{"put an annotation of Cluster API on it", patch(cluster(), entry("annotations", "topology.cluster.x-k8s.io/hold-upgrade-sequence", `""`)), "topology.cluster.x-k8s.io/hold-upgrade-sequence"},
		{"put an annotation of Muster on it", patch(cluster(), entry("annotations", "fleet.addons.cluster.x-k8s.io/adopt", `"true"`)), "fleet.addons.cluster.x-k8s.io/adopt"},
		{"change a variable", patch(cluster(), topology(`"variables":[{"name":"region","value":"x"},{"name":"disks","value":{"root":{"size":1}}},{"name":"zones","value":["a","b"]}]`)), "variables of a Cluster's topology: region of topology"},
		{"change what is in a variable", patch(cluster(), topology(`"variables":[{"name":"region","value":"west"},{"name":"disks","value":{"root":{"size":2,"kind":"ssd"}}},{"name":"zones","value":["a","b"]}]`)), "disks of topology"},
		{"add to the list of a variable", patch(cluster(), topology(`"variables":[{"name":"region","value":"west"},{"name":"disks","value":{"root":{"size":1}}},{"name":"zones","value":["a","b","c"]}]`)), "zones of topology"},
		{"take variables off", patch(cluster(), topology(`"variables":[{"name":"region","value":"west"}]`)), "disks, zones of topology"},
		{"change an override", patch(cluster(), topology(`"controlPlane":{"variables":{"overrides":[{"name":"region","value":"x"}]}}`)), "region of controlPlane"},
		{"take the overrides off", patch(cluster(), topology(`"controlPlane":{"variables":null}`)), "region of controlPlane"},
		{"change an override of workers", patch(cluster(), workers(`{"class":"default","name":"md","replicas":1,"variables":{"overrides":[{"name":"region","value":"x"}]}}`)), "region of md"},
		{"scale the control plane", patch(cluster(), topology(`"controlPlane":{"replicas":3}`)), "spec.topology: controlPlane"},
		{"scale workers", patch(cluster(), workers(`{"class":"default","name":"md","replicas":3,"variables":{"overrides":[{"name":"region","value":"north"}]}}`)), "spec.topology: md"},
		{"take workers off", patch(cluster(), topology(`"workers":{"machineDeployments":[{"class":"default","name":"plain","replicas":1}]}`)), "spec.topology: md"},
		{"add workers", patch(cluster(), workers(`{"class":"default","name":"more"},{"class":"default","name":"md","replicas":1,"variables":{"overrides":[{"name":"region","value":"north"}]}}`)), "spec.topology: more"},
		{"put a finalizer on a CAPI Cluster", patch(cluster(), finalizer), "put none on"},
		{"put an owner on a CAPI Cluster", patch(cluster(), owner), "may not change a Cluster's owners"},
		{"set another condition of a CAPI Cluster", func() error {
			return syncer.Status().Patch(ctx, cluster(), mergePatch(condition), client.DryRunAll)
		}, "only FleetImported and FleetBundlesReady"},
		{"set another status of a CAPI Cluster", func() error {
			return syncer.Status().Patch(ctx, cluster(), mergePatch(`{"status":{"initialization":{"controlPlaneInitialized":false}}}`), client.DryRunAll)
		}, "may change of a Cluster's status only"},

		{"edit a ClusterClass's spec", patch(class(), `{"spec":{"infrastructure":{"templateRef":{"name":"x"}}}}`), "may not change a ClusterClass's spec"},
		{"put a label of Cluster API on a ClusterClass", patch(class(), entry("labels", "cluster.x-k8s.io/watch-filter", `"x"`)), "reserved domain to a ClusterClass: cluster.x-k8s.io/watch-filter"},
		{"put a finalizer on a ClusterClass", patch(class(), finalizer), "put none on"},

		{"take a Namespace's protection off", patch(namespace(), entry("labels", "pod-security.kubernetes.io/enforce", `"privileged"`)), "reserved domain to a Namespace: pod-security.kubernetes.io/enforce"},
		{"put a Namespace into a project of Rancher", patch(namespace(), entry("annotations", "field.cattle.io/projectId", `"c-1:p-1"`)), "field.cattle.io/projectId"},
		{"put a finalizer on a Namespace", patch(namespace(), finalizer), "may not change a Namespace's finalizers"},
	} {
		t.Run("may not "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			err := test.try()
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(MatchRegexp("ValidatingAdmissionPolicy 'muster-(syncer-|fleet-cluster-namespace)")))
		})
	}

	for kind, object := range map[string]*unstructured.Unstructured{
		"Bundle": bundle(), "Cluster": cluster(), "ClusterClass": class(), "Namespace": namespace(),
	} {
		for _, where := range []string{"labels", "annotations"} {
			for _, value := range []string{`"2"`, "null"} {
				t.Run(fmt.Sprintf("may not set one of the %s of a %s to %s", where, kind, value), func(t *testing.T) {
					g := NewWithT(t)
					err := patch(object, entry(where, "kept", value))()
					g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
					g.Expect(err).To(MatchError(ContainSubstring("may not change or remove labels and annotations of a " + kind + ": kept")))
				})
			}
		}
		// What mutating webhooks add to its requests looks like its own.
		t.Run("may add to a "+kind, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(patch(object, label)()).To(Succeed())
			g.Expect(patch(object, annotation)()).To(Succeed())
			g.Expect(patch(object, entry("labels", "example.com/cost", `"1"`))()).To(Succeed())
		})
	}

	for name, try := range map[string]func() error{
		"read a Secret": func() error {
			object := target("v1", "Secret", s.namespace, "secret")
			return syncer.Get(ctx, client.ObjectKeyFromObject(object), object)
		},
		"patch a Secret":  patch(target("v1", "Secret", s.namespace, "secret"), `{"data":{"a":"Yg=="}}`),
		"create a Secret": func() error { return syncer.Create(ctx, target("v1", "Secret", s.namespace, "new"), client.DryRunAll) },
		"delete a Secret": func() error {
			return syncer.Delete(ctx, target("v1", "Secret", s.namespace, "secret"), client.DryRunAll)
		},
	} {
		t.Run("has no right to "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := try()
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(ContainSubstring("secrets")))
		})
	}

	for name, try := range map[string]func() error{
		"change what it made": patch(target(fleetVersion, "Cluster", s.namespace, "one"), label),
		"write every field that it sets": patch(own(), `{"spec":{"kubeConfigSecret":"x","clientID":"x","agentNamespace":"x","agentTolerations":[{"key":"x"}],
			"agentEnvVars":[{"name":"x","value":"y"}],"hostNetwork":true,"templateValues":{"x":1},"redeployAgentGeneration":1}}`),
		"change what was handed over": patch(target(fleetVersion, "Cluster", s.namespace, "handed-over"), label),
		"retarget a Bundle":           patch(bundle(), `{"metadata":{"annotations":{"fleet.addons.cluster.x-k8s.io/retarget":"1"}}}`),
		"add variables":               patch(cluster(), topology(`"variables":[{"name":"region","value":"west"},{"name":"disks","value":{"root":{"size":1,"kind":"ssd"},"data":{}}},{"name":"zones","value":["a","b"]},{"name":"new","value":1}]`)),
		"add an override":             patch(cluster(), topology(`"controlPlane":{"variables":{"overrides":[{"name":"region","value":"east"},{"name":"new","value":1}]}}`)),
		"add overrides to workers": patch(cluster(), topology(`"workers":{"machineDeployments":[
			{"class":"default","name":"md","replicas":1,"variables":{"overrides":[{"name":"region","value":"north"}]}},
			{"class":"default","name":"plain","replicas":1,"variables":{"overrides":[{"name":"new","value":1}]}}]}`)),
		"stamp a Cluster":      patch(cluster(), `{"metadata":{"labels":{"`+stamp.ClassNameLabel+`":null}}}`),
		"annotate a Namespace": patch(namespace(), `{"metadata":{"annotations":{"field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace":null}}}`),
	} {
		t.Run("may "+name, func(t *testing.T) { NewWithT(t).Expect(try()).To(Succeed()) })
	}

	// A right that somebody adds to the syncer's roles is not one to write.
	t.Run("may not write what a role was added for", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(env.Apply(ctx, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: test-generous
  labels: {fleet.addons.cluster.x-k8s.io/aggregate-to-muster-syncer: "true"}
rules: [{apiGroups: [""], resources: [secrets], verbs: [patch]}]
`)).To(Succeed())
		t.Cleanup(func() {
			_, err := env.Kubectl(ctx, "delete", "clusterrole", "test-generous")
			if err != nil {
				t.Error(err)
			}
		})
		g.Eventually(patch(target("v1", "Secret", s.namespace, "secret"), `{"data":{"a":"Yg=="}}`)).
			Should(MatchError(ContainSubstring("muster-syncer has no business to update secrets")))
	})
}

// The fence has gaps that no policy can close; the documentation says so, and this is why.
// No role that ships opens one.
func TestWhatPoliciesDoNotBound(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-careless}
rules:
- {apiGroups: [admissionregistration.k8s.io], resources: ["*"], verbs: [patch, create]}
- {apiGroups: [""], resources: [users], verbs: [impersonate]}
- {apiGroups: [""], resources: [secrets], verbs: [get, patch]}
- {apiGroups: [""], resources: [serviceaccounts/token], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-careless}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-careless}
subjects: [{kind: ServiceAccount, namespace: muster-system, name: muster-syncer}, {kind: User, name: pat}]
---
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: secret}
`, s.namespace))).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "clusterrolebinding,clusterrole", "test-careless"); err != nil {
			t.Error(err)
		}
	})
	syncer := thief(g)
	label := mergePatch(`{"metadata":{"labels":{"a":"b"}}}`)
	patch := func(by client.Client, object *unstructured.Unstructured) error {
		return by.Patch(ctx, object, label, client.DryRunAll)
	}
	secret := func() *unstructured.Unstructured { return target("v1", "Secret", s.namespace, "secret") }
	registration := func(kind, name string) *unstructured.Unstructured {
		return target("admissionregistration.k8s.io/v1", kind, "", name)
	}
	g.Eventually(func() error { return patch(syncer, secret()) }).Should(MatchError(ContainSubstring("muster-syncer has no business to update secrets")))

	// Policies are not asked about policies and their bindings, about reading, or about whom
	// a request impersonates...
	g.Expect(patch(syncer, registration("ValidatingAdmissionPolicyBinding", "muster-syncer-nothing-else"))).To(Succeed())
	g.Expect(patch(syncer, registration("ValidatingAdmissionPolicy", "muster-syncer-nothing-else"))).To(Succeed())
	mutating := registration("MutatingAdmissionPolicyBinding", "new")
	g.Expect(unstructured.SetNestedField(mutating.Object, "none", "spec", "policyName")).To(Succeed())
	g.Expect(syncer.Create(ctx, mutating, client.DryRunAll)).To(Succeed())
	g.Expect(syncer.Get(ctx, client.ObjectKeyFromObject(secret()), secret())).To(Succeed())
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.UserAgent = tokenOfAccount(g, "muster-system", "muster-syncer"), thiefAgent
	config.Impersonate = rest.ImpersonationConfig{UserName: "pat"}
	asPat, err := fixture.ClientOf(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(patch(asPat, secret())).To(Succeed())

	// ...but about webhooks, and a token of somebody else, they are.
	g.Expect(patch(syncer, registration("ValidatingWebhookConfiguration", "muster-validating-webhook"))).
		To(MatchError(ContainSubstring("muster-syncer has no business to update validatingwebhookconfigurations")))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "generic-garbage-collector"}}
	g.Expect(syncer.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{})).
		To(MatchError(ContainSubstring("muster-syncer has no business to create serviceaccounts/token")))
}

func tokenOfAccount(g Gomega, namespace, name string) string {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	token := &authenticationv1.TokenRequest{}
	g.Expect(admin.SubResource("token").Create(ctx, account, token)).To(Succeed())
	return token.Status.Token
}
