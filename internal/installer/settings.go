package installer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	for _, change := range []struct{ key, value string }{
		{"apiServerURL", in.url},
		{"apiServerCA", base64.StdEncoding.EncodeToString([]byte(in.ca))},
	} {
		if change.value == "" {
			continue
		}
		if text, err = withText(text, change.key, change.value); err != nil {
			return "", fmt.Errorf("its key %s cannot be read as a JSON object: %w", settingsKey, err)
		}
	}
	return text, nil
}

// inForce returns the currently configured server, as far as the installer can read it.
func (s *state) inForce() server {
	if s.fleet.isOurs() {
		url, _ := s.fleet.Values["apiServerURL"].(string)
		ca, _ := s.fleet.Values["apiServerCA"].(string)
		return server{url: url, ca: ca}
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

// withText sets one string in a JSON object, in place.
func withText(document, key, value string) (string, error) {
	if !json.Valid([]byte(document)) {
		var reason any
		return "", json.Unmarshal([]byte(document), &reason)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(strings.NewReader(document))
	if opening, err := decoder.Token(); err != nil || opening != json.Delim('{') {
		return "", errors.New("it is not an object")
	}
	inside := decoder.InputOffset()
	isEmpty := true
	from, to := int64(-1), int64(-1)
	for decoder.More() {
		isEmpty = false
		name, err := decoder.Token()
		if err != nil {
			return "", err
		}
		var old json.RawMessage
		if err := decoder.Decode(&old); err != nil {
			return "", err
		}
		if name == key { // If a name is repeated, the last one counts.
			to = decoder.InputOffset()
			from = to - int64(len(old))
		}
	}
	switch {
	case from >= 0 && isText(document[from:to], value):
		return document, nil // The name may be escaped differently.
	case from >= 0:
		return document[:from] + string(encoded) + document[to:], nil
	case isEmpty:
		return document[:inside] + fmt.Sprintf("%q:%s", key, encoded) + document[inside:], nil
	default:
		return document[:inside] + fmt.Sprintf("%q:%s,", key, encoded) + document[inside:], nil
	}
}

func isText(encoded, value string) bool {
	var text *string
	return json.Unmarshal([]byte(encoded), &text) == nil && text != nil && *text == value
}

// renamed is the first version of Fleet with the present names of the feature gates.
var renamed = semver.MustParse("0.13.0-0")

// chartValues returns the values for the installer's own release: those that it has, including the
// user's, overridden by the installer's. Values for settings that are no longer requested stay.
func (s *state) chartValues(version *semver.Version) map[string]any {
	values := map[string]any{}
	isNew := s.fleet == nil
	if !isNew && s.fleet.Values != nil {
		values = runtime.DeepCopyJSON(s.fleet.Values)
	}
	if s.server != nil {
		if s.server.url != "" {
			values["apiServerURL"] = s.server.url
		}
		if s.server.ca != "" {
			values["apiServerCA"] = s.server.ca
		}
	}
	// The chart's own default would give Fleet all rights in the cluster.
	if isNew {
		set(values, false, "bootstrap", "enabled")
	}
	if s.bootstrap != nil {
		set(values, *s.bootstrap, "bootstrap", "enabled")
	}
	if s.gates != nil && !s.gatesElsewhere() {
		s.gates.into(values, version)
	}
	return values
}

// into writes the feature gates into the values of a chart.
func (g *gates) into(values map[string]any, version *semver.Version) {
	environment := g.environment(version)
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		list, _ := values["extraEnv"].([]any)
		values["extraEnv"] = withVariable(list, name, environment[name])
	}
	if helmOps, isValue := g.helmOpsValue(version); isValue {
		set(values, helmOps, "helmops", "enabled")
	}
}

// environment returns the feature gates that are environment variables in a version of Fleet. An
// unknown version is treated as a recent one.
func (g *gates) environment(version *semver.Version) map[string]string {
	if version != nil && version.LessThan(renamed) {
		return map[string]string{"EXPERIMENTAL_HELM_OPS": truth(g.helmOps), "EXPERIMENTAL_OCI_STORAGE": truth(g.ociStorage)}
	}
	return map[string]string{"OCI_STORAGE": truth(g.ociStorage)}
}

// helmOpsValue returns the chart's value for HelmOps, and whether this version of the chart has one.
func (g *gates) helmOpsValue(version *semver.Version) (value, isValue bool) {
	return g.helmOps, version == nil || !version.LessThan(renamed)
}

func truth(value bool) string {
	if value {
		return "true"
	}
	return "false"
}

// withVariable sets one environment variable in a list. The others keep their values and their
// order.
func withVariable(list []any, name, value string) []any {
	result := make([]any, 0, len(list)+1)
	found := false
	for _, entry := range list {
		if fields, isMap := entry.(map[string]any); isMap && fields["name"] == name {
			fields = maps.Clone(fields)
			delete(fields, "valueFrom")
			fields["value"] = value
			entry, found = fields, true
		}
		result = append(result, entry)
	}
	if !found {
		result = append(result, map[string]any{"name": name, "value": value})
	}
	return result
}

// set sets the value at a path, and creates the maps on the way.
func set(values map[string]any, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, isMap := values[key].(map[string]any)
		if !isMap {
			next = map[string]any{}
			values[key] = next
		}
		values = next
	}
	values[path[len(path)-1]] = value
}
