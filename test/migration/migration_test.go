// Package migration moves a management cluster from CAAPF to Muster by the steps of docs/migrate-from-caapf.md, and
// back. The test plays CAAPF.
package migration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	classes = "classes"
	soon    = 2 * time.Minute
)

// prod has an agent that deploys; one and two are in Fleet, and no agent runs for them.
var (
	prod = types.NamespacedName{Namespace: "team", Name: "prod"}
	one  = types.NamespacedName{Namespace: "team", Name: "one"}
	two  = types.NamespacedName{Namespace: "other", Name: "two"}
)

// TestMigration follows the page step by step, from a running CAAPF to Muster, back, and forth again.
func TestMigration(t *testing.T) {
	g := NewWithT(t)
	steps := newPage(t)
	runCAAPF(t, g)
	before := observe(g)
	g.Expect(before.applications).To(HaveLen(2), "applications on the cluster that runs")

	t.Run("saved, and rendered: the same clusters, groups and mappings", func(t *testing.T) {
		g := NewWithT(t)
		steps.run(t, g, "save")
		steps.run(t, g, "render")
		g.Expect(steps.objects(g, "rendered.yaml")).To(ConsistOf(steps.objects(g, "fleet.yaml")))
	})
	migrated := func(t *testing.T) {
		g := NewWithT(t)
		steps.run(t, g, "stop")
		steps.install(t, g)
		eventuallyMusters(g)
		isUnchanged(g, before)
		left(g)
	}
	t.Run("migrated: the same objects, nothing is deployed again", migrated)
	t.Run("back to CAAPF: nothing is deployed again", func(t *testing.T) {
		g := NewWithT(t)
		steps.run(t, g, "back")
		for _, name := range []string{"muster-webhook", "muster-syncer"} {
			g.Expect(env.Stop(ctx, name)).To(Succeed())
		}
		steps.run(t, g, "restart")
		g.Eventually(func(g Gomega) {
			g.Expect(playCAAPF()).To(Succeed())
			for _, key := range []types.NamespacedName{prod, one, two} {
				g.Expect(cluster(g, key).Finalizers).To(ContainElement(stamp.Domain))
				g.Expect(fleetCluster(g, key).Labels).NotTo(HaveKey(stamp.ManagedByLabel), "CAAPF has not applied it")
			}
		}).Should(Succeed())
		isUnchanged(g, before)
	})
	t.Run("and forward again", migrated)
	t.Run("the rest of CAAPF is removed, and every object is deleted with its last user", func(t *testing.T) { testRemoved(t) })
}

// runCAAPF lets CAAPF import three clusters, of which one runs, and waits until it is at rest.
func runCAAPF(t *testing.T, g Gomega) {
	g.Expect(env.StartHostProvider(ctx)).To(Succeed())
	for _, namespace := range []string{classes, prod.Namespace, two.Namespace} {
		g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")).To(Succeed())
	}
	g.Expect(env.Apply(ctx, caapfInstallation)).To(Succeed())
	g.Eventually(func() error { return env.Apply(ctx, caapfConfig) }).Should(Succeed())
	inMemory, err := env.InMemoryClusterClass(classes)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, env.HostClusterClass(classes, "standard"))).To(Succeed())
	g.Expect(env.Apply(ctx, inMemory)).To(Succeed())
	for _, class := range []string{"standard", stack.InMemoryClass} {
		g.Expect(env.WaitForClusterClass(ctx, classes, class)).To(Succeed())
	}
	for _, bundle := range []string{
		fixture.DataBundle(classes, "hello", "[{clusterGroup: standard.classes}]", "{from: hello}"),
		fixture.DataBundle(classes, "values", "[{clusterSelector: {matchLabels: {env: prod}}}]", fixture.PodCIDRs),
		fixture.DataBundle(classes, "in-memory", "[{clusterGroup: in-memory.classes}]", "{from: in-memory}"),
	} {
		g.Expect(env.Apply(ctx, bundle)).To(Succeed())
	}
	for _, cluster := range []stack.TopologyCluster{
		{Namespace: prod.Namespace, Name: prod.Name, Class: "standard", ClassNamespace: classes, Workers: 1, Labels: map[string]string{"env": "prod"}},
		{Namespace: one.Namespace, Name: one.Name, ClassNamespace: classes, Labels: map[string]string{"env": "test"}},
		{Namespace: two.Namespace, Name: two.Name, ClassNamespace: classes},
	} {
		// The Clusters are applied as users do it: with the annotation that CAAPF copies.
		_, err := env.KubectlInput(ctx, cluster.YAML(), "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	for _, key := range []types.NamespacedName{prod, one, two} {
		g.Expect(env.WaitForControlPlane(ctx, key.Namespace, key.Name)).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		g.Expect(playCAAPF()).To(Succeed())
		all := observe(g)
		g.Expect(all.applications).To(HaveLen(2))
		g.Expect(slices.Collect(maps.Keys(all.deployments))).To(ContainElements(
			"team/prod: classes/hello", "team/prod: classes/values", "team/one: classes/in-memory", "other/two: classes/in-memory"))
		g.Expect(all.agents).To(HaveLen(3))
		out, err := env.HostedKubectl(ctx, prod.Namespace, prod.Name, "-n", stack.DefaultAgentNamespace, "get", "deployment", "fleet-agent", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).NotTo(BeEmpty())
		live := fleetCluster(g, prod)
		g.Expect(live.Status.Summary.Ready).To(Equal(live.Status.Summary.DesiredReady))
		g.Expect(live.Status.Summary.DesiredReady).To(Equal(3))
	}).WithTimeout(2 * soon).Should(Succeed())
}

// page runs the commands of docs/migrate-from-caapf.md in a directory of its own.
type page struct {
	*fixture.Shell
	commands  map[string]string
	installed bool
}

func newPage(t *testing.T) *page {
	t.Helper()
	g := NewWithT(t)
	all, err := fixture.Commands("migrate-from-caapf.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all["migrate"]).To(HaveLen(6))
	shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = fixture.Program(".", "github.com/muster-fleet/muster/cmd/kubectl-muster", shell.Tools)
	g.Expect(err).NotTo(HaveOccurred())
	return &page{Shell: shell, commands: all["migrate"]}
}

func (p *page) run(t *testing.T, g Gomega, step string) {
	t.Helper()
	g.Expect(p.commands).To(HaveKey(step))
	_, out, err := p.Run(ctx, env.Kubeconfig, p.commands[step])
	t.Logf("%s\n%s", strings.TrimSpace(p.commands[step]), out)
	g.Expect(err).NotTo(HaveOccurred())
}

// install runs the page's command on a kustomization of the shipped manifests, and then starts the programs of its
// Deployments, as a kubelet would.
func (p *page) install(t *testing.T, g Gomega) {
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	if !p.installed {
		for _, dir := range []string{"manifests", "certs"} {
			g.Expect(os.CopyFS(filepath.Join(p.Home, dir), os.DirFS(filepath.Join(root, dir)))).To(Succeed())
		}
		g.Expect(os.WriteFile(filepath.Join(p.Home, "kustomization.yaml"), []byte("resources: [manifests/default]\n"), 0o600)).To(Succeed())
	}
	p.run(t, g, "install")
	if p.installed {
		for _, name := range []string{"muster-webhook", "muster-syncer"} {
			g.Expect(env.Start(ctx, name)).To(Succeed())
		}
		g.Expect(env.Route(ctx)).To(Succeed())
		return
	}
	p.installed = true
	names, err := env.Adopt(ctx, "muster-system")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(names).To(ConsistOf("muster-webhook", "muster-syncer"))
}

// objects returns the names of Fleet's objects in a file.
func (p *page) objects(g Gomega, file string) []string {
	read, problems := manifests.Read([]string{filepath.Join(p.Home, file)}, nil)
	g.Expect(problems).To(BeEmpty())
	var names []string
	for _, one := range read {
		if one.GroupVersionKind().Group == fleetv1.SchemeGroupVersion.Group {
			names = append(names, fmt.Sprintf("%s %s/%s", one.Kind, one.Namespace, one.Name))
		}
	}
	return names
}

func cluster(g Gomega, key types.NamespacedName) *clusterv1.Cluster {
	live := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, key, live)).To(Succeed())
	return live
}

func fleetCluster(g Gomega, key types.NamespacedName) *fleetv1.Cluster {
	live := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, key, live)).To(Succeed())
	return live
}

// eventuallyMusters waits until Muster has adopted everything.
func eventuallyMusters(g Gomega) {
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "fac")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(MatchRegexp(`fleet-addon-config +True`))
		for _, key := range []types.NamespacedName{prod, one, two} {
			live := cluster(g, key)
			g.Expect(conditions.IsTrue(live, "FleetImported")).To(BeTrue(), conditions.GetMessage(live, "FleetImported"))
			g.Expect(live.Finalizers).NotTo(ContainElement(stamp.Domain))
			g.Expect(fleetCluster(g, key).Labels).To(HaveKeyWithValue(stamp.ManagedByLabel, stamp.ManagedBy))
		}
	}).WithTimeout(soon).Should(Succeed())
}

// isUnchanged checks for some time that everything is as it was.
func isUnchanged(g Gomega, before state) {
	g.Consistently(func(g Gomega) {
		now := observe(g)
		g.Expect(now.objects).To(Equal(before.objects))
		g.Expect(now.deployments).To(Equal(before.deployments))
		g.Expect(now.applications).To(Equal(before.applications))
		g.Expect(now.releases).To(Equal(before.releases))
	}).WithTimeout(10 * time.Second).WithPolling(time.Second).Should(Succeed())
}

// left expects no leftovers of CAAPF on shared objects and ClusterClasses.
func left(g Gomega) {
	for kind, list := range map[string][]types.NamespacedName{
		"ClusterGroup":           {{Namespace: "team", Name: "in-memory.classes"}, {Namespace: "team", Name: "standard.classes"}, {Namespace: "other", Name: "in-memory.classes"}},
		"BundleNamespaceMapping": {{Namespace: classes, Name: "team"}, {Namespace: classes, Name: "other"}},
	} {
		for _, key := range list {
			g.Eventually(func(g Gomega) {
				shared := &metav1.PartialObjectMetadata{}
				shared.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind(kind))
				g.Expect(admin.Get(ctx, key, shared)).To(Succeed())
				g.Expect(shared.OwnerReferences).To(BeEmpty(), key.String())
				g.Expect(shared.ManagedFields).NotTo(ContainElement(HaveField("Manager", HaveSuffix("-"+caapfManager))), key.String())
			}).Should(Succeed())
		}
	}
	var classList clusterv1.ClusterClassList
	g.Expect(admin.List(ctx, &classList)).To(Succeed())
	for _, class := range classList.Items {
		g.Expect(class.Finalizers).NotTo(ContainElement(stamp.Domain))
	}
}

func testRemoved(t *testing.T) {
	g := NewWithT(t)
	_, err := env.Kubectl(ctx, "delete", "namespace/"+caapfNamespace, "clusterrolebinding/caapf-manager")
	g.Expect(err).NotTo(HaveOccurred())
	out, err := env.Kubectl(ctx, "get", "fac", "fleet-addon-config", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(BeEmpty(), "the FleetAddonConfig is gone")
	_, err = env.Kubectl(ctx, "delete", "clusters.cluster.x-k8s.io", "-n", "other", "two", "--timeout=120s")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		out, err := env.Kubectl(ctx, "get", "clusters.fleet.cattle.io,clustergroups.fleet.cattle.io", "-n", "other", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(BeEmpty())
		out, err = env.Kubectl(ctx, "get", "bundlenamespacemappings", "-n", classes, "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Fields(out)).To(HaveLen(1), "that of the other namespace")
		var namespace corev1.Namespace
		g.Expect(admin.Get(ctx, types.NamespacedName{Name: "other"}, &namespace)).To(Succeed())
		g.Expect(namespace.Annotations).NotTo(HaveKey("field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"))
	}).Should(Succeed())
}

// state contains the objects and their UIDs.
type state struct {
	// objects are Fleet's Clusters, groups and mappings.
	objects map[string]types.UID
	// deployments are BundleDeployments, with the deployed version; agents belong to Fleet's agents.
	deployments, agents map[string]string
	// applications and releases are on the running cluster.
	applications map[string]types.UID
	releases     []string
}

func observe(g Gomega) state {
	now := state{objects: map[string]types.UID{}, deployments: map[string]string{}, agents: map[string]string{}, applications: map[string]types.UID{}}
	for _, kind := range []string{"Cluster", "ClusterGroup", "BundleNamespaceMapping"} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind(kind + "List"))
		g.Expect(admin.List(ctx, &list)).To(Succeed())
		for _, item := range list.Items {
			now.objects[kind+" "+item.Namespace+"/"+item.Name] = item.UID
		}
	}
	var all fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &all)).To(Succeed())
	for _, deployment := range all.Items {
		labels := deployment.Labels
		bundle := labels["fleet.cattle.io/bundle-namespace"] + "/" + labels["fleet.cattle.io/bundle-name"]
		key := labels[fleetv1.ClusterNamespaceLabel] + "/" + labels[fleetv1.ClusterLabel] + ": " + bundle
		into := now.deployments
		if strings.Contains(bundle, "/fleet-agent-") {
			into = now.agents
		}
		into[key] = string(deployment.UID) + " " + deployment.Spec.DeploymentID
	}
	var applications corev1.ConfigMapList
	hosted(g, &applications, "configmaps", "--field-selector=metadata.name!=kube-root-ca.crt")
	for _, application := range applications.Items {
		now.applications[application.Name] = application.UID
	}
	var releases corev1.SecretList
	hosted(g, &releases, "secrets", "-l", "owner=helm")
	for _, release := range releases.Items {
		now.releases = append(now.releases, release.Name)
	}
	slices.Sort(now.releases)
	return now
}

func hosted(g Gomega, into any, args ...string) {
	out, err := env.HostedKubectl(ctx, prod.Namespace, prod.Name, append([]string{"-n", "default", "get", "-o", "json"}, args...)...)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal([]byte(out), into)).To(Succeed())
}

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.Full}, fixture.Use(&env, &admin)))
}
