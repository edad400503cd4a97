package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/stack"
)

// testAdoption puts CAAPF's objects where Muster's are, and lets Muster adopt them: to
// Fleet they are the same clusters, with the same bundles at the same versions.
func testAdoption(t *testing.T) {
	g := NewWithT(t)
	one := types.NamespacedName{Namespace: "team", Name: "one"}
	g.Expect(env.Stop(ctx, syncerProcess)).To(Succeed())
	g.Expect(env.Stop(ctx, "muster-webhook")).To(Succeed())

	var current fleetv1.Cluster
	g.Expect(admin.Get(ctx, one, &current)).To(Succeed())
	// CAAPF claims nobody: for a moment the mapping has no user.
	for _, name := range []string{"one", "two"} {
		leaveAsCAAPF(g, types.NamespacedName{Namespace: "team", Name: name})
	}
	asCAAPF(g, "addon-provider-fleet", fmt.Sprintf(`{"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleNamespaceMapping",
		"metadata": {"namespace": %q, "name": "team"}, "bundleSelector": {}, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}`, classNamespace))
	time.Sleep(3 * time.Second) // Fleet takes note, as it had of CAAPF's.
	deployed := deploymentIDs(g, one)
	g.Expect(deployed).NotTo(BeEmpty())

	g.Expect(env.Start(ctx, "muster-webhook")).To(Succeed())
	g.Expect(env.Start(ctx, syncerProcess)).To(Succeed())
	g.Eventually(func(g Gomega) {
		var adopted fleetv1.Cluster
		g.Expect(admin.Get(ctx, one, &adopted)).To(Succeed())
		g.Expect(adopted.UID).To(Equal(current.UID))
		g.Expect(adopted.Labels).To(HaveKeyWithValue("app.kubernetes.io/managed-by", "muster"))
		g.Expect(adopted.Labels).NotTo(HaveKey("stale"))
		var mapping fleetv1.BundleNamespaceMapping
		g.Expect(admin.Get(ctx, types.NamespacedName{Namespace: classNamespace, Name: "team"}, &mapping)).To(Succeed())
		g.Expect(mapping.BundleSelector.MatchExpressions).To(HaveLen(1))
	}).Should(Succeed())
	g.Consistently(func(g Gomega) {
		g.Expect(deploymentIDs(g, one)).To(Equal(deployed))
	}).WithTimeout(5 * time.Second).Should(Succeed())
}

// leaveAsCAAPF makes a Cluster unclaimed and its Fleet Cluster what CAAPF makes of it.
func leaveAsCAAPF(g Gomega, key types.NamespacedName) {
	cluster := getCluster(g, key)
	var current fleetv1.Cluster
	g.Expect(admin.Get(ctx, key, &current)).To(Succeed())
	values, err := json.Marshal(current.Spec.TemplateValues)
	g.Expect(err).NotTo(HaveOccurred())
	labels := maps.Clone(cluster.Labels)
	labels["stale"] = "label"
	labelsJSON, err := json.Marshal(labels)
	g.Expect(err).NotTo(HaveOccurred())
	asCAAPF(g, "addon-provider-fleet", fmt.Sprintf(`{"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster",
		"metadata": {"namespace": %[1]q, "name": %[2]q, "labels": %[3]s,
			"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": %[2]q, "uid": %[4]q}]},
		"spec": {"kubeConfigSecret": "%[2]s-kubeconfig", "agentNamespace": "fleet-addon-agent", "hostNetwork": true, "templateValues": %[5]s}}`,
		key.Namespace, key.Name, labelsJSON, cluster.UID, values))
	before := cluster.DeepCopy()
	delete(cluster.Annotations, "fleet.addons.cluster.x-k8s.io/owned-by")
	delete(cluster.Annotations, "fleet.addons.cluster.x-k8s.io/cluster-name")
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
}

func asCAAPF(g Gomega, manager, text string) {
	object := &unstructured.Unstructured{}
	g.Expect(json.Unmarshal([]byte(text), &object.Object)).To(Succeed())
	g.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)).To(Succeed())
}

// deploymentIDs returns what is deployed to a cluster, in which version, by which object.
func deploymentIDs(g Gomega, key types.NamespacedName) map[string]string {
	var all fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &all, client.InNamespace(fleetNamespace(g, key)))).To(Succeed())
	ids := map[string]string{}
	for _, deployment := range all.Items {
		if deployment.Name != "fleet-agent-"+key.Name {
			ids[deployment.Name] = string(deployment.UID) + " " + deployment.Spec.DeploymentID
		}
	}
	return ids
}

// formerVariable names the revision that TestUpgrade upgrades from.
const formerVariable = "MUSTER_UPGRADE_FROM"

// revision is a build of Muster at another commit.
type revision struct {
	// manifests is the directory of its default kustomization.
	manifests string
	// binaries maps the names of its commands to their programs.
	binaries map[string]string
}

// former is the revision that TestUpgrade starts from; nil if the variable is not set.
var former *revision

// takeFormer extracts the commit that the variable names into dir, builds it there, and makes
// the stack install it first.
func takeFormer(options *stack.Options, dir string) error {
	name := os.Getenv(formerVariable)
	if name == "" {
		return nil
	}
	root, err := stack.RepoRoot()
	if err != nil {
		return err
	}
	if err := run(root, "bash", "-euo", "pipefail", "-c", `git archive "$0" | tar -x -C "$1"`, name, dir); err != nil {
		return err
	}
	// The stack builds this work tree with the same settings.
	if err := run(dir, "env", "CGO_ENABLED=0", "GOWORK=off", "go", "build", "-buildvcs=false", "-o", "bin/", "./cmd/..."); err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(dir, "bin", "*"))
	if err != nil {
		return err
	}
	former = &revision{manifests: filepath.Join(dir, "manifests", "default"), binaries: map[string]string{}}
	for _, program := range programs {
		former.binaries[filepath.Base(program)] = program
	}
	options.Manifests, options.Binaries = former.manifests, former.binaries
	return nil
}

func run(dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
