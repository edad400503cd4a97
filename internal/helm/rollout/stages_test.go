package rollout

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The first stage that selects a Cluster has it. A percentage is of all Clusters, rounded up, and few Clusters
// change their stage when others are added.
func TestAssign(t *testing.T) {
	var all []types.NamespacedName
	for i := range 41 {
		all = append(all, inNS(fmt.Sprint("c", i)))
	}
	isFirst := func(its types.NamespacedName) bool { return its == inNS("c0") }
	stages := []Selection{{Matches: isFirst}, {Percent: 10}, {Matches: func(its types.NamespacedName) bool { return its == inNS("c0") || its == inNS("c1") }}}
	before := Assign(stages, all[:40])
	count := map[int]int{}
	for _, stage := range before {
		count[stage]++
	}
	if before[inNS("c0")] != 0 || count[0] != 1 || count[1] != 4 || count[2]+count[3] != 35 {
		t.Errorf("%v", count)
	}
	after, changed := Assign(stages, all), 0
	for its, stage := range before {
		if after[its] != stage {
			changed++
		}
	}
	if again := Assign(stages, all); changed > 1 || len(after) != 41 || fmt.Sprint(again) != fmt.Sprint(after) {
		t.Errorf("%d Clusters changed their stage", changed)
	}
	if tiny := Assign([]Selection{{Percent: 1}}, all[:1]); tiny[all[0]] != 0 {
		t.Error("one percent of one Cluster is none")
	}
}
