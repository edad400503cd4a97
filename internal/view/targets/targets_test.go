package targets

import (
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func selector(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func group(name string, labels map[string]string, of *metav1.LabelSelector) *fleetv1.ClusterGroup {
	result := &fleetv1.ClusterGroup{Spec: fleetv1.ClusterGroupSpec{Selector: of}}
	result.Namespace, result.Name, result.Labels = "team", name, labels
	return result
}

// The rules are Fleet's. Each case is named after a rule.
func TestMatch(t *testing.T) {
	cluster := &fleetv1.Cluster{}
	cluster.Namespace, cluster.Name = "team", "prod"
	cluster.Labels = map[string]string{"env": "prod", "management.cattle.io/cluster-display-name": "Production"}
	red := group("red", map[string]string{"color": "red"}, selector("env", "prod"))
	blue := group("blue", map[string]string{"color": "blue"}, selector("env", "prod"))
	other := group("other", nil, selector("env", "dev"))
	none := group("none", nil, nil)
	yes := fleetv1.BundleTarget{Name: "yes", ClusterSelector: selector("env", "prod")}
	as := func(target fleetv1.BundleTarget) fleetv1.BundleTargetRestriction {
		return fleetv1.BundleTargetRestriction{Name: target.Name, ClusterName: target.ClusterName, ClusterGroup: target.ClusterGroup, ClusterSelector: target.ClusterSelector, ClusterGroupSelector: target.ClusterGroupSelector}
	}
	for name, test := range map[string]struct {
		targets      []fleetv1.BundleTarget
		restrictions []fleetv1.BundleTargetRestriction
		mode         fleetv1.TargetCustomizationMode
		want         string // the name of the matching target, "doNotDeploy", "invalid", or ""
		why          string
	}{
		"by name":                                {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "prod"}}, want: "a"},
		"by the name in Rancher":                 {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "Production"}}, want: "a"},
		"by another name":                        {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "dev"}}, why: `clusterName "dev"`},
		"by a group":                             {targets: []fleetv1.BundleTarget{{Name: "a", ClusterGroup: "blue"}}, want: "a"},
		"by a group that the Cluster is not in":  {targets: []fleetv1.BundleTarget{{Name: "a", ClusterGroup: "other"}}, why: "is in blue, red"},
		"by the labels of a group":               {targets: []fleetv1.BundleTarget{{Name: "a", ClusterGroupSelector: selector("color", "red")}}, want: "a"},
		"by labels that no group has":            {targets: []fleetv1.BundleTarget{{Name: "a", ClusterGroupSelector: selector("color", "green")}}, why: "matches no group"},
		"one group must satisfy both":            {targets: []fleetv1.BundleTarget{{Name: "a", ClusterGroup: "blue", ClusterGroupSelector: selector("color", "red")}}, why: "no single group"},
		"all criteria must match":                {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "prod", ClusterSelector: selector("env", "dev")}}, why: "env=prod"},
		"a label that the Cluster does not have": {targets: []fleetv1.BundleTarget{{Name: "a", ClusterSelector: selector("gpu", "yes")}}, why: "no label gpu"},
		"an empty selector matches all":          {targets: []fleetv1.BundleTarget{{Name: "a", ClusterSelector: &metav1.LabelSelector{}}}, want: "a"},
		"an empty target matches none":           {targets: []fleetv1.BundleTarget{{Name: "a"}}, why: "it is empty"},
		"the first that matches":                 {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "dev"}, yes, {Name: "c", ClusterName: "prod"}}, want: "yes"},
		"doNotDeploy":                            {targets: []fleetv1.BundleTarget{{Name: "a", ClusterName: "prod", DoNotDeploy: true}, yes}, want: "doNotDeploy"},
		"an invalid selector":                    {targets: []fleetv1.BundleTarget{yes, {Name: "b", ClusterSelector: selector("!", "")}}, want: "invalid"},
		"restricted to itself":                   {targets: []fleetv1.BundleTarget{yes}, restrictions: []fleetv1.BundleTargetRestriction{as(yes)}, want: "yes"},
		"restricted to others": {
			targets: []fleetv1.BundleTarget{yes}, restrictions: []fleetv1.BundleTargetRestriction{{ClusterName: "dev"}}, why: "no target restriction",
		},
		"restricted by another group": {
			targets:      []fleetv1.BundleTarget{{Name: "a", ClusterGroup: "red"}},
			restrictions: []fleetv1.BundleTargetRestriction{{ClusterGroup: "blue"}}, why: "no target restriction",
		},
		"a customization is not a target": {
			targets:      []fleetv1.BundleTarget{{Name: "custom", ClusterName: "prod"}, {Name: "b", ClusterName: "dev"}},
			restrictions: []fleetv1.BundleTargetRestriction{{ClusterName: "dev"}}, why: `clusterName "dev"`,
		},
		"a customization forbids": {
			targets:      []fleetv1.BundleTarget{{Name: "custom", ClusterName: "prod", DoNotDeploy: true}, yes},
			restrictions: []fleetv1.BundleTargetRestriction{as(yes)}, want: "doNotDeploy",
		},
		"only the first customization counts": {
			targets:      []fleetv1.BundleTarget{{Name: "one", ClusterName: "prod"}, {Name: "two", ClusterName: "prod", DoNotDeploy: true}, yes},
			restrictions: []fleetv1.BundleTargetRestriction{as(yes)}, want: "yes",
		},
		"all customizations count in that mode": {
			targets:      []fleetv1.BundleTarget{{Name: "one", ClusterName: "prod"}, {Name: "two", ClusterName: "prod", DoNotDeploy: true}, yes},
			restrictions: []fleetv1.BundleTargetRestriction{as(yes)}, mode: fleetv1.TargetCustomizationModeAllMatches, want: "doNotDeploy",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := &fleetv1.Bundle{Spec: fleetv1.BundleSpec{Targets: test.targets, TargetRestrictions: test.restrictions, TargetCustomizationMode: test.mode}}
			in, others := GroupsOf(cluster, []*fleetv1.ClusterGroup{red, blue, other, none})
			if len(in) != 2 || len(others) != 2 {
				t.Fatalf("the Cluster is in %d groups, and not in %d others", len(in), len(others))
			}
			match := MatchOf(bundle, cluster, in)
			got := ""
			switch {
			case match.Invalid != nil:
				got = "invalid"
			case match.DoNotDeploy != "":
				got = "doNotDeploy"
			case match.Target != nil:
				got = match.Target.Name
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if match.Deploys() != (got != "" && got != "doNotDeploy" && got != "invalid") {
				t.Errorf("Deploys is %v", match.Deploys())
			}
			if test.why != "" && (len(match.Tried) == 0 || !strings.Contains(match.Tried[len(match.Tried)-1].Why, test.why)) {
				t.Errorf("got %v, want %q", match.Tried, test.why)
			}
		})
	}
}

func TestReach(t *testing.T) {
	bundle := &fleetv1.Bundle{}
	bundle.Namespace, bundle.Name, bundle.Labels = "classes", "cni", map[string]string{"tier": "base"}
	mapping := func(namespace string, bundles, namespaces *metav1.LabelSelector) *fleetv1.BundleNamespaceMapping {
		result := &fleetv1.BundleNamespaceMapping{BundleSelector: bundles, NamespaceSelector: namespaces}
		result.Namespace, result.Name = namespace, "m"
		return result
	}
	all, of := &metav1.LabelSelector{}, map[string]string{"team": "a"}
	for name, test := range map[string]struct {
		mapping *fleetv1.BundleNamespaceMapping
		want    bool
		why     string
	}{
		"everything":                   {mapping("classes", all, all), true, ""},
		"by labels":                    {mapping("classes", selector("tier", "base"), selector("team", "a")), true, ""},
		"the Bundle does not match":    {mapping("classes", selector("tier", "top"), all), false, "tier=base"},
		"the namespace does not match": {mapping("classes", all, selector("team", "b")), false, "team=a"},
		"without selectors":            {mapping("classes", nil, nil), false, "maps nothing"},
		"with one selector":            {mapping("classes", all, nil), false, "maps nothing"},
		"of another namespace":         {mapping("team-a", all, all), false, ""},
		"with an invalid selector":     {mapping("classes", all, selector("!", "")), false, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			reach := ReachOf(bundle, "team-a", of, []*fleetv1.BundleNamespaceMapping{test.mapping})
			if reach.Reaches() != test.want {
				t.Errorf("got %+v", reach)
			}
			if test.why != "" && (len(reach.Others) != 1 || !strings.Contains(reach.Others[0].Why, test.why)) {
				t.Errorf("got %v, want %q", reach.Others, test.why)
			}
		})
	}
	if !ReachOf(bundle, "classes", nil, nil).Reaches() {
		t.Error("a Bundle does not reach its own namespace")
	}
}

// TestIndex finds the Clusters of a Bundle in its own namespace and in those to which a mapping leads.
func TestIndex(t *testing.T) {
	at := func(namespace, name, env string) *fleetv1.Cluster {
		result := &fleetv1.Cluster{}
		result.Namespace, result.Name, result.Labels = namespace, name, map[string]string{"env": env}
		return result
	}
	clusters := []*fleetv1.Cluster{at("team", "z", "prod"), at("team", "a", "dev"), at("classes", "b", "prod"), at("other", "c", "prod")}
	groups := []*fleetv1.ClusterGroup{group("prod", nil, selector("env", "prod")), group("none", nil, nil), group("broken", nil, selector("!", ""))}
	mapping := &fleetv1.BundleNamespaceMapping{BundleSelector: selector("tier", "base"), NamespaceSelector: selector("kubernetes.io/metadata.name", "team")}
	mapping.Namespace = "classes"
	retired := &fleetv1.BundleNamespaceMapping{}
	retired.Namespace = "classes"
	index := NewIndex(clusters, groups, []*fleetv1.BundleNamespaceMapping{mapping, retired}, nil)
	for name, test := range map[string]struct {
		tier, group string
		want        string
	}{
		"mapped":            {"base", "", "team/a classes/b team/z"},
		"not mapped":        {"top", "", "classes/b"},
		"in a group":        {"base", "prod", "team/z"},
		"in none":           {"base", "none", ""},
		"in an invalid one": {"base", "broken", ""},
	} {
		bundle := &fleetv1.Bundle{}
		bundle.Namespace, bundle.Labels = "classes", map[string]string{"tier": test.tier}
		target := fleetv1.BundleTarget{ClusterGroup: test.group}
		if test.group == "" {
			target.ClusterSelector = &metav1.LabelSelector{}
		}
		bundle.Spec.Targets = []fleetv1.BundleTarget{target}
		members, err := index.MembersOf(bundle)
		var got []string
		for _, member := range members {
			got = append(got, member.String())
		}
		if err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %v, %v, want %s", name, got, err, test.want)
		}
		if index.IsMapped(bundle) != (test.tier == "base") || UsesGroups(bundle) != (test.group != "") {
			t.Errorf("%s: IsMapped is %v, UsesGroups is %v", name, index.IsMapped(bundle), UsesGroups(bundle))
		}
	}
	if index.IsAlone("classes") || !NewIndex(clusters[:2], nil, nil, nil).IsAlone("team") || NewIndex(clusters[:2], nil, nil, nil).IsAlone("classes") {
		t.Error("IsAlone is wrong")
	}
}
