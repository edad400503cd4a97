package hold

import (
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/stamp"
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func optedIn(more ...string) map[string]string {
	result := map[string]string{stamp.HoldAnnotation: "30m"}
	for i := 0; i < len(more); i += 2 {
		result[more[i]] = more[i+1]
	}
	return result
}

func TestBound(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		want        time.Duration
		wrong       bool
	}{
		"nobody asks":                {},
		"the Cluster asks":           {annotations: optedIn(), want: 30 * time.Minute},
		"its class asks":             {annotations: map[string]string{stamp.ClassHoldAnnotation: "1h"}, want: time.Hour},
		"the Cluster wins":           {annotations: optedIn(stamp.ClassHoldAnnotation, "1h"), want: 30 * time.Minute},
		"the Cluster does not want":  {annotations: map[string]string{stamp.HoldAnnotation: "0s", stamp.ClassHoldAnnotation: "1h"}},
		"no duration":                {annotations: map[string]string{stamp.HoldAnnotation: "soon"}, wrong: true},
		"empty":                      {annotations: map[string]string{stamp.HoldAnnotation: ""}, wrong: true},
		"negative":                   {annotations: map[string]string{stamp.HoldAnnotation: "-5m"}, wrong: true},
		"too long":                   {annotations: map[string]string{stamp.HoldAnnotation: "1000h"}, want: Longest},
		"a very long value is short": {annotations: map[string]string{stamp.HoldAnnotation: strings.Repeat("x", 100000)}, wrong: true},
	} {
		got, err := Bound(test.annotations)
		if got != test.want || (err != nil) != test.wrong {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

func TestOnUpdate(t *testing.T) {
	began := Hold{From: "v1", To: "v2", Since: noon.Add(-time.Minute)}
	held := optedIn(stamp.HookAnnotation, began.String())
	at := func(version string, annotations map[string]string) Cluster {
		return Cluster{Version: version, Annotations: annotations, Place: In}
	}
	with := func(cluster Cluster, change func(*Cluster)) Cluster {
		change(&cluster)
		return cluster
	}
	fresh := Hold{From: "v1", To: "v2", Since: noon}.String()
	old := optedIn(stamp.HookAnnotation, Hold{From: "v1", To: "v2", Since: noon.Add(-time.Hour)}.String())
	ahead := optedIn(stamp.HookAnnotation, Hold{From: "v1", To: "v2", Since: noon.Add(48 * time.Hour)}.String())
	for name, test := range map[string]struct {
		before, after Cluster
		bySyncer      bool
		want          string
	}{
		"nobody asks":                         {before: at("v1", nil), after: at("v2", nil)},
		"nothing changes":                     {before: at("v1", optedIn()), after: at("v1", optedIn())},
		"a new version":                       {before: at("v1", optedIn()), after: at("v2", optedIn()), want: fresh},
		"opts in with the new version":        {before: at("v1", nil), after: at("v2", optedIn()), want: fresh},
		"opts out with the new version":       {before: at("v1", optedIn()), after: at("v2", nil)},
		"not in Fleet":                        {before: with(at("v1", optedIn()), func(c *Cluster) { c.Place = Out }), after: at("v2", optedIn())},
		"paused":                              {before: at("v1", optedIn()), after: with(at("v2", optedIn()), func(c *Cluster) { c.Paused = true })},
		"upgrading already":                   {before: at("v1", optedIn()), after: at("v2", optedIn(pendingHooks, "AfterClusterUpgrade,AfterControlPlaneUpgrade"))},
		"gets a topology":                     {before: at("", optedIn()), after: at("v2", optedIn())},
		"loses its topology":                  {before: at("v1", held), after: at("", held)},
		"a PUT drops the hold":                {before: at("v2", held), after: at("v2", optedIn()), want: began.String()},
		"a PUT changes the hold":              {before: at("v2", held), after: at("v2", optedIn(stamp.HookAnnotation, "x")), want: began.String()},
		"a request brings a hold":             {before: at("v1", optedIn()), after: at("v1", held)},
		"brings one with the version":         {before: at("v1", optedIn()), after: at("v2", optedIn(stamp.HookAnnotation, Hold{From: "v0", To: "v9", Since: noon.Add(time.Hour)}.String())), want: fresh},
		"brings one without a wish":           {before: at("v1", nil), after: at("v1", map[string]string{stamp.HookAnnotation: "x"})},
		"a PUT drops it after the bound":      {before: at("v2", old), after: at("v2", optedIn())},
		"a PUT drops one that is dated ahead": {before: at("v2", ahead), after: at("v2", optedIn()), want: ahead[stamp.HookAnnotation]},
		"the bound has passed":                {before: at("v2", old), after: at("v2", old), want: old[stamp.HookAnnotation]},
		"the syncer ends it":                  {before: at("v2", held), after: at("v2", optedIn()), bySyncer: true},
		"the syncer changes it":               {before: at("v2", held), after: at("v2", optedIn(stamp.HookAnnotation, "x")), bySyncer: true, want: began.String()},
		"the syncer brings one":               {before: at("v2", optedIn()), after: at("v2", held), bySyncer: true},
		"opts out":                            {before: at("v2", held), after: at("v2", map[string]string{stamp.HookAnnotation: began.String()})},
		"opts out, and its class asks":        {before: at("v2", held), after: at("v2", map[string]string{stamp.HookAnnotation: began.String(), stamp.ClassHoldAnnotation: "1h"}), want: began.String()},
		"opts out by zero":                    {before: at("v2", held), after: at("v2", map[string]string{stamp.HookAnnotation: began.String(), stamp.HoldAnnotation: "0"})},
		"changed back":                        {before: at("v2", held), after: at("v1", held)},
		"a second version":                    {before: at("v2", held), after: at("v3", held), want: Hold{From: "v1", To: "v3", Since: noon}.String()},
		"a second version, out of Fleet":      {before: with(at("v2", held), func(c *Cluster) { c.Place = Out }), after: at("v3", held), want: Hold{From: "v1", To: "v3", Since: noon}.String()},
		"labels change with the version":      {before: at("v1", optedIn()), after: with(at("v2", optedIn()), func(c *Cluster) { c.Labels = map[string]string{"cni": "2"} }), want: Hold{From: "v1", To: "v2", Since: noon, More: true}.String()},
		"the class changes with the version":  {before: at("v1", optedIn()), after: with(at("v2", optedIn()), func(c *Cluster) { c.Class.Name = "other" }), want: Hold{From: "v1", To: "v2", Since: noon, More: true}.String()},
		"a variable changes with it":          {before: at("v1", optedIn()), after: with(at("v2", optedIn()), func(c *Cluster) { c.Variables = "[]" }), want: Hold{From: "v1", To: "v2", Since: noon, More: true}.String()},
		"a person removes a leftover":         {before: at("v2", map[string]string{stamp.HookAnnotation: "x"}), after: at("v2", nil)},
		"its own keys are no more":            {before: at("v1", optedIn()), after: at("v2", optedIn(stamp.Domain+"/x", "y", "kubectl.kubernetes.io/last-applied-configuration", "{}")), want: fresh},
		"a hold of others stays theirs":       {before: at("v1", nil), after: at("v2", map[string]string{"before-upgrade.hook.cluster.cluster.x-k8s.io/else": "x"})},
		"a leftover is left to the syncer":    {before: at("v2", map[string]string{stamp.HookAnnotation: "x"}), after: at("v2", map[string]string{stamp.HookAnnotation: "x"}), want: "x"},
	} {
		before := maps.Clone(test.after.Annotations)
		got := OnUpdate(test.before, test.after, test.bySyncer, noon)
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if !maps.Equal(before, test.after.Annotations) {
			t.Errorf("%s: the Cluster was changed", name)
		}
		// The webhook may be called again with its own result.
		again := test.after
		again.Annotations = maps.Clone(test.after.Annotations)
		if got == "" {
			delete(again.Annotations, stamp.HookAnnotation)
		} else {
			if again.Annotations == nil {
				again.Annotations = map[string]string{}
			}
			again.Annotations[stamp.HookAnnotation] = got
		}
		if twice := OnUpdate(test.before, again, test.bySyncer, noon); twice != got {
			t.Errorf("%s: at the second call %q, want %q", name, twice, got)
		}
	}
}

// A Cluster that clusterctl moves here keeps its hold, and no other new Cluster brings one.
func TestOnCreate(t *testing.T) {
	held, ahead := Hold{From: "v1", To: "v2", Since: noon.Add(-time.Minute)}, Hold{From: "v1", To: "v2", Since: noon.Add(time.Hour)}
	for name, test := range map[string]struct {
		annotations map[string]string
		version     string
		want        string
	}{
		"moved":             {optedIn(stamp.HookAnnotation, held.String()), "v2", held.String()},
		"not paused":        {optedIn(stamp.HookAnnotation, held.String()), "v2", ""},
		"nothing":           {optedIn(), "v2", ""},
		"it does not ask":   {map[string]string{stamp.HookAnnotation: held.String()}, "v2", ""},
		"another version":   {optedIn(stamp.HookAnnotation, held.String()), "v3", ""},
		"the bound is over": {optedIn(stamp.HookAnnotation, Hold{From: "v1", To: "v2", Since: noon.Add(-time.Hour)}.String()), "v2", ""},
		"it is dated ahead": {optedIn(stamp.HookAnnotation, ahead.String()), "v2", ahead.String()},
		"it is not ours":    {optedIn(stamp.HookAnnotation, "x"), "v2", ""},
	} {
		if got := OnCreate(Cluster{Annotations: test.annotations, Version: test.version, Paused: name != "not paused"}, noon); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]bool{
		Hold{From: "v1", To: "v2", Since: noon}.String(): true,
		"":                        false,
		"{}":                      false,
		"true":                    false,
		`{"from":"v1","to":"v2"}`: false,
		`{"from":"v1","to":"v2","since":"9999-12-31T23:59:59-01:00"}`:                          false, // It is year 10000 in UTC, which has no JSON.
		`{"from":"v1","to":"v2","since":"0000-01-01T00:00:00+01:00"}`:                          false,
		`{"from":"v1 to v2: x","to":"v2","since":"2026-11-25T12:00:00Z"}`:                      false,
		`{"from":"v1\n","to":"v2","since":"2026-11-25T12:00:00Z"}`:                             false,
		`{"from":"v1.33.0-rc.1+rke2r1","to":"v2","since":"2026-11-25T12:00:00Z"}`:              true,
		`{"from":"` + strings.Repeat("1", 257) + `","to":"v2","since":"2026-11-25T12:00:00Z"}`: false,
	} {
		if _, got := Parse(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	longest := Hold{From: strings.Repeat("1", longestVersion), To: strings.Repeat("2", longestVersion), Since: noon, More: true}
	if got, valid := Parse(longest.String()); !valid || got != longest {
		t.Errorf("%q is not read back", longest)
	}
}

// Whoever wrote the condition, a hold ends only where Muster no longer gives Fleet the versions.
func TestPlaceOf(t *testing.T) {
	for place, all := range map[Place][]string{
		Out:       {" ", "True Attached", "True Deselected", "False Deselected", "True TooMuchMetadata", "False TooMuchMetadata"},
		In:        {"True Imported", "True Failed", "True TemplateValuesUnresolved", "True DoubleImport", "True NameConflict"},
		Returning: {"False WaitingForFleet", "False FleetClusterDeleting"},
		Disturbed: {"False Failed", "False NameConflict", "False WaitingForControlPlane", "False WaitingForAgent", "False Unheard"},
	} {
		for _, its := range all {
			status, reason, _ := strings.Cut(its, " ")
			if got := PlaceOf(metav1.ConditionStatus(status), reason); got != place {
				t.Errorf("%q: %d, want %d", its, got, place)
			}
		}
	}
}
