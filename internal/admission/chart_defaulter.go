package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// ChartDefaulter is the mutating webhook for HelmChartProxies: it fills in what
// cluster-api-addon-provider-helm does. What it does not know it leaves alone.
type ChartDefaulter struct{}

var _ admission.Handler = ChartDefaulter{}

// Handle answers one admission request.
func (ChartDefaulter) Handle(_ context.Context, req admission.Request) admission.Response {
	proxy := &addonsv1.HelmChartProxy{}
	if err := json.Unmarshal(req.Object.Raw, proxy); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding HelmChartProxy: %w", err))
	}
	before := proxy.DeepCopy()
	plan.Default(proxy)
	var raw map[string]any
	if err := json.Unmarshal(req.Object.Raw, &raw); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding HelmChartProxy: %w", err))
	}
	spec := within(raw, "spec")
	if proxy.Spec.ReleaseNamespace != before.Spec.ReleaseNamespace {
		spec["namespace"] = proxy.Spec.ReleaseNamespace
	}
	if proxy.Spec.Options.Wait != before.Spec.Options.Wait {
		within(spec, "options")["wait"] = true
	}
	if before.Spec.Options.Timeout == nil {
		within(spec, "options")["timeout"] = proxy.Spec.Options.Timeout.Duration.String()
	}
	changed, err := json.Marshal(raw)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, changed)
}

// within returns an object in another, made if it is not there.
func within(parent map[string]any, key string) map[string]any {
	child, ok := parent[key].(map[string]any)
	if !ok {
		child = map[string]any{}
		parent[key] = child
	}
	return child
}
