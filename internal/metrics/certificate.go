package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Certificate exposes when a certificate of the webhook, "mounted" or "served", expires. It
// is read at each scrape, and omitted if it cannot be read.
func Certificate(certificate string, end func() (time.Time, error)) error {
	return ctrlmetrics.Registry.Register(&certificateEnd{
		description: prometheus.NewDesc("muster_webhook_certificate_expiry_timestamp_seconds",
			"When a certificate of the webhook expires, in seconds since 1970: the mounted one, and the served one.",
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
