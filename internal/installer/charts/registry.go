package charts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/muster-fleet/muster/internal/installer"
)

// ociRegistry is an OCI registry: each chart is a repository there, each version a tag.
type ociRegistry struct {
	address, path, host string
	client              *registry.Client
}

func newRegistry(address, host string, client *http.Client, credentials installer.Credentials) (installer.Repository, error) {
	created, err := registry.NewClient(
		registry.ClientOptWriter(io.Discard),
		registry.ClientOptHTTPClient(client),
		registry.ClientOptAuthorizer(auth.Client{
			Client: client, Cache: auth.NewCache(),
			Credential: auth.StaticCredential(host, auth.Credential{
				Username: credentials.Username, Password: credentials.Password, AccessToken: credentials.Token,
			}),
		}))
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", address, err)
	}
	return &ociRegistry{address: address, path: strings.TrimPrefix(address, "oci://"), host: host, client: created}, nil
}

// Offers returns the tags of a chart that are versions.
func (r *ociRegistry) Offers(_ context.Context, chart string) ([]installer.Offer, error) {
	tags, err := r.client.Tags(r.path + "/" + chart)
	if err != nil {
		return nil, r.meaning(chart, err)
	}
	var offers []installer.Offer
	for _, tag := range tags {
		if version, err := semver.NewVersion(tag); err == nil {
			offers = append(offers, installer.Offer{Version: version})
		}
	}
	if len(offers) == 0 {
		return nil, missing(r.address, chart)
	}
	return offers, nil
}

// Fetch pulls a chart.
func (r *ociRegistry) Fetch(_ context.Context, chart string, version *semver.Version) ([]byte, error) {
	// A tag has no '+', which Helm writes as '_'.
	pulled, err := r.client.Pull(r.path + "/" + chart + ":" + strings.ReplaceAll(version.Original(), "+", "_"))
	if err != nil {
		return nil, r.meaning(chart, err)
	}
	return pulled.Chart.Data, nil
}

func (r *ociRegistry) meaning(chart string, err error) error {
	if problem := untrusted(r.host, err); problem != nil {
		return problem
	}
	var answer *errcode.ErrorResponse
	if !errors.As(err, &answer) {
		return err
	}
	if answer.StatusCode == http.StatusNotFound {
		return missing(r.address, chart)
	}
	return answered(r.address, answer.StatusCode)
}
