package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/report"
)

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
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: plan.ValuesName(chartsProxy, key.Namespace, key.Name)}, values); err != nil {
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
