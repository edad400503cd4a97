package fleetinstaller

import (
	"encoding/base64"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
)

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// One FleetAddonConfig with install.version is enough for a working Fleet.
func TestInstall(t *testing.T) {
	g := fresh(t)
	install(g, "0.16.0")

	g.Expect(releases(g)).To(ConsistOf(
		release{"fleet", fleetNamespace, "1", "deployed", "fleet-0.16.0"},
		release{"fleet-crd", fleetNamespace, "1", "deployed", "fleet-crd-0.16.0"},
	))
	served, err := env.Kubectl(ctx, "api-resources", "--api-group=fleet.cattle.io", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(served).To(ContainSubstring("helmops.fleet.cattle.io"))
	for _, name := range []string{"fleet-controller", "gitjob", "helmops"} {
		deployment := &appsv1.Deployment{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: fleetNamespace, Name: name}, deployment)).To(Succeed())
		g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1), name)
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal("rancher/fleet:v0.16.0"))
	}
	// Unless bootstrapLocalCluster is set, Fleet does not get every right here.
	_, err = env.Kubectl(ctx, "get", "clusterrole", "fleet-controller-bootstrap")
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")))

	imports(g, "first")
	g.Eventually(func(g Gomega) {
		for _, condition := range config(g).Status.Conditions {
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue), "%+v", condition)
		}
	}).Should(Succeed())
}

// imports checks that the running Fleet imports a CAPI cluster through Muster, and passes the installer's settings to
// its agent.
func imports(g Gomega, name string) {
	kubeconfig, err := env.StartDownstream(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	namespace := "team-" + name
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	g.Expect(admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig},
	})).To(Succeed())
	cluster := fixture.Cluster(namespace, name, "", "")
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		imported := &fleetv1.Cluster{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, imported)).To(Succeed())
		g.Expect(imported.Status.Namespace).NotTo(BeEmpty())
		g.Expect(imported.Status.APIServerURL).To(Equal(settings(g)["apiServerURL"]), "%+v", imported.Status)
		g.Expect(imported.Status.AgentDeployedGeneration).NotTo(BeNil(), "%+v", imported.Status)
	}).Should(Succeed())
	_, err = env.DownstreamKubectl(ctx, "get", "deployment,statefulset", "-A")
	g.Expect(err).NotTo(HaveOccurred(), fmt.Sprint(namespace))
}
