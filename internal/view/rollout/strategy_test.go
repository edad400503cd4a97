package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/muster-fleet/muster/internal/view/targets"
)

func TestLimit(t *testing.T) {
	for name, test := range map[string]struct {
		count  int
		values []*intstr.IntOrString
		want   int
		failed bool
	}{
		"no value allows all":             {count: 7, want: 7},
		"the first value counts":          {count: 7, values: []*intstr.IntOrString{nil, count(2), count(3)}, want: 2},
		"0":                               {count: 7, values: []*intstr.IntOrString{count(0)}},
		"less than 0":                     {count: 7, values: []*intstr.IntOrString{count(-1)}},
		"more than the count":             {count: 7, values: []*intstr.IntOrString{count(9)}, want: 7},
		"a percentage, down":              {count: 7, values: []*intstr.IntOrString{percent("50%")}, want: 3},
		"a percentage, at least 1":        {count: 7, values: []*intstr.IntOrString{percent("0%")}, want: 1},
		"a percentage, rounded down to 7": {count: 7, values: []*intstr.IntOrString{percent("200%")}, want: 7},
		"a number as text":                {count: 7, values: []*intstr.IntOrString{percent("9")}, want: 9},
		"0 as text":                       {count: 7, values: []*intstr.IntOrString{percent("0")}, failed: true},
		"another text":                    {count: 7, values: []*intstr.IntOrString{percent("some%")}, failed: true},
		"an empty partition":              {values: []*intstr.IntOrString{count(0)}, want: 1},
	} {
		got, err := limit(test.count, test.values...)
		if got != test.want || (err != nil) != test.failed {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, test.want)
		}
	}
}

// TestPass takes a step with a partition for the first Cluster, one for the first three, and one for all four.
// test/differential compares many more with Fleet's own code.
func TestPass(t *testing.T) {
	for name, test := range map[string]struct {
		one, three, all, bundle, partitions *intstr.IntOrString
		states, want                        []State
	}{
		"no limits":                                     {states: []State{Old, Old, Old, Old}, want: []State{Moved, Moved, Moved, Moved}},
		"a partition's limit":                           {three: count(1), states: []State{Old, Old, Old, Old}, want: []State{Moved, Moved, Old, Old}},
		"the Bundle's limit":                            {bundle: count(3), three: percent("100%"), states: []State{Old, Old, Old, Old}, want: []State{Moved, Moved, Moved, Old}},
		"the Bundle's limit, partly used":               {bundle: count(2), three: percent("100%"), states: []State{Old, Old, Old, Old}, want: []State{Moved, Moved, Old, Old}},
		"the Bundle's limit applies to a partition":     {bundle: percent("50%"), states: []State{Done, Old, Old, Old}, want: []State{Done, Moved, Old, Old}},
		"broken Clusters are updated, too":              {bundle: count(1), one: count(1), states: []State{Old, Broken, Broken, Old}, want: []State{Old, Moved, Moved, Old}},
		"not ready yet":                                 {three: count(1), states: []State{Done, Moved, Old, Old}, want: []State{Done, Moved, Old, Old}},
		"one Cluster may lag":                           {three: count(1), states: []State{Done, Done, Old, Old}, want: []State{Done, Done, Moved, Moved}},
		"nothing left to update, but not all are ready": {three: count(0), states: []State{Done, Done, Moved, Old}, want: []State{Done, Done, Moved, Old}},
		"a partition may lag":                           {three: count(0), partitions: count(1), states: []State{Done, Moved, Old, Old}, want: []State{Done, Moved, Moved, Moved}},
	} {
		var members []*targets.Member
		for _, name := range []string{"a", "b", "c", "d"} {
			label := map[string]string{"a": "1", "b": "3", "c": "3"}[name]
			members = append(members, targets.NewMember(is(name, label), nil))
		}
		in := &fleetv1.RolloutStrategy{MaxUnavailable: test.bundle, MaxUnavailablePartitions: test.partitions, Partitions: []fleetv1.Partition{
			{ClusterName: "a", MaxUnavailable: test.one},
			{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"1", "3"}}}}, MaxUnavailable: test.three},
			{ClusterSelector: &metav1.LabelSelector{}, MaxUnavailable: test.all},
		}}
		strategy, err := NewStrategy(in, members)
		if err != nil {
			t.Fatal(err)
		}
		strategy.Pass(test.states)
		if diff := cmp.Diff(test.want, test.states); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
