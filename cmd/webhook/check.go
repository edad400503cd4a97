package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/muster-fleet/muster/internal/admission"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/program"
)

// runCheck prints what the webhooks would say about manifests: `webhook check -f FILE…`. It
// returns an error if there are errors among the findings.
func runCheck(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	fs := pflag.NewFlagSet("webhook check", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	files := fs.StringSliceP("filename", "f", nil, "A file of manifests: FleetAddonConfig, Clusters, ClusterClasses, Namespaces, Fleet Clusters; - for standard input. May be repeated.")
	output := fs.StringP("output", "o", "text", "The format of the findings: text or json.")
	if err := program.Parse(fs, args, stdout); err != nil {
		return err
	}
	names := append(*files, fs.Args()...)
	if len(names) == 0 {
		return errors.New("check: name at least one file with -f")
	}
	if *output != "text" && *output != "json" {
		return fmt.Errorf("check: --output: %q is neither text nor json", *output)
	}
	objects, problems := manifests.Read(names, stdin)
	findings, err := admission.Check(ctx, objects, problems)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if err := write(findings, *output, stdout); err != nil {
		return err
	}
	count := 0
	for _, finding := range findings {
		if finding.Severity == admission.SeverityError {
			count++
		}
	}
	if count > 0 {
		return fmt.Errorf("check: %d of %d findings are errors", count, len(findings))
	}
	return nil
}

func write(findings []admission.Finding, output string, to io.Writer) error {
	if output == "json" {
		if findings == nil {
			findings = []admission.Finding{}
		}
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(findings)
	}
	for _, finding := range findings {
		if _, err := fmt.Fprintln(to, finding); err != nil {
			return err
		}
	}
	return nil
}
