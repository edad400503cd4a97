package charts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/installer"
)

// indexed is a Helm repository: files on a web server, and an index of them.
type indexed struct {
	address     *url.URL
	client      *http.Client
	credentials installer.Credentials
	read        *index
}

// index is what is read of index.yaml.
type index struct {
	Entries map[string][]entry `json:"entries"`
}

type entry struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// Offers returns the versions that the index lists of a chart.
func (r *indexed) Offers(ctx context.Context, chart string) ([]installer.Offer, error) {
	entries, err := r.entries(ctx, chart)
	if err != nil {
		return nil, err
	}
	var offers []installer.Offer
	for _, entry := range entries {
		// What is no version can be neither named nor compared.
		if version, err := semver.NewVersion(entry.Version); err == nil {
			offers = append(offers, installer.Offer{Version: version})
		}
	}
	return offers, nil
}

func (r *indexed) entries(ctx context.Context, chart string) ([]entry, error) {
	if r.read == nil {
		where := r.address.JoinPath("index.yaml")
		content, err := r.get(ctx, where)
		if err != nil {
			return nil, err
		}
		read := &index{}
		if err := yaml.Unmarshal(content, read); err != nil || read.Entries == nil {
			return nil, &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("%s is no index of a Helm repository%s; check spec.install.repository", where.Redacted(), looksLike(content))}
		}
		r.read = read
	}
	entries := r.read.Entries[chart]
	if len(entries) == 0 {
		return nil, missing(r.address.Redacted(), chart)
	}
	return entries, nil
}

// looksLike says what people often name instead of a repository.
func looksLike(content []byte) string {
	start := strings.ToLower(string(bytes.TrimSpace(content[:min(len(content), 512)])))
	if strings.HasPrefix(start, "<!doctype html") || strings.HasPrefix(start, "<html") {
		return " but a web page"
	}
	return ""
}

// Fetch downloads a chart, and checks that it is the one that the index lists.
func (r *indexed) Fetch(ctx context.Context, chart string, version *semver.Version) ([]byte, error) {
	entries, err := r.entries(ctx, chart)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if parsed, err := semver.NewVersion(entry.Version); err != nil || !parsed.Equal(version) || len(entry.URLs) == 0 {
			continue
		}
		where, err := url.Parse(entry.URLs[0])
		if err != nil {
			return nil, &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("the index of %s names no usable address for chart %s %s", r.address.Redacted(), chart, version)}
		}
		if !where.IsAbs() {
			where = r.address.JoinPath("/").ResolveReference(where)
			where.RawQuery = ""
		}
		archive, err := r.get(ctx, where)
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(archive); entry.Digest != "" && !strings.EqualFold(strings.TrimPrefix(entry.Digest, "sha256:"), hex.EncodeToString(sum[:])) {
			return nil, &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("%s is not the file that the index lists: its digest differs", where.Redacted())}
		}
		return archive, nil
	}
	return nil, &installer.Problem{Reason: installer.ReasonVersionUnknown, Message: fmt.Sprintf("%s has no version %s of chart %s", r.address.Redacted(), version, chart)}
}
