package rollout

import (
	"fmt"
	"strconv"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view/targets"
)

// State is the progress of an upgrade on a Cluster.
type State int

// The states.
const (
	// Old means that the Cluster has the old version, ready.
	Old State = iota
	// Broken means that the Cluster has the old version, not ready.
	Broken
	// Moved means that the Cluster has the new version, not ready yet.
	Moved
	// Done means that the Cluster has the new version, ready.
	Done
)

func (s State) isUnavailable() bool { return s == Broken || s == Moved }

// Strategy is a rolloutStrategy for the Clusters of a Bundle, with its numbers resolved.
type Strategy struct {
	partitions []partition
	// most is how many Clusters may be unavailable, and mostPartitions is how many partitions may.
	most, mostPartitions int
}

type partition struct {
	// members are indexes of Clusters.
	members []int
	// most is how many of the members may be unavailable.
	most int
}

// NewStrategy resolves the rolloutStrategy of a Bundle that lists partitions. Fleet changes nothing about a Bundle
// for which this returns an error.
func NewStrategy(in *fleetv1.RolloutStrategy, members []*targets.Member) (*Strategy, error) {
	result := &Strategy{}
	var err error
	if result.most, err = limit(len(members), in.MaxUnavailable); err != nil {
		return nil, err
	}
	if result.mostPartitions, err = limit(len(in.Partitions), in.MaxUnavailablePartitions, ptr.To(intstr.FromInt32(0))); err != nil {
		return nil, err
	}
	lists, err := targets.PartitionsOf(in.Partitions, members)
	if err != nil {
		return nil, err
	}
	for i, list := range lists {
		most, err := limit(len(list), in.Partitions[i].MaxUnavailable, in.MaxUnavailable)
		if err != nil {
			return nil, err
		}
		result.partitions = append(result.partitions, partition{list, most})
	}
	return result, nil
}

// limit returns how many of count the first value that is set allows; all, if no value is set. As in Fleet, a
// percentage is rounded down, but to at least 1, and the limit of an empty partition is 1.
func limit(count int, values ...*intstr.IntOrString) (int, error) {
	if count <= 0 {
		return 1, nil
	}
	value := intstr.FromString("100%")
	for _, given := range values {
		if given != nil {
			value = *given
			break
		}
	}
	if value.Type == intstr.Int {
		return min(max(0, value.IntValue()), count), nil
	}
	if number := value.IntValue(); number > 0 {
		return number, nil // A number like "3" may exceed the count.
	}
	text, isPercentage := strings.CutSuffix(value.StrVal, "%")
	percent, err := strconv.ParseFloat(text, 64)
	if !isPercentage || err != nil {
		return 0, fmt.Errorf("%q is neither a number nor a percentage", value.StrVal)
	}
	return min(max(1, int(float64(count)*percent)/100), count), nil
}

// Pass takes the next step of an upgrade, as Fleet does in each reconcile of a Bundle, and changes the states
// of the Clusters that get the new version.
func (s *Strategy) Pass(states []State) {
	s.pass(states, 0, func(int) bool { return true })
}

// pass is Pass starting at a partition; the earlier ones are done. It calls moved for each Cluster that gets the
// new version, and ends early when moved returns false.
func (s *Strategy) pass(states []State, from int, moved func(member int) bool) {
	p := &pass{states: states, most: s.most, moved: moved, upgraded: map[int]bool{}}
	anyBroken := false
	for _, state := range states {
		if state.isUnavailable() {
			p.unavailable++
		}
		anyBroken = anyBroken || state == Broken
	}
	partitions := 0
	for _, partition := range s.partitions[from:] {
		lagging, goesOn := p.update(partition)
		if lagging > partition.most {
			partitions++
		}
		if !goesOn || partitions > s.mostPartitions || p.unavailable >= s.most && !anyBroken {
			return
		}
	}
}

// pass is one step over all partitions.
type pass struct {
	states []State
	// unavailable is how many of all Clusters are unavailable, and most is how many may be.
	unavailable, most int
	// upgraded are the Clusters that were ready before this pass.
	upgraded map[int]bool
	moved    func(member int) bool
}

// update gives the new version to as many Clusters of a partition as the limits allow. It returns how many of
// them are not done.
func (p *pass) update(of partition) (lagging int, goesOn bool) {
	within := 0
	for _, member := range of.members {
		if p.states[member].isUnavailable() && !p.upgraded[member] {
			within++ // Fleet has counted these before the pass.
		}
	}
	for _, member := range of.members {
		isDue := p.states[member] == Broken
		if p.states[member] == Old && p.unavailable < p.most && within < of.most {
			p.unavailable, within = p.unavailable+1, within+1
			p.upgraded[member], isDue = true, true
		}
		if isDue {
			p.states[member] = Moved
			if !p.moved(member) {
				return 0, false
			}
		}
		if p.states[member] != Done {
			lagging++
		}
	}
	return lagging, true
}
