package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/sync/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// namesakes is how many namespaces have their first Cluster at once: how soon the syncer's
// cache shows what it has just written differs from one to the other.
const namesakes = 12

// Fleet does not watch groups and mappings: what it does for a Fleet Cluster that comes
// before them it does not mend by itself. So they are there first, whoever stamps the
// Cluster, and the Fleet Cluster notes both of them from its first write on.
func TestOrder(t *testing.T) {
	for _, stamping := range []struct {
		name string
		// make leads to initialized and claimed Clusters of the scenes' class.
		make func(t *testing.T, g Gomega, scenes []scene, spec addonsv1.ClusterConfig)
	}{
		{"stamped by the webhook", stampedByWebhook},
		{"stamped by the syncer when it starts", stampedAtStart},
		{"stamped by the syncer when they are selected", stampedWhenSelected},
	} {
		for _, patch := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, patchResource %t", stamping.name, patch), func(t *testing.T) {
				g := NewWithT(t)
				scenes := []scene{newScene(t, g)}
				for len(scenes) < namesakes {
					next := scenes[0]
					next.namespace = newNamespace(t, g, "team", nil)
					scenes = append(scenes, next)
				}
				since := time.Now()
				var first []<-chan *fleetv1.Cluster
				for _, s := range scenes {
					first = append(first, s.watch(t, g))
				}
				stamping.make(t, g, scenes, addonsv1.ClusterConfig{PatchResource: ptr.To(patch)})
				for i, s := range scenes {
					t.Run(s.namespace, func(t *testing.T) { s.checkOrder(NewWithT(t), since, first[i]) })
				}
			})
		}
	}
}

func stampedByWebhook(t *testing.T, g Gomega, scenes []scene, spec addonsv1.ClusterConfig) {
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	for _, s := range scenes {
		s.initialized(g)
	}
}

func stampedAtStart(t *testing.T, g Gomega, scenes []scene, spec addonsv1.ClusterConfig) {
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	start := stop(t, g, syncerProcess)
	var clusters []*clusterv1.Cluster
	for _, s := range scenes {
		clusters = append(clusters, s.initialized(g))
	}
	unstamp(t, g, clusters...)
	start()
}

func stampedWhenSelected(t *testing.T, g Gomega, scenes []scene, spec addonsv1.ClusterConfig) {
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"selected": scenes[0].namespace}}
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{Cluster: &spec})
	g.Eventually(func(g Gomega) { // The webhook may still have the settings of before.
		cluster := fixture.Cluster(scenes[0].namespace, "one", "standard", scenes[0].classNamespace)
		g.Expect(admin.Create(ctx, cluster, client.DryRunAll)).To(Succeed())
		g.Expect(cluster.Annotations).To(BeEmpty())
	}).Should(Succeed())
	for _, s := range scenes {
		s.initialized(g)
	}
	time.Sleep(time.Second) // All of that has been looked at.
	for _, s := range scenes {
		namespace := target("v1", "Namespace", "", s.namespace)
		g.Expect(admin.Patch(ctx, namespace, mergePatch(`{"metadata":{"labels":{"selected":"`+scenes[0].namespace+`"}}}`))).To(Succeed())
	}
}

// initialized creates a Cluster of the scene's class whose control plane is initialized.
// It refers to nothing, so that it can be imported the moment it is stamped.
func (s scene) initialized(g Gomega) *clusterv1.Cluster {
	cluster := fixture.Cluster(s.namespace, "one", s.class.Name, s.class.Namespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	return cluster
}

// watch returns the first state that a Fleet Cluster of the scene has.
func (s scene) watch(t *testing.T, g Gomega) <-chan *fleetv1.Cluster {
	t.Helper()
	watching, err := fixture.Client(env)
	g.Expect(err).NotTo(HaveOccurred())
	events, err := watching.Watch(ctx, &fleetv1.ClusterList{}, client.InNamespace(s.namespace))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(events.Stop)
	first := make(chan *fleetv1.Cluster, 1)
	go func() {
		for event := range events.ResultChan() {
			if cluster, ok := event.Object.(*fleetv1.Cluster); ok && event.Type == watch.Added {
				first <- cluster
				return
			}
		}
	}()
	return first
}

// checkOrder checks what the API server saw of the syncer since then.
func (s scene) checkOrder(g Gomega, since time.Time, first <-chan *fleetv1.Cluster) {
	var cluster *fleetv1.Cluster
	g.Eventually(first).Should(Receive(&cluster))
	group, mapping := s.group(), s.mapping()
	g.Eventually(func(g Gomega) { exists(g, group); exists(g, mapping) }).Should(Succeed())

	created := func(resource, namespace, name string) stack.AuditEvent {
		events, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Since: since,
			Where: func(e stack.AuditEvent) bool {
				return e.Group == "fleet.cattle.io" && e.Resource == resource && e.Namespace == namespace && e.Name == name && e.Code == http.StatusCreated
			}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events).To(HaveLen(1), "creates of %s %s/%s", resource, namespace, name)
		return events[0]
	}
	imported := created("clusters", s.namespace, cluster.Name)
	for _, target := range []stack.AuditEvent{
		created("clustergroups", group.Namespace, group.Name), created("bundlenamespacemappings", mapping.Namespace, mapping.Name),
	} {
		g.Expect(target.Completed).To(BeTemporally("<=", imported.Received), "first\n%s\nand then\n%s", target, imported)
	}
	g.Expect(cluster.Annotations).To(HaveKeyWithValue(desired.TargetingAnnotation, desired.Hash([]types.UID{group.UID, mapping.UID})))
}

// To begin with some Clusters, the FleetAddonConfig has to be there before the syncer.
// Applied with everything else, it is refused: its webhook does not answer yet. The
// documented order is the CRD, the FleetAddonConfig, and then the rest.
func TestConfigIsAppliedFirst(t *testing.T) {
	g := NewWithT(t)
	fresh, err := stack.Up(ctx, stack.Options{Profile: stack.API, WithoutCertManager: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := fresh.Down(); err != nil {
			t.Error(err)
		}
	})
	config := func(phase string) string {
		return `{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"},` +
			`"spec":{"cluster":{"selector":{"matchLabels":{"phase":"` + phase + `"}}}}}`
	}

	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	commands, err := fixture.Commands("operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(commands["config"]).To(HaveKey("first"))
	shell, err := fixture.NewShell(fresh, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Symlink(root, filepath.Join(shell.Home, "muster"))).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(shell.Home, "fleetaddonconfig.yaml"), []byte(config("first")), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(shell.Home, "kustomization.yaml"), []byte("resources: [muster/manifests/default]"), 0o600)).To(Succeed())
	_, _, err = shell.Run(ctx, fresh.Kubeconfig, commands["config"]["first"])
	g.Expect(err).NotTo(HaveOccurred())

	out, err := fresh.Kubectl(ctx, "get", "fac", "fleet-addon-config", "-o", "jsonpath={.spec.cluster.selector.matchLabels.phase}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(Equal("first"))
	// The webhook is configured by now, and does not run: this is why it had to be first.
	g.Eventually(func() error {
		_, err := fresh.KubectlInput(ctx, config("second"), "apply", "-f", "-")
		return err
	}).Should(MatchError(ContainSubstring(`failed calling webhook "config.fleet.addons.cluster.x-k8s.io"`)))
}

// Muster may be installed before Fleet: it waits, says so, and needs no restart; nor does it when
// a CRD goes and comes back. With
// Fleet's CRDs goes all that was imported, of other tests, too: a stack of its own.
func TestFleetIsInstalledLater(t *testing.T) {
	g := NewWithT(t)
	ownStack(t, g)
	s := newScene(t, g)
	start := stop(t, g, syncerProcess)
	restore := removeCRDs(g, "clusters.fleet.cattle.io", "clustergroups.fleet.cattle.io", "bundlenamespacemappings.fleet.cattle.io")
	setConfig(t, g, addonsv1.FleetAddonConfigSpec{})
	cluster := fixture.Cluster(s.namespace, "early", "standard", s.classNamespace)
	g.Expect(admin.Create(ctx, cluster)).To(Succeed())
	initialize(g, cluster)
	start()

	condition := func(g Gomega, name string) *metav1.Condition {
		config := get(g, &addonsv1.FleetAddonConfig{}, "", addonsv1.FleetAddonConfigName)
		found := meta.FindStatusCondition(config.Status.Conditions, name)
		g.Expect(found).NotTo(BeNil(), "no %s in %v", name, config.Status.Conditions)
		return found
	}
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition(g, "APIsAvailable").Message).To(ContainSubstring("ClusterGroup.fleet.cattle.io"))
	}).Should(Succeed())
	processes := env.Processes()

	restore()
	g.Eventually(func(g Gomega) {
		fleetCluster(g, s.namespace, "early")
		exists(g, s.group())
		exists(g, s.mapping())
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionTrue), condition(g, "Ready").Message)
	}).Should(Succeed())
	g.Expect(env.Processes()).To(Equal(processes), "a process was restarted")

	provoked[s.classNamespace] = true // Nothing may be made while the CRD is being deleted.
	restore = removeCRDs(g, "bundlenamespacemappings.fleet.cattle.io")
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "APIsAvailable").Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition(g, "APIsAvailable").Message).To(ContainSubstring("BundleNamespaceMapping.fleet.cattle.io"))
		g.Expect(condition(g, "Ready").Status).To(Equal(metav1.ConditionFalse))
	}).Should(Succeed())
	restore()
	g.Eventually(func(g Gomega) {
		g.Expect(condition(g, "APIsAvailable").Status).To(Equal(metav1.ConditionTrue))
		exists(g, s.mapping())
	}).Should(Succeed())
}

// removeCRDs deletes CRDs, and returns how to bring them back.
func removeCRDs(g Gomega, names ...string) (restore func()) {
	var saved []*unstructured.Unstructured
	for _, name := range names {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		g.Expect(admin.Get(ctx, client.ObjectKey{Name: name}, crd)).To(Succeed())
		g.Expect(admin.Delete(ctx, crd.DeepCopy())).To(Succeed())
		saved = append(saved, crd)
	}
	for _, crd := range saved {
		g.Eventually(func(g Gomega) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd.DeepCopy())
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "got %v", err)
		}).Should(Succeed())
	}
	return func() {
		for _, crd := range saved {
			crd.SetResourceVersion("")
			crd.SetUID("")
			crd.SetManagedFields(nil)
			unstructured.RemoveNestedField(crd.Object, "status")
			g.Expect(admin.Create(ctx, crd)).To(Succeed())
		}
	}
}
