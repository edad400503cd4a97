package repository

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/muster-fleet/muster/internal/helm/worker"
)

const (
	// maxManifest limits the bytes of a chart's manifest, and maxLayers its layers.
	maxManifest, maxLayers = 256 << 10, 16
	// maxPage limits the bytes of a page of tags, and maxPages the pages.
	maxPage, maxPages = 4 << 20, 64
)

// errNoChart is the end of a sentence.
var errNoChart = errors.New("is not a Helm chart")

// layers are the media types of a chart.
var layers = []string{"application/vnd.cncf.helm.chart.content.v1.tar+gzip", "application/tar+gzip"}

// registry is a chart in an OCI registry. Helm's own client would read a manifest of any size, and
// send its credentials to every host that asks.
type registry struct {
	*remote.Repository
	client  *Client
	request Request
	at      string
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
	repository.Client = login
	return &registry{repository, c, request, "oci://" + at}, nil
}

// list returns the list of the tags.
func (r *registry) list() *list {
	key := r.request.key("list", r.request.Chart)
	return &list{Client: r.client, request: r.request, key: key, at: r.at, inTags: true, write: r.pages}
}

// pages downloads the tags. Oras would parse each page in this process.
func (r *registry) pages(ctx context.Context, into io.Writer) (err error) {
	ctx = auth.AppendRepositoryScope(ctx, r.Reference, auth.ActionPull)
	at := &url.URL{Scheme: "https", Host: r.Reference.Host(), Path: "/v2/" + r.Reference.Repository + "/tags/list"}
	for range maxPages {
		if at, err = r.page(ctx, at, into); err != nil || at == nil {
			return err
		}
	}
	return failf(Invalid, "%s has more than %d pages of tags: name an exact version", r.at, maxPages)
}

// page downloads a page of tags, and returns the URL of the next one; nil if there is none.
func (r *registry) page(ctx context.Context, at *url.URL, into io.Writer) (next *url.URL, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, shown(r.at, err)
	}
	response, err := r.Client.Do(request)
	if err != nil {
		return nil, shown(r.at, err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, failf(NoChart, "%s does not exist", r.at)
	default:
		return nil, answered(r.at, response.StatusCode)
	}
	size, err := io.Copy(into, io.LimitReader(response.Body, maxPage+1))
	switch link := response.Header.Get("Link"); {
	case err != nil:
		return nil, shown(r.at, err)
	case size > maxPage:
		return nil, failf(TooLarge, "%s: a page of tags is larger than %d MiB: name an exact version", r.at, maxPage>>20)
	case link != "":
		_, link, _ = strings.Cut(link, "<")
		link, _, _ = strings.Cut(link, ">")
		if next, err = response.Request.URL.Parse(link); err != nil || !isSameOrigin(next, response.Request.URL) {
			return nil, failf(Invalid, "%s leads to a page of tags that is not its own", r.at)
		}
	}
	return next, nil
}

// find asks for an exact version, and looks for any other in the list.
func (r *registry) find(ctx context.Context, wanted string) (worker.Entry, error) {
	if !IsExact(wanted) {
		return r.list().find(ctx, wanted)
	}
	_, err := r.Resolve(ctx, tagOf(wanted))
	return worker.Entry{Version: wanted}, r.shown(wanted, err)
}

// tagOf returns the tag of a version: a tag cannot contain a plus.
func tagOf(version string) string { return strings.ReplaceAll(version, "+", "_") }

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
	manifest, err := r.Resolve(ctx, tagOf(version))
	if err == nil && manifest.Size > maxManifest {
		return nil, failf(Invalid, "the manifest of %s is larger than %d KiB", r.at, maxManifest>>10)
	}
	if err != nil {
		return nil, r.shown(version, err)
	}
	text, err := content.FetchAll(ctx, r.Manifests(), manifest)
	if err != nil {
		return nil, r.shown(version, err)
	}
	part, err := chartIn(text)
	if err != nil {
		return nil, failf(Invalid, "%s:%s %s", r.at, version, err)
	}
	body := io.NopCloser(strings.NewReader(""))
	if part.Size <= r.client.MaxArchive && !r.request.byAgents {
		body, err = r.Fetch(ctx, part)
	}
	return &download{body, r.at + ":" + version, part.Size, part.Digest.String()}, r.shown(version, err)
}

// chartIn returns the layer of a manifest that has the chart. It counts the layers before it decodes the next one: small
// ones take much more memory than in the text.
func chartIn(manifest []byte) (chart ocispec.Descriptor, err error) {
	var its struct{ Layers json.RawMessage }
	if json.Unmarshal(manifest, &its) != nil {
		return chart, errNoChart
	}
	decoder := json.NewDecoder(bytes.NewReader(its.Layers))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('[') {
		return chart, errNoChart
	}
	for count := 0; decoder.More(); count++ {
		var layer ocispec.Descriptor
		switch {
		case count == maxLayers:
			return chart, fmt.Errorf("has more than %d layers", maxLayers)
		case decoder.Decode(&layer) != nil:
			return chart, errNoChart
		case chart.MediaType == "" && slices.Contains(layers, layer.MediaType):
			chart = layer
		}
	}
	if chart.MediaType == "" {
		return chart, errNoChart
	}
	return chart, nil
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
