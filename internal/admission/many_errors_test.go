package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

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
