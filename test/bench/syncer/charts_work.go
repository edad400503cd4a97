package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// chartsWork is what a number of events took.
type chartsWork struct {
	count    int
	elapsed  time.Duration
	requests requests
	bytes    map[string]float64
	cpu      time.Duration
	latency  []time.Duration
	// looks are those at the HelmChartProxy, which are at all its Clusters each.
	looks float64
}

// work has something happen, and returns what it took until the values of these Clusters are written,
// so many Clusters are selected, all is deployed, and that is said.
func (s *session) work(ctx context.Context, fleet *playedFleet, clusters map[client.ObjectKey]time.Time, selected int, happen func() error) (w chartsWork, err error) {
	p, err := s.followCharts()
	if err != nil {
		return w, err
	}
	before, err := s.bodies(ctx)
	if err != nil {
		return w, err
	}
	looks, err := s.looks(ctx)
	if err != nil {
		return w, err
	}
	if err := happen(); err != nil {
		return w, err
	}
	if err := poll.Until(ctx, "the HelmChartProxy", patience, func(ctx context.Context) error {
		if _, err := p.read(); err != nil {
			return err
		}
		if written := p.requests.valuesWritten(clusters); len(written) < len(clusters) {
			return fmt.Errorf("of %d Clusters %d have values; %w", len(clusters), len(written), fleet.trouble())
		}
		return s.isDeployed(ctx, selected)
	}); err != nil {
		return w, err
	}
	if err := p.quiet(ctx); err != nil {
		return w, err
	}
	if err := s.isDeployed(ctx, selected); err != nil {
		return w, err
	}
	after, err := s.bodies(ctx)
	if err != nil {
		return w, err
	}
	w = chartsWork{count: len(clusters), elapsed: p.requests.lastWrite().Sub(p.start), requests: p.requests, bytes: map[string]float64{}}
	for _, resource := range chartsWrite {
		w.bytes[resource] = after[resource] - before[resource]
	}
	if s.download == string(addonsv1.DownloadAgent) {
		delete(w.bytes, "bundles") // Fleet writes them.
	}
	for key, written := range p.requests.valuesWritten(clusters) {
		w.latency = append(w.latency, max(0, written.completed.Sub(p.changes[key].completed)))
	}
	if w.cpu, err = p.work(); err != nil {
		return w, err
	}
	w.looks, err = s.looks(ctx)
	w.looks -= looks
	return w, err
}

// looks returns how often HelmChartProxies were looked at since the start of the program.
func (s *session) looks(ctx context.Context) (float64, error) {
	const reconciles = "controller_runtime_reconcile_total"
	text, err := s.diagnostics.get(ctx, charts, "/metrics")
	if err != nil {
		return 0, err
	}
	snapshot, err := metrics.Parse(string(text), reconciles)
	return snapshot.Sum(reconciles, nil), err
}

func (w *chartsWork) add(other chartsWork) {
	w.count += other.count
	w.elapsed += other.elapsed
	w.requests = append(w.requests, other.requests...)
	w.cpu += other.cpu
	w.looks += other.looks
	w.latency = append(w.latency, other.latency...)
	for resource, size := range other.bytes {
		w.bytes[resource] += size
	}
}

// isDeployed returns an error unless the HelmChartProxy says that it is, on so many Clusters.
func (s *session) isDeployed(ctx context.Context, selected int) error {
	proxy := &addonsv1.HelmChartProxy{}
	if err := s.admin.Get(ctx, chartsProxy, proxy); err != nil {
		return err
	}
	if len(proxy.Status.MatchingClusters) != selected || !meta.IsStatusConditionTrue(proxy.Status.Conditions, addonsv1.ReadyCondition) {
		return fmt.Errorf("%d Clusters: %+v", len(proxy.Status.MatchingClusters), proxy.Status.Conditions)
	}
	return nil
}

// valuesWritten returns the first request by which the values of each Cluster were written.
func (r requests) valuesWritten(clusters map[client.ObjectKey]time.Time) map[client.ObjectKey]request {
	cluster := map[client.ObjectKey]client.ObjectKey{}
	for key := range clusters {
		cluster[client.ObjectKey{Namespace: key.Namespace, Name: plan.ValuesName(chartsProxy, key.Namespace, key.Name)}] = key
	}
	result := map[client.ObjectKey]request{}
	for _, e := range r.of(write, false) {
		key, known := cluster[client.ObjectKey{Namespace: e.Namespace, Name: plan.FirstOf(e.Name)}]
		if _, done := result[key]; known && !done && e.Resource == "configmaps" && e.Code < 300 {
			result[key] = request{e.Received, e.Completed}
		}
	}
	return result
}

// bodies returns how much the API server was sent, by resource, by whomever.
func (s *session) bodies(ctx context.Context) (map[string]float64, error) {
	const sizes = "apiserver_request_body_size_bytes_sum"
	text, err := s.diagnostics.get(ctx, apiserver, "/metrics")
	if err != nil {
		return nil, err
	}
	snapshot, err := metrics.Parse(string(text), sizes)
	if err != nil {
		return nil, err
	}
	if len(snapshot) == 0 {
		return nil, errors.New("the API server does not say how much it is sent")
	}
	sent := map[string]float64{}
	for _, sample := range snapshot {
		sent[sample.Labels["resource"]] += sample.Value
	}
	return sent, nil
}

// writeBarely makes the writes that one more Cluster cannot do without, of what is there for another:
// the values, a target in a Bundle as large as ours, and what is said of the release, once it is deployed.
// Who makes them knows beforehand what to write.
func (s *session) writeBarely(ctx context.Context, g *load.Generator) (table report.Table, err error) {
	table = report.Table{Title: "Charts: a bare client"}
	const namespace = "bench-bare"
	if err := s.env.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}"); err != nil {
		return table, err
	}
	var bundles fleetv1.BundleList
	if err := s.admin.List(ctx, &bundles, client.InNamespace(chartsProxy.Namespace)); err != nil {
		return table, err
	}
	var bundle *fleetv1.Bundle
	for i := range bundles.Items {
		if its := &bundles.Items[i]; plan.MayBeOurs(its.Name) && (bundle == nil || len(its.Spec.Targets) > len(bundle.Spec.Targets)) {
			bundle = its
		}
	}
	if bundle == nil {
		return table, fmt.Errorf("there is no Bundle in %s", chartsProxy.Namespace)
	}
	fresh := func(object client.Object, name string) {
		object.SetNamespace(namespace)
		object.SetName(name)
		object.SetUID("")
		object.SetResourceVersion("")
		object.SetOwnerReferences(nil)
		object.SetLabels(nil)
		object.SetManagedFields(nil)
		object.SetCreationTimestamp(metav1.Time{})
	}
	fresh(bundle, "bare")
	if err := s.admin.Create(ctx, bundle); err != nil {
		return table, err
	}
	var sent int
	measured := func(body any, write func() error) error {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent += len(text)
		return write()
	}
	var elapsed time.Duration
	for i := range oneByOne {
		key := g.Key(i)
		values, mirror := &corev1.ConfigMap{}, &addonsv1.HelmReleaseProxy{}
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: bundle.Spec.Targets[i].DownstreamResources[0].Name}, values); err != nil {
			return table, err
		}
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: chartsProxy.Namespace, Name: plan.MirrorName(chartsProxy, key)}, mirror); err != nil {
			return table, err
		}
		fresh(values, values.Name)
		fresh(mirror, mirror.Name)
		status := map[string]any{"status": mirror.Status}
		target := []map[string]any{{"op": "add", "path": "/spec/targets/-", "value": bundle.Spec.Targets[i]}}
		targetPatch, err := json.Marshal(target)
		if err != nil {
			return table, err
		}
		statusPatch, err := json.Marshal(status)
		if err != nil {
			return table, err
		}
		begin := time.Now()
		for _, write := range []struct {
			body any
			do   func() error
		}{
			{values, func() error { return s.admin.Create(ctx, values) }},
			{target, func() error { return s.admin.Patch(ctx, bundle, client.RawPatch(types.JSONPatchType, targetPatch)) }},
			{mirror, func() error { return s.admin.Create(ctx, mirror) }},
			{status, func() error {
				return s.admin.Status().Patch(ctx, mirror, client.RawPatch(types.MergePatchType, statusPatch))
			}},
		} {
			if err := measured(write.body, write.do); err != nil {
				return table, err
			}
		}
		elapsed += time.Since(begin)
	}
	table.Note("%d times: the values are created, a target is added to a Bundle as large as the largest of ours, a HelmReleaseProxy is created and its status written, by a client that knows beforehand what to write", oneByOne)
	table.Add(
		report.Value("writes of a selection", "", 4),
		report.Value("bytes of a selection", "KiB", float64(sent)/oneByOne/1024),
		report.Value("time of a selection", "ms", perOne(elapsed, oneByOne)),
	)
	return table, nil
}
