package oracle

import (
	"maps"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// FailsForOne is a template that fails for a Cluster of one name, and for no other.
const FailsForOne = `{{ if eq .Cluster.metadata.name "one" }}{{ fail "no" }}{{ end }}who: {{ .Cluster.metadata.name }}`

// Templates maps values templates to their results, computed without a template engine from the data that a
// Cluster's bundles can read. A result is nil if the template fails.
var Templates = map[string]func(data map[string]any) any{
	"":                                  always(map[string]any{}),
	"who: anybody":                      always(map[string]any{"who": "anybody"}),
	"{who: {is: anybody}}":              always(map[string]any{"who": map[string]any{"is": "anybody"}}),
	"who: {{ .Cluster.metadata.name }}": reads("who", "Cluster", "metadata", "name"),
	"{{ range $k, $v := .Cluster.metadata.labels }}{{ if eq $k \"env\" }}env: {{ $v }}{{ end }}{{ end }}": func(data map[string]any) any {
		values := map[string]any{}
		if env, there := field(data, "Cluster", "metadata", "labels", "env").(string); there {
			values["env"] = env
		}
		return values
	},
	"replicas: {{ .ControlPlane.spec.replicas }}": reads("replicas", "ControlPlane", "spec", "replicas"),
	"infra: {{ .InfraCluster.metadata.name }}":    reads("infra", "InfraCluster", "metadata", "name"),
	"cpus: {{ .Variables.size.cpus }}":            reads("cpus", "Variables", "size", "cpus"),
	FailsForOne: func(data map[string]any) any {
		if name := field(data, "Cluster", "metadata", "name"); name != "one" {
			return map[string]any{"who": name}
		}
		return nil
	},
}

func always(values map[string]any) func(map[string]any) any {
	return func(map[string]any) any { return maps.Clone(values) }
}

// reads returns one field. A Go template renders "<no value>" if it is missing.
func reads(key string, path ...string) func(map[string]any) any {
	return func(data map[string]any) any {
		value := field(data, path...)
		if value == nil {
			value = "<no value>"
		}
		return map[string]any{key: value}
	}
}

// aCluster is a Cluster whose values may fail.
var aCluster = map[string]any{"Cluster": map[string]any{"metadata": map[string]any{"name": "one"}}}

// HelmHolds reports whether something of a HelmChartProxy stays as it was, so that its earlier state matters.
func HelmHolds(was State) bool {
	s := Converge(was)
	in := s.settings()
	if s.Helm.shares != nil {
		return true
	}
	for of, carrier := range s.Helm.Carriers {
		if of.Only != "" && s.Helm.Installed[carrier.UID] != "" {
			return true
		}
	}
	for _, proxy := range s.Helm.Proxies {
		if _, _, retained := s.wanted(proxy); retained || in.freezes(proxy) || s.Helm.Down || Templates[proxy.Spec.ValuesTemplate](aCluster) == nil {
			return true
		}
		for _, cluster := range s.chartClusters(proxy) {
			if _, rendered := s.renderedFor(in, proxy, cluster); !rendered || s.refuses(proxy, cluster.Namespace) || isPaused(cluster) || !cluster.DeletionTimestamp.IsZero() {
				return true
			}
		}
	}
	return false
}

// freezes reports whether a HelmChartProxy's releases stay as they are: their values could have what the settings
// exclude, which is unknown.
func (in settings) freezes(proxy *addonsv1.HelmChartProxy) bool {
	return in.unknown && (proxy.Spec.ValuesTemplate != "" || len(proxy.Spec.ValuesFrom) > 0)
}

// isStatic reports whether the values are the same for all Clusters.
func isStatic(proxy *addonsv1.HelmChartProxy) bool {
	return !strings.Contains(proxy.Spec.ValuesTemplate, "{{")
}

// renderedFor returns a Cluster's own values, which override the shared ones; false if they cannot be rendered.
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

// sharedValues returns the values for all Clusters, from ConfigMaps, Secrets, and a template that has no actions;
// false if one is missing.
func (s *State) sharedValues(proxy *addonsv1.HelmChartProxy) (map[string]any, bool) {
	values := map[string]any{}
	for _, from := range proxy.Spec.ValuesFrom {
		content, there := s.Helm.Sources[Source{Kind: from.Kind, Key: Key{Namespace: proxy.Namespace, Name: from.Name}}]
		if !there && !from.Optional {
			return nil, false
		}
		values = merged(values, content)
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
