package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// verify checks that the channels install the objects of manifests/.
func verify(root string) error {
	return errors.Join(verifyChart(root), verifyClusterctl(root))
}

// verifyChart renders the chart with its defaults, and with each optional component and all of them, in muster-system
// and elsewhere.
func verifyChart(root string) error {
	want, err := kustomize(root, defaults)
	if err != nil {
		return err
	}
	problems := []error{verifyRendered(root, "the chart", want, namespace)}
	var all []string
	for _, c := range components {
		if c.byDefault {
			continue
		}
		more, err := kustomize(root, c.dir)
		if err != nil {
			return err
		}
		problems = append(problems, verifyRendered(root, "the chart with "+c.name, slices.Concat(want, more), namespace, c.name+".enabled=true"))
		all = append(all, c.name+".enabled=true")
	}
	elsewhere, err := kustomize(root, "hack/channels/testdata/elsewhere")
	if err != nil {
		return err
	}
	return errors.Join(append(problems, verifyRendered(root, "the chart in another namespace", elsewhere, "fleet-addons", all...))...)
}

// verifyRendered checks the objects of the chart with these values. Helm creates the Namespace itself.
func verifyRendered(root, what string, want []*unstructured.Unstructured, namespace string, set ...string) error {
	content, err := output(root, "go", "tool", "-modfile=tools/helm/go.mod", "helm", "template", "muster", chartDir,
		"--namespace", namespace, "--no-hooks", "--set", strings.Join(set, ","))
	if err != nil {
		return err
	}
	got, err := decode(content)
	if err != nil {
		return err
	}
	for _, object := range got {
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "helm.sh/resource-policy")
	}
	want = slices.DeleteFunc(slices.Clone(want), func(object *unstructured.Unstructured) bool { return object.GetKind() == "Namespace" })
	return compare(what, want, got)
}

// verifyClusterctl checks the components as clusterctl reads them: with the defaults of variables, and
// nothing else that it would take for a variable.
func verifyClusterctl(root string) error {
	files, err := released(root)
	if err != nil {
		return err
	}
	text := withDefaults(files[addonComponentsFile])
	if strings.Contains(text, "${") {
		return errors.New(addonComponentsFile + " has a variable that is not ours")
	}
	got, err := decode([]byte(text))
	if err != nil {
		return err
	}
	want, err := kustomize(root, defaults)
	if err != nil {
		return err
	}
	namespaces := 0
	for _, object := range got {
		if object.GetKind() == "Namespace" {
			namespaces++
		}
		if object.GetLabels()[providerLabel] != provider {
			return fmt.Errorf("%s is without the label of the provider", nameOf(object))
		}
		unstructured.RemoveNestedField(object.Object, "metadata", "labels", providerLabel)
		if object.GetNamespace() != "" && object.GetNamespace() != namespace {
			return fmt.Errorf("%s is in a namespace of its own; clusterctl moves it", nameOf(object))
		}
	}
	if namespaces != 1 {
		return fmt.Errorf("the components have %d Namespaces; clusterctl wants one", namespaces)
	}
	for _, deployment := range deployments(got) {
		container, err := containerOf(deployment)
		if err != nil {
			return err
		}
		if container["name"] != "manager" {
			return fmt.Errorf("%s: its container is not named manager", nameOf(deployment))
		}
		if of, _, err := unstructured.NestedString(deployment.Object, podLabel...); err != nil || of != provider {
			return fmt.Errorf("%s: its pods are without the label of the provider: %q, %w", nameOf(deployment), of, err)
		}
		unstructured.RemoveNestedField(deployment.Object, podLabel...)
	}
	return compare(addonComponentsFile, want, got)
}

// compare returns the differences between two sets of objects. Without labels or annotations is like with none.
func compare(what string, want, got []*unstructured.Unstructured) error {
	found := byName(got)
	if diff := cmp.Diff(byName(want), found); diff != "" {
		return fmt.Errorf("%s differs from manifests/ (-manifests +%s):\n%s", what, what, diff)
	}
	if len(got) != len(found) {
		return fmt.Errorf("%s has an object twice", what)
	}
	return nil
}

func byName(objects []*unstructured.Unstructured) map[string]map[string]any {
	result := map[string]map[string]any{}
	for _, object := range objects {
		for _, field := range []string{"labels", "annotations"} {
			if found, _, _ := unstructured.NestedMap(object.Object, "metadata", field); len(found) == 0 {
				unstructured.RemoveNestedField(object.Object, "metadata", field)
			}
		}
		result[nameOf(object)] = object.Object
	}
	return result
}
