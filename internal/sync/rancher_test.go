package sync

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/stamp"
)

// TestStepsBesideRancher checks the steps for each decision on Rancher's objects, combined with
// different states of Muster's objects.
func TestStepsBesideRancher(t *testing.T) {
	theirs := types.NamespacedName{Namespace: "workspace", Name: "c-abcde"}
	own := &metFleet{relation: stamp.Own, owned: true, ours: true}
	foreign := &metFleet{relation: stamp.Foreign}
	attachment := []step{checkNames, applyStamp, readCopies, attach}
	usual := []step{checkNames, applyStamp, ensureTargets, readCopies, applyFleetCluster}
	for name, test := range map[string]struct {
		met      met
		relation rancher.Relation
		// stray: an earlier attachment is still there; attached: this one is; found: Rancher's Fleet Cluster is there.
		stray, attached, found bool
		unresolved             string
		others                 []string
		steps                  []step
		state                  string
	}{
		"it waits":                        {met: met{selected: true, initialized: true}, relation: rancher.Relation{Way: rancher.Wait, For: "x"}, steps: []step{checkNames, applyStamp}, state: "False WaitingForRancher"},
		"it waits, its name is taken":     {met: met{selected: true, initialized: true, fleet: foreign}, relation: rancher.Relation{Way: rancher.Wait, For: "x"}, steps: []step{checkNames, applyStamp}, state: "False WaitingForRancher"},
		"it waits, stray":                 {met: met{selected: true, initialized: true}, stray: true, relation: rancher.Relation{Way: rancher.Wait, For: "x"}, steps: []step{checkNames, applyStamp}, state: "False WaitingForRancher"},
		"it is attached, stray":           {met: met{selected: true}, attached: true, found: true, stray: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: append(slices.Clone(attachment), detach), state: "True Attached"},
		"both, stray":                     {met: met{selected: true, initialized: true, pinned: true, fleet: own}, stray: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: append([]step{checkNames, applyStamp, detach}, usual[2:]...), state: "True DoubleImport"},
		"it is imported, stray":           {met: met{selected: true, initialized: true}, stray: true, steps: append([]step{checkNames, applyStamp, detach}, usual[2:]...), state: "True Imported"},
		"one is left over":                {met: met{selected: true, fleet: &metFleet{relation: stamp.Orphan, ours: true}}, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "True DoubleImport"},
		"one is handed over":              {met: met{selected: true, fleet: &metFleet{relation: stamp.HandedOver}}, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "True DoubleImport"},
		"it is attached":                  {met: met{selected: true}, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "True Attached"},
		"others have set a field":         {met: met{selected: true}, found: true, others: []string{"x"}, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "True Attached"},
		"it is gone meanwhile":            {met: met{selected: true}, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "False WaitingForRancher"},
		"no values yet":                   {met: met{selected: true}, found: true, unresolved: "x", relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: []step{checkNames, applyStamp, readCopies}, state: "False TemplateValuesUnresolved"},
		"no values now":                   {met: met{selected: true}, attached: true, found: true, unresolved: "x", relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: attachment, state: "True TemplateValuesUnresolved"},
		"both":                            {met: met{selected: true, initialized: true, pinned: true, fleet: own}, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: usual, state: "True DoubleImport"},
		"Rancher's is to come":            {met: met{selected: true, initialized: true, pinned: true, fleet: own}, relation: rancher.Relation{Way: rancher.Wait, For: "x"}, steps: usual, state: "True Imported"},
		"Muster's goes":                   {met: met{selected: true, initialized: true, pinned: true, fleet: &metFleet{relation: stamp.Own, owned: true, ours: true, deleted: true}}, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: []step{checkNames, applyStamp, ensureTargets}, state: "False FleetClusterDeleting"},
		"imported again":                  {met: met{selected: true, initialized: true}, stray: true, steps: append([]step{checkNames, applyStamp, detach}, usual[2:]...), state: "True Imported"},
		"imported all the same":           {met: met{selected: true, initialized: true}, relation: rancher.Relation{Fleet: theirs}, steps: usual, state: "True DoubleImport"},
		"paused":                          {met: met{selected: true, annotationPaused: true}, attached: true, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, state: "True Paused"},
		"deselected, it stays attached":   {met: met{pinned: true}, attached: true, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: []step{applyStamp}, state: "True Deselected"},
		"deselected, it is to be removed": {met: met{pinned: true, deleteDeselected: true}, attached: true, found: true, relation: rancher.Relation{Way: rancher.Attach, Fleet: theirs}, steps: []step{withdraw}, state: " "},
		"an older Turtles":                {met: met{selected: true, initialized: true}, relation: rancher.Relation{RemovesAgent: true}, steps: usual, state: "True Imported"},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.met.scope()
			s.rancher, s.isElsewhere = test.relation, test.stray
			if test.attached {
				s.attached = &fleetv1.Cluster{}
			}
			do := &played{T: t, effect: func(s *scope, next step) {
				switch next {
				case readCopies:
					s.unresolved = test.unresolved
				case applyFleetCluster:
					s.fleet, s.relation = own.object(), stamp.Own
				case attach:
					s.others = test.others
					if test.found {
						s.attached = &fleetv1.Cluster{}
					}
				case detach:
					s.isElsewhere = false
				}
			}}
			result := do.run(s)
			if diff := cmp.Diff(test.steps, do.steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			state := " "
			if len(result.conditions) > 0 {
				state = string(result.conditions[0].Status) + " " + result.conditions[0].Reason
			}
			if state != test.state {
				t.Errorf("got %q, want %q", state, test.state)
			}
		})
	}
}
