package fleetinstaller

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// An installer is killed at a random moment of an installation or an upgrade. The next one completes the work, and
// does nothing twice.
func TestKilled(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("MUSTER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const kills = 5
	g := fresh(t)
	for _, version := range []string{"0.15.3", "0.16.0"} {
		ask(g, "{"+fromRepository("version: "+version)+"}")
		for range kills {
			time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second)))) // At a random moment.
			g.Expect(env.Kill(ctx, "muster-installer")).To(Succeed())
			g.Expect(env.Start(ctx, "muster-installer")).To(Succeed())
		}
		installed(g, version)
		for _, release := range releases(g) {
			g.Expect(release.Status).To(Equal("deployed"), "%+v", release)
			g.Expect(release.Chart).To(HaveSuffix("-" + version))
		}
		history, err := shelf.run("history", "fleet", "-n", fleetNamespace, "-o", "json")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Count(history, `"status":"deployed"`)).To(Equal(1), history)
		g.Expect(history).NotTo(ContainSubstring("pending"))
		var deployments appsv1.DeploymentList
		g.Expect(admin.List(ctx, &deployments, client.InNamespace(fleetNamespace))).To(Succeed())
		g.Expect(deployments.Items).To(HaveLen(3))
	}
	imports(g, "survivor")
}

// CRDs stay, whichever release is uninstalled.
func TestCRDsStay(t *testing.T) {
	g := fresh(t)
	install(g, "0.16.0")
	g.Expect(env.Apply(ctx, "{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterGroup, metadata: {namespace: default, name: kept}, spec: {selector: {}}}")).To(Succeed())
	ask(g, "{}")
	for _, name := range []string{"fleet", "fleet-crd"} {
		_, err := shelf.run("uninstall", name, "-n", fleetNamespace)
		g.Expect(err).NotTo(HaveOccurred())
	}
	install(g, "0.16.1")
	_, err := env.Kubectl(ctx, "get", "clustergroup", "kept", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())
}

// With bootstrapLocalCluster, Fleet gets every right here and manages this very cluster, and the status says so. When
// the setting is removed, the rights go.
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
	isReported(g, "FleetConfigured", metav1.ConditionTrue, "Configured", "Fleet manages this cluster, and has all rights here")
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
	g.Expect(isReported(g, "FleetConfigured", metav1.ConditionTrue, "Configured")).NotTo(ContainSubstring("every right"))
	var arguments []string
	for _, container := range controller(g).Spec.Template.Spec.Containers {
		arguments = append(arguments, container.Args...)
	}
	g.Expect(strings.Join(arguments, " ")).To(ContainSubstring("--disable-bootstrap"))
}

// The installer reports every wrong input, and what to do. When the input is corrected, it installs Fleet.
func TestBadInput(t *testing.T) {
	g := fresh(t)
	with := func(key, value string) map[string]string {
		data := credentials()
		data[key] = value
		return data
	}
	for i, test := range []struct {
		name    string
		secret  map[string]string
		spec    string
		reason  string
		message string
	}{
		{name: "an unknown version", spec: fromRepository("version: 9.9.9"), reason: "VersionUnknown", message: "has no version 9.9.9 of both fleet and fleet-crd"},
		{name: "an empty range", spec: fromRegistry("version: '>=9.0.0'"), reason: "VersionUnknown"},
		{name: "a wrong CA", secret: with("ca.crt", authority(t)), spec: fromRepository("version: 0.16.0"), reason: "RepositoryNotTrusted", message: "put its CA into the key ca.crt"},
		{name: "a wrong CA, registry", secret: with("ca.crt", authority(t)), spec: fromRegistry("version: 0.16.0"), reason: "RepositoryNotTrusted"},
		{name: "no CA", secret: with("ca.crt", "none"), spec: fromRepository("version: 0.16.0"), reason: "SecretUnusable"},
		{name: "a wrong password", secret: with("password", "wrong"), spec: fromRepository("version: 0.16.0"), reason: "RepositoryRefused", message: "401"},
		{name: "a wrong password, registry", secret: with("password", "wrong"), spec: fromRegistry("version: 0.16.0"), reason: "RepositoryRefused"},
		{name: "nothing there", spec: from(shelf.repository.URL+"/nowhere", "version: 0.16.0"), reason: "RepositoryInvalid", message: "404"},
		{name: "nobody there", spec: from("https://127.0.0.1:1", "version: 0.16.0"), reason: "RepositoryUnreachable"},
		{name: "no such chart, registry", spec: from(shelf.registry+"/nowhere", "version: 0.16.0"), reason: "ChartMissing"},
		{name: "no such Secret", spec: strings.Replace(fromRepository("version: 0.16.0"), "charts}", "none}", 1), reason: "SecretUnusable", message: "does not exist"},
		{name: "a Secret elsewhere", spec: strings.Replace(fromRepository("version: 0.16.0"), "charts}", "none, namespace: default}", 1), reason: "SecretUnusable", message: "may not read it; give its ServiceAccount a Role"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			if test.secret == nil {
				test.secret = credentials()
			}
			secret(g, "charts", test.secret)
			// Another change in the FleetAddonConfig makes the installer retry at once.
			ask(g, fmt.Sprintf("{%s, cluster: {naming: {suffix: '-%d'}}}", test.spec, i))
			isReported(g, "FleetInstalled", metav1.ConditionFalse, test.reason, test.message)
			isReported(g, "Ready", metav1.ConditionFalse, test.reason)
		})
	}
	g.Expect(releases(g)).To(BeEmpty())
	secret(g, "charts", credentials())
	install(g, "0.16.0")

	// While Fleet's installation fails, Muster still imports clusters.
	ask(g, "{"+fromRepository("version: 9.9.9")+"}")
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "VersionUnknown", "Fleet 0.16.0 stays as it is")
	imports(g, "meanwhile")
}

// If a user asks for Fleet where no installer runs, the status says so, and what to apply.
func TestMissing(t *testing.T) {
	g := fresh(t)
	g.Expect(env.Stop(ctx, "muster-installer")).To(Succeed())
	t.Cleanup(func() {
		g.Expect(env.Start(ctx, "muster-installer")).To(Succeed())
		isReported(g, "InstallerAvailable", metav1.ConditionTrue, "Available")
	})
	ask(g, "{install: {version: 0.16.0}}")
	isReported(g, "InstallerAvailable", metav1.ConditionFalse, "InstallerMissing", "kubectl apply -k manifests/installer")
	isReported(g, "Ready", metav1.ConditionFalse, "InstallerMissing")
	ask(g, "{}")
	g.Eventually(func(g Gomega) {
		g.Expect(meta.FindStatusCondition(config(g).Status.Conditions, "InstallerAvailable")).To(BeNil())
	}).Should(Succeed())
	ask(g, "{config: {featureGates: {}}}")
}
