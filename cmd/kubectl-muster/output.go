package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/muster-fleet/muster/internal/program"
)

// output is the flag for the output format.
type output struct {
	*options
	format string
	// own are the formats of this command, which kubectl does not have.
	own []string
}

func newOutput(common *options, own ...string) *output {
	return &output{options: common, format: own[0], own: own}
}

func (o *output) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", o.format, "The format: "+strings.Join(o.formats(), ", ")+".")
	// An error here means that the flag does not exist, which the line above excludes.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.formats(), cobra.ShellCompDirectiveNoFileComp))
}

// formats returns the command's own formats, and kubectl's.
func (o *output) formats() []string {
	all := slices.Clone(o.own)
	for _, format := range o.printing.AllowedFormats() {
		if !slices.Contains(all, format) {
			all = append(all, format)
		}
	}
	return all
}

// isOwn reports whether the format is one that the command writes itself.
func (o *output) isOwn() bool { return slices.Contains(o.own, o.format) }

// check fails for an unknown format, before the command reads anything.
func (o *output) check() error {
	if o.isOwn() {
		return nil
	}
	_, err := o.printer()
	return err
}

func (o *output) printer() (printers.ResourcePrinter, error) {
	o.printing.OutputFormat = &o.format
	printer, err := o.printing.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = fmt.Errorf("there is no format %q: choose one of %s", o.format, strings.Join(o.formats(), ", "))
	}
	if err != nil {
		return nil, program.Exit(2, fmt.Errorf("--output: %w", err))
	}
	return printer, nil
}

// identity names an object for -o name. A name may have a namespace before it, which kubectl does not print.
func identity(kind schema.GroupVersionKind, name string) runtime.Object {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	object.Name = name[strings.LastIndex(name, "/")+1:]
	return object
}

// print writes a report with one of cli-runtime's printers; for -o name, the objects that it is about.
func (o *output) print(kind string, what any, about []runtime.Object, to io.Writer) error {
	printer, err := o.printer()
	if err != nil {
		return err
	}
	if o.format == "name" {
		for _, object := range about {
			if err := printer.PrintObj(object, to); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: fields}
	object.SetAPIVersion("muster/v1alpha1")
	object.SetKind(kind)
	return printer.PrintObj(object, to)
}
