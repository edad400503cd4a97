package random

import (
	"fmt"
	"testing"
)

// TestKnownCollisions plays a tenant whose Clusters and Fleet Clusters would get the namespace in
// Fleet of another namespace's Cluster, and one who was there first.
func TestKnownCollisions(t *testing.T) {
	if err := withRegistrar(true); err != nil {
		t.Fatal(err)
	}
	op := func(name string) Step { return Step{Op: name} }
	rest, noWebhook, collide, collect := op(quiet), op("WebhookStop"), op("TenantCollide"), op("FleetCollects")
	create, lose := op("CreateCollided"), Step{Op: "ForeignDelete", Kind: fleetClusterKind, Cluster: collided}
	deployed := Step{Op: "FleetDeploys", Kind: "Namespace", Cluster: collided}
	forge := Step{Op: "TenantCreateFleetCluster", Kind: "Nothing", Value: "mine", Cluster: collided}
	remove := Step{Op: "TenantDelete", Kind: fleetClusterKind, Cluster: collided}
	class := Step{Op: "CreateClass", ClassNamespace: 1}
	calls := Step{Op: "CreateCluster", Namespace: lib, Class: noClass, Kind: "Calls", Cluster: collided}
	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"a Cluster is refused", []Step{create, rest, collide, deployed, collide}},
		{"a Cluster that was not refused", []Step{create, rest, noWebhook, collide, deployed, collide}},
		{"a Fleet Cluster that is younger", []Step{create, rest, forge, collide, noWebhook, collide}},
		{"a Fleet Cluster that was there first", []Step{forge, noWebhook, create, rest, remove}},
		{"its namespace stays its own", []Step{create, rest, deployed, forge, lose, rest}},
		{"a namespace that Fleet has yet to remove", []Step{create, rest, deployed, {Op: "DeleteCluster", Cluster: collided}, forge, collide, collect, noWebhook, create, rest, remove}},
		{"one of a class of another namespace", []Step{class, forge, noWebhook, {Op: "CreateCluster", Namespace: lib, ClassNamespace: 1, Cluster: collided},
			{Op: "Initialize", Cluster: collided}, rest, remove}},
		{"one that calls", []Step{forge, noWebhook, calls, rest, remove, rest, {Op: "FleetGrants", Cluster: collided}, {Op: "AgentCalls", Cluster: collided}, collide}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("collide%d", tries), known.steps, patience, true); err != nil {
				t.Error(err)
			}
		})
	}
}
