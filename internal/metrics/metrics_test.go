package metrics

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// gathered returns the values of one metric by labels, as the metrics endpoint serves them.
func gathered(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(family *dto.MetricFamily) bool { return family.GetName() == name })
	if i < 0 {
		return nil
	}
	result := map[string]float64{}
	for _, metric := range families[i].GetMetric() {
		labels := ""
		for _, label := range metric.GetLabel() {
			labels += label.GetName() + "=" + label.GetValue() + " "
		}
		switch {
		case metric.GetGauge() != nil:
			result[labels] = metric.GetGauge().GetValue()
		case metric.GetCounter() != nil:
			result[labels] = metric.GetCounter().GetValue()
		default:
			result[labels+"count"] = float64(metric.GetHistogram().GetSampleCount())
			result[labels+"sum"] = metric.GetHistogram().GetSampleSum()
		}
	}
	return result
}

// Dashboards depend on these names and labels.
func TestMetrics(t *testing.T) {
	Applied("Cluster", "created", nil)
	Applied("Cluster", "created", nil)
	Applied("Cluster", "updated", errors.New("no"))
	Imported(1500 * time.Millisecond)
	Condition("ConfigValid", true)
	Condition("APIsAvailable", true)
	Condition("APIsAvailable", false)
	Build("v1.2.3", "abc", "go1.26.0")
	Admits("/stamp-cluster")
	Admitted("/stamp-cluster", Denied)

	for name, want := range map[string]map[string]float64{
		"muster_apply_total":            {"kind=Cluster result=created ": 2, "kind=Cluster result=error ": 1},
		"muster_import_latency_seconds": {"count": 1, "sum": 1.5},
		"muster_config_condition":       {"condition=APIsAvailable ": 0, "condition=ConfigValid ": 1},
		"muster_build_info":             {"goversion=go1.26.0 revision=abc version=v1.2.3 ": 1},
		"muster_admission_total": {
			"result=allowed webhook=/stamp-cluster ": 0, "result=denied webhook=/stamp-cluster ": 1, "result=error webhook=/stamp-cluster ": 0,
		},
	} {
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// An unreadable certificate has no expiry, rather than one in 1970.
func TestCertificate(t *testing.T) {
	const name = "muster_webhook_certificate_expiry_timestamp_seconds"
	var problem error
	for certificate, read := range map[string]func() (*x509.Certificate, error){
		"mounted": func() (*x509.Certificate, error) { return &x509.Certificate{NotAfter: time.Unix(1700000000, 0)}, nil },
		"served": func() (*x509.Certificate, error) {
			return &x509.Certificate{NotAfter: time.Unix(1600000000, 0)}, problem
		},
	} {
		if err := Certificate(certificate, read); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]float64{"certificate=mounted ": 1.7e9, "certificate=served ": 1.6e9}, gathered(t, name)); diff != "" {
		t.Errorf("both are read (-want +got):\n%s", diff)
	}
	problem = errors.New("nobody answers")
	if diff := cmp.Diff(map[string]float64{"certificate=mounted ": 1.7e9}, gathered(t, name)); diff != "" {
		t.Errorf("one is not read (-want +got):\n%s", diff)
	}
}

// Every reason with which a condition can be False has a series, at first 0; any other reason only
// while current.
func TestFleetCondition(t *testing.T) {
	const name = "muster_fleet_condition"
	reasons := []string{"Broken", "Busy"}
	for _, test := range []struct {
		status, reason string
		want           map[string]float64
	}{
		{"", "", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0}},
		{"False", "Busy", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 1}},
		{"True", "There", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0, "There status=True ": 1}},
		{"True", "Busy", map[string]float64{"Broken status=False ": 0, "Busy status=False ": 0, "Busy status=True ": 1}},
		{"False", "Broken", map[string]float64{"Broken status=False ": 1, "Busy status=False ": 0}},
	} {
		FleetCondition("C", test.status, test.reason, reasons)
		want := map[string]float64{}
		for labels, value := range test.want {
			want["condition=C reason="+labels] = value
		}
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.status, test.reason, diff)
		}
	}
}

// The first failure is an increase, and only the last version has a series.
func TestHelmAndFleet(t *testing.T) {
	HelmRelease("fleet")
	HelmOperation("fleet", false)
	HelmOperation("fleet", false)
	FleetVersion("0.16.0")
	FleetVersion("0.17.0")
	for name, want := range map[string]map[string]float64{
		"muster_installer_operations_total": {"release=fleet result=done ": 0, "release=fleet result=failed ": 2},
		"muster_fleet_info":                 {"version=0.17.0 ": 1},
	} {
		if diff := cmp.Diff(want, gathered(t, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	FleetVersion("")
	if left := gathered(t, "muster_fleet_info"); len(left) > 0 {
		t.Errorf("there is no Fleet, but the metric has %v", left)
	}
}
