package random

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// The tenant's namespace, and one that is not his.
const (
	theirs = namespaceCount - 1
	lib    = 0
)

// TestKnown plays, with our admission policies taken away, what once worked for those
// who attacked Muster and what once confused it.
func TestKnown(t *testing.T) {
	if err := withRegistrar(false); err != nil {
		t.Fatal(err)
	}
	restore, err := withPolicies(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	config := func(cluster addonsv1.ClusterConfig) Step {
		return Step{Op: "SetConfig", Config: &addonsv1.FleetAddonConfigSpec{Cluster: &cluster}}
	}
	noOwners := config(addonsv1.ClusterConfig{SetOwnerReferences: ptr.To(false)})
	onlyRed := config(addonsv1.ClusterConfig{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}})
	rest := Step{Op: quiet}
	class := Step{Op: "CreateClass", ClassNamespace: lib}
	ownClass := Step{Op: "CreateClass", ClassNamespace: theirs}
	create := Step{Op: "CreateCluster", Namespace: theirs, ClassNamespace: lib}
	classless := Step{Op: "CreateCluster", Namespace: theirs, Class: noClass}
	initialize := Step{Op: "Initialize"}
	forge := func(kind string) Step {
		return Step{Op: "TenantCreateFleetCluster", Kind: kind, Value: "mine", ClassNamespace: lib}
	}

	for _, known := range []struct {
		name  string
		steps []Step
	}{
		{"point 1: a released Fleet Cluster made by hand", []Step{class, forge("Released"), rest}},
		{"point 1: a Fleet Cluster made by hand from a Cluster", []Step{class, classless, forge("ImportedFrom"), rest}},
		{"point 1: a Fleet Cluster of ours relabelled", []Step{class, classless, initialize, rest,
			{Op: "TenantForgeFleetCluster", Kind: "Labels", ClassNamespace: lib}, rest}},
		{"point 1: relabelled under a deselected Cluster", []Step{class, classless, initialize, rest, onlyRed,
			{Op: "TenantForgeFleetCluster", Kind: "Labels", ClassNamespace: lib}, rest}},
		{"point 2: a pin on an unselected Cluster", []Step{class, onlyRed, create, rest, {Op: "TenantForgePin", Value: "forged"}, rest}},
		{"point 2: with the webhook down", []Step{class, onlyRed, create, rest, {Op: "WebhookStop"}, {Op: "TenantForgePin", Value: "forged"}, rest}},
		{"point 5: adopt goes off", []Step{ownClass, {Op: "TenantCreateFleetCluster", Kind: "Adopt", Value: "wanted", ClassNamespace: lib},
			{Op: "TenantCreateCluster", Namespace: theirs, ClassNamespace: ownNamespace}, initialize, rest}},
		{"point 9: made anew, the garbage collector stopped", []Step{class, create, initialize, rest, {Op: "StopGC"}, {Op: "DeleteCluster"}, create, rest,
			initialize, rest, {Op: "StartGC"}, rest}},
		{"point 9: made anew at once", []Step{class, create, initialize, rest, {Op: "DeleteCluster"}, create, rest, initialize, rest}},
		{"point 9: made anew, owner references off", []Step{class, noOwners, create, initialize, rest, {Op: "DeleteCluster"}, create, rest, initialize, rest}},
		{"point 10: an altered pin", []Step{class, create, initialize, rest, {Op: "WebhookStop"}, {Op: "DropPin", Value: "forged"}, rest}},
		{"point 10: a pin, and a Fleet Cluster of the expected name that nobody's UID is known of", []Step{{Op: "WebhookStop"},
			{Op: "TenantCreateCluster", Namespace: theirs, ClassNamespace: ownNamespace, Kind: "Forged"}, {Op: "Pause", Kind: "Annotation"},
			{Op: "TenantCreateFleetCluster", Kind: "Notes", Value: "wanted"}, rest}},
		{"point 10: two are made while the syncer is away: one owned by the Cluster, one of the pin's name", []Step{
			{Op: "TenantCreateCluster", Cluster: 4, Namespace: theirs, Class: 3, ClassNamespace: ownNamespace}, {Op: "SyncerKill"},
			{Op: "TenantCreateFleetCluster", Cluster: 4, Class: 1, ClassNamespace: 3, Kind: "Owner", Value: "prefixed"},
			{Op: "TenantCreateFleetCluster", Cluster: 4, ClassNamespace: 1, Kind: "ImportedFrom", Value: "wanted"}, rest}},
		{"point 16: a class of the name of a group", []Step{class, create, initialize, rest,
			{Op: "CreateDisplacing", Kind: "Displacing", Namespace: theirs, ClassNamespace: lib}, rest}},
		{"point 21: a pin lost while deselected", []Step{class, create, initialize, rest, onlyRed, {Op: "WebhookStop"}, {Op: "DropPin"}, rest}},
		{"point 22: keys of ours that nobody wants", []Step{classless, initialize, rest,
			{Op: "ForeignLabel", Kind: fleetClusterKind, Key: nameLabel, Value: "theirs"}, rest}},
		{"point 22: on a group", []Step{class, create, initialize, rest,
			{Op: "ForeignLabel", Kind: classGroupKind, ClassNamespace: lib, Key: domain + "/released", Value: "theirs"}, rest}},
	} {
		t.Run(known.name, func(t *testing.T) {
			tries++
			if err := playSteps(fmt.Sprintf("known%d", tries), known.steps, patience/2, true); err != nil {
				t.Error(err)
			}
		})
	}
}
