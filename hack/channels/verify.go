package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// verify checks that the channels install the objects of manifests/.
func verify(root string) error {
	return errors.Join(verifyTable(root), verifyChart(root), verifyClusterctl(root))
}

// verifyTable checks that manifests/default has exactly the required parts and the default components.
func verifyTable(root string) error {
	want, err := kustomize(root, defaults)
	if err != nil {
		return err
	}
	var got []*unstructured.Unstructured
	dirs := slices.Clone(parts)
	for _, c := range components {
		if c.byDefault {
			dirs = append(dirs, c.dir)
		}
	}
	for _, dir := range dirs {
		more, err := kustomize(root, dir)
		if err != nil {
			return err
		}
		got = append(got, more...)
	}
	return compare("the table in hack/channels/main.go", withoutNamespace(want), got)
}

// verifyChart renders the chart with its defaults, with each optional component, and in another namespace.
func verifyChart(root string) error {
	want, err := kustomize(root, defaults)
	if err != nil {
		return err
	}
	want = withoutNamespace(want)
	problems := []error{verifyRendered(root, "the chart", want, namespace)}
	for _, c := range components {
		if c.byDefault {
			continue
		}
		more, err := kustomize(root, c.dir)
		if err != nil {
			return err
		}
		problems = append(problems, verifyRendered(root, "the chart with "+c.name, append(slices.Clone(want), more...), namespace, "--set", c.name+".enabled=true"))
	}
	elsewhere, err := kustomize(root, "hack/channels/testdata/elsewhere")
	if err != nil {
		return err
	}
	problems = append(problems,
		verifyRendered(root, "the chart in another namespace", withoutNamespace(elsewhere), "fleet-addons", "--set", "monitoring.enabled=true,registrar.enabled=true,installer.enabled=true"),
		verifyMirror(root))
	return errors.Join(problems...)
}

// helm runs the pinned helm.
func helm(root string, args ...string) ([]byte, error) {
	return output(root, "go", slices.Concat([]string{"tool", "-modfile=tools/helm/go.mod", "helm"}, args)...)
}

func render(root, namespace string, args ...string) ([]byte, error) {
	return helm(root, slices.Concat([]string{"template", "muster", chartDir, "--namespace", namespace}, args)...)
}

func verifyRendered(root, what string, want []*unstructured.Unstructured, namespace string, args ...string) error {
	content, err := render(root, namespace, append(args, "--no-hooks")...)
	if err != nil {
		return err
	}
	got, err := decode(content)
	if err != nil {
		return err
	}
	for _, object := range got {
		annotations := object.GetAnnotations()
		maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, "helm.sh/") })
		object.SetAnnotations(annotations)
	}
	return compare(what, want, got)
}

// verifyMirror checks that two values move every image to another registry.
func verifyMirror(root string) error {
	const mirror = "registry.example.com:5000"
	args := []string{"--set", "image.registry=" + mirror, "--set", "image.repository="}
	for _, c := range components {
		args = append(args, "--set", c.name+".enabled=true")
	}
	content, err := render(root, namespace, args...)
	if err != nil {
		return err
	}
	shipped, err := kustomize(root, defaults)
	if err != nil {
		return err
	}
	from, err := imageOf(shipped)
	if err != nil {
		return err
	}
	if strings.Contains(string(content), from.registry) || !strings.Contains(string(content), mirror+"/muster-webhook:") {
		return fmt.Errorf("the chart names %s, although image.registry is %s, or not %s/muster-webhook", from.registry, mirror, mirror)
	}
	return nil
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
		labels := object.GetLabels()
		if labels[providerLabel] != provider {
			return fmt.Errorf("%s is without the label of the provider", nameOf(object))
		}
		delete(labels, providerLabel)
		object.SetLabels(labels)
		if object.GetNamespace() != "" && object.GetNamespace() != namespace {
			return fmt.Errorf("%s is in a namespace of its own; clusterctl moves it", nameOf(object))
		}
	}
	if namespaces != 1 {
		return fmt.Errorf("the components have %d Namespaces; clusterctl wants one", namespaces)
	}
	for _, p := range programs(got) {
		container, err := p.container()
		if err != nil {
			return err
		}
		if container["name"] != "manager" {
			return fmt.Errorf("%s: its container is not named manager", nameOf(p.deployment))
		}
		if of, _, err := unstructured.NestedString(p.deployment.Object, podLabel...); err != nil || of != provider {
			return fmt.Errorf("%s: its pods are without the label of the provider: %q, %w", nameOf(p.deployment), of, err)
		}
		unstructured.RemoveNestedField(p.deployment.Object, podLabel...)
	}
	return compare(addonComponentsFile, want, got)
}

func withoutNamespace(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(object *unstructured.Unstructured) bool { return object.GetKind() == "Namespace" })
}

// compare returns the differences between two sets of objects.
func compare(what string, want, got []*unstructured.Unstructured) error {
	wanted, found := byName(want), byName(got)
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if found[name] == nil {
			problems = append(problems, fmt.Errorf("%s lacks %s", what, name))
		} else if path, differs := difference(wanted[name].Object, found[name].Object); differs {
			problems = append(problems, fmt.Errorf("%s: %s differs from manifests/ in %s", what, name, path))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if wanted[name] == nil {
			problems = append(problems, fmt.Errorf("%s has %s, which is not in manifests/", what, name))
		}
	}
	if len(got) != len(found) {
		problems = append(problems, fmt.Errorf("%s has an object twice", what))
	}
	return errors.Join(problems...)
}

func byName(objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	result := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		result[nameOf(object)] = object
	}
	return result
}

// difference returns the first path at which two values differ, and how. A missing map equals an empty one.
func difference(want, got any) (string, bool) {
	wanted, isMap := want.(map[string]any)
	found, isMapToo := got.(map[string]any)
	if (isMap || want == nil) && (isMapToo || got == nil) {
		keys := slices.Collect(maps.Keys(wanted))
		keys = append(keys, slices.Collect(maps.Keys(found))...)
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			if path, differs := difference(wanted[key], found[key]); differs {
				return "." + key + path, true
			}
		}
		return "", false
	}
	wantedItems, isList := want.([]any)
	foundItems, isListToo := got.([]any)
	if isList && isListToo && len(wantedItems) == len(foundItems) {
		for i := range wantedItems {
			if path, differs := difference(wantedItems[i], foundItems[i]); differs {
				return fmt.Sprintf("[%d]%s", i, path), true
			}
		}
		return "", false
	}
	if reflect.DeepEqual(want, got) {
		return "", false
	}
	return fmt.Sprintf(": %s instead of %s", asJSON(got), asJSON(want)), true
}

func asJSON(value any) string {
	content, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(content)
}
