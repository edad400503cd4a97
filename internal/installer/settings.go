package installer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	settingsName = "fleet-controller"
	settingsKey  = "config"
)

// withServer returns the text of Fleet's settings with the server in it. All other bytes are
// as they were: whoever wrote them finds them again.
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
			return "", fmt.Errorf("its key %s is no JSON object that can be read: %w", settingsKey, err)
		}
	}
	return text, nil
}

// inForce is the server that is set now, as far as it can be read.
func (s *sight) inForce() server {
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

// withText sets one text in a JSON object, in place.
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
		if name == key { // Of several with one name, the last counts.
			to = decoder.InputOffset()
			from = to - int64(len(old))
		}
	}
	switch {
	case from >= 0 && isText(document[from:to], value):
		return document, nil // Perhaps in other letters.
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
