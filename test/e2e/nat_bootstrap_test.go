package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	onMachine = "/etc/kubernetes/fleet-agent.yaml"
	adminConf = "/etc/kubernetes/admin.conf"
)

func natGuide(g Gomega) []string {
	blocks, err := fixture.Guide("nat.md", 5)
	g.Expect(err).NotTo(HaveOccurred())
	return blocks
}

// handOver returns a class with the patch from the guide that adds to lists. Its template has both lists, like the
// templates of most classes.
func handOver(g Gomega, class string) string {
	const config = "kubeadmConfigSpec:\n"
	class = strings.Replace(class, config, config+"        files: [{path: /etc/motd, content: of the class}]\n        postKubeadmCommands: [echo of the class]\n", 1)
	return withPatches(class, natGuide(g)[1])
}

// handOverAlone returns a class whose template has no lists, with the guide's other patches.
func handOverAlone(g Gomega, class string) string {
	selector, _, _ := strings.Cut(natGuide(g)[1], "    jsonPatches:\n")
	return withPatches(class, selector+indented(natGuide(g)[2], "    "))
}

func withPatches(class, patches string) string {
	before, its, _ := strings.Cut(class, "kind: ClusterClass\n")
	metadata, spec, _ := strings.Cut(its, "\nspec:\n")
	return before + "kind: ClusterClass\n" + metadata + "\nspec:\n" + indented(patches, "  ") + spec
}

func indented(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by) + "\n"
}

// cloudConfig is the part of the bootstrap data that the tests read.
type cloudConfig struct {
	WriteFiles []struct {
		Path        string `json:"path"`
		Owner       string `json:"owner"`
		Permissions string `json:"permissions"`
		Encoding    string `json:"encoding"`
		Content     string `json:"content"`
	} `json:"write_files"`
	RunCmd []string `json:"runcmd"`
}

// bootstrapData waits until the bootstrap controller has rendered the data for the first machine of a Cluster. It
// returns the manifest in the data and the command that applies it.
func bootstrapData(g Gomega, cluster types.NamespacedName) (manifest, command string) {
	var data cloudConfig
	g.Eventually(func(g Gomega) {
		var machines clusterv1.MachineList
		g.Expect(admin.List(ctx, &machines, client.InNamespace(cluster.Namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})).To(Succeed())
		g.Expect(machines.Items).To(HaveLen(1))
		name := machines.Items[0].Spec.Bootstrap.DataSecretName
		g.Expect(name).NotTo(BeNil(), "there is no bootstrap data yet")
		var secret corev1.Secret
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: *name}, &secret)).To(Succeed())
		g.Expect(string(secret.Data["format"])).To(Equal("cloud-config"))
		g.Expect(yaml.Unmarshal(secret.Data["value"], &data)).To(Succeed())
	}).WithTimeout(2 * soon).Should(Succeed())
	for _, file := range data.WriteFiles {
		if file.Path == onMachine {
			g.Expect([]string{file.Owner, file.Permissions, file.Encoding}).To(Equal([]string{"root:root", "0600", ""}))
			manifest = file.Content
		}
	}
	g.Expect(manifest).NotTo(BeEmpty(), "no file of the machine has the manifest")
	last := len(data.RunCmd) - 1
	g.Expect(data.RunCmd[last]).To(ContainSubstring(onMachine))
	g.Expect(slices.IndexFunc(data.RunCmd, func(line string) bool { return strings.HasPrefix(line, "kubeadm init ") })).
		To(BeNumerically("<", last), "handed over before there is a cluster")
	return manifest, data.RunCmd[last]
}

// bootstrap runs on the downstream what the first machine, and then the second, would run from the bootstrap data.
func bootstrap(t *testing.T, g Gomega) {
	t.Helper()
	given, command := bootstrapData(g, nat)
	// The command adds what the API server adds to a fieldRef; the bootstrap's file is the Secret's, as Fleet wrote it.
	printed := regexp.MustCompile(`(?m)^ *apiVersion: v1\n( *fieldPath:)`).ReplaceAllString(manifest(g), "$1")
	g.Expect(strings.TrimSpace(given)).To(Equal(strings.TrimSpace(printed)), "not what `kubectl muster agent-manifest` prints")
	file := filepath.Join(t.TempDir(), "fleet-agent.yaml")
	g.Expect(os.WriteFile(file, []byte(given), 0o600)).To(Succeed())
	runs := func() string {
		cmd := exec.Command("sh", "-c", strings.NewReplacer(onMachine, file, adminConf, env.DownstreamKubeconfig()).Replace(command))
		cmd.Env = []string{"PATH=" + filepath.Dir(env.Program("kubectl")) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
		return string(out)
	}
	versions := func() string {
		out, err := env.DownstreamKubectl(ctx, "-n", stack.DefaultAgentNamespace, "get", "deployments,secrets,configmaps,serviceaccounts",
			"-o", `jsonpath={range .items[?(@.metadata.name=="fleet-agent")]}{.kind}={.metadata.resourceVersion} {end}`)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	first := runs()
	// Kubernetes creates the account "default" with its namespace, so either may come first.
	for line := range strings.Lines(first) {
		g.Expect(line).To(Or(ContainSubstring(" created"), ContainSubstring(`serviceaccounts "default" already exists`), Equal("\n")))
	}
	created := versions()
	g.Expect(created).To(And(ContainSubstring("Deployment="), ContainSubstring("Secret="), ContainSubstring("ConfigMap=")))
	g.Expect(runs()).To(And(ContainSubstring("AlreadyExists"), Not(ContainSubstring(" created"))))
	g.Expect(versions()).To(Equal(created), "the second machine has changed something")
	t.Logf("%d bytes of manifest in the bootstrap data; %d objects created", len(given), strings.Count(first, " created"))
}

// testManifestIsLate checks a machine whose bootstrap data is requested before the manifest exists.
func testManifestIsLate(t *testing.T) {
	g := NewWithT(t)
	late := types.NamespacedName{Namespace: "nat-late", Name: "late"}
	inMemoryClass(g, late.Namespace, handOverAlone)

	g.Expect(env.Stop(ctx, "muster-registrar")).To(Succeed())
	t.Cleanup(func() {
		g.Expect(env.Start(ctx, "muster-registrar")).To(Succeed())
		kubectl(g, "delete", "clusters.cluster.x-k8s.io", "-n", late.Namespace, "--all", "--wait=false")
	})
	g.Expect(env.Apply(ctx, stack.TopologyCluster{
		Namespace: late.Namespace, Name: late.Name, Annotations: map[string]string{stamp.RegistrationAnnotation: "agent"},
	}.YAML())).To(Succeed())
	g.Eventually(func(g Gomega) {
		output := kubectl(g, "-n", late.Namespace, "get", "kubeadmconfigs", "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="DataSecretAvailable")].message}`)
		g.Expect(output).To(ContainSubstring("secret not found: nat-late/late-fleet-agent"))
	}).WithTimeout(2 * soon).Should(Succeed())

	begin := time.Now()
	g.Expect(env.Start(ctx, "muster-registrar")).To(Succeed())
	given, command := bootstrapData(g, late)
	g.Expect(given).To(ContainSubstring("kind: Deployment"))
	g.Expect(command).To(HavePrefix("kubectl --kubeconfig=" + adminConf + " create -f "))
	t.Logf("the bootstrap data was there %s after the registrar was started", time.Since(begin).Round(100*time.Millisecond))
}

// testAgentNamespace changes spec.cluster.agentNamespace. The agent would deploy itself to a namespace where it has
// no credential, so it must stay. Other settings reach it.
func testAgentNamespace(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config},
spec: {cluster: {agentNamespace: elsewhere, agentEnvVars: [{name: MUSTER_TEST, value: reached}]}}}`)).To(Succeed())
	t.Cleanup(func() { withDefaults(g) })
	g.Eventually(func(g Gomega) {
		fleet := fleetCluster(g, nat)
		g.Expect(fleet.Spec.AgentEnvVars).To(HaveLen(1))
		g.Expect(fleet.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(conditions.GetMessage(getCluster(g, nat), "FleetImported")).To(ContainSubstring(`its agent stays in namespace "fleet-addon-agent"`))
	}).WithTimeout(soon).Should(Succeed())
	// Fleet has updated the agent's Bundle, and the agent has deployed itself from it.
	g.Eventually(func(g Gomega) {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: natTeam, Name: "fleet-agent-" + nat.Name}, &bundle)).To(Succeed())
		g.Expect(bundle.Spec.DefaultNamespace).To(Equal("fleet-addon-agent"))
		env, err := env.DownstreamKubectl(ctx, "-n", "fleet-addon-agent", "get", "deployment", "fleet-agent", "-o", "jsonpath={..env}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env).To(ContainSubstring("MUSTER_TEST"))
	}).WithTimeout(soon).Should(Succeed())
	lands(g, "edge-stays")
	out, err := env.DownstreamKubectl(ctx, "get", "namespaces", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(ContainSubstring("elsewhere"))
}
