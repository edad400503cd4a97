package repository

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/pki"
	"github.com/muster-fleet/muster/test/stack/ports"
)

// Registry is an OCI registry with a password, and a private certificate authority.
type Registry struct {
	// Address is its host and port.
	Address string
	// CA is the certificate of its authority.
	CA []byte

	leases *ports.Leases
	client *auth.Client
}

// StartRegistry runs a registry next to a stack.
func StartRegistry(ctx context.Context, s *stack.Stack) (*Registry, error) {
	authority, err := pki.New(filepath.Join(s.Dir(), "registry-pki"))
	if err != nil {
		return nil, err
	}
	if err := authority.Issue("server", "registry"); err != nil {
		return nil, err
	}
	r := &Registry{CA: authority.CA(), leases: ports.New()}
	port, err := r.leases.Port(0)
	if err != nil {
		return nil, err
	}
	r.Address = fmt.Sprintf("127.0.0.1:%d", port)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(r.CA) {
		return nil, errors.New("the authority has no certificate")
	}
	r.client = &auth.Client{
		Client:     &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}},
		Credential: auth.StaticCredential(r.Address, auth.Credential{Username: Username, Password: Password}),
	}
	return r, s.StartRegistry(ctx, r.Address, authority.Path("server.crt"), authority.Path("server.key"), Username, Password)
}

// Close returns the port.
func (r *Registry) Close() { r.leases.Release() }

// URL returns the URL of the repository with its charts.
func (r *Registry) URL() string { return "oci://" + r.Address + "/charts" }

// Secret returns the data of a Secret for access to the registry, with the same keys as for a Repository.
func (r *Registry) Secret() map[string][]byte {
	return map[string][]byte{"config.json": Config(r.Address, Password), "ca.crt": r.CA}
}

// Publish pushes a chart with these templates, and returns the digest under which it is downloaded.
func (r *Registry) Publish(ctx context.Context, name, version string, templates map[string]string) (string, error) {
	to, err := remote.NewRepository(r.Address + "/charts/" + name)
	if err != nil {
		return "", err
	}
	to.Client = r.client
	archive, err := Archive(name, version, templates)
	if err != nil {
		return "", err
	}
	layer, err := oras.PushBytes(ctx, to, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", archive)
	if err != nil {
		return "", err
	}
	config, err := oras.PushBytes(ctx, to, "application/vnd.cncf.helm.config.v1+json", fmt.Appendf(nil, `{"apiVersion":"v2","name":%q,"version":%q}`, name, version))
	if err != nil {
		return "", err
	}
	parts := oras.PackManifestOptions{ConfigDescriptor: &config}
	parts.Layers = append(parts.Layers, layer)
	manifest, err := oras.PackManifest(ctx, to, oras.PackManifestVersion1_1, "", parts)
	if err != nil {
		return "", err
	}
	return layer.Digest.String(), to.Tag(ctx, manifest, version)
}
