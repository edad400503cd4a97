package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// key is a row of testdata/keys.yaml, which says what the fields are.
type key struct {
	Key         string         `json:"key"`
	CertManager string         `json:"certManager"`
	Default     any            `json:"default"`
	Set         any            `json:"set"`
	Also        map[string]any `json:"also"`
	Former      bool           `json:"former"`
	In          string         `json:"in"`
	At          string         `json:"at"`
	Want        any            `json:"want"`
}

var three = []string{"webhook", "syncer", "helm"}

func keys(t *testing.T) []key {
	t.Helper()
	content, err := os.ReadFile("testdata/keys.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var result []key
	if err := yaml.UnmarshalStrict(content, &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func ours(t *testing.T) *v2.Chart {
	t.Helper()
	chart, err := loader.Load(filepath.Join("..", "..", chartDir))
	if err != nil {
		t.Fatal(err)
	}
	return chart
}

// rendered returns the objects of the chart with these values, by KIND/NAME, without the notes.
func rendered(t *testing.T, chart *v2.Chart, values map[string]any) (map[string]map[string]any, error) {
	t.Helper()
	return renderedIn(t, namespace, chart, values)
}

func renderedIn(t *testing.T, namespace string, chart *v2.Chart, values map[string]any) (map[string]map[string]any, error) {
	t.Helper()
	all, err := util.ToRenderValues(chart, values, common.ReleaseOptions{Name: "muster", Namespace: namespace, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	result := map[string]map[string]any{}
	for name, content := range files {
		if strings.HasSuffix(name, ".yaml") {
			for _, object := range objects(t, content) {
				result[object.GetKind()+"/"+object.GetName()] = object.Object
			}
		}
	}
	return result, nil
}

func rendersOrFails(t *testing.T, chart *v2.Chart, values map[string]any) map[string]map[string]any {
	t.Helper()
	result, err := rendered(t, chart, values)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// setting returns values with one key set, on three components if it is theirs.
func (k key) setting(values map[string]any) map[string]any {
	for _, component := range three {
		into := values
		path := strings.Split(strings.Replace(k.Key, "COMPONENT", component, 1), ".")
		for _, name := range path[:len(path)-1] {
			if into[name] == nil {
				into[name] = map[string]any{}
			}
			into = into[name].(map[string]any)
		}
		into[path[len(path)-1]] = k.Set
	}
	return values
}

// at returns the value at a path. The path may begin with container for the first container.
func at(object any, path string) any {
	for _, name := range strings.Split(strings.Replace(path, "container.", "spec.template.spec.containers.0.", 1), ".") {
		switch typed := object.(type) {
		case map[string]any:
			object = typed[name]
		case []any:
			i, _ := strconv.Atoi(name)
			object = typed[i]
		default:
			return nil
		}
	}
	return object
}

// has returns whether a value is there: in a map all of its fields, in a list all of its items. An empty one is nothing.
func has(found, want any) bool {
	switch typed := want.(type) {
	case map[string]any:
		fields, _ := found.(map[string]any)
		for name := range typed {
			if !has(fields[name], typed[name]) {
				return false
			}
		}
		return len(typed) > 0 || len(fields) == 0 || found != nil
	case []any:
		items, _ := found.([]any)
		return !slices.ContainsFunc(typed, func(item any) bool {
			return !slices.ContainsFunc(items, func(found any) bool { return has(found, item) })
		})
	}
	return fmt.Sprint(found) == fmt.Sprint(want)
}

// The test sets each key on three components. The objects must then have the value, which they lack without the key, and
// their selectors must not change.
func TestKeys(t *testing.T) {
	chart, known := ours(t), map[string]map[string]map[string]any{}
	for _, k := range keys(t) {
		t.Run(k.Key, func(t *testing.T) {
			base := func() map[string]any {
				values := map[string]any{}
				if k.At != "" {
					values = map[string]any{"helm": map[string]any{"enabled": true}, "monitoring": map[string]any{"enabled": true}}
				}
				if strings.HasPrefix(k.Key, "crds.") {
					values["helm"] = map[string]any{"enabled": true}
				}
				for _, component := range three {
					if k.Also != nil {
						values[component] = map[string]any{"podDisruptionBudget": map[string]any{"enabled": true}, "enabled": true}
						if component != "helm" {
							delete(values[component].(map[string]any), "enabled")
						}
					}
				}
				return values
			}
			shared := asJSON(t, base())
			if known[shared] == nil {
				known[shared] = rendersOrFails(t, chart, base())
			}
			before, after := known[shared], rendersOrFails(t, chart, k.setting(base()))
			want := k.Want
			if want == nil {
				want = k.Set
			}
			names := []string{k.In}
			if !strings.Contains(k.In, "/") {
				names = nil
				for _, component := range three {
					names = append(names, k.In+"/muster-"+component)
				}
			}
			for _, name := range names {
				if k.At == "" {
					if isThere := func(objects map[string]map[string]any) bool { return objects[name] != nil }; isThere(before) == isThere(after) {
						t.Errorf("%s: is there before: %v, and after", name, isThere(before))
					}
					continue
				}
				_, component, _ := strings.Cut(name, "/muster-")
				expected := want
				if text, isText := want.(string); isText {
					expected = strings.ReplaceAll(text, "COMPONENT", component)
				}
				if found := at(after[name], k.At); !has(found, expected) {
					t.Errorf("%s has %v at %s, want %v", name, found, k.At, expected)
				}
				if reflect.DeepEqual(at(before[name], k.At), at(after[name], k.At)) && !(k.Key == "COMPONENT.podDisruptionBudget.enabled" && component == "webhook") {
					t.Errorf("%s has %v at %s without it, too", name, expected, k.At)
				}
			}
			for name, object := range after {
				for _, path := range []string{"spec.selector", "spec.podSelector"} {
					if earlier, found := at(before[name], path), at(object, path); before[name] != nil && !reflect.DeepEqual(earlier, found) {
						t.Errorf("the selector of %s becomes %v", name, found)
					}
				}
				if k.Key == "global.commonLabels" && !has(at(object, "metadata.labels"), k.Set) {
					t.Errorf("%s is without the common labels", name)
				}
				if k.Key == "monitoring.labels" && strings.HasPrefix(name, "PrometheusRule/") && !has(at(object, "metadata.labels"), k.Set) {
					t.Errorf("%s is without the labels by which a Prometheus selects it", name)
				}
			}
		})
	}
}

// The table, values.yaml and the schema have the same keys, and the same defaults.
func TestKeysAreComplete(t *testing.T) {
	chart := ours(t)
	table, inValues := map[string]bool{}, map[string]any{}
	for _, k := range keys(t) {
		table[k.Key] = true
		if !k.Former {
			inValues[strings.Replace(k.Key, "COMPONENT", "webhook", 1)] = k.Default
		}
	}
	written := map[string]any{}
	leaves("", chart.Values, inValues, written)
	for name, fallback := range written {
		if component, rest, _ := strings.Cut(name, "."); component != "webhook" && table["COMPONENT."+rest] {
			continue // Its default is that of manifests/.
		}
		if want, known := inValues[name]; !known || !reflect.DeepEqual(asJSON(t, want), asJSON(t, fallback)) {
			t.Errorf("values.yaml has %s: %v, the table %v (%v)", name, fallback, want, known)
		}
	}
	for name := range inValues {
		if _, isThere := written[name]; !isThere {
			t.Errorf("values.yaml lacks %s", name)
		}
	}

	var schema map[string]any
	if err := json.Unmarshal(chart.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	properties("", schema, schema, table, described)
	for _, name := range slices.Sorted(maps.Keys(described)) {
		component, rest, _ := strings.Cut(name, ".")
		if !table[name] && !(slices.Contains([]string{"webhook", "syncer", "registrar", "installer", "helm"}, component) && table["COMPONENT."+rest]) {
			t.Errorf("the schema has %s, which is not in the table", name)
		}
	}
	for name := range table {
		for _, component := range []string{"webhook", "syncer", "registrar", "installer", "helm"} {
			if name := strings.Replace(name, "COMPONENT", component, 1); !described[name] {
				t.Errorf("the schema lacks %s", name)
			}
		}
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	content, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// leaves notes the values that are no map, or that the table has as a whole.
func leaves(prefix string, values, whole, found map[string]any) {
	for name, value := range values {
		path := prefix + name
		_, isKey := whole[path]
		_, isResources := strings.CutSuffix(path, ".resources")
		if fields, isMap := value.(map[string]any); isMap && !isKey && !isResources {
			leaves(path+".", fields, whole, found)
		} else {
			found[path] = value
		}
	}
}

func properties(prefix string, schema, root map[string]any, table, found map[string]bool) {
	if reference, _ := schema["$ref"].(string); reference != "" {
		schema, _ = at(root, strings.ReplaceAll(strings.TrimPrefix(reference, "#/"), "/", ".")).(map[string]any)
	}
	fields, _ := schema["properties"].(map[string]any)
	_, rest, _ := strings.Cut(prefix, ".")
	if len(fields) == 0 || table[prefix] || table["COMPONENT."+rest] {
		found[prefix] = true
		return
	}
	for name, of := range fields {
		properties(strings.TrimPrefix(prefix+"."+name, "."), of.(map[string]any), root, table, found)
	}
}

// With --reuse-values, Helm renders a new chart with the defaults of the older one, which lacks the keys added since.
func TestOlderDefaultsRender(t *testing.T) {
	chart := ours(t)
	want := rendersOrFails(t, chart, nil)
	content, err := os.ReadFile("testdata/values-05cb3a3b.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chart.Values = map[string]any{}
	if err := yaml.Unmarshal(content, &chart.Values); err != nil {
		t.Fatal(err)
	}
	if got := rendersOrFails(t, chart, nil); !reflect.DeepEqual(want, got) {
		t.Error("with the defaults of 05cb3a3b, the chart has other objects")
	}
	// Neither chart's default hides what is set in the other's place.
	for name, values := range map[string]map[string]any{
		"former": {"logLevel": "debug"}, "new": {"global": map[string]any{"logLevel": "debug"}},
	} {
		got := rendersOrFails(t, chart, values)
		if args := at(got["Deployment/muster-syncer"], "container.args"); !has(args, []any{"--log-level=debug"}) {
			t.Errorf("%s: got %v", name, args)
		}
	}
}

// A name that YAML takes for a number is a namespace, too.
func TestNamespaceIsAText(t *testing.T) {
	got, err := renderedIn(t, "123", ours(t), map[string]any{"helm": map[string]any{"enabled": true}, "monitoring": map[string]any{"enabled": true}})
	if err != nil {
		t.Fatal(err)
	}
	for name, object := range got {
		if content := asJSON(t, object); strings.Contains(content, namespace) || strings.Contains(content, `"namespace":123`) {
			t.Errorf("%s is not in the namespace: %s", name, content)
		}
	}
}

// A label of a pod cannot take it away from its Deployment.
func TestSelectorsWin(t *testing.T) {
	got := rendersOrFails(t, ours(t), map[string]any{
		"global":  map[string]any{"commonLabels": map[string]any{"app.kubernetes.io/name": "x"}},
		"webhook": map[string]any{"podLabels": map[string]any{"app.kubernetes.io/component": "x"}},
	})
	deployment := got["Deployment/muster-webhook"]
	if labels, selector := at(deployment, "spec.template.metadata.labels"), at(deployment, "spec.selector.matchLabels"); !has(labels, selector) {
		t.Errorf("pods with %v are not selected by %v", labels, selector)
	}
}

// The values of the small installation in docs/install.md give one pod of each program, with their requests and the
// shipped limits, and nothing blocks draining its node.
func TestSmallInstallation(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n# small.yaml\n")
	text, _, _ = strings.Cut(text, "```")
	var values map[string]map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	small, shipped := map[string]any{}, map[string]any{}
	for name, its := range values {
		small[name], shipped[name] = its, map[string]any{}
		if name != "webhook" && name != "syncer" {
			its["enabled"], shipped[name] = true, map[string]any{"enabled": true}
		}
	}
	chart := ours(t)
	before := rendersOrFails(t, chart, shipped)
	after := rendersOrFails(t, chart, small)
	deployments := 0
	for name, object := range after {
		if strings.HasPrefix(name, "PodDisruptionBudget/") {
			t.Errorf("%s blocks draining a node", name)
		}
		component, isDeployment := strings.CutPrefix(name, "Deployment/muster-")
		if !isDeployment {
			continue
		}
		deployments++
		resources := at(object, "spec.template.spec.containers.0.resources")
		if fmt.Sprint(at(object, "spec.replicas")) != "1" ||
			!reflect.DeepEqual(at(resources, "requests"), at(values[component]["resources"], "requests")) ||
			!reflect.DeepEqual(at(resources, "limits"), at(before[name], "spec.template.spec.containers.0.resources.limits")) {
			t.Errorf("%s has %v pods with %v", name, at(object, "spec.replicas"), resources)
		}
	}
	if deployments != 5 {
		t.Errorf("the values cover %d programs, not 5", deployments)
	}
}

// The table of components in docs/install.md has the requests and limits of the chart, which are those of manifests/.
func TestTableOfComponents(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, object := range rendersOrFails(t, ours(t), map[string]any{
		"helm": map[string]any{"enabled": true}, "registrar": map[string]any{"enabled": true}, "installer": map[string]any{"enabled": true},
	}) {
		component, isDeployment := strings.CutPrefix(name, "Deployment/muster-")
		if !isDeployment {
			continue
		}
		resources := at(object, "spec.template.spec.containers.0.resources")
		want := fmt.Sprintf("| %s, %s | %s |", at(resources, "requests.cpu"), at(resources, "requests.memory"), at(resources, "limits.memory"))
		if !regexp.MustCompile("(?m)^\\| (" + component + " \\(default\\)|`manifests/" + component + "`) \\|.*" + regexp.QuoteMeta(want)).Match(page) {
			t.Errorf("docs/install.md does not say that %s has %s", component, want)
		}
	}
}
