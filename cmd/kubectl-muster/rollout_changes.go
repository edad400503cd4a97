package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/stamp"
)

// whatChanges says what a rollout changes; "" if it is completed. It reads the HelmReleaseProxies again only when the
// rollout waits for something else.
func (o *rolloutOptions) whatChanges(ctx context.Context, cluster client.Reader, proxy *addonsv1.HelmChartProxy, report *rolloutReport) string {
	if !report.Current || report.Reason == addonsv1.RolloutCompletedReason {
		return ""
	}
	if state := fmt.Sprint(proxy.Generation, report.Stage, report.Approval, report.Reason); state != o.changesOf {
		label, _ := stamp.LabelValue(proxy.Name)
		var releases []*addonsv1.HelmReleaseProxy
		_, err := pager.Each(ctx, cluster, &addonsv1.HelmReleaseProxyList{}, func(list *addonsv1.HelmReleaseProxyList) {
			for i := range list.Items {
				releases = append(releases, &list.Items[i])
			}
		}, client.InNamespace(proxy.Namespace), client.MatchingLabels{addonsv1.HelmChartProxyLabel: label})
		changes := changesOf(proxy, releases)
		if err != nil { // It is no reason to say nothing about the rollout.
			changes = append(changes, fmt.Sprintf("it is unknown which values: reading HelmReleaseProxies: %v", err))
		}
		o.changes, o.changesOf = message.Text(strings.Join(changes, "; ")), state
	}
	return o.changes
}

// changesOf returns what changes from the last completed rollout to the HelmChartProxy: the version of the chart, the
// Clusters that wait for other values, and the fields that differ.
func changesOf(proxy *addonsv1.HelmChartProxy, releases []*addonsv1.HelmReleaseProxy) (changes []string) {
	version, values := proxy.Spec.Version, 0
	for _, release := range releases {
		version = cmp.Or(release.Spec.Version, version)
		if its := plan.RecordOf(release).Rollout; its != nil && its.Pending != "" && its.Values {
			values++
		}
	}
	if last := plan.Completed(proxy); last != nil && last.Version != "" && last.Version != version && version != "" {
		changes = append(changes, last.Version+" → "+version)
	}
	switch values {
	case 0:
	case 1:
		changes = append(changes, "values of 1 Cluster")
	default:
		changes = append(changes, fmt.Sprintf("values of %d Clusters", values))
	}
	if last, isKnown := plan.LastCompleted(proxy); isKnown {
		will := proxy.Spec
		last.Version, will.Version = "", "" // The exact one stands above.
		changes = append(changes, differences(&last, &will)...)
	}
	return changes
}

// differences names the fields that differ between two specs, with both values if they are short.
func differences(was, becomes *addonsv1.HelmChartProxySpec) (changed []string) {
	const short = 60
	from, to := fieldsOf(was), fieldsOf(becomes)
	all := maps.Clone(from)
	maps.Copy(all, to)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		before, after := string(from[field]), string(to[field])
		switch {
		case before == after:
		case len(before)+len(after) > short:
			changed = append(changed, field)
		default:
			changed = append(changed, fmt.Sprintf("%s %s → %s", field, cmp.Or(before, "none"), cmp.Or(after, "none")))
		}
	}
	return changed
}

func fieldsOf(spec *addonsv1.HelmChartProxySpec) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal([]byte(plan.JSON(spec)), &fields) // It is an object.
	return fields
}
