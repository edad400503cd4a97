package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/targets"
)

// Reasons of warnings, in this order.
const (
	// NeverStarts means that a partition has Clusters to update, and its maxUnavailable is 0.
	NeverStarts = "NeverStarts"
	// AllAtOnce means that Fleet does not wait for a partition because all of it may be unavailable, the default.
	AllAtOnce = "AllAtOnce"
	// TooSmall means that Fleet does not wait for a partition because it has at most as many Clusters as may be unavailable.
	TooSmall = "PartitionTooSmall"
	// PartitionsSkipped means that Fleet does not wait for a partition because of maxUnavailablePartitions.
	PartitionsSkipped = "PartitionsSkipped"
	// PartitionEmpty means that all Clusters are in one partition, and the earlier ones are empty.
	PartitionEmpty = "PartitionEmpty"
	// InNoPartition means that the Bundle is for Clusters that are in no partition.
	InNoPartition = "InNoPartition"
	// NoPartitions means that Fleet makes no partitions, because the Bundle has too few Clusters.
	NoPartitions = "NoPartitions"
	// TooMany means that a Bundle has too many partitions to check.
	TooMany = "TooManyPartitions"
)

const (
	// mostPartitions limits the work for a Bundle, which has room for tens of thousands of partitions.
	mostPartitions = 500
	// mostNames limits the partitions or Clusters that a warning names, and mostDefinition the bytes of a partition's
	// definition.
	mostNames, mostDefinition = 3, 400
	// defaultThreshold is the number of Clusters from which Fleet makes partitions.
	defaultThreshold = 200
)

// IsChecked reports whether people wrote the Bundle's partitions, or let Fleet make some, with or without a GitRepo or HelmOp. The Bundle
// of a HelmChartProxy has Muster's, which leave Clusters out to hold them back.
func IsChecked(bundle *fleetv1.Bundle) bool {
	_, isMusters := bundle.Labels[stamp.HelmChartProxyLabel]
	strategy := bundle.Spec.RolloutStrategy
	return !isMusters && bundle.DeletionTimestamp.IsZero() && strategy != nil &&
		(len(strategy.Partitions) > 0 || strategy.AutoPartitionSize != nil || strategy.AutoPartitionThreshold != nil)
}

// Warnings returns warnings about the partitions of a Bundle that deploys to these Clusters.
func Warnings(bundle *fleetv1.Bundle, members []*targets.Member) []*view.Node {
	if !IsChecked(bundle) {
		return nil
	}
	w := &warner{bundle: bundle, in: bundle.Spec.RolloutStrategy, members: members}
	if len(w.in.Partitions) == 0 {
		w.automatic()
		return w.warnings
	}
	if count := len(w.in.Partitions); count > mostPartitions {
		w.add(TooMany, "write fewer", "its rolloutStrategy has %d partitions, of which none was checked: the limit is %d", count, mostPartitions)
		return w.warnings
	}
	strategy, err := NewStrategy(w.in, members)
	if err != nil {
		return nil // Fleet itself reports this error in the Bundle's conditions.
	}
	w.strategy = strategy
	w.findFirst()
	if w.strategy.most == 0 {
		w.add(NeverStarts, "write at least 1, or remove it; 0% means 1", "no upgrade starts: the maxUnavailable of its rolloutStrategy is %s", w.in.MaxUnavailable.String())
	} else {
		w.rehearse()
	}
	w.leftOut()
	return w.warnings
}

// automatic warns about partitions that Fleet makes itself. A threshold or a size of 0 turns them off.
func (w *warner) automatic() {
	threshold, size := ptr.Deref(w.in.AutoPartitionThreshold, defaultThreshold), w.in.AutoPartitionSize
	isOff := threshold <= 0 || size != nil && size.Type == intstr.Int && size.IntVal <= 0
	switch count := len(w.members); {
	case isOff || count == 0:
	case count < threshold:
		w.add(NoPartitions, fmt.Sprintf("write an autoPartitionThreshold of at most %d, or list partitions", count),
			"Fleet makes no partitions: it has %s, and autoPartitionThreshold is %d", clusters(count), threshold)
	case w.in.MaxUnavailable == nil:
		w.add(AllAtOnce, "write a maxUnavailable", "Fleet does not wait for any of its partitions: without a maxUnavailable, 100%% may be unavailable")
	case isAll(w.in.MaxUnavailable):
		w.add(AllAtOnce, "write a smaller maxUnavailable", "Fleet does not wait for any of its partitions: maxUnavailable is %s", w.in.MaxUnavailable.String())
	}
}

type warner struct {
	bundle   *fleetv1.Bundle
	in       *fleetv1.RolloutStrategy
	members  []*targets.Member
	strategy *Strategy
	// first is the first partition of each member, or -1; counts is how many members have each partition as their
	// first.
	first, counts []int

	warnings []*view.Node
}

func (w *warner) findFirst() {
	w.first, w.counts = make([]int, len(w.members)), make([]int, len(w.strategy.partitions))
	for i := range w.first {
		w.first[i] = -1
	}
	for i, partition := range w.strategy.partitions {
		for _, member := range partition.members {
			if w.first[member] < 0 {
				w.first[member] = i
				w.counts[i]++
			}
		}
	}
}

// rehearse simulates an upgrade. At each partition's turn, the earlier ones are done, and none of its own Clusters
// becomes ready. If Fleet then updates a Cluster of a later partition, it does not wait for this one.
func (w *warner) rehearse() {
	causes := map[string][]int{}
	last := -1
	for i, count := range w.counts {
		if count > 0 {
			last = i
		}
	}
	for i := range w.counts {
		if w.counts[i] == 0 {
			continue // This partition lists the same Clusters again, which makes Fleet wait for them.
		}
		moves, goesOn := w.turn(i, w.strategy)
		switch {
		case !moves:
			causes[NeverStarts] = append(causes[NeverStarts], i)
			if !goesOn {
				last = i
			}
		case i == last || !goesOn:
		default:
			cause := w.causeOf(i)
			causes[cause] = append(causes[cause], i)
		}
		if i == last {
			break
		}
	}
	w.explain(causes)
	if last > 0 && w.counts[last] > 1 && !slices.ContainsFunc(w.counts[:last], func(count int) bool { return count > 0 }) && len(causes) == 0 {
		w.add(PartitionEmpty, "correct its selector", "none of its %s is in %s, so all of them are updated with %s",
			clusters(len(w.members)), w.names(upTo(last)), w.names([]int{last}))
	}
}

// turn simulates the turn of a partition. It returns whether one of its Clusters gets the new version, and whether
// a Cluster of a later partition does, too.
func (w *warner) turn(at int, strategy *Strategy) (moves, goesOn bool) {
	states := make([]State, len(w.members))
	for member, first := range w.first {
		if first >= 0 && first < at {
			states[member] = Done
		}
	}
	strategy.pass(states, at, func(member int) bool {
		if w.first[member] == at {
			moves = true
		} else {
			goesOn = true
		}
		return !moves || !goesOn
	})
	return moves, goesOn
}

// causeOf returns why Fleet does not wait for a partition.
func (w *warner) causeOf(at int) string {
	strict := *w.strategy
	strict.mostPartitions = 0
	if _, goesOn := w.turn(at, &strict); !goesOn {
		return PartitionsSkipped
	}
	if value, _ := w.limitOf(at); value == nil || isAll(value) {
		return AllAtOnce
	}
	return TooSmall
}

// limitOf returns the effective maxUnavailable of a partition, nil for the default, and where it is set.
func (w *warner) limitOf(at int) (value *intstr.IntOrString, where string) {
	if value := w.in.Partitions[at].MaxUnavailable; value != nil {
		return value, "its maxUnavailable"
	}
	return w.in.MaxUnavailable, "the Bundle's maxUnavailable"
}

func isAll(value *intstr.IntOrString) bool {
	text, isPercentage := strings.CutSuffix(value.StrVal, "%")
	percent, err := strconv.ParseFloat(text, 64)
	return value.Type == intstr.String && isPercentage && err == nil && percent >= 100
}

// explain adds a warning for each cause.
func (w *warner) explain(causes map[string][]int) {
	for _, cause := range []string{NeverStarts, AllAtOnce, TooSmall, PartitionsSkipped} {
		partitions := causes[cause]
		if len(partitions) == 0 {
			continue
		}
		value, where := w.limitOf(partitions[0])
		switch names := w.names(partitions); cause {
		case NeverStarts:
			w.add(cause, "write at least 1 (0% means 1); 0 is useful only if a partition lists the same Clusters a second time, so that Fleet waits for them",
				"no upgrade of %s starts: %s is %s", names, where, value.String())
		case AllAtOnce:
			means := "without a maxUnavailable, 100% may be unavailable"
			if value != nil {
				means = fmt.Sprintf("%s is %s", where, value.String())
			}
			w.add(cause, w.adviseGate(partitions[0]), "Fleet does not wait for %s and updates the next one in the same pass: %s", names, means)
		case TooSmall:
			why := fmt.Sprintf("it has %s to update, and %s is %s", clusters(w.counts[partitions[0]]), where, value.String())
			if len(partitions) > 1 {
				why = fmt.Sprintf("they have %s Clusters to update, and that many may be unavailable", w.sizes(partitions))
			}
			w.add(cause, w.adviseGate(partitions[0]), "Fleet does not wait for %s and updates the next one in the same pass: %s", names, why)
		default:
			w.add(cause, "remove maxUnavailablePartitions, or write 0; a percentage is at least 1", "Fleet does not wait for %s: maxUnavailablePartitions is %s, so the partition may stay unavailable",
				names, w.in.MaxUnavailablePartitions.String())
		}
	}
}

// adviseGate returns the partition that makes Fleet wait for another: it has the same Clusters, of which none may
// be unavailable. At its turn they have been updated, so a limit of 0 delays only later partitions.
func (w *warner) adviseGate(at int) string {
	again := w.in.Partitions[at]
	again.Name, again.MaxUnavailable = w.name(at)+"-ready", ptr.To(intstr.FromInt32(0))
	return fmt.Sprintf("list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: %s", definition(again))
}

// leftOut warns about the Clusters that are in no partition.
func (w *warner) leftOut() {
	var out []string
	for member, first := range w.first {
		if first < 0 {
			out = append(out, w.members[member].String())
		}
	}
	if len(out) == 0 {
		return
	}
	w.add(InNoPartition, "add a last partition for all other Clusters: "+definition(fleetv1.Partition{Name: "rest", ClusterSelector: &metav1.LabelSelector{}}),
		"%d of its %s in no partition: a new Cluster gets no BundleDeployment, and one that has the Bundle is never updated: %s", len(out), clustersAre(len(w.members), len(out)), list(out))
}

func clustersAre(all, out int) string {
	if out == 1 {
		return clusters(all) + " is"
	}
	return clusters(all) + " are"
}

func (w *warner) add(reason, do, format string, args ...any) {
	key := w.bundle.Namespace + "/" + w.bundle.Name
	where := "in the Bundle"
	source := view.SourceOf(w.bundle.Labels)
	switch kind, _, _ := strings.Cut(source, " "); kind {
	case "GitRepo":
		where = "in its fleet.yaml"
	case "HelmOp":
		where = "in the HelmOp"
	}
	node := &view.Node{
		ID: message.Text("rollout/" + reason + "/" + key), Kind: view.Bundle, Namespace: message.Text(w.bundle.Namespace), Name: message.Text(w.bundle.Name),
		State: view.Problem, Reason: reason, Message: message.Text(fmt.Sprintf(format, args...)), Turn: "the Bundle's author", Do: message.Text(where + ", " + do),
	}
	if source != "" {
		node.Facts = []view.Fact{{Name: view.FactSource, Value: message.Text(source)}}
	}
	w.warnings = append(w.warnings, node)
}

func (w *warner) name(at int) string {
	if name := w.in.Partitions[at].Name; name != "" {
		return name
	}
	return fmt.Sprintf("partition-%d", at+1)
}

func (w *warner) names(partitions []int) string {
	var names []string
	for _, at := range partitions {
		names = append(names, strconv.Quote(message.Short(w.name(at), mostDefinition)))
	}
	if len(names) == 1 {
		return "partition " + names[0]
	}
	return "partitions " + list(names)
}

// sizes returns how many Clusters remain to be updated at the turn of each partition.
func (w *warner) sizes(partitions []int) string {
	var sizes []string
	for _, at := range partitions {
		sizes = append(sizes, strconv.Itoa(w.counts[at]))
	}
	return list(sizes)
}

func list(names []string) string {
	if more := len(names) - mostNames; more > 1 {
		names = append(slices.Clone(names[:mostNames]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func upTo(end int) (result []int) {
	for i := range end {
		result = append(result, i)
	}
	return result
}

// clusters returns "1 Cluster" or, say, "2 Clusters".
func clusters(count int) string {
	if count == 1 {
		return "1 Cluster"
	}
	return fmt.Sprintf("%d Clusters", count)
}

// definition writes a partition as JSON, which YAML contains.
func definition(partition fleetv1.Partition) string {
	text, err := json.Marshal(partition)
	if err != nil {
		return err.Error()
	}
	return message.Short(string(text), mostDefinition)
}
