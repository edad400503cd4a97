package release

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/rollout"
	"github.com/muster-fleet/muster/internal/helm/store"
)

// staged makes the release part of a rollout that has granted a change.
func staged(granted string) func(*scope) {
	return func(s *scope) {
		s.proxy.Spec.Rollout, s.inputs.Chart.Version = &addonsv1.RolloutStrategy{}, "1.0.0"
		metav1.SetMetaDataAnnotation(&s.release.ObjectMeta, plan.GrantedAnnotation, granted)
	}
}

// installed returns a world with a release that is installed with the values "a: old", and its record.
func installed(t *testing.T, renders *renderer) (*world, plan.Record) {
	t.Helper()
	renders.gives = "a: old"
	w := newWorld(t, renders)
	record := w.write(t, plan.Record{FleetCluster: "one"}, "a: {{ .Cluster.metadata.name }}", staged("")).record
	record.Installed = true
	renders.gives = "a: new"
	return w, record
}

func label(s *scope) { s.cluster.Labels = map[string]string{"tier": "web"} }

func both(changes ...func(*scope)) func(*scope) {
	return func(s *scope) {
		for _, change := range changes {
			change(s)
		}
	}
}

const template = "a: {{ .Cluster.metadata.name }}"

// A release gets a change when the rollout grants exactly that change. Until then it keeps its values, records the
// change, even after a restart, and renders only once.
func TestHeldUntilGranted(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	held := w.write(t, record, template, both(staged("another"), label))
	pending := held.record.Rollout.Pending
	if pending == "" || !held.record.Rollout.Values || held.record.Revision != record.Revision || held.record.Digest != record.Digest || held.trouble.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason {
		t.Fatalf("the record was %v, and is %v: %v", record, held.record, held.trouble)
	}
	count := renders.count
	if again := w.write(t, held.record, template, both(staged(""), label)); again.record.Rollout.Pending != pending || renders.count != count {
		t.Errorf("held again: %v, rendered %d times", again.record.Rollout, renders.count-count)
	}
	w.rendered.Clear() // The program restarts.
	if again := w.write(t, held.record, template, both(staged("another"), label)); again.record.Rollout.Pending != pending {
		t.Errorf("after a restart: %v", again.record.Rollout)
	}
	moved := w.write(t, held.record, template, both(staged(pending), label))
	if its := moved.record; its.Rollout.Pending != "" || its.Rollout.Ready != nil || its.Digest == record.Digest || its.Revision == record.Revision || moved.trouble != (plan.Trouble{}) {
		t.Errorf("granted: %v", its)
	}
	if back := w.write(t, held.record, template, both(staged(""), func(s *scope) { renders.gives = "a: old" })); back.record.Rollout.Pending != "" || back.record.Revision != record.Revision {
		t.Errorf("changed back: %v", back.record)
	}
}

// Another chart with the same values is a change, too, and the values get another name: it shows whether Fleet has taken
// the change over.
func TestAnotherContentIsAChange(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.gives = "a: old"
	chart := func(s *scope) { s.inputs.Chart.Version = "2.0.0" }
	held := w.write(t, record, template, both(staged(""), chart))
	if held.record.Rollout.Pending == "" || held.record.Rollout.Values || held.record.Revision != record.Revision {
		t.Fatalf("held: %v", held.record)
	}
	moved := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), chart))
	if its := moved.record; its.Revision == record.Revision || its.Digest != record.Digest || its.Rollout.Content != moved.content() {
		t.Errorf("granted: %v", its)
	}
}

// A template that renders something else each time does not wait for ever.
func TestUnsteadyTemplatesMove(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.unsteady = true
	held := w.write(t, record, template, both(staged(""), label))
	moved := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), label))
	if moved.record.Rollout.Pending != "" || moved.record.Revision == record.Revision {
		t.Errorf("granted: %v", moved.record)
	}
}

// A release whose values were deleted while it waits gets the change: the earlier values cannot be rendered again.
func TestLostValues(t *testing.T) {
	for name, test := range map[string]struct {
		from   func(*scope)
		object client.Object
	}{
		"ConfigMap": {from: func(*scope) {}, object: &corev1.ConfigMap{}},
		"Secret":    {from: secretOf("b: secret"), object: &corev1.Secret{}},
	} {
		t.Run(name, func(t *testing.T) {
			renders := &renderer{gives: "a: old"}
			w := newWorld(t, renders)
			record := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), test.from)).record
			record.Installed, renders.gives = true, "a: new"
			for range 2 {
				w.clock.Step(checkInterval + time.Second)
				held := w.write(t, record, template, both(staged(""), label, test.from))
				if held.record.Rollout.Pending == "" || held.record.Digest != record.Digest {
					t.Errorf("not held, although nothing is lost: %v", held.record)
				}
				record = held.record
			}
			if err := w.DeleteAllOf(t.Context(), test.object, client.InNamespace("team")); err != nil {
				t.Fatal(err)
			}
			w.clock.Step(time.Minute + time.Second)
			moved := w.write(t, record, template, both(staged(""), label, test.from))
			if moved.record.Rollout.Pending != "" || moved.record.Digest == record.Digest {
				t.Errorf("the record was %v, and is %v", record, moved.record)
			}
			if said := w.said(); !strings.Contains(said, "ValuesLost") || !strings.Contains(said, name+" team/hcp-web.for.one") {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// A release that is not installed, and one without a rollout, wait for nothing.
func TestNothingToWaitFor(t *testing.T) {
	w, record := installed(t, &renderer{})
	record.Installed = false
	if s := w.write(t, record, template, both(staged(""), label)); s.record.Digest == record.Digest {
		t.Error("a release that is not installed waits")
	}
	record.Installed = true
	if s := w.write(t, record, template, label); s.record.Digest == record.Digest || s.record.Rollout != nil {
		t.Errorf("a release without a rollout waits: %v", s.record)
	}
}

func soaking(s *scope) {
	s.proxy.Spec.Rollout = &addonsv1.RolloutStrategy{Stages: []addonsv1.RolloutStage{{Name: "canary", Soak: &metav1.Duration{Duration: 4 * time.Hour}}}}
}

// A change back is not a regression, although Fleet has labelled the BundleDeployment with the other content.
func TestChangeBackIsNoRegression(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	renders.gives = "a: old"
	record.Rollout.Ready = ptr.To(metav1.NewTime(w.clock.Now().Add(-time.Hour)))
	held := w.write(t, record, template, both(staged(""), soaking, func(s *scope) { s.inputs.Chart.Version = "2.0.0" }))
	if held.record.Rollout.Pending == "" {
		t.Fatal("not held")
	}
	newContent := held.content()
	for name, bundleLabel := range map[string]func(*scope){
		"before the Bundle is written": func(s *scope) { s.bundle.Labels[plan.ContentLabel] = newContent },
		"after, before Fleet":          func(*scope) {},
	} {
		back := w.write(t, held.record, template, both(staged(""), soaking, bundleLabel))
		if back.record.Rollout.Pending != "" {
			t.Error("still pending")
		}
		back.deployment = w.deploymentOf(back, fleetv1.DownstreamResource{Kind: "ConfigMap", Name: back.key(back.record).Name})
		back.deployment.Labels[plan.ContentLabel] = newContent
		back.deployment.Status.Ready, back.deployment.Status.NonModified = true, true
		observed := back.observe(w.clock.Now())
		t.Logf("%s: healthy %v deployed %v failed %v %q; rollout %s", name, observed.Healthy, observed.Deployed, observed.Failed, observed.Message, plan.JSON(back.record.Rollout))
		if back.record.Rollout.Regression != nil {
			t.Errorf("%s: counts as a regression", name)
		}
		if !observed.Ready { // A rollout would update it at once, as one that does not work.
			t.Errorf("%s: is not ready: %s", name, observed.Message)
		}
	}
}

// A release whose values belong to an earlier Bundle gets the change: otherwise its values would be deleted, and
// then the release.
func TestHeldInAnotherBundle(t *testing.T) {
	renders := &renderer{gives: "a: old"}
	w := newWorld(t, renders)
	record := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), secretOf("a: secret"))).record
	record.Installed = true
	if err := w.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace("team")); err != nil {
		t.Fatal(err)
	}
	renders.gives = "a: new" // Or the key for digests has changed.
	for range 3 {
		s := w.write(t, record, template, both(staged(""), secretOf("a: secret"), func(s *scope) { s.bundle.UID = "another" }))
		record = s.record
		w.clock.Step(checkInterval)
	}
	if record.Bundle != "another" {
		t.Errorf("held, its values are in no Bundle, so it is no target: %s", record)
	}
}

// So does a release without a BundleDeployment: Fleet creates none for a Cluster that no partition lists.
func TestHeldWithoutDeployment(t *testing.T) {
	w, record := installed(t, &renderer{})
	s := w.write(t, record, template, both(staged(""), label, func(s *scope) { s.deployment = nil; s.bundle.Labels[plan.ContentLabel] = "another" }))
	if s.record.Rollout.Pending != "" {
		t.Errorf("held without a BundleDeployment: %s", s.record)
	}
}

// A release is not known before the cache has its record.
func TestKnows(t *testing.T) {
	w, record := installed(t, &renderer{})
	s := w.write(t, record, template, both(staged(""), label))
	if s.record.Rollout.Pending == "" {
		t.Fatal("not held")
	}
	stale := s.release.DeepCopy() // The cache still has the old object: the patch of the record is in flight.
	metav1.SetMetaDataAnnotation(&stale.ObjectMeta, plan.RecordAnnotation, record.String())
	if w.Knows(t.Context(), s.proxy, s.inputs, stale, s.cluster) {
		t.Error("known, while the record has no pending change")
	}
}

// A template that renders something else each time is not a change by itself.
func TestUnsteadyTemplatesAreNoChange(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b", unsteady: true})
	secret := func(s *scope) {
		s.inputs.Secret, s.inputs.Layers = true, []plan.Layer{{Key: "00.yaml", Data: []byte("a: secret")}}
	}
	first := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), secret))
	first.record.Installed = true
	w.clock.Step(checkInterval)
	second := w.write(t, first.record, template, both(staged(""), secret))
	if second.record.Rollout.Pending != "" {
		t.Errorf("a rollout without a change: %s", second.record)
	}
}

// A release does not wait for ever if the record of a change back meets a conflict.
func TestConflictAfterAChangeBack(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	held := w.write(t, record, template, both(staged(""), label))
	pending := held.record.Rollout.Pending
	renders.gives = "a: old"
	generation := func(s *scope) { s.inputs.Values = "2" }
	w.write(t, held.record, template, both(staged(""), generation)) // Its record is lost by a conflict.
	again := w.write(t, held.record, template, both(staged(""), generation))
	granted := w.write(t, again.record, template, both(staged(pending), generation))
	if granted.record.Rollout.Pending != "" {
		t.Errorf("waits for ever, even after it is granted: %s", granted.record)
	}
}

// A release that joins with the last completed version waits for its turn to get the new one.
func TestJoinsWithTheLastCompleted(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	rolls := func(s *scope) {
		s.inputs.Chart = plan.Chart{Agent: true, Version: "2.0.0"}
		s.bundle.Labels[plan.ContentLabel] = s.content()
		s.proxy.Generation = 2
		s.proxy.Status.Conditions = []metav1.Condition{{Type: addonsv1.RolloutCompletedCondition, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
		s.proxy.Status.Rollout = &addonsv1.RolloutStatus{LastCompleted: &addonsv1.CompletedRollout{Version: "1.0.0", Spec: runtime.RawExtension{Raw: []byte("{}")}}}
	}
	joined := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), rolls))
	version := func(s *scope) string {
		metav1.SetMetaDataAnnotation(&s.release.ObjectMeta, plan.RecordAnnotation, s.record.String())
		target, _ := plan.TargetOf(s.proxy, s.release, s.record)
		return target.Helm.Version
	}
	if got := version(joined); got != "1.0.0" {
		t.Errorf("joined with version %q", got)
	}
	joined.record.Installed = true
	held := w.write(t, joined.record, template, both(staged(""), rolls))
	if got := version(held); got != "1.0.0" || held.record.Rollout.Pending == "" || plan.Holds(held.release, held.content()) {
		t.Errorf("version %q, and Fleet must not be held: %s", got, held.record)
	}
	granted := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), rolls))
	if got := version(granted); got != "" || granted.record.Rollout.Pending != "" {
		t.Errorf("granted, it has version %q: %s", got, granted.record)
	}
}

// A release that leaves the state of a completed rollout notes that state, and keeps the note through further changes until
// another rollout is completed.
func TestCompletedStateIsNoted(t *testing.T) {
	renders := &renderer{}
	w, record := installed(t, renders)
	if record.Rollout.Joined == nil {
		t.Fatalf("it joined, and has no time: %s", record)
	}
	var completed *metav1.Time
	move := func(record plan.Record, values, version string) plan.Record {
		renders.gives = values
		change := func(s *scope) {
			s.inputs.Chart.Version, s.inputs.Values = version, values
			s.bundle.Labels[plan.ContentLabel] = record.Rollout.Content
			metav1.SetMetaDataAnnotation(&s.release.ObjectMeta, plan.RecordAnnotation, record.String())
			if completed != nil {
				s.proxy.Status.Rollout = &addonsv1.RolloutStatus{LastCompleted: &addonsv1.CompletedRollout{Time: *completed}}
			}
		}
		held := w.write(t, record, template, both(staged(""), change))
		if held.record.Rollout.Pending == "" {
			t.Fatalf("not held: %s", held.record)
		}
		granted := staged(held.record.Rollout.Pending)
		record = held.record
		return w.write(t, record, template, both(granted, change)).record
	}
	stateOf := func(record plan.Record) string { return plan.Change(record.Rollout.Content, record.Digest) }
	now := func() *metav1.Time { return ptr.To(metav1.NewTime(w.clock.Now().Truncate(time.Second))) }

	if second := move(record, "a: second", "2.0.0"); second.Rollout.Completed != "" {
		t.Errorf("no rollout was completed since it joined: %s", second)
	}
	w.clock.Step(time.Minute)
	completed = now()
	second := move(record, "a: second", "2.0.0")
	third := move(second, "a: third", "2.0.0")
	if want := stateOf(record); second.Rollout.Completed != want || third.Rollout.Completed != want {
		t.Errorf("%s was completed: %s, then %s", want, second.Rollout.Completed, third.Rollout.Completed)
	}
	w.clock.Step(time.Minute)
	completed = now()
	if fourth := move(third, "a: fourth", "3.0.0"); fourth.Rollout.Completed != stateOf(third) {
		t.Errorf("%s was completed: %s", stateOf(third), fourth.Rollout.Completed)
	}
}

// A release that joins while the HelmChartProxy has another spec than at the last completed rollout goes back with the
// others. A release that joins at another time does not: for it, other values are a change like any other.
func TestJoinsAhead(t *testing.T) {
	asks := func(version string) func(*scope) {
		return func(s *scope) {
			staged("")(s)
			s.proxy.Spec.Version, s.inputs.Chart.Version = version, version
			s.bundle.Labels[plan.ContentLabel] = s.content()
			spec := runtime.RawExtension{Raw: []byte(`{"version": "1.0.0", "valuesTemplate": "` + template + `"}`)}
			s.proxy.Status.Rollout = &addonsv1.RolloutStatus{LastCompleted: &addonsv1.CompletedRollout{Time: metav1.NewTime(time.Unix(1e9, 0)), Spec: spec}}
		}
	}
	w := newWorld(t, &renderer{gives: "a: b"})
	join := func(record plan.Record, version string) plan.Record {
		return w.write(t, record, template, asks(version)).record
	}
	for version, isAhead := range map[string]bool{"1.0.0": false, "2.0.0": true} {
		if its := join(plan.Record{FleetCluster: "one"}, version); its.Rollout.Ahead != isAhead || its.Rollout.Joined == nil {
			t.Errorf("joined with %s: %s", version, its)
		}
	}
	record := join(plan.Record{FleetCluster: "one"}, "2.0.0")
	if back := join(record, "1.0.0"); back.Rollout.Ahead {
		t.Errorf("returns before it is installed: %s", back)
	}
	// While the Bundle has yet to go back, so does the release, although it is installed only then.
	late := func(record plan.Record) *scope {
		return w.write(t, record, template, both(asks("1.0.0"), func(s *scope) {
			s.bundle.Labels[plan.ContentLabel], s.deployment = record.Rollout.Content, &fleetv1.BundleDeployment{}
		}))
	}
	installing := late(record).record
	installing.Installed = true
	if held := late(installing); !held.record.Rollout.Returns(held.proxy, plan.IsBack(held.proxy)) {
		t.Errorf("does not return once it is installed: %s", held.record)
	}
	record.Installed = true
	for _, test := range []struct {
		version string
		isAhead bool
	}{{"3.0.0", true}, {"1.0.0", false}} {
		// Without a BundleDeployment, it waits for nothing.
		if record = join(record, test.version); record.Rollout.Since == nil || record.Rollout.Ahead != test.isAhead || record.Rollout.Completed != "" {
			t.Errorf("took %s over: %s", test.version, record)
		}
	}
}

// A Cluster that joins a rollout goes back with the others. One that joins while the HelmChartProxy has the spec of
// the last completed rollout waits for its stage when a value changes: it has no earlier state.
func TestJoining(t *testing.T) {
	for name, test := range map[string]struct {
		asked, asks string
		returns     bool
	}{
		"joined a rollout, which goes back":    {asked: "2.0.0", asks: "1.0.0", returns: true},
		"joined a rollout, which changes":      {asked: "2.0.0", asks: "3.0.0"},
		"joined what was completed":            {asked: "1.0.0", asks: "1.0.0"},
		"joined what was completed, a rollout": {asked: "1.0.0", asks: "2.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			renders := &renderer{gives: "a: old"}
			w := newWorld(t, renders)
			at := w.clock.Now()
			asking := func(version string) func(*scope) {
				return func(s *scope) {
					s.proxy.Spec.Version = "1.0.0"
					s.proxy.Status.Rollout, _ = plan.RolloutStatus(s.proxy, "1.0.0", &rollout.Decision{Reason: rollout.Completed, Counts: []rollout.Count{{Clusters: 1, Updated: 1}}}, at)
					s.proxy.Spec.Version = version
				}
			}
			w.clock.Step(time.Hour)
			record := plan.Record{FleetCluster: "one"}
			for range 2 {
				record = w.write(t, record, template, both(staged(""), asking(test.asked))).record
				w.clock.Step(time.Minute)
			}
			record.Installed, renders.gives = true, "a: new"
			held := w.write(t, record, template, both(staged(""), asking(test.asks), label))
			if its := held.record.Rollout; its.Pending == "" || its.Returns(held.proxy, plan.IsBack(held.proxy)) != test.returns {
				t.Errorf("held: %s", held.record)
			}
			if !test.returns {
				return
			}
			back := w.write(t, held.record, template, both(staged(held.record.Rollout.Pending), asking(test.asks), label)).record
			renders.gives = "a: newer"
			held = w.write(t, back, template, both(staged(""), asking(test.asks)))
			if its := held.record.Rollout; back.Rollout.Pending != "" || its.Pending == "" || its.Returns(held.proxy, plan.IsBack(held.proxy)) {
				t.Errorf("it is back, with %s, and would take another value over: %s", back, held.record)
			}
		})
	}
}

// A release whose values are refused keeps its values and its target. It has reported that, unlike one whose values meet a
// conflict, and so holds nothing back but itself.
func TestRefusedValues(t *testing.T) {
	kind := schema.GroupKind{Kind: "ConfigMap"}
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", errors.New("namespace team is being terminated"))
	for name, test := range map[string]struct {
		from     func(*scope)
		err      error
		isPassed bool
	}{
		"the namespace is terminating, or a quota is used up": {func(*scope) {}, terminating, false},
		"the ConfigMap is immutable":                          {func(*scope) {}, apierrors.NewInvalid(kind, "x", nil), false},
		"the values are too large":                            {func(*scope) {}, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), false},
		"the Secret is refused":                               {secretOf("b: secret"), terminating, false},
		"a conflict":                                          {func(*scope) {}, apierrors.NewAlreadyExists(schema.GroupResource{}, "x"), true},
		"the API server fails":                                {func(*scope) {}, apierrors.NewInternalError(errors.New("no")), true},
	} {
		t.Run(name, func(t *testing.T) {
			renders := &renderer{gives: "a: old"}
			w := newWorld(t, renders)
			record := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), test.from)).record
			record.Installed, renders.gives = true, "a: new"
			held := w.write(t, record, template, both(staged(""), label, test.from))
			refusing := interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return test.err },
			})
			w.Reconciler.Store = store.New(refusing, refusing, "muster", w.clock)
			s := scopeOf(t, template)
			s.record = held.record
			both(staged(held.record.Rollout.Pending), label, test.from)(s)
			err := w.writeValues(t.Context(), s)
			if (err != nil) != test.isPassed {
				t.Errorf("it fails with %v", err)
			}
			if !equality.Semantic.DeepEqual(s.record, held.record) || err == nil && s.trouble.Reason != addonsv1.HelmReleaseProxyCreationFailedReason {
				t.Errorf("the record was %s, and is %s: %v", held.record, s.record, s.trouble)
			}
		})
	}
}

// A Secret whose emptying is refused keeps nothing from being recorded and reported: a rollout would wait for this release,
// and so would the chart of its Bundle. If a tenant has made it immutable, that is not tried again, and said.
func TestStaleSecretIsRefused(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "any", errors.New("a policy of yours"))
	testStaleSecret(t, forbidden, true)
	testStaleSecret(t, apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "any", nil), false)
}

func testStaleSecret(t *testing.T, refused error, isTriedAgain bool) {
	t.Helper()
	w := newWorld(t, &renderer{gives: "a: b"})
	s := w.write(t, plan.Record{FleetCluster: "one", Stale: true}, "a: b", staged(""))
	s.release.UID, s.inputs.Digest = "web-one", "1"
	s.release.Annotations[plan.RecordAnnotation] = s.record.String()
	if err := w.Create(t.Context(), s.release); err != nil {
		t.Fatal(err)
	}
	s.deployment = w.deploymentOf(s, fleetv1.DownstreamResource{Kind: "ConfigMap", Name: s.key(s.record).Name})
	s.deployment.Status.Ready, s.deployment.Status.NonModified = true, true
	immutable := interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return refused },
	})
	w.Reconciler.Store, w.Inputs = store.New(immutable, immutable, "muster", w.clock), &inputs.Reader{Now: w.clock.Now}
	w.Store.Recorder = w.Recorder
	if err := w.Create(t.Context(), s.proxy); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := plan.RecordOf(s.release)
		s.record = before
		if err := w.conclude(t.Context(), s, before, nil); (err != nil) != isTriedAgain {
			t.Errorf("the error is %v", err)
		}
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(s.release), s.release); err != nil {
			t.Fatal(err)
		}
	}
	if its := plan.RecordOf(s.release); !its.Installed || its.Rollout == nil || its.Stale != isTriedAgain || !w.Inputs.HasReported(s.release, s.inputs) {
		t.Errorf("its record is %s; reported: %t", its, w.Inputs.HasReported(s.release, s.inputs))
	}
	said := []string{w.said(), w.said(), w.said()} // There are two Secrets.
	if isSaid := strings.Contains(said[0], "SecretNotEmptied") && strings.Contains(said[1], "SecretNotEmptied"); isSaid == isTriedAgain || said[2] != "" {
		t.Errorf("it says %q", said)
	}
}

// An error while the program looks for the Secret with the values says nothing about the change: the release stays held,
// and does not count as one on which the change fails.
func TestLookingForValuesFails(t *testing.T) {
	renders := &renderer{gives: "a: old"}
	w := newWorld(t, renders)
	secret := secretOf("b: secret")
	record := w.write(t, plan.Record{FleetCluster: "one"}, template, both(staged(""), secret)).record
	record.Installed, renders.gives = true, "a: new"
	w.clock.Step(checkInterval + time.Second)
	refusing := interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return apierrors.NewInternalError(errors.New("a webhook does not answer"))
		},
	})
	w.Reconciler.Store = store.New(refusing, refusing, "muster", w.clock)
	held := w.write(t, record, template, both(staged(""), label, secret))
	if its := held.record; its.Rollout.Pending == "" || its.Digest != record.Digest || held.trouble.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason {
		t.Errorf("the record was %s, and is %s: %v", record, its, held.trouble)
	}
}

// Known: the record of a release that waits with other values is written once after an upgrade from a version whose records
// do not say so (rollout.values). It is left because it is one small write for each release that waits, and never again.
func TestKnownRecordOfWaitingIsWrittenOnce(t *testing.T) {
	w, record := installed(t, &renderer{})
	held := w.write(t, record, template, both(staged("another"), label)).record
	earlier := held
	earlier.Rollout = new(*held.Rollout)
	earlier.Rollout.Values = false
	for name, from := range map[string]plan.Record{"after the upgrade": earlier, "from then on": held} {
		after := w.write(t, from, template, both(staged("another"), label)).record
		if isSame := equality.Semantic.DeepEqual(from, after); isSame != (name == "from then on") || !equality.Semantic.DeepEqual(held, after) {
			t.Errorf("%s: %s becomes %s", name, from, after)
		}
	}
}
