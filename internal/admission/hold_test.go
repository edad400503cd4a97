package admission

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Requests in both versions of the API are held alike. The message says why a hold comes back.
func TestHoldsInBothVersions(t *testing.T) {
	const imported = `[{"type":"FleetImported","status":"True","reason":"Imported"}]`
	spec := func(version string) string { return `"spec":{"topology":{"version":"` + version + `"}}` }
	metadata := func(hook string) string {
		annotations := map[string]string{stamp.HoldAnnotation: "30m"}
		if hook != "" {
			annotations[stamp.HookAnnotation] = hook
		}
		encoded, _ := json.Marshal(map[string]any{"namespace": "team", "name": "one", "annotations": annotations})
		return `"metadata":` + string(encoded)
	}
	began := hold.Hold{From: "v1", To: "v2", Since: time.Now()}.String()
	for name, test := range map[string]struct {
		old, object string
		held        bool
		warned      bool
	}{
		"v1beta2":      {`{` + metadata("") + `,` + spec("v1") + `,"status":{"conditions":` + imported + `}}`, `{` + metadata("") + `,` + spec("v2") + `}`, true, false},
		"v1beta1":      {`{` + metadata("") + `,` + spec("v1") + `,"status":{"v1beta2":{"conditions":` + imported + `}}}`, `{` + metadata("") + `,` + spec("v2") + `}`, true, false},
		"not in Fleet": {`{` + metadata("") + `,` + spec("v1") + `}`, `{` + metadata("") + `,` + spec("v2") + `}`, false, false},
		"of Rancher": {`{` + metadata("") + `,` + spec("v1") + `,"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"Attached"}]}}`,
			`{` + metadata("") + `,` + spec("v2") + `}`, false, false},
		"without its namespace in Fleet": {`{` + metadata("") + `,` + spec("v1") + `,"status":{"conditions":[{"type":"FleetImported","status":"False","reason":"WaitingForFleet"}]}}`,
			`{` + metadata("") + `,` + spec("v2") + `}`, true, false},
		"versions of EKS": {`{` + metadata("") + `,` + spec("v1") + `,"status":{"conditions":[{"type":"FleetImported","status":"True","reason":"Imported"},{"type":"RollingOut","status":"True","reason":"RollingOut"},{"type":"TopologyReconciled","status":"False","reason":"ClusterUpgrading"}],"controlPlane":{"versions":[{"version":"v1-eks-2d98532","replicas":2}],"upgradePlan":[{"version":"v1"}]}}}`,
			`{` + metadata("") + `,` + spec("v2") + `}`, true, false},
		"moved":             {"", `{` + metadata(began) + `,"spec":{"paused":true,"topology":{"version":"v2"}}}`, true, false},
		"made by a tenant":  {"", `{` + metadata(began) + `,` + spec("v2") + `}`, false, false},
		"moved and changed": {"", `{` + metadata(began) + `,` + spec("v3") + `}`, false, false},
		"dropped":           {`{` + metadata(began) + `,` + spec("v2") + `}`, `{` + metadata("") + `,` + spec("v2") + `}`, true, true},
		"kept":              {`{` + metadata(began) + `,` + spec("v2") + `}`, `{` + metadata(began) + `,` + spec("v2") + `}`, true, false},
	} {
		req := update(test.old, test.object)
		if test.old == "" {
			req = create(test.object)
		}
		patched, response := handle(t, configured(t, "{}"), req)
		var cluster struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal([]byte(patched), &cluster); err != nil {
			t.Fatal(err)
		}
		value := cluster.Metadata.Annotations[stamp.HookAnnotation]
		if its, isHold := hold.Parse(value); isHold != test.held || test.held && its.To != "v2" {
			t.Errorf("%s: %q", name, value)
		}
		if warned := strings.Contains(strings.Join(response.Warnings, ""), stamp.HoldAnnotation); warned != test.warned {
			t.Errorf("%s: %v", name, response.Warnings)
		}
	}
}

func TestHoldsNothing(t *testing.T) {
	for value, test := range map[string]struct {
		version string
		warned  string
	}{"30m": {"v1", ""}, "0": {"", ""}, "soon": {"v1", "is no duration"}, "1h": {"", "has no topology"}} {
		cluster := hold.Cluster{Annotations: map[string]string{stamp.HoldAnnotation: value}, Version: test.version}
		got := holdsNothing(hold.Cluster{}, cluster)
		if (got == "") != (test.warned == "") || !strings.Contains(got, test.warned) {
			t.Errorf("%s: %q", value, got)
		}
		if again := holdsNothing(cluster, cluster); again != "" {
			t.Errorf("%s: it is said again: %q", value, again)
		}
	}
}

func TestChartThatWaitsForTheControlPlane(t *testing.T) {
	for template, warned := range map[string]bool{
		"version: {{ .ControlPlane.spec.version }}": true, "version: {{ .Cluster.spec.topology.version }}": false,
	} {
		proxy := &addonsv1.HelmChartProxy{}
		proxy.Spec.ValuesTemplate = template
		warnings, err := ChartValidator{}.ValidateUpdate(t.Context(), proxy, proxy)
		if got := strings.Contains(strings.Join(warnings, ""), "control plane's version"); got != warned || err != nil {
			t.Errorf("%s: %v, %v", template, warnings, err)
		}
	}
}
