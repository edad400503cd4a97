package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/handout"
	"github.com/muster-fleet/muster/internal/program"
)

// runAgentManifest prints what to apply to a cluster whose agent calls by itself.
func runAgentManifest(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var who person
	fs := pflag.NewFlagSet("syncer agent-manifest", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "Usage: syncer agent-manifest NAMESPACE/CLUSTER | kubectl --context=THE-CLUSTER apply -f -\n\n%s", fs.FlagUsages())
	}
	who.addTo(fs)
	if err := program.Parse(fs, args, stdout); err != nil {
		return program.Exit(2, err)
	}
	namespace, name, isKey := strings.Cut(fs.Arg(0), "/")
	if fs.NArg() != 1 || !isKey || namespace == "" || name == "" {
		return program.Exit(2, errors.New("agent-manifest: give one NAMESPACE/CLUSTER"))
	}
	reader, err := who.client()
	if err != nil {
		return program.Exit(2, fmt.Errorf("agent-manifest: %w", err))
	}
	manifest, err := handout.Manifest(ctx, reader, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return program.Exit(1, fmt.Errorf("agent-manifest: %w", err))
	}
	_, err = stdout.Write(manifest)
	return err
}
