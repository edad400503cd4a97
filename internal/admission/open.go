package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	admissionv1 "k8s.io/api/admission/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/metrics"
)

// leftUndone returns what does not happen when we fail to answer a request that must not fail
// because of us; empty where the webhook configuration says failurePolicy Fail. The API
// server's Ignore covers failed calls only: it takes an error in our answer for a refusal.
func leftUndone(path string, operation admissionv1.Operation) string {
	switch {
	case path == StampPath:
		return "this Cluster was not stamped; the syncer does it"
	case path == ClusterPath:
		return "this Cluster was not checked for warnings, nor for a name that is taken in Fleet; the syncer finds such a name"
	case path == ValidateConfigPath && operation == admissionv1.Delete:
		return "it was not checked what this deletion means for the Clusters in Fleet"
	case path == DefaultChartPath:
		return "no defaults were filled into this HelmChartProxy; what carries it out knows them"
	default:
		return ""
	}
}

// answering returns a webhook as it is served: its answers are counted, and where it fails
// open, its own failures refuse nothing.
func answering(path string, handler admission.Handler) admission.Handler {
	return &open{count(path, handler), path}
}

// open is a webhook that fails open for the requests that leftUndone names.
type open struct {
	admission.Handler
	path string
}

// Handle answers one admission request.
func (o *open) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	undone := leftUndone(o.path, req.Operation)
	if undone == "" {
		return o.Handler.Handle(ctx, req)
	}
	defer func() {
		if cause := recover(); cause != nil {
			ctrl.LoggerFrom(ctx).Error(fmt.Errorf("panic: %v", cause), "Let a request through unanswered", "stack", string(debug.Stack()))
			response = letThrough(undone)
		}
	}()
	response = o.Handler.Handle(ctx, req)
	if resultOf(response) == metrics.Error {
		ctrl.LoggerFrom(ctx).Error(errors.New(response.Result.Message), "Let a request through unanswered")
		return letThrough(undone)
	}
	return response
}

func letThrough(undone string) admission.Response {
	return admission.Allowed("").WithWarnings("Muster failed, and its log says why: " + undone)
}

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

// resultOf distinguishes a refusal from a failure: a request that could not be read or decided, or
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
