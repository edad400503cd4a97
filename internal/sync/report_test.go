package sync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/test/fixture"
)

// statusServer is an API server with one Cluster, and a cache of it.
type statusServer struct {
	client.Client
	cluster *clusterv1.Cluster
	// cached is what the cache shows; nil if that is the same.
	cached *clusterv1.Cluster
	writes int
	// refuse is what the next write is refused with.
	refuse error
}

func (s *statusServer) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if s.cached != nil {
		s.cached.DeepCopyInto(into.(*clusterv1.Cluster))
		return nil
	}
	s.cluster.DeepCopyInto(into.(*clusterv1.Cluster))
	return nil
}

func (s *statusServer) Status() client.SubResourceWriter { return statusWriter{s} }

type statusWriter struct{ *statusServer }

func (s statusWriter) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return errors.New("not expected")
}

func (s statusWriter) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return errors.New("not expected")
}

func (s statusWriter) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return errors.New("not expected")
}

func (s statusWriter) Patch(_ context.Context, answer client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	s.writes++
	if err := s.refuse; err != nil {
		s.refuse = nil
		return err
	}
	data, err := patch.Data(nil)
	if err != nil {
		return err
	}
	var applied clusterv1.Cluster
	if err := json.Unmarshal(data, &applied); err != nil {
		return err
	}
	s.cluster.Status.Conditions = applied.Status.Conditions
	s.cluster.ResourceVersion += "1"
	s.cluster.DeepCopyInto(answer.(*clusterv1.Cluster))
	return nil
}

func (s *statusServer) reason() string {
	for _, condition := range s.cluster.Status.Conditions {
		if condition.Type == addonsv1.FleetImportedCondition {
			return condition.Reason
		}
	}
	return ""
}

func newStatusServer() *statusServer {
	return &statusServer{cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "1", ResourceVersion: "1"}}}
}

// reporter returns a reporter that writes to the server, and the recorder of its events.
func (s *statusServer) reporter(t *testing.T) (*reporter, *events.FakeRecorder) {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	return newReporter(s, kube.NewStore(s, scheme), recorder), recorder
}

// mustReport reports on the Cluster as a reconcile reads it, and returns the delay until the next
// report.
func (r *reporter) mustReport(t *testing.T, result outcome) time.Duration {
	t.Helper()
	cluster := &clusterv1.Cluster{}
	if found, err := r.store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, cluster); err != nil || !found {
		t.Fatal(found, err)
	}
	again, err := r.report(t.Context(), cluster, result)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func TestReportIsWrittenOnce(t *testing.T) {
	server := newStatusServer()
	r, recorder := server.reporter(t)
	for range 3 {
		r.mustReport(t, notImported(addonsv1.NameConflictReason, "taken"))
	}
	if server.writes != 1 || server.reason() != addonsv1.NameConflictReason {
		t.Errorf("%d writes, reason %q", server.writes, server.reason())
	}
	if reported := <-recorder.Events; !strings.Contains(reported, "NameConflict") || len(recorder.Events) > 0 {
		t.Errorf("events: %q and %d more", reported, len(recorder.Events))
	}
}

// If the API server refuses a write, the reconcile fails and is retried. If the Cluster is gone, the
// report succeeds and writes nothing.
func TestReportThatIsRefused(t *testing.T) {
	for _, refuse := range []error{apierrors.NewServiceUnavailable("later"), apierrors.NewNotFound(schema.GroupResource{}, "prod")} {
		server := newStatusServer()
		server.refuse = refuse
		r, recorder := server.reporter(t)
		_, err := r.report(t.Context(), server.cluster, notImported(addonsv1.NameConflictReason, "taken"))
		if (err == nil) != apierrors.IsNotFound(refuse) || err != nil && !errors.Is(err, refuse) {
			t.Errorf("%v: %v", refuse, err)
		}
		if r.mustReport(t, notImported(addonsv1.NameConflictReason, "taken")); server.reason() != addonsv1.NameConflictReason {
			t.Errorf("%v: reason %q the next time", refuse, server.reason())
		}
		if err != nil && len(recorder.Events) != 1 {
			t.Errorf("%d events", len(recorder.Events))
		}
	}
}

// Fleet's messages count bundles, so they change often. A change to only the message waits, and then
// the latest message is written.
func TestMessagesAreDamped(t *testing.T) {
	server := newStatusServer()
	r, _ := server.reporter(t)
	now := time.Now()
	r.now = func() time.Time { return now }
	ready := func(message string) outcome {
		result := notImported(addonsv1.ImportedReason, "in Fleet")
		result.conditions = append(result.conditions, metav1.Condition{Type: addonsv1.FleetBundlesReadyCondition, Status: "False", Reason: "BundlesNotReady", Message: message})
		return result
	}
	for i, step := range []struct {
		pass    time.Duration
		message string
		again   time.Duration
		writes  int
	}{
		{message: "1 of 3", writes: 1},
		{message: "2 of 3", writes: 2},
		{pass: 5 * time.Second, message: "3 of 4", again: messageInterval - 5*time.Second, writes: 2},
		{pass: 5 * time.Second, message: "2 of 3", writes: 2},
		{pass: 5 * time.Second, message: "4 of 4", writes: 3},
		{message: "4 of 4", writes: 3},
	} {
		now = now.Add(step.pass)
		if again := r.mustReport(t, ready(step.message)); again != step.again || server.writes != step.writes {
			t.Errorf("step %d: again after %v, %d writes; want %+v", i, again, server.writes, step)
		}
	}
}

// A reconcile does not repeat a write that the cache does not show yet: it is put back. It reads later states from
// the cache: the control plane may have been initialized since.
func TestReportIsInTheStore(t *testing.T) {
	server := newStatusServer()
	r, recorder := server.reporter(t)
	server.cached = server.cluster.DeepCopy()
	r.mustReport(t, notImported(addonsv1.NameConflictReason, "taken"))
	if server.writes != 1 || len(recorder.Events) != 1 {
		t.Errorf("%d writes, %d events", server.writes, len(recorder.Events))
	}
	var got clusterv1.Cluster
	if _, err := r.store.Get(t.Context(), client.ObjectKeyFromObject(server.cluster), &got); !errors.Is(err, kube.ErrBehind) {
		t.Errorf("what the cache does not show yet: %v", err)
	}
	server.cached = server.cluster.DeepCopy()
	server.cached.ResourceVersion += "1"
	server.cached.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	if found, err := r.store.Get(t.Context(), client.ObjectKeyFromObject(server.cluster), &got); err != nil || !found {
		t.Fatal(found, err)
	}
	if !ptr.Deref(got.Status.Initialization.ControlPlaneInitialized, false) {
		t.Error("a Cluster that was initialized after our write is read as not initialized")
	}
}

// A passing error is reported once it has lasted, and forgotten when it is over.
func TestPassingErrors(t *testing.T) {
	r, _ := newStatusServer().reporter(t)
	now := time.Now()
	r.now = func() time.Time { return now }
	key, passing := types.NamespacedName{Namespace: "team", Name: "prod"}, apierrors.NewServiceUnavailable("later")
	for i, step := range []struct {
		pass    time.Duration
		err     error
		isBrief bool
	}{
		{err: passing, isBrief: true},
		{pass: errorGracePeriod - time.Second, err: passing, isBrief: true},
		{pass: time.Second, err: passing},
		{},
		{err: passing, isBrief: true},
		{err: errors.New("refused")},
		{pass: errorGracePeriod, err: passing, isBrief: true},
	} {
		now = now.Add(step.pass)
		if got := r.isBrief(key, step.err); got != step.isBrief {
			t.Errorf("step %d: is passing: %v", i, got)
		}
	}
}

// A passing error turns no condition, a deselected or paused Cluster keeps what it was, and what is unchanged keeps both.
func TestGivenConditions(t *testing.T) {
	have := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{
			{Type: addonsv1.FleetImportedCondition, Status: status, Reason: reason, Message: "m", ObservedGeneration: 3},
			{Type: addonsv1.FleetBundlesReadyCondition, Status: "True", Reason: "BundlesReady", ObservedGeneration: 2},
		}
	}
	isIn, isOut := have("True", "Imported"), have("False", "WaitingForControlPlane")
	for name, test := range map[string]struct {
		outcome outcome
		have    []metav1.Condition
		want    string
	}{
		"an error, in Fleet":            {failed(errors.New("x")), isIn, "FleetImported True Failed 0, FleetBundlesReady True BundlesReady 2"},
		"an error, not in Fleet":        {failed(errors.New("x")), isOut, "FleetImported False Failed 0, FleetBundlesReady True BundlesReady 2"},
		"an error at first":             {failed(errors.New("x")), nil, "FleetImported False Failed 0"},
		"deselected, in Fleet":          {unselected(true, true, "x"), isIn, "FleetImported True Deselected 0"},
		"deselected, not in Fleet":      {unselected(true, false, "x"), isOut, "FleetImported False Deselected 0"},
		"never claimed":                 {unselected(false, false, "x"), isOut, ""},
		"paused, in Fleet":              {paused(true), isIn, "FleetImported True Paused 0"},
		"paused, not in Fleet":          {paused(false), isOut, "FleetImported False Paused 0"},
		"a conflict":                    {notImported(addonsv1.NameConflictReason, "x"), isIn, "FleetImported False NameConflict 0"},
		"the import is off":             {outcome{stays: []string{addonsv1.FleetImportedCondition}}, isIn, "FleetImported True Imported 3"},
		"the settings are unknown":      {outcome{stays: conditionTypes}, isIn, "FleetImported True Imported 3, FleetBundlesReady True BundlesReady 2"},
		"the same, in Fleet":            {outcome{conditions: []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: "True", Reason: "Imported", Message: "m"}}}, isIn, "FleetImported True Imported 0"},
		"the same, not in Fleet":        {notImported("WaitingForControlPlane", "m"), isOut, "FleetImported False WaitingForControlPlane 3"},
		"another message, not in Fleet": {notImported("WaitingForControlPlane", "n"), isOut, "FleetImported False WaitingForControlPlane 0"},
	} {
		var got []string
		for _, its := range test.outcome.given(test.have) {
			got = append(got, fmt.Sprintf("%s %s %s %d", its.Type, its.Status, its.Reason, its.ObservedGeneration))
		}
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// A Cluster that is deselected, and whose import is undone, has no conditions any more.
func TestConditionsGoWithTheImport(t *testing.T) {
	s := newScene(t, "standard", "", nil)
	s.reconcile(t)
	config := fixture.Config()
	if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	config.Spec.Cluster.Selector, config.Spec.Cluster.OnDeselect = &metav1.LabelSelector{MatchLabels: map[string]string{"is": "other"}}, addonsv1.DeselectDelete
	if err := s.direct.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		var cluster clusterv1.Cluster
		if err := s.direct.Get(t.Context(), s.key, &cluster); err != nil {
			t.Fatal(err)
		}
		if have := cluster.Status.Conditions; len(have) != want {
			t.Errorf("%d conditions, want %d: %v", len(have), want, have)
		}
		s.reconcile(t)
	}
}

// A spec that changes nothing in Fleet is noted as seen, once.
func TestReportedGeneration(t *testing.T) {
	server := newStatusServer()
	r, _ := server.reporter(t)
	server.cluster.Generation = 1
	result := imported("prod", "prod", stale{}, "")
	want := func(writes int, generation int64) {
		t.Helper()
		if got := server.cluster.Status.Conditions[0].ObservedGeneration; got != generation || server.writes != writes {
			t.Errorf("%d writes, generation %d, want %d and %d", server.writes, got, writes, generation)
		}
	}
	r.mustReport(t, result)
	r.mustReport(t, result)
	want(1, 1)
	if message := server.cluster.Status.Conditions[0].Message; message != "" {
		t.Errorf("Available would repeat %q", message)
	}
	server.cluster.Generation = 2
	r.mustReport(t, result)
	r.mustReport(t, result)
	want(2, 2)
	server.cluster.Status.Conditions[0].ObservedGeneration, server.cluster.Generation = 0, 4 // By an earlier version.
	r.mustReport(t, result)
	want(2, 0)
	pending := notImported(addonsv1.WaitingForControlPlaneReason, "it waits")
	r.mustReport(t, pending)
	server.cluster.Generation = 5
	r.mustReport(t, pending)
	want(3, 4)
	r.mustReport(t, result)
	want(4, 5)
}

// Known: where a version of Muster says something else than the one before, its upgrade writes the status of each Cluster once, without a
// pause between the Clusters: 5000 writes for 5000. It is left because each is small, and because the workers and the API
// server's fair queues bound how many are sent at once.
func TestKnownUpgradeWritesEachStatus(t *testing.T) {
	result := imported("prod", "prod", stale{}, "")
	var r *reporter
	for cluster := range 3 {
		server := newStatusServer()
		next, _ := server.reporter(t)
		if r == nil {
			r = next
		}
		r.Client, r.store, server.cluster.Generation = next.Client, next.store, 1 // One reporter writes for all Clusters.
		r.mustReport(t, result)
		server.cluster.Status.Conditions[0].Message = "an earlier version said more"
		if again := r.mustReport(t, result); again != 0 || server.writes != 2 {
			t.Errorf("Cluster %d waits for %s, and was written %d times", cluster, again, server.writes)
		}
		if r.mustReport(t, result); server.writes != 2 {
			t.Errorf("Cluster %d is written again", cluster)
		}
	}
}
