// Package repository is the client for chart repositories: indexes over https, and OCI registries. It makes every
// connection to them, and limits how much a connection may transfer, how long it may take, and where it may lead.
// It knows neither Clusters nor Fleet, except how a Bundle carries a chart.
package repository

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"golang.org/x/sync/singleflight"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/worker"
)

const (
	// requestTimeout limits the time for one answer: a repository that stops sending does not say so.
	requestTimeout = 90 * time.Second
	// slow is how long a repository may take to begin its answer, and how long a failure stays the answer: a HelmChartProxy
	// asks again as long after it.
	slow = 30 * time.Second
	// embeddable limits the archives to unpack: the files of a larger one fit into no Bundle.
	embeddable = 8 << 20
	// keptAnswers limits the bytes of the answers that the Client remembers.
	keptAnswers = 48 << 20
	forever     = math.MaxInt64
	defaultMax  = 50 << 20
)

// Credential is a login. Its RefreshToken is for the token service of an OCI registry; its AccessToken is for the
// repository itself.
type Credential = auth.Credential

// Access says how to reach a repository.
type Access struct {
	Credential
	// Authorities are CA certificates in PEM, in addition to the system's.
	Authorities []byte
	// Insecure disables certificate verification.
	Insecure bool
}

// Request names a chart, and says how to reach its repository.
type Request struct {
	// RepoURL is https:// or oci://; the chart is below it.
	RepoURL, Chart string
	// Version is exact, a range, or empty for the newest.
	Version string
	Access  Access
	// Namespace is the namespace of the HelmChartProxy. Namespaces share workers and memory fairly.
	Namespace string
	// byAgents says that the agents of clusters will make the request.
	byAgents bool
}

// key identifies an answer. Other credentials may lead to another chart.
func (r *Request) key(kind string, more ...string) string {
	return fmt.Sprintf("%s %x", kind, sha256.Sum256(fmt.Appendf(nil, "%q %#v %q", r.RepoURL, r.Access, more)))
}

// Options configure a Client.
type Options struct {
	// Interval is how long the Client uses a list of versions.
	Interval time.Duration
	// DeniedNetworks are the networks to which the Client makes no connection.
	DeniedNetworks []net.IPNet
	// MaxIndex and MaxArchive limit the bytes of an index and of an archive; the default is 50 MiB.
	MaxIndex, MaxArchive int64
	// Pool reads indexes and archives; if nil, this process does.
	Pool      *worker.Pool
	UserAgent string
	// AllowHTTP allows connections without TLS. OnlyAuthorities ignores the system's CA certificates if
	// Access has others. Both are for repositories that an administrator chooses.
	AllowHTTP, OnlyAuthorities bool
}

// Client downloads charts, each once, and remembers the latest.
type Client struct {
	Options
	now     func() time.Time
	flights singleflight.Group
	budget  *fair.Shares
	answers *answers
}

// New returns a Client.
func New(options Options) *Client {
	options.MaxIndex, options.MaxArchive = cmp.Or(options.MaxIndex, defaultMax), cmp.Or(options.MaxArchive, defaultMax)
	options.UserAgent = cmp.Or(options.UserAgent, "muster")
	most := max(options.MaxIndex, options.MaxArchive)
	return &Client{Options: options, now: time.Now, budget: fair.New(most+others, most), answers: newAnswers(keptAnswers)}
}

// IsNewer reports whether one exact version is newer than another.
func IsNewer(one, other string) bool {
	a, err := semver.NewVersion(one)
	b, otherErr := semver.NewVersion(other)
	return err == nil && (otherErr != nil || a.GreaterThan(b))
}

// IsExact reports whether a version names one version only.
func IsExact(version string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	return err == nil
}

// Version returns the exact version that a range currently resolves to.
func (c *Client) Version(ctx context.Context, request Request) (string, error) {
	source, err := c.source(request)
	if err != nil {
		return "", err
	}
	found, err := source.find(ctx, request.Version)
	return found.Version, err
}

// Versions returns all versions of a chart. It reads the list in this process, so the repository has to be trusted.
func (c *Client) Versions(ctx context.Context, request Request) ([]string, error) {
	source, err := c.source(request)
	if err != nil {
		return nil, err
	}
	return source.list().versions(ctx)
}

// Chart returns a chart in an exact version. The error is a *worker.TooLargeError if it fits into no Bundle.
func (c *Client) Chart(ctx context.Context, request Request, version string) (*worker.Chart, error) {
	key := request.key("chart", request.Chart, version)
	return once(ctx, c, request.Namespace, key, forever, func(ctx context.Context) (unpacked *worker.Chart, size int, err error) {
		err = c.download(ctx, request, version, embeddable, func(archive [][]byte) (err error) {
			if unpacked, err = c.Pool.Unpack(ctx, request.Namespace, archive); err == nil {
				unpacked.Version = version
				size = unpacked.Size()
			}
			return err
		})
		return unpacked, size, err
	})
}

// Archive returns the verified archive of a chart in an exact version.
func (c *Client) Archive(ctx context.Context, request Request, version string) ([]byte, error) {
	key := request.key("archive", request.Chart, version)
	return once(ctx, c, request.Namespace, key, 0, func(ctx context.Context) (joined []byte, _ int, err error) {
		err = c.download(ctx, request, version, c.MaxArchive, func(archive [][]byte) error {
			joined = bytes.Join(archive, nil)
			return nil
		})
		return joined, 0, err
	})
}

// Has returns an error unless the repository has the chart in an exact version, and an agent with
// the same credentials can download it.
func (c *Client) Has(ctx context.Context, request Request, version string) error {
	request.byAgents = true
	_, err := once(ctx, c, request.Namespace, request.key("has", request.Chart, version), 0, func(ctx context.Context) (none bool, _ int, err error) {
		source, err := c.source(request)
		if err != nil {
			return none, 0, err
		}
		its, err := source.open(ctx, version)
		if err == nil {
			_ = its.Close()
		}
		return none, 0, err
	})
	return err
}

// source is a repository of one kind.
type source interface {
	// list returns the list of the chart's versions.
	list() *list
	// find returns the entry with this version, or the newest in a range.
	find(ctx context.Context, wanted string) (worker.Entry, error)
	// open begins to download the chart in an exact version.
	open(ctx context.Context, version string) (*download, error)
}

// download downloads and verifies an archive, and hands it over in parts. If it is larger than fits, the error is a
// *worker.TooLargeError.
func (c *Client) download(ctx context.Context, request Request, version string, fits int64, use func(archive [][]byte) error) error {
	source, err := c.source(request)
	if err != nil {
		return err
	}
	its, err := source.open(ctx, version)
	if err != nil {
		return err
	}
	sum, limit := sha256.New(), min(fits, c.MaxArchive)
	if its.size > c.MaxArchive {
		limit = c.MaxArchive
	}
	archive := &spool{budget: c.budget, namespace: request.Namespace}
	defer archive.end()
	err = its.save(io.MultiWriter(archive, sum), limit)
	switch got := hex.EncodeToString(sum.Sum(nil)); {
	case ReasonOf(err) == TooLarge && limit < c.MaxArchive:
		return &worker.TooLargeError{Size: int(max(its.size, limit))}
	case err == nil && its.digest != "" && !strings.EqualFold(strings.TrimPrefix(its.digest, "sha256:"), got):
		return failf(Invalid, "%s is not the file that the repository lists: its digest differs", its.at)
	case err != nil:
		return err
	}
	return use(archive.parts)
}

// once returns an answer of less than maxAge, or asks: it calls a function once for all callers that need its answer at
// the same time; the first may leave before the others. An answer of size 0 is not remembered, and a failure only for its
// namespace, and others try themselves: the request may have lacked memory or workers of its namespace.
func once[T any](ctx context.Context, c *Client, namespace, key string, maxAge time.Duration, ask func(context.Context) (T, int, error)) (none T, err error) {
	if known, isKnown := c.answers.get(key, c.now().Add(-maxAge)).(T); isKnown {
		return known, nil
	}
	own := namespace + " " + key
	for _, flight := range []string{key, own} {
		if failed := c.failed(own); failed != nil {
			return none, failed
		}
		done := c.flights.DoChan(flight, func() (result any, err error) {
			defer func() { // A panic here would end the program.
				if recover() != nil {
					err = failf(Invalid, "the Client cannot read the answer of the repository")
				}
				if err != nil {
					c.fail(namespace, own, err)
				}
			}()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
			defer cancel()
			given, size, err := ask(ctx)
			if err == nil {
				c.answers.put(namespace, key, given, size, c.now())
			}
			return given, err
		})
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case result := <-done:
			if err = result.Err; err == nil {
				return result.Val.(T), nil
			}
		}
	}
	return none, err
}

func (c *Client) fail(namespace, key string, err error) {
	c.answers.put(namespace, key, err, 1<<10+len(err.Error()), c.now())
}

// failed returns a failure after which it is too early to ask again; nil if there is none.
func (c *Client) failed(key string) error {
	err, _ := c.answers.get(key, c.now().Add(-slow)).(error)
	return err
}
