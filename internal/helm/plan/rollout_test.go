package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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
