package admission

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
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
func (a answer) Write(content []byte) (int, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(content, &review); err != nil {
		return 0, err
	}
	result := metrics.Denied
	switch its := review.Response; {
	case its.Allowed:
		result = metrics.Allowed
	case its.Result == nil:
	case its.Result.Code == http.StatusBadRequest, its.Result.Code == http.StatusRequestEntityTooLarge,
		its.Result.Code == http.StatusTooManyRequests, its.Result.Code >= http.StatusInternalServerError:
		a.fail(int(its.Result.Code), its.Result.Message)
		return len(content), nil
	}
	metrics.Admitted(a.path, result)
	return a.ResponseWriter.Write(content)
}

// fail sends an error of ours: the webhook could not read or decide the request, or the request waited for too long. The
// API server shows the message of a status 500 only, and tries again only after a 429.
func (a answer) fail(code int, message string) {
	metrics.Admitted(a.path, metrics.Error)
	if code == http.StatusTooManyRequests {
		a.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
	} else {
		code = http.StatusInternalServerError
		ctrl.Log.Error(errors.New(message), "Failed to answer an admission request", "path", a.path)
	}
	http.Error(a.ResponseWriter, message, code)
}
