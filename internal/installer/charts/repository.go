// Package charts reads Fleet's charts from a Helm repository or an OCI registry.
package charts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/muster-fleet/muster/internal/installer"
	"github.com/muster-fleet/muster/internal/redirect"
)

const (
	// requestTimeout bounds one request, its answer included.
	requestTimeout = 2 * time.Minute
	// longest is how large an answer may be, in bytes: an index of many years has a few MiB.
	longest = 64 << 20
)

// Open returns the repository at an address: https://, http:// or oci://.
func Open(address string, credentials installer.Credentials) (installer.Repository, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		return nil, &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("spec.install.repository: %s is no URL of a repository", address)}
	}
	client, err := httpClient(credentials)
	if err != nil {
		return nil, err
	}
	if parsed.Scheme == "oci" {
		return newRegistry(address, parsed.Host, client, credentials)
	}
	return &indexed{address: parsed, client: client, credentials: credentials}, nil
}

func httpClient(credentials installer.Credentials) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(credentials.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(credentials.CA) {
			return nil, &installer.Problem{Reason: installer.ReasonSecretUnusable, Message: "spec.install.repositorySecretRef: its key ca.crt holds no certificate in PEM"}
		}
	}
	return &http.Client{
		Timeout:       requestTimeout,
		CheckRedirect: redirect.Check,
		Transport:     &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
	}, nil
}

// untrusted says that the certificate of a repository is not one to trust; nil if that is
// not what an error is about.
func untrusted(address string, err error) error {
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) {
		return &installer.Problem{Reason: installer.ReasonRepositoryTrust, Message: fmt.Sprintf("the certificate of %s is not trusted: %v; put its CA into the key ca.crt of the Secret that spec.install.repositorySecretRef names", address, verification.Err)}
	}
	return nil
}

// answered says what the status of an answer means; nil if it is the one that was hoped for.
func answered(address string, status int) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return &installer.Problem{Reason: installer.ReasonRepositoryRefuse, Message: fmt.Sprintf("%s answers %d %s: put username and password, or token, into the Secret that spec.install.repositorySecretRef names", address, status, http.StatusText(status))}
	case http.StatusNotFound:
		return &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("%s is not there (404); check spec.install.repository", address)}
	default:
		return fmt.Errorf("%s answers %d %s", address, status, http.StatusText(status))
	}
}

// get reads what is at an address. Credentials go to the repository's own host only.
func (r *indexed) get(ctx context.Context, address *url.URL) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	if address.Scheme == r.address.Scheme && address.Host == r.address.Host {
		switch {
		case r.credentials.Token != "":
			request.Header.Set("Authorization", "Bearer "+r.credentials.Token)
		case r.credentials.Username != "":
			request.SetBasicAuth(r.credentials.Username, r.credentials.Password)
		}
	}
	response, err := r.client.Do(request)
	if err != nil {
		if problem := untrusted(address.Host, err); problem != nil {
			return nil, problem
		}
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := answered(address.Redacted(), response.StatusCode); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, longest+1))
	if err == nil && len(content) > longest {
		err = &installer.Problem{Reason: installer.ReasonRepositoryBroken, Message: fmt.Sprintf("%s is larger than %d MiB", address.Redacted(), longest>>20)}
	}
	return content, err
}

func missing(repository, chart string) error {
	return &installer.Problem{Reason: installer.ReasonChartMissing, Message: fmt.Sprintf("%s has no chart %s; check spec.install.repository", strings.TrimSuffix(repository, "/"), chart)}
}
