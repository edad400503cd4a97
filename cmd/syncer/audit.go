package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/muster-fleet/muster/internal/audit"
	"github.com/muster-fleet/muster/internal/program"
)

// auditOptions are the flags of `syncer audit`.
type auditOptions struct {
	person
	output string
}

func (o *auditOptions) addTo(fs *pflag.FlagSet) {
	o.person.addTo(fs)
	fs.StringVarP(&o.output, "output", "o", "table", "The format of the report: table or json.")
}

// runAudit reports what was never authorized, with the rights of the person who runs it. Its
// error has exit code 1 if a mapping has no rightful user, and 2 if that is unknown.
func runAudit(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o auditOptions
	fs := pflag.NewFlagSet("syncer audit", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	o.addTo(fs)
	if err := program.Parse(fs, args, stdout); err != nil {
		return program.Exit(2, err)
	}
	found, err := o.run(ctx, fs.Args(), stdout)
	if err != nil {
		return program.Exit(2, fmt.Errorf("audit: %w", err))
	}
	if found > 0 {
		return program.Exit(1, fmt.Errorf("audit: %d BundleNamespaceMappings have no rightful user", found))
	}
	return nil
}

// run returns how many mappings have no rightful user.
func (o *auditOptions) run(ctx context.Context, rest []string, stdout io.Writer) (int, error) {
	if len(rest) > 0 {
		return 0, fmt.Errorf("takes no arguments, got %q", rest)
	}
	if o.output != "table" && o.output != "json" {
		return 0, fmt.Errorf("--output: %q is neither table nor json", o.output)
	}
	reader, err := o.client()
	if err != nil {
		return 0, err
	}
	state, err := audit.Read(ctx, reader)
	if err != nil {
		return 0, err
	}
	report := audit.Audit(state)
	write := report.WriteTables
	if o.output == "json" {
		write = report.WriteJSON
	}
	return len(report.Mappings), write(stdout)
}
