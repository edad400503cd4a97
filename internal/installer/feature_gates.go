package installer

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

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
	if document.Kind == 0 || document.Content[0].Tag == kyaml.NodeTagNull {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	if document.Content[0].Kind != yaml.MappingNode {
		return "", fmt.Errorf("its key %s is not a map of chart values", gatesKey)
	}
	before, err := yaml.Marshal(&document)
	if err != nil {
		return "", err
	}
	values := kyaml.NewRNode(document.Content[0])
	environment, helmOps := gateValues(in, version)
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if err := setScalar(values, environment[name], kyaml.NodeTagString, "extraEnv", "[name="+name+"]", "value"); err != nil {
			return "", err
		}
	}
	if helmOps != nil {
		if err := setScalar(values, strconv.FormatBool(*helmOps), kyaml.NodeTagBool, "helmops", "enabled"); err != nil {
			return "", err
		}
	}
	after, err := yaml.Marshal(&document)
	if err != nil || bytes.Equal(before, after) {
		return text, err
	}
	return string(after), nil
}

// setScalar sets the value at a path, and keeps its comment. It adds maps and lists that are missing or null.
func setScalar(values *kyaml.RNode, value, tag string, path ...string) error {
	if section, _ := values.Pipe(kyaml.Get(path[0])); section.IsTaggedNull() {
		section.YNode().Tag, section.YNode().Kind, section.YNode().Value = "", yaml.MappingNode, ""
		if kyaml.IsListIndex(path[1]) {
			section.YNode().Kind = yaml.SequenceNode
		}
	}
	found, err := values.Pipe(kyaml.LookupCreate(kyaml.ScalarNode, path...))
	if err != nil {
		return fmt.Errorf("its value %s has a type that the chart does not accept", path[0])
	}
	if node := found.YNode(); node.Kind != yaml.ScalarNode || node.Value != value || node.ShortTag() != tag {
		*node = yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, LineComment: node.LineComment}
	}
	return nil
}
