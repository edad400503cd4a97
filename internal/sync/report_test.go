package sync

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/sync/observed"
)

// statusServer is an API server with one Cluster, and a cache of it.
type statusServer struct {
	client.Client
	mu      sync.Mutex
	cluster *clusterv1.Cluster // nil when it is gone
	// cached is what the cache shows; nil if that is the same.
	cached *clusterv1.Cluster
	writes int
	// refuse is how many writes are refused; hold holds a write up until it is closed.
	refuse int
	hold   chan struct{}
}

func (s *statusServer) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
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
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.refuse > 0 {
		s.refuse--
		return apierrors.NewServiceUnavailable("later")
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
	*answer.(*metav1.PartialObjectMetadata) = metav1.PartialObjectMetadata{TypeMeta: answer.(*metav1.PartialObjectMetadata).TypeMeta, ObjectMeta: s.cluster.ObjectMeta}
	return nil
}

func (s *statusServer) reason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, condition := range s.cluster.Status.Conditions {
		if condition.Type == ImportedCondition {
			return condition.Reason
		}
	}
	return ""
}

// seen returns the Cluster as it is cached now.
func (s *statusServer) seen() *clusterv1.Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster.DeepCopy()
}

func (s *statusServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func newStatusServer() *statusServer {
	return &statusServer{cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "1", ResourceVersion: "1"}}}
}

// start starts a reporter for the time of a test.
func (s *statusServer) start(t *testing.T) (*reporter, *events.FakeRecorder) {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	r := newReporter(s, observed.NewStore(s, scheme), observed.NewEchoes(), recorder, 2)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); _ = r.Start(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r, recorder
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// tell reports, and returns whether there was news.
func (r *reporter) tell(t *testing.T, cluster *clusterv1.Cluster, result outcome) bool {
	t.Helper()
	isNews, err := r.report(t.Context(), cluster, result)
	if err != nil {
		t.Fatal(err)
	}
	return isNews
}

func (r *reporter) isIdle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.reports) == 0
}

func TestReportIsWrittenOnce(t *testing.T) {
	server := newStatusServer()
	r, recorder := server.start(t)
	for range 3 {
		r.tell(t, server.seen(), conflicting("taken"))
		eventually(t, "written", r.isIdle)
	}
	if server.count() != 1 || server.reason() != reasonConflict {
		t.Errorf("%d writes, reason %q", server.count(), server.reason())
	}
	if said := <-recorder.Events; !strings.Contains(said, "NameConflict") || len(recorder.Events) > 0 {
		t.Errorf("events: %q and %d more", said, len(recorder.Events))
	}
}

// What is being written may be what has just become wrong: the state that was read does
// not show it yet, and the later report must win all the same.
func TestLaterReportWins(t *testing.T) {
	server := newStatusServer()
	before := server.cluster.DeepCopy()
	server.hold = make(chan struct{})
	r, _ := server.start(t)
	r.tell(t, before, conflicting("taken"))
	eventually(t, "being written", func() bool { return r.queue.Len() == 0 })
	r.tell(t, before, outcome{state: StateUnselected}) // To the state that was read it is no news.
	close(server.hold)
	eventually(t, "written", r.isIdle)
	if reason := server.reason(); reason != "" {
		t.Errorf("the reason stayed %q", reason)
	}
}

func TestReportIsTriedAgain(t *testing.T) {
	server := newStatusServer()
	server.refuse = 3
	r, _ := server.start(t)
	r.tell(t, server.seen(), conflicting("taken"))
	eventually(t, "written", r.isIdle)
	if server.count() != 4 || server.reason() != reasonConflict {
		t.Errorf("%d writes, reason %q", server.count(), server.reason())
	}
}

func TestReportOfAClusterThatIsGone(t *testing.T) {
	server := newStatusServer()
	seen := server.cluster.DeepCopy()
	server.cluster = nil
	r, _ := server.start(t)
	r.tell(t, seen, conflicting("taken"))
	eventually(t, "dropped", r.isIdle)
	if server.count() != 0 {
		t.Errorf("%d writes", server.count())
	}
}

// Fleet's messages count bundles as they go: a message alone waits, and is written when
// it has waited, by whatever it is then.
func TestMessagesAreDamped(t *testing.T) {
	server := newStatusServer()
	r, _ := server.start(t)
	ready := func(message string) outcome {
		result := notImported(StateImported, reasonImported, "in Fleet")
		result.conditions = append(result.conditions, metav1.Condition{Type: BundlesReadyCondition, Status: "False", Reason: "BundlesNotReady", Message: message})
		return result
	}
	r.tell(t, server.seen(), ready("1 of 3"))
	eventually(t, "the first", func() bool { return server.count() == 1 })
	eventually(t, "idle", r.isIdle)
	r.tell(t, server.seen(), ready("2 of 3"))
	eventually(t, "a message alone", func() bool { return server.count() == 2 })
	eventually(t, "idle", r.isIdle)
	r.tell(t, server.seen(), ready("3 of 3"))
	time.Sleep(20 * time.Millisecond)
	if server.count() != 2 || r.isIdle() {
		t.Errorf("%d writes; the third message is to wait", server.count())
	}
}

// Conditions that were written, and are not in the cache yet, are not written again. But
// nothing else of the Cluster is known to be as new: its control plane may have been
// initialized in between.
func TestOnlyConditionsAreRemembered(t *testing.T) {
	server := newStatusServer()
	r, recorder := server.start(t)
	before := server.seen()
	server.cached = before
	r.tell(t, before, conflicting("taken"))
	eventually(t, "written", r.isIdle)
	r.tell(t, before, conflicting("taken"))
	eventually(t, "idle", r.isIdle)
	if server.count() != 1 || len(recorder.Events) != 1 {
		t.Errorf("%d writes, %d events", server.count(), len(recorder.Events))
	}
	between := before.DeepCopy()
	between.ResourceVersion = "2"
	between.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	server.mu.Lock()
	server.cached = between
	server.mu.Unlock()
	var got clusterv1.Cluster
	if found, err := r.store.Get(t.Context(), client.ObjectKeyFromObject(before), &got); err != nil || !found {
		t.Fatal(found, err)
	}
	if !ptr.Deref(got.Status.Initialization.ControlPlaneInitialized, false) {
		t.Error("a Cluster that was initialized before our write is read as not initialized")
	}
}

// A visit may have begun before the last report was written, and end after it: news is
// what differs from what is there now.
func TestReportOfALongVisit(t *testing.T) {
	server := newStatusServer()
	r, _ := server.start(t)
	if !r.tell(t, server.seen(), conflicting("A")) {
		t.Fatal("the first report is no news")
	}
	eventually(t, "A", r.isIdle)
	begun := server.seen()
	r.tell(t, server.seen(), paused(false))
	eventually(t, "paused", r.isIdle)
	if !r.tell(t, begun, conflicting("A")) {
		t.Error("what differs from the Cluster is no news")
	}
	eventually(t, "A again", r.isIdle)
	if server.reason() != reasonConflict {
		t.Errorf("reason %q", server.reason())
	}
}

// A Cluster that is made anew is told nothing of its namesake.
func TestReportOfANamesake(t *testing.T) {
	server := newStatusServer()
	r, _ := server.start(t)
	before := server.seen()
	server.mu.Lock()
	server.cluster.UID = "2"
	server.mu.Unlock()
	if r.tell(t, before, conflicting("taken")) {
		t.Error("it is news")
	}
	eventually(t, "idle", r.isIdle)
	if server.count() != 0 {
		t.Errorf("%d writes", server.count())
	}
}
