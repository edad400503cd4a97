package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// maxBody is how much a repository may send at once: the index of the largest public one
	// has less.
	maxBody = 32 << 20
	// slow is how long a repository may take to begin an answer.
	slow = 30 * time.Second
)

// newClient returns a client for a repository. It uses the proxies of the environment.
func newClient(access Access) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = slow
	transport.DisableKeepAlives = true // It is used for a moment.
	transport.TLSClientConfig = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: access.Insecure, //nolint:gosec // The author of the HelmChartProxy asks for it.
	}
	if len(access.Authorities) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(access.Authorities) {
			return nil, errors.New("the certificate authority holds no certificate in PEM")
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: bounded{transport}, Timeout: patience}, nil
}

// bounded cuts answers that are too long.
type bounded struct{ http.RoundTripper }

// RoundTrip sends a request.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = &limited{ReadCloser: response.Body, left: maxBody}
	return response, nil
}

type limited struct {
	io.ReadCloser
	left int
}

// Read reads.
func (l *limited) Read(into []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("the repository has sent more than %d MiB", maxBody>>20)
	}
	if len(into) > l.left {
		into = into[:l.left]
	}
	n, err := l.ReadCloser.Read(into)
	l.left -= n
	return n, err
}

// get downloads something. Credentials go along only if they are given.
func get(ctx context.Context, client *http.Client, url, username, password string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "muster-charts")
	if username != "" || password != "" {
		request.SetBasicAuth(username, password)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}
