package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// reviewOf returns the review of the creation of an object in a namespace; the review has size bytes in all.
func reviewOf(t *testing.T, namespace string, size int) string {
	t.Helper()
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "some-uid", Name: "one", Namespace: namespace, Operation: admissionv1.Create}}
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
	for _, namespace := range []string{"a", "b"} {
		if err := b.all.Take(t.Context(), namespace, perNamespace); err != nil {
			t.Fatal(err)
		}
	}
	return b, func() { b.all.Release("a", perNamespace); b.all.Release("b", perNamespace) }
}

var allowing = admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })

// The API server sends all its requests over one connection. Large waiting requests fill it as far as the server
// allows, and small ones still pass.
func TestSmallRequestsPassLargeOnes(t *testing.T) {
	b, give := exhausted(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config = newHTTPServer(b.limit(ClassAccessPath, allowing))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	call := func(ctx context.Context, size int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/?timeout=30s", strings.NewReader(reviewOf(t, "team", size)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		response, err := server.Client().Do(req)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // It is read.
		if response.StatusCode == http.StatusTooManyRequests && size > smallRequest {
			return nil
		}
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
		large.Go(func() error { return call(t.Context(), largeRequest) })
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

// asked sends a request of this many bytes about a namespace to a webhook, and returns the answer.
func asked(t *testing.T, webhook http.Handler, namespace string, size int) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout=5s", strings.NewReader(reviewOf(t, namespace, size)))
	req.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	webhook.ServeHTTP(recorder, req)
	return recorder
}

// A request waits at most a second for its share. The answer then makes the API server try again, and let the request
// pass if the entry fails open.
func TestLargeRequestsThatWaitInVain(t *testing.T) {
	b, give := exhausted(t)
	called := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		t.Error("the webhook was called")
		return admission.Allowed("")
	})
	webhook := b.limit("/busy", called)
	before := admissionCounts(t, "/busy")
	for _, size := range []int{smallRequest + 1, largeRequest, largeRequest + 1, largestRequest + 1} {
		begin := time.Now()
		answer := asked(t, webhook, "team", size)
		if answer.Code != http.StatusTooManyRequests || answer.Header().Get("Retry-After") != "1" || !strings.Contains(answer.Body.String(), "try again later") {
			t.Errorf("%d bytes: %d %v %s", size, answer.Code, answer.Header(), answer.Body)
		}
		if waited := time.Since(begin); waited < patience {
			t.Errorf("%d bytes: refused after %s", size, waited)
		}
	}
	before["error"] += 4
	if diff := cmp.Diff(before, admissionCounts(t, "/busy")); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	give()
	if err := b.all.Take(t.Context(), "team", mostRequested); err != nil {
		t.Error("a share was not given back")
	}
}

// No namespace keeps others waiting, whatever it sends and however often, and neither do the largest requests.
func TestNamespacesShareTheBudget(t *testing.T) {
	for name, sizes := range map[string][]int{
		"the largest": {largestRequest - 1}, "large": {2 << 20}, "medium": {largeRequest - 1}, "no length": {0},
		"all": {largestRequest - 1, 2 << 20, largeRequest - 1, smallRequest + 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, reached, end := newBudget(), make(chan struct{}, 1000), make(chan struct{})
			holding := b.limit(StampPath, admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
				reached <- struct{}{}
				<-end
				return admission.Allowed("")
			}))
			var attack errgroup.Group
			bodies := map[int]string{}
			for _, size := range sizes {
				bodies[size] = reviewOf(t, "greedy", max(1000, size))
			}
			for i := range 80 {
				size := sizes[i%len(sizes)]
				attack.Go(func() error {
					req := httptest.NewRequest(http.MethodPost, "/?timeout=10s", strings.NewReader(bodies[size]))
					req.Header.Set("Content-Type", "application/json")
					if size == 0 {
						req.ContentLength = -1
					}
					holding.ServeHTTP(httptest.NewRecorder(), req)
					return nil
				})
			}
			<-reached // One of them has its share.
			for range 10 {
				if answer := asked(t, b.limit(StampPath, allowing), "other", 60<<10); answer.Code != http.StatusOK {
					t.Errorf("another namespace: %d %s", answer.Code, answer.Body)
				}
			}
			close(end)
			_ = attack.Wait()
		})
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
		for _, size := range []int{largeRequest, 1 << 20, largestRequest} {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?timeout="+timeout, strings.NewReader(reviewOf(t, "team", size-1)))
			req.Header.Set("Content-Type", "application/json")
			if answer := answerTo(t, b.limit(StampPath, handler), req).Response; !answer.Allowed {
				t.Errorf("%+v", answer)
			}
		}
	}
	if b.all.Take(t.Context(), "", mostRequested) != nil || b.large.Take(t.Context(), "", largeRequested) != nil {
		t.Error("a share was not given back")
	}
}

// The namespace is the one that the API server writes, whatever the object and its name contain.
func TestNamespaceOf(t *testing.T) {
	const forged = `"},"namespace":"victim","x":"`
	named := func(length int, namespace string) string {
		return marshaled(t, &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{Name: strings.Repeat("n", length), Namespace: namespace}})
	}
	for want, bodies := range map[string][]string{
		"team": {reviewOf(t, "team", 1<<20), named(headOfReview/2, "team"), marshaled(t, &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
			Name: forged, Namespace: "team", UserInfo: authenticationv1.UserInfo{Username: forged}, Object: runtime.RawExtension{Raw: []byte(`{"namespace":"victim"}`)},
		}})},
		"":              {reviewOf(t, "", 1<<20), named(10, "")},
		errHead.Error(): {named(headOfReview, "team"), named(headOfReview, ""), "nonsense", ""},
	} {
		for _, body := range bodies {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
			got, err := namespaceOf(req)
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%.100s: %q, want %q", body, got, want)
			}
			if read, err := io.ReadAll(req.Body); err != nil || string(read) != body {
				t.Errorf("%.100s: the body is not whole: %v", body, err)
			}
		}
	}
}

// With a name that pushes the namespace out of the request's head, a user gets no second half of the budget.
func TestLongNamesTakeNoShare(t *testing.T) {
	b, end := newBudget(), make(chan struct{})
	if err := b.all.Take(t.Context(), "greedy", perNamespace); err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 1)
	holding := b.limit(StampPath, admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		reached <- struct{}{}
		<-end
		return admission.Allowed("")
	}))
	body := marshaled(t, &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "some-uid", Name: strings.Repeat("n", perNamespace-1000), Namespace: "greedy", Operation: admissionv1.Create}})
	answered := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		req := httptest.NewRequest(http.MethodPost, "/?timeout=10s", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		holding.ServeHTTP(recorder, req)
		answered <- recorder
	}()
	select {
	case <-reached:
		t.Error("it has a share")
	case answer := <-answered:
		if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), "too long") {
			t.Errorf("%d %s", answer.Code, answer.Body)
		}
	}
	if answer := asked(t, b.limit(StampPath, allowing), "other", 60<<10); answer.Code != http.StatusOK {
		t.Errorf("another namespace: %d %s", answer.Code, answer.Body)
	}
	close(end)
}

func marshaled(t *testing.T, value any) string { return string(marshal(t, value)) }

// A client that does not send its body in time loses its share.
func TestBodiesEnd(t *testing.T) {
	b := newBudget()
	server := httptest.NewServer(b.limit(StampPath, allowing))
	defer server.Close()
	body, _ := io.Pipe() // Nothing is ever written.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/?timeout=300ms", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = largestRequest
	if response, err := server.Client().Do(req); err == nil {
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("answered")
		}
	}
	if b.all.Take(t.Context(), "", mostRequested) != nil {
		t.Error("a share was not given back")
	}
}
