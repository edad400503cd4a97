package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	onMachine  = "/etc/kubernetes/fleet-agent.yaml"
	adminConf  = "/etc/kubernetes/admin.conf"
	natBlocks  = 5
	dataSecret = "DataSecretAvailable"
)

// handOver is a class with the patch of the guide that adds to lists. Its template has
// both, as those of most classes do.
func handOver(g Gomega, class string) string {
	blocks, err := fixture.Guide("nat.md", natBlocks)
	g.Expect(err).NotTo(HaveOccurred())
	var guide map[string]any
	g.Expect(yaml.Unmarshal([]byte(blocks[1]), &guide)).To(Succeed())
	return changeClass(g, class, guide["patches"], map[string]any{
		"files":               []any{map[string]any{"path": "/etc/motd", "content": "of the class\n"}},
		"postKubeadmCommands": []any{"echo of the class"},
	})
}

// handOverAlone is a class whose template has no lists, with the guide's other patches.
func handOverAlone(g Gomega, class string) string {
	blocks, err := fixture.Guide("nat.md", natBlocks)
	g.Expect(err).NotTo(HaveOccurred())
	var guide struct {
		Patches []struct {
			Name        string           `json:"name"`
			Definitions []map[string]any `json:"definitions"`
		} `json:"patches"`
	}
	var lists map[string]any
	g.Expect(yaml.Unmarshal([]byte(blocks[1]), &guide)).To(Succeed())
	g.Expect(yaml.Unmarshal([]byte(blocks[2]), &lists)).To(Succeed())
	guide.Patches[0].Definitions[0]["jsonPatches"] = lists["jsonPatches"]
	return changeClass(g, class, guide.Patches, nil)
}

// changeClass gives the ClusterClass of a stream patches, and its KubeadmControlPlaneTemplate
// more of a spec.
func changeClass(g Gomega, class string, patches any, spec map[string]any) string {
	var changed []string
	for document := range strings.SplitSeq(class, "---\n") {
		var object map[string]any
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		switch object["kind"] {
		case nil:
			continue
		case "ClusterClass":
			object["spec"].(map[string]any)["patches"] = patches
		case "KubeadmControlPlaneTemplate":
			template := object["spec"].(map[string]any)["template"].(map[string]any)
			config := template["spec"].(map[string]any)["kubeadmConfigSpec"].(map[string]any)
			for key, value := range spec {
				config[key] = value
			}
		}
		content, err := yaml.Marshal(object)
		g.Expect(err).NotTo(HaveOccurred())
		changed = append(changed, string(content))
	}
	return strings.Join(changed, "---\n")
}

// cloudConfig is what of bootstrap data is looked at.
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

// bootstrapData waits for what the bootstrap controller has rendered for the first machine
// of a Cluster, and returns the manifest in it and the command that hands it over.
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

// bootstrap does on the downstream what the first machine would do with its bootstrap
// data, and what the second would.
func bootstrap(t *testing.T, g Gomega) {
	t.Helper()
	given, command := bootstrapData(g, nat)
	g.Expect(strings.TrimSpace(given)).To(Equal(strings.TrimSpace(manifest(g))), "not what `syncer agent-manifest` prints")
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
	// Kubernetes makes the account "default" with its namespace: which of the two is first is luck.
	for line := range strings.Lines(first) {
		g.Expect(line).To(Or(ContainSubstring(" created"), ContainSubstring(`serviceaccounts "default" already exists`), Equal("\n")))
	}
	created := versions()
	g.Expect(created).To(And(ContainSubstring("Deployment="), ContainSubstring("Secret="), ContainSubstring("ConfigMap=")))
	g.Expect(runs()).To(And(ContainSubstring("AlreadyExists"), Not(ContainSubstring(" created"))))
	g.Expect(versions()).To(Equal(created), "the second machine has changed something")
	t.Logf("%d bytes of manifest in the bootstrap data; %d objects created", len(given), strings.Count(first, " created"))
}

// testManifestIsLate: the machine's bootstrap is tried before there is a manifest.
func testManifestIsLate(t *testing.T) {
	g := NewWithT(t)
	late := types.NamespacedName{Namespace: "nat-late", Name: "late"}
	g.Expect(env.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", late.Namespace))).To(Succeed())
	class, err := env.InMemoryClusterClass(late.Namespace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.Apply(ctx, handOverAlone(g, class))).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, late.Namespace, stack.InMemoryClass)).To(Succeed())

	g.Expect(env.Stop(ctx, "muster-registrar")).To(Succeed())
	t.Cleanup(func() {
		if err := env.Start(context.Background(), "muster-registrar"); err != nil {
			t.Error(err)
		}
		if _, err := env.Kubectl(ctx, "delete", "clusters.cluster.x-k8s.io", "-n", late.Namespace, "--all", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	g.Expect(env.Apply(ctx, stack.TopologyCluster{
		Namespace: late.Namespace, Name: late.Name, Annotations: map[string]string{stamp.RegistrationAnnotation: "agent"},
	}.YAML())).To(Succeed())
	g.Eventually(func(g Gomega) {
		said, err := env.Kubectl(ctx, "-n", late.Namespace, "get", "kubeadmconfigs", "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="`+dataSecret+`")].message}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(said).To(ContainSubstring("secret not found: nat-late/late-fleet-agent"))
	}).WithTimeout(2 * soon).Should(Succeed())

	begin := time.Now()
	g.Expect(env.Start(ctx, "muster-registrar")).To(Succeed())
	given, command := bootstrapData(g, late)
	g.Expect(given).To(ContainSubstring("kind: Deployment"))
	g.Expect(command).To(HavePrefix("kubectl --kubeconfig=" + adminConf + " create -f "))
	t.Logf("the bootstrap data was there %s after the registrar was started", time.Since(begin).Round(100*time.Millisecond))
}

// testAgentNamespace: another spec.cluster.agentNamespace would have the agent deploy itself there,
// where it has no credential. It stays; other settings reach it.
func testAgentNamespace(t *testing.T) {
	g := NewWithT(t)
	g.Expect(env.Apply(ctx, `{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config},
spec: {cluster: {agentNamespace: elsewhere, agentEnvVars: [{name: MUSTER_TEST, value: reached}]}}}`)).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "fleetaddonconfig", "fleet-addon-config"); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(func(g Gomega) {
		var fleet fleetv1.Cluster
		g.Expect(admin.Get(ctx, nat, &fleet)).To(Succeed())
		g.Expect(fleet.Spec.AgentEnvVars).To(HaveLen(1))
		g.Expect(fleet.Spec.AgentNamespace).To(Equal("fleet-addon-agent"))
		g.Expect(conditions.GetMessage(getCluster(g, nat), "FleetImported")).To(ContainSubstring(`its agent stays in namespace "fleet-addon-agent"`))
	}).WithTimeout(soon).Should(Succeed())
	// Fleet has made the agent's Bundle anew, and the agent has deployed itself from it.
	g.Eventually(func(g Gomega) {
		var bundle fleetv1.Bundle
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: natTeam, Name: "fleet-agent-" + nat.Name}, &bundle)).To(Succeed())
		g.Expect(bundle.Spec.DefaultNamespace).To(Equal("fleet-addon-agent"))
		env, err := env.DownstreamKubectl(ctx, "-n", "fleet-addon-agent", "get", "deployment", "fleet-agent", "-o", "jsonpath={..env}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env).To(ContainSubstring("MUSTER_TEST"))
	}).WithTimeout(soon).Should(Succeed())
	g.Expect(env.Apply(ctx, helloBundle("edge-stays"))).To(Succeed())
	eventuallyPods(g, "edge-stays", "10.77.0.0/16")
	out, err := env.DownstreamKubectl(ctx, "get", "namespaces", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).NotTo(ContainSubstring("elsewhere"))
}
