package monitoring

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// What Grafana would not complain of but show as an empty or unreadable panel.
func TestDashboard(t *testing.T) {
	shown, err := ShippedDashboard()
	if err != nil {
		t.Fatal(err)
	}
	if shown.SchemaVersion < 36 || shown.UID == "" {
		t.Errorf("schema version %d, UID %q", shown.SchemaVersion, shown.UID)
	}
	if list := shown.Templating.List; len(list) != 1 || list[0].Name != "datasource" || list[0].Type != "datasource" || list[0].Query != "prometheus" {
		t.Errorf("the variables are %+v", list)
	}
	source := Datasource{"prometheus", "${datasource}"}
	for i, panel := range shown.Panels {
		for _, other := range shown.Panels[:i] {
			a, b := panel.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H || panel.ID == other.ID {
				t.Errorf("%s lies on %s, or has its ID", panel.Title, other.Title)
			}
		}
		if panel.Type == "row" {
			continue
		}
		if panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 || panel.Datasource != source {
			t.Errorf("%q: no title, description or query, or not of the data source that is chosen", panel.Title)
		}
		for _, query := range panel.Targets {
			if query.Datasource != source || query.RefID == "" {
				t.Errorf("%s: query %q is not of the data source that is chosen", panel.Title, query.RefID)
			}
			checkLegend(t, panel.Title, query)
		}
	}
	if used, err := Used(); err != nil || len(used) < 100 {
		t.Errorf("alerts and dashboard ask for %d things only: %v", len(used), err)
	}
}

var legendLabel = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

// checkLegend demands that what a legend names survives the aggregation.
func checkLegend(t *testing.T, title string, query Target) {
	t.Helper()
	expression, err := queries.ParseExpr(query.expression())
	if err != nil {
		t.Errorf("%s: %s: %v", title, query.Expr, err)
		return
	}
	var kept []string
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if aggregation, ok := node.(*parser.AggregateExpr); ok {
			kept = append(kept, aggregation.Grouping...)
		}
		return nil
	})
	for _, label := range legendLabel.FindAllStringSubmatch(query.LegendFormat, -1) {
		if !slices.Contains(kept, label[1]) {
			t.Errorf("%s: the legend names %s, but the query keeps %q", title, label[1], kept)
		}
	}
}

// Prometheus has to find the pods, to be let in with a token that is its own, and to know
// whom it talks to.
func TestServiceMonitors(t *testing.T) {
	monitors, err := Shipped[monitoringv1.ServiceMonitor](monitoringv1.ServiceMonitorsKind)
	if err != nil {
		t.Fatal(err)
	}
	services, err := Shipped[corev1.Service]("Service")
	if err != nil {
		t.Fatal(err)
	}
	var jobs []string
	for _, monitor := range monitors {
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		selected := slices.DeleteFunc(slices.Clone(services), func(service corev1.Service) bool {
			return service.Namespace != monitor.Namespace || !selector.Matches(labels.Set(service.Labels))
		})
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
	if want := []string{"muster-helm", "muster-installer", "muster-registrar", "muster-syncer", "muster-webhook"}; !slices.Equal(jobs, want) {
		t.Errorf("the jobs are %q, want %q", jobs, want)
	}
}

// issued reports whether a Certificate requests this name.
func issued(t *testing.T, secret, name string) bool {
	t.Helper()
	for _, dir := range []string{"certs", "manifests/registrar", "manifests/installer", "manifests/helm"} {
		content, err := os.ReadFile("../../" + dir + "/certificate.yaml")
		if err != nil {
			t.Fatal(err)
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
	}
	return false
}
