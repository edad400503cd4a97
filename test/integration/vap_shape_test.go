package integration

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

// A mapping hands out the bundles of a namespace. Who has the syncer's token makes none
// but of the shape that Muster's have, and no group but those of a class.
func TestShapesOfTheSyncer(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	syncer := thief(g)
	stop(t, g, syncerProcess) // It would put back what is edited here.
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: fleet.cattle.io/v1alpha1
kind: BundleNamespaceMapping
metadata: {namespace: %[1]s, name: edited, labels: {app.kubernetes.io/managed-by: muster}}
bundleSelector: {matchLabels: {by: somebody}}
namespaceSelector: {matchLabels: {by: somebody}}
`, s.classNamespace))).To(Succeed())

	const ownBundles = `{"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]}`
	namespaceOf := func(name string) string {
		return fmt.Sprintf(`{"matchLabels":{"kubernetes.io/metadata.name":%q}}`, name)
	}
	mapping := func(bundles, namespaces string) *unstructured.Unstructured {
		text := fmt.Sprintf(`{"apiVersion":%q,"kind":"BundleNamespaceMapping","metadata":{"namespace":%q,"name":"victim","labels":{"app.kubernetes.io/managed-by":"muster"}}`,
			fleetVersion, s.classNamespace)
		for field, value := range map[string]string{"bundleSelector": bundles, "namespaceSelector": namespaces} {
			if value != "" {
				text += fmt.Sprintf(`,%q:%s`, field, value)
			}
		}
		return object(g, text+"}")
	}
	group := func(spec string) *unstructured.Unstructured {
		return object(g, fmt.Sprintf(`{"apiVersion":%q,"kind":"ClusterGroup","metadata":{"namespace":%q,"name":"new","labels":{"app.kubernetes.io/managed-by":"muster"}},"spec":%s}`,
			fleetVersion, s.namespace, spec))
	}
	ofClass := `{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"a","clusterclass-namespace.fleet.addons.cluster.x-k8s.io":"b"}`
	create := func(object client.Object) func() error {
		return func() error { return syncer.Create(ctx, object, client.DryRunAll) }
	}
	patch := func(object client.Object, body string) func() error {
		return func() error { return syncer.Patch(ctx, object, mergePatch(body), client.DryRunAll) }
	}
	ours := func() client.Object {
		return target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, s.namespace)
	}
	oursGroup := func() client.Object { return target(fleetVersion, "ClusterGroup", s.namespace, s.group().Name) }
	edited := func() client.Object {
		return target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, "edited")
	}

	for name, try := range map[string]func() error{
		"make a mapping of all bundles":                    create(mapping(`{}`, namespaceOf("victim"))),
		"make a mapping to all namespaces":                 create(mapping(ownBundles, `{}`)),
		"make a mapping to another namespace":              create(mapping(ownBundles, namespaceOf("other"))),
		"make a mapping to its namespace and more":         create(mapping(ownBundles, `{"matchLabels":{"kubernetes.io/metadata.name":"victim"},"matchExpressions":[]}`)),
		"make a mapping of agent bundles":                  create(mapping(`{"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"Exists"}]}`, namespaceOf("victim"))),
		"make a mapping of chosen bundles":                 create(mapping(strings.Replace(ownBundles, "{", `{"matchLabels":{"a":"b"},`, 1), namespaceOf("victim"))),
		"let a mapping map all bundles":                    patch(ours(), `{"bundleSelector":{"matchExpressions":null}}`),
		"let a mapping map to all namespaces":              patch(ours(), `{"namespaceSelector":{"matchLabels":null}}`),
		"let a mapping map to another namespace":           patch(ours(), `{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"other"}}}`),
		"set one selector beside what somebody made of it": patch(edited(), `{"bundleSelector":{"matchLabels":null,"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]}}`),
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := try()
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(ContainSubstring("muster-syncer may only make BundleNamespaceMappings")))
		})
	}
	for name, try := range map[string]func() error{
		"make a group of all clusters":          create(group(`{"selector":{}}`)),
		"make a group of chosen clusters":       create(group(`{"selector":{"matchLabels":{"a":"b"}}}`)),
		"make a group of half a class":          create(group(`{"selector":{"matchLabels":{"clusterclass-name.fleet.addons.cluster.x-k8s.io":"a"}}}`)),
		"make a group of a class and others":    create(group(`{"selector":{"matchLabels":` + strings.Replace(ofClass, "{", `{"a":"b",`, 1) + `}}`)),
		"make a group by expressions":           create(group(`{"selector":{"matchLabels":` + ofClass + `,"matchExpressions":[{"key":"a","operator":"Exists"}]}}`)),
		"let a group hold all clusters":         patch(oursGroup(), `{"spec":{"selector":{"matchLabels":null}}}`),
		"let a group hold clusters of no class": patch(oursGroup(), `{"spec":{"selector":null}}`),
	} {
		t.Run("may not "+name, func(t *testing.T) {
			g := NewWithT(t)
			err := try()
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
			g.Expect(err).To(MatchError(ContainSubstring("muster-syncer may only make ClusterGroups")))
		})
	}
	for name, try := range map[string]func() error{
		"make a mapping":                                create(mapping(ownBundles, namespaceOf("victim"))),
		"make a mapping that maps nothing":              create(mapping("", "")),
		"make a group":                                  create(group(`{"selector":{"matchLabels":` + ofClass + `}}`)),
		"retire a mapping":                              patch(ours(), `{"bundleSelector":null,"namespaceSelector":null}`),
		"retire a mapping that somebody edited":         patch(edited(), `{"bundleSelector":null,"namespaceSelector":null}`),
		"half retire a mapping that is half somebody's": patch(edited(), `{"namespaceSelector":null}`),
		"label a mapping that somebody edited":          patch(edited(), `{"metadata":{"labels":{"a":"b"}}}`),
		"put back what somebody edited":                 patch(edited(), `{"bundleSelector":{"matchLabels":null,"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]},"namespaceSelector":{"matchLabels":{"by":null,"kubernetes.io/metadata.name":"edited"}}}`),
	} {
		t.Run("may "+name, func(t *testing.T) { NewWithT(t).Expect(try()).To(Succeed()) })
	}

	// RBAC cannot tell a name at creation; the fence can.
	t.Run("may hold no Lease but its own", func(t *testing.T) {
		g := NewWithT(t)
		lease := func(name string) *unstructured.Unstructured {
			return target("coordination.k8s.io/v1", "Lease", "muster-system", name)
		}
		g.Expect(syncer.Create(ctx, lease("other"), client.DryRunAll)).To(MatchError(ContainSubstring("muster-syncer has no business to create leases")))
		g.Expect(admin.Create(ctx, lease("other"))).To(Succeed())
		err := syncer.Get(ctx, client.ObjectKey{Namespace: "muster-system", Name: "other"}, lease("other"))
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(admin.Delete(ctx, lease("other"))).To(Succeed())
		own := lease("muster-syncer")
		g.Expect(syncer.Get(ctx, client.ObjectKeyFromObject(own), own)).To(Succeed())
		g.Expect(syncer.Update(ctx, own, client.DryRunAll)).To(Succeed())
	})
}

// Fleet makes accounts, deploys and deletes in the namespace that a Fleet Cluster's status
// names, and any agent may write that status.
func TestWhereFleetDeploysIsFleets(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: agent-%[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: fleet-%[1]s}
rules:
- {apiGroups: [fleet.cattle.io], resources: [clusters, clusters/status], verbs: ["*"]}
- {apiGroups: [""], resources: [namespaces], verbs: ["*"]}
- {apiGroups: [""], resources: [secrets], resourceNames: [granted-kubeconfig], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fleet-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fleet-%[1]s}
subjects: [{kind: User, name: fleet-%[1]s}]
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: bare}
`, s.namespace))).To(Succeed())
	agent, err := fixture.ClientAs(env, "agent-"+s.namespace)
	g.Expect(err).NotTo(HaveOccurred())
	fleet, err := fixture.ClientAs(env, "fleet-"+s.namespace)
	g.Expect(err).NotTo(HaveOccurred())
	bare := func() client.Object { return target(fleetVersion, "Cluster", s.namespace, "bare") }
	status := func(writer client.Client, status string) error {
		return writer.Status().Patch(ctx, bare(), mergePatch(fmt.Sprintf(`{"status":%s}`, status)))
	}
	refused := func(err error) {
		t.Helper()
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "got %v", err)
		g.Expect(err).To(MatchError(ContainSubstring("only Fleet may set or change status.namespace")))
	}

	g.Eventually(func() error { // The authorizer learns of the roles.
		return status(agent, `{"agent":{"lastSeen":"2026-01-02T03:04:05Z"}}`)
	}).Should(Succeed())
	refused(status(agent, `{"namespace":"victim"}`))
	g.Eventually(func() error { return status(fleet, `{"namespace":"cluster-its-own"}`) }).Should(Succeed())
	g.Expect(status(agent, `{"agent":{"lastSeen":"2026-01-02T03:05:05Z"}}`)).To(Succeed())
	refused(status(agent, `{"namespace":"victim"}`))
	refused(status(agent, `{"namespace":null}`))
	refused(agent.Status().Patch(ctx, bare(), client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/status"}]`))))
	g.Expect(agent.Patch(ctx, bare(), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`))).To(Succeed())
	g.Expect(status(fleet, `{"namespace":"cluster-another"}`)).To(Succeed())

	// It also reads kubeconfigs in some namespaces for whoever names them.
	kubeconfig := func(writer client.Client, spec string) error {
		return writer.Patch(ctx, bare(), mergePatch(fmt.Sprintf(`{"spec":%s}`, spec)))
	}
	const foreign = "only who may get the Secret may name the kubeconfig of another namespace"
	g.Expect(kubeconfig(agent, `{"kubeConfigSecretNamespace":"fleet-default","kubeConfigSecret":"victim-kubeconfig"}`)).To(MatchError(ContainSubstring(foreign)))
	g.Expect(kubeconfig(agent, fmt.Sprintf(`{"kubeConfigSecretNamespace":%q,"kubeConfigSecret":"its-kubeconfig"}`, s.namespace))).To(Succeed())
	g.Expect(kubeconfig(agent, `{"kubeConfigSecretNamespace":"fleet-default"}`)).To(MatchError(ContainSubstring(foreign)))
	g.Expect(kubeconfig(fleet, `{"kubeConfigSecretNamespace":"fleet-default"}`)).To(MatchError(ContainSubstring(foreign)))
	g.Expect(kubeconfig(fleet, `{"kubeConfigSecretNamespace":"fleet-default","kubeConfigSecret":"granted-kubeconfig"}`)).To(Succeed())
	g.Expect(kubeconfig(agent, `{"kubeConfigSecret":"victim-kubeconfig"}`)).To(MatchError(ContainSubstring(foreign)))
	g.Expect(kubeconfig(agent, `{"agentNamespace":"agents"}`)).To(Succeed())
	g.Expect(kubeconfig(agent, `{"kubeConfigSecretNamespace":null}`)).To(Succeed())
	made := target(fleetVersion, "Cluster", s.namespace, "made")
	g.Expect(unstructured.SetNestedField(made.Object, "cluster-fleet-local", "spec", "kubeConfigSecretNamespace")).To(Succeed())
	g.Expect(agent.Create(ctx, made)).To(MatchError(ContainSubstring(foreign)))
}

// The shipped namespace enforces the restricted profile, and the API server admits the
// pods of the shipped Deployments to it. No controller makes them here: the test does.
func TestPodSecurity(t *testing.T) {
	g := NewWithT(t)
	namespace := get(g, &corev1.Namespace{}, "", "muster-system")
	for _, mode := range []string{"enforce", "warn", "audit"} {
		g.Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/"+mode, "restricted"))
		g.Expect(namespace.Labels).To(HaveKey("pod-security.kubernetes.io/" + mode + "-version"))
	}
	for _, name := range []string{"muster-webhook", "muster-syncer"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			deployment := get(g, &appsv1.Deployment{}, "muster-system", name)
			try := func(change func(*corev1.PodSpec)) error {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "muster-system", Name: name, Labels: deployment.Spec.Template.Labels},
					Spec:       *deployment.Spec.Template.Spec.DeepCopy(),
				}
				change(&pod.Spec)
				return admin.Create(ctx, pod, client.DryRunAll)
			}
			g.Expect(try(func(*corev1.PodSpec) {})).To(Succeed())
			for what, change := range map[string]func(*corev1.PodSpec){
				"privileged": func(pod *corev1.PodSpec) {
					pod.Containers[0].SecurityContext.Privileged = ptr.To(true)
					pod.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
				},
				"runAsNonRoot":             func(pod *corev1.PodSpec) { pod.SecurityContext.RunAsNonRoot = nil },
				"seccompProfile":           func(pod *corev1.PodSpec) { pod.SecurityContext.SeccompProfile = nil },
				"allowPrivilegeEscalation": func(pod *corev1.PodSpec) { pod.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
				"unrestricted capabilities": func(pod *corev1.PodSpec) {
					pod.Containers[0].SecurityContext.Capabilities = nil
				},
				"host namespaces": func(pod *corev1.PodSpec) { pod.HostNetwork = true },
			} {
				g.Expect(try(change)).To(MatchError(And(ContainSubstring(`violates PodSecurity "restricted:v1.36"`), ContainSubstring(what))))
			}
			for _, container := range deployment.Spec.Template.Spec.Containers {
				g.Expect(container.SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
			}
		})
	}
}
