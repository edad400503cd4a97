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

// leftUndone returns what does not happen if we fail to answer a request that must not fail because of us; empty if
// the webhook configuration says failurePolicy Fail. The API server's Ignore covers failed calls only: it treats an
// error in our answer as a refusal.
func leftUndone(path string, operation admissionv1.Operation) string {
	switch {
	case path == StampPath:
		return "this Cluster was not stamped; the syncer does it"
	case path == ClusterPath:
		return "this Cluster was not checked for warnings, nor for a name that is taken in Fleet; the syncer finds such a name"
	case path == ValidateConfigPath && operation == admissionv1.Delete:
		return "the effect of this deletion on the Clusters in Fleet was not checked"
	case path == DefaultChartPath:
		return "no defaults were filled into this HelmChartProxy; the program that deploys it applies them"
	default:
		return ""
	}
}

// answering returns a webhook as the server runs it: it counts the answers, and if the webhook fails open, it lets
// requests pass when the webhook itself fails.
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
			ctrl.LoggerFrom(ctx).Error(fmt.Errorf("panic: %v", cause), "Let a request pass unchecked", "stack", string(debug.Stack()))
			response = letThrough(undone)
		}
	}()
	response = o.Handler.Handle(ctx, req)
	if resultOf(response) == metrics.Error {
		ctrl.LoggerFrom(ctx).Error(errors.New(response.Result.Message), "Let a request pass unchecked")
		return letThrough(undone)
	}
	return response
}

func letThrough(undone string) admission.Response {
	return admission.Allowed("").WithWarnings("Muster failed (its log says why): " + undone)
}

// counted is a webhook that counts its answers. The count of HTTP requests cannot tell them apart: a refusal, or a
// failure to decide, has the status 200 as well.
type counted struct {
	admission.Handler
	path string
}

// count returns a webhook that counts its answers under its path.
func count(path string, handler admission.Handler) admission.Handler {
	metrics.Admits(path)
	return &counted{handler, path}
}

// Handle answers one admission request.
func (c *counted) Handle(ctx context.Context, req admission.Request) admission.Response {
	result := metrics.Error // This value remains if the handler panics.
	defer func() { metrics.Admitted(c.path, result) }()
	response := c.Handler.Handle(ctx, req)
	result = resultOf(response)
	return response
}

// resultOf distinguishes a refusal from a failure: the webhook could not read or decide the request, or the request
// waited for too long.
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
