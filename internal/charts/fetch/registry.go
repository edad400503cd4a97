package fetch

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// oci is a repository in an OCI registry. Helm's own client would read whatever size a
// manifest names into memory, and sends its credentials to every host that asks.
type oci struct {
	repository *remote.Repository
	// at is where the chart is, with scheme.
	at string
}

var _ source = (*oci)(nil)

// maxManifest is how large the manifest of a chart may be.
const maxManifest = 1 << 20

func newRegistry(client *http.Client, request Request, at string) (*oci, error) {
	repository, err := remote.NewRepository(at)
	if err != nil {
		return nil, problem(fmt.Sprintf("oci://%s is not where a chart can be", at))
	}
	login := &auth.Client{Client: client, Cache: auth.NewCache()}
	if access := request.Access; access.Username != "" || access.Password != "" {
		login.Credential = auth.StaticCredential(repository.Reference.Host(), auth.Credential{Username: access.Username, Password: access.Password})
	}
	login.SetUserAgent("muster-charts")
	repository.Client = login
	return &oci{repository: repository, at: "oci://" + at}, nil
}

// version returns the newest version in a range.
func (r *oci) version(ctx context.Context, wanted string) (string, error) {
	var found []*semver.Version
	err := r.repository.Tags(ctx, "", func(tags []string) error {
		for _, tag := range tags {
			if version, err := semver.StrictNewVersion(strings.ReplaceAll(tag, "_", "+")); err == nil {
				found = append(found, version)
			}
		}
		return nil
	})
	if err != nil {
		return "", shown(r.at, err)
	}
	slices.SortFunc(found, func(a, b *semver.Version) int { return b.Compare(a) })
	versions := make([]string, len(found))
	for i := range found {
		versions[i] = found[i].String()
	}
	version, err := registry.GetTagMatchingVersionOrConstraint(versions, cmp.Or(wanted, "*"))
	if err != nil {
		return "", problem(fmt.Sprintf("%s has no version %q", r.at, wanted))
	}
	return version, nil
}

// tagOf returns the tag of a version, which has no plus.
func tagOf(version string) string { return strings.ReplaceAll(version, "+", "_") }

func (r *oci) has(ctx context.Context, version string) error {
	if _, err := r.repository.Resolve(ctx, tagOf(version)); err != nil {
		return r.unresolved(version, err)
	}
	return nil
}

// unresolved says why a version is not found.
func (r *oci) unresolved(version string, err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		return problem(fmt.Sprintf("%s has no version %q", r.at, version))
	}
	return shown(r.at+":"+version, err)
}

// archive downloads; what is downloaded has the digest that the manifest says.
func (r *oci) archive(ctx context.Context, version string) ([]byte, error) {
	at := r.at + ":" + version
	manifest, err := r.repository.Resolve(ctx, tagOf(version))
	if err != nil {
		return nil, r.unresolved(version, err)
	}
	if manifest.Size > maxManifest {
		return nil, problem(fmt.Sprintf("the manifest of %s is larger than %d MiB", at, maxManifest>>20))
	}
	parts, err := content.Successors(ctx, r.repository, manifest)
	if err != nil {
		return nil, shown(at, err)
	}
	for _, part := range parts {
		if part.MediaType != registry.ChartLayerMediaType && part.MediaType != registry.LegacyChartLayerMediaType {
			continue
		}
		if part.Size > maxArchive {
			return nil, problem(fmt.Sprintf("%s is larger than %d MiB", at, maxArchive>>20))
		}
		archive, err := content.FetchAll(ctx, r.repository, part)
		if err != nil {
			return nil, shown(at, err)
		}
		return archive, nil
	}
	return nil, problem(at + " is no Helm chart")
}

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
