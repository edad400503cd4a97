package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/crd"
	"github.com/muster-fleet/muster/internal/program"
)

type lintOptions struct {
	*options
	output *output
}

func newLint(common *options) *cobra.Command {
	o := &lintOptions{options: common, output: newOutput(common, "text", "wide", "github")}
	cmd := &cobra.Command{
		Use:   "lint -f FILE",
		Short: "Check manifests with the rules of the CRDs and webhooks, without a cluster",
		Long: `Say what Muster's CRDs and webhooks would refuse or warn about if you applied these
manifests. You need no cluster.

Clusters are checked against the FleetAddonConfig, Namespaces, ClusterClasses, Fleet
Clusters and earlier Clusters in the manifests, and HelmChartProxies against Fleet's
Policies. Not checked, because that needs a cluster:
who may use a class of another namespace, and the CA that a FleetAddonConfig names.

A finding begins with file:line. -o github prints annotations, which GitHub shows in a pull
request.

Exit codes: 0 nothing would be refused; 1 an object would be refused, or cannot be read; 2
wrong arguments.`,
		Example: `  kubectl muster lint -f clusters/ -R
  kustomize build . | kubectl muster lint -f - -o json
  kubectl muster lint -f clusters/ -R -o github`,
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
		var about []runtime.Object
		for _, finding := range findings {
			if finding.Kind != "" {
				about = append(about, identity(schema.FromAPIVersionAndKind(finding.APIVersion, finding.Kind), finding.Name))
			}
		}
		return o.output.print("Findings", map[string]any{"findings": findings}, about, o.Out)
	}
	for _, finding := range findings {
		text := finding.String()
		if o.output.format == "github" {
			text = finding.Annotation()
		}
		if _, err := fmt.Fprintln(o.Out, text); err != nil {
			return err
		}
	}
	return nil
}
