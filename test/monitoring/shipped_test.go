package monitoring

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// shipped returns the objects of a kind in manifests/monitoring. A field that the kind
// does not have is an error: the Prometheus Operator would drop it silently.
func shipped[T any](t *testing.T, kind string) []T {
	t.Helper()
	content, err := manifest()
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

// Prometheus has to find the pods, to be let in with a token that is its own, and to know
// whom it talks to.
func TestServiceMonitors(t *testing.T) {
	var jobs []string
	for _, monitor := range shipped[monitoringv1.ServiceMonitor](t, monitoringv1.ServiceMonitorsKind) {
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		var selected []corev1.Service
		for _, service := range shipped[corev1.Service](t, "Service") {
			if service.Namespace == monitor.Namespace && selector.Matches(labels.Set(service.Labels)) {
				selected = append(selected, service)
			}
		}
		if len(selected) != 1 {
			t.Errorf("ServiceMonitor %s selects %d Services", monitor.Name, len(selected))
			continue
		}
		for _, endpoint := range monitor.Spec.Endpoints {
			if port := selected[0].Spec.Ports[0]; port.Name != endpoint.Port || port.TargetPort.StrVal != "metrics" {
				t.Errorf("ServiceMonitor %s: the Service has no port %q", monitor.Name, endpoint.Port)
			}
			if endpoint.BearerTokenFile != "/var/run/secrets/kubernetes.io/serviceaccount/token" || endpoint.Authorization != nil { //nolint:staticcheck // SA1019: deprecated without a successor that can hold a bound token.
				t.Errorf("ServiceMonitor %s: Prometheus does not come with the token of its pod", monitor.Name)
			}
			verify := endpoint.TLSConfig
			if verify == nil || verify.InsecureSkipVerify != nil || verify.CA.Secret == nil || verify.ServerName == nil {
				t.Errorf("ServiceMonitor %s: the certificate is not verified", monitor.Name)
			} else if !issued(t, verify.CA.Secret.Name, *verify.ServerName) {
				t.Errorf("ServiceMonitor %s: no certificate for %s is in Secret %s", monitor.Name, *verify.ServerName, verify.CA.Secret.Name)
			}
			for _, relabel := range endpoint.RelabelConfigs {
				if relabel.TargetLabel == "job" {
					jobs = append(jobs, *relabel.Replacement)
				}
			}
		}
	}
	slices.Sort(jobs)
	if want := []string{"muster-charts", "muster-installer", "muster-registrar", "muster-syncer", "muster-webhook"}; !slices.Equal(jobs, want) {
		t.Errorf("the jobs are %q, want %q", jobs, want)
	}
}

// issued reports whether a certificate for this name is asked for.
func issued(t *testing.T, secret, name string) bool {
	t.Helper()
	var content []byte
	for _, file := range []string{"../../certs/certificate.yaml", "../../manifests/registrar/certificate.yaml", "../../manifests/installer/certificate.yaml", "../../manifests/helm/certificate.yaml"} {
		read, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		content = append(append(content, read...), "\n---\n"...)
	}
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var certificate struct {
			Spec struct {
				SecretName string   `json:"secretName"`
				DNSNames   []string `json:"dnsNames"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(document, &certificate); err != nil {
			t.Fatal(err)
		}
		if certificate.Spec.SecretName == secret && slices.Contains(certificate.Spec.DNSNames, name) {
			return true
		}
	}
	return false
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
