package rollout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/view/targets"
)

func count(number int32) *intstr.IntOrString  { return ptr.To(intstr.FromInt32(number)) }
func percent(text string) *intstr.IntOrString { return ptr.To(intstr.FromString(text)) }
func env(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"env": value}}
}
func is(name, env string) *fleetv1.Cluster {
	result := &fleetv1.Cluster{}
	result.Namespace, result.Name, result.Labels = "team", name, map[string]string{"env": env}
	return result
}

// fleet returns a canary, three Clusters of test and four of prod, and a group with the three.
func fleet() []*targets.Member {
	clusters := []*fleetv1.Cluster{is("canary", "canary")}
	for i := range 3 {
		clusters = append(clusters, is(fmt.Sprintf("test-%d", i), "test"))
	}
	for i := range 4 {
		clusters = append(clusters, is(fmt.Sprintf("prod-%d", i), "prod"))
	}
	group := &fleetv1.ClusterGroup{Spec: fleetv1.ClusterGroupSpec{Selector: env("test")}}
	group.Namespace, group.Name = "team", "testing"
	var members []*targets.Member
	for i, cluster := range clusters {
		var in []*fleetv1.ClusterGroup
		if 0 < i && i < 4 {
			in = append(in, group)
		}
		members = append(members, targets.NewMember(cluster, in))
	}
	return members
}

func bundle(strategy fleetv1.RolloutStrategy) *fleetv1.Bundle {
	result := &fleetv1.Bundle{}
	result.Namespace, result.Name = "team", "app"
	result.Spec.RolloutStrategy = &strategy
	return result
}

func TestWarnings(t *testing.T) {
	canary := func(limit *intstr.IntOrString) fleetv1.Partition {
		return fleetv1.Partition{Name: "canary", ClusterName: "canary", MaxUnavailable: limit}
	}
	testing3 := func(limit *intstr.IntOrString) fleetv1.Partition {
		return fleetv1.Partition{Name: "test", ClusterGroup: "testing", MaxUnavailable: limit}
	}
	prod := fleetv1.Partition{Name: "prod", ClusterSelector: env("prod")}
	rest := fleetv1.Partition{Name: "rest", ClusterSelector: &metav1.LabelSelector{}}
	list := func(partitions ...fleetv1.Partition) fleetv1.RolloutStrategy {
		return fleetv1.RolloutStrategy{Partitions: partitions}
	}
	bounded := func(limit *intstr.IntOrString, partitions ...fleetv1.Partition) fleetv1.RolloutStrategy {
		return fleetv1.RolloutStrategy{MaxUnavailable: limit, Partitions: partitions}
	}
	skipping := func(limit *intstr.IntOrString, partitions ...fleetv1.Partition) fleetv1.RolloutStrategy {
		return fleetv1.RolloutStrategy{MaxUnavailablePartitions: limit, Partitions: partitions}
	}
	const (
		gateCanary = `in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: {"name":"canary-ready","maxUnavailable":0,"clusterName":"canary"}`
		gateTest   = `in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: {"name":"test-ready","maxUnavailable":0,"clusterGroup":"testing"}`
		addRest    = `in the Bundle, add a last partition for all other Clusters: {"name":"rest","clusterSelector":{}}`
		atLeast    = "in the Bundle, write at least 1 (0% means 1); 0 is useful only if a partition lists the same Clusters a second time, so that Fleet waits for them"
	)
	for name, test := range map[string]struct {
		strategy fleetv1.RolloutStrategy
		want     []string
	}{
		"no partitions": {bounded(count(0)), nil},
		"one partition": {list(rest), nil},

		"A": {list(canary(nil), testing3(nil), rest), []string{
			`AllAtOnce: Fleet does not wait for partitions "canary", "test" and updates the next one in the same pass: without a maxUnavailable, 100% may be unavailable → ` + gateCanary}},
		"A, 100% of the partition": {list(canary(count(1)), canary(count(0)), testing3(percent("100%")), rest), []string{
			`AllAtOnce: Fleet does not wait for partition "test" and updates the next one in the same pass: its maxUnavailable is 100% → ` + gateTest}},
		"A, 100% of the Bundle": {bounded(percent("100%"), testing3(nil), rest), []string{
			`AllAtOnce: Fleet does not wait for partition "test" and updates the next one in the same pass: the Bundle's maxUnavailable is 100% → ` + gateTest}},
		"A, and no partition waits": {list(rest, canary(nil)), nil},

		"B": {list(canary(count(1)), rest), []string{
			`PartitionTooSmall: Fleet does not wait for partition "canary" and updates the next one in the same pass: it has 1 Cluster to update, and its maxUnavailable is 1 → ` + gateCanary}},
		"B, a percentage is 1 at least": {list(canary(percent("0%")), rest), []string{
			`PartitionTooSmall: Fleet does not wait for partition "canary" and updates the next one in the same pass: it has 1 Cluster to update, and its maxUnavailable is 0% → ` + gateCanary}},
		"B, two partitions": {list(canary(count(1)), testing3(count(4)), rest), []string{
			`PartitionTooSmall: Fleet does not wait for partitions "canary", "test" and updates the next one in the same pass: they have 1, 3 Clusters to update, and that many may be unavailable → ` + gateCanary}},
		"B, Clusters of earlier partitions do not count": {list(testing3(count(2)), fleetv1.Partition{Name: "lab", ClusterSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"test", "canary"}}},
		}, MaxUnavailable: count(2)}, rest), []string{
			`PartitionTooSmall: Fleet does not wait for partition "lab" and updates the next one in the same pass: it has 1 Cluster to update, and its maxUnavailable is 2 → ` +
				`in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: ` +
				`{"name":"lab-ready","maxUnavailable":0,"clusterSelector":{"matchExpressions":[{"key":"env","operator":"In","values":["test","canary"]}]}}`}},
		"B, of the Bundle": {bounded(count(2), canary(nil), rest), []string{
			`PartitionTooSmall: Fleet does not wait for partition "canary" and updates the next one in the same pass: it has 1 Cluster to update, and the Bundle's maxUnavailable is 2 → ` + gateCanary}},
		"B, but the Bundle's limit waits": {bounded(count(1), canary(nil), rest), nil},
		"B, but the last one": {list(testing3(count(1)), prod, canary(count(1))), []string{
			`AllAtOnce: Fleet does not wait for partition "prod" and updates the next one in the same pass: without a maxUnavailable, 100% may be unavailable → ` +
				`in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: {"name":"prod-ready","maxUnavailable":0,"clusterSelector":{"matchLabels":{"env":"prod"}}}`}},

		"C": {list(canary(count(0)), rest), []string{`NeverStarts: no upgrade of partition "canary" starts: its maxUnavailable is 0 → ` + atLeast}},
		"C, the last one": {list(testing3(count(1)), fleetv1.Partition{Name: "rest", ClusterSelector: &metav1.LabelSelector{}, MaxUnavailable: count(-1)}), []string{
			`NeverStarts: no upgrade of partition "rest" starts: its maxUnavailable is -1 → ` + atLeast}},
		"C, of the Bundle": {bounded(count(0), canary(count(1)), rest), []string{
			`NeverStarts: no upgrade starts: the maxUnavailable of its rolloutStrategy is 0 → in the Bundle, write at least 1, or remove it; 0% means 1`}},
		"C, the partition has no Clusters left to update": {list(canary(nil), canary(count(0)), rest), nil},
		"C, a later one has the same Clusters": {skipping(count(1), canary(count(0)), rest), []string{
			`PartitionsSkipped: Fleet does not wait for partition "canary": maxUnavailablePartitions is 1, so the partition may stay unavailable → ` +
				"in the Bundle, remove maxUnavailablePartitions, or write 0; a percentage is at least 1"}},
		"C, but 0% is 1": {list(testing3(percent("0%")), rest), nil},

		"F": {list(testing3(count(1)), prod), []string{
			"InNoPartition: 1 of its 8 Clusters is in no partition: a new Cluster gets no BundleDeployment, and one that has the Bundle is never updated: team/canary → " + addRest}},
		"F, many": {list(canary(nil)), []string{
			"InNoPartition: 7 of its 8 Clusters are in no partition: a new Cluster gets no BundleDeployment, and one that has the Bundle is never updated: team/test-0, team/test-1, team/test-2, and 4 more → " + addRest}},
		"F, a partition without a selector": {list(testing3(count(1)), prod, fleetv1.Partition{Name: "rest"}), []string{
			"InNoPartition: 1 of its 8 Clusters is in no partition: a new Cluster gets no BundleDeployment, and one that has the Bundle is never updated: team/canary → " + addRest}},
		"C and F": {list(canary(count(0)), prod), []string{
			`NeverStarts: no upgrade of partition "canary" starts: its maxUnavailable is 0 → ` + atLeast,
			"InNoPartition: 3 of its 8 Clusters are in no partition: a new Cluster gets no BundleDeployment, and one that has the Bundle is never updated: team/test-0, team/test-1, team/test-2 → " + addRest}},

		"a gate": {list(testing3(count(1)), rest), nil},
		"a gate, but partitions may lag": {skipping(percent("10%"), testing3(count(1)), rest), []string{
			`PartitionsSkipped: Fleet does not wait for partition "test": maxUnavailablePartitions is 10%, so the partition may stay unavailable → ` +
				"in the Bundle, remove maxUnavailablePartitions, or write 0; a percentage is at least 1"}},
		"a gate, 0 partitions may lag": {skipping(count(0), testing3(count(1)), rest), nil},
		"an empty canary": {list(fleetv1.Partition{Name: "typo", ClusterGroup: "testign"}, rest), []string{
			`PartitionEmpty: none of its 8 Clusters is in partition "typo", so all of them are updated with partition "rest" → in the Bundle, correct its selector`}},
		"an empty partition among others":    {list(fleetv1.Partition{ClusterName: "none"}, testing3(count(1)), rest), nil},
		"invalid: Fleet reports it":          {list(canary(percent("some")), rest), nil},
		"invalid selector: Fleet reports it": {list(canary(nil), fleetv1.Partition{ClusterSelector: env("!")}), nil},
		"without a name, and hostile text": {list(fleetv1.Partition{ClusterName: "canary", MaxUnavailable: count(1)}, fleetv1.Partition{Name: "a\u202e\x1b", ClusterGroup: "testing"}, rest), []string{
			`AllAtOnce: Fleet does not wait for partition "a\u202e\x1b" and updates the next one in the same pass: without a maxUnavailable, 100% may be unavailable → ` +
				`in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: {"name":"a\u202e\u001b-ready","maxUnavailable":0,"clusterGroup":"testing"}`,
			`PartitionTooSmall: Fleet does not wait for partition "partition-1" and updates the next one in the same pass: it has 1 Cluster to update, and its maxUnavailable is 1 → ` +
				`in the Bundle, list the same Clusters once more, right after it, so that Fleet waits until all of them are ready: {"name":"partition-1-ready","maxUnavailable":0,"clusterName":"canary"}`}},
		"too many": {list(make([]fleetv1.Partition, mostPartitions+1)...), []string{
			"TooManyPartitions: its rolloutStrategy has 501 partitions, of which none was checked: the limit is 500 → in the Bundle, write fewer"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, warning := range Warnings(bundle(test.strategy), fleet()) {
				got = append(got, warning.Reason+": "+warning.Message+" → "+warning.Do)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAdvice: whoever follows the advice of a warning gets no other warning.
func TestAdvice(t *testing.T) {
	its := bundle(fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{
		{Name: "canary", ClusterName: "canary"}, {Name: "canary-ready", ClusterName: "canary", MaxUnavailable: count(0)},
		{Name: "test", ClusterGroup: "testing", MaxUnavailable: count(1)}, {Name: "test-ready", ClusterGroup: "testing", MaxUnavailable: count(0)},
		{Name: "rest", ClusterSelector: &metav1.LabelSelector{}},
	}})
	if got := Warnings(its, fleet()); len(got) > 0 {
		t.Errorf("got %+v", got[0])
	}
}

func TestWhereToWrite(t *testing.T) {
	for label, want := range map[string]string{fleetv1.RepoLabel: "in its fleet.yaml, ", fleetv1.HelmOpLabel: "in the HelmOp, ", "other": "in the Bundle, "} {
		its := bundle(fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{{ClusterName: "canary"}}})
		its.Labels = map[string]string{label: "apps"}
		if got := Warnings(its, fleet()); len(got) != 1 || !strings.HasPrefix(got[0].Do, want) {
			t.Errorf("%s: got %+v, want %q", label, got, want)
		}
	}
}

// TestLeftOut: Bundles whose partitions were not written by people get no warning.
func TestLeftOut(t *testing.T) {
	ungated := fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{{Name: "canary", ClusterName: "canary"}}}
	ofProxy := bundle(ungated)
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Namespace, proxy.Name = "team", "cni"
	ofProxy.Labels = plan.Labels(types.NamespacedName{Namespace: proxy.Namespace, Name: proxy.Name})
	deleted := bundle(ungated)
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	without := bundle(ungated)
	without.Spec.RolloutStrategy = nil
	for name, its := range map[string]*fleetv1.Bundle{"of a HelmChartProxy": ofProxy, "being deleted": deleted, "without a strategy": without} {
		if got := Warnings(its, fleet()); IsChecked(its) || len(got) > 0 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if got := Warnings(bundle(ungated), nil); len(got) > 0 {
		t.Errorf("without Clusters: got %+v", got)
	}
}

// BenchmarkWarnings checks 200 Bundles with partitions for 5000 Clusters.
func BenchmarkWarnings(b *testing.B) {
	var clusters []*fleetv1.Cluster
	var groups []*fleetv1.ClusterGroup
	var mappings []*fleetv1.BundleNamespaceMapping
	namespaces := map[string]map[string]string{}
	for i := range 5000 {
		cluster := is(fmt.Sprintf("c%04d", i), []string{"canary", "test", "prod", "prod"}[i%4])
		cluster.Namespace = fmt.Sprintf("team-%d", i%500)
		clusters = append(clusters, cluster)
	}
	for i := range 500 {
		name := fmt.Sprintf("team-%d", i)
		namespaces[name] = map[string]string{"kubernetes.io/metadata.name": name}
		for j := range 3 {
			group := &fleetv1.ClusterGroup{Spec: fleetv1.ClusterGroupSpec{Selector: env([]string{"canary", "test", "prod"}[j])}}
			group.Namespace, group.Name = name, fmt.Sprintf("g%d", j)
			groups = append(groups, group)
		}
		mapping := &fleetv1.BundleNamespaceMapping{BundleSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespaces[name]}}
		mapping.Namespace, mapping.Name = "classes", name
		mappings = append(mappings, mapping)
	}
	its := bundle(fleetv1.RolloutStrategy{Partitions: []fleetv1.Partition{
		{Name: "canary", ClusterGroup: "g0", MaxUnavailable: count(1)}, {Name: "test", ClusterSelector: env("test")}, {Name: "rest", ClusterSelector: &metav1.LabelSelector{}},
	}})
	its.Namespace = "classes"
	its.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	for b.Loop() {
		index := targets.NewIndex(clusters, groups, mappings, namespaces)
		for range 200 {
			members, err := index.MembersOf(its)
			if err != nil || len(members) != 5000 {
				b.Fatalf("%d members: %v", len(members), err)
			}
			if warnings := Warnings(its, members); len(warnings) != 1 {
				b.Fatalf("got %+v", warnings)
			}
		}
	}
}

// Fleet makes partitions itself from a number of Clusters on.
func TestAutomaticPartitions(t *testing.T) {
	for name, test := range map[string]struct {
		strategy fleetv1.RolloutStrategy
		want     string
	}{
		"not asked for":               {fleetv1.RolloutStrategy{MaxUnavailable: count(1)}, ""},
		"below the default threshold": {fleetv1.RolloutStrategy{AutoPartitionSize: percent("25%"), MaxUnavailable: count(1)}, "NoPartitions"},
		"below its own threshold":     {fleetv1.RolloutStrategy{AutoPartitionThreshold: ptr.To(9), MaxUnavailable: count(1)}, "NoPartitions"},
		"at its own threshold":        {fleetv1.RolloutStrategy{AutoPartitionThreshold: ptr.To(8), MaxUnavailable: count(1)}, ""},
		"all may be unavailable":      {fleetv1.RolloutStrategy{AutoPartitionThreshold: ptr.To(8)}, "AllAtOnce"},
		"100% may be unavailable":     {fleetv1.RolloutStrategy{AutoPartitionThreshold: ptr.To(8), MaxUnavailable: percent("100%")}, "AllAtOnce"},
		"turned off":                  {fleetv1.RolloutStrategy{AutoPartitionThreshold: ptr.To(0)}, ""},
		"turned off by the size":      {fleetv1.RolloutStrategy{AutoPartitionSize: count(0)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := &fleetv1.Bundle{}
			bundle.Spec.RolloutStrategy = &test.strategy
			got := ""
			for _, warning := range Warnings(bundle, fleet()) {
				got += warning.Reason
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
