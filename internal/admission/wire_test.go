package admission

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

// post sends an AdmissionReview to a webhook and returns the answer.
func post(t *testing.T, webhook http.Handler, review string) *admissionv1.AdmissionReview {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(review))
	req.Header.Set("Content-Type", "application/json")
	return answerTo(t, webhook, req)
}

// answerTo returns a webhook's answer to a request.
func answerTo(t *testing.T, webhook http.Handler, req *http.Request) *admissionv1.AdmissionReview {
	t.Helper()
	recorder := httptest.NewRecorder()
	webhook.ServeHTTP(recorder, req)
	if recorder.Code != http.StatusOK {
		t.Fatalf("%d: %s", recorder.Code, recorder.Body)
	}
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil {
		t.Fatal(err)
	}
	if answer.Response == nil {
		t.Fatalf("no response in %s", recorder.Body)
	}
	return answer
}
