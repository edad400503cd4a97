package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/gitserver"
)

// The guide "Clusters and their applications from Git": Fleet's own gitjob clones, and its local agent applies
// through our webhooks.
func TestFromGit(t *testing.T) {
	g := NewWithT(t)
	story := newGitStory(t)
	prod, class, cluster := story.prod, story.class, story.cluster
	begin := time.Now()
	story.begin(g)
	g.Eventually(story.serves("git")).WithTimeout(3 * time.Minute).Should(Succeed())
	t.Logf("the application was on the cluster %s after the GitRepos were applied", time.Since(begin).Round(100*time.Millisecond))

	t.Run("its bundles are mapped, those of agents are not", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(deployments(g, prod.key())).To(ConsistOf("classes/apps-hello", "classes/cni", "classes/cloud-provider"))
	})
	t.Run("no two writers fight over the stamp", func(t *testing.T) { testNobodyFights(t, cluster) })
	t.Run("pushed labels of the class and the Cluster, and the pushed application, arrive", func(t *testing.T) {
		g := NewWithT(t)
		marked := strings.Replace(class, "kind: ClusterClass\nmetadata: {", "kind: ClusterClass\nmetadata: {labels: {tier: gold}, ", 1)
		g.Expect(story.platform.Push(ctx, "Change labels", map[string]string{
			"classes/standard.yaml": marked, "clusters/prod.yaml": strings.Replace(cluster, "env: prod", "env: changed", 1),
		})).To(Succeed())
		story.push(g, "push")
		g.Eventually(func(g Gomega) {
			g.Expect(fleetCluster(g, prod.key()).Labels).To(And(HaveKeyWithValue("env", "changed"), HaveKeyWithValue("tier", "gold")))
		}).WithTimeout(soon).Should(Succeed())
		g.Eventually(story.serves("push")).WithTimeout(soon).Should(Succeed())
	})
	t.Run("removed from Git: gone everywhere", story.remove)
}

// gitStory holds the guide's repositories, on a server that the test runs.
type gitStory struct {
	prod           hosted
	platform, apps *gitserver.Repository
	// class, cluster and hello are files; gitRepos are the manifests that the test applies.
	class, cluster, hello string
	gitRepos              []string
}

// newGitStory prepares what the guide expects, and pushes its files.
func newGitStory(t *testing.T) *gitStory {
	t.Helper()
	g := NewWithT(t)
	blocks, err := fixture.Guide("gitops.md", 5)
	g.Expect(err).NotTo(HaveOccurred())
	story := &gitStory{prod: hosted{"team", "prod"}, class: env.HostClusterClass(classNamespace, "standard"), cluster: blocks[1], hello: blocks[4]}
	server, err := gitserver.New(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = server.Close() })

	g.Expect(env.StartHostProvider(ctx)).To(Succeed())
	g.Expect(env.StartGitOps(ctx)).To(Succeed())
	namespaces(g, classNamespace, "team")
	g.Eventually(func(g Gomega) {
		local := fleetCluster(g, types.NamespacedName{Namespace: stack.LocalNamespace, Name: "local"})
		g.Expect(local.Status.Agent.LastSeen.IsZero()).To(BeFalse())
	}).WithTimeout(2 * time.Minute).Should(Succeed())

	// This makes the cluster Available: Fleet counts a Bundle that contains a Cluster as ready when the Cluster is.
	network, err := fixture.Guide("cni.md", 3)
	g.Expect(err).NotTo(HaveOccurred())
	kubectlApply(g, network[1])
	g.Expect(env.Apply(ctx, cloudProvider)).To(Succeed())
	t.Cleanup(func() { leaveNoTemplate(t); leaveNoGitRepo(t) })

	story.platform, err = server.Create(ctx, "platform")
	g.Expect(err).NotTo(HaveOccurred())
	story.apps, err = server.Create(ctx, "apps")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(story.platform.Push(ctx, "Add the class and a cluster", map[string]string{
		"classes/standard.yaml": story.class, "clusters/fleet.yaml": blocks[0], "clusters/prod.yaml": story.cluster,
	})).To(Succeed())
	g.Expect(story.apps.Push(ctx, "Add an application", map[string]string{"hello/hello.yaml": story.hello})).To(Succeed())
	for _, repo := range []struct {
		yaml string
		at   *gitserver.Repository
	}{{blocks[2], story.platform}, {blocks[3], story.apps}} {
		name := repo.at.URL[strings.LastIndex(repo.at.URL, "/"):]
		yaml := strings.Replace(repo.yaml, "https://git.example.com"+name, repo.at.URL, 1)
		story.gitRepos = append(story.gitRepos, strings.Replace(yaml, "  branch: main\n", "  branch: main\n  pollingInterval: 2s\n", 1))
	}
	return story
}

// begin applies the GitRepos.
func (s *gitStory) begin(g Gomega) {
	for _, repo := range s.gitRepos {
		kubectlApply(g, repo)
	}
}

// serves checks the content of the application on the cluster.
func (s *gitStory) serves(want string) func(Gomega) {
	return func(g Gomega) {
		out, err := s.prod.kubectl("get", "configmap", "hello", "-o", "jsonpath={.data.from}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal(want))
	}
}

// push changes the content of the application.
func (s *gitStory) push(g Gomega, content string) {
	g.Expect(s.apps.Push(ctx, "Change the application", map[string]string{
		"hello/hello.yaml": strings.Replace(s.hello, "from: git", "from: "+content, 1),
	})).To(Succeed())
}

// remove removes the Cluster from Git, and waits until all its objects are gone.
func (s *gitStory) remove(t *testing.T) {
	g := NewWithT(t)
	g.Expect(s.platform.Push(ctx, "Remove the cluster", map[string]string{"clusters/prod.yaml": ""})).To(Succeed())
	for _, left := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}, &fleetv1.ClusterGroup{}} {
		left.SetNamespace("team")
		left.SetName("prod")
		if _, isGroup := left.(*fleetv1.ClusterGroup); isGroup {
			left.SetName("standard.classes")
		}
		eventuallyGone(g, left)
	}
	mappingGone(g, classNamespace, "team")
	g.Eventually(func(g Gomega) {
		var all fleetv1.BundleDeploymentList
		g.Expect(admin.List(ctx, &all, client.MatchingLabels{fleetv1.ClusterNamespaceLabel: "team", fleetv1.ClusterLabel: "prod"})).To(Succeed())
		g.Expect(all.Items).To(BeEmpty())
	}).WithTimeout(soon).Should(Succeed())
}

// leaveNoGitRepo deletes the GitRepos, and with them the objects that came from them.
func leaveNoGitRepo(t *testing.T) {
	g := NewWithT(t)
	for namespace, name := range map[string]string{stack.LocalNamespace: "platform", classNamespace: "apps"} {
		kubectl(g, "-n", namespace, "delete", "gitrepos.fleet.cattle.io", name, "--ignore-not-found")
	}
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name = classNamespace, "standard"
	eventuallyGone(g, class)
}

// testNobodyFights applies Clusters again, in every way and with every manager, and checks that the stamp stays and
// that Fleet reports nothing as modified. A client that applies an object of Fleet's shares its ownership
// afterwards and would get in the way of the next push, so that case is a dry run.
func testNobodyFights(t *testing.T, cluster string) {
	g := NewWithT(t)
	byAnother := []string{"--server-side", "--field-manager=somebody", "-o", "yaml"} // This causes no conflict.
	isStamped := func(yaml, name string) {
		g.Expect(stamped(yaml)).To(Equal(4))
		g.Expect(yaml).To(ContainSubstring("fleet.addons.cluster.x-k8s.io/cluster-name: " + name))
	}
	isStamped(kubectlApply(g, cluster, append(byAnother, "--dry-run=server")...), "prod")

	// A Cluster by hand, paused so that no controller provisions it.
	byHand := strings.Replace(strings.Replace(cluster, "name: prod", "name: by-hand", 1), "\nspec:\n", "\nspec:\n  paused: true\n", 1)
	for _, want := range []string{"created", "unchanged", "unchanged"} {
		g.Expect(kubectlApply(g, byHand)).To(ContainSubstring(want))
	}
	isStamped(kubectlApply(g, byHand, byAnother...), "by-hand")
	kubectl(g, "-n", "team", "delete", "clusters.cluster.x-k8s.io", "by-hand", "--wait=false")
	kubectl(g, "-n", "team", "patch", "clusters.cluster.x-k8s.io", "by-hand", "--type=merge", "-p", `{"spec":{"paused":false}}`)

	summary := func() fleetv1.BundleSummary {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: stack.LocalNamespace, Name: "platform-clusters"}, &bundle)).To(Succeed())
		return bundle.Status.Summary
	}
	g.Eventually(summary).WithTimeout(2 * time.Minute).Should(HaveField("Ready", 1))
	g.Consistently(summary).WithTimeout(10 * time.Second).Should(And(HaveField("Ready", 1), HaveField("Modified", 0)))
}

// stamped counts the keys of the stamp in an object's labels and annotations.
func stamped(yaml string) int {
	count := 0
	for line := range strings.Lines(yaml) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "clusterclass-name.fleet.addons.cluster.x-k8s.io", "clusterclass-namespace.fleet.addons.cluster.x-k8s.io",
			"fleet.addons.cluster.x-k8s.io/owned-by", "fleet.addons.cluster.x-k8s.io/cluster-name":
			count++
		}
	}
	return count
}
