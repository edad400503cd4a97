package installer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

const (
	settingsName = "fleet-controller"
	settingsKey  = "config"
)

// withServer returns Fleet's settings with the server in them. All other bytes stay, because
// the ConfigMap belongs to another owner.
func withServer(object *corev1.ConfigMap, in *server) (string, error) {
	text, found := object.Data[settingsKey]
	if !found {
		return "", fmt.Errorf("it has no key %s", settingsKey)
	}
	var err error
	authority := base64.StdEncoding.EncodeToString([]byte(in.ca))
	for _, change := range [][2]string{{"apiServerURL", in.url}, {"apiServerCA", authority}} {
		if change[1] == "" {
			continue
		}
		if text, err = withText(text, change[0], change[1]); err != nil {
			return "", fmt.Errorf("its key %s cannot be read as a JSON object: %w", settingsKey, err)
		}
	}
	return text, nil
}

// inForce returns the currently configured server, as far as the installer can read it.
func (s *state) inForce() (in server) {
	if s.fleet.isOurs() {
		in.url, _ = s.fleet.Values["apiServerURL"].(string)
		in.ca, _ = s.fleet.Values["apiServerCA"].(string)
		return in
	}
	if s.settings == nil {
		return server{}
	}
	var read struct {
		URL string `json:"apiServerURL"`
		CA  []byte `json:"apiServerCA"`
	}
	if err := json.Unmarshal([]byte(s.settings.Data[settingsKey]), &read); err != nil {
		return server{}
	}
	return server{url: read.URL, ca: string(read.CA)}
}

// withText sets one string in a JSON object, in place: a policy of ours lets no other byte of the settings change if
// Fleet was installed without Helm.
func withText(document, key, value string) (string, error) {
	var fields map[string]json.RawMessage
	switch err := json.Unmarshal([]byte(document), &fields); {
	case fields == nil && json.Valid([]byte(document)):
		return "", errors.New("it is not an object")
	case err != nil:
		return "", err
	}
	var current string // It may be escaped differently.
	if json.Unmarshal(fields[key], &current) == nil && current == value {
		return document, nil
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(strings.NewReader(document)) // It reports no errors, because the document is valid.
	_, _ = decoder.Token()
	from := decoder.InputOffset()
	to, text := from, fmt.Sprintf("%q:%s", key, encoded)
	if len(fields) > 0 {
		text += ","
	}
	for decoder.More() {
		name, _ := decoder.Token()
		var old json.RawMessage
		_ = decoder.Decode(&old)
		if name == key { // If a name is repeated, the last one counts.
			to, text = decoder.InputOffset(), string(encoded)
			from = to - int64(len(old))
		}
	}
	return document[:from] + text + document[to:], nil
}

// renamed is the first version of Fleet with the present names of the feature gates.
var renamed = semver.MustParse("0.13.0-0")

// chartValues returns the values for the installer's own release: those that it has, including the
// user's, overridden by the installer's. Values for settings that are no longer requested stay.
func (s *state) chartValues(version *semver.Version) map[string]any {
	values := map[string]any{}
	if s.fleet != nil && s.fleet.Values != nil {
		values = runtime.DeepCopyJSON(s.fleet.Values)
	}
	in := ptr.Deref(s.server, server{})
	for key, value := range map[string]string{"apiServerURL": in.url, "apiServerCA": in.ca} {
		if value != "" {
			values[key] = value
		}
	}
	// The chart's own default would give Fleet all rights in the cluster.
	if s.fleet == nil || s.BootstrapLocalCluster != nil {
		_ = unstructured.SetNestedField(values, ptr.Deref(s.BootstrapLocalCluster, false), "bootstrap", "enabled") // No chart accepts another type.
	}
	if s.FeatureGates == nil || s.gatesIn().Name != "" {
		return values
	}
	environment, helmOps := gateValues(s.FeatureGates, version)
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		list, _ := values["extraEnv"].([]any)
		values["extraEnv"] = withVariable(list, name, environment[name])
	}
	if helmOps != nil {
		_ = unstructured.SetNestedField(values, *helmOps, "helmops", "enabled")
	}
	return values
}

// gateValues returns the feature gates that are environment variables in a version of Fleet, and the chart's value for
// HelmOps; nil if that version has none. An unknown version is treated as a recent one.
func gateValues(in *addonsv1.FeatureGates, version *semver.Version) (environment map[string]string, helmOps *bool) {
	ops, storage := ptr.Deref(in.ExperimentalHelmOps, true), strconv.FormatBool(ptr.Deref(in.ExperimentalOCIStorage, true))
	if version != nil && version.LessThan(renamed) {
		return map[string]string{"EXPERIMENTAL_HELM_OPS": strconv.FormatBool(ops), "EXPERIMENTAL_OCI_STORAGE": storage}, nil
	}
	return map[string]string{"OCI_STORAGE": storage}, &ops
}

// withVariable sets one environment variable in a list. The others keep their values and their
// order.
func withVariable(list []any, name, value string) []any {
	found := false
	for _, entry := range list {
		if fields, isMap := entry.(map[string]any); isMap && fields["name"] == name {
			delete(fields, "valueFrom")
			fields["value"], found = value, true
		}
	}
	if !found {
		list = append(list, map[string]any{"name": name, "value": value})
	}
	return list
}
