// Package targets decides whether Fleet deploys a Bundle to a Cluster, and if not, why. It follows the
// rules of Fleet 0.16 (internal/cmd/controller/target), which cannot be imported; test/differential
// compares its answers with that code's, and test/e2e with a running Fleet's. The package is pure.
package targets

import (
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Reach says how the Bundles of a namespace get to Clusters of another.
type Reach struct {
	// Own means that both are the same namespace, which needs no mapping.
	Own bool
	// Through are the names of the mappings that lead there.
	Through []string
	// Others are the mappings that do not lead there, and why.
	Others []Refusal
}

// Refusal is an object that does not match, and why.
type Refusal struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Reaches reports whether Bundles of the one namespace are deployed to the other at all.
func (r Reach) Reaches() bool { return r.Own || len(r.Through) > 0 }

// ReachOf returns how a Bundle reaches a namespace with these labels. Mappings of other namespaces than the
// Bundle's are ignored.
func ReachOf(bundle *fleetv1.Bundle, namespace string, namespaceLabels map[string]string, mappings []*fleetv1.BundleNamespaceMapping) Reach {
	result := Reach{Own: bundle.Namespace == namespace}
	for _, mapping := range mappings {
		if mapping.Namespace != bundle.Namespace {
			continue
		}
		if why := unmapped(mapping, bundle, namespace, namespaceLabels); why != "" {
			result.Others = append(result.Others, Refusal{mapping.Name, why})
		} else {
			result.Through = append(result.Through, mapping.Name)
		}
	}
	slices.Sort(result.Through)
	slices.SortFunc(result.Others, func(a, b Refusal) int { return strings.Compare(a.Name, b.Name) })
	return result
}

// unmapped returns why a mapping does not map a Bundle to a namespace, or "".
func unmapped(mapping *fleetv1.BundleNamespaceMapping, bundle *fleetv1.Bundle, namespace string, namespaceLabels map[string]string) string {
	if mapping.BundleSelector == nil || mapping.NamespaceSelector == nil {
		return "it has no selectors and maps nothing: it is being retired, or was created without any"
	}
	if why := mismatch(mapping.BundleSelector, bundle.Labels, "the Bundle"); why != "" {
		return "its bundleSelector does not match: " + why
	}
	if why := mismatch(mapping.NamespaceSelector, namespaceLabels, fmt.Sprintf("Namespace %s", namespace)); why != "" {
		return "its namespaceSelector does not match: " + why
	}
	return ""
}

// Leads reports whether a mapping leads any Bundles to a namespace with these labels; nil means that they are not known.
func Leads(mapping *fleetv1.BundleNamespaceMapping, namespace string, namespaceLabels map[string]string) bool {
	if namespaceLabels == nil {
		namespaceLabels = map[string]string{corev1.LabelMetadataName: namespace}
	}
	return mapping.BundleSelector != nil && mapping.NamespaceSelector != nil && mismatch(mapping.NamespaceSelector, namespaceLabels, "") == ""
}

// GroupsOf returns the groups of a Cluster, sorted by name, and why it is not in the others of its
// namespace.
func GroupsOf(cluster *fleetv1.Cluster, groups []*fleetv1.ClusterGroup) (in []*fleetv1.ClusterGroup, others []Refusal) {
	for _, group := range groups {
		if group.Namespace != cluster.Namespace {
			continue
		}
		why := "it has no selector"
		if group.Spec.Selector != nil {
			why = mismatch(group.Spec.Selector, cluster.Labels, "the Fleet Cluster")
		}
		if why == "" {
			in = append(in, group)
		} else {
			others = append(others, Refusal{group.Name, why})
		}
	}
	slices.SortFunc(in, func(a, b *fleetv1.ClusterGroup) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(others, func(a, b Refusal) int { return strings.Compare(a.Name, b.Name) })
	return in, others
}

// mismatch returns why a selector does not match labels, or "" if it does. whose names the object that has
// the labels.
func mismatch(selector *metav1.LabelSelector, has map[string]string, whose string) string {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "it is invalid: " + err.Error()
	}
	return mismatchOf(parsed, has, whose)
}

func mismatchOf(selector labels.Selector, has map[string]string, whose string) string {
	if selector.Matches(labels.Set(has)) {
		return ""
	}
	requirements, _ := selector.Requirements()
	for _, requirement := range requirements {
		if requirement.Matches(labels.Set(has)) {
			continue
		}
		if value, found := has[requirement.Key()]; found {
			return fmt.Sprintf("it requires %s, and %s has %s=%s", requirement.String(), whose, requirement.Key(), value)
		}
		return fmt.Sprintf("it requires %s, and %s has no label %s", requirement.String(), whose, requirement.Key())
	}
	return "it matches nothing"
}
