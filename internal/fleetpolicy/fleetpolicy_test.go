package fleetpolicy

import (
	"fmt"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestOf(t *testing.T) {
	require, open := fleetv1.Policy{RequireServiceAccount: true}, fleetv1.Policy{}
	allow := func(names ...string) fleetv1.Policy { return fleetv1.Policy{AllowedServiceAccounts: names} }
	as := func(name, serviceAccount string) fleetv1.BundleTarget {
		target := fleetv1.BundleTarget{Name: name}
		target.ServiceAccount = serviceAccount
		return target
	}
	var many []string
	for i := range MostAllowed + 1 {
		many = append(many, fmt.Sprintf("sa%d", i))
	}
	defaults := fleetv1.Policy{RequireServiceAccount: true, GitRepo: &fleetv1.GitRepoPolicySpec{DefaultServiceAccount: "a"}, HelmOp: &fleetv1.HelmOpPolicySpec{DefaultServiceAccount: "a"}}
	for name, test := range map[string]struct {
		policies       []fleetv1.Policy
		serviceAccount string
		targets        []fleetv1.BundleTarget
		why, do        string // empty if it is allowed
	}{
		"no Policy":                           {},
		"no Policy, one":                      {serviceAccount: "a"},
		"an empty Policy":                     {policies: []fleetv1.Policy{open}},
		"required":                            {policies: []fleetv1.Policy{require}, why: "a Policy of Fleet in namespace team requires a ServiceAccount", do: "set f to a ServiceAccount that exists on the Cluster"},
		"required by one of two":              {policies: []fleetv1.Policy{open, require}, why: "a Policy of Fleet in namespace team requires"},
		"required and there":                  {policies: []fleetv1.Policy{require}, serviceAccount: "a"},
		"required of one, some allowed":       {policies: []fleetv1.Policy{require, allow("b", "a")}, why: "a Policy", do: "set f to one that is allowed: a, b"},
		"required, and only for a target":     {policies: []fleetv1.Policy{require}, targets: []fleetv1.BundleTarget{as("first", "a")}, why: "a Policy"},
		"defaults do not count":               {policies: []fleetv1.Policy{defaults}, why: "a Policy"},
		"allowed":                             {policies: []fleetv1.Policy{allow("b"), allow("a")}, serviceAccount: "a"},
		"not allowed":                         {policies: []fleetv1.Policy{allow("b"), allow("a")}, serviceAccount: "c", why: "no Policy of Fleet in namespace team allows ServiceAccount c", do: "one that is allowed: a, b"},
		"some are allowed, and there is none": {policies: []fleetv1.Policy{allow("a")}},
		"a target that is allowed":            {policies: []fleetv1.Policy{allow("a")}, targets: []fleetv1.BundleTarget{as("first", "a")}},
		"a target that is not":                {policies: []fleetv1.Policy{allow("a")}, serviceAccount: "a", targets: []fleetv1.BundleTarget{as("first", ""), as("second", "b")}, why: `no Policy of Fleet in namespace team allows ServiceAccount b of target "second"`},
		"six":                                 {policies: []fleetv1.Policy{allow("1", "2", "3", "4", "5", "6")}, serviceAccount: "a", why: "no Policy", do: "set f to one that is allowed: 1, 2, 3, 4, 5, 1 more"},
		"as many as are looked at":            {policies: []fleetv1.Policy{allow(many[1:]...)}, serviceAccount: "sa0", why: "no Policy"},
		"more than are looked at":             {policies: []fleetv1.Policy{allow(many...)}, serviceAccount: "other"},
		"more, and required":                  {policies: []fleetv1.Policy{allow(many...), require}, why: "a Policy"},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := &fleetv1.BundleSpec{Targets: test.targets}
			bundle.ServiceAccount = test.serviceAccount
			got := Of(test.policies, bundle)
			if got == nil {
				if test.why != "" {
					t.Error("allowed")
				}
				return
			}
			if test.why == "" || !strings.HasPrefix(got.Why("team"), test.why) || !strings.Contains(got.Do("f"), test.do) {
				t.Errorf("refused: %s; %s", got.Why("team"), got.Do("f"))
			}
		})
	}
}
