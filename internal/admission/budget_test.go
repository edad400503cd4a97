package admission

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// reviewOf returns the review of the creation of an object; the review has size bytes in all.
func reviewOf(t *testing.T, size int) string {
	t.Helper()
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "some-uid", Name: "one", Operation: admissionv1.Create}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	filled := func(fill int) string {
		review.Request.Object = runtime.RawExtension{Raw: fmt.Appendf(nil, `{"metadata":{"name":"one","annotations":{"a":%q}}}`, strings.Repeat("x", fill))}
		text, err := json.Marshal(review)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return filled(size - len(filled(0)))
}

// exhausted returns a budget with nothing left until the test ends or calls give.
func exhausted(t *testing.T) (b *budget, give func()) {
	t.Helper()
	b = newBudget()
	for share, size := range map[*semaphore.Weighted]int64{b.medium: mediumRequests, b.large: largeRequests} {
		if err := share.Acquire(t.Context(), size); err != nil {
			t.Fatal(err)
		}
	}
	return b, func() { b.medium.Release(mediumRequests); b.large.Release(largeRequests) }
}

var allowing = admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })

// The API server sends all its requests over one connection. Large waiting requests fill it as far as the server
// allows, and small ones still pass.
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	b, give := exhausted(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config = newHTTPServer(t.Context(), b.limit(ClassAccessPath, allowing))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	call := func(ctx context.Context, size int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/?timeout=30s", strings.NewReader(reviewOf(t, size)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		response, err := server.Client().Do(req)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // It is read.
		if response.ProtoMajor != 2 {
			return fmt.Errorf("the protocol is %s", response.Proto)
		}
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(response.Body).Decode(&review); err != nil {
			return err
		}
		if review.Response == nil || !review.Response.Allowed || review.Response.UID != "some-uid" {
			return fmt.Errorf("%d bytes: %+v", size, review.Response)
		}
		return nil
	}
	if err := call(t.Context(), 1<<10); err != nil { // This call opens the connection that the requests below share.
		t.Fatal(err)
	}
	var large errgroup.Group
	for range 10 {
		large.Go(func() error { return call(t.Context(), 2_900_000) })
		large.Go(func() error { return call(t.Context(), mediumRequest) })
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := call(ctx, smallRequest); err != nil {
			t.Errorf("a small request: %v", err)
		}
		cancel()
	}
	give()
	if err := large.Wait(); err != nil {
		t.Errorf("a large request: %v", err)
	}
}

// A request that waits in vain gets the answer for a failure of the webhook: a fail-open webhook lets it through,
// and a fail-closed one asks the client to try again.
func TestLargeRequestsThatWaitInVain(t *testing.T) {
	b, _ := exhausted(t)
	called := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		t.Error("the webhook was called")
		return admission.Allowed("")
	})
	sizes := map[string]int{StampPath: mediumRequest, ClassAccessPath: smallRequest + 1}
	for path, opens := range map[string]bool{StampPath: true, ClusterPath: true, DefaultChartPath: true, ClassAccessPath: false, ValidateConfigPath: false, ValidateChartPath: false} {
		size := cmp.Or(sizes[path], mediumRequest+1)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout=400ms", strings.NewReader(reviewOf(t, size)))
		req.Header.Set("Content-Type", "application/json")
		answer := answerTo(t, b.limit(path, called), req).Response
		if answer.UID != "some-uid" || answer.Allowed != opens {
			t.Errorf("%s: %+v", path, answer)
		}
		if opens && len(answer.Warnings) != 1 {
			t.Errorf("%s: warnings %q", path, answer.Warnings)
		}
		if !opens && (answer.Result.Code != http.StatusTooManyRequests || !strings.Contains(answer.Result.Message, "try again later")) {
			t.Errorf("%s: %+v", path, answer.Result)
		}
	}
}

// A request ends when the API server stops waiting, and gives its share back.
func TestRequestsEnd(t *testing.T) {
	b := newBudget()
	for timeout, most := range map[string]time.Duration{"3s": 3 * time.Second, "": defaultTimeout, "-1s": defaultTimeout, "24h": longestTimeout} {
		handler := admission.HandlerFunc(func(ctx context.Context, _ admission.Request) admission.Response {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > most {
				t.Errorf("timeout %q: the deadline is %v", timeout, deadline)
			}
			return admission.Allowed("")
		})
		for _, size := range []int{mediumRequest, 1 << 20} {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout="+timeout, strings.NewReader(reviewOf(t, size)))
			req.Header.Set("Content-Type", "application/json")
			if answer := answerTo(t, b.limit(StampPath, handler), req).Response; !answer.Allowed {
				t.Errorf("%+v", answer)
			}
		}
	}
	if !b.medium.TryAcquire(mediumRequests) || !b.large.TryAcquire(largeRequests) {
		t.Error("a share was not given back")
	}
}

// The answer contains nothing that the head of the review lacks.
func TestWithoutObjects(t *testing.T) {
	for body, want := range map[string]string{
		reviewOf(t, 1<<20): `{"uid":"some-uid","kind":{"group":"","version":"","kind":""},"resource":{"group":"","version":"","resource":""},"operation":"CREATE","userInfo":{},"object":null,"oldObject":null,"options":null}`,
		`{"request":{"object":{"uid":"forged","operation":"DELETE"},"uid":"u","operation":"UPDATE"}}`: `{"uid":"u","kind":{"group":"","version":"","kind":""},"resource":{"group":"","version":"","resource":""},"operation":"UPDATE","userInfo":{},"object":null,"oldObject":null,"options":null}`,
		`nonsense`: `{"uid":"","kind":{"group":"","version":"","kind":""},"resource":{"group":"","version":"","resource":""},"operation":"","userInfo":{},"object":null,"oldObject":null,"options":null}`,
	} {
		var review struct{ Request json.RawMessage }
		short := withoutObjects(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body)))
		if err := json.NewDecoder(short.Body).Decode(&review); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(review.Request, []byte(want)) {
			t.Errorf("%.60s: %s", body, review.Request)
		}
	}
}
