package monitoring

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// stateMetrics is what Muster uses of kube-state-metrics' configuration. Its library is no dependency: it would decide
// which versions of Kubernetes' libraries the tests use.
type stateMetrics struct {
	Kind string `json:"kind"`
	Spec struct {
		Resources []struct {
			GroupVersionKind struct{ Group, Version, Kind string } `json:"groupVersionKind"`
			MetricNamePrefix string                                `json:"metricNamePrefix"`
			LabelsFromPath   map[string][]string                   `json:"labelsFromPath"`
			Metrics          []struct {
				Name string `json:"name"`
				Help string `json:"help"`
				Each struct {
					Type     string  `json:"type"`
					Gauge    *series `json:"gauge"`
					Info     *series `json:"info"`
					StateSet *series `json:"stateSet"`
				} `json:"each"`
			} `json:"metrics"`
		} `json:"resources"`
	} `json:"spec"`
}

// series is a Gauge, an Info or a StateSet. LabelsFromPath and ValueFrom are below Path.
type series struct {
	Path           []string            `json:"path"`
	ValueFrom      []string            `json:"valueFrom"`
	LabelsFromPath map[string][]string `json:"labelsFromPath"`
	LabelName      string              `json:"labelName"`
	List           []string            `json:"list"`
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
		if object == nil || kind.Group != "addons.cluster.x-k8s.io" || resource.MetricNamePrefix != "capi_"+strings.ToLower(kind.Kind) {
			t.Errorf("%v, prefix %s: there is no such kind, or it has another prefix", kind, resource.MetricNamePrefix)
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
			all := map[string]*series{"Gauge": metric.Each.Gauge, "Info": metric.Each.Info, "StateSet": metric.Each.StateSet}
			of := all[metric.Each.Type]
			if of == nil || metric.Name == "" || metric.Help == "" {
				t.Errorf("%s: %s has no %s, or no help", kind.Kind, metric.Name, metric.Each.Type)
				continue
			}
			check(metric.Name, object, of.Path)
			check(metric.Name, object.at(of.Path), of.ValueFrom)
			for _, path := range of.LabelsFromPath {
				check(metric.Name, object.at(of.Path), path)
			}
			if (metric.Each.Type == "StateSet") != (of.LabelName != "" && len(of.List) > 0) {
				t.Errorf("%s: %s needs labelName and list, or must not have them", kind.Kind, metric.Name)
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
