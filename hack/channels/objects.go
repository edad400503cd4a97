package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/manifests"
)

// build builds a kustomization of the tree at root.
func build(root, dir string, flags ...string) ([]byte, error) {
	return output(root, "go", append([]string{"tool", "-modfile=tools/go.mod", "kustomize", "build", filepath.FromSlash(dir)}, flags...)...)
}

// kustomize returns the objects of a kustomization of the tree at root.
func kustomize(root, dir string) ([]*unstructured.Unstructured, error) {
	content, err := build(root, dir)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

func output(dir, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, problems.String())
	}
	return out, nil
}

// decode reads a stream of YAML documents.
func decode(content []byte) ([]*unstructured.Unstructured, error) {
	read, problems := manifests.Read([]string{manifests.Stdin}, bytes.NewReader(content))
	if len(problems) > 0 {
		return nil, problems[0]
	}
	var objects []*unstructured.Unstructured
	for _, found := range read {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(found.Raw); err != nil {
			return nil, found.Wrap(err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// encode writes objects as a stream of YAML documents.
func encode(objects []*unstructured.Unstructured) (string, error) {
	var documents []string
	for _, object := range objects {
		document, err := yaml.Marshal(object.Object)
		if err != nil {
			return "", err
		}
		documents = append(documents, string(document))
	}
	return strings.Join(documents, "---\n"), nil
}

// nameOf names an object in messages.
func nameOf(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GroupVersionKind().GroupKind().String() + " " + name
}

// containerOf returns the only container of a Deployment, to change it in place.
func containerOf(deployment *unstructured.Unstructured) (map[string]any, error) {
	field, _, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec", "containers")
	list, _ := field.([]any)
	if err != nil || len(list) != 1 {
		return nil, fmt.Errorf("%s: it has %d containers: %w", nameOf(deployment), len(list), err)
	}
	return list[0].(map[string]any), nil
}

// deployments returns the Deployments among objects.
func deployments(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(object *unstructured.Unstructured) bool { return object.GetKind() != "Deployment" })
}

// versionOf returns the tag of the programs' images, which must differ only in their names.
func versionOf(objects []*unstructured.Unstructured) (string, error) {
	var first, version string
	for _, deployment := range deployments(objects) {
		container, err := containerOf(deployment)
		if err != nil {
			return "", err
		}
		whole, _ := container["image"].(string)
		registry, tag, named := strings.Cut(whole, "/"+deployment.GetName()+":")
		if !named || !strings.Contains(registry, "/") || first != "" && first != registry+":"+tag {
			return "", fmt.Errorf("image %q is not REGISTRY/REPOSITORY/%s:VERSION like the others", whole, deployment.GetName())
		}
		first, version = registry+":"+tag, tag
	}
	if version == "" {
		return "", errors.New("there is no Deployment")
	}
	return version, nil
}
