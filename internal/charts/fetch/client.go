package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/internal/redirect"
)

const (
	// maxBytes is how much a repository may send for one chart in all, and maxRequests how
	// often it may be asked for it.
	maxBytes    = 24 << 20
	maxRequests = 64
	// slow is how long a repository may take to begin an answer.
	slow = 30 * time.Second
)

// newClient returns a client for what one context is for. It uses the proxies of the
// environment.
func (f *Fetcher) newClient(ctx context.Context, access Access) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: slow, Control: f.refuse}).DialContext
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
	return &http.Client{Transport: &budget{RoundTripper: transport, ctx: ctx}, CheckRedirect: redirect.Check}, nil
}

// refuse is asked before each connection, with the address that a name stands for.
func (f *Fetcher) refuse(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return problem("an address that is none")
	}
	its := to.Addr().Unmap().WithZone("")
	for _, denied := range f.denied {
		if denied.Contains(its.AsSlice()) {
			return problem(fmt.Sprintf("%s is in %s, to which --denied-networks allows no connection", its, denied.String()))
		}
	}
	return nil
}

// problem is what is wrong, in words of ours: it may be shown.
type problem string

// Error says it.
func (p problem) Error() string { return string(p) }

// budget bounds all that is done for one chart.
type budget struct {
	http.RoundTripper
	ctx             context.Context
	requests, bytes atomic.Int64
}

// RoundTrip sends a request. Its context is the budget's: some of what asks has none.
func (b *budget) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" {
		return nil, problem(request.URL.Host + " is not reached by https")
	}
	if b.requests.Add(1) > maxRequests {
		return nil, problem(fmt.Sprintf("the repository takes more than %d requests for one chart", maxRequests))
	}
	response, err := b.RoundTripper.RoundTrip(request.WithContext(b.ctx))
	if err != nil {
		return nil, err
	}
	response.Body = &counted{response.Body, b}
	return response, nil
}

type counted struct {
	io.ReadCloser
	*budget
}

// Read reads.
func (c *counted) Read(into []byte) (int, error) {
	n, err := c.ReadCloser.Read(into)
	if c.bytes.Add(int64(n)) > maxBytes {
		return 0, problem(fmt.Sprintf("the repository has sent more than %d MiB for one chart", maxBytes>>20))
	}
	return n, err
}

// reach sees that something is there, and not where nobody is to connect to. What it is, is not read.
func reach(ctx context.Context, client *http.Client, at, username, password string) error {
	body, err := ask(ctx, client, at, username, password)
	if err == nil {
		_ = body.Close()
	}
	return err
}

// get downloads something of a bounded size.
func get(ctx context.Context, client *http.Client, at, username, password string, limit int64) ([]byte, error) {
	its, err := ask(ctx, client, at, username, password)
	if err != nil {
		return nil, err
	}
	defer func() { _ = its.Close() }()
	body, err := io.ReadAll(io.LimitReader(its, limit+1))
	if err != nil {
		return nil, shown(at, err)
	}
	if int64(len(body)) > limit {
		return nil, problem(fmt.Sprintf("%s is larger than %d MiB", bare(at), limit>>20))
	}
	return body, nil
}

// ask begins a download. Credentials go along only if they are given.
func ask(ctx context.Context, client *http.Client, at, username, password string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, problem("the URL cannot be used")
	}
	request.Header.Set("User-Agent", "muster-charts")
	if username != "" || password != "" {
		request.SetBasicAuth(username, password)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, shown(at, err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, answered(at, response.StatusCode)
	}
	return response.Body, nil
}

// bare returns a URL without what may be a secret: user, query, fragment.
func bare(at string) string {
	parsed, err := url.Parse(at)
	if err != nil {
		return "the URL"
	}
	return (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path}).String()
}

func answered(at string, status int) error {
	return problem(fmt.Sprintf("%s answered %d %s", bare(at), status, http.StatusText(status)))
}
