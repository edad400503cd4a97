package stamp

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/settings"
)

func naming(prefix, suffix string) settings.Cluster {
	cluster := settings.Default().Cluster
	cluster.Prefix, cluster.Suffix = prefix, suffix
	return cluster
}

// The names are golden: a name is pinned once, and a Cluster that lost its pin must
// get the same one again from any later release.
func TestFleetName(t *testing.T) {
	long := strings.Repeat("a", 250)
	type result struct {
		Name      string
		Shortened bool
	}
	tests := map[string]struct {
		prefix, name, suffix string
		want                 result
	}{
		"as it is":                  {name: "prod", want: result{Name: "prod"}},
		"prefix":                    {prefix: "capi-", name: "prod", want: result{Name: "capi-prod"}},
		"suffix":                    {name: "prod", suffix: "-fleet", want: result{Name: "prod-fleet"}},
		"prefix and suffix":         {prefix: "capi-", name: "prod", suffix: "-fleet", want: result{Name: "capi-prod-fleet"}},
		"a digit first":             {name: "1prod", want: result{Name: "1prod"}},
		"a dot":                     {name: "prod.eu", want: result{Name: "prod-eu-2740657d", Shortened: true}},
		"dots are told apart":       {name: "prod-eu", want: result{Name: "prod-eu"}},
		"a dot in a naming part":    {prefix: "c.", name: "prod", want: result{Name: "c-prod-b7b5a55f", Shortened: true}},
		"only dots":                 {name: "...", want: result{Name: "ab5df625", Shortened: true}},
		"exactly 63 characters":     {name: long[:63], want: result{Name: long[:63]}},
		"63 with prefix":            {prefix: "x-", name: long[:61], want: result{Name: "x-" + long[:61]}},
		"64 characters":             {name: long[:64], want: result{Name: long[:54] + "-ffe054fe", Shortened: true}},
		"64 with suffix":            {name: long[:62], suffix: "-y", want: result{Name: long[:54] + "-d5ebde11", Shortened: true}},
		"the longest a Cluster has": {name: long + "aaa", want: result{Name: long[:54] + "-32859a3a", Shortened: true}},
		"the longest of everything": {prefix: "p" + long[:61], name: long + "aaa", suffix: long[:61] + "s", want: result{Name: "p" + long[:53] + "-70f58cd9", Shortened: true}},
		"a cut before a dash":       {name: long[:53] + "-" + long[:20], want: result{Name: long[:53] + "-98f9c7e4", Shortened: true}},
		"upper case":                {prefix: "Capi-", name: "prod", want: result{Name: "api-prod-8b269843", Shortened: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got result
			got.Name, got.Shortened = FleetName(naming(test.prefix, test.suffix), test.name)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("FleetName (-want +got):\n%s", diff)
			}
			if !IsFleetName(got.Name) {
				t.Errorf("%q is no name Fleet can use", got.Name)
			}
		})
	}
}

// The hash distinguishes names whose shortened forms are otherwise equal.
func TestFleetNameKeepsDifferentNamesApart(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("a", 100)
	for _, full := range []string{"a.b", "a..b", "a.b.", ".a.b", "a-.b", "a_b", "A.b", long, long + "a", long + "b", long[:64], long[:63], "a.b" + long} {
		name, _ := FleetName(settings.Default().Cluster, full)
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q are both named %q", full, other, name)
		}
		seen[name] = full
	}
}

func TestLabelValue(t *testing.T) {
	type result struct {
		Value     string
		Shortened bool
	}
	long := strings.Repeat("c", 253)
	tests := map[string]struct {
		name string
		want result
	}{
		"none":                    {name: "", want: result{}},
		"as it is":                {name: "standard", want: result{Value: "standard"}},
		"dots stay":               {name: "standard.v1.33", want: result{Value: "standard.v1.33"}},
		"exactly 63 characters":   {name: long[:63], want: result{Value: long[:63]}},
		"64 characters":           {name: long[:64], want: result{Value: long[:54] + "-52b6419d", Shortened: true}},
		"the longest a class has": {name: long, want: result{Value: long[:54] + "-4b4e34eb", Shortened: true}},
		"a cut before a dot":      {name: long[:53] + "." + long[:40], want: result{Value: long[:53] + "-18968c50", Shortened: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got result
			got.Value, got.Shortened = LabelValue(test.name)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("LabelValue (-want +got):\n%s", diff)
			}
			if problems := validation.IsValidLabelValue(got.Value); len(problems) > 0 {
				t.Errorf("%q is no label value: %v", got.Value, problems)
			}
		})
	}
}

func TestGroupName(t *testing.T) {
	long := strings.Repeat("g", 253)
	tests := map[string]struct{ class, namespace, want string }{
		"as it is":              {class: "standard", namespace: "classes", want: "standard.classes"},
		"dots stay":             {class: "standard.v1", namespace: "classes", want: "standard.v1.classes"},
		"exactly 253":           {class: long[:245], namespace: "classes", want: long[:245] + ".classes"},
		"254":                   {class: long[:246], namespace: "classes", want: long[:244] + "-7c7de319"},
		"the longest there is":  {class: long, namespace: long[:63], want: long[:244] + "-c44188f3"},
		"a cut before a dot":    {class: long[:243], namespace: "a-namespace-of-classes", want: long[:243] + "-7def54c2"},
		"class and space agree": {class: "a", namespace: "a", want: "a.a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := GroupName(test.class, test.namespace)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("GroupName (-want +got):\n%s", diff)
			}
			if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 {
				t.Errorf("%q is no object name: %v", got, problems)
			}
		})
	}
}

// Whatever the parts, Fleet can use the name, and the name is the same every time. A name that is not
// shortened is its parts in a row.
func FuzzFleetName(f *testing.F) {
	for _, seed := range [][3]string{
		{"", "prod", ""},
		{"capi-", "prod", "-fleet"},
		{"", "prod.eu", ""},
		{"-", "-", "-"},
		{"", "", ""},
		{"", "..", "_"},
		{"Ä", "ß\x00\xff", "日本"},
		{"", strings.Repeat("a", 63), ""},
		{"", strings.Repeat("a", 64), ""},
		{"", strings.Repeat("a.", 126), "-x"},
		{strings.Repeat("p", 62), strings.Repeat("n", 253), strings.Repeat("s", 62)},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, prefix, name, suffix string) {
		full := prefix + name + suffix
		got, shortened := FleetName(naming(prefix, suffix), name)
		switch again, _ := FleetName(naming(prefix, suffix), name); {
		case !IsFleetName(got):
			t.Errorf("%q is no name Fleet can use", got)
		case got != again:
			t.Errorf("%q the first time, %q the second", got, again)
		case shortened == (got == full):
			t.Errorf("%q became %q; shortened: %v", full, got, shortened)
		}
		if again, _ := FleetName(naming("", ""), got); again != got {
			t.Errorf("the name %q is named %q", got, again)
		}

		value, shortened := LabelValue(full)
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			t.Errorf("%q is no label value: %v", value, problems)
		}
		if shortened == (value == full) {
			t.Errorf("%q became the label value %q; shortened: %v", full, value, shortened)
		}
		if group := GroupName(name, suffix); len(group) > 253 || !utf8.ValidString(group) && utf8.ValidString(name) && utf8.ValidString(suffix) {
			t.Errorf("the ClusterGroup's name %q is too long or broken", group)
		}
	})
}

// Two memberships never share a group, unless the names are too long.
func TestWorkspaceGroupName(t *testing.T) {
	seen := map[string]string{}
	for _, class := range []string{"a", "a.b", "b", "a.b.n", "a.n"} {
		for _, namespace := range []string{"b", "n", "a"} {
			for _, origin := range []string{"b", "n", "a"} {
				membership := class + " of " + namespace + " in " + origin
				name := WorkspaceGroupName(types.NamespacedName{Namespace: namespace, Name: class}, origin)
				if other, found := seen[name]; found {
					t.Errorf("%s: %s and %s", name, membership, other)
				}
				seen[name] = membership
			}
		}
	}
	if got := WorkspaceGroupName(types.NamespacedName{Namespace: "team", Name: "std"}, "team"); got != "std.team" {
		t.Errorf("got %s", got)
	}
}
