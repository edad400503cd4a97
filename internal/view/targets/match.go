package targets

import (
	"fmt"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// displayNameLabel has the name that Rancher shows; targets may use it as the name of a Cluster.
const displayNameLabel = "management.cattle.io/cluster-display-name"

// Match is the target of a Bundle that applies to a Cluster.
type Match struct {
	// Target is the first target that matches; nil if none does.
	Target *fleetv1.BundleTarget
	// Name is the target's name in messages.
	Name string
	// Tried are the targets before it, or all if none matches, and why they do not match.
	Tried []Refusal
	// Customizations change the options for this Cluster, in order.
	Customizations []*fleetv1.BundleTarget
	// DoNotDeploy names the part of the Bundle that excludes this Cluster; empty if none does.
	DoNotDeploy string
	// Invalid says why no target of the Bundle is usable for any Cluster.
	Invalid error
}

// Deploys reports whether the Bundle targets the Cluster.
func (m *Match) Deploys() bool { return m.Invalid == nil && m.Target != nil && m.DoNotDeploy == "" }

// Matcher holds the parsed targets of a Bundle, to match many Clusters.
type Matcher struct {
	bundle       *fleetv1.Bundle
	wants        []criteria
	restrictions []criteria
	// customizations is how many of the targets, from the first, only customize options.
	customizations int
}

// NewMatcher parses the targets of a Bundle. The error names an unusable one.
func NewMatcher(bundle *fleetv1.Bundle) (*Matcher, error) {
	restrictions, err := restrictionsOf(bundle)
	if err != nil {
		return nil, err
	}
	result := &Matcher{bundle: bundle, restrictions: restrictions}
	if len(restrictions) > 0 {
		// The customizations from fleet.yaml come first. The targets of the GitRepo follow, and each of them is
		// also a restriction.
		result.customizations = max(0, len(bundle.Spec.Targets)-len(restrictions))
	}
	for i := range bundle.Spec.Targets {
		target := &bundle.Spec.Targets[i]
		wants, err := criteriaOf(target.ClusterName, target.ClusterGroup, target.ClusterGroupSelector, target.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(target, i), err)
		}
		result.wants = append(result.wants, wants)
	}
	return result, nil
}

// MatchOf matches the targets of a Bundle with a Cluster that is in these groups.
func MatchOf(bundle *fleetv1.Bundle, cluster *fleetv1.Cluster, groups []*fleetv1.ClusterGroup) *Match {
	matcher, err := NewMatcher(bundle)
	if err != nil {
		return &Match{Invalid: err}
	}
	return matcher.match(subjectsOf(cluster, groups), true)
}

// match matches the targets with a Cluster. Only with explain does it say why a target does not match.
func (m *Matcher) match(subjects []subject, explain bool) *Match {
	result := &Match{}
	for i, wants := range m.wants {
		target := &m.bundle.Spec.Targets[i]
		if i < m.customizations {
			if wants.matchesAny(subjects) {
				result.Customizations = append(result.Customizations, target)
			}
			continue
		}
		if wants.isMet(m.restrictions, subjects) {
			result.Target, result.Name = target, nameOf(target, i)
			break
		}
		if explain {
			result.Tried = append(result.Tried, Refusal{nameOf(target, i), unmatched(wants, subjects)})
		}
	}
	result.resolve(m.bundle.Spec.TargetCustomizationMode)
	return result
}

// resolve drops customizations without effect, and finds the one that excludes the Cluster.
func (m *Match) resolve(mode fleetv1.TargetCustomizationMode) {
	if m.Target == nil {
		m.Customizations = nil
		return
	}
	if mode != fleetv1.TargetCustomizationModeAllMatches && len(m.Customizations) > 1 {
		m.Customizations = m.Customizations[:1]
	}
	if m.Target.DoNotDeploy {
		m.DoNotDeploy = m.Name
		return
	}
	for _, customization := range m.Customizations {
		if customization.DoNotDeploy {
			m.DoNotDeploy = fmt.Sprintf("target customization %q", customization.Name)
			return
		}
	}
}

func nameOf(target *fleetv1.BundleTarget, index int) string {
	if target.Name != "" {
		return fmt.Sprintf("target %q", target.Name)
	}
	return fmt.Sprintf("target %d", index+1)
}

// subject is a Cluster as a member of one of its groups, or of none.
type subject struct {
	name, group         string
	labels, groupLabels map[string]string
}

// subjectsOf returns a Cluster as a member of each of its groups, because a target and its restriction must match
// with the same group. A Cluster that has groups is never matched without one.
func subjectsOf(cluster *fleetv1.Cluster, groups []*fleetv1.ClusterGroup) []subject {
	if len(groups) == 0 {
		return []subject{{name: cluster.Name, labels: cluster.Labels}}
	}
	var result []subject
	for _, group := range groups {
		result = append(result, subject{cluster.Name, group.Name, cluster.Labels, group.Labels})
	}
	return result
}

// criterion is one requirement of a target.
type criterion struct {
	matches func(subject) bool
	// why says how a Cluster fails the criterion.
	why func([]subject) string
}

type criteria []criterion

func criteriaOf(name, group string, groupSelector, selector *metav1.LabelSelector) (criteria, error) {
	var result criteria
	if name != "" {
		result = append(result, criterion{
			func(s subject) bool { return s.name == name || s.labels[displayNameLabel] == name },
			func([]subject) string { return fmt.Sprintf("it is for clusterName %q", name) },
		})
	}
	if group != "" {
		result = append(result, criterion{
			func(s subject) bool { return s.group == group },
			func(in []subject) string {
				return fmt.Sprintf("it is for clusterGroup %q, and the Cluster is in %s", group, groupNames(in))
			},
		})
	}
	if groupSelector != nil {
		parsed, err := metav1.LabelSelectorAsSelector(groupSelector)
		if err != nil {
			return nil, fmt.Errorf("clusterGroupSelector: %w", err)
		}
		result = append(result, criterion{
			func(s subject) bool { return parsed.Matches(labels.Set(s.groupLabels)) },
			func(in []subject) string {
				return fmt.Sprintf("its clusterGroupSelector (%s) matches no group of the Cluster, which is in %s", parsed, groupNames(in))
			},
		})
	}
	if selector != nil {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("clusterSelector: %w", err)
		}
		result = append(result, criterion{
			func(s subject) bool { return parsed.Matches(labels.Set(s.labels)) },
			func(in []subject) string {
				return "its clusterSelector does not match: " + mismatchOf(parsed, in[0].labels, "the Fleet Cluster")
			},
		})
	}
	return result, nil
}

func groupNames(in []subject) string {
	var names []string
	for _, s := range in {
		if s.group != "" {
			names = append(names, s.group)
		}
	}
	if len(names) == 0 {
		return "no group"
	}
	return strings.Join(names, ", ")
}

// matches reports whether all criteria match. Without any, nothing matches.
func (c criteria) matches(s subject) bool {
	for _, one := range c {
		if !one.matches(s) {
			return false
		}
	}
	return len(c) > 0
}

func (c criteria) matchesAny(subjects []subject) bool {
	for _, s := range subjects {
		if c.matches(s) {
			return true
		}
	}
	return false
}

func restrictionsOf(bundle *fleetv1.Bundle) ([]criteria, error) {
	var result []criteria
	for i := range bundle.Spec.TargetRestrictions {
		in := &bundle.Spec.TargetRestrictions[i]
		wants, err := criteriaOf(in.ClusterName, in.ClusterGroup, in.ClusterGroupSelector, in.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("target restriction %d: %w", i+1, err)
		}
		result = append(result, wants)
	}
	return result, nil
}

// isMet reports whether one of the subjects matches the target and, if there are any, a restriction.
func (c criteria) isMet(restrictions []criteria, subjects []subject) bool {
	for _, s := range subjects {
		if c.matches(s) && !isRestricted(restrictions, s) {
			return true
		}
	}
	return false
}

// unmatched returns why a target does not match a Cluster.
func unmatched(wants criteria, subjects []subject) string {
	if wants.matchesAny(subjects) {
		return "it matches, but no target restriction does; the restrictions are the targets of the GitRepo that made the Bundle"
	}
	if len(wants) == 0 {
		return "it is empty, so it matches no Cluster"
	}
	for _, one := range wants {
		fails := true
		for _, s := range subjects {
			fails = fails && !one.matches(s)
		}
		if fails {
			return one.why(subjects)
		}
	}
	return "no single group of the Cluster satisfies both its clusterGroup and its clusterGroupSelector"
}

func isRestricted(restrictions []criteria, s subject) bool {
	for _, allowed := range restrictions {
		if allowed.matches(s) {
			return false
		}
	}
	return len(restrictions) > 0
}
