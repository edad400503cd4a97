package main

import (
	"slices"
	"testing"
)

func TestParts(t *testing.T) {
	for name, test := range map[string]struct {
		asked options
		want  []string // the first table of each part; nil is an error
	}{
		"everything": {options{}, []string{"throughput", "growth", "namespace", "charts"}},
		"one":        {options{only: "look"}, []string{"growth"}},
		"several":    {options{only: "latency,namespace"}, []string{"throughput", "namespace"}},
		"unknown":    {options{only: "look,fast"}, nil},
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
