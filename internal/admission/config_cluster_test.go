package admission

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-fleet/muster/internal/stamp"
)

func TestConfigSurprises(t *testing.T) {
	const (
		keep = "spec.cluster.naming: the 1 Clusters that have a name in Fleet keep it; the change affects new ones only"
		none = "spec.cluster.selector: none of the 2 existing Clusters is selected now"
	)
	labeled := made("labeled", func(o *object) { o.Labels = map[string]string{"import": "true"} })
	oneOf := func(names, then string) string {
		count := strings.Count(names, "/")
		if strings.Contains(names, " and 2 more") {
			count += 2
		}
		return fmt.Sprintf("spec.cluster.selector and spec.cluster.namespaceSelector: %d Clusters match only one of the two and are not imported, because both must match: %s; for CAAPF one was enough, and Clusters that CAAPF imported %s", count, names, then)
	}
	calls := made("calls", func(o *object) {
		o.Annotations = map[string]string{"fleet.addons.cluster.x-k8s.io/registration": "agent"}
	})
	elsewhere := labeled
	elsewhere.Namespace = "other"
	apart := &others{pinned: []object{made("one", nil), elsewhere, func() object { o := made("neither", nil); o.Namespace = "other"; return o }()}}
	// A Cluster with more labels than trim keeps.
	unknown := made("unknown", func(o *object) { o.Labels = many(4800, 60, 63) })
	unknown.ObjectMeta = trimmed(t, clusterKind, unknown.ObjectMeta).ObjectMeta
	unknownElsewhere := unknown
	unknownElsewhere.Namespace = "other"
	two := &others{pinned: []object{pinnedCluster("prod", "prod"), labeled}}
	for name, test := range map[string]struct {
		others       *others
		old, spec    string
		noNamespaces bool // the validator cannot read Namespaces
		want         []string
	}{
		"nothing set":                                {spec: `{}`},
		"everything selected":                        {spec: `cluster: {selector: {}, namespaceSelector: {}}`},
		"one selected":                               {spec: `cluster: {selector: {matchLabels: {import: "true"}}}`},
		"none selected":                              {spec: `cluster: {selector: {matchLabels: {import: "no"}}}`, want: []string{none}},
		"none to select":                             {others: &others{}, spec: `cluster: {selector: {matchLabels: {import: "no"}}}`, want: []string{strings.Replace(none, "2", "0", 1)}},
		"its Namespace is":                           {spec: `cluster: {namespaceSelector: {matchLabels: {team: a}}}`},
		"its Namespace is not":                       {spec: `cluster: {namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.namespaceSelector: none of the 2 existing Clusters is selected now"}},
		"both":                                       {spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 2 existing Clusters is selected now", oneOf("team/labeled", "stay in Fleet as they are now, frozen")}},
		"both, each matches one":                     {others: apart, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 3 existing Clusters is selected now", oneOf("other/labeled, team/one", "stay in Fleet")}},
		"both, both match":                           {others: &others{pinned: []object{labeled}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`},
		"both, neither matches":                      {others: &others{pinned: []object{made("one", nil)}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 1 existing Clusters is selected now"}},
		"both, one is everything":                    {spec: `cluster: {selector: {}, namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.namespaceSelector: none of the 2 existing Clusters is selected now", oneOf("team/labeled, team/prod", "stay in Fleet")}},
		"both, many":                                 {others: &others{pinned: []object{made("e", nil), made("d", nil), made("c", nil), made("b", nil), made("a", nil), labeled}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{oneOf("team/a, team/b, team/c and 2 more", "stay in Fleet")}},
		"both, Delete":                               {spec: `cluster: {onDeselect: Delete, selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{oneOf("team/prod", "are removed from Fleet, because spec.cluster.onDeselect is Delete")}},
		"both, import is off":                        {spec: `cluster: {enabled: false, selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: b}}}`},
		"both, Namespaces unknown":                   {spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: b}}}`, noNamespaces: true},
		"none known to be":                           {others: &others{pinned: []object{made("one", nil), unknown}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}}`},
		"none, by its Namespace":                     {others: &others{pinned: []object{made("one", nil), unknown}}, spec: `cluster: {namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.namespaceSelector: none of the 2 existing Clusters is selected now"}},
		"both, unknown but its Namespace":            {others: &others{pinned: []object{unknown}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`},
		"both, unknown elsewhere":                    {others: &others{pinned: []object{unknownElsewhere}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 1 existing Clusters is selected now"}},
		"both, one unknown":                          {others: &others{pinned: []object{made("one", nil), labeled, unknown, unknownElsewhere}}, spec: `cluster: {selector: {matchLabels: {import: "true"}}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{oneOf("team/one", "stay in Fleet")}},
		"both, labels that no selector uses":         {others: &others{pinned: []object{labeled, unknownElsewhere}}, spec: `cluster: {selector: {}, namespaceSelector: {matchLabels: {team: a}}}`, want: []string{oneOf("other/unknown", "stay in Fleet")}},
		"not by labels that are left out":            {others: &others{pinned: []object{unknown}}, spec: `cluster: {selector: {matchExpressions: [{key: import, operator: DoesNotExist}]}, namespaceSelector: {matchLabels: {team: b}}}`, want: []string{"spec.cluster.selector and spec.cluster.namespaceSelector: none of the 1 existing Clusters is selected now"}},
		"import is off":                              {spec: `cluster: {enabled: false, selector: {matchLabels: {import: "no"}}}`},
		"selectors do not parse":                     {spec: `cluster: {selector: {matchExpressions: [{key: a, operator: Is}]}}`},
		"naming":                                     {spec: `cluster: {naming: {prefix: p-}}`, want: []string{keep}},
		"naming as before":                           {old: `cluster: {naming: {prefix: p-}}`, spec: `cluster: {naming: {prefix: p-}}`},
		"naming removed":                             {old: `cluster: {naming: {prefix: p-}}`, spec: `{}`, want: []string{keep}},
		"naming, nothing pinned":                     {others: &others{pinned: []object{labeled}}, spec: `cluster: {naming: {prefix: p-}}`},
		"agentNamespace":                             {spec: `cluster: {agentNamespace: a}`},
		"agentNamespace, agents register themselves": {old: `cluster: {agentInitiated: true}`, spec: `cluster: {agentInitiated: true, agentNamespace: a}`, want: []string{"spec.cluster.agentNamespace: the agents of 2 Clusters register themselves"}},
		"agentNamespace, one agent registers itself": {others: &others{pinned: []object{labeled, calls}}, spec: `cluster: {agentNamespace: a}`, want: []string{"spec.cluster.agentNamespace: the agents of 1 Clusters register themselves"}},
		"agentNamespace as before":                   {old: `cluster: {agentInitiated: true}`, spec: `cluster: {agentInitiated: true, agentNamespace: fleet-addon-agent}`},
		"Clusters are not served":                    {others: &others{unknown: true}, spec: `cluster: {naming: {prefix: p-}, selector: {matchLabels: {import: "no"}}}`},
		"Clusters cannot be known":                   {others: &others{err: errors.New("broken")}, spec: `cluster: {naming: {prefix: p-}}`},
	} {
		t.Run(name, func(t *testing.T) {
			if test.others == nil {
				test.others = two
			}
			if test.old == "" {
				test.old = `{}`
			}
			validator := ConfigValidator{Others: test.others, Namespaces: configured(t, `{}`)}
			if test.noNamespaces {
				validator.Namespaces = &cached{err: errors.New("broken")}
			}
			got := validator.surprises(t.Context(), configOf(t, test.old), configOf(t, test.spec))
			for i, warning := range got { // The rest of the warning is prose for people.
				if i < len(test.want) && strings.HasPrefix(warning, test.want[i]) {
					got[i] = test.want[i]
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}

	agentInitiated := &others{pinned: []object{pinnedCluster("d", "d"), pinnedCluster("c", "c"), pinnedCluster("b", "b"), pinnedCluster("a", "a"), labeled}}
	for i, letter := range []string{"d", "c", "b"} {
		agentInitiated.pinned[i].Labels = map[string]string{"site": "edge", stamp.ClassNameLabel: letter}
	}
	agentInitiated.pinned[2].Annotations = maps.Clone(agentInitiated.pinned[2].Annotations)
	agentInitiated.pinned[2].Annotations[stamp.RegistrationAnnotation] = "agent"
	for name, test := range map[string]struct {
		old, spec string
		want      []string
	}{
		"to the manager":          {`cluster: {agentInitiated: true}`, `{}`, []string{"spec.cluster.agentInitiated: 3 Clusters change to the manager, and Fleet installs an agent through their kubeconfigs; agents that have registered themselves keep working until then: team/a, team/c, team/d"}},
		"by a mistyped selector":  {`cluster: {agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: edge}}}`, `cluster: {agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: egde}}}`, []string{"spec.cluster.agentInitiated: 2 Clusters change to the manager, and Fleet installs an agent through their kubeconfigs; agents that have registered themselves keep working until then: team/c, team/d"}},
		"by class":                {`cluster: {agentInitiated: true, agentInitiatedSelector: {matchLabels: {` + stamp.ClassNameLabel + `: c}}}`, `{}`, []string{"spec.cluster.agentInitiated: 1 Clusters change to the manager, and Fleet installs an agent through their kubeconfigs; agents that have registered themselves keep working until then: team/c"}},
		"to the agent":            {`{}`, `cluster: {agentInitiated: true}`, []string{"spec.cluster.agentInitiated: 3 Clusters change to the agent: agents that have checked in keep working, and on the others Fleet no longer installs one: team/a, team/c, team/d"}},
		"nobody":                  {`cluster: {agentInitiated: true}`, `cluster: {agentInitiated: true, hostNetwork: false}`, nil},
		"none, the import is off": {`cluster: {agentInitiated: true}`, `cluster: {enabled: false}`, nil},
	} {
		validator := ConfigValidator{Others: agentInitiated, Namespaces: configured(t, `{}`)}
		got := validator.surprises(t.Context(), configOf(t, test.old), configOf(t, test.spec))
		if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", name, diff)
		}
	}

	warned, err := ConfigValidator{Others: two}.ValidateDelete(t.Context(), configOf(t, `{}`))
	if err != nil || len(warned) != 1 || !strings.HasPrefix(warned[0], "1 Clusters stay imported into Fleet; without the FleetAddonConfig its settings are unknown, so everything stays as it is") {
		t.Errorf("ValidateDelete = %v, %v", warned, err)
	}
}
