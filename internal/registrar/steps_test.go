package registrar

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/program"
)

// The caches of Fleet Clusters and of ClusterRegistrations lag independently. For a registration whose clientID
// Fleet does not know, it creates another Fleet Cluster.
func TestRegisterReadsPastTheCache(t *testing.T) {
	for name, test := range map[string]struct {
		live func(*fleetv1.Cluster) // nil: it is gone
		made int
	}{
		"as cached":        {live: func(*fleetv1.Cluster) {}, made: 1},
		"gone":             {},
		"made anew":        {live: func(f *fleetv1.Cluster) { f.UID = "another" }},
		"other clientID":   {live: func(f *fleetv1.Cluster) { f.Spec.ClientID = "another" }},
		"is being deleted": {live: func(f *fleetv1.Cluster) { f.DeletionTimestamp, f.Finalizers = ptr.To(metav1.Now()), []string{"fleet"} }},
	} {
		t.Run(name, func(t *testing.T) {
			s := met{}.scope()
			builder := fakeBuilder(t)
			if test.live != nil {
				live := s.fleet.DeepCopy()
				test.live(live)
				builder = builder.WithObjects(live)
			}
			api := builder.Build()
			err := (&reconciler{Client: api, live: api}).register(t.Context(), s)
			if apierrors.IsConflict(err) != (test.made == 0) {
				t.Errorf("got error %v", err)
			}
			var made fleetv1.ClusterRegistrationList
			if err := api.List(context.Background(), &made); err != nil || len(made.Items) != test.made {
				t.Errorf("%d ClusterRegistrations were made (%v), want %d", len(made.Items), err, test.made)
			}
		})
	}
}

// A reconcile takes each step once, in order, until none is left or one fails.
func TestAdvance(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		met     met
		earlier step
		fails   error
		taken   []step
		want    string // the reason of the outcome; empty with an error
		err     string
	}{
		"nothing to do":   {met: met{noFleet: true}, want: addonsv1.WaitingForFleetReason},
		"in order":        {taken: []step{dryRun, register}, want: addonsv1.WaitingForFleetReason},
		"a step fails":    {fails: broken, taken: []step{dryRun}, err: "broken"},
		"a step is taken": {met: met{byManager: true, recorded: "gone"}, earlier: withdraw, taken: []step{withdraw}, err: `the step "withdraw" has changed nothing`},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.met.scope()
			if test.earlier != "" {
				s.taken[test.earlier] = true
			}
			builder := fakeBuilder(t).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
					if _, isRegistration := object.(*fleetv1.ClusterRegistration); isRegistration && test.fails != nil {
						return test.fails
					}
					return c.Create(ctx, object, options...)
				},
			})
			if s.fleet != nil {
				builder = builder.WithObjects(s.fleet.DeepCopy())
			}
			api := builder.Build()
			result, err := (&reconciler{Client: api, live: api}).advance(t.Context(), s)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) || result.reason != test.want {
				t.Errorf("got %+v and error %v, want %s and %q", result, err, test.want, test.err)
			}
			if test.fails != nil && !errors.Is(err, test.fails) {
				t.Errorf("the error is %v", err)
			}
			if taken := slices.Sorted(maps.Keys(s.taken)); !slices.Equal(taken, slices.Sorted(slices.Values(test.taken))) {
				t.Errorf("took %q, want %q", taken, test.taken)
			}
		})
	}
}

// The cache shows only records, so a Secret of another type with a record's name is in no cache. If
// the error did not name it, a Conflict would be retried for ever, unseen.
func TestRecordsNameIsTaken(t *testing.T) {
	s := met{registered: "granted", credential: "its"}.scope()
	r := &reconciler{Options: Options{RegistrationNamespace: "registrations"}}
	key := r.recordKey(client.ObjectKeyFromObject(s.cluster))
	for kind, isReported := range map[corev1.SecretType]bool{corev1.SecretTypeOpaque: true, recordType: false} {
		api := fakeBuilder(t).WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: kind}).Build()
		r.Client, r.live = api, api
		if err := r.save(t.Context(), s, record{}); err == nil || apierrors.IsAlreadyExists(err) == isReported {
			t.Errorf("%s: got error %v", kind, err)
		}
	}
}

func fakeBuilder(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme)
}

// Clusters are counted by the reason of their condition, without those that another registrar watches.
func TestCount(t *testing.T) {
	cluster := func(name, watchedBy, reason string) client.Object {
		its := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{clusterv1.WatchLabel: watchedBy}}}
		if reason != "" {
			its.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetAgentManifestReadyCondition, Reason: reason}}
		}
		return its
	}
	r := &reconciler{Options: Options{WatchFilter: "a"}, Client: fakeBuilder(t).WithObjects(
		cluster("one", "a", addonsv1.WaitingForFleetReason), cluster("two", "a", addonsv1.WaitingForFleetReason), cluster("three", "a", addonsv1.ManifestReadyReason),
		cluster("none", "a", ""), cluster("other", "b", addonsv1.ManifestReadyReason),
	).Build()}
	counts := metrics.Counts{}
	if err := r.count(t.Context(), counts); err != nil {
		t.Fatal(err)
	}
	for _, reason := range addonsv1.FleetAgentManifestReadyReasons {
		want := map[string]int{addonsv1.WaitingForFleetReason: 2, addonsv1.ManifestReadyReason: 1}[reason]
		if got := counts[clustersByReason][reason]; got != want {
			t.Errorf("%d Clusters with %s, want %d", got, reason, want)
		}
	}
}

// TestReportIsBounded: the answer of an admission webhook has no bound, and the API server accepts
// neither a condition nor an event that is too long.
func TestReportIsBounded(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := wholeCluster()
	cluster.Status.Conditions = nil
	reported := &clusterv1.Cluster{}
	recorder := events.NewFakeRecorder(1)
	r := &reconciler{
		recorder: recorder, now: func() time.Time { return now },
		Client: fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(_ context.Context, _ client.Client, _ string, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
				body, err := patch.Data(object)
				if err != nil {
					return err
				}
				return json.Unmarshal(body, reported)
			},
		}).Build(),
	}
	result := waiting(addonsv1.FailedReason, strings.Repeat("no", 32<<10), 0)
	if err := r.report(t.Context(), cluster, result); err != nil {
		t.Fatal(err)
	}
	if len(reported.Status.Conditions) != 1 || len(reported.Status.Conditions[0].Message) > message.Condition {
		t.Fatalf("%d conditions, or one that is too long", len(reported.Status.Conditions))
	}
	if note := <-recorder.Events; len(note) > message.Note+len("Warning "+addonsv1.FailedReason+" ") {
		t.Errorf("the event has %d bytes", len(note))
	}
	// Reporting the same again writes nothing.
	cluster.Status.Conditions, reported.Status.Conditions = reported.Status.Conditions, nil
	if err := r.report(t.Context(), cluster, result); err != nil {
		t.Fatal(err)
	}
	if reported.Status.Conditions != nil {
		t.Error("the same condition is written again")
	}
}
