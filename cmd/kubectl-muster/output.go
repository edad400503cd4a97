package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	all := slices.Concat(o.own, o.data.AllowedFormats(), o.script.AllowedFormats())
	cmd.Flags().StringVarP(&o.format, "output", "o", o.format, "The format: "+strings.Join(o.own, ", ")+", or one of kubectl's, such as json or jsonpath=….")
	// An error here means that the flag does not exist, which the line above excludes.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
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
	printer, err := o.data.ToPrinter(o.format)
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		printer, err = o.script.ToPrinter(o.format)
	}
	if err != nil {
		return nil, program.Exit(2, fmt.Errorf("--output: %w", err))
	}
	return printer, nil
}

// print writes an object with one of cli-runtime's printers.
func (o *output) print(kind string, what any, to io.Writer) error {
	printer, err := o.printer()
	if err != nil {
		return err
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
