package monitoring

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const shippedFile = "../../dist/monitoring.yaml"

var queries = parser.NewParser(parser.Options{})

// shipped returns the objects of a kind in dist/monitoring.yaml. A field that the kind
// does not have is an error: the Prometheus Operator would drop it silently.
func shipped[T any](t *testing.T, kind string) []T {
	t.Helper()
	content, err := os.ReadFile(shippedFile)
	if err != nil {
		t.Fatal(err)
	}
	var result []T
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var header struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &header); err != nil {
			t.Fatal(err)
		}
		if header.Kind != kind {
			continue
		}
		var object T
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		result = append(result, object)
	}
	if len(result) == 0 {
		t.Fatalf("no %s ships", kind)
	}
	return result
}

// shippedRules returns all alerts, as Prometheus reads them: that is where expressions
// and templates are parsed.
func shippedRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	var rules []rulefmt.Rule
	for _, object := range shipped[monitoringv1.PrometheusRule](t, monitoringv1.PrometheusRuleKind) {
		file, err := yaml.Marshal(object.Spec)
		if err != nil {
			t.Fatal(err)
		}
		groups, errs := rulefmt.Parse(file, false, model.UTF8Validation, queries, promslog.NewNopLogger())
		for _, err := range errs {
			t.Errorf("PrometheusRule %s: %v", object.Name, err)
		}
		if groups == nil {
			continue
		}
		for _, group := range groups.Groups {
			rules = append(rules, group.Rules...)
		}
	}
	return rules
}

// Prometheus has to find the pods, and to be let in.
func TestPodMonitors(t *testing.T) {
	var jobs []string
	for _, monitor := range shipped[monitoringv1.PodMonitor](t, monitoringv1.PodMonitorsKind) {
		for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
			token := endpoint.Authorization.Credentials
			if i := slices.IndexFunc(shipped[corev1.Secret](t, "Secret"), func(secret corev1.Secret) bool {
				return secret.Namespace == monitor.Namespace && secret.Name == token.Name && token.Key == corev1.ServiceAccountTokenKey
			}); i < 0 {
				t.Errorf("PodMonitor %s: the token %s does not ship", monitor.Name, token)
			}
			for _, relabel := range endpoint.RelabelConfigs {
				if relabel.TargetLabel == "job" {
					jobs = append(jobs, *relabel.Replacement)
				}
			}
		}
	}
	if want := []string{"muster-syncer", "muster-webhook"}; !slices.Equal(jobs, want) {
		t.Errorf("the jobs are %q, want %q", jobs, want)
	}
}

// dashboard is what is read of a Grafana dashboard.
type dashboard struct {
	SchemaVersion int    `json:"schemaVersion"`
	UID           string `json:"uid"`
	Templating    struct {
		List []struct{ Name, Type, Query string }
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int
	Type, Title string
	Description string
	Datasource  datasource
	GridPos     struct{ X, Y, W, H int }
	Targets     []target
}

type target struct {
	RefID        string `json:"refId"`
	Datasource   datasource
	Expr         string
	LegendFormat string
}

type datasource struct{ Type, UID string }

// expression returns the query as Prometheus gets it: with Grafana's interval filled in.
func (t target) expression() string {
	return strings.ReplaceAll(t.Expr, "$__rate_interval", "5m")
}

func shippedDashboard(t *testing.T) dashboard {
	t.Helper()
	for _, object := range shipped[corev1.ConfigMap](t, "ConfigMap") {
		for name, content := range object.Data {
			if object.Labels["grafana_dashboard"] != "1" {
				t.Errorf("ConfigMap %s: Grafana's sidecar does not find it", object.Name)
			}
			var result dashboard
			if err := json.Unmarshal([]byte(content), &result); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return result
		}
	}
	t.Fatal("no dashboard ships")
	return dashboard{}
}
