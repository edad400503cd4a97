package targets

import (
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Index finds the Clusters of many Bundles. It parses each selector of a group and of a mapping once.
type Index struct {
	// members are the Clusters of each namespace.
	members map[string][]*Member
	// mappings lead from each namespace.
	mappings map[string][]route
}

// Member is a Cluster that a Bundle may target.
type Member struct {
	types.NamespacedName
	subjects []subject
}

// route is a BundleNamespaceMapping: the Bundles that it selects, and the namespaces to which it leads.
type route struct {
	bundles labels.Selector
	to      []string
}

// NewMember returns a Cluster with its groups.
func NewMember(cluster *fleetv1.Cluster, groups []*fleetv1.ClusterGroup) *Member {
	return &Member{types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}, subjectsOf(cluster, groups)}
}

// NewIndex indexes Clusters, with the groups and mappings of all their namespaces. namespaces has the labels of
// each Namespace.
func NewIndex(clusters []*fleetv1.Cluster, groups []*fleetv1.ClusterGroup, mappings []*fleetv1.BundleNamespaceMapping, namespaces map[string]map[string]string) *Index {
	result := &Index{members: map[string][]*Member{}, mappings: map[string][]route{}}
	parsed := parsedGroups(groups)
	for _, cluster := range clusters {
		var in []*fleetv1.ClusterGroup
		for _, candidate := range parsed[cluster.Namespace] {
			if candidate.selector.Matches(labels.Set(cluster.Labels)) {
				in = append(in, candidate.group)
			}
		}
		result.members[cluster.Namespace] = append(result.members[cluster.Namespace], NewMember(cluster, in))
	}
	for _, mapping := range mappings {
		if found, valid := result.routeOf(mapping, namespaces); valid {
			result.mappings[mapping.Namespace] = append(result.mappings[mapping.Namespace], found)
		}
	}
	return result
}

// parsedGroup is a group with its selector.
type parsedGroup struct {
	group    *fleetv1.ClusterGroup
	selector labels.Selector
}

func parsedGroups(groups []*fleetv1.ClusterGroup) map[string][]parsedGroup {
	result := map[string][]parsedGroup{}
	for _, group := range groups {
		if selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector); err == nil { // Without a selector it selects nothing.
			result[group.Namespace] = append(result[group.Namespace], parsedGroup{group, selector})
		}
	}
	return result
}

// routeOf returns the route of a mapping. Like Fleet, it skips an invalid one.
func (x *Index) routeOf(mapping *fleetv1.BundleNamespaceMapping, namespaces map[string]map[string]string) (found route, valid bool) {
	bundles, err := metav1.LabelSelectorAsSelector(mapping.BundleSelector)
	if err != nil {
		return route{}, false
	}
	to, err := metav1.LabelSelectorAsSelector(mapping.NamespaceSelector)
	if err != nil {
		return route{}, false
	}
	found.bundles = bundles
	for namespace := range x.members {
		has := namespaces[namespace]
		if has == nil {
			has = map[string]string{corev1.LabelMetadataName: namespace}
		}
		if to.Matches(labels.Set(has)) {
			found.to = append(found.to, namespace)
		}
	}
	return found, true
}

// MembersOf returns the Clusters that a Bundle targets, in Fleet's order.
func (x *Index) MembersOf(bundle *fleetv1.Bundle) ([]*Member, error) {
	matcher, err := NewMatcher(bundle)
	if err != nil {
		return nil, err
	}
	result := slices.DeleteFunc(x.Reached(bundle), func(member *Member) bool { return !matcher.match(member.subjects, false).Deploys() })
	slices.SortFunc(result, func(a, b *Member) int {
		if order := strings.Compare(a.Name, b.Name); order != 0 {
			return order
		}
		return strings.Compare(a.Namespace, b.Namespace)
	})
	return result, nil
}

// Reached returns the Clusters in the namespaces that a Bundle reaches, whatever it targets there.
func (x *Index) Reached(bundle *fleetv1.Bundle) []*Member {
	reached := map[string]bool{bundle.Namespace: true}
	for _, mapping := range x.mappings[bundle.Namespace] {
		if mapping.bundles.Matches(labels.Set(bundle.Labels)) {
			for _, namespace := range mapping.to {
				reached[namespace] = true
			}
		}
	}
	var result []*Member
	for namespace := range reached {
		result = append(result, x.members[namespace]...)
	}
	return result
}

// IsMapped reports whether a mapping of its namespace selects a Bundle.
func (x *Index) IsMapped(bundle *fleetv1.Bundle) bool {
	return slices.ContainsFunc(x.mappings[bundle.Namespace], func(mapping route) bool { return mapping.bundles.Matches(labels.Set(bundle.Labels)) })
}

// IsAlone reports whether all Clusters are in this namespace.
func (x *Index) IsAlone(namespace string) bool {
	others := len(x.members)
	if x.members[namespace] != nil {
		others--
	}
	return others == 0
}

// PartitionsOf returns which of the Clusters are in each partition. A Cluster may be in several, or in none.
func PartitionsOf(partitions []fleetv1.Partition, members []*Member) ([][]int, error) {
	result := make([][]int, len(partitions))
	for i := range partitions {
		partition := &partitions[i]
		wants, err := criteriaOf(partition.ClusterName, partition.ClusterGroup, partition.ClusterGroupSelector, partition.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("partition %d: %w", i+1, err)
		}
		for j, member := range members {
			if wants.matchesAny(member.subjects) {
				result[i] = append(result[i], j)
			}
		}
	}
	return result, nil
}

// UsesGroups reports whether a Bundle's targets or partitions refer to ClusterGroups.
func UsesGroups(bundle *fleetv1.Bundle) bool {
	uses := func(group string, selector *metav1.LabelSelector) bool { return group != "" || selector != nil }
	for i := range bundle.Spec.Targets {
		if target := &bundle.Spec.Targets[i]; uses(target.ClusterGroup, target.ClusterGroupSelector) {
			return true
		}
	}
	for i := range bundle.Spec.TargetRestrictions {
		if restriction := &bundle.Spec.TargetRestrictions[i]; uses(restriction.ClusterGroup, restriction.ClusterGroupSelector) {
			return true
		}
	}
	return bundle.Spec.RolloutStrategy != nil && slices.ContainsFunc(bundle.Spec.RolloutStrategy.Partitions, func(partition fleetv1.Partition) bool {
		return uses(partition.ClusterGroup, partition.ClusterGroupSelector)
	})
}
