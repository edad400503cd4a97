package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
)

// part measures tables that belong together, on one stack.
type part struct {
	// tables are what -only calls them.
	tables  []string
	measure func(context.Context, options) ([]report.Table, error)
	// optional is of a component that an earlier revision may not have.
	optional bool
}

var (
	parts = []part{
		{[]string{"throughput", "latency"}, measureThroughput, false},
		{[]string{"growth", "look", "start", "fanout"}, measureImported, false},
		{[]string{"namespace"}, measureNamespace, false},
		{[]string{"registrar"}, measureCalling, true},
		{[]string{"charts"}, measureCharts, true},
	}
	full    = part{[]string{"full"}, measureFull, false}
	against = part{[]string{"against"}, measureAgainst, false}
)

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
	switch {
	case o.against != "" && o.rounds < 1:
		return nil, errors.New("-rounds must be 1 or more")
	case (o.against != "" || o.profile == stack.Full) && o.only != "":
		return nil, errors.New("-only names none of the tables of -against and -profile=full")
	case o.against != "":
		return []part{against}, nil
	case o.profile == stack.Full:
		return []part{full}, nil
	}
	if o.only != "" {
		for _, name := range strings.Split(o.only, ",") {
			if !slices.Contains(tableNames(), name) {
				return nil, fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(tableNames(), ", "))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return !slices.ContainsFunc(p.tables, o.wants) || o.revision != "" && o.only == "" && p.optional
	}), nil
}
