package plan

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func TestRecordOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "{}",
		"no JSON":                        "{}",
		`{"revision":-1}`:                "{}",
		`{"sync":-1}`:                    "{}",
		`{"retry":{"of":"","count":-1}}`: "{}",
		`{"keys":["` + strings.Repeat(`a","`, 20) + `"]}`:  "{}",
		`{"installed":true}`:                               `{"installed":true}`,
		`{"installed":true}` + strings.Repeat(" ", 16<<10): "{}",
		`{"revision":"many"}`:                              "{}",
		`{"revision":9223372036854775807}`:                 "{}",
		`{"revision":999999999}`:                           `{"revision":999999999}`,
		`{"sync":9223372036854775807}`:                     "{}",
		`{"retry":{"of":"","count":9223372036854775807}}`:  "{}",
		`{"fleetCluster":"victim.1"}`:                      "{}",
		`{"fleetCluster":"../victim"}`:                     "{}",
		`{"fleetCluster":"victim"}`:                        `{"fleetCluster":"victim"}`,
	} {
		its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RecordAnnotation: text}}}
		if got := RecordOf(its).String(); got != want {
			t.Errorf("%q is read as %s, want %s", text, got, want)
		}
	}
}

func TestIsMadeAnew(t *testing.T) {
	record := Record{Of: &Of{Cluster: "c", Release: "r"}}
	for name, test := range map[string]struct {
		record Record
		of     Of
		want   bool
	}{
		"the same":            {record, Of{"c", "r"}, false},
		"made anew":           {record, Of{"other", "r"}, true},
		"moved by clusterctl": {record, Of{"other", "other"}, false},
		"not known":           {Record{}, Of{"c", "r"}, false},
	} {
		if got := test.record.IsMadeAnew(test.of); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestAfter: a failed deployment is retried with growing delays, which start again with other content or
// values.
func TestAfter(t *testing.T) {
	now := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	installed := Record{Installed: true}
	givenUp, retried := Release{Failed: true, GivenUp: true}, Release{Failed: true}

	t.Run("delays", func(t *testing.T) {
		for name, test := range map[string]struct {
			release Release
			want    string
		}{
			"given up": {givenUp, "5s 10s 20s 40s 1m20s 2m40s 5m20s 10m0s 10m0s 10m0s"},
			"retried":  {retried, "2m0s 4m0s 8m0s 10m0s 10m0s 10m0s 10m0s 10m0s 10m0s 10m0s"},
		} {
			record, at, got := installed, now, []string{}
			for sync := range int64(10) {
				var wait time.Duration
				if record, wait = record.After(test.release, "a", at); record.Sync != sync {
					t.Fatalf("%s: retried too early: %s", name, record)
				}
				got, at = append(got, wait.String()), at.Add(wait)
				if record, wait = record.After(test.release, "a", at); wait != 0 || record.Sync != sync+1 {
					t.Fatalf("%s: not retried: %s, %s", name, record, wait)
				}
			}
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("%s: the delays are %s, want %s", name, got, test.want)
			}
		}
	})
	t.Run("other content begins at the shortest delay, and goes on counting", func(t *testing.T) {
		record := Record{Installed: true, Sync: 7, Retry: &Retry{Of: "a", Count: 7, At: later(now, time.Hour)}}
		record, wait := record.After(givenUp, "b", now)
		if wait != firstDelay || record.Sync != 7 {
			t.Errorf("%s, %s", record, wait)
		}
	})
	t.Run("a clock that was ahead delays no retry", func(t *testing.T) {
		record := Record{Installed: true, Sync: 7, Retry: &Retry{Of: "a", Count: 7, At: later(now, time.Hour)}}
		record, wait := record.After(givenUp, "a", now)
		if again, left := record.After(givenUp, "a", now); wait != firstDelay || left != wait || again.String() != record.String() {
			t.Errorf("%s, %s", record, wait)
		}
	})
	t.Run("deployed", func(t *testing.T) {
		record, wait := Record{Unforced: true, Sync: 2, Retry: &Retry{Of: "a"}}.After(Release{Deployed: true}, "a", now)
		if got := record.String(); wait != 0 || got != `{"installed":true,"sync":2}` {
			t.Errorf("%s, %s", got, wait)
		}
	})
	t.Run("a first installation that fails goes on without force, at once and once", func(t *testing.T) {
		record, wait := Record{}.After(retried, "a", now)
		if wait != 0 || !record.Unforced || record.Sync != 1 {
			t.Fatalf("%s, %s", record, wait)
		}
		if record, wait = record.After(Release{Failed: true, Since: now.Add(-time.Second)}, "a", now); wait != slowDelay-time.Second || record.Sync != 1 {
			t.Errorf("%s, %s", record, wait)
		}
	})
	t.Run("one that Helm refuses keeps force: nothing was stored", func(t *testing.T) {
		record, wait := Record{}.After(Release{Failed: true, GivenUp: true, Refused: true}, "a", now)
		if wait != firstDelay || record.Unforced {
			t.Errorf("%s, %s", record, wait)
		}
	})
	t.Run("nothing is known", func(t *testing.T) {
		if record, wait := installed.After(Release{}, "a", now); wait != 0 || record.String() != installed.String() {
			t.Errorf("%s, %s", record, wait)
		}
	})
}

// TestIsFrozen: Muster leaves a release alone that CAAPH installed with InstallOnce. The annotation alone is
// not enough, and does not apply to a release that is already in Fleet.
func TestIsFrozen(t *testing.T) {
	once := &addonsv1.HelmChartProxy{Spec: addonsv1.HelmChartProxySpec{ReconcileStrategy: addonsv1.ReconcileStrategyInstallOnce}}
	for name, test := range map[string]struct {
		proxy  *addonsv1.HelmChartProxy
		record Record
		change func(*addonsv1.HelmReleaseProxy)
		want   bool
	}{
		"installed by CAAPH":        {proxy: once, want: true},
		"installed by Muster":       {proxy: once, record: Record{FleetCluster: "one", Installed: true}, want: true},
		"in Fleet, not installed":   {proxy: once, record: Record{FleetCluster: "one"}},
		"not InstallOnce":           {proxy: &addonsv1.HelmChartProxy{}, record: Record{Installed: true}},
		"no annotation of CAAPH":    {proxy: once, change: func(its *addonsv1.HelmReleaseProxy) { delete(its.Annotations, addonsv1.ReleaseInstalledAnnotation) }},
		"no status":                 {proxy: once, change: func(its *addonsv1.HelmReleaseProxy) { its.Status = addonsv1.HelmReleaseProxyStatus{} }},
		"a status of failure":       {proxy: once, change: func(its *addonsv1.HelmReleaseProxy) { its.Status.Status = failed }},
		"a status without revision": {proxy: once, change: func(its *addonsv1.HelmReleaseProxy) { its.Status.Revision = 0 }},
	} {
		its := &addonsv1.HelmReleaseProxy{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{addonsv1.ReleaseInstalledAnnotation: "true", RecordAnnotation: test.record.String()}},
			Status:     addonsv1.HelmReleaseProxyStatus{Status: Deployed, Revision: 1},
		}
		if test.change != nil {
			test.change(its)
		}
		if got := IsInstalledOnce(test.proxy, its); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
