package integration

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/helm/repository"
)

// goneScene has everything that depends on the FleetAddonConfig: a Cluster that is selected and one that is not, a
// mapping that the administrator asks for, values of a HelmChartProxy, and an upgrade on hold.
type goneScene struct {
	scene
	config        string
	mappedFrom    string
	in, out, held *clusterv1.Cluster
	charts        *repository.Repository
	deniedByVerb  client.Client
}

func newGoneScene(t *testing.T, g Gomega, exclude string) *goneScene {
	t.Helper()
	s := &goneScene{scene: newScene(t, g), charts: repository.New()}
	s.mappedFrom = newNamespace(t, g, "catalogue", nil)
	s.config = fmt.Sprintf(`{cluster: {selector: {matchLabels: {fleet: "yes"}}, templateValues: {exclude: %s}},
policy: {crossNamespaceClassVerb: use}, rancher: {bundleMappings: [{namespace: %s, workspace: %s}]}}`, exclude, s.mappedFrom, s.namespace)
	configure(t, g, s.config)
	configObserved(g)
	t.Cleanup(s.charts.Close)
	g.Expect(s.charts.Publish("web", "1.0.0", map[string]string{"values.yaml": "{}"})).To(Succeed())
	grant(t, g, s.namespace, "gerda", may("cluster.x-k8s.io", "clusters", "get", "create"))
	grant(t, g, s.classNamespace, "gerda", may("cluster.x-k8s.io", "clusterclasses", "get"))
	s.deniedByVerb = tenant(g, "gerda")

	s.in = s.imported(g, "in", "fleet")
	s.out = s.started(g, "out")
	s.held = s.cluster("held")
	s.held.Labels = map[string]string{"fleet": "yes"}
	s.held.Annotations = map[string]string{stamp.HoldAnnotation: "30m"}
	create(g, s.held)
	initialize(g, s.held)
	willHold(g, s.held, "False NoUpgrade")
	reportsApplied(g, addOn(g, s.held, "cni"), true)

	proxy := &addonsv1.HelmChartProxy{}
	proxy.Namespace, proxy.Name = s.namespace, "web"
	proxy.Spec = addonsv1.HelmChartProxySpec{
		RepoURL: s.charts.URL, ChartName: "web", Version: "1.0.0", ValuesTemplate: `labels: {{ .Cluster.metadata.labels | toJson }}`,
		Credentials: &addonsv1.Credentials{Secret: corev1.SecretReference{Name: "repository"}, Key: "config.json"},
		TLSConfig:   &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{Name: "repository"}},
	}
	access := named(&corev1.Secret{Data: s.charts.Secret()}, s.namespace, "repository")
	create(g, access)
	g.Eventually(func() error { return admin.Create(ctx, proxy) }).Should(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(s.values(g)).To(HaveLen(2)) }).WithTimeout(helmPatience).Should(Succeed())
	appears(g, s.asked())
	return s
}

// asked is the mapping that the FleetAddonConfig asks for.
func (s *goneScene) asked() *fleetv1.BundleNamespaceMapping {
	return named(&fleetv1.BundleNamespaceMapping{}, s.mappedFrom, s.namespace)
}

// values are the values that Muster has written for the HelmChartProxy.
func (s *goneScene) values(g Gomega) []corev1.ConfigMap {
	var all corev1.ConfigMapList
	g.Expect(admin.List(ctx, &all, client.InNamespace(s.namespace), client.HasLabels{"helmchartproxy-name.fleet.addons.cluster.x-k8s.io"})).To(Succeed())
	return all.Items
}

// snapshot is what must not change: the Fleet objects, the values and the pins.
func (s *goneScene) snapshot(g Gomega) string {
	var all []any
	add := func(list client.ObjectList, namespace string) {
		g.Expect(admin.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		text, err := json.Marshal(list)
		g.Expect(err).NotTo(HaveOccurred())
		var items struct {
			Items []struct {
				Metadata struct {
					Name, UID, ResourceVersion string
				}
			}
		}
		g.Expect(json.Unmarshal(text, &items)).To(Succeed())
		all = append(all, fmt.Sprintf("%T", list), items.Items)
	}
	for _, namespace := range []string{s.namespace, s.classNamespace, s.mappedFrom} {
		add(&fleetv1.ClusterList{}, namespace)
		add(&fleetv1.ClusterGroupList{}, namespace)
		add(&fleetv1.BundleNamespaceMappingList{}, namespace)
	}
	add(&fleetv1.BundleDeploymentList{}, stamp.FleetNamespace(s.namespace, "held"))
	for _, values := range s.values(g) {
		all = append(all, values.Name, values.UID, values.ResourceVersion)
	}
	for _, cluster := range []*clusterv1.Cluster{s.in, s.out, s.held} {
		live := current(g, cluster)
		all = append(all, live.Name, live.Annotations)
		for _, condition := range live.Status.Conditions {
			all = append(all, condition.Type, condition.Status, condition.LastTransitionTime)
		}
	}
	text, err := json.MarshalIndent(all, "", " ")
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// recorded expects the record of the FleetAddonConfig.
func recorded(g Gomega) {
	g.Expect(get(g, &corev1.ConfigMap{}, "muster-system", "muster-config").Data).To(HaveKeyWithValue("uid", string(readConfig(g).UID)))
}

// A FleetAddonConfig that is replaced, or gone for long with restarts of all programs, changes nothing: its settings
// are unknown, and not the defaults.
func TestConfigThatIsGone(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.StartHelm(ctx)).To(Succeed())
	t.Cleanup(func() { removeHelm(t) })
	for name, exclude := range map[string]string{"with exclusions": `["/Cluster/metadata/labels"]`, "without exclusions": "[]"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newGoneScene(t, g, exclude)
			g.Expect(setVersion(g, s.held, nextVersion)).NotTo(BeEmpty())
			willHold(g, s.held, "True WaitingForAddOns")
			g.Eventually(func(g Gomega) {
				isForbidden(g, s.deniedByVerb.Create(ctx, s.cluster("gerdas"), client.DryRunAll), "may not use")
			}).Should(Succeed())
			g.Eventually(recorded).Should(Succeed())
			var before string
			g.Eventually(func(g Gomega) { // Until the syncer has written all that follows from the new version.
				before = s.snapshot(g)
				g.Consistently(s.snapshot).Should(Equal(before))
			}).Should(Succeed())
			stays := func(what string) {
				g.Consistently(func(g Gomega) { g.Expect(s.snapshot(g)).To(Equal(before), what) }).WithTimeout(6 * time.Second).Should(Succeed())
			}

			_, err := env.KubectlInput(ctx, configYAML(s.config), "replace", "--force", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			stays("after kubectl replace --force")
			g.Eventually(recorded).Should(Succeed())

			remove(g, readConfig(g))
			stays("after the deletion")
			for _, process := range []string{webhookProcess, syncerProcess, "muster-helm"} {
				g.Expect(env.Restart(ctx, process)).To(Succeed())
			}
			stays("after the restarts")
			patch(g, s.held.DeepCopy(), `{"metadata":{"labels":{"note":"excluded"}}}`) // With the defaults, it would reach the values.
			stays("after a change of what is excluded")
			s.isFrozen(t, g)

			create(g, object(g, configYAML(s.config)))
			appears(g, s.fleet("late"))
			g.Consistently(func(g Gomega) { isGone(g, s.fleet("out"), s.fleet("later")) }).Should(Succeed())
			willHold(g, s.held, "True WaitingForAddOns")
		})
	}
}

// isFrozen expects that nobody new is imported or gets bundles while the FleetAddonConfig is gone.
func (s *goneScene) isFrozen(t *testing.T, g Gomega) {
	t.Helper()
	late := s.started(g, "late", "fleet")
	later := s.started(g, "later")
	for _, cluster := range []*clusterv1.Cluster{late, later} {
		g.Expect(stamp.PinOf(cluster.Annotations)).To(Equal(stamp.Pin{}), "the webhook pinned %s", cluster.Name)
	}
	isForbidden(g, s.deniedByVerb.Create(ctx, s.cluster("gerdas"), client.DryRunAll), "use")
	isAbsentThroughout(g, s.fleet("late"), s.fleet("later"), s.fleet("out"))

	pause(g, s.in)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, s.namespace, "in").OwnerReferences).To(BeEmpty(), "clusterctl move would uninstall its applications")
	}).Should(Succeed())
	unpause(g, s.in)
	g.Consistently(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "in").OwnerReferences).To(BeEmpty()) }).Should(Succeed())

	said, err := exec.Command(env.Program("kubectl-muster"), "check", "--kubeconfig", env.Kubeconfig, "-n", s.namespace).Output()
	g.Expect(err).To(Or(BeNil(), BeAssignableToTypeOf(&exec.ExitError{})))
	g.Expect(string(said)).To(And(ContainSubstring("FleetAddonConfig: there is none any more"), ContainSubstring("empty spec")))
	g.Eventually(func(g Gomega) {
		var all eventsv1.EventList
		g.Expect(admin.List(ctx, &all, client.InNamespace("muster-system"))).To(Succeed())
		g.Expect(all.Items).To(ContainElement(And(HaveField("Reason", "FleetAddonConfigMissing"), HaveField("Regarding.Name", "muster-config"),
			HaveField("Note", ContainSubstring("empty spec")))))
	}).WithTimeout(90 * time.Second).Should(Succeed())
}

// Whether a Cluster owns its Fleet Cluster is one of the settings. So a Cluster that is unpaused and gone while these are
// unknown leaves its Fleet Cluster, as after a move; one that is still being deleted when they are known does not.
func TestDeletedWhileTheConfigIsGone(t *testing.T) {
	g := NewWithT(t)
	s, a := newScene(t, g), newAuditor(t, g)
	configure(t, g, "{}")
	configObserved(g)
	going, gone := s.imported(g, "going"), s.imported(g, "gone")
	g.Eventually(recorded).Should(Succeed())
	patch(g, going, `{"metadata":{"finalizers":["example.com/machines"]}}`)
	remove(g, readConfig(g))
	owners := func(g Gomega, name string) int { return len(fleetCluster(g, s.namespace, name).OwnerReferences) }
	for _, cluster := range []*clusterv1.Cluster{going, gone} {
		pause(g, cluster)
		g.Eventually(owners).WithArguments(cluster.Name).Should(BeZero())
		unpause(g, cluster)
		remove(g, cluster)
		g.Consistently(owners).WithArguments(cluster.Name).Should(BeZero())
	}
	vanishes(g, gone)

	create(g, object(g, configYAML("{}")))
	g.Eventually(owners).WithArguments("going").Should(Equal(1))
	g.Consistently(owners).WithArguments("gone").Should(BeZero())
	report, _ := a.report(g, s)
	g.Expect(report.Released).To(ConsistOf(HaveField("Name", "gone")))
	patch(g, going, `{"metadata":{"finalizers":null}}`)
	vanishes(g, going, s.fleet("going"))
}
