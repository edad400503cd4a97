package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Gauge is a gauge that is counted at each scrape: see Count.
type Gauge struct {
	description *prometheus.Desc
	// values are those of its label. All have a series from the beginning, so that the first occurrence counts as an increase,
	// and no other has one: another writer may put anything into a status.
	values []string
}

// NewGauge describes a gauge with a label of these values. Without values it has no label.
func NewGauge(name, help, label string, values ...string) *Gauge {
	if len(values) == 0 {
		return &Gauge{prometheus.NewDesc(name, help, nil, nil), nil}
	}
	return &Gauge{prometheus.NewDesc(name, help, []string{label}, nil), values}
}

// Counts are numbers of objects, by gauge and value of its label; the value is empty for a gauge without one.
type Counts map[*Gauge]map[string]int

// Add adds a number of objects.
func (c Counts) Add(to *Gauge, value string, number int) {
	if c[to] == nil {
		c[to] = map[string]int{}
	}
	c[to][value] += number
}

// Count registers gauges that a function counts in a cache, at each scrape. There is no series until this replica is elected,
// because another one reports until then, nor while the function returns an error. Its context is done already, so that
// reading a cache that has not synced yet is an error, and does not wait.
func Count(elected <-chan struct{}, count func(context.Context, Counts) error, gauges ...*Gauge) error {
	return ctrlmetrics.Registry.Register(&collector{elected, count, gauges})
}

type collector struct {
	elected <-chan struct{}
	count   func(context.Context, Counts) error
	gauges  []*Gauge
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, gauge := range c.gauges {
		to <- gauge.description
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	counts := Counts{}
	if c.count(ctx, counts) != nil {
		return
	}
	for _, gauge := range c.gauges {
		for _, value := range gauge.values {
			to <- prometheus.MustNewConstMetric(gauge.description, prometheus.GaugeValue, float64(counts[gauge][value]), value)
		}
		if gauge.values == nil {
			to <- prometheus.MustNewConstMetric(gauge.description, prometheus.GaugeValue, float64(counts[gauge][""]))
		}
	}
}
