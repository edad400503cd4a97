package admission

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
)

// panicking is a cache and an inventory. Every call panics.
type panicking struct{ client.Reader }

func (panicking) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	panic("get")
}

func (panicking) fleetCluster(context.Context, types.NamespacedName) (*object, error) {
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

// The webhooks fail open exactly where the shipped configurations say Ignore, entry by entry.
func TestOpenIsWhatTheManifestsSay(t *testing.T) {
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	for file, into := range map[string]any{"mutating.yaml": &mutating, "validating.yaml": &validating} {
		content, err := os.ReadFile("../../manifests/webhook/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(content, into); err != nil {
			t.Fatal(err)
		}
	}
	entries := 0
	check := func(name string, config admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.FailurePolicyType) {
		entries++
		for _, rule := range rules {
			for _, operation := range rule.Operations {
				isOpen := leftUndone(*config.Service.Path, admissionv1.Operation(operation)) != ""
				if want := *policy == admissionregistrationv1.Ignore; isOpen != want {
					t.Errorf("%s, %s: fails open: %t, want %t", name, operation, isOpen, want)
				}
			}
		}
	}
	for _, entry := range mutating.Webhooks {
		check(entry.Name, entry.ClientConfig, entry.Rules, entry.FailurePolicy)
	}
	for _, entry := range validating.Webhooks {
		check(entry.Name, entry.ClientConfig, entry.Rules, entry.FailurePolicy)
	}
	if entries != 5 {
		t.Errorf("%d entries", entries)
	}
}

func TestOpenMeansOpen(t *testing.T) {
	failures := map[string]admission.HandlerFunc{
		"an error": func(context.Context, admission.Request) admission.Response {
			return admission.Errored(500, errors.New("broken"))
		},
		"unreadable": func(context.Context, admission.Request) admission.Response {
			return admission.Errored(400, errors.New("no JSON"))
		},
		"a panic": func(context.Context, admission.Request) admission.Response { panic("broken") },
		"a nil": func(_ context.Context, req admission.Request) admission.Response {
			_ = *req.DryRun
			return admission.Allowed("")
		},
	}
	for _, test := range []struct {
		path      string
		operation admissionv1.Operation
		warning   string // empty if it fails closed
	}{
		{StampPath, admissionv1.Create, "was not stamped; the syncer does it"},
		{StampPath, admissionv1.Update, "was not stamped; the syncer does it"},
		{ClusterPath, admissionv1.Create, "this Cluster was not checked for warnings, nor for a name that is taken"},
		{ClusterPath, admissionv1.Update, "this Cluster was not checked for warnings, nor for a name that is taken"},
		{ValidateConfigPath, admissionv1.Delete, "the effect of this deletion"},
		{ValidateConfigPath, admissionv1.Create, ""},
		{ValidateConfigPath, admissionv1.Update, ""},
		{ClassAccessPath, admissionv1.Create, ""},
		{ClassAccessPath, admissionv1.Update, ""},
	} {
		for name, failure := range failures {
			t.Run(test.path+" "+string(test.operation)+" "+name, func(t *testing.T) {
				webhook := &admission.Webhook{Handler: answering(test.path, failure)}
				req := admission.Request{}
				req.UID, req.Operation = "1", test.operation
				before := admissionCounts(t, test.path)
				response := webhook.Handle(t.Context(), req)
				if response.Allowed != (test.warning != "") || response.UID != "1" {
					t.Errorf("the answer is %+v", response.AdmissionResponse)
				}
				if test.warning != "" && (len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], test.warning)) {
					t.Errorf("warnings: %q", response.Warnings)
				}
				before["error"]++
				if diff := cmp.Diff(before, admissionCounts(t, test.path)); diff != "" {
					t.Errorf("counts (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// If everything that the webhooks read is broken, the fail-open ones let requests through, and the others refuse
// them.
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
			response := webhook.Handle(t.Context(), req)
			if want := leftUndone(path, req.Operation) != ""; response.Allowed != want || want && len(response.Warnings) == 0 {
				t.Errorf("%s: %s %s: %+v", path, req.Operation, req.Object.Raw, response.AdmissionResponse)
			}
		}
	}
}

// An intended refusal stays a refusal, and keeps its warnings.
func TestOpenStillRefuses(t *testing.T) {
	taken := &others{fleetClusters: []object{made("prod", nil)}}
	webhooks := servedWith(t, &cached{}, taken)
	response := webhooks[ClusterPath].Handle(t.Context(), create(`{"metadata":{"name":"prod"},"spec":{"topology":{"classRef":{"name":"none"}}}}`))
	if response.Allowed || response.Result.Code != http.StatusForbidden || !strings.Contains(response.Result.Message, "somebody else") || len(response.Warnings) != 1 {
		t.Errorf("the answer is %+v", response.AdmissionResponse)
	}
	response = webhooks[StampPath].Handle(t.Context(), create(`{"metadata":{"name":"prod"}}`))
	if !response.Allowed || len(response.Warnings) > 0 || ptr.Deref(response.PatchType, "") != admissionv1.PatchTypeJSONPatch {
		t.Errorf("the answer is %+v", response.AdmissionResponse)
	}
}

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
			webhook.Handle(t.Context(), admission.Request{})
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
