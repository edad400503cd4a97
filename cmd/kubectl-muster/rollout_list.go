package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/program"
)

// list prints the rollouts of a namespace, or of all.
func (o *rolloutOptions) list(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	cluster, err := o.client()
	if err != nil {
		return err
	}
	reports := []*rolloutReport{}
	_, err = pager.Each(ctx, cluster, &addonsv1.HelmChartProxyList{}, func(list *addonsv1.HelmChartProxyList) {
		for i := range list.Items {
			if report, err := reportOf(&list.Items[i]); err == nil { // An error means that it has no rollout.
				reports = append(reports, report)
			}
		}
	}, client.InNamespace(o.scope().Namespace))
	if err != nil {
		return program.Exit(2, fmt.Errorf("reading HelmChartProxies: %w", isServed(err)))
	}
	slices.SortFunc(reports, func(a, b *rolloutReport) int { return strings.Compare(a.String(), b.String()) })
	if o.output.isOwn() {
		return writeRollouts(o.Out, reports, o.output.format == "wide")
	}
	var about []runtime.Object
	for _, report := range reports {
		about = append(about, report.identity())
	}
	return o.output.print("Rollouts", map[string]any{"rollouts": reports}, about, o.Out)
}

// writeRollouts writes a row for each rollout.
func writeRollouts(to io.Writer, reports []*rolloutReport, isWide bool) error {
	if len(reports) == 0 {
		_, err := fmt.Fprintln(to, "no HelmChartProxy has spec.rollout")
		return err
	}
	table := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	row := func(cells ...string) {
		if !isWide {
			cells = cells[:len(cells)-1]
		}
		for i := range cells {
			cells[i] = message.Text(cells[i])
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	row("NAMESPACE", "NAME", "ROLLOUT", "STAGE", "UPDATED", "SINCE", "MESSAGE")
	for _, r := range reports {
		clusters, updated := 0, 0
		for _, stage := range r.Stages {
			clusters, updated = clusters+stage.Clusters, updated+stage.Updated
		}
		state, message, since := r.Reason, r.Message, "-"
		if !r.Current {
			state, message = "Unknown", r.Note
		}
		if r.Since != nil {
			since = r.Since.UTC().Format(time.RFC3339)
		}
		row(r.Namespace, r.Name, state, cmp.Or(r.Stage, "-"), fmt.Sprintf("%d/%d", updated, clusters), since, cmp.Or(message, "-"))
	}
	return table.Flush()
}
