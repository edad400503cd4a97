package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/crd"
	"github.com/muster-fleet/muster/internal/program"
)

type lintOptions struct {
	*options
	output *output
}

func newLint(common *options) *cobra.Command {
	o := &lintOptions{options: common, output: newOutput(common, "text")}
	cmd := &cobra.Command{
		Use:   "lint -f FILE",
		Short: "Check manifests with the rules of the CRDs and webhooks, without a cluster",
		Long: `Say what Muster's CRDs and webhooks would refuse or warn about if you applied these
manifests. You need no cluster.

Clusters are checked against the FleetAddonConfig, Namespaces, ClusterClasses, Fleet
Clusters and earlier Clusters in the manifests, and HelmChartProxies against Fleet's
Policies. Not checked, because that needs a cluster:
who may use a class of another namespace, and the CA that a FleetAddonConfig names.

Exit codes: 0 nothing would be refused; 1 an object would be refused, or cannot be read; 2
wrong arguments.`,
		Example: `  kubectl muster lint -f clusters/ -R
  kustomize build . | kubectl muster lint -f - -o json`,
		Args: withUsage(onlyFiles),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.addFilesTo(cmd, "Manifests: FleetAddonConfig, HelmChartProxies, Clusters, ClusterClasses, Namespaces, Fleet Clusters, Policies of Fleet.")
	o.output.addTo(cmd)
	return cmd
}

func (o *lintOptions) run(ctx context.Context) error {
	if err := o.output.check(); err != nil {
		return err
	}
	objects, problems, err := o.read(o.In)
	if err != nil {
		return err
	}
	findings, err := admission.Check(ctx, crd.Validate, objects, problems)
	if err != nil {
		return err
	}
	if err := o.print(findings); err != nil {
		return err
	}
	count := 0
	for _, finding := range findings {
		if finding.Severity == admission.SeverityError {
			count++
		}
	}
	if count > 0 {
		return program.Exit(1, fmt.Errorf("%d of %d findings are errors", count, len(findings)))
	}
	return nil
}

func (o *lintOptions) print(findings []admission.Finding) error {
	if !o.output.isOwn() {
		if findings == nil {
			findings = []admission.Finding{}
		}
		return o.output.print("Findings", map[string]any{"findings": findings}, o.Out)
	}
	for _, finding := range findings {
		if _, err := fmt.Fprintln(o.Out, finding); err != nil {
			return err
		}
	}
	return nil
}
