package main

import (
	"context"
	"fmt"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/audit"
	"github.com/muster-fleet/muster/internal/program"
)

type auditOptions struct {
	*options
	output *output
}

func newAudit(common *options) *cobra.Command {
	o := &auditOptions{options: common, output: newOutput(common, "table", "wide")}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List access between namespaces that no longer has a rightful user",
		Long: `List BundleNamespaceMappings without a rightful user, Clusters that use a class of another
namespace, Fleet Clusters that a move has left behind, and upgrades that are held, in all
namespaces. If you may not read some objects, a note says which, and what is unknown
without them.

Exit codes: 0 every mapping has a rightful user; 1 some have none; 2 this is unknown.`,
		Example: "  kubectl muster audit --context=prod -o json",
		Args:    withUsage(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.output.addTo(cmd)
	return cmd
}

func (o *auditOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	reader, err := o.client()
	if err != nil {
		return err
	}
	state, err := audit.Read(ctx, reader)
	if err != nil {
		return program.Exit(2, err)
	}
	report := audit.Audit(state)
	if o.output.isOwn() {
		err = report.WriteTables(o.Out)
	} else {
		var open []runtime.Object
		for _, mapping := range report.Mappings {
			open = append(open, identity(fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"), mapping.Name))
		}
		err = o.output.print("Audit", report, open, o.Out)
	}
	if err != nil {
		return program.Exit(2, err)
	}
	if found := len(report.Mappings); found > 0 {
		return program.Exit(1, fmt.Errorf("%d BundleNamespaceMappings have no rightful user", found))
	}
	return nil
}
