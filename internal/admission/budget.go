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
	// smallRequest is the size in bytes up to which a request never waits. Nearly all Clusters
	// are smaller, before and after an update together.
	smallRequest = 16 << 10
	// mediumRequest is the size in bytes up to which requests share mediumRequests bytes; larger
	// ones share largeRequests. While a request of N bytes is read and decided, it takes up to
	// 9 N bytes of memory.
	mediumRequest  = 256 << 10
	mediumRequests = 8 << 20
	largeRequests  = 8 << 20
	// largestRequest is what controller-runtime reads of a request.
	largestRequest = 7 << 20
	// headOfReview is how many bytes the part of an AdmissionReview before its objects may have.
	headOfReview = 16 << 10

	// defaultTimeout is how long a request takes at most that does not say it, longestTimeout
	// what the API server accepts as timeoutSeconds.
	defaultTimeout, longestTimeout = 10 * time.Second, 30 * time.Second
	// answerTime is left of the timeout to a request that waited in vain: an answer that comes
	// too late refuses what fails closed without a reason.
	answerTime = 500 * time.Millisecond
)

// errBusy is the answer to a request that waited in vain.
var errBusy = errors.New("too many large objects are being checked at once; try again later; an object smaller than 8 KiB never waits")

// budget limits the bytes of the requests that are read and decided at once. Anyone who may
// create objects in one namespace chooses their size and number; with enough large ones at once
// they would stop the webhook, and then what fails closed is refused to everyone. So small
// requests always pass, and others wait for a share. Medium ones have a budget of their own, so
// that a few of the largest do not delay them.
type budget struct{ medium, large *semaphore.Weighted }

func newBudget() *budget {
	return &budget{medium: semaphore.NewWeighted(mediumRequests), large: semaphore.NewWeighted(largeRequests)}
}

// shareFor returns what a request of that many bytes needs a share of; nil for nothing.
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

// limit returns a webhook whose larger requests wait for their share before their body is read. Its requests end when the API server stops waiting for them.
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
		// Whoever sends a body slowly does not hold a share for longer.
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // Every server that is used here can.
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

// withoutObjects returns a request with what an answer needs of its AdmissionReview. The API
// server writes that before the objects.
func withoutObjects(r *http.Request) *http.Request {
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	decoder, depth, field := json.NewDecoder(io.LimitReader(r.Body, headOfReview)), 0, ""
	for review.Request.Operation == "" {
		token, err := decoder.Token()
		if err != nil {
			break // The answer without a UID is an error to the API server.
		}
		text, isText := token.(string)
		switch delim, _ := token.(json.Delim); {
		case delim == '{' || delim == '[':
			depth, field = depth+1, ""
		case delim == '}' || delim == ']':
			depth, field = depth-1, ""
		case depth != 2: // Not a field of the request itself.
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
	content, _ := json.Marshal(review) // Strings can always be written.
	short.Body = io.NopCloser(bytes.NewReader(content))
	return short
}
