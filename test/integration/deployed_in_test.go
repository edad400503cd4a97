package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

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
