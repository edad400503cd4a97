package monitoring

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// scenario is what Prometheus scraped, and what is to fire of it.
type scenario struct {
	Name string `json:"name"`
	// Series in the notation of promtool's tests, one value each 30 seconds.
	Series map[string]string `json:"series"`
	// At is when the alerts are looked at, like 15m.
	At string `json:"at"`
	// Firing are the labels of each alert that fires.
	Firing map[string][]map[string]string `json:"firing"`
	// Silent are alerts that have not fired at any time until then.
	Silent []string `json:"silent"`
}

// Each alert fires when it should, with the labels that it should, and not when it
// should not; each has at least one scenario for both.
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
	fired, silent := map[string]bool{}, map[string]bool{}
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) {
			at, err := model.ParseDuration(scenario.At)
			if err != nil {
				t.Fatal(err)
			}
			stored := &series{}
			for name, values := range scenario.Series {
				if err := stored.add(name, values); err != nil {
					t.Fatal(err)
				}
			}
			known := map[string]bool{}
			for _, rule := range rules {
				known[rule.Alert] = true
				want := scenario.Firing[rule.Alert]
				if want == nil && !slices.Contains(scenario.Silent, rule.Alert) {
					continue
				}
				var got []map[string]string
				alerts, ever := firing(t, rule, stored, time.Duration(at))
				if want == nil && ever {
					t.Errorf("%s fires in between", rule.Alert)
				}
				for _, alert := range alerts {
					got = append(got, alert.labels)
					for name, text := range alert.annotations {
						if strings.TrimSpace(text) == "" || strings.Contains(text, "<no value>") || strings.Contains(text, ": .") {
							t.Errorf("%s: the %s is %q", rule.Alert, name, text)
						}
					}
					t.Logf("%s: %s", rule.Alert, alert.annotations["summary"])
				}
				slices.SortFunc(got, func(a, b map[string]string) int { return strings.Compare(text(a), text(b)) })
				slices.SortFunc(want, func(a, b map[string]string) int { return strings.Compare(text(a), text(b)) })
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", rule.Alert, diff)
				}
				fired[rule.Alert] = fired[rule.Alert] || len(got) > 0
				silent[rule.Alert] = silent[rule.Alert] || !ever
			}
			for name := range scenario.Firing {
				if !known[name] {
					t.Errorf("there is no alert %s", name)
				}
			}
			for _, name := range scenario.Silent {
				if !known[name] {
					t.Errorf("there is no alert %s", name)
				}
			}
		})
	}
	for _, rule := range rules {
		if !fired[rule.Alert] || !silent[rule.Alert] {
			t.Errorf("%s: fires in a scenario: %t; is silent in one: %t", rule.Alert, fired[rule.Alert], silent[rule.Alert])
		}
	}
}

func text(labels map[string]string) string {
	content, err := yaml.Marshal(labels)
	if err != nil {
		panic(err)
	}
	return string(content)
}

var headings = regexp.MustCompile(`(?m)^### (\w+)$`)

// Whoever is woken finds in the same words what is wrong, how bad it is, and where it
// says what to do.
func TestAlertsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, alerts []string
	for _, match := range headings.FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(match[1], "Muster") {
			documented = append(documented, match[1])
		}
	}
	for _, rule := range shippedRules(t) {
		alerts = append(alerts, rule.Alert)
		if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", rule.Alert, severity)
		}
		if want := "docs/operations.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook"] != want {
			t.Errorf("%s: the runbook is %q, want %q", rule.Alert, rule.Annotations["runbook"], want)
		}
		for _, name := range []string{"summary", "description"} {
			if rule.Annotations[name] == "" {
				t.Errorf("%s has no %s", rule.Alert, name)
			}
		}
	}
	slices.Sort(alerts)
	slices.Sort(documented)
	if diff := cmp.Diff(alerts, documented); diff != "" {
		t.Errorf("alerts, and headings of docs/operations.md (-alerts +headings):\n%s", diff)
	}
}
