package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/agentmanifest"
	"github.com/muster-fleet/muster/internal/audit"
	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/render"
)

// person is who runs a subcommand, with their own rights and not the syncer's.
type person struct {
	kubeconfig, context string
}

func (p *person) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&p.kubeconfig, "kubeconfig", "", "The kubeconfig to use; by default those that KUBECONFIG names, or ~/.kube/config.")
	fs.StringVar(&p.context, "context", "", "The context of the kubeconfig to use; its current one if empty.")
}

func (p *person) client() (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.context}).ClientConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := program.Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

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

// runRender prints the Fleet objects that manifests lead to: `syncer render -f FILE…`.
func runRender(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	fs := pflag.NewFlagSet("syncer render", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	files := fs.StringSliceP("filename", "f", nil, "A file of manifests: Clusters, ClusterClasses, Namespaces, a FleetAddonConfig and the objects that Clusters refer to; - for standard input. May be repeated.")
	if err := program.Parse(fs, args, stdout); err != nil {
		return err
	}
	names := append(*files, fs.Args()...)
	if len(names) == 0 {
		return errors.New("render: name at least one file with -f")
	}
	objects, problems := manifests.Read(names, stdin)
	if len(problems) > 0 {
		return problems[0]
	}
	result, err := render.Render(objects)
	if err != nil {
		return err
	}
	for _, note := range result.Notes {
		fmt.Fprintln(stderr, "note:", note)
	}
	for _, object := range result.Objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "---\n%s", document); err != nil {
			return err
		}
	}
	return nil
}

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
	manifest, err := agentmanifest.Read(ctx, reader, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return program.Exit(1, fmt.Errorf("agent-manifest: %w", err))
	}
	_, err = stdout.Write(manifest)
	return err
}
