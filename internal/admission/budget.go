package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	// smallRequest is the size in bytes up to which a request never waits. Nearly all requests about Clusters are
	// smaller, even updates, which hold the old object and the new one.
	smallRequest = 16 << 10
	// mediumRequest is the size in bytes up to which requests share mediumRequests bytes. Larger requests share
	// largeRequests bytes. A request of N bytes takes up to 9 N bytes of memory while the webhook processes it.
	mediumRequest  = 256 << 10
	mediumRequests = 8 << 20
	largeRequests  = 8 << 20
	// largestRequest is the maximum number of bytes that controller-runtime reads of a request.
	largestRequest = 7 << 20
	// headOfReview is the maximum number of bytes that we read of an AdmissionReview to find the fields before its
	// objects.
	headOfReview = 16 << 10

	// defaultTimeout applies to requests that name no timeout. longestTimeout is the largest timeoutSeconds that
	// the API server accepts.
	defaultTimeout, longestTimeout = 10 * time.Second, 30 * time.Second
	// answerTime is the part of the timeout that is reserved for the answer to a request that waited in vain. If a
	// fail-closed webhook answers too late, the API server refuses the request without showing our reason.
	answerTime = 500 * time.Millisecond
)

// errBusy is the answer to a request that waited in vain.
var errBusy = errors.New("too many large objects are being checked at once; try again later; an object smaller than 8 KiB never waits")

// budget limits the bytes of all requests that the webhook reads and decides at once. A user who may create objects
// in a single namespace chooses their size and number. Enough large ones at once would stop the webhook, and the
// API server would then refuse every request that needs a fail-closed webhook. So small requests always pass, and
// others wait for a share. Medium requests have a budget of their own, so that a few of the largest do not delay
// them.
type budget struct{ medium, large *semaphore.Weighted }

func newBudget() *budget {
	return &budget{medium: semaphore.NewWeighted(mediumRequests), large: semaphore.NewWeighted(largeRequests)}
}

// shareFor returns the semaphore that a request of this size in bytes must acquire a share of, or nil if it need
// not wait.
func (b *budget) shareFor(size int64) *semaphore.Weighted {
	switch {
	case size <= smallRequest:
		return nil
	case size <= mediumRequest:
		return b.medium
	default:
		return b.large
	}
}

// limit returns a webhook whose larger requests wait for their share before it reads their body. A request ends
// when the API server stops waiting for it.
func (b *budget) limit(path string, handler admission.Handler) http.Handler {
	webhook := &admission.Webhook{Handler: answering(path, handler)}
	busy := &admission.Webhook{Handler: answering(path, admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return admission.Errored(http.StatusTooManyRequests, errBusy)
	}))}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline := time.Now().Add(timeoutOf(r))
		ctx, cancel := context.WithDeadline(r.Context(), deadline)
		defer cancel()
		r = r.WithContext(ctx)
		// The deadline also ends a client that sends its body slowly, which would otherwise hold a share for
		// longer.
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // Every server we use supports it.
		size := r.ContentLength
		if size < 0 || size > largestRequest {
			size = largestRequest
		}
		if share := b.shareFor(size); share != nil {
			waiting, cancel := context.WithDeadline(ctx, deadline.Add(-answerTime))
			defer cancel()
			if share.Acquire(waiting, size) != nil {
				busy.ServeHTTP(w, withoutObjects(r))
				return
			}
			defer share.Release(size)
		}
		webhook.ServeHTTP(w, r)
	})
}

// timeoutOf returns how long the API server waits for the answer to a request.
func timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 {
		return defaultTimeout
	}
	return min(timeout, longestTimeout)
}

// withoutObjects returns a request with only the fields of its AdmissionReview that an answer needs. The API server
// writes these fields before the objects.
func withoutObjects(r *http.Request) *http.Request {
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	decoder, depth, field := json.NewDecoder(io.LimitReader(r.Body, headOfReview)), 0, ""
	for review.Request.Operation == "" {
		token, err := decoder.Token()
		if err != nil {
			break // The API server treats an answer without a UID as an error.
		}
		text, isText := token.(string)
		switch delim, _ := token.(json.Delim); {
		case delim == '{' || delim == '[':
			depth, field = depth+1, ""
		case delim == '}' || delim == ']':
			depth, field = depth-1, ""
		case depth != 2: // This is not a field of the request itself.
		case field == "" && isText:
			field = text
		default:
			switch field {
			case "uid":
				review.Request.UID = types.UID(text)
			case "operation":
				review.Request.Operation = admissionv1.Operation(text)
			}
			field = ""
		}
	}
	short := r.Clone(r.Context())
	content, _ := json.Marshal(review) // Strings can always be encoded.
	short.Body = io.NopCloser(bytes.NewReader(content))
	return short
}
