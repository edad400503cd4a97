package monitoring

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kube-state-metrics/v2/pkg/customresource"
	"k8s.io/kube-state-metrics/v2/pkg/customresourcestate"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v3"
)

// stateMetrics is a configuration of kube-state-metrics.
type stateMetrics struct {
	Kind string `json:"kind"`
	customresourcestate.Metrics
}

// schema is a part of a CRD's schema.
type schema struct {
	Type       string             `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
}

// at returns the schema of a field, nil if there is none. As kube-state-metrics does, it goes into all items of a list.
func (s *schema) at(path []string) *schema {
	for _, field := range path {
		if s != nil && s.Type == "array" {
			s = s.Items
		}
		if s == nil {
			return nil
		}
		s = s.Properties[field]
	}
	return s
}

// kube-state-metrics drops what it does not find without a word, so each path must be a field of the CRD.
func TestStateMetrics(t *testing.T) {
	const dir = "../../manifests/"
	read := func(file string, into any) {
		t.Helper()
		content, err := os.ReadFile(dir + file)
		if err == nil {
			err = yaml.Unmarshal(content, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	content, err := os.ReadFile(dir + "kube-state-metrics/metrics.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var its stateMetrics
	if err := yaml.UnmarshalStrict(content, &its); err != nil || its.Kind != "CustomResourceStateMetrics" {
		t.Fatalf("kind %q: %v", its.Kind, err)
	}
	schemas := map[string]*schema{}
	var resources []string
	crds, err := filepath.Glob(dir + "*/addons.cluster.x-k8s.io_*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range crds {
		var crd struct {
			Spec struct {
				Names    struct{ Kind, Plural string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema *schema `json:"openAPIV3Schema"`
					}
				}
			}
		}
		read(strings.TrimPrefix(file, dir), &crd)
		its := crd.Spec.Versions[0]
		metadata := &schema{Properties: map[string]*schema{"name": {}, "namespace": {}, "uid": {}, "creationTimestamp": {Type: "string"}}}
		its.Schema.OpenAPIV3Schema.Properties["metadata"] = metadata
		schemas[its.Name+" "+crd.Spec.Names.Kind] = its.Schema.OpenAPIV3Schema
		resources = append(resources, crd.Spec.Names.Plural)
	}
	for _, resource := range its.Spec.Resources {
		kind := resource.GroupVersionKind
		object := schemas[kind.Version+" "+kind.Kind]
		if object == nil || kind.Group != "addons.cluster.x-k8s.io" || resource.GetMetricNamePrefix() != "capi_"+strings.ToLower(kind.Kind) {
			t.Errorf("%v, prefix %s: there is no such kind, or it has another prefix", kind, resource.GetMetricNamePrefix())
			continue
		}
		delete(schemas, kind.Version+" "+kind.Kind)
		check := func(what string, from *schema, paths ...[]string) {
			for _, path := range paths {
				if from.at(path) == nil {
					t.Errorf("%s: %s has no field %s", kind.Kind, what, strings.Join(path, "."))
				}
			}
		}
		for _, path := range resource.LabelsFromPath {
			check("its labels", object, path)
		}
		for _, metric := range resource.Metrics {
			var from customresourcestate.MetricMeta
			var value []string
			switch each := metric.Each; {
			case each.Type == "Gauge" && each.Gauge != nil:
				from, value = each.Gauge.MetricMeta, each.Gauge.ValueFrom
			case each.Type == "Info" && each.Info != nil:
				from = each.Info.MetricMeta
			case each.Type == "StateSet" && each.StateSet != nil && each.StateSet.LabelName != "" && len(each.StateSet.List) > 0:
				from, value = each.StateSet.MetricMeta, each.StateSet.ValueFrom
			default:
				t.Errorf("%s: %s has no %s, or that lacks labelName or list", kind.Kind, metric.Name, each.Type)
				continue
			}
			if metric.Name == "" || metric.Help == "" {
				t.Errorf("%s: %q has no name or no help", kind.Kind, metric.Name)
			}
			check(metric.Name, object, from.Path)
			check(metric.Name, object.at(from.Path), value)
			for _, path := range from.LabelsFromPath {
				check(metric.Name, object.at(from.Path), path)
			}
		}
	}
	for left := range schemas {
		t.Errorf("there are no metrics of %s", left)
	}
	var role rbacv1.ClusterRole
	read("kube-state-metrics/role.yaml", &role)
	slices.Sort(resources)
	want := []rbacv1.PolicyRule{{APIGroups: []string{"addons.cluster.x-k8s.io"}, Resources: resources, Verbs: []string{"get", "list", "watch"}}}
	if diff := gocmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("the rules of ClusterRole %s (-want +got):\n%s", role.Name, diff)
	}
}

// kube-state-metrics itself reads the configuration, and makes these metrics of objects with real conditions.
func TestStateMetricsAreMade(t *testing.T) {
	config, err := os.ReadFile("../../manifests/kube-state-metrics/metrics.yaml")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]byte{}
	for _, factory := range factories(t, config) {
		kind := factory.ExpectedType().(*unstructured.Unstructured).GetKind()
		object := &unstructured.Unstructured{}
		content, err := os.ReadFile("testdata/" + strings.ToLower(kind) + ".yaml")
		if err == nil {
			err = yaml.Unmarshal(content, object)
		}
		if err != nil || object.GetKind() != kind {
			t.Fatalf("%s: %q: %v", kind, object.GetKind(), err)
		}
		for _, family := range factory.MetricFamilyGenerators() {
			series := family.Generate(object).ByteSlice()
			if len(series) == 0 {
				t.Errorf("%s is not made", family.Name)
			}
			made[kind] = append(made[kind], series...)
		}
	}
	var all []byte
	for _, kind := range slices.Sorted(maps.Keys(made)) {
		all = append(all, made[kind]...)
	}
	const golden = "testdata/state_metrics.txt"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(all), "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

// factories has kube-state-metrics read a configuration for an API server with our kinds. The type of what knows these
// kinds is internal there.
func factories(t *testing.T, config []byte) []customresource.RegistryFactory {
	t.Helper()
	read := reflect.ValueOf(customresourcestate.FromConfig)
	served := reflect.New(read.Type().In(1).Elem())
	if err := json.Unmarshal([]byte(`{"addons.cluster.x-k8s.io":{"v1alpha1":[
		{"Kind":"FleetAddonConfig","Plural":"fleetaddonconfigs"},
		{"Kind":"HelmChartProxy","Plural":"helmchartproxies"},
		{"Kind":"HelmReleaseProxy","Plural":"helmreleaseproxies"}]}}`), served.Elem().FieldByName("Map").Addr().Interface()); err != nil {
		t.Fatal(err)
	}
	results := read.Call([]reflect.Value{reflect.ValueOf(goyaml.NewDecoder(bytes.NewReader(config))), served})
	if err, _ := results[1].Interface().(error); err != nil {
		t.Fatal(err)
	}
	made, err := results[0].Interface().(func() ([]customresource.RegistryFactory, error))()
	if err != nil || len(made) != 3 {
		t.Fatalf("%d kinds: %v", len(made), err)
	}
	return made
}
