package fetch

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Login returns username and password for a host from a Docker configuration.
func Login(config []byte, host string) (username, password string, err error) {
	var parsed struct {
		Auths map[string]struct {
			Auth     string `json:"auth"`
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(config, &parsed); err != nil {
		return "", "", errors.New("is not a Docker configuration in JSON")
	}
	for name, its := range parsed.Auths {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
		if at, _, _ := strings.Cut(name, "/"); !strings.EqualFold(at, host) {
			continue
		}
		if its.Auth == "" {
			return its.Username, its.Password, nil
		}
		decoded, err := base64.StdEncoding.DecodeString(its.Auth)
		if err != nil {
			return "", "", fmt.Errorf("auth of %q is not base64", host)
		}
		username, password, _ := strings.Cut(string(decoded), ":")
		return username, password, nil
	}
	return "", "", fmt.Errorf("has no login for %q", host)
}
