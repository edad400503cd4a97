package gates

import (
	"strings"
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// story writes a history: one event after the other, each a second later.
type story struct{ events []Event }

func (s *story) add(e Event) *story {
	e.Revision = int64(len(s.events) + 1)
	e.At = begin.Add(time.Duration(e.Revision) * time.Second)
	s.events = append(s.events, e)
	return s
}

func (s *story) is(cluster, wanted, applied string, isReady bool) *story {
	version, _, _ := strings.Cut(wanted, ":")
	has, _, _ := strings.Cut(applied, ":")
	return s.add(Event{Deployment: "ns/" + cluster, Cluster: cluster, Content: version, Wanted: wanted, Applied: applied, Has: has, Ready: isReady})
}

func (s *story) content(name string, isGone bool) *story {
	return s.add(Event{Content: name, Gone: isGone})
}

// passes adds the three events of a Cluster that gets a version.
func (s *story) passes(cluster, from, to string) *story {
	return s.is(cluster, to, from, true).is(cluster, to, to, false).is(cluster, to, to, true)
}

// ready are four Clusters that have the first version: a canary, and b, c and d. The change comes after six events.
func ready() *story {
	s := (&story{}).content("v1", false).content("v2", false)
	for _, name := range []string{"a", "b", "c", "d"} {
		s.is(name, "v1", "v1", true)
	}
	return s
}

func change() []Rollout {
	return []Rollout{{Since: 7, Has: map[string]string{"a": "v2", "b": "v2", "c": "v2", "d": "v2"}, Stages: []Stage{
		{Clusters: []string{"a"}, MaxUnavailable: 1, Soak: 2 * time.Second}, {Clusters: []string{"b", "c", "d"}, MaxUnavailable: 1},
	}}}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		story *story
		want  string
	}{
		"no violation":                                                   {ready().passes("a", "v1", "v2").is("a", "v2", "v2", true).passes("b", "v1", "v2").passes("c", "v1", "v2").passes("d", "v1", "v2").content("v1", true), ""},
		"all at once before the change":                                  {(&story{}).content("v1", false).is("a", "v1", "", false).is("b", "v1", "", false).is("c", "v1", "", false).is("d", "v1", "v1", true), ""},
		"the next stage before the canary":                               {ready().is("b", "v2", "v1", true), `b of stage 1 moves, and a of stage 0 has "v1", not "v2"`},
		"the next stage while the canary has not applied it":             {ready().is("a", "v2", "v1", true).is("b", "v2", "v1", true), `a of stage 0 has "v1"`},
		"the next stage while the canary is not ready":                   {ready().is("a", "v2", "v2", false).is("b", "v2", "v1", true), "a of stage 0 is not ready"},
		"the next stage while the canary has another version":            {ready().content("v3", false).passes("a", "v1", "v3").is("a", "v3", "v3", true).is("b", "v2", "v1", true), `has "v3"`},
		"the next stage too early":                                       {ready().passes("a", "v1", "v2").is("b", "v2", "v1", true), "has been ready for 1s, not 2s"},
		"the soak time begins again":                                     {ready().passes("a", "v1", "v2").is("a", "v2", "v2", false).is("a", "v2", "v2", true).is("b", "v2", "v1", true), "has been ready for 1s"},
		"the next stage gets only other values":                          {ready().is("b", "v1:values", "v1", true), "b of stage 1 moves"},
		"the next stage gets its old state again":                        {ready().is("b", "v0", "v1", true), "b of stage 1 moves"},
		"too many at once":                                               {ready().passes("a", "v1", "v2").is("a", "v2", "v2", true).is("b", "v2", "v1", true).is("c", "v2", "v1", true), "stage 1: 2 Clusters are unavailable: [b c]"},
		"too many because one is lost":                                   {ready().add(Event{Deployment: "ns/b", Cluster: "b", Gone: true}).is("c", "v1", "v1", false), "2 Clusters are unavailable: [b c]"},
		"without its Content":                                            {ready().is("a", "v3", "v1", true), "ns/a deploys Content v3, which does not exist"},
		"the Content of a waiting Cluster is deleted":                    {ready().passes("a", "v1", "v2").content("v1", true), "Content v1 goes, and ns/"},
		"the Content of a BundleDeployment without a Cluster is deleted": {ready().add(Event{Deployment: "ns/x", Content: "v2"}).content("v2", true), "Content v2 goes, and ns/x deploys it"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(Check(test.story.events, change()), "\n")
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The watches may report in any order: the revisions decide.
func TestCheckSorts(t *testing.T) {
	s := ready().passes("a", "v1", "v2").is("a", "v2", "v2", true).passes("b", "v1", "v2")
	events := append(s.events[5:len(s.events):len(s.events)], s.events[:5]...)
	if got := Check(events, change()); len(got) > 0 {
		t.Error(got)
	}
}
