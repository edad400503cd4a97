package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteJSON writes a report for programs.
func (r *Report) WriteJSON(to io.Writer) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTables writes a report for people.
func (r *Report) WriteTables(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	section(table, "BundleNamespaceMappings without a rightful user", len(r.Mappings), "NAMESPACE\tNAME\tMAPS\tKEPT BY")
	for _, mapping := range r.Mappings {
		maps := "as made"
		if mapping.Edited {
			maps = "edited"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", mapping.Namespace, mapping.Name, maps, keptBy(mapping.KeptBy))
	}
	fmt.Fprintln(table)
	section(table, "Clusters that use a class of another namespace", len(r.Clusters), "NAMESPACE\tNAME\tCLASS\tCREATED\tASKED")
	for _, use := range r.Clusters {
		fmt.Fprintf(table, "%s\t%s\t%s/%s\t%s\t%s\n", use.Namespace, use.Name, use.ClassNamespace, use.Class, use.Created.UTC().Format(time.RFC3339), use.Asked)
	}
	fmt.Fprintln(table)
	section(table, "Released Fleet Clusters whose Cluster is gone", len(r.Released), "NAMESPACE\tNAME\tCREATED\tTO DELETE IT, AND WHAT FLEET DEPLOYED THERE")
	for _, leftover := range r.Released {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", leftover.Namespace, leftover.Name, leftover.Created.UTC().Format(time.RFC3339), leftover.Delete)
	}
	for i, note := range r.Notes {
		if i == 0 {
			fmt.Fprintln(table)
		}
		fmt.Fprintf(table, "note: %s\n", note)
	}
	return table.Flush()
}

func section(to io.Writer, title string, count int, header string) {
	fmt.Fprintf(to, "%s: %d\n", title, count)
	if count > 0 {
		fmt.Fprintln(to, header)
	}
}

func keptBy(keepers []Keeper) string {
	var names []string
	for _, keeper := range keepers {
		names = append(names, fmt.Sprintf("%s %s (%s)", keeper.Kind, keeper.Name, keeper.Why))
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
