package fetch

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"helm.sh/helm/v4/pkg/registry"
)

// oci is a repository in an OCI registry.
type oci struct {
	client *registry.Client
	// at is where the chart is, without scheme.
	at string
}

var _ source = (*oci)(nil)

func newRegistry(client *http.Client, request Request, at string) (*oci, error) {
	options := []registry.ClientOption{
		registry.ClientOptHTTPClient(client),
		// Credentials are the request's own: nothing is looked up in files.
		registry.ClientOptCredentialsFile(os.DevNull),
	}
	if request.Access.Username != "" || request.Access.Password != "" {
		options = append(options, registry.ClientOptBasicAuth(request.Access.Username, request.Access.Password))
	}
	its, err := registry.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("preparing a client for the registry: %w", err)
	}
	return &oci{client: its, at: at}, nil
}

// version returns the newest version in a range. Helm's library takes no context here; the
// client's own deadline ends it.
func (r *oci) version(_ context.Context, wanted string) (string, error) {
	tags, err := r.client.Tags(r.at)
	if err != nil {
		return "", fmt.Errorf("listing the versions of oci://%s: %w", r.at, err)
	}
	if wanted == "" {
		wanted = "*"
	}
	version, err := registry.GetTagMatchingVersionOrConstraint(tags, wanted)
	if err != nil {
		return "", fmt.Errorf("oci://%s has no version %q", r.at, wanted)
	}
	return version, nil
}

// archive downloads; the registry's client verifies digests.
func (r *oci) archive(_ context.Context, version string) ([]byte, error) {
	result, err := r.client.Pull(r.at+":"+strings.ReplaceAll(version, "+", "_"), registry.PullOptWithChart(true))
	if err != nil {
		return nil, fmt.Errorf("downloading oci://%s:%s: %w", r.at, version, err)
	}
	return result.Chart.Data, nil
}
