// Package providers checks the examples of docs/guides/nat.md for RKE2 and k3s against the
// Go types of these providers. It is a module of its own: they are built on another version
// of Cluster API.
package providers

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	jsonpatch "github.com/evanphx/json-patch/v5"
	k3sbootstrapv1 "github.com/k3s-io/cluster-api-k3s/bootstrap/api/v1beta2"
	k3scontrolplanev1 "github.com/k3s-io/cluster-api-k3s/controlplane/api/v1beta2"
	rke2bootstrapv1 "github.com/rancher/cluster-api-provider-rke2/bootstrap/api/v1beta1"
	rke2controlplanev1 "github.com/rancher/cluster-api-provider-rke2/controlplane/api/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/v1beta1"
	"sigs.k8s.io/yaml"
)

// file is what the examples put on a machine, whatever the provider calls its parts.
type file struct{ path, owner, permissions, secret, key string }

func TestRKE2(t *testing.T) {
	before := &rke2controlplanev1.RKE2ControlPlaneTemplate{}
	before.APIVersion, before.Kind = rke2controlplanev1.GroupVersion.String(), "RKE2ControlPlaneTemplate"
	before.Spec.Template.Spec.Files = []rke2bootstrapv1.File{{Path: "/etc/motd", Content: "of the class\n"}}
	after := &rke2controlplanev1.RKE2ControlPlaneTemplate{}
	patch(t, before.Kind, before.APIVersion, before, after)

	var files []file
	for _, f := range after.Spec.Template.Spec.Files {
		if f.ContentFrom != nil {
			files = append(files, file{f.Path, f.Owner, f.Permissions, f.ContentFrom.Secret.Name, f.ContentFrom.Secret.Key})
		}
	}
	expect(t, files, len(after.Spec.Template.Spec.Files), "/var/lib/rancher/rke2/server/manifests/fleet-agent.yaml")
}

func TestK3s(t *testing.T) {
	before := &k3scontrolplanev1.KThreesControlPlaneTemplate{}
	before.APIVersion, before.Kind = k3scontrolplanev1.GroupVersion.String(), "KThreesControlPlaneTemplate"
	before.Spec.Template.Spec.KThreesConfigSpec.Files = []k3sbootstrapv1.File{{Path: "/etc/motd", Content: "of the class\n"}}
	after := &k3scontrolplanev1.KThreesControlPlaneTemplate{}
	patch(t, before.Kind, before.APIVersion, before, after)

	var files []file
	for _, f := range after.Spec.Template.Spec.KThreesConfigSpec.Files {
		if f.ContentFrom != nil {
			files = append(files, file{f.Path, f.Owner, f.Permissions, f.ContentFrom.Secret.Name, f.ContentFrom.Secret.Key})
		}
	}
	expect(t, files, len(after.Spec.Template.Spec.KThreesConfigSpec.Files), "/var/lib/rancher/k3s/server/manifests/fleet-agent.yaml")
}

func expect(t *testing.T, files []file, all int, path string) {
	t.Helper()
	want := file{path, "root:root", "0600", "prod-fleet-agent", "manifest"}
	if len(files) != 1 || files[0] != want {
		t.Errorf("files with content of a Secret: %+v, not %+v", files, want)
	}
	if all != 2 {
		t.Errorf("there are %d files, not that of the class and ours", all)
	}
}

// patch does to a template what Cluster API would for Cluster prod, and decodes the result
// strictly: a field that the type does not have is an error.
func patch(t *testing.T, kind, apiVersion string, before, after any) {
	t.Helper()
	example := read(t, kind)
	selector := example.Definitions[0].Selector
	if selector.Kind != kind || selector.APIVersion != apiVersion || !selector.MatchResources.ControlPlane {
		t.Fatalf("the example selects %+v, not the control plane's %s of %s", selector, kind, apiVersion)
	}
	content, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range example.Definitions[0].JSONPatches {
		if operation.ValueFrom == nil || operation.ValueFrom.Template == nil {
			t.Fatal("the example does not render its value")
		}
		text, err := template.New("value").Option("missingkey=error").Parse(*operation.ValueFrom.Template)
		if err != nil {
			t.Fatal(err)
		}
		var value bytes.Buffer
		if err := text.Execute(&value, map[string]any{"builtin": map[string]any{"cluster": map[string]any{"name": "prod"}}}); err != nil {
			t.Fatal(err)
		}
		var fields any
		if err := yaml.Unmarshal(value.Bytes(), &fields); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal([]any{map[string]any{"op": operation.Op, "path": operation.Path, "value": fields}})
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := jsonpatch.DecodePatch(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if content, err = decoded.Apply(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := yaml.UnmarshalStrict(content, after, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
}

var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// read returns the guide's patch for templates of a kind, decoded strictly as well.
func read(t *testing.T, kind string) clusterv1.ClusterClassPatch {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guides/nat.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range block.FindAllStringSubmatch(string(guide), -1) {
		if !strings.Contains(found[1], "kind: "+kind+"\n") {
			continue
		}
		var class clusterv1.ClusterClassSpec
		if err := yaml.UnmarshalStrict([]byte(found[1]), &class, yaml.DisallowUnknownFields); err != nil {
			t.Fatal(err)
		}
		if len(class.Patches) != 1 || len(class.Patches[0].Definitions) != 1 {
			t.Fatalf("the example for %s has not one patch with one definition: %+v", kind, class.Patches)
		}
		return class.Patches[0]
	}
	t.Fatalf("the guide has no example for %s", kind)
	return clusterv1.ClusterClassPatch{}
}
