package admission

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func TestCounted(t *testing.T) {
	const path = "/counted"
	var response *admission.Response // nil to panic
	webhook := &admission.Webhook{Handler: count(path, admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return *response
	}))}
	counts := func() map[string]float64 { return admissionCounts(t, path) }
	if diff := cmp.Diff(map[string]float64{"allowed": 0, "denied": 0, "error": 0}, counts()); diff != "" {
		t.Errorf("before the first request (-want +got):\n%s", diff)
	}
	for name, test := range map[string]struct {
		response *admission.Response
		result   string
	}{
		"allowed":                   {new(admission.Allowed("")), "allowed"},
		"allowed with a patch":      {new(admission.Patched("")), "allowed"},
		"denied":                    {new(admission.Denied("no")), "denied"},
		"denied by a validator":     {new(admission.Errored(http.StatusUnprocessableEntity, errors.New("invalid"))), "denied"},
		"denied without a reason":   {&admission.Response{}, "denied"},
		"a request that is no JSON": {new(admission.Errored(http.StatusBadRequest, errors.New("no JSON"))), "error"},
		"no answer of another":      {new(admission.Errored(http.StatusInternalServerError, errors.New("timeout"))), "error"},
		"a panic":                   {nil, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			before := counts()
			before[test.result]++
			response = test.response
			webhook.Handle(t.Context(), admission.Request{})
			if diff := cmp.Diff(before, counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
}

// admissionCounts returns the answers of a webhook that were counted, by result.
func admissionCounts(t *testing.T, path string) map[string]float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "muster_admission_total" && metric.GetLabel()[1].GetValue() == path {
				result[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return result
}
