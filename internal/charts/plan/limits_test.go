package plan

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// A template costs little, whatever it is made to do: it takes no memory or time to speak of
// until it is refused.
func TestLimits(t *testing.T) {
	const large = "the values are larger than 512 KiB"
	const tooLong = "takes longer than 500ms"
	defer func(its time.Duration) { patience = its }(patience)
	nested := "{{ $l := until 10000 }}" + strings.Repeat("{{ range $l }}", 5) + strings.Repeat("{{ end }}", 5)
	calls := "{{ template \"t0\" }}"
	for i := range 60 {
		calls += fmt.Sprintf("{{ define \"t%d\" }}{{ template \"t%d\" }}{{ template \"t%[2]d\" }}{{ end }}", i, i+1)
	}
	calls += `{{ define "t60" }}{{ end }}`
	for name, test := range map[string]struct{ template, err string }{
		"repeat":              {`a: {{ repeat 2000000000 "xxxxxxxx" }}`, large},
		"repeat twice":        {`a: {{ repeat 400000 "x" | repeat 400000 }}`, large},
		"until":               {`{{ range until 2000000000 }}{{ end }}`, "counts with numbers beyond"},
		"until, smaller":      {`{{ range until 20000000 }}{{ end }}`, "counts more than 10000 numbers"},
		"untilStep":           {`{{ untilStep 0 20000000 1 }}`, "counts more than 10000 numbers"},
		"untilStep, down":     {`{{ untilStep 20000000 0 -1 }}`, "counts more than 10000 numbers"},
		"untilStep, for ever": {`{{ untilStep 9223372036854775806 9223372036854775807 5 }}`, "counts with numbers beyond"},
		"seq":                 {`{{ seq 20000000 }}`, "counts more than 10000 numbers"},
		"seq of three":        {`{{ seq 0 2 20000000 }}`, "counts more than 10000 numbers"},
		"keys":                {`{{ range until 9 }}{{ $x := genPrivateKey "ecdsa" }}{{ end }}`, "more than 8 times"},
		"random":              {`a: {{ randAlphaNum 2000000000 }}`, large},
		"indent":              {`a: {{ indent 2000000000 "x" }}`, large},
		"nindent":             {`a: {{ nindent 100000 (repeat 100000 "\n") }}`, large},
		"replace":             {`a: {{ repeat 400000 "x" | replace "x" (repeat 400000 "y") }}`, "512 KiB"},
		"regexReplaceAll":     {`a: {{ regexReplaceAll "x" (repeat 400000 "x") (repeat 400000 "y") }}`, "512 KiB"},
		"wrapWith":            {`a: {{ wrapWith 1 (repeat 400000 "y") (repeat 400000 "x ") }}`, "512 KiB"},
		"join":                {`a: {{ join (repeat 400000 "y") (until 10000) }}`, large},
		"printf":              {`a: {{ printf "%999999d%999999d" 1 2 }}`, "printf pad to more"},
		"printf, given":       {`a: {{ printf "%*d" 999999 1 }}`, "printf pad to more"},
		"doubled":             {`{{ $x := "xxxxxxxx" }}{{ range until 60 }}{{ $x = print $x $x }}{{ end }}`, "512 KiB"},
		"doubled lists":       {`{{ $x := list 1 }}{{ range until 60 }}{{ $x = list $x $x }}{{ end }}{{ toJson $x }}`, "512 KiB"},
		"itself":              {`{{ $x := dict }}{{ $_ := set $x "x" $x }}{{ toJson $x }}`, large},
		"loops":               {nested, tooLong},
		"a loop of numbers":   {`{{ range 2000000000 }}{{ end }}`, tooLong},
		"templates":           {calls, tooLong},
		"output":              {`{{ range until 10000 }}{{ repeat 1000 "x" }}{{ end }}`, large},
		"within reason":       {`a: {{ range untilStep 10 0 -2 }}{{ . }}{{ end }}{{ seq 3 | quote }}{{ printf "%03d" 7 }}{{ genPrivateKey "ecdsa" | b64enc }}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := Parse(test.template)
			if err != nil {
				t.Fatal(err)
			}
			patience = 10 * time.Minute // Something else refuses it, on however slow a machine.
			if test.err == tooLong {
				patience = 500 * time.Millisecond
			}
			_, err = parsed.Render(data())
			if test.err == "" && err == nil {
				return
			}
			if test.err == "" || !strings.Contains(message(err), test.err) {
				t.Errorf("%q, want %q", message(err), test.err)
			}
		})
	}
	if _, err := Parse(strings.Repeat("ä", MaxTemplate)); err != nil {
		t.Error(err)
	}
	if _, err := Parse(strings.Repeat("{", MaxTemplate+1)); err == nil || !strings.Contains(err.Error(), "more than 131072 characters") {
		t.Error(err)
	}
}

func TestAliases(t *testing.T) {
	long := "a: &a " + strings.Repeat("x", 100_000) + "\n"
	for name, test := range map[string]struct {
		values string
		fits   bool
	}{
		"few":     {"a: &a {b: 1}\nc: *a\nd: {<<: *a}\n", true},
		"long":    {long + "b: [" + strings.Repeat("*a,", 20) + "]\n", false},
		"nested":  {"a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", false},
		"itself":  {"a: &a [*a]\n", false},
		"without": {long, true},
	} {
		err := CheckValues([]byte(test.values))
		if test.fits != (err == nil) || !test.fits && !strings.Contains(err.Error(), "when their aliases are resolved") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What does not change what a template may read does not have it rendered anew.
func TestWriteRead(t *testing.T) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", Labels: map[string]string{"a": "b", "c": "d"}}}
	read := func() string {
		var to bytes.Buffer
		if err := WriteRead(cluster, nil, &to); err != nil {
			t.Fatal(err)
		}
		return to.String()
	}
	before := read()
	cluster.ResourceVersion = "2"
	cluster.Generation = 2
	cluster.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "a"}}
	cluster.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}}
	if after := read(); after != before {
		t.Errorf("%s is not %s", after, before)
	}
	cluster.Labels["a"] = "c"
	if read() == before {
		t.Error("a label makes no difference")
	}
}
