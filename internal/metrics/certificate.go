package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Certificate begins to expose when a certificate of the webhook ends: "mounted" or
// "served". It is read when somebody asks; one that cannot be read is left out.
func Certificate(certificate string, end func() (time.Time, error)) error {
	return ctrlmetrics.Registry.Register(&certificateEnd{
		description: prometheus.NewDesc("muster_webhook_certificate_expiry_timestamp_seconds",
			"When a certificate of the webhook ends, in seconds since 1970: of the one that is mounted, and of the one that is served.",
			nil, prometheus.Labels{"certificate": certificate}),
		end: end,
	})
}

type certificateEnd struct {
	description *prometheus.Desc
	end         func() (time.Time, error)
}

// Describe says what is collected.
func (c *certificateEnd) Describe(to chan<- *prometheus.Desc) { to <- c.description }

// Collect reads the certificate.
func (c *certificateEnd) Collect(to chan<- prometheus.Metric) {
	if end, err := c.end(); err == nil {
		to <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(end.Unix()))
	}
}
