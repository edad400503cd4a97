package repository

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/muster-fleet/muster/internal/helm/worker"
)

// Limits of a chart's manifest, and of the pages with its tags.
const maxManifest, maxPages = 1 << 20, 64

// layers are the media types of a chart.
var layers = []string{"application/vnd.cncf.helm.chart.content.v1.tar+gzip", "application/tar+gzip"}

// registry is a chart in an OCI registry. Helm's own client would read a manifest of any size, and
// send its credentials to every host that asks.
type registry struct {
	*remote.Repository
	request    Request
	at         string
	maxArchive int64
}

var _ source = (*registry)(nil)

func (c *Client) newRegistry(client *http.Client, request Request, at string) (source, error) {
	repository, err := remote.NewRepository(at)
	if err != nil {
		return nil, failf(Invalid, "oci://%s is not a valid location of a chart", at)
	}
	login := &auth.Client{Client: client, Cache: auth.NewCache()}
	login.SetUserAgent(c.UserAgent)
	if request.Access.Credential != auth.EmptyCredential {
		login.Credential = auth.StaticCredential(repository.Reference.Host(), request.Access.Credential)
	}
	repository.Client, repository.TagListMaxPages = login, maxPages
	return &registry{repository, request, "oci://" + at, c.MaxArchive}, nil
}

// list returns the tags that are versions.
func (r *registry) list(ctx context.Context) ([]byte, error) {
	var list []byte
	err := r.Tags(ctx, "", func(tags []string) (err error) {
		for _, tag := range tags {
			version := strings.ReplaceAll(tag, "_", "+") // A tag cannot contain a plus.
			if _, err := semver.StrictNewVersion(version); err != nil {
				continue
			}
			if list, err = worker.AppendEntry(list, r.request.Chart, worker.Entry{Version: version}); err != nil {
				return failf(Invalid, "%s", err)
			}
		}
		return nil
	})
	var answer *errcode.ErrorResponse
	switch {
	case errors.Is(err, errdef.ErrTooManyPages):
		return nil, failf(Invalid, "%s has more than %d pages of tags", r.at, maxPages)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return nil, failf(NoChart, "%s does not exist", r.at)
	case err != nil:
		return nil, shown(r.at, err)
	}
	return list, nil
}

func (r *registry) shown(version string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errdef.ErrNotFound):
		return failf(NoVersion, "%s has no version %q", r.at, version)
	default:
		return shown(r.at+":"+version, err)
	}
}

func (r *registry) open(ctx context.Context, version string) (*download, error) {
	manifest, err := r.Resolve(ctx, strings.ReplaceAll(version, "+", "_"))
	if err == nil && manifest.Size > maxManifest {
		return nil, failf(Invalid, "the manifest of %s is larger than %d MiB", r.at, maxManifest>>20)
	}
	if err != nil {
		return nil, r.shown(version, err)
	}
	parts, err := content.Successors(ctx, r.Repository, manifest)
	if err != nil {
		return nil, r.shown(version, err)
	}
	for _, part := range parts {
		if !slices.Contains(layers, part.MediaType) {
			continue
		}
		body := io.NopCloser(strings.NewReader(""))
		if part.Size <= r.maxArchive && !r.request.byAgents {
			body, err = r.Fetch(ctx, part)
		}
		return &download{body, r.at + ":" + version, part.Size, part.Digest.String()}, r.shown(version, err)
	}
	return nil, failf(Invalid, "%s:%s is not a Helm chart", r.at, version)
}

// Login returns the login for a host from a Docker configuration, by Helm's rules: Docker Hub's login has a
// special name, and a host without login is anonymous.
func Login(config []byte, host string) (Credential, error) {
	var parsed struct {
		Auths map[string]struct{ Auth, Username, Password, IdentityToken, RegistryToken string }
	}
	if err := json.Unmarshal(config, &parsed); err != nil {
		return auth.EmptyCredential, errors.New("is not a Docker configuration in JSON")
	}
	name := credentials.ServerAddressFromRegistry(host)
	its, isNamed := parsed.Auths[name]
	for _, other := range slices.Sorted(maps.Keys(parsed.Auths)) {
		at := strings.TrimPrefix(strings.TrimPrefix(other, "http://"), "https://")
		if at, _, _ = strings.Cut(at, "/"); !isNamed && strings.EqualFold(at, name) {
			its, isNamed = parsed.Auths[other], true
		}
	}
	login := Credential{Username: its.Username, Password: its.Password, RefreshToken: its.IdentityToken, AccessToken: its.RegistryToken}
	if its.Auth != "" {
		decoded, err := base64.StdEncoding.DecodeString(its.Auth)
		if err != nil {
			return auth.EmptyCredential, fmt.Errorf("auth of %q is not base64", host)
		}
		login.Username, login.Password, _ = strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
	}
	return login, nil
}
