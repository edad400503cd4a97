package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// usage is cobra's own template, but without the flags that all commands share, of which kubectl has many.
const usage = `Usage:
  {{if .HasParent}}{{.UseLine}}{{else}}{{.CommandPath}} COMMAND [flags]{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}
{{- $commands := .Commands}}
{{- range $group := .Groups}}

{{.Title}}
{{- range $commands}}{{if eq .GroupID $group.ID}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{- end}}
{{- if and .HasParent .HasAvailableSubCommands}}

Commands:
{{- range .Commands}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}
{{- end}}
{{- if and .HasParent .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}

Use {{if not .HasParent}}"{{.CommandPath}} COMMAND --help" for more about a command,
"{{.CommandPath}} completion" for completion in your shell, and
{{end}}"{{.Root.CommandPath}} options" for the flags that all commands share (-n, --context, --kubeconfig …).
`

// addGroup adds commands that the help lists under a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
}

// fold moves the flags that all commands share from the help of each to the command options, as
// kubectl does.
func fold(root *cobra.Command) {
	cobra.EnableCommandSorting = false
	root.SetUsageTemplate(usage)
	own := root.CommandPath()
	for _, cmd := range root.Commands() {
		for _, its := range append(cmd.Commands(), cmd) {
			// The examples call the program by its name as a plugin.
			its.Example = strings.ReplaceAll(its.Example, "kubectl muster", own)
		}
	}
	options := &cobra.Command{Use: "options", Short: "List the flags that all commands share", Args: withUsage(cobra.NoArgs)}
	options.SetHelpFunc(func(*cobra.Command, []string) {
		fmt.Fprintf(root.OutOrStdout(), "All commands take these flags:\n\n%s", root.PersistentFlags().FlagUsages())
	})
	options.Run = func(cmd *cobra.Command, _ []string) { _ = cmd.Help() }
	root.AddCommand(options)
}
