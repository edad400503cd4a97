package stamp

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The expected names are Fleet's own (github.com/rancher/fleet/internal/names, a package that only
// Fleet may import).
func TestNamesThatFleetGives(t *testing.T) {
	for got, want := range map[string]string{
		AgentBundle("prod"):                                                  "fleet-agent-prod",
		AgentBundle(strings.Repeat("a", 51)):                                 "fleet-agent-" + strings.Repeat("a", 51),
		AgentBundle(strings.Repeat("a", 52)):                                 "fleet-agent-" + strings.Repeat("a", 45) + "-72951",
		AgentBundle(strings.Repeat("a", 44) + "-" + strings.Repeat("b", 18)): "fleet-agent-" + strings.Repeat("a", 44) + "-d1a82f",
		FleetNamespace("nat-team", "edge"):                                   "cluster-nat-team-edge-f8404753eff4", // as a real Fleet did
		FleetNamespace(strings.Repeat("n", 60), strings.Repeat("c", 63)):     "cluster-" + strings.Repeat("n", 49) + "-0723d",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Each of these two pairs of names shares a namespace. A search found them within a second.
func TestNamesThatCollide(t *testing.T) {
	one, other := FleetNamespace("team-a", "production-eu-west-1-payments-cluster-0001"), FleetNamespace("team", "a-production-eu-west-1-payments-cluster-00013967")
	if one != other {
		t.Errorf("%s and %s", one, other)
	}
	for _, test := range []struct {
		namespace, name string
		want            bool
	}{
		{"team-a", "production-eu-west-1-payments-cluster-0001", true},
		{"team", strings.Repeat("n", 37), false},
		{"team", strings.Repeat("n", 38), true},
	} {
		if got := CanShareFleetNamespace(test.namespace, test.name); got != test.want {
			t.Errorf("%s/%s: %t", test.namespace, test.name, got)
		}
		whole := len("cluster-"+test.namespace+"-"+test.name+"-") + 12
		if made := FleetNamespace(test.namespace, test.name); len(made) != whole != test.want {
			t.Errorf("%s/%s: Fleet makes of it %s", test.namespace, test.name, made)
		}
	}
}

func TestFleetRival(t *testing.T) {
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: name} }
	claim := func(name string, after time.Duration) FleetClaim { return FleetClaim{key(name), first.Add(after)} }
	planned := func(name string) FleetClaim { return FleetClaim{NamespacedName: key(name)} }
	of := func(name string) map[string]string {
		return map[string]string{"fleet.cattle.io/cluster-namespace": "team", "fleet.cattle.io/cluster": name}
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		claims      []FleetClaim
		want        string
	}{
		"nobody":                               {},
		"itself":                               {claims: []FleetClaim{claim("me", 0)}},
		"new, and another exists":              {claims: []FleetClaim{claim("other", 0)}, want: "other"},
		"new, and another is planned":          {claims: []FleetClaim{planned("other")}, want: "other"},
		"older than another":                   {claims: []FleetClaim{claim("other", time.Second), claim("me", 0)}},
		"younger than another":                 {claims: []FleetClaim{claim("me", time.Second), claim("other", 0)}, want: "other"},
		"it exists, and another is planned":    {claims: []FleetClaim{planned("another"), claim("me", 0)}},
		"planned, and another exists":          {claims: []FleetClaim{planned("me"), claim("other", 0)}, want: "other"},
		"of one second: the first by name":     {claims: []FleetClaim{claim("me", 0), claim("other", 0)}},
		"of one second: the second by name":    {claims: []FleetClaim{claim("me", 0), claim("a", 0)}, want: "a"},
		"the Namespace is its own":             {of("me"), []FleetClaim{claim("other", -time.Hour), claim("me", 0)}, ""},
		"the Namespace is another's":           {of("other"), []FleetClaim{claim("me", 0), claim("other", time.Hour)}, "other"},
		"the Namespace of one that is gone":    {of("gone"), []FleetClaim{claim("me", 0)}, "gone"},
		"the Namespace says only half of it":   {map[string]string{"fleet.cattle.io/cluster": "other"}, []FleetClaim{claim("me", 0)}, ""},
		"the Namespace is nobody's in Fleet":   {map[string]string{"note": "x"}, []FleetClaim{claim("other", 0)}, "other"},
		"the same name, in another namespace.": {claims: []FleetClaim{{types.NamespacedName{Namespace: "a", Name: "me"}, first}, claim("me", time.Hour)}, want: "me"},
	} {
		got := OtherHolder(key("me"), test.annotations, test.claims)
		if got.Name != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestSharedFleetNamespace(t *testing.T) {
	for _, cluster := range []string{"production-eu-west-1-payments-cluster-0001", strings.Repeat("n", 63)} {
		message := SharedFleetNamespace("team-a", cluster, cluster)
		_, rest, _ := strings.Cut(message, "for example \"")
		another, _, _ := strings.Cut(rest, "\"")
		if !IsFleetName(another) || FleetNamespace("team-a", another) == FleetNamespace("team-a", cluster) {
			t.Errorf("%q cannot be used: %s", another, message)
		}
	}
}
