package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
)

// checkConfig sends JSON through the webhook, as a create and as an update of the object to itself.
func checkConfig(t *testing.T, raw []byte) {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{}
	if json.Unmarshal(raw, config) != nil {
		return
	}
	validator := ConfigValidator{}
	_, refusal := validator.ValidateCreate(t.Context(), config)
	if refusal != nil && (!apierrors.IsInvalid(refusal) || refusal.Error() == "") {
		t.Errorf("refused with %v", refusal)
	}
	if _, err := settings.From(config); err != nil && refusal == nil {
		t.Errorf("accepted, but not usable: %v", err)
	}
	if _, err := validator.ValidateUpdate(t.Context(), config, config.DeepCopy()); err != nil {
		t.Errorf("an update that changes nothing is refused: %v", err)
	}
}

// An old problem may stay; an update must not introduce one.
func TestValidateUpdate(t *testing.T) {
	const wrong = `install: {version: 0.11.0}`
	for name, test := range map[string]struct {
		old, spec string
		want      []string // the fields that the webhook refuses
	}{
		"good to good":                {old: `{}`, spec: `cluster: {enabled: false}`},
		"good to wrong":               {old: `{}`, spec: wrong, want: []string{"spec.install.version"}},
		"wrong to good":               {old: wrong, spec: `{}`},
		"wrong as before":             {old: wrong, spec: wrong},
		"wrong as before, other good": {old: wrong, spec: `{install: {version: 0.11.0}, cluster: {agentEnvVars: [{name: A}]}}`},
		"wrong as before, more wrong": {old: wrong, spec: `{install: {version: 0.11.0}, cluster: {agentEnvVars: [{name: "A="}]}}`, want: []string{"spec.cluster.agentEnvVars[0].name"}},
		"wrong with another value":    {old: wrong, spec: `install: {version: 0.11.1}`, want: []string{"spec.install.version"}},
		"wrong in another field":      {old: `cluster: {agentEnvVars: [{name: "A="}, {name: B}]}`, spec: `cluster: {agentEnvVars: [{name: B}, {name: "A="}]}`, want: []string{"spec.cluster.agentEnvVars[1].name"}},
		"one more of the same kind":   {old: `cluster: {agentEnvVars: [{name: "A="}]}`, spec: `cluster: {agentEnvVars: [{name: "A="}, {name: "B="}]}`, want: []string{"spec.cluster.agentEnvVars[1].name"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ConfigValidator{}.ValidateUpdate(t.Context(), configOf(t, test.old), configOf(t, test.spec))
			if diff := cmp.Diff(test.want, refusedFields(t, err)); diff != "" {
				t.Errorf("refused fields (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateCreateAndDelete(t *testing.T) {
	warned, err := ConfigValidator{}.ValidateCreate(t.Context(), configOf(t, `{cluster: {agentEnvVars: [{name: "A="}], agentTolerations: [{}]}, install: {followLatest: false}}`))
	if diff := cmp.Diff([]string{"spec.cluster.agentTolerations[0].operator", "spec.cluster.agentEnvVars[0].name"}, refusedFields(t, err)); diff != "" {
		t.Errorf("refused fields (-want +got):\n%s", diff)
	}
	if len(warned) == 0 || !strings.HasPrefix(warned[0], "spec.install.followLatest: false") {
		t.Errorf("warnings beside a refusal: %v", warned)
	}
	if warned, err := (ConfigValidator{}).ValidateDelete(t.Context(), configOf(t, `cluster: {agentNamespace: A}`)); err != nil || warned != nil {
		t.Errorf("ValidateDelete = %v, %v", warned, err)
	}
}

// refusedFields returns the fields that an error names. The error must be an Invalid of the API server for this
// object.
func refusedFields(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || !apierrors.IsInvalid(err) {
		t.Fatalf("%T: %v", err, err)
	}
	details := status.Status().Details
	want := metav1.StatusDetails{Group: "addons.cluster.x-k8s.io", Kind: "FleetAddonConfig", Name: "fleet-addon-config", Causes: details.Causes}
	if diff := cmp.Diff(want, *details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	var fields []string
	for _, cause := range details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}

// The answer over the wire carries every problem, and the warnings.
func TestConfigValidatorOverTheWire(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	webhook := admission.WithValidator(scheme, ConfigValidator{})
	const review = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","kind":{"group":"addons.cluster.x-k8s.io","version":"v1alpha1","kind":"FleetAddonConfig"},` +
		`"resource":{"group":"addons.cluster.x-k8s.io","version":"v1alpha1","resource":"fleetaddonconfigs"},"name":"fleet-addon-config","operation":"CREATE","userInfo":{},` +
		`"object":{"apiVersion":"addons.cluster.x-k8s.io/v1alpha1","kind":"FleetAddonConfig","metadata":{"name":"fleet-addon-config"},"spec":%s}}}`

	refused := post(t, webhook, fmt.Sprintf(review, `{"install":{"version":"0.11.0"},"cluster":{"agentTolerations":[{}]}}`)).Response
	if refused.Allowed || refused.Result.Reason != metav1.StatusReasonInvalid || refused.Result.Code != 422 {
		t.Errorf("the answer is %+v", refused)
	}
	for _, part := range []string{`spec.cluster.agentTolerations[0].operator: Invalid value`, `spec.install.version: Invalid value: "0.11.0": the oldest supported Fleet is 0.12.0`} {
		if !strings.Contains(refused.Result.Message, part) {
			t.Errorf("%q does not contain %q", refused.Result.Message, part)
		}
	}
	accepted := post(t, webhook, fmt.Sprintf(review, `{"install":{"version":"0.16.2","repository":"http://charts.example.com"}}`)).Response
	if !accepted.Allowed || len(accepted.Warnings) != 1 {
		t.Errorf("the answer is %+v", accepted)
	}
}

func inAll(values int) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"?"}, values)},
	}}
}

// The answer to an object with any number of mistakes lists a bounded number of them. Without
// a bound the answer to a HelmChartProxy of 98 KiB took three minutes.
func TestManyErrors(t *testing.T) {
	var variables []corev1.EnvVar
	for i := range 10_000 {
		variables = append(variables, corev1.EnvVar{Name: fmt.Sprintf("?%d", i)})
	}
	for name, values := range map[string]int{"as many as a selector may have": bounds.MaxValues, "far more": 25_000} {
		config := &addonsv1.FleetAddonConfig{}
		config.Spec.Cluster = &addonsv1.ClusterConfig{Selector: inAll(values), NamespaceSelector: inAll(values), AgentEnvVars: variables}
		proxy := &addonsv1.HelmChartProxy{}
		proxy.Spec = addonsv1.HelmChartProxySpec{ClusterSelector: *inAll(values), NamespaceSelector: inAll(values)}

		_, ofConfig := ConfigValidator{}.ValidateCreate(t.Context(), config)
		_, ofProxy := ChartValidator{}.ValidateCreate(t.Context(), proxy)
		for kind, err := range map[string]error{"FleetAddonConfig": ofConfig, "HelmChartProxy": ofProxy} {
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Fatalf("%s, %s: %v", name, kind, err)
			}
			causes := status.Status().Details.Causes
			if len(causes) == 0 || len(causes) > bounds.MaxErrors+1 {
				t.Errorf("%s, %s: %d causes", name, kind, len(causes))
			}
			if length := len(status.Status().Message); length > 64<<10 {
				t.Errorf("%s, %s: a message of %d bytes", name, kind, length)
			}
		}
		for kind, errs := range map[string]field.ErrorList{"FleetAddonConfig": validateConfig(config)[:2], "HelmChartProxy": plan.Validate(proxy)} {
			if values > bounds.MaxValues && !slices.ContainsFunc(errs, func(err *field.Error) bool { return strings.Contains(err.Error(), "must have at most 1024 items") }) {
				t.Errorf("%s, %s: %v", name, kind, errs)
			}
		}
	}
}
