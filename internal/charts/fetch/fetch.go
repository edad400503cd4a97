// Package fetch downloads charts, with Helm's library: it finds out which version a
// HelmChartProxy means, downloads and verifies that, and keeps the last ones. It owns every
// connection to a repository, and what may come over it: how much, for how long, and from
// where. It knows nothing of Clusters and Fleet but the form in which a chart lies in a Bundle.
package fetch

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Masterminds/semver/v3"
	"golang.org/x/sync/singleflight"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/redirect"
)

// Request says which chart is wanted, and how the repository is reached.
type Request struct {
	// RepoURL is https:// or oci://; the chart lies below it.
	RepoURL, Chart string
	// Version is exact, a range, or empty for the latest.
	Version string
	Access  Access
}

// Access says how a repository is reached.
type Access struct {
	Username, Password string
	// Authorities are certificates in PEM, trusted beside those of the system.
	Authorities []byte
	// Insecure has no certificate checked.
	Insecure bool
}

// key tells requests apart; whoever has other credentials may get another chart.
func (r Request) key(version string) string {
	sum := sha256.New()
	for _, part := range []string{r.RepoURL, r.Chart, version, r.Access.Username, r.Access.Password, string(r.Access.Authorities), fmt.Sprint(r.Access.Insecure)} {
		fmt.Fprintf(sum, "%d %s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

const (
	// patience is how long all that it takes to download a chart may take.
	patience = 90 * time.Second
	// cacheSize is how many bytes of charts are kept.
	cacheSize = 48 << 20
	// sore is for how long a repository that has failed is not asked the same again: a little less than
	// what passes before a HelmChartProxy is looked at again because of that.
	sore = 25 * time.Second
)

// Fetcher downloads charts, each once.
type Fetcher struct {
	// Interval is for how long is believed which version a range stands for.
	Interval time.Duration

	// denied are the networks to which no connection is made.
	denied  []net.IPNet
	now     func() time.Time
	flights singleflight.Group

	mu       sync.Mutex
	versions map[string]resolved
	charts   map[string]*kept
	failed   map[string]failure
}

type failure struct {
	err error
	at  time.Time
}

type resolved struct {
	version string
	at      time.Time
}

type kept struct {
	chart *plan.Chart
	used  time.Time
}

// New returns a Fetcher, which connects to no address in the networks that are denied.
func New(interval time.Duration, denied ...net.IPNet) *Fetcher {
	return &Fetcher{Interval: interval, denied: denied, now: time.Now, versions: map[string]resolved{}, charts: map[string]*kept{}, failed: map[string]failure{}}
}

// IsExact reports whether a version names one version only.
func IsExact(version string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	return err == nil
}

// Version returns the exact version that a request stands for now.
func (f *Fetcher) Version(ctx context.Context, request Request) (string, error) {
	if IsExact(request.Version) {
		return request.Version, nil
	}
	key := request.key(request.Version)
	f.mu.Lock()
	known, found := f.versions[key]
	f.mu.Unlock()
	if found && f.now().Before(known.at.Add(f.Interval)) {
		return known.version, nil
	}
	return once(ctx, f, "version "+key, func(ctx context.Context) (string, error) {
		source, err := f.open(ctx, request)
		if err != nil {
			return "", err
		}
		version, err := source.version(ctx, request.Version)
		if err != nil {
			return "", err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forgetVersions()
		f.versions[key] = resolved{version, f.now()}
		return version, nil
	})
}

// Chart returns the chart in an exact version. It is shared: it must not be changed.
func (f *Fetcher) Chart(ctx context.Context, request Request, version string) (*plan.Chart, error) {
	key := request.key(version)
	f.mu.Lock()
	known, found := f.charts[key]
	if found {
		known.used = f.now()
	}
	f.mu.Unlock()
	if found {
		return known.chart, nil
	}
	return once(ctx, f, "chart "+key, func(ctx context.Context) (*plan.Chart, error) {
		source, err := f.open(ctx, request)
		if err != nil {
			return nil, err
		}
		archive, err := source.archive(ctx, version)
		if err != nil {
			return nil, err
		}
		chart, err := unpack(archive, request.Chart)
		if err != nil {
			return nil, err
		}
		chart.Version = version
		f.keep(key, chart)
		return chart, nil
	})
}

// Has returns an error unless the repository has the chart in an exact version.
func (f *Fetcher) Has(ctx context.Context, request Request, version string) error {
	_, err := once(ctx, f, "has "+request.key(version), func(ctx context.Context) (bool, error) {
		source, err := f.open(ctx, request)
		if err != nil {
			return false, err
		}
		return true, source.has(ctx, version)
	})
	return err
}

// once does something once for all who want it at the same time. Who asked first may go
// before the others.
func once[T any](ctx context.Context, f *Fetcher, key string, do func(context.Context) (T, error)) (T, error) {
	var none T
	if err := f.failure(key); err != nil {
		return none, err
	}
	done := f.flights.DoChan(key, func() (result any, err error) {
		// Nobody else could: it runs beside those who wait for it.
		defer func() {
			if recover() != nil {
				result, err = nil, problem("what the repository has sent cannot be worked with")
			}
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if result, err = do(ctx); err != nil {
			f.noteFailure(key, err)
		}
		return result, err
	})
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case result := <-done:
		if result.Err != nil {
			return none, result.Err
		}
		return result.Val.(T), nil
	}
}

// failure returns what went wrong lately.
func (f *Fetcher) failure(key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, found := f.failed[key]; found && f.now().Before(known.at.Add(sore)) {
		return known.err
	}
	return nil
}

func (f *Fetcher) noteFailure(key string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for other, known := range f.failed {
		if !f.now().Before(known.at.Add(sore)) {
			delete(f.failed, other)
		}
	}
	f.failed[key] = failure{err, f.now()}
}

// keep keeps a chart, and forgets those that were used least lately.
func (f *Fetcher) keep(key string, chart *plan.Chart) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.charts[key] = &kept{chart, f.now()}
	for {
		size, oldest := 0, ""
		for other, its := range f.charts {
			size += its.chart.Size()
			if oldest == "" || its.used.Before(f.charts[oldest].used) {
				oldest = other
			}
		}
		if size <= cacheSize || len(f.charts) == 1 {
			return
		}
		delete(f.charts, oldest)
	}
}

// forgetVersions forgets what is not believed any more.
func (f *Fetcher) forgetVersions() {
	for key, known := range f.versions {
		if f.now().After(known.at.Add(f.Interval)) {
			delete(f.versions, key)
		}
	}
}

// TooLargeError says that a chart does not fit into a Bundle.
type TooLargeError struct{ Size int }

// Error says so.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the chart takes %d KiB in a Bundle, which can carry %d", e.Size>>10, plan.MaxChart>>10)
}

// source is a repository.
type source interface {
	// version returns the newest version of the chart in a range.
	version(ctx context.Context, wanted string) (string, error)
	// has returns an error unless there is the chart in an exact version.
	has(ctx context.Context, version string) error
	// archive returns the chart in an exact version, verified.
	archive(ctx context.Context, version string) ([]byte, error)
}

func (f *Fetcher) open(ctx context.Context, request Request) (source, error) {
	client, err := f.newClient(ctx, request.Access)
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(request.RepoURL, "/")
	if strings.HasPrefix(base, "oci://") {
		return newRegistry(client, request, strings.TrimPrefix(base, "oci://")+"/"+request.Chart)
	}
	if !strings.HasPrefix(strings.ToLower(base), "https://") {
		return nil, errors.New("the URL of the repository is neither https nor oci")
	}
	return &index{client: client, base: base, chart: request.Chart, access: request.Access}, nil
}

// shown returns an error that may stand in a condition: it says whether there was an answer,
// its status, and what is wrong with a certificate, but nothing that the other side has
// written. The author may name what only this program can reach.
func shown(at string, err error) error {
	var (
		own          problem
		refused      redirect.RefusedError
		answer       *errcode.ErrorResponse
		verification *tls.CertificateVerificationError
		connection   *net.OpError
		name         *net.DNSError
		request      *url.Error
	)
	switch {
	case errors.As(err, &own):
		return fmt.Errorf("%s: %w", bare(at), own)
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w", bare(at), refused)
	case errors.As(err, &answer):
		return answered(at, answer.StatusCode)
	case errors.As(err, &verification):
		return fmt.Errorf("%s: %w", bare(at), verification)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s took longer than %s", bare(at), patience)
	case errors.As(err, &name):
		return fmt.Errorf("%s: %w", bare(at), name)
	case errors.As(err, &connection):
		return fmt.Errorf("%s: %w", bare(at), connection)
	case errors.As(err, &request) && request.Timeout():
		return fmt.Errorf("%s took too long to answer", bare(at))
	default:
		return fmt.Errorf("%s gave an answer that cannot be read", bare(at))
	}
}
