package proxy

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/rollout"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/program"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// rolled is a HelmChartProxy with two stages, and releases on Clusters a, b and c; a is the canary.
type rolled struct {
	*Reconciler
	of    *addonsv1.HelmChartProxy
	in    *inputs.Inputs
	state state
}

func newRolled(t *testing.T, records map[string]plan.Rollout, fleets ...client.Object) *rolled {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	r := &rolled{of: &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web"}}, in: &inputs.Inputs{Digest: "1"}}
	r.of.Spec.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Stages: []addonsv1.RolloutStage{
		{Name: "canary", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}},
	}}
	read := &inputs.Reader{Now: func() time.Time { return noon }}
	objects := slices.Clone(fleets)
	for _, name := range []string{"a", "b", "c"} {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		if name == "a" {
			cluster.Labels = map[string]string{"tier": "canary"}
		}
		release := wantedRelease(r.of, r.in, client.ObjectKeyFromObject(cluster), nil)
		release.Name, release.UID = "web-"+name, types.UID(name)
		release.Annotations[plan.BundleAnnotation] = "hcp-web"
		release.Status.Conditions = []metav1.Condition{{Type: addonsv1.HelmReleaseReadyCondition, Status: metav1.ConditionTrue}}
		its := records[name]
		release.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: name, Installed: true, Rollout: &its}.String()
		r.state.clusters, r.state.releases = append(r.state.clusters, cluster), append(r.state.releases, release)
		objects = append(objects, release.DeepCopy())
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	r.Reconciler = &Reconciler{Store: store.New(c, c, "muster", clock.RealClock{}), Inputs: read, Now: func() time.Time { return noon },
		Knows: func(context.Context, *addonsv1.HelmChartProxy, *inputs.Inputs, *addonsv1.HelmReleaseProxy, *clusterv1.Cluster) bool {
			return true
		}}
	r.catchUp(t)
	r.report()
	return r
}

// catchUp lets the cache show the releases as they are now.
func (r *rolled) catchUp(t *testing.T) {
	t.Helper()
	for _, its := range r.state.releases {
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(its), its); err != nil {
			t.Fatal(err)
		}
	}
}

// report lets the releases report the inputs, as the cache shows them.
func (r *rolled) report() {
	for _, its := range r.state.releases {
		r.Inputs.Saw(its, r.in)
	}
}

// step decides once, and returns the Clusters that may move by now, and the reason why the rollout waits.
func (r *rolled) step(t *testing.T) (granted []string, reason string) {
	t.Helper()
	if _, err := r.rollOut(t.Context(), r.of, r.in, &r.state); err != nil {
		t.Fatal(err)
	}
	for _, release := range r.state.releases {
		live := &addonsv1.HelmReleaseProxy{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(release), live); err != nil {
			t.Fatal(err)
		}
		if live.Annotations[plan.GrantedAnnotation] != "" {
			granted = append(granted, release.Spec.ClusterRef.Name)
		}
	}
	return granted, r.state.rollout.Reason
}

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(noon.Add(-d))) }

// A release that waits for the next change before it has been ready with the last one gets its change before one that
// works: else one more Cluster would be unavailable than may be.
func TestOneThatNeverBecameReadyCounts(t *testing.T) {
	ready := ago(time.Hour)
	for name, c := range map[string]plan.Rollout{
		"never ready":     {Pending: "new", Since: ago(time.Minute)},
		"no longer ready": {Pending: "new", Since: ready, Ready: ready, Unready: ago(time.Minute)},
		"ceased to be":    {Pending: "new", Regression: &plan.Regression{At: *ago(time.Minute)}},
		"failed":          {Pending: "new", Since: ago(time.Minute), Failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Ready: ready}, "c": c})
			if granted, _ := r.step(t); !slices.Equal(granted, []string{"c"}) {
				t.Errorf("%v may move, want c", granted)
			}
		})
	}
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Joined: ready}, "c": {Pending: "new", Joined: ready}})
	if granted, _ := r.step(t); !slices.Equal(granted, []string{"b"}) {
		t.Errorf("%v may move of two that joined together with a change, want b", granted)
	}
}

// A grant counts before the cache has it: else one more Cluster would move than may be unavailable.
func TestGrantsCountAtOnce(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Ready: ready}, "c": {Pending: "new", Ready: ready}})
	b := client.ObjectKeyFromObject(r.state.releases[1])
	r.Inputs.ForgetRelease(b)
	first, _ := r.step(t)
	r.report() // b sorts before c, whose grant the cache lacks.
	second, _ := r.step(t)
	if !slices.Equal(first, []string{"c"}) || !slices.Equal(second, first) {
		t.Errorf("granted %v, and then %v", first, second)
	}
}

// A release whose change changed and changed back lost its grant meanwhile. It must get another one, or it waits for ever.
func TestGrantsCountUntilTheCacheHasThem(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Ready: ready}, "c": {Ready: ready}})
	if granted, _ := r.step(t); !slices.Equal(granted, []string{"b"}) {
		t.Fatalf("granted %v", granted)
	}
	b := r.state.releases[1]
	for _, pending := range []string{"other", "new"} {
		r.catchUp(t)
		changed := b.DeepCopy()
		delete(changed.Annotations, plan.GrantedAnnotation) // As the release writes its record.
		changed.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "b", Installed: true, Rollout: &plan.Rollout{Pending: pending, Ready: ready}}.String()
		if err := r.Update(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
	}
	r.catchUp(t)
	if granted, reason := r.step(t); !slices.Equal(granted, []string{"b"}) {
		t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
	}
}

// A release that reports a change after the reconcile has read it counts as without one: else the rollout would be complete
// before it began, and abort would go back to the change that failed.
func TestReportsCountOnceReadAfterwards(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Ready: ready}, "c": {Ready: ready}})
	r.in.Digest = "2"
	read := r.state.releases
	r.state.releases = nil
	for _, its := range read { // Each reports a later version.
		later := its.DeepCopy()
		later.Annotations["later"] = "true"
		if err := r.Update(t.Context(), later); err != nil {
			t.Fatal(err)
		}
		r.state.releases = append(r.state.releases, later)
	}
	r.report()
	r.state.releases = read
	if _, reason := r.step(t); reason == rollout.Completed {
		t.Error("it is complete with releases that were read before they reported")
	}
	r.catchUp(t)
	if _, reason := r.step(t); reason != rollout.Completed {
		t.Errorf("reason %s, want Completed", reason)
	}
}

// A release that reports a change between the read and the write of its spec counts as without one, too: what was read lacks the
// report, although the write came after it.
func TestReportsCountBeforeTheSpec(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Ready: ready}, "c": {Ready: ready}})
	r.in.Digest, r.in.Chart.Version = "2", "2.0.0"
	for i, read := range r.state.releases {
		its := read.DeepCopy()
		its.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: its.Spec.ClusterRef.Name, Installed: true, Rollout: &plan.Rollout{Pending: "new", Ready: ready}}.String()
		if err := r.Update(t.Context(), its); err != nil {
			t.Fatal(err)
		}
		r.Inputs.Saw(its, r.in)
		var err error
		if r.state.releases[i], err = r.putRelease(t.Context(), r.of, r.in, plan.ClusterOf(read), read, nil); err != nil || r.state.releases[i].Spec.Version != "2.0.0" {
			t.Fatalf("it has version %s (%v)", r.state.releases[i].Spec.Version, err)
		}
	}
	if _, reason := r.step(t); reason == rollout.Completed {
		t.Error("it is complete with releases that were read before they reported")
	}
	r.catchUp(t)
	if granted, _ := r.step(t); !slices.Equal(granted, []string{"a"}) {
		t.Errorf("granted %v, want a", granted)
	}
}

// Times are not put back in a record that was read before the write of the spec, if the release has written another one meanwhile.
func TestTimesAheadBeforeTheSpec(t *testing.T) {
	ahead := plan.Rollout{Ready: ago(-time.Hour)}
	r := newRolled(t, map[string]plan.Rollout{"a": ahead, "b": ahead, "c": ahead})
	r.in.Chart.Version = "2.0.0"
	read := r.state.releases[0]
	newer := read.DeepCopy()
	newer.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "a", Installed: true, Revision: 7, Rollout: &ahead}.String()
	if err := r.Update(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.state.releases[0], err = r.putRelease(t.Context(), r.of, r.in, plan.ClusterOf(read), read, nil); err != nil {
		t.Fatal(err)
	}
	r.state.releases, r.state.clusters = r.state.releases[:1], r.state.clusters[:1]
	if _, err := r.rollOut(t.Context(), r.of, r.in, &r.state); !store.IsBehind(err) {
		t.Errorf("the error is %v, want a conflict", err)
	}
	r.catchUp(t)
	if got := plan.RecordOf(r.state.releases[0]).Revision; got != 7 {
		t.Errorf("the record has revision %d, want 7", got)
	}
}

// A release that waits for its turn, and that the program has written since the cache has it, has not been granted its change for
// sure. If its agent is silent, the rollout must not be complete without it.
func TestSilentAgentOfAPastRelease(t *testing.T) {
	ready := ago(time.Hour)
	silent := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "fleet-a"}}
	silent.Status.Agent.LastSeen = *ago(24 * time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Pending: "new", Ready: ready}, "b": {Ready: ready}, "c": {Ready: ready}}, silent)
	r.of.Spec.Rollout.Stages[0].Approval = addonsv1.RolloutApprovalManual
	later := r.state.releases[0].DeepCopy()
	later.Annotations["later"] = "true"
	if err := r.Change(t.Context(), r.state.releases[0], later); err != nil {
		t.Fatal(err)
	}
	if _, reason := r.step(t); reason == rollout.Completed {
		t.Error("it is complete without a release that waits for approval")
	}
	r.catchUp(t)
	if _, reason := r.step(t); reason != rollout.WaitingForApproval {
		t.Errorf("reason %s, want WaitingForApproval", reason)
	}
}

// The record has whole seconds, rounded down: the next stage must not begin before the soak time has passed.
func TestSoakIsNotShort(t *testing.T) {
	waiting := plan.Rollout{Pending: "new", Ready: ago(time.Hour)}
	for name, test := range map[string]struct {
		soak, ready time.Duration
		granted     []string
	}{
		"just passed, by the record": {time.Minute, time.Minute, nil},
		"passed":                     {time.Minute, time.Minute + time.Second, []string{"b"}},
		"without one":                {0, 0, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ago(test.ready)}, "b": waiting, "c": waiting})
			r.of.Spec.Rollout.Stages[0].Soak = &metav1.Duration{Duration: test.soak}
			if granted, reason := r.step(t); !slices.Equal(granted, test.granted) {
				t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
			}
		})
	}
}

// A release does not move before the releases of earlier stages have rendered their sources.
func TestUnknownReleasesKeepOthersWaiting(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Ready: ready}, "c": {Ready: ready}})
	r.Knows = func(_ context.Context, _ *addonsv1.HelmChartProxy, _ *inputs.Inputs, release *addonsv1.HelmReleaseProxy, _ *clusterv1.Cluster) bool {
		return release.Spec.ClusterRef.Name != "a"
	}
	if granted, _ := r.step(t); len(granted) > 0 {
		t.Errorf("granted %v", granted)
	}
}

// An agent that was silent before the change is set aside. One that has been since is a failure of the change, unless
// a retry excuses it.
func TestSilentAgents(t *testing.T) {
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}}
	fleet.Status.Agent.LastSeen = *ago(time.Hour)
	ready := ago(2 * time.Hour)
	for name, test := range map[string]struct {
		its     plan.Rollout
		isTried bool
		granted []string
		reason  string
	}{
		"silent before":     {its: plan.Rollout{Since: ago(10 * time.Minute)}, granted: []string{"b"}, reason: rollout.Progressing},
		"silent since":      {its: plan.Rollout{Since: ago(50 * time.Minute)}, reason: rollout.Halted},
		"retried":           {its: plan.Rollout{Since: ago(50 * time.Minute)}, isTried: true, granted: []string{"b"}, reason: rollout.Progressing},
		"ready, and silent": {its: plan.Rollout{Since: ago(50 * time.Minute), Ready: ago(45 * time.Minute)}, granted: []string{"b"}, reason: rollout.Progressing},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": test.its, "b": {Pending: "new", Ready: ready}, "c": {Ready: ready}}, fleet.DeepCopy())
			if test.isTried {
				r.retry(t)
			}
			if granted, reason := r.step(t); !slices.Equal(granted, test.granted) || reason != test.reason {
				t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
			}
		})
	}
}

// A Cluster that is being deleted stands aside, whatever happens to its release meanwhile, and however long its finalizers
// keep it: they may be those of a tenant. It takes no place in a stage, and counts nowhere.
func TestClusterBeingDeleted(t *testing.T) {
	ready := ago(2 * time.Hour)
	silent := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}}
	silent.Status.Agent.LastSeen = *ago(time.Hour)
	for name, its := range map[string]plan.Rollout{
		"never ready":        {Since: ago(time.Minute)},
		"silent since":       {Since: ago(50 * time.Minute)},
		"failed":             {Since: ago(time.Minute), Failed: true},
		"no longer ready":    {Since: ready, Regression: &plan.Regression{At: *ago(time.Minute)}},
		"waits for its turn": {Pending: "new", Ready: ready},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": its, "b": {Pending: "new", Ready: ready}, "c": {Pending: "new", Ready: ready}}, silent.DeepCopy())
			r.of.Spec.Rollout.Stages[0].Soak = &metav1.Duration{Duration: time.Hour}
			r.of.Spec.Rollout.Stages = append(r.of.Spec.Rollout.Stages, addonsv1.RolloutStage{Name: "half", Percent: ptr.To[int32](50)})
			r.state.clusters[0].DeletionTimestamp = ago(time.Minute)
			granted, reason := r.step(t)
			if len(granted) != 1 || granted[0] == "a" || reason != rollout.Progressing {
				t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
			}
			want := []rollout.Count{{Name: "canary"}, {Name: "half", Clusters: 1, Held: 1}, {Clusters: 1, Held: 1}}
			if !reflect.DeepEqual(r.state.rollout.Counts, want) {
				t.Errorf("counts %v", r.state.rollout.Counts)
			}
		})
	}
}

// retry excuses what halts the rollout.
func (r *rolled) retry(t *testing.T) {
	t.Helper()
	if _, reason := r.step(t); reason != rollout.Halted || r.state.rollout.Retry == "" {
		t.Fatalf("reason %s, retry %q", reason, r.state.rollout.Retry)
	}
	r.of.Annotations = map[string]string{addonsv1.RolloutRetryAnnotation: r.state.rollout.Retry}
	r.step(t)
	r.catchUp(t)
}

// A retry excuses exactly what it names, whatever the clocks say: what happens later halts the rollout again, and what was
// excused stays so.
func TestRetryNamesWhatItRetries(t *testing.T) {
	ready := ago(time.Hour)
	regression := func(at time.Duration) plan.Rollout {
		return plan.Rollout{Since: ready, Regression: &plan.Regression{At: *ago(at)}}
	}
	r := newRolled(t, map[string]plan.Rollout{"a": regression(time.Minute), "b": {Ready: ready}, "c": {Pending: "new", Ready: ready}})
	for i := range r.of.Spec.Rollout.Stages {
		r.of.Spec.Rollout.Stages[i].Soak = &metav1.Duration{Duration: 30 * time.Minute}
	}
	r.of.Annotations = map[string]string{addonsv1.RolloutRetryAnnotation: noon.Add(time.Hour).Format(time.RFC3339)}
	if _, reason := r.step(t); reason != rollout.Halted {
		t.Errorf("a time that is ahead excuses everything: %s", reason)
	}
	r.retry(t)
	excused := r.of.Annotations[addonsv1.RolloutRetryAnnotation]
	if _, reason := r.step(t); reason == rollout.Halted || r.state.rollout.Retry != "" {
		t.Errorf("retried: %s: %s", reason, r.state.rollout.Message)
	}
	for i, again := range []plan.Rollout{regression(30 * time.Second), regression(20 * time.Second)} { // First on another Cluster.
		its := r.state.releases[1-i]
		its.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: its.Spec.ClusterRef.Name, Installed: true, Rollout: &again}.String()
		if i == 0 {
			r.of.Spec.Rollout.Stages[0].ClusterSelector = &metav1.LabelSelector{} // It soaks, too.
		}
		_, reason := r.step(t)
		if reason != rollout.Halted || r.state.rollout.Retry == excused || strings.Contains(r.state.rollout.Message, "team/a") != (i == 1) {
			t.Errorf("%d: %s, retry %s: %s", i, reason, r.state.rollout.Retry, r.state.rollout.Message)
		}
	}
}

// What goes back to the state of the last completed rollout waits for no stage, also on a Cluster that joined since.
func TestBackToTheLastCompleted(t *testing.T) {
	ready, since := ago(time.Hour), ago(time.Minute)
	for name, test := range map[string]struct {
		its     plan.Rollout
		isOther bool
		granted []string
	}{
		"back":                                {its: plan.Rollout{Pending: "old", Completed: "old", Since: since, Ready: ready}, granted: []string{"b"}},
		"back, and the HelmChartProxy is not": {its: plan.Rollout{Pending: "old", Completed: "old", Since: since, Ready: ready}, isOther: true, granted: []string{"b"}},
		"another change":                      {its: plan.Rollout{Pending: "new", Completed: "old", Since: since, Ready: ready}},
		"it joined since":                     {its: plan.Rollout{Pending: "old", Joined: since, Ahead: true, Ready: ready}, granted: []string{"b"}},
		"it joined since, another change":     {its: plan.Rollout{Pending: "new", Joined: since, Ahead: true, Ready: ready}, isOther: true},
		"it joined before":                    {its: plan.Rollout{Pending: "new", Joined: ago(2 * time.Hour), Ready: ready}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {}, "b": test.its, "c": {Ready: ready}})
			decision := rollout.Decision{Reason: rollout.Completed, Counts: []rollout.Count{{Clusters: 1, Updated: 1}, {}}}
			r.of.Status.Rollout, _ = plan.RolloutStatus(r.of, "1.0.0", &decision, ago(time.Hour).Time)
			if test.isOther {
				r.of.Spec.Version = "2.0.0"
			}
			if granted, reason := r.step(t); !slices.Equal(granted, test.granted) || reason != rollout.Progressing {
				t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
			}
		})
	}
}

// A change to an earlier state than the last completed one is a change like any other, and so are other values for a
// Cluster that joined since.
func TestNotBack(t *testing.T) {
	ready, completed := ago(time.Hour), ago(10*time.Minute)
	for name, test := range map[string]struct {
		its     plan.Rollout
		isKnown bool
	}{
		"further back":                      {its: plan.Rollout{Pending: "oldest", Completed: "oldest", Since: ago(time.Hour), Ready: ready}, isKnown: true},
		"the last completed is not known":   {its: plan.Rollout{Pending: "old", Completed: "old", Since: ago(time.Minute), Ready: ready}},
		"it joined since, and other values": {its: plan.Rollout{Pending: "new", Joined: ago(time.Minute), Ready: ready}, isKnown: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Pending: "new", Ready: ready}, "b": test.its, "c": {Ready: ready}})
			if test.isKnown {
				decision := rollout.Decision{Reason: rollout.Completed, Counts: []rollout.Count{{Clusters: 1, Updated: 1}, {}}}
				r.of.Status.Rollout, _ = plan.RolloutStatus(r.of, "1.0.0", &decision, completed.Time)
			}
			if granted, _ := r.step(t); !slices.Equal(granted, []string{"a"}) {
				t.Errorf("granted %v", granted)
			}
		})
	}
}

// A time that is ahead, by a clock or because others wrote it, is written back as now, once. So a rollout soaks no longer
// than it should, and what followed the last completed rollout still does.
func TestTimesAhead(t *testing.T) {
	ready, ahead := ago(2*time.Hour), ago(-10*time.Hour)
	r := newRolled(t, map[string]plan.Rollout{
		"a": {Since: ahead, Ready: ahead}, "b": {Pending: "old", Completed: "old", Since: ago(-11 * time.Hour), Ready: ready, Unready: ahead}, "c": {Joined: ahead, Ready: ready},
	})
	r.of.Spec.Rollout.Stages[0].Soak = &metav1.Duration{Duration: time.Hour}
	r.of.Status.Rollout = &addonsv1.RolloutStatus{LastCompleted: &addonsv1.CompletedRollout{Time: *ahead}}
	record := func(i int) plan.Rollout { return *plan.RecordOf(r.state.releases[i]).Rollout }
	granted, reason := r.step(t)
	if !slices.Equal(granted, []string{"b"}) || reason != rollout.Soaking || r.state.rollout.Again > time.Hour+time.Second {
		t.Errorf("granted %v, reason %s, again in %s", granted, reason, r.state.rollout.Again)
	}
	r.catchUp(t)
	for name, got := range map[string]*metav1.Time{"a since": record(0).Since, "a ready": record(0).Ready, "b unready": record(1).Unready, "c joined": record(2).Joined} {
		if got == nil || !got.Time.Equal(noon) {
			t.Errorf("%s %s", name, got)
		}
	}
	if record(1).IsCompleted(r.of) || !record(0).IsCompleted(r.of) || !record(2).IsCompleted(r.of) {
		t.Error("the order is lost")
	}
	was := r.state.releases[0].DeepCopy()
	if r.step(t); !slices.Equal(granted, []string{"b"}) {
		t.Errorf("granted %v", granted)
	}
	if r.catchUp(t); r.state.releases[0].ResourceVersion != was.ResourceVersion {
		t.Error("written again")
	}
	noon := noon.Add(time.Hour + 2*time.Second)
	r.Now, r.of.Status.Rollout.LastCompleted.Time = func() time.Time { return noon }, *ago(time.Hour)
	if granted, reason := r.step(t); reason == rollout.Soaking {
		t.Errorf("granted %v, reason %s: %s", granted, reason, r.state.rollout.Message)
	}
}

// A rollout is completed after the last release has moved, whatever the clocks say.
func TestCompletedAfterTheLastMove(t *testing.T) {
	ready := ago(time.Minute)
	for name, test := range map[string]struct {
		b    plan.Rollout
		want time.Duration
	}{
		"moved":        {b: plan.Rollout{Ready: ready, Since: ago(2 * time.Minute)}, want: -2 * time.Minute},
		"joined":       {b: plan.Rollout{Ready: ready, Joined: ago(2 * time.Minute)}, want: -2 * time.Minute},
		"by its clock": {b: plan.Rollout{Ready: ready, Since: ago(-time.Hour)}, want: 0},
		"forged":       {b: plan.Rollout{Ready: ready, Since: ago(-100 * time.Hour)}, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready, Since: ago(time.Hour)}, "b": test.b, "c": {Ready: ready}})
			_, reason := r.step(t)
			if got := r.state.rollout.Since; reason != rollout.Completed || !got.Equal(noon.Add(test.want)) {
				t.Errorf("reason %s, moved last at %s", reason, got)
			}
		})
	}
}

// What was approved once is not approved if it comes again after another rollout was completed.
func TestApprovalIsForOneRollout(t *testing.T) {
	ready := ago(time.Hour)
	completed := func(r *rolled, before time.Duration) {
		decision := rollout.Decision{Reason: rollout.Completed, Counts: []rollout.Count{{Clusters: 1, Updated: 1}, {}}}
		r.of.Status.Rollout, _ = plan.RolloutStatus(r.of, "1.0.0", &decision, noon.Add(-before))
	}
	for name, test := range map[string]struct {
		again  time.Duration
		reason string
	}{
		"the same rollout": {again: 30 * time.Minute, reason: rollout.Progressing},
		"another rollout":  {again: 10 * time.Minute, reason: rollout.WaitingForApproval},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Pending: "new", Ready: ready}, "b": {Ready: ready}, "c": {Ready: ready}})
			r.of.Spec.Rollout.Stages[0].Approval = addonsv1.RolloutApprovalManual
			completed(r, 30*time.Minute)
			if _, reason := r.step(t); reason != rollout.WaitingForApproval {
				t.Fatalf("waits for no approval: %v", reason)
			}
			r.of.Annotations = map[string]string{addonsv1.RolloutApprovedAnnotation: r.state.rollout.Approval}
			completed(r, test.again)
			if _, reason := r.step(t); reason != test.reason || (len(r.state.rollout.Approve) == 0) != (reason == rollout.WaitingForApproval) {
				t.Errorf("reason %s; approved: %v", reason, r.state.rollout.Approve)
			}
		})
	}
}

// A release that a Policy of Fleet refuses keeps its last state, and counts as failing: the rollout is not complete without it.
func TestPolicyRefusesInARollout(t *testing.T) {
	ready := ago(time.Hour)
	r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Pending: "new", Ready: ready}})
	a := r.state.releases[0]
	for _, refused := range []bool{false, true} {
		if refused {
			a.Status.Conditions = []metav1.Condition{{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: addonsv1.PolicyRefusesReason}}
		}
		its := newRolling(r.of, r.in, &r.state)
		if got := r.targetOf(its, a, its.clusters[plan.ClusterOf(a)], 0); got.Blocked != refused || got.Aside != "" {
			t.Errorf("refused: %t; it is %+v", refused, got)
		}
	}
}

// Who stands aside is said in the condition and in the event, which must not claim that every Cluster has the wanted state.
func TestWhoStandsAside(t *testing.T) {
	ready := ago(time.Hour)
	forget := func(r *rolled) { r.state.releases = r.state.releases[1:] }
	for name, test := range map[string]struct {
		change func(r *rolled, a *addonsv1.HelmReleaseProxy)
		want   string
	}{
		"none":              {func(*rolled, *addonsv1.HelmReleaseProxy) {}, ""},
		"no release yet":    {func(r *rolled, _ *addonsv1.HelmReleaseProxy) { forget(r) }, "1 not installed yet: team/a"},
		"not installed yet": {func(_ *rolled, a *addonsv1.HelmReleaseProxy) { a.Annotations[plan.RecordAnnotation] = "{}" }, "1 not installed yet: team/a"},
		"paused":            {func(r *rolled, _ *addonsv1.HelmReleaseProxy) { r.state.clusters[0].Spec.Paused = ptr.To(true) }, "1 paused: team/a"},
		"being uninstalled": {func(_ *rolled, a *addonsv1.HelmReleaseProxy) { a.DeletionTimestamp = ready }, "1 being uninstalled: team/a"},
		"not in Fleet": {func(_ *rolled, a *addonsv1.HelmReleaseProxy) {
			a.Status.Conditions = []metav1.Condition{{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionFalse, Reason: addonsv1.GetClusterFailedReason}}
		}, "1 not in Fleet: team/a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRolled(t, map[string]plan.Rollout{"a": {Ready: ready}, "b": {Ready: ready}, "c": {Ready: ready}})
			test.change(r, r.state.releases[0])
			if _, reason := r.step(t); reason != rollout.Completed || r.state.rollout.Without != test.want || r.state.rollout.Counts[0].Clusters != 1 {
				t.Errorf("%s without %q; counts %v", reason, r.state.rollout.Without, r.state.rollout.Counts)
			}
			before, after := r.of.DeepCopy(), r.of.DeepCopy()
			before.Status.Conditions = []metav1.Condition{{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionFalse, Reason: rollout.Progressing}}
			var completed metav1.Condition
			after.Status.Rollout, completed = plan.RolloutStatus(before, "1.0.0", r.state.rollout, noon)
			after.Status.Conditions = []metav1.Condition{completed}
			recorder := events.NewFakeRecorder(1)
			announceRollout(recorder, before, after)
			want := "Normal RolloutCompleted every Cluster has the wanted state"
			if test.want != "" {
				want = "Normal RolloutCompleted every other Cluster has the wanted state (" + test.want + ")"
			}
			if its := <-recorder.Events; !strings.HasPrefix(its, want) {
				t.Errorf("the event is %q", its)
			}
		})
	}
}
