package installer

import (
	"encoding/base64"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
)

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// One FleetAddonConfig with install.version gives a Fleet that works.
func TestInstall(t *testing.T) {
	g := fresh(t)
	secret(g, "charts", credentials())
	ask(g, "{"+fromRepository("version: 0.16.0")+"}")
	installed(g, "0.16.0")

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
	// Without a word about bootstrapLocalCluster Fleet does not get every right here.
	_, err = env.Kubectl(ctx, "get", "clusterrole", "fleet-controller-bootstrap")
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")))

	imports(g, "first")
	g.Eventually(func(g Gomega) {
		for _, condition := range config(g).Status.Conditions {
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue), "%+v", condition)
		}
	}).Should(Succeed())
}

// imports sees that the Fleet that runs imports a CAPI cluster through Muster, and hands its
// agent what the installer has set.
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

// In MiB, what the shipped Deployment requests, and its GOMEMLIMIT.
const (
	mostIdle = 128.0
	mostEver = 460.0
)

// BenchmarkMemory measures what the leading installer holds: while nobody asks for anything,
// once Fleet is there and is looked at every 15 s, and at most until then, with an installation
// and an upgrade. Beside it, how large the programs are.
func BenchmarkMemory(b *testing.B) {
	g := fresh(b)
	secret(g, "charts", credentials())
	for b.Loop() {
		g.Expect(env.Restart(ctx, "muster-installer")).To(Succeed())
		ask(g, "{config: {featureGates: {}}}") // It leads, and has looked.
		says(g, "FleetConfigured", metav1.ConditionFalse, "FleetMissing")
		ask(g, "{}")
		report(b, "idle", settled(g).Now, mostIdle)

		ask(g, "{"+fromRepository("version: 0.16.0")+"}")
		installed(g, "0.16.0")
		ask(g, "{"+fromRepository("version: 0.16.1")+"}")
		installed(g, "0.16.1")
		watching := settled(g)
		report(b, "watching", watching.Now, mostEver)
		report(b, "peak", watching.Peak, mostEver)
	}
	for _, program := range []string{"webhook", "syncer", "installer"} {
		file, err := os.Stat(env.Program(program))
		g.Expect(err).NotTo(HaveOccurred())
		b.ReportMetric(float64(file.Size())/(1<<20), program+"-binary-MiB")
	}
}

func report(b *testing.B, what string, mib, most float64) {
	b.Helper()
	b.ReportMetric(mib, what+"-MiB")
	if mib > most {
		b.Errorf("%s: %.0f MiB, more than %.0f", what, mib, most)
	}
}

// settled waits until the installer holds no less than before: Go gives memory back little by
// little.
func settled(g Gomega) usage.Memory {
	var before, now usage.Memory
	g.Eventually(func(g Gomega) {
		before = now
		for _, process := range env.Processes() {
			if process.Name == "muster-installer" && process.Running {
				var err error
				now, err = usage.MemoryOf(process.PID)
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		g.Expect(now.Now).NotTo(BeZero())
		g.Expect(before.Now-now.Now).To(BeNumerically("<", 0.01*now.Now), "still gives back: %+v", now)
		g.Expect(before.Now).NotTo(BeZero())
	}).WithPolling(20 * time.Second).Should(Succeed())
	return now
}
