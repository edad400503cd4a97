package audit

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var example = &Report{
	Mappings: []Mapping{
		{Namespace: "platform", Name: "team", KeptBy: []Keeper{{Kind: "Cluster", Namespace: "team", Name: "one", Why: "paused"}, {Kind: "Fleet Cluster", Namespace: "team", Name: "two", Why: "released"}}},
		{Namespace: "platform", Name: "x", Edited: true, KeptBy: []Keeper{}},
	},
	Clusters: []Use{{Namespace: "team", Name: "one", Class: "std", ClassNamespace: "platform", Created: noon, Asked: AskedOlder}},
	Released: []Leftover{},
	Notes:    []string{"Namespaces: may not be read"},
}

const exampleTables = `BundleNamespaceMappings without a rightful user: 2
NAMESPACE   NAME   MAPS      KEPT BY
platform    team   as made   Cluster one (paused), Fleet Cluster two (released)
platform    x      edited    nothing

Clusters that use a class of another namespace: 1
NAMESPACE   NAME   CLASS          CREATED                ASKED
team        one    platform/std   2026-01-02T12:00:00Z   no, older than the webhook

Released Fleet Clusters whose Cluster is gone: 0

note: Namespaces: may not be read
`

func TestTables(t *testing.T) {
	var out bytes.Buffer
	if err := example.WriteTables(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleTables, out.String()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := example.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example, &back); diff != "" {
		t.Errorf("a report comes back otherwise (-want +got):\n%s", diff)
	}
}
