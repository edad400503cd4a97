package installer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// gatesKey is the key of Fleet's chart values in the ConfigMap that Rancher reads.
const gatesKey = "fleet"

// withGates returns the chart values in Rancher's ConfigMap with the feature gates set. Everything
// else stays, comments and order included.
func withGates(object *corev1.ConfigMap, in *gates, version *semver.Version) (string, error) {
	text, found := object.Data[gatesKey]
	if !found {
		return "", fmt.Errorf("it has no key %s, in which Rancher looks for the values of Fleet's chart; add it, empty if there are none", gatesKey)
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return "", fmt.Errorf("its key %s is not YAML: %w", gatesKey, err)
	}
	if document.Kind == 0 {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	values := document.Content[0]
	if values.Kind == yaml.ScalarNode && values.Tag == "!!null" {
		*values = yaml.Node{Kind: yaml.MappingNode}
	}
	if values.Kind != yaml.MappingNode {
		return "", fmt.Errorf("its key %s is not a map of chart values", gatesKey)
	}
	changed, err := in.merge(values, version)
	if err != nil || !changed {
		return text, err
	}
	result, err := yaml.Marshal(&document)
	return string(result), err
}

// merge sets the feature gates in the values of a chart, and reports whether that changed any.
func (g *gates) merge(values *yaml.Node, version *semver.Version) (changed bool, err error) {
	variables, err := child(values, "extraEnv", yaml.SequenceNode)
	if err != nil {
		return false, err
	}
	environment := g.environment(version)
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		changed = setVariable(variables, name, environment[name]) || changed
	}
	if helmOps, isValue := g.helmOpsValue(version); isValue {
		section, err := child(values, "helmops", yaml.MappingNode)
		if err != nil {
			return false, err
		}
		changed = setScalar(section, "enabled", truth(helmOps), "!!bool") || changed
	}
	return changed, nil
}

// child returns the value of a key, and adds the key if it is missing.
func child(values *yaml.Node, key string, kind yaml.Kind) (*yaml.Node, error) {
	if found := lookUp(values, key); found != nil {
		if found.Tag == "!!null" {
			*found = yaml.Node{Kind: kind}
		}
		if found.Kind != kind {
			return nil, errors.New("its value " + key + " has a type that the chart does not accept")
		}
		return found, nil
	}
	made := &yaml.Node{Kind: kind}
	values.Content = append(values.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, made)
	return made, nil
}

func lookUp(values *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(values.Content); i += 2 {
		if values.Content[i].Value == key {
			return values.Content[i+1]
		}
	}
	return nil
}

func setVariable(variables *yaml.Node, name, value string) bool {
	for _, entry := range variables.Content {
		if entry.Kind == yaml.MappingNode {
			if found := lookUp(entry, "name"); found != nil && found.Value == name {
				return setScalar(entry, "value", value, "!!str")
			}
		}
	}
	entry := &yaml.Node{Kind: yaml.MappingNode}
	setScalar(entry, "name", name, "!!str")
	setScalar(entry, "value", value, "!!str")
	variables.Content = append(variables.Content, entry)
	return true
}

func setScalar(values *yaml.Node, key, value, tag string) bool {
	found := lookUp(values, key)
	if found == nil {
		found = &yaml.Node{}
		values.Content = append(values.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, found)
	}
	if found.Kind == yaml.ScalarNode && found.Value == value && found.ShortTag() == tag {
		return false
	}
	*found = yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, LineComment: found.LineComment}
	return true
}

// watched is how long a text that was reverted before must stand before the installer reports that it is in
// effect.
const watched = 2 * time.Minute

// overwrite decides whether the installer writes a text into a ConfigMap that it does not own now.
// If another program keeps reverting the text, the installer slows down and reports it.
func (s *state) overwrite(kind step, where fmt.Stringer, has, text string) (step, *metav1.Condition, time.Duration) {
	last := s.attempts[string(kind)]
	isAgain := last != nil && last.message == text
	switch {
	case has == text && isAgain && last.count > 0 && s.now.Before(last.at.Add(watched)):
		return rest, reverted(where), last.at.Add(watched).Sub(s.now)
	case has == text:
		return rest, nil, 0
	case isAgain && s.now.Before(last.due()):
		return rest, reverted(where), last.due().Sub(s.now)
	default:
		return kind, nil, 0
	}
}

func reverted(where fmt.Stringer) *metav1.Condition {
	return configuredIs(false, addonsv1.SettingsRevertedReason,
		"another program keeps reverting the installer's settings in ConfigMap %s; put them into the release or repository that the ConfigMap comes from, or remove the key there; the installer retries at growing intervals of up to %s", where, lastRetry)
}
