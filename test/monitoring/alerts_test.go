package monitoring

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"
)

// scenario holds the scraped series, and the alerts that should fire.
type scenario struct {
	Name string `json:"name"`
	// Series in the notation of promtool's tests, one value each 30 seconds.
	Series map[string]string `json:"series"`
	// At is the time at which the test reads the alerts.
	At model.Duration `json:"at"`
	// Firing are the labels of each alert that fires then. No other alert fires until then.
	Firing map[string][]map[string]string `json:"firing"`
}

func shippedRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	rules, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// Each alert fires when it should, with the labels that it should, and not when it should not.
func TestAlerts(t *testing.T) {
	content, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var scenarios []scenario
	if err := yaml.UnmarshalStrict(content, &scenarios); err != nil {
		t.Fatal(err)
	}
	rules := shippedRules(t)
	fired := map[string]bool{}
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) {
			stored := storageOf(t, scenario.Series)
			for _, rule := range rules {
				want := scenario.Firing[rule.Alert]
				delete(scenario.Firing, rule.Alert)
				alerts, ever := firing(t, rule, stored, time.Duration(scenario.At))
				if want == nil && ever {
					t.Errorf("%s fires in between", rule.Alert)
				}
				var got []map[string]string
				for _, alert := range alerts {
					fired[rule.Alert] = true
					got = append(got, alert.labels)
					for name, text := range alert.annotations {
						if strings.TrimSpace(text) == "" || strings.Contains(text, "<no value>") || strings.Contains(text, ": .") {
							t.Errorf("%s: the %s is %q", rule.Alert, name, text)
						}
					}
					t.Logf("%s: %s", rule.Alert, alert.annotations["summary"])
				}
				byText := func(a, b map[string]string) int {
					return cmp.Compare(model.LabelsToSignature(a), model.LabelsToSignature(b))
				}
				slices.SortFunc(got, byText)
				slices.SortFunc(want, byText)
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", rule.Alert, diff)
				}
			}
			for name := range scenario.Firing {
				t.Errorf("there is no alert %s", name)
			}
		})
	}
	for _, rule := range rules {
		if !fired[rule.Alert] {
			t.Errorf("%s fires in no scenario", rule.Alert)
		}
	}
}

var headings = regexp.MustCompile(`(?m)^### (Muster\w+)$`)

// Each alert says what is wrong, how severe it is, and where the documentation says what to do.
func TestAlertsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, alerts []string
	for _, match := range headings.FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, match[1])
	}
	for _, rule := range shippedRules(t) {
		alerts = append(alerts, rule.Alert)
		if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", rule.Alert, severity)
		}
		// Alertmanager's templates and the Grafana of kube-prometheus-stack link this annotation, which must be absolute.
		if want := "https://github.com/muster-fleet/muster/blob/main/docs/runbook.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
			t.Errorf("%s: the runbook is %q, want %q", rule.Alert, rule.Annotations["runbook_url"], want)
		}
		if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", rule.Alert)
		}
	}
	slices.Sort(alerts)
	slices.Sort(documented)
	if diff := gocmp.Diff(alerts, documented); diff != "" {
		t.Errorf("alerts, and headings of docs/runbook.md (-alerts +headings):\n%s", diff)
	}
}
