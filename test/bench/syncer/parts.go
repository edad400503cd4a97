package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/test/report"
)

// part measures tables that belong together, on one stack.
type part struct {
	// tables are what -only calls them.
	tables  []string
	measure func(context.Context, options) ([]report.Table, error)
}

var parts = []part{
	{[]string{"throughput", "latency"}, measureThroughput},
	{[]string{"growth", "look", "start", "fanout"}, measureImported},
	{[]string{"namespace"}, measureNamespace},
	{[]string{"charts"}, measureCharts},
}

func tableNames() []string {
	var names []string
	for _, part := range parts {
		names = append(names, part.tables...)
	}
	return names
}

// wants tells whether a table was asked for.
func (o options) wants(table string) bool {
	return o.only == "" || slices.Contains(strings.Split(o.only, ","), table)
}

// parts are what is to be measured.
func (o options) parts() ([]part, error) {
	if o.only != "" {
		for _, name := range strings.Split(o.only, ",") {
			if !slices.Contains(tableNames(), name) {
				return nil, fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(tableNames(), ", "))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.ContainsFunc(p.tables, o.wants) }), nil
}
