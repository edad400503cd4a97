package main

import (
	"slices"
	"testing"

	"github.com/muster-fleet/muster/test/stack"
)

func TestParts(t *testing.T) {
	for name, test := range map[string]struct {
		asked options
		want  []string // the first table of each part; nil is an error
	}{
		"everything":          {options{profile: stack.API}, []string{"throughput", "growth", "namespace", "registrar", "charts"}},
		"one":                 {options{only: "look"}, []string{"growth"}},
		"several":             {options{only: "latency,namespace"}, []string{"throughput", "namespace"}},
		"unknown":             {options{only: "look,fast"}, nil},
		"full":                {options{profile: stack.Full}, []string{"full"}},
		"against":             {options{against: "HEAD", rounds: 2}, []string{"against"}},
		"against, no round":   {options{against: "HEAD"}, nil},
		"against, one table":  {options{against: "HEAD", rounds: 2, only: "look"}, nil},
		"revision":            {options{revision: "HEAD"}, []string{"throughput", "growth", "namespace"}},
		"revision, charts":    {options{revision: "HEAD", only: "charts"}, []string{"charts"}},
		"full, another table": {options{profile: stack.Full, only: "growth"}, nil},
	} {
		parts, err := test.asked.parts()
		var got []string
		for _, part := range parts {
			got = append(got, part.tables[0])
		}
		if !slices.Equal(got, test.want) || (err == nil) != (test.want != nil) {
			t.Errorf("%s: %v (%v), want %v", name, got, err, test.want)
		}
	}
}
