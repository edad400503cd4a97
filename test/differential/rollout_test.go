package differential

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view/rollout"
	"github.com/muster-fleet/muster/internal/view/targets"
)

func value(number int32) *intstr.IntOrString  { return ptr.To(intstr.FromInt32(number)) }
func percent(text string) *intstr.IntOrString { return ptr.To(intstr.FromString(text)) }

// limit draws a maxUnavailable, and rarely one that cannot be used.
func (d drawer) limit() *intstr.IntOrString {
	switch d.IntN(8) {
	case 0, 1, 2:
		return nil
	case 3:
		return percent(d.one("0%", "20%", "50%", "67.5%", "100%", "250%", "-5%"))
	case 4:
		if d.IntN(6) == 0 {
			return percent(d.one("0", "some", "1", "4", "%"))
		}
		return value(0)
	default:
		return value(int32(d.IntN(5)) - 1)
	}
}

// rollout draws a Bundle in the middle of an upgrade.
func (d drawer) rollout() *question {
	q := &question{Bundle: &fleetv1.Bundle{}}
	q.Bundle.Namespace, q.Bundle.Name = "lib", "bundle"
	q.Bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	strategy := &fleetv1.RolloutStrategy{MaxUnavailable: d.limit()}
	if d.IntN(3) == 0 {
		strategy.MaxUnavailablePartitions = d.limit()
	}
	for i := range 1 + d.IntN(4) {
		partition := fleetv1.Partition{Name: fmt.Sprint(i), MaxUnavailable: d.limit(), ClusterName: d.maybe("c0", "c1", "c2"), ClusterGroup: d.maybe("g0", "g1")}
		if partition.ClusterName == "" || d.IntN(4) == 0 {
			partition.ClusterSelector = d.selector()
		}
		strategy.Partitions = append(strategy.Partitions, partition)
	}
	q.Bundle.Spec.RolloutStrategy = strategy
	q.Namespaces = []*corev1.Namespace{{}}
	q.Namespaces[0].Name = "lib"
	for i := range 2 + d.IntN(6) {
		cluster := &fleetv1.Cluster{}
		cluster.Namespace, cluster.Name, cluster.Labels = "lib", fmt.Sprintf("c%d", i), d.labels()
		q.Clusters, q.States = append(q.Clusters, cluster), append(q.States, rollout.State(d.IntN(4)*d.IntN(2)))
	}
	for i := range 2 {
		group := &fleetv1.ClusterGroup{}
		group.Namespace, group.Name, group.Labels, group.Spec.Selector = "lib", fmt.Sprintf("g%d", i), d.labels(), d.selector()
		q.Groups = append(q.Groups, group)
	}
	return q
}

// membersOf returns the Clusters that the Bundle of a question is for.
func membersOf(t *testing.T, q *question) []*targets.Member {
	t.Helper()
	members, err := targets.NewIndex(q.Clusters, q.Groups, q.Mappings, nil).MembersOf(q.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	return members
}

// step takes a step by our rules.
func step(t *testing.T, q *question) (moved []string, failed bool) {
	members := membersOf(t, q)
	strategy, err := rollout.NewStrategy(q.Bundle.Spec.RolloutStrategy, members)
	if err != nil {
		return nil, true
	}
	of := map[string]rollout.State{}
	for i, cluster := range q.Clusters {
		of[cluster.Name] = q.States[i]
	}
	var states []rollout.State
	for _, member := range members {
		states = append(states, of[member.Name])
	}
	strategy.Pass(states)
	for i, state := range states {
		if state == rollout.Moved || state == rollout.Done {
			moved = append(moved, members[i].String())
		}
	}
	return moved, false
}

// TestRolloutAgainstFleet compares the steps of rollouts, on thousands of cases.
func TestRolloutAgainstFleet(t *testing.T) {
	const cases = 6000
	d := drawer{rand.New(rand.NewPCG(25, 11))}
	var asked []*question
	for range cases {
		asked = append(asked, d.rollout())
	}
	some, all, failed, wrong := 0, 0, 0, 0
	for i, want := range askFleet(t, buildFleet(t), asked) {
		q := asked[i]
		got, gotFailed := step(t, q)
		switch {
		case want.Error != "" || want.RolloutError != "":
			failed++
		case len(want.Moved) == len(want.Targets):
			all++
		default:
			some++
		}
		if want.Error != "" || gotFailed != (want.RolloutError != "") || !gotFailed && !slices.Equal(got, want.Moved) {
			if wrong++; wrong <= 3 {
				text, _ := json.Marshal(q)
				t.Errorf("case %d: got %v, failed %v; Fleet says %+v:\n%s", i, got, gotFailed, want, text)
			}
		}
	}
	t.Logf("%d cases: %d that move some Clusters, %d all, %d with an error; %d differ", cases, some, all, failed, wrong)
	if some < cases/10 || all < cases/20 || failed < cases/100 {
		t.Error("the cases are too much alike")
	}
}

// TestRows runs Fleet's code on the strategies that `kubectl muster check` warns of, and on its advice. There are
// four Clusters; c0 is the canary, and c0 to c2 have the label env=three.
func TestRows(t *testing.T) {
	const old, moved, done = rollout.Old, rollout.Moved, rollout.Done
	env := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"env": value}}
	}
	canary := func(limit *intstr.IntOrString) fleetv1.Partition {
		return fleetv1.Partition{Name: "canary", ClusterName: "c0", MaxUnavailable: limit}
	}
	three := func(limit *intstr.IntOrString) fleetv1.Partition {
		return fleetv1.Partition{Name: "three", ClusterSelector: env("three"), MaxUnavailable: limit}
	}
	rest := fleetv1.Partition{Name: "rest", ClusterSelector: &metav1.LabelSelector{}}
	fleet := buildFleet(t)
	for name, test := range map[string]struct {
		strategy fleetv1.RolloutStrategy
		states   []rollout.State
		want     string
		// warned is the reason of the only warning.
		warned string
	}{
		"A: no maxUnavailable":           {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.AllAtOnce},
		"A: 100%":                        {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(percent("100%")), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.AllAtOnce},
		"B: one Cluster, 1":              {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(value(1)), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.TooSmall},
		"B: one Cluster, 10%":            {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(percent("10%")), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.TooSmall},
		"B: three Clusters, 3":           {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(value(3)), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.TooSmall},
		"B: one Cluster, 1 of a Bundle":  {fleetv1.RolloutStrategy{MaxUnavailable: value(1), Partitions: []fleetv1.Partition{canary(nil), rest}}, []rollout.State{old, old, old, old}, "[c0]", ""},
		"the same, the next step":        {fleetv1.RolloutStrategy{MaxUnavailable: value(1), Partitions: []fleetv1.Partition{canary(nil), rest}}, []rollout.State{done, old, old, old}, "[c0 c1]", ""},
		"B: one Cluster, 2 of a Bundle":  {fleetv1.RolloutStrategy{MaxUnavailable: value(2), Partitions: []fleetv1.Partition{canary(nil), rest}}, []rollout.State{old, old, old, old}, "[c0 c1]", rollout.TooSmall},
		"C: 0":                           {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(value(0)), rest}}, []rollout.State{old, old, old, old}, "[]", rollout.NeverStarts},
		"C: 0 of a Bundle":               {fleetv1.RolloutStrategy{MaxUnavailable: value(0), Partitions: []fleetv1.Partition{canary(value(1)), rest}}, []rollout.State{old, old, old, old}, "[]", rollout.NeverStarts},
		"C: 0% is 1":                     {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(percent("0%")), rest}}, []rollout.State{old, old, old, old}, "[c0]", ""},
		"F: in no partition":             {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(nil)}}, []rollout.State{old, old, old, old}, "[c0 c1 c2]", rollout.InNoPartition},
		"F: new, in no partition":        {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(nil)}}, []rollout.State{done, done, done}, "[c0 c1 c2]", rollout.InNoPartition},
		"new, in a partition":            {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(nil), {Name: "c3", ClusterName: "c3"}}}, []rollout.State{done, done, done}, "[c0 c1 c2 c3]", rollout.AllAtOnce},
		"G: three, one at a time":        {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(value(1)), rest}}, []rollout.State{old, old, old, old}, "[c0]", ""},
		"G: two are ready":               {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(value(1)), rest}}, []rollout.State{done, done, old, old}, "[c0 c1 c2 c3]", ""},
		"unavailable partitions":         {fleetv1.RolloutStrategy{MaxUnavailablePartitions: percent("10%"), Partitions: []fleetv1.Partition{three(value(1)), rest}}, []rollout.State{old, old, old, old}, "[c0 c1 c2 c3]", rollout.PartitionsSkipped},
		"instead: listed twice":          {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), canary(value(0)), rest}}, []rollout.State{old, old, old, old}, "[c0]", ""},
		"instead: not ready yet":         {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), canary(value(0)), rest}}, []rollout.State{moved, old, old, old}, "[c0]", ""},
		"instead: ready":                 {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), canary(value(0)), rest}}, []rollout.State{done, old, old, old}, "[c0 c1 c2 c3]", ""},
		"instead: three, one is missing": {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{three(nil), three(value(0)), rest}}, []rollout.State{done, moved, done, old}, "[c0 c1 c2]", ""},
		"instead: a new Cluster":         {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), canary(value(0)), rest}}, []rollout.State{done, done, done}, "[c0 c1 c2 c3]", ""},
		"instead: all are new":           {fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{canary(nil), canary(value(0)), rest}}, nil, "[c0]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := &question{Bundle: &fleetv1.Bundle{}, Namespaces: []*corev1.Namespace{{}}, States: test.states}
			q.Bundle.Namespace, q.Bundle.Name, q.Namespaces[0].Name = "lib", "bundle", "lib"
			q.Bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
			q.Bundle.Spec.RolloutStrategy = &test.strategy
			for i := range 4 {
				cluster := &fleetv1.Cluster{}
				cluster.Namespace, cluster.Name, cluster.Labels = "lib", fmt.Sprintf("c%d", i), map[string]string{"env": "three"}
				if i == 3 {
					cluster.Labels = nil
				}
				q.Clusters = append(q.Clusters, cluster)
			}
			answer := askFleet(t, fleet, []*question{q})[0]
			var got []string
			for _, name := range answer.Moved {
				got = append(got, name[len("lib/"):])
			}
			if answer.Error+answer.RolloutError != "" || fmt.Sprint(got) != test.want {
				t.Errorf("Fleet moves %v, want %s: %+v", got, test.want, answer)
			}
			var warned []string
			for _, warning := range rollout.Warnings(q.Bundle, membersOf(t, q)) {
				warned = append(warned, warning.Reason)
			}
			if want := []string{test.warned}; test.warned == "" && len(warned) > 0 || test.warned != "" && !slices.Equal(warned, want) {
				t.Errorf("warned of %v, want %q", warned, test.warned)
			}
		})
	}
}
