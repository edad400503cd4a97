package oracle

import (
	"maps"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// noValue is what a Go template makes of a field that is missing.
const noValue = "<no value>"

// Templates are values templates, and what is to come of each without a template engine: from
// what a Cluster's bundles can read of it, or nothing if that fails.
var Templates = map[string]func(data map[string]any) any{
	"":                     func(map[string]any) any { return map[string]any{} },
	"who: anybody":         func(map[string]any) any { return map[string]any{"who": "anybody"} },
	"{who: {is: anybody}}": func(map[string]any) any { return map[string]any{"who": map[string]any{"is": "anybody"}} },
	"who: {{ .Cluster.metadata.name }}": func(data map[string]any) any {
		return map[string]any{"who": field(data, "Cluster", "metadata", "name")}
	},
	"{{ range $k, $v := .Cluster.metadata.labels }}{{ if eq $k \"env\" }}env: {{ $v }}{{ end }}{{ end }}": func(data map[string]any) any {
		values := map[string]any{}
		if env, there := field(data, "Cluster", "metadata", "labels", "env").(string); there {
			values["env"] = env
		}
		return values
	},
	"replicas: {{ .ControlPlane.spec.replicas }}": func(data map[string]any) any {
		return map[string]any{"replicas": orNoValue(field(data, "ControlPlane", "spec", "replicas"))}
	},
	"infra: {{ .InfraCluster.metadata.name }}": func(data map[string]any) any {
		return map[string]any{"infra": orNoValue(field(data, "InfraCluster", "metadata", "name"))}
	},
	"cpus: {{ .Variables.size.cpus }}": func(data map[string]any) any {
		return map[string]any{"cpus": orNoValue(field(data, "Variables", "size", "cpus"))}
	},
	// Fails for a Cluster of one name, and for no other.
	"{{ if eq .Cluster.metadata.name \"one\" }}{{ fail \"no\" }}{{ end }}who: {{ .Cluster.metadata.name }}": func(data map[string]any) any {
		if name := field(data, "Cluster", "metadata", "name"); name != "one" {
			return map[string]any{"who": name}
		}
		return nil
	},
}

// aCluster is one whose values may fail.
var aCluster = map[string]any{"Cluster": map[string]any{"metadata": map[string]any{"name": "one"}}}

// ChartsHold reports whether something of a HelmChartProxy stays as it was, so that it matters how
// it was.
func ChartsHold(was State) bool {
	s := Settle(was)
	in := settingsOf(s.Config)
	for _, proxy := range s.Charts.Proxies {
		if _, _, held := s.wanted(proxy); held || Templates[proxy.Spec.ValuesTemplate](aCluster) == nil {
			return true
		}
		for _, cluster := range s.chartClusters(proxy) {
			if _, rendered := s.renderedFor(in, proxy, cluster); !rendered || isPaused(cluster) || !cluster.DeletionTimestamp.IsZero() {
				return true
			}
		}
	}
	return false
}

// isStatic: the values are the same for all Clusters.
func isStatic(proxy *addonsv1.HelmChartProxy) bool {
	return !strings.Contains(proxy.Spec.ValuesTemplate, "{{")
}

// renderedFor returns a Cluster's own values, which lie over those for all; false if they cannot
// be rendered.
func (s *State) renderedFor(in settings, proxy *addonsv1.HelmChartProxy, cluster *clusterv1.Cluster) (any, bool) {
	if isStatic(proxy) {
		return nil, true
	}
	data, resolved := s.templateValues(in, cluster)
	if !resolved {
		return nil, false
	}
	data["InfraCluster"] = data["InfrastructureCluster"]
	values := Templates[proxy.Spec.ValuesTemplate](data)
	return values, values != nil
}

// sharedValues are those for all Clusters: of ConfigMaps and Secrets, and of a template that is
// none; false if one is missing.
func (s *State) sharedValues(proxy *addonsv1.HelmChartProxy) (map[string]any, bool) {
	values := map[string]any{}
	for _, from := range proxy.Spec.ValuesFrom {
		content, there := s.Charts.Sources[Source{Kind: from.Kind, Key: Key{Namespace: proxy.Namespace, Name: from.Name}}]
		if !there && !from.Optional {
			return nil, false
		}
		if there {
			values = merged(values, content.(map[string]any))
		}
	}
	if isStatic(proxy) {
		values = merged(values, Templates[proxy.Spec.ValuesTemplate](nil).(map[string]any))
	}
	return values, true
}

// merged lays one tree over another.
func merged(below, above map[string]any) map[string]any {
	result := maps.Clone(below)
	if result == nil {
		result = map[string]any{}
	}
	for key, value := range above {
		lower, isTree := result[key].(map[string]any)
		if upper, both := value.(map[string]any); both && isTree {
			value = merged(lower, upper)
		}
		result[key] = value
	}
	return result
}

func field(node any, keys ...string) any {
	for _, key := range keys {
		object, _ := node.(map[string]any)
		node = object[key]
	}
	return node
}

func orNoValue(value any) any {
	if value == nil {
		return noValue
	}
	return value
}
