package plan

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/rollout"
)

// A release that is unready for a moment begins its soak time again. One that stays so, or fails, has regressed.
func TestRegressions(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	at := func(ago time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-ago))) }
	healthy, unready, waiting, failed := Release{Deployed: true, Healthy: true}, Release{Deployed: true}, Release{}, Release{Failed: true}
	for name, test := range map[string]struct {
		was      Rollout
		observed Release
		want     Rollout
		again    time.Duration
	}{
		"ready":                             {Rollout{Failed: true}, healthy, Rollout{Ready: at(0)}, 0},
		"ready as before":                   {Rollout{Ready: at(time.Hour)}, healthy, Rollout{Ready: at(time.Hour)}, 0},
		"failed":                            {Rollout{}, failed, Rollout{Failed: true}, 0},
		"not there yet":                     {Rollout{}, waiting, Rollout{}, 0},
		"unready for a moment":              {Rollout{Ready: at(time.Hour)}, unready, Rollout{Ready: at(time.Hour), Unready: at(0)}, UnreadyPatience},
		"still unready":                     {Rollout{Ready: at(time.Hour), Unready: at(time.Minute)}, unready, Rollout{Ready: at(time.Hour), Unready: at(time.Minute)}, UnreadyPatience - time.Minute},
		"ready again":                       {Rollout{Ready: at(time.Hour), Unready: at(time.Minute)}, healthy, Rollout{Ready: at(0)}, 0},
		"unready for long":                  {Rollout{Ready: at(time.Hour), Unready: at(6 * time.Minute)}, unready, Rollout{Regression: &Regression{*at(0), metav1.Duration{Duration: 54 * time.Minute}}}, 0},
		"fails later":                       {Rollout{Ready: at(time.Hour)}, failed, Rollout{Failed: true, Regression: &Regression{*at(0), metav1.Duration{Duration: time.Hour}}}, 0},
		"the values are on their way":       {Rollout{}, Release{Failed: true, WithoutValues: true}, Rollout{}, 0},
		"the values were deleted":           {Rollout{Ready: at(time.Hour)}, Release{Failed: true, WithoutValues: true}, Rollout{Ready: at(time.Hour)}, 0},
		"Fleet or the agent is behind":      {Rollout{Ready: at(time.Hour)}, waiting, Rollout{Ready: at(time.Hour)}, 0},
		"unready after the soak time":       {Rollout{Ready: at(5 * time.Hour)}, unready, Rollout{Ready: at(5 * time.Hour)}, 0},
		"unready while it waits for a turn": {Rollout{Ready: at(time.Hour), Pending: "x"}, unready, Rollout{Ready: at(time.Hour), Pending: "x"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got, again := test.was.After(test.observed, 4*time.Hour, now); JSON(got) != JSON(test.want) || again != test.again {
				t.Errorf("got %s in %s, want %s in %s", JSON(got), again, JSON(test.want), test.again)
			}
		})
	}
}

// status.rollout.lastCompleted changes whenever a rollout is completed, and with nothing else.
func TestLastCompleted(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	proxy.Spec.Version, proxy.Spec.Rollout = "1.0.0", &addonsv1.RolloutStrategy{OfflineAfter: &metav1.Duration{Duration: time.Hour}}
	proxy.Spec.ClusterSelector.MatchLabels = map[string]string{"a": "b"}
	var since time.Time
	updated := 1
	report := func(reason string) *addonsv1.CompletedRollout {
		now = now.Add(time.Minute)
		var condition metav1.Condition
		proxy.Status.Rollout, condition = RolloutStatus(proxy, "1.2.3", &rollout.Decision{Reason: reason, Since: since, Counts: []rollout.Count{{Clusters: 1, Updated: updated}}}, now)
		condition.ObservedGeneration = proxy.Generation
		proxy.Status.Conditions = []metav1.Condition{condition}
		return proxy.Status.Rollout.LastCompleted
	}
	if its := report(rollout.Progressing); its != nil {
		t.Errorf("not completed yet: %v", its)
	}
	first := report(rollout.Completed)
	if again := report(rollout.Completed); !again.Time.Equal(&first.Time) || !first.Time.Time.Equal(now.Add(-time.Minute)) {
		t.Errorf("completed at %s, and then at %s", first.Time, again.Time)
	}
	proxy.Generation, proxy.Spec.Version, proxy.Spec.ValuesTemplate = 2, "2.0.0", "a: b"
	if its := report(rollout.Halted); its != first || IsBack(proxy) {
		t.Errorf("halted: %v; back: %t", its, IsBack(proxy))
	}
	updated = 0
	if its := report(rollout.Completed); its != first {
		t.Errorf("no Cluster has the change: %v", its)
	}
	updated = 1
	proxy.Spec.ClusterSelector.MatchLabels = map[string]string{"c": "d"}
	last, isKnown := LastCompleted(proxy)
	want := proxy.DeepCopy().Spec
	want.Version, want.ValuesTemplate = "1.0.0", ""
	if !isKnown || JSON(last) != JSON(want) {
		t.Errorf("known: %t, %s; want %s", isKnown, JSON(last), JSON(want))
	}
	proxy.Generation, proxy.Spec = 3, last
	if !IsBack(proxy) {
		t.Error("it is back, and IsBack does not say so")
	}
	if its := report(rollout.Completed); !its.Time.Time.Equal(now) {
		t.Errorf("completed again at %s", its.Time)
	}
	report(rollout.Soaking) // The values of a Cluster have changed.
	if its := report(rollout.Completed); !its.Time.Time.Equal(now) {
		t.Errorf("completed after other values at %s", its.Time)
	}
	since = now.Add(30 * time.Second) // A release has moved, and the report that the rollout was under way was lost.
	if its := report(rollout.Completed); !its.Time.Time.Equal(now) {
		t.Errorf("a change was not reported, and completed at %s", its.Time)
	}
	since = now.Add(time.Hour) // The clock was wrong when it moved.
	if its, again := report(rollout.Completed), report(rollout.Completed); !its.Time.Time.Equal(since) || again != its {
		t.Errorf("completed before the last release moved at %s: %s, and then %s", since, its.Time, again.Time)
	}
	since = now // The release has written that back.
	if its, again := report(rollout.Completed), report(rollout.Completed); !its.Time.Time.Equal(now.Add(-time.Minute)) || again != its {
		t.Errorf("the clock was ahead: %s, and then %s", its.Time, again.Time)
	}
	proxy.Generation, proxy.Spec.ValuesTemplate = 4, strings.Repeat("x", mostSpec)
	its := report(rollout.Completed)
	if _, isKnown := LastCompleted(proxy); isKnown || its.Spec.Raw != nil || report(rollout.Completed) != its || !strings.HasPrefix(JSON(its), `{"time":"`) || strings.Contains(JSON(its), "spec") {
		t.Errorf("a spec that is too large: %s", JSON(its))
	}
}

// A rollout that is completed without some Clusters does not say that every Cluster has the wanted state.
func TestRolloutMessage(t *testing.T) {
	for _, test := range []struct{ reason, without, want string }{
		{rollout.Completed, "", ""},
		{rollout.Completed, "1 not installed yet: team/c", "every other Cluster has the wanted state (1 not installed yet: team/c)"},
		{rollout.Progressing, "1 paused: team/c", "stage canary, 1 of 2 updated: waits for team/b (1 paused: team/c)"},
	} {
		decision := &rollout.Decision{Reason: test.reason, Without: test.without, Counts: []rollout.Count{{Name: "canary", Clusters: 2, Updated: 1}}}
		if test.reason != rollout.Completed {
			decision.Message = "waits for team/b"
		}
		if _, completed := RolloutStatus(&addonsv1.HelmChartProxy{}, "1.0.0", decision, time.Now()); completed.Message != test.want {
			t.Errorf("%s: %q, want %q", test.reason, completed.Message, test.want)
		}
	}
}

// A Cluster that joins before the new version has passed a stage gets the last completed one.
func TestJoinVersion(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxy, *Chart)
		want   string
	}{
		"no stage has passed": {func(*addonsv1.HelmChartProxy, *Chart) {}, "1.0.0"},
		"the status is older": {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Generation, proxy.Status.Rollout.Stage = 3, "" }, "1.0.0"},
		"a stage has passed":  {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Status.Rollout.Stage = "rest" }, ""},
		"only a stage without releases has passed": {func(proxy *addonsv1.HelmChartProxy, _ *Chart) {
			proxy.Status.Rollout.Stages[0].Updated, proxy.Status.Rollout.Stage = 0, "rest"
		}, "1.0.0"},
		"only empty stages have passed": {func(proxy *addonsv1.HelmChartProxy, _ *Chart) {
			proxy.Status.Rollout.Stages[0], proxy.Status.Rollout.Stage = addonsv1.RolloutStageStatus{Name: "canary"}, "rest"
		}, "1.0.0"},
		"the rollout is completed": {func(proxy *addonsv1.HelmChartProxy, _ *Chart) {
			proxy.Status.Conditions[0].Status = metav1.ConditionTrue
		}, ""},
		"no rollout was completed":    {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Status.Rollout.LastCompleted = nil }, ""},
		"none is reported":            {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Status = addonsv1.HelmChartProxyStatus{} }, ""},
		"Muster downloads the chart":  {func(_ *addonsv1.HelmChartProxy, chart *Chart) { chart.Agent = false }, ""},
		"it is another chart":         {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Spec.ChartName = "other" }, ""},
		"it comes from another place": {func(proxy *addonsv1.HelmChartProxy, _ *Chart) { proxy.Spec.RepoURL = "https://b.example.com" }, ""},
		"the version has not changed": {func(_ *addonsv1.HelmChartProxy, chart *Chart) { chart.Version = "1.0.0" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, chart := &addonsv1.HelmChartProxy{}, Chart{Agent: true, Version: "2.0.0"}
			proxy.Generation, proxy.Spec.ChartName, proxy.Spec.RepoURL = 2, "web", "https://a.example.com"
			proxy.Status = addonsv1.HelmChartProxyStatus{
				Conditions: []metav1.Condition{{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionFalse, ObservedGeneration: 2}},
				Rollout: &addonsv1.RolloutStatus{
					Stage: "canary", Stages: []addonsv1.RolloutStageStatus{{Name: "canary", Clusters: 1, Updated: 1}, {Name: "rest", Clusters: 2}},
					LastCompleted: &addonsv1.CompletedRollout{Version: "1.0.0", Spec: runtime.RawExtension{Raw: []byte(`{"chartName": "web", "repoURL": "https://a.example.com"}`)}},
				},
			}
			test.change(proxy, &chart)
			if got := JoinVersion(proxy, chart); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
