package admission

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/muster-fleet/muster/internal/metrics"
)

// retrySeconds is when the API server tries again after a 429, as long as the timeout of the entry allows.
const retrySeconds = 1

// answer sends the answer to an admission request, and counts it. It sends an error of ours, such as after a panic, as
// an HTTP status. The API server then applies the failurePolicy of the entry; an error within an answer counts as a
// refusal whatever the policy says.
type answer struct {
	http.ResponseWriter
	path string
}

// Write sends the AdmissionReview that controller-runtime writes.
func (a *answer) Write(content []byte) (int, error) {
	var review struct {
		Response struct {
			Allowed bool           `json:"allowed"`
			Status  *metav1.Status `json:"status"`
		} `json:"response"`
	}
	if err := json.Unmarshal(content, &review); err != nil {
		return 0, err
	}
	response := admissionv1.AdmissionResponse{Allowed: review.Response.Allowed, Result: review.Response.Status}
	if result := resultOf(response); result != metrics.Error {
		metrics.Admitted(a.path, result)
		return a.ResponseWriter.Write(content)
	}
	a.fail(int(response.Result.Code), response.Result.Message)
	return len(content), nil
}

// fail sends an error of ours. The API server shows the message of a status 500 only, and tries again only after a
// 429.
func (a *answer) fail(code int, message string) {
	metrics.Admitted(a.path, metrics.Error)
	if code == http.StatusTooManyRequests {
		a.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
	} else {
		code = http.StatusInternalServerError
		ctrl.Log.Error(errors.New(message), "Failed to answer an admission request", "path", a.path)
	}
	http.Error(a.ResponseWriter, message, code)
}

// resultOf distinguishes a refusal from a failure: the webhook could not read or decide the request, or the request
// waited for too long.
func resultOf(response admissionv1.AdmissionResponse) string {
	switch {
	case response.Allowed:
		return metrics.Allowed
	case response.Result == nil:
		return metrics.Denied
	}
	switch code := response.Result.Code; {
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusTooManyRequests,
		code >= http.StatusInternalServerError:
		return metrics.Error
	default:
		return metrics.Denied
	}
}
