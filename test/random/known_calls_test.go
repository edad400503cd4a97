package random

import (
	"fmt"
	"testing"

	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// TestKnownCalls plays, with the registrar, what docs/guides/nat.md promises of changes, and what
// once confused it.
func TestKnownCalls(t *testing.T) {
	if err := withRegistrar(true); err != nil {
		t.Fatal(err)
	}
	op := func(name, kind, value string) Step { return Step{Op: name, Kind: kind, Value: value} }
	create := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass, Kind: "Calls"}
	unmarked := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	rest, grant, call, initialize := op(quiet, "", ""), op("FleetGrants", "", ""), op("AgentCalls", "", ""), op("Initialize", "", "")
	agent, manager := op("Registration", "", "agent"), op("Registration", "", "manager")
	none := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{Selector: &selectors[1]}}}
	byConfig := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{AgentInitiated: ptr.To(true)}}}
	noOwners := Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)}}}
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"rotated", []Step{create, grant, call, op("Rotate", "", "1"), grant, op("Rotate", "", ""), op("Rotate", "", "2"), grant}},
		{"lost", []Step{create, grant, op("ChangeManifest", "Delete", ""), op("ChangeManifest", "Edit", ""), op("LoseCredential", "", ""), op("FleetServer", "", "https://b.example.com"),
			op("ChangeManifest", "Delete", "")}},
		{"turned over for a moment", []Step{create, initialize, grant, op("Flap", "Annotation", "at rest"), call, op("Flap", "Annotation", ""), op("Flap", "Annotation", "at rest"), grant, call}},
		{"without a FleetAddonConfig for a moment", []Step{byConfig, unmarked, initialize, grant, call, op("Flap", "Flag", "at rest"), op("Flap", "Selector", ""), op("Flap", "Config", ""), grant, call}},
		{"without one before anybody has called", []Step{byConfig, unmarked, initialize, grant, op("Flap", "Config", ""), grant, call}},
		{"rotated, turned to the manager, who installs one, and back", []Step{create, initialize, grant, call, op("Rotate", "", "1"), grant, manager, op("FleetInstalls", "", ""), agent, rest, op("Rotate", "", "2"), grant, call}},
		{"turned to the manager and back", []Step{create, initialize, grant, call, manager, agent, grant, call}},
		{"turned to the manager, who installs one, and back", []Step{create, initialize, grant, manager, op("FleetInstalls", "", ""), agent, op("Rotate", "", "1"), grant, call}},
		{"made anew", []Step{create, grant, call, {Op: "DeleteCluster"}, create, rest, grant, call}},
		{"made anew, owner references off", []Step{noOwners, create, grant, call, {Op: "DeleteCluster"}, create, rest, grant, call}},
		{"made anew, owner references off, and turned to the manager", []Step{noOwners, create, grant, call, {Op: "DeleteCluster"}, create, initialize, grant, call,
			manager, agent, grant, call}},
		{"a clientID that is guessed", []Step{unmarked, initialize, rest, {Op: "ForeignSpec", Kind: fleetClusterKind, Value: `{"spec":{"clientID":"fleet"}}`}, agent, grant, call}},
		{"a pin lost while deselected", []Step{create, grant, call, none, {Op: "WebhookStop"}, {Op: "DropPin"}, rest, op("FleetServer", "", "https://b.example.com")}},
		{"killed between one step and the next", []Step{create, op("RegistrarKill", "", ""), rest, op("FleetDeploys", "Namespace", ""), op("RegistrarKill", "", ""),
			op("FleetDeploys", "Bundle", ""), op("RegistrarKill", "", ""), grant, op("RegistrarStop", "", ""), op("Rotate", "", "1"), op("RegistrarKill", "", ""), grant, call}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("calls%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}
