package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/redirect"
)

// maxIndex is how large an index may be: reading one takes many times its size.
const maxIndex = 8 << 20

// index is a repository with an index, over https.
type index struct {
	client      *http.Client
	base, chart string
	access      Access
}

var _ source = (*index)(nil)

func (r *index) version(ctx context.Context, wanted string) (string, error) {
	entry, err := r.find(ctx, wanted)
	if err != nil {
		return "", err
	}
	return entry.Version, nil
}

func (r *index) has(ctx context.Context, version string) error {
	_, at, err := r.at(ctx, version)
	if err != nil {
		return err
	}
	// Whoever downloads with credentials sends them there, too.
	if (r.access.Username != "" || r.access.Password != "") && !isSameHost(r.base, at) {
		return fmt.Errorf("the index of %s leads to %s, to which credentials are not to go", r.base, bare(at))
	}
	return reach(ctx, r.client, at, r.access.Username, r.access.Password)
}

// at returns what the index says of a version, and where it is.
func (r *index) at(ctx context.Context, version string) (*repo.ChartVersion, string, error) {
	entry, err := r.find(ctx, version)
	if err != nil {
		return nil, "", err
	}
	if len(entry.URLs) == 0 {
		return nil, "", fmt.Errorf("the index of %s says nowhere where %s %s is", r.base, r.chart, version)
	}
	at, err := r.locate(entry.URLs[0])
	return entry, at, err
}

func (r *index) archive(ctx context.Context, version string) ([]byte, error) {
	entry, at, err := r.at(ctx, version)
	if err != nil {
		return nil, err
	}
	archive, err := r.get(ctx, at, maxArchive)
	if err != nil {
		return nil, err
	}
	if err := verify(archive, entry.Digest); err != nil {
		return nil, fmt.Errorf("%s: %w", bare(at), err)
	}
	return archive, nil
}

// find returns what the index says of the newest version that is wanted.
func (r *index) find(ctx context.Context, wanted string) (*repo.ChartVersion, error) {
	body, err := r.get(ctx, r.base+"/index.yaml", maxIndex)
	if err != nil {
		return nil, err
	}
	var file repo.IndexFile
	if err := yaml.Unmarshal(body, &file); err != nil {
		return nil, fmt.Errorf("%s/index.yaml cannot be read", r.base)
	}
	entries := slices.DeleteFunc(file.Entries[r.chart], func(entry *repo.ChartVersion) bool {
		if entry != nil && entry.Metadata == nil {
			entry.Metadata = &chartv2.Metadata{}
		}
		return entry == nil || entry.Version == ""
	})
	file.Entries = map[string]repo.ChartVersions{r.chart: entries}
	file.SortEntries()
	entry, err := file.Get(r.chart, wanted)
	switch {
	case errors.Is(err, repo.ErrNoChartName), errors.Is(err, repo.ErrNoChartVersion):
		return nil, fmt.Errorf("repository %s has no chart %q", r.base, r.chart)
	case err != nil:
		return nil, fmt.Errorf("repository %s has no version %q of chart %q", r.base, wanted, r.chart)
	}
	return entry, nil
}

// locate returns where a chart is: the index may name it relative to itself.
func (r *index) locate(reference string) (string, error) {
	base, err := url.Parse(r.base + "/")
	if err != nil {
		return "", err
	}
	at, err := base.Parse(reference)
	if err != nil {
		return "", fmt.Errorf("the index of %s has an unusable URL for %s", r.base, r.chart)
	}
	if at.Scheme != "https" {
		return "", fmt.Errorf("the index of %s leads to %s, which is not https", r.base, bare(at.String()))
	}
	return at.String(), nil
}

// get downloads from the repository, or from where its index leads. The credentials are the
// repository's only.
func (r *index) get(ctx context.Context, at string, limit int64) ([]byte, error) {
	username, password := r.access.Username, r.access.Password
	if !isSameHost(r.base, at) {
		username, password = "", ""
	}
	return get(ctx, r.client, at, username, password, limit)
}

func isSameHost(one, other string) bool {
	first, err := url.Parse(one)
	second, otherErr := url.Parse(other)
	return err == nil && otherErr == nil && redirect.IsSameOrigin(first, second)
}

// verify compares an archive with the digest that the index has of it, if it has one.
func verify(archive []byte, digest string) error {
	want := strings.TrimPrefix(digest, "sha256:")
	if want == "" {
		return nil
	}
	sum := sha256.Sum256(archive)
	if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, want) {
		return fmt.Errorf("the chart has the digest %s, and the index says %s", got, want)
	}
	return nil
}
