package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	jsonpatch "github.com/evanphx/json-patch/v5"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

// The guide's examples for RKE2 and k3s are patches of these providers' templates: applied as
// Cluster API would, they give what the API server accepts, validating strictly against the
// providers' own CRDs.
func TestProviders(t *testing.T) {
	for kind, provider := range map[string]struct {
		module, template, manifest string
		files                      []string
	}{
		"RKE2ControlPlaneTemplate": {
			module:   "github.com/rancher/cluster-api-provider-rke2",
			template: "apiVersion: controlplane.cluster.x-k8s.io/v1beta1\nspec: {template: {spec: {files: [{path: /etc/motd, content: hello}], rolloutStrategy: {type: RollingUpdate}}}}",
			manifest: "/var/lib/rancher/rke2/server/manifests/fleet-agent.yaml",
			files:    []string{"spec", "template", "spec", "files"},
		},
		"KThreesControlPlaneTemplate": {
			module:   "github.com/k3s-io/cluster-api-k3s",
			template: "apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nspec: {template: {spec: {kthreesConfigSpec: {files: [{path: /etc/motd, content: hello}]}}}}",
			manifest: "/var/lib/rancher/k3s/server/manifests/fleet-agent.yaml",
			files:    []string{"spec", "template", "spec", "kthreesConfigSpec", "files"},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			serve(t, provider.module, kind)
			before := &unstructured.Unstructured{}
			g.Expect(yaml.Unmarshal([]byte(provider.template), &before.Object)).To(Succeed())
			before.SetKind(kind)
			before.SetNamespace("default")
			before.SetName("example")
			strict := client.WithFieldValidation(admin, "Strict")
			g.Expect(strict.Create(ctx, before.DeepCopy(), client.DryRunAll)).To(Succeed(), "the template itself")

			after := &unstructured.Unstructured{Object: patched(t, before)}
			g.Expect(strict.Create(ctx, after, client.DryRunAll)).To(Succeed())
			files, _, err := unstructured.NestedSlice(after.Object, provider.files...)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(files).To(HaveLen(2), "the class's file, and ours")
			g.Expect(files[1]).To(Equal(map[string]any{
				"path": provider.manifest, "owner": "root:root", "permissions": "0600",
				"contentFrom": map[string]any{"secret": map[string]any{"name": "prod-fleet-agent", "key": "manifest"}},
			}))
		})
	}
}

// serve has a kind of a provider served until the test ends.
func serve(t *testing.T, module, kind string) {
	t.Helper()
	g := NewWithT(t)
	root, err := stack.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	dir, err := parts.ModuleDir(ctx, filepath.Join(root, "test", "providers"), module)
	g.Expect(err).NotTo(HaveOccurred())
	crd := "controlplane.cluster.x-k8s.io_" + strings.ToLower(kind) + "s.yaml"
	content, err := os.ReadFile(filepath.Join(dir, "controlplane/config/crd/bases", crd))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(env.ApplyCRDs(ctx, content)).To(Succeed())
	t.Cleanup(func() {
		if _, err := env.KubectlInput(ctx, string(content), "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
}

// patched does to a template what the guide's patch does to that of Cluster prod.
func patched(t *testing.T, before *unstructured.Unstructured) map[string]any {
	t.Helper()
	g := NewWithT(t)
	definition := definitionFor(t, before.GetKind())
	g.Expect([]string{definition.Selector.APIVersion, definition.Selector.Kind}).To(Equal([]string{before.GetAPIVersion(), before.GetKind()}))
	g.Expect(definition.Selector.MatchResources.ControlPlane).To(HaveValue(BeTrue()))
	content, err := before.MarshalJSON()
	g.Expect(err).NotTo(HaveOccurred())
	for _, operation := range definition.JSONPatches {
		g.Expect(operation.ValueFrom).NotTo(BeNil(), "the example does not render its value")
		text, err := template.New("value").Option("missingkey=error").Parse(operation.ValueFrom.Template)
		g.Expect(err).NotTo(HaveOccurred())
		var rendered bytes.Buffer
		g.Expect(text.Execute(&rendered, map[string]any{"builtin": map[string]any{"cluster": map[string]any{"name": "prod"}}})).To(Succeed())
		var value any
		g.Expect(yaml.Unmarshal(rendered.Bytes(), &value)).To(Succeed())
		encoded, err := json.Marshal([]any{map[string]any{"op": operation.Op, "path": operation.Path, "value": value}})
		g.Expect(err).NotTo(HaveOccurred())
		patch, err := jsonpatch.DecodePatch(encoded)
		g.Expect(err).NotTo(HaveOccurred())
		content, err = patch.Apply(content)
		g.Expect(err).NotTo(HaveOccurred())
	}
	var after map[string]any
	g.Expect(json.Unmarshal(content, &after)).To(Succeed())
	return after
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// definitionFor returns the one definition of the guide's patch for templates of a kind,
// decoded strictly as well.
func definitionFor(t *testing.T, kind string) clusterv1.PatchDefinition {
	t.Helper()
	g := NewWithT(t)
	guide, err := os.ReadFile("../../docs/guides/nat.md")
	g.Expect(err).NotTo(HaveOccurred())
	var found []clusterv1.PatchDefinition
	for _, block := range yamlBlock.FindAllStringSubmatch(string(guide), -1) {
		if strings.Contains(block[1], "kind: "+kind+"\n") {
			var class clusterv1.ClusterClassSpec
			g.Expect(yaml.UnmarshalStrict([]byte(block[1]), &class, yaml.DisallowUnknownFields)).To(Succeed())
			for _, patch := range class.Patches {
				found = append(found, patch.Definitions...)
			}
		}
	}
	g.Expect(found).To(HaveLen(1), "definitions for "+kind)
	return found[0]
}
