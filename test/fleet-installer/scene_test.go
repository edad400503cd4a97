package fleetinstaller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/defects"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack/pki"
)

// clusterInfo returns the ConfigMap that kubeadm publishes.
func clusterInfo(server, ca string) string {
	kubeconfig := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: '', cluster: {server: %q, certificate-authority-data: %s}}]}", server, encoded(ca))
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {namespace: kube-public, name: cluster-info}, data: {kubeconfig: %q}}", kubeconfig)
}

// fresh removes Fleet and creates the Secret charts, so that a test starts clean. Muster never removes CRDs; here the
// administrator does.
func fresh(t *testing.T) Gomega {
	t.Helper()
	g := NewWithT(t)
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, fixture.Config()))).To(Succeed())
	g.Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, fixture.Config())
	}).Should(Satisfy(apierrors.IsNotFound))
	for _, args := range []string{
		"delete namespace cattle-fleet-system cattle-system --ignore-not-found --timeout=120s",
		"delete clusterroles,clusterrolebindings -l app.kubernetes.io/managed-by=Helm --ignore-not-found",
	} {
		_, err := env.Kubectl(ctx, strings.Fields(args)...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	names, err := env.Kubectl(ctx, "get", "crd", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range strings.Fields(names) {
		if strings.HasSuffix(name, ".fleet.cattle.io") {
			resource := strings.TrimPrefix(name, "customresourcedefinition.apiextensions.k8s.io/")
			unfinalize(g, resource)
			_, err := env.Kubectl(ctx, "delete", name, "--timeout=60s")
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	secret(g, "charts", credentials())
	return g
}

// unfinalize removes finalizers that only Fleet's controllers would remove.
func unfinalize(g Gomega, resource string) {
	objects, err := env.Kubectl(ctx, "get", resource, "-A", "-o", `jsonpath={range .items[*]}{.metadata.namespace},{.metadata.name}{"\n"}{end}`)
	g.Expect(err).NotTo(HaveOccurred())
	for _, line := range strings.Fields(objects) {
		namespace, name, _ := strings.Cut(line, ",")
		args := []string{"patch", resource, name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`}
		if namespace != "" {
			args = append(args, "-n", namespace)
		}
		_, err := env.Kubectl(ctx, args...)
		g.Expect(err == nil || strings.Contains(err.Error(), "NotFound")).To(BeTrue(), "%v", err)
	}
}

// secret writes the repository's credentials where the installer may read them.
func secret(g Gomega, name string, data map[string]string) {
	g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+fleetNamespace+"}}")).To(Succeed())
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace, Name: name}, StringData: data}
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, object.DeepCopy()))).To(Succeed())
	g.Expect(admin.Create(ctx, object)).To(Succeed())
}

func credentials() map[string]string {
	return map[string]string{"username": repository.Username, "password": repository.Password, "ca.crt": string(shelf.ca)}
}

// ask applies a FleetAddonConfig with this spec, in YAML.
func ask(g Gomega, spec string) {
	g.Expect(env.Apply(ctx, "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: "+spec+"}")).To(Succeed())
}

// from returns an install section for a repository or a registry.
func from(url, what string) string {
	return fmt.Sprintf("install: {%s, repository: %q, repositorySecretRef: {name: charts}}", what, url)
}

func fromRepository(what string) string { return from(shelf.repository.URL, what) }

func fromRegistry(what string) string { return from(shelf.registry, what) }

func config(g Gomega) *addonsv1.FleetAddonConfig {
	found := fixture.Config()
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(found), found)).To(Succeed())
	return found
}

// isReported waits until a condition of the current FleetAddonConfig has this status and reason, and a message with
// these parts. It returns the message.
func isReported(g Gomega, kind string, status metav1.ConditionStatus, reason string, parts ...string) string {
	var message string
	g.Eventually(func(g Gomega) {
		found := config(g)
		condition := meta.FindStatusCondition(found.Status.Conditions, kind)
		g.Expect(condition).NotTo(BeNil(), "%+v", found.Status)
		g.Expect(fmt.Sprint(condition.Status, " ", condition.Reason)).To(Equal(fmt.Sprint(status, " ", reason)), "%s: %s", kind, condition.Message)
		g.Expect(condition.ObservedGeneration).To(Equal(found.Generation))
		message = condition.Message
		for _, part := range parts {
			g.Expect(message).To(ContainSubstring(part))
		}
	}).Should(Succeed())
	return message
}

// installed waits until this version of Fleet is installed and FleetInstalled is true.
func installed(g Gomega, version string) {
	g.Eventually(func(g Gomega) {
		g.Expect(config(g).Status.InstalledVersion).To(Equal(version), "%+v", config(g).Status.Conditions)
	}).Should(Succeed())
	reason := "Installed"
	if len(defects.Of(semver.MustParse(version))) > 0 {
		reason = "KnownDefect"
	}
	isReported(g, "FleetInstalled", metav1.ConditionTrue, reason)
}

// install requests a version of Fleet from the repository, and waits for it.
func install(g Gomega, version string) {
	ask(g, "{"+fromRepository("version: "+version)+"}")
	installed(g, version)
}

// release is one entry of `helm list`.
type release struct {
	Name, Namespace, Revision, Status, Chart string
}

func releases(g Gomega) []release { return helm[[]release](g, "list") }

// values returns the values of the release, from Helm's own command.
func values(g Gomega) map[string]any { return helm[map[string]any](g, "get", "values", "fleet") }

func helm[T any](g Gomega, args ...string) (found T) {
	text, err := shelf.run(append(args, "-n", fleetNamespace, "-o", "json")...)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal([]byte(text), &found)).To(Succeed())
	return found
}

// settings returns the settings that Fleet's programs read.
func settings(g Gomega) map[string]any {
	object := &corev1.ConfigMap{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: fleetNamespace, Name: "fleet-controller"}, object)).To(Succeed())
	var found map[string]any
	g.Expect(json.Unmarshal([]byte(object.Data["config"]), &found)).To(Succeed())
	return found
}

// authority returns a CA that has issued no certificate here.
func authority(t *testing.T) string {
	t.Helper()
	other, err := pki.New(t.TempDir())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(other.CA())
}
