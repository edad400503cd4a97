package fleetinstaller

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	releaseMark     = "meta.helm.sh/release-name"
	adoptAnnotation = "fleet.addons.cluster.x-k8s.io/adopt-fleet"
)

// withoutRelease creates objects that show a Fleet without a Helm release.
func withoutRelease(g Gomega, version string) {
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: %[1]s, name: fleet-controller}
data: {config: '{"apiServerURL": "", "apiServerCA": "", "agentImage": "rancher/fleet-agent:v%[2]s"}'}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: %[1]s, name: fleet-controller}
spec: {replicas: 0, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: fleet-controller, image: 'rancher/fleet:v%[2]s'}]}}}
`, fleetNamespace, version))).To(Succeed())
}

// somebodyInstalls installs Fleet's charts with Helm's own command, as another user would.
func somebodyInstalls(g Gomega, version string) {
	for _, chart := range []string{"fleet-crd", "fleet"} {
		_, err := shelf.run(shelf.authorized("install", chart, chart, "--repo", shelf.repository.URL, "--version", version, "-n", fleetNamespace, "--wait")...)
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// controller returns Fleet's own Deployment.
func controller(g Gomega) *appsv1.Deployment {
	found := &appsv1.Deployment{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: fleetNamespace, Name: "fleet-controller"}, found)).To(Succeed())
	return found
}

// handOver sets or removes the annotation that lets the installer take over another user's objects.
func handOver(g Gomega, word string) {
	_, err := env.Kubectl(ctx, "annotate", "--overwrite", "fleetaddonconfig", addonsv1.FleetAddonConfigName, word)
	g.Expect(err).NotTo(HaveOccurred())
}

// The installer takes over objects of Fleet's chart that belong to no release if the annotation asks for that, and
// never objects with other names, whatever a chart contains.
func TestAdopt(t *testing.T) {
	g := fresh(t)
	somebodyInstalls(g, "0.16.0")
	loseRelease(t, g)
	// The chart's own default gives Fleet every right, and the installer's settings do not. So these two objects are
	// not part of the new release, and stay.
	t.Cleanup(func() {
		for _, kind := range []string{"clusterrole", "clusterrolebinding"} {
			_, err := env.Kubectl(ctx, "delete", kind, "fleet-controller-bootstrap", "--ignore-not-found")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		}
	})
	g.Expect(controller(g).Annotations).NotTo(HaveKey(releaseMark))

	ask(g, "{"+fromRepository("version: 0.16.1")+"}")
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "ForeignRelease", adoptAnnotation)
	g.Expect(controller(g).Annotations).NotTo(HaveKey(releaseMark))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.0"))
	handOver(g, adoptAnnotation+"=true")
	installed(g, "0.16.1")
	g.Expect(controller(g).Annotations).To(HaveKeyWithValue(releaseMark, "fleet"))
	g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.1"))
	// Fleet may have deployed its agent here, too.
	g.Expect(releases(g)).To(ContainElements(
		release{"fleet", fleetNamespace, "1", "deployed", "fleet-0.16.1"},
		release{"fleet-crd", fleetNamespace, "2", "deployed", "fleet-crd-0.16.1"},
	))
	imports(g, "adopted")

	// This chart has one more object, with the name of an object that belongs to another user.
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: somebodys}, Data: map[string]string{"is": "mine"}}
	g.Expect(admin.Create(ctx, theirs)).To(Succeed())
	g.Expect(shelf.publish("0.16.2-greedy", nil, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+somebodys+"}, data: {is: taken}}")).To(Succeed())
	for word, refused := range map[string]string{
		adoptAnnotation + "=true": "may write of ConfigMaps that are not of its Helm releases only the one key", // The policy.
		adoptAnnotation + "-":     "invalid ownership metadata",                                                 // Helm itself.
	} {
		handOver(g, word)
		ask(g, "{"+fromRepository("version: 0.16.2-greedy")+"}")
		isReported(g, "FleetInstalled", metav1.ConditionFalse, "UpgradeFailed", "Fleet 0.16.1 keeps running", refused)
		g.Expect(image(g)).To(Equal("rancher/fleet:v0.16.1"))
		found := &corev1.ConfigMap{}
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(theirs), found)).To(Succeed())
		g.Expect(found.UID).To(Equal(theirs.UID))
		g.Expect(found.Data).To(Equal(theirs.Data))
		g.Expect(found.Annotations).To(BeEmpty())
		install(g, "0.16.1")
	}
}

// loseRelease deletes Helm's release and Helm's marks on its objects, and leaves the objects.
func loseRelease(t *testing.T, g Gomega) {
	t.Helper()
	manifest, err := shelf.run("get", "manifest", "fleet", "-n", fleetNamespace)
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	g.Expect(os.WriteFile(file, []byte(manifest), 0o600)).To(Succeed())
	for _, args := range [][]string{
		{"delete", "secret", "-n", fleetNamespace, "-l", "owner=helm,name=fleet"},
		{"annotate", "-n", fleetNamespace, "-f", file, releaseMark + "-", "meta.helm.sh/release-namespace-"},
		{"label", "-n", fleetNamespace, "-f", file, "app.kubernetes.io/managed-by-"},
	} {
		_, err := env.Kubectl(ctx, args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// The installer recreates its release from the existing objects if the record is lost, because their marks say whose
// they are.
func TestReleaseLost(t *testing.T) {
	g := fresh(t)
	install(g, "0.16.0")
	was := controller(g).UID
	_, err := env.Kubectl(ctx, "delete", "secret", "-n", fleetNamespace, "-l", "owner=helm,name=fleet")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(releases(g)).To(ContainElement(release{"fleet", fleetNamespace, "1", "deployed", "fleet-0.16.0"}))
	}).Should(Succeed())
	installed(g, "0.16.0")
	g.Expect(controller(g).UID).To(Equal(was))
}

// The installer leaves a Fleet without any release as it is, with or without adoption, because it cannot know whose
// it is.
func TestForeignFleet(t *testing.T) {
	g := fresh(t)
	withoutRelease(g, "0.16.0")
	was := controller(g)
	ask(g, "{"+fromRepository("version: 0.16.1")+"}")
	handOver(g, adoptAnnotation+"=true")
	isReported(g, "FleetInstalled", metav1.ConditionFalse, "ForeignFleet", "uninstall that Fleet but keep its CRDs")
	g.Consistently(func(g Gomega) {
		is := controller(g) // Except for the fields that Kubernetes itself writes.
		g.Expect(is.Spec).To(Equal(was.Spec))
		g.Expect(is.Annotations).NotTo(HaveKey(releaseMark))
		g.Expect(releases(g)).To(BeEmpty())
	}).Should(Succeed())
	g.Expect(config(g).Status.InstalledVersion).To(Equal("0.16.0"))
}
