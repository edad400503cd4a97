package admission

import (
	"context"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/metrics"
)

// counted is a webhook whose answers are counted. The count of HTTP requests does not tell
// them apart: a refusal, or a failure to decide, has the status 200 as well.
type counted struct {
	admission.Handler
	path string
}

// count counts the answers of a webhook under the path it is called at.
func count(path string, handler admission.Handler) admission.Handler {
	metrics.Admits(path)
	return &counted{handler, path}
}

// Handle answers one admission request.
func (c *counted) Handle(ctx context.Context, req admission.Request) admission.Response {
	result := metrics.Error // What a panic leaves.
	defer func() { metrics.Admitted(c.path, result) }()
	response := c.Handler.Handle(ctx, req)
	result = resultOf(response)
	return response
}

// resultOf tells a refusal from a failure: a request that could not be read or decided, or
// had to wait for too long.
func resultOf(response admission.Response) string {
	switch {
	case response.Allowed:
		return metrics.Allowed
	case response.Result == nil:
		return metrics.Denied
	case response.Result.Code == http.StatusBadRequest, response.Result.Code == http.StatusTooManyRequests, response.Result.Code >= http.StatusInternalServerError:
		return metrics.Error
	default:
		return metrics.Denied
	}
}
