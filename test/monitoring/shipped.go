package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var queries = parser.NewParser(parser.Options{})

// manifest is what manifests/monitoring gives.
var manifest = sync.OnceValues(func() ([]byte, error) {
	cmd := exec.Command("go", "tool", "-modfile=tools/go.mod", "kustomize", "build", "manifests/monitoring")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	return cmd.Output()
})

// Shipped returns the objects of a kind in manifests/monitoring. A field that the kind does
// not have is an error: the Prometheus Operator would drop it silently.
func Shipped[T any](kind string) ([]T, error) {
	content, err := manifest()
	if err != nil {
		return nil, err
	}
	var result []T
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var header metav1.TypeMeta
		if err := yaml.Unmarshal(document, &header); err != nil {
			return nil, err
		}
		if header.Kind != kind {
			continue
		}
		var object T
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		result = append(result, object)
	}
	if len(result) == 0 {
		return nil, fmt.Errorf("no %s ships", kind)
	}
	return result, nil
}

// Rules returns all alerts, as Prometheus reads them: that is where expressions and
// templates are parsed.
func Rules() ([]rulefmt.Rule, error) {
	objects, err := Shipped[monitoringv1.PrometheusRule](monitoringv1.PrometheusRuleKind)
	if err != nil {
		return nil, err
	}
	var rules []rulefmt.Rule
	for _, object := range objects {
		file, err := yaml.Marshal(object.Spec)
		if err != nil {
			return nil, err
		}
		groups, errs := rulefmt.Parse(file, false, model.UTF8Validation, queries, promslog.NewNopLogger())
		if err := errors.Join(errs...); err != nil {
			return nil, fmt.Errorf("PrometheusRule %s: %w", object.Name, err)
		}
		for _, group := range groups.Groups {
			rules = append(rules, group.Rules...)
		}
	}
	return rules, nil
}

// Dashboard is what the tests read of a Grafana dashboard.
type Dashboard struct {
	SchemaVersion int
	UID           string
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		Datasource  Datasource
		GridPos     struct{ X, Y, W, H int }
		Targets     []Target
	}
}

// Target is a query of a panel.
type Target struct {
	RefID, Expr, LegendFormat string
	Datasource                Datasource
}

// Datasource is where Grafana sends a query.
type Datasource struct{ Type, UID string }

// expression returns the query as Prometheus gets it: with Grafana's interval filled in.
func (t Target) expression() string { return strings.ReplaceAll(t.Expr, "$__rate_interval", "5m") }

// ShippedDashboard returns the dashboard.
func ShippedDashboard() (*Dashboard, error) {
	objects, err := Shipped[corev1.ConfigMap]("ConfigMap")
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		for _, content := range object.Data {
			if object.Labels["grafana_dashboard"] != "1" {
				return nil, fmt.Errorf("ConfigMap %s: Grafana's sidecar does not find it", object.Name)
			}
			result := &Dashboard{}
			return result, json.Unmarshal([]byte(content), result)
		}
	}
	return nil, errors.New("no dashboard ships")
}
