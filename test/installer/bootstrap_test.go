package installer

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// With bootstrapLocalCluster Fleet gets every right here, manages this very cluster, and that is
// said; without it any more, the rights go.
func TestBootstrapLocalCluster(t *testing.T) {
	g := fresh(t)
	t.Cleanup(func() {
		_, err := env.Kubectl(ctx, "delete", "namespace", "fleet-local", "cattle-fleet-local-system", "--ignore-not-found", "--timeout=120s")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	})
	t.Cleanup(func() { fresh(t) })
	secret(g, "charts", credentials())
	ask(g, "{"+fromRepository("version: 0.16.0")+", config: {bootstrapLocalCluster: true}}")
	installed(g, "0.16.0")
	says(g, "FleetConfigured", metav1.ConditionTrue, "Configured", "Fleet manages this cluster, and has every right here")
	g.Expect(values(g)).To(HaveKeyWithValue("bootstrap", map[string]any{"enabled": true}))
	role, key := &rbacv1.ClusterRole{}, client.ObjectKey{Name: "fleet-controller-bootstrap"}
	g.Expect(admin.Get(ctx, key, role)).To(Succeed())
	g.Expect(role.Rules).To(ContainElement(HaveField("Resources", ContainElement("*"))))
	g.Eventually(func(g Gomega) {
		local := &fleetv1.Cluster{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: "fleet-local", Name: "local"}, local)).To(Succeed())
		g.Expect(local.Status.AgentDeployedGeneration).NotTo(BeNil(), "%+v", local.Status)
	}).Should(Succeed())

	ask(g, "{"+fromRepository("version: 0.16.0")+", config: {bootstrapLocalCluster: false}}")
	g.Eventually(func() error { return admin.Get(ctx, key, role) }).Should(Satisfy(apierrors.IsNotFound))
	installed(g, "0.16.0")
	g.Expect(says(g, "FleetConfigured", metav1.ConditionTrue, "Configured")).NotTo(ContainSubstring("every right"))
	var arguments []string
	for _, container := range controller(g).Spec.Template.Spec.Containers {
		arguments = append(arguments, container.Args...)
	}
	g.Expect(strings.Join(arguments, " ")).To(ContainSubstring("--disable-bootstrap"))
}
