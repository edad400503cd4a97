package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/manifests"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/render"
)

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
