package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Selection specifies the Clusters of a stage: those that Matches selects, or, if it is nil, a percentage of all.
type Selection struct {
	Matches func(cluster types.NamespacedName) bool
	Percent int
}

// Assign returns the index of the stage of each Cluster; len(stages) for Clusters that no stage has. A percentage
// takes the Clusters with the smallest hashes of their names, so that few change their stage when Clusters are
// added or removed.
func Assign(stages []Selection, all []types.NamespacedName) map[types.NamespacedName]int {
	ranked := slices.Clone(all)
	slices.SortFunc(ranked, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.String(), b.String()))
	})
	result := map[types.NamespacedName]int{}
	for _, its := range all {
		result[its] = len(stages)
	}
	for i, stage := range stages {
		left := (len(all)*stage.Percent + 99) / 100
		for _, its := range ranked {
			isFree := result[its] == len(stages)
			switch {
			case isFree && stage.Matches != nil && stage.Matches(its):
				result[its] = i
			case isFree && stage.Matches == nil && left > 0:
				result[its] = i
				left--
			}
		}
	}
	return result
}

func rank(cluster types.NamespacedName) uint64 {
	sum := sha256.Sum256([]byte(cluster.String()))
	return binary.BigEndian.Uint64(sum[:8])
}
