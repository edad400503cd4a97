package admission

import (
	"sigs.k8s.io/json"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// checkChart finds what the webhooks would say about a HelmChartProxy. What its template
// gives for each Cluster, `syncer render` shows.
func (c *checker) checkChart(about Finding, raw []byte) {
	proxy := &addonsv1.HelmChartProxy{}
	unknown, err := json.UnmarshalStrict(raw, proxy)
	if err != nil {
		c.find(about, SeverityError, "", err.Error())
		return
	}
	c.findUnknown(about, unknown)
	warnings := plan.Warnings(proxy)
	plan.Default(proxy)
	for _, err := range plan.Validate(proxy) {
		c.find(about, SeverityError, err.Field, err.ErrorBody())
	}
	for _, warning := range warnings {
		c.find(about, SeverityWarning, "", warning)
	}
}
