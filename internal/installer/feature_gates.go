package installer

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// gatesKey is the key of Fleet's chart values in the ConfigMap that Rancher reads.
const gatesKey = "fleet"

// withGates returns the chart values in Rancher's ConfigMap with the feature gates set. Everything
// else stays, comments and order included.
func withGates(object *corev1.ConfigMap, in *addonsv1.FeatureGates, version *semver.Version) (string, error) {
	text, found := object.Data[gatesKey]
	if !found {
		return "", fmt.Errorf("it has no key %s, in which Rancher looks for the values of Fleet's chart; add it, empty if there are none", gatesKey)
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return "", fmt.Errorf("its key %s is not YAML: %w", gatesKey, err)
	}
	if document.Kind == 0 {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{}}}
	}
	values := document.Content[0]
	if !become(values, yaml.MappingNode) {
		return "", fmt.Errorf("its key %s is not a map of chart values", gatesKey)
	}
	before, err := yaml.Marshal(&document)
	if err != nil {
		return "", err
	}
	if err := mergeGates(values, in, version); err != nil {
		return "", err
	}
	after, err := yaml.Marshal(&document)
	if err != nil || bytes.Equal(before, after) {
		return text, err
	}
	return string(after), nil
}

// mergeGates sets the feature gates in the values of a chart.
func mergeGates(values *yaml.Node, in *addonsv1.FeatureGates, version *semver.Version) error {
	environment, helmOps := gateValues(in, version)
	variables := field(values, "extraEnv")
	if !become(variables, yaml.SequenceNode) {
		return errors.New("its value extraEnv has a type that the chart does not accept")
	}
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		setScalar(field(variable(variables, name), "value"), environment[name], "!!str")
	}
	if helmOps == nil {
		return nil
	}
	section := field(values, "helmops")
	if !become(section, yaml.MappingNode) {
		return errors.New("its value helmops has a type that the chart does not accept")
	}
	setScalar(field(section, "enabled"), strconv.FormatBool(*helmOps), "!!bool")
	return nil
}

// become gives an empty node a kind, and reports whether the node has that kind.
func become(node *yaml.Node, kind yaml.Kind) bool {
	if node.Kind == 0 || node.Tag == "!!null" {
		*node = yaml.Node{Kind: kind}
	}
	return node.Kind == kind
}

// field returns the value of a key, and adds the key if it is missing.
func field(values *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(values.Content); i += 2 {
		if values.Content[i].Value == key {
			return values.Content[i+1]
		}
	}
	made := &yaml.Node{}
	values.Content = append(values.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, made)
	return made
}

// variable returns the entry of an environment variable, and adds it if it is missing.
func variable(variables *yaml.Node, name string) *yaml.Node {
	for _, entry := range variables.Content {
		var has struct{ Name string }
		if entry.Kind == yaml.MappingNode && entry.Decode(&has) == nil && has.Name == name {
			return entry
		}
	}
	entry := &yaml.Node{Kind: yaml.MappingNode}
	setScalar(field(entry, "name"), name, "!!str")
	variables.Content = append(variables.Content, entry)
	return entry
}

// setScalar sets a value, and keeps the comment beside it.
func setScalar(node *yaml.Node, value, tag string) {
	if node.Kind != yaml.ScalarNode || node.Value != value || node.ShortTag() != tag {
		*node = yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, LineComment: node.LineComment}
	}
}
