package metrics

import (
	"math"
	"testing"
)

const exposed = `# HELP apiserver_admission_webhook_admission_duration_seconds Latency.
apiserver_admission_webhook_admission_duration_seconds_bucket{name="a",le="0.005"} 90
apiserver_admission_webhook_admission_duration_seconds_bucket{name="a",le="0.025"} 100
apiserver_admission_webhook_admission_duration_seconds_bucket{name="a",le="+Inf"} 100
apiserver_admission_webhook_admission_duration_seconds_sum{name="a"} 0.2
apiserver_admission_webhook_request_total{code="200",name="a"} 100
apiserver_admission_webhook_request_total{code="500",name="b"} 1e+01
something_else{name="a"} 7
`

func TestHistogram(t *testing.T) {
	snapshot, err := Parse(exposed, "apiserver_admission_webhook_")
	if err != nil {
		t.Fatal(err)
	}
	ofA := func(labels map[string]string) bool { return labels["name"] == "a" }
	h := HistogramBetween(nil, snapshot, "apiserver_admission_webhook_admission_duration_seconds", ofA)
	for name, test := range map[string]struct{ got, want float64 }{
		"count":           {h.Count, 100},
		"mean":            {h.Mean(), 0.002},
		"p45":             {h.Quantile(0.45), 0.0025},
		"p95":             {h.Quantile(0.95), 0.015},
		"all requests":    {snapshot.Sum("apiserver_admission_webhook_request_total", nil), 110},
		"requests of one": {snapshot.Sum("apiserver_admission_webhook_request_total", ofA), 100},
		"between equals":  {HistogramBetween(snapshot, snapshot, "apiserver_admission_webhook_admission_duration_seconds", ofA).Count, 0},
	} {
		if math.Abs(test.got-test.want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, test.got, test.want)
		}
	}
}
