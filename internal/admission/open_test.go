package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/muster-fleet/muster/internal/stamp"
)

// panicking is a cache and an inventory. Every call panics.
type panicking struct{ client.Reader }

func (panicking) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	panic("get")
}

func (panicking) fleetCluster(context.Context, types.NamespacedName) (found *object, known bool, err error) {
	panic("fleetCluster")
}

func (panicking) hasCluster(context.Context, types.NamespacedName, types.UID) (bool, error) {
	panic("hasCluster")
}

func (panicking) claims(context.Context, string) ([]stamp.FleetClaim, map[string]string, error) {
	panic("claims")
}
func (panicking) pinnedTo(context.Context, string, string) ([]object, error) { panic("pinnedTo") }

func (panicking) hasClass(context.Context, types.NamespacedName) (found, known bool, err error) {
	panic("hasClass")
}

func (panicking) clusters(context.Context) (all []object, known bool, err error) { panic("clusters") }

// ask sends a request to a webhook as the API server does, and returns the HTTP status and the answer.
func ask(t *testing.T, webhook http.Handler, req admission.Request) (*httptest.ResponseRecorder, *admissionv1.AdmissionResponse) {
	t.Helper()
	raw := func(object runtime.RawExtension) json.RawMessage {
		if len(object.Raw) == 0 {
			return nil
		}
		return object.Raw // It may be nonsense.
	}
	posted := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(marshal(t, map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
			"uid": req.UID, "operation": req.Operation, "namespace": req.Namespace, "object": raw(req.Object), "oldObject": raw(req.OldObject),
		},
	})))
	posted.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	webhook.ServeHTTP(recorder, posted)
	var answer admissionv1.AdmissionReview
	if recorder.Code == http.StatusOK {
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || answer.Response == nil {
			t.Fatalf("%s: %v", recorder.Body, err)
		}
	}
	return recorder, answer.Response
}

// An error of ours is an HTTP status, so that the API server applies the failurePolicy. The message says what happened.
func TestOpenMeansOpen(t *testing.T) {
	for name, test := range map[string]struct {
		failure admission.HandlerFunc
		message string
	}{
		"an error": {func(context.Context, admission.Request) admission.Response {
			return admission.Errored(500, errors.New("broken"))
		}, "broken"},
		"unreadable": {func(context.Context, admission.Request) admission.Response {
			return admission.Errored(400, errors.New("no JSON"))
		}, "no JSON"},
		"a panic": {func(context.Context, admission.Request) admission.Response { panic("broken") }, "panic: broken"},
		"a nil": {func(_ context.Context, req admission.Request) admission.Response {
			_ = *req.DryRun
			return admission.Allowed("")
		}, "panic: "},
	} {
		t.Run(name, func(t *testing.T) {
			webhook := newBudget().limit("/failing", test.failure)
			before := admissionCounts(t, "/failing")
			answer, _ := ask(t, webhook, create("{}"))
			if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), test.message) {
				t.Errorf("%d: %s", answer.Code, answer.Body)
			}
			before["error"]++
			if diff := cmp.Diff(before, admissionCounts(t, "/failing")); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
	unreadable := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("nonsense"))
	recorder := httptest.NewRecorder()
	newBudget().limit("/failing", allowing).ServeHTTP(recorder, unreadable)
	if recorder.Code != http.StatusInternalServerError {
		t.Errorf("an unreadable review: %d %s", recorder.Code, recorder.Body)
	}
}

// If everything that the webhooks read is broken, they refuse nothing: the API server decides.
func TestOpenWithEverythingBroken(t *testing.T) {
	const (
		cluster = `{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"standard","namespace":"classes"}}}}`
		config  = `{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"}}`
	)
	deletion := create("")
	deletion.Operation, deletion.OldObject.Raw = admissionv1.Delete, []byte(config)
	requests := map[string][]admission.Request{
		StampPath:          {create(cluster), create(`[]`), update(`[]`, cluster), create(`{"metadata":{"name":"prod","labels":{"a":1}}}`)},
		ClusterPath:        {create(cluster), create(`[]`), update(`[]`, cluster), create(`{"metadata":{"name":"prod","labels":{"a":1}}}`)},
		ValidateConfigPath: {deletion, func() admission.Request { r := deletion; r.OldObject.Raw = []byte(`[]`); return r }()},
		ClassAccessPath:    {create(cluster), create(`[]`)},
	}
	for path, webhook := range servedWith(t, panicking{}, panicking{}) {
		for _, req := range requests[path] {
			if answer, _ := ask(t, webhook, req); answer.Code != http.StatusInternalServerError {
				t.Errorf("%s: %s %s: %d %s", path, req.Operation, req.Object.Raw, answer.Code, answer.Body)
			}
		}
	}
}

// An intended refusal stays a refusal, and keeps its warnings.
func TestOpenStillRefuses(t *testing.T) {
	taken := &others{fleetClusters: []object{made("prod", nil)}}
	webhooks := servedWith(t, &cached{}, taken)
	_, response := ask(t, webhooks[ClusterPath], create(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"none"}}}}`))
	if response.Allowed || response.Result.Code != http.StatusForbidden || !strings.Contains(response.Result.Message, "someone else") || len(response.Warnings) != 1 {
		t.Errorf("the answer is %+v", response)
	}
	_, response = ask(t, webhooks[StampPath], create(`{"metadata":{"name":"prod"}}`))
	if !response.Allowed || len(response.Warnings) > 0 || ptr.Deref(response.PatchType, "") != admissionv1.PatchTypeJSONPatch {
		t.Errorf("the answer is %+v", response)
	}
}

func TestCounted(t *testing.T) {
	const path = "/counted"
	var response *admission.Response // nil to panic
	webhook := newBudget().limit(path, admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return *response
	}))
	counts := func() map[string]float64 { return admissionCounts(t, path) }
	if diff := cmp.Diff(map[string]float64{"allowed": 0, "denied": 0, "error": 0}, counts()); diff != "" {
		t.Errorf("before the first request (-want +got):\n%s", diff)
	}
	for name, test := range map[string]struct {
		response *admission.Response
		result   string
	}{
		"allowed":                         {new(admission.Allowed("")), "allowed"},
		"allowed with a patch":            {new(admission.Patched("")), "allowed"},
		"denied":                          {new(admission.Denied("no")), "denied"},
		"denied by a validator":           {new(admission.Errored(http.StatusUnprocessableEntity, errors.New("invalid"))), "denied"},
		"denied without a reason":         {&admission.Response{}, "denied"},
		"a request that is no JSON":       {new(admission.Errored(http.StatusBadRequest, errors.New("no JSON"))), "error"},
		"a webhook that has not answered": {new(admission.Errored(http.StatusInternalServerError, errors.New("timeout"))), "error"},
		"a panic":                         {nil, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			before := counts()
			before[test.result]++
			response = test.response
			ask(t, webhook, create("{}"))
			if diff := cmp.Diff(before, counts()); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
}

// admissionCounts returns the counted answers of a webhook, by result.
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
