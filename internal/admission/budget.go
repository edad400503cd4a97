package admission

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/metrics"
)

const (
	// smallRequest is the size in bytes up to which a request never waits. Nearly all requests about Clusters are
	// smaller, even updates, which hold the old object and the new one.
	smallRequest = 16 << 10
	// mostRequested is how many bytes larger requests have together, and largeRequested how many of them those above
	// largeRequest have. A request of N bytes takes up to 9 N bytes of memory while the webhook processes it.
	mostRequested  = 10 << 20
	largeRequested = 7 << 20
	largeRequest   = 256 << 10
	// perNamespace is how many bytes the requests about a namespace have, unless it is a single request.
	perNamespace = mostRequested / 2
	// largestRequest is the maximum number of bytes that controller-runtime reads of a request.
	largestRequest = 7 << 20
	// headOfReview is how many bytes we read of an AdmissionReview before it waits, to find the namespace.
	headOfReview = 16 << 10
	// patience is how long a request waits for its share, and a readiness check for an answer: nothing says how long either
	// may take. The API server then tries again, because answer says so, and so does the kubelet.
	patience = time.Second

	// defaultTimeout applies to requests that name no timeout. longestTimeout is the largest timeoutSeconds that
	// the API server accepts.
	defaultTimeout, longestTimeout = 10 * time.Second, 30 * time.Second
)

var (
	// errBusy is the answer to a request that waited in vain.
	errBusy = errors.New("too many large objects are being checked at once; try again later")
	// errHead is the answer to a request that does not say at its head which namespace it is about. It waits for no
	// share: with a name of 16 KiB, which no object can have, a user could take a second share.
	errHead = errors.New("the name of the object is too long")
)

// budget limits the bytes of all requests that the webhook reads and decides at once. A user who may create objects
// in a single namespace chooses their size and number. Enough large ones at once would stop the webhook, and the
// API server would then refuse every request that needs a fail-closed webhook. So small requests always pass, and
// others wait for a share. No namespace can have all shares, and the largest requests cannot either.
type budget struct{ all, large *fair.Shares }

func newBudget() *budget {
	return &budget{all: fair.New(mostRequested, perNamespace), large: fair.New(largeRequested, perNamespace)}
}

// limit returns a webhook whose larger requests wait for their share before it reads their body. A request ends
// when the API server stops waiting for it.
func (b *budget) limit(path string, handler admission.Handler) http.Handler {
	metrics.Admits(path)
	webhook := &admission.Webhook{Handler: handler}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline := time.Now().Add(timeoutOf(r))
		ctx, cancel := context.WithDeadline(r.Context(), deadline)
		defer cancel()
		// The deadline also ends a client that sends its body slowly, which would otherwise hold a share for
		// longer.
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // Every server we use supports it.
		its := answer{w, path}
		give, err := b.take(ctx, r)
		defer give()
		switch {
		case errors.Is(err, errHead):
			its.fail(http.StatusBadRequest, err.Error())
		case err != nil:
			its.fail(http.StatusTooManyRequests, errBusy.Error())
		default:
			webhook.ServeHTTP(its, r.WithContext(ctx))
		}
	})
}

// take waits for the share of a request. The caller has to call give afterwards, also after an error.
func (b *budget) take(ctx context.Context, r *http.Request) (give func(), err error) {
	give = func() {}
	size := r.ContentLength
	if size < 0 || size > largestRequest {
		size = largestRequest
	}
	if size <= smallRequest {
		return give, nil
	}
	namespace, err := namespaceOf(r)
	if err != nil {
		return give, err
	}
	shares := []*fair.Shares{b.all}
	if size > largeRequest { // This share comes first: a request that waits for it keeps nothing from smaller ones.
		shares = []*fair.Shares{b.large, b.all}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, its := range shares {
		if err := its.Take(ctx, namespace, size); err != nil {
			return give, err
		}
		earlier := give
		give = func() { its.Release(namespace, size); earlier() }
	}
	return give, nil
}

// namespaceKey matches the namespace of an AdmissionReview, or what follows it: an object that is in no namespace has
// none. The API server writes both before everything that contains a map; within a text, quotation marks are escaped.
var namespaceKey = regexp.MustCompile(`"namespace":"([^"\\]*)"|"operation":"`)

// namespaceOf returns the namespace that a request is about, empty for none, and leaves the request as it is.
func namespaceOf(r *http.Request) (string, error) {
	body := bufio.NewReaderSize(r.Body, headOfReview)
	head, _ := body.Peek(headOfReview) // Whoever reads the body next sees the error.
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	found := namespaceKey.FindSubmatch(head)
	if found == nil {
		return "", errHead
	}
	return string(found[1]), nil
}

// timeoutOf returns how long the API server waits for the answer to a request.
func timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 {
		return defaultTimeout
	}
	return min(timeout, longestTimeout)
}
