package sync

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// homeless is a scene in which Fleet is not played, with a clock.
type homeless struct {
	*scene
	now time.Time
}

func newHomeless(t *testing.T) *homeless {
	t.Helper()
	s := &homeless{newScene(t, "standard", "", nil), time.Now().Truncate(time.Second)}
	s.withoutFleet = true
	s.reporter.now = func() time.Time { return s.now }
	return s
}

func (s *homeless) namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stamp.FleetNamespace(s.key.Namespace, s.key.Name)}}
}

func (s *homeless) removeNamespace(t *testing.T) {
	t.Helper()
	namespace := s.namespace()
	namespace.Finalizers = nil
	if err := s.direct.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
}

// fleetMakesIt plays Fleet.
func (s *homeless) fleetMakesIt(t *testing.T) {
	t.Helper()
	if err := s.direct.Create(t.Context(), s.namespace()); err != nil {
		t.Fatal(err)
	}
	s.change(t, &fleetv1.Cluster{}, func(object client.Object) { object.(*fleetv1.Cluster).Status.Namespace = s.namespace().Name })
}

// passes lets time pass, reconciles the Cluster, and returns the two conditions as "<status> <reason>", when the next reconcile is due,
// and the Look on the Fleet Cluster.
func (s *homeless) passes(t *testing.T, after time.Duration) (state string, again time.Duration, look string) {
	t.Helper()
	s.now = s.now.Add(after)
	result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key})
	if err != nil {
		t.Fatal(err)
	}
	var cluster clusterv1.Cluster
	var fleet fleetv1.Cluster
	if err := s.direct.Get(t.Context(), s.key, &cluster); err != nil {
		t.Fatal(err)
	}
	if err := s.direct.Get(t.Context(), s.key, &fleet); err != nil {
		t.Fatal(err)
	}
	for _, conditionType := range conditionTypes {
		if condition := meta.FindStatusCondition(cluster.Status.Conditions, conditionType); condition != nil {
			state += fmt.Sprintf(" %s %s", condition.Status, condition.Reason)
		}
	}
	look, _, _ = strings.Cut(fleet.Annotations[desired.RetargetAnnotation], "."+fmt.Sprint(s.now.Unix()))
	return strings.TrimSpace(state), result.RequeueAfter, look
}

func (s *homeless) want(t *testing.T, after time.Duration, state string, again time.Duration, look string) {
	t.Helper()
	gotState, gotAgain, gotLook := s.passes(t, after)
	if gotState != state || gotAgain != again || gotLook != look {
		t.Errorf("got %q, again after %s, look %q; want %q, %s, %q", gotState, gotAgain, gotLook, state, again, look)
	}
}

// A Fleet Cluster without a namespace is no import. Fleet gets 5 s, then it is made to look at growing intervals.
func TestWithoutNamespace(t *testing.T) {
	s := newHomeless(t)
	s.want(t, 0, "False WaitingForControlPlane", touchAfter, "")
	s.want(t, 2*time.Second, "False WaitingForControlPlane", 3*time.Second, "")
	s.want(t, 3*time.Second, "False WaitingForFleet Unknown WaitingForFleet", time.Minute, "namespace.1")
	s.want(t, time.Minute, "False WaitingForFleet Unknown WaitingForFleet", 2*time.Minute, "namespace.2")

	// After a restart it goes on, and says the same.
	s.restart(t)
	s.reporter.now = func() time.Time { return s.now }
	s.want(t, 0, "False WaitingForFleet Unknown WaitingForFleet", 2*time.Minute, "namespace.2")
	s.want(t, 2*time.Minute, "False WaitingForFleet Unknown WaitingForFleet", 4*time.Minute, "namespace.3")

	s.fleetMakesIt(t)
	if state, again, _ := s.passes(t, time.Second); state != "True Imported Unknown AgentNotSeen" || again != 0 {
		t.Errorf("got %q, again after %s", state, again)
	}
	if _, writes := s.reconcile(t); len(writes) > 0 {
		t.Errorf("written again: %q", writes)
	}

	// Its namespace goes from under it: neither condition is True any more, at once.
	s.change(t, &fleetv1.Cluster{}, func(object client.Object) {
		fleet := object.(*fleetv1.Cluster)
		fleet.Status.Agent.LastSeen, fleet.Status.Summary.DesiredReady = metav1.NewTime(time.Now()), 1
		fleet.Status.Conditions = seenAt(0, "True", "").Status.Conditions
	})
	if state, _, _ := s.passes(t, time.Hour); state != "True Imported True BundlesReady" {
		t.Errorf("got %q", state)
	}
	s.removeNamespace(t)
	if state, again, _ := s.passes(t, time.Second); state != "False WaitingForFleet Unknown WaitingForFleet" || again != touchAfter {
		t.Errorf("got %q, again after %s", state, again)
	}
	s.want(t, touchAfter, "False WaitingForFleet Unknown WaitingForFleet", time.Minute, "namespace.1")
}

// What Muster does not write otherwise gets the annotation, too; what is paused does not.
func TestWithoutNamespaceAndNotWritten(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*clusterv1.Cluster, *addonsv1.ClusterConfig)
		look   string
		want   string
	}{
		"deselected": {func(_ *clusterv1.Cluster, in *addonsv1.ClusterConfig) {
			in.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": "other"}}
		}, "namespace.1", "False Deselected Unknown WaitingForFleet"}, // No hold may begin.
		"patchResource is false": {func(_ *clusterv1.Cluster, in *addonsv1.ClusterConfig) { in.PatchResource = new(false) }, "namespace.1", ""},
		"paused":                 {func(cluster *clusterv1.Cluster, _ *addonsv1.ClusterConfig) { cluster.Spec.Paused = new(true) }, "", ""},
		"import is off":          {func(_ *clusterv1.Cluster, in *addonsv1.ClusterConfig) { in.Enabled = new(false) }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHomeless(t)
			s.passes(t, 0)
			s.fleetMakesIt(t)
			s.passes(t, 0)
			s.removeNamespace(t)
			config := fixture.Config()
			if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
				t.Fatal(err)
			}
			var cluster clusterv1.Cluster
			if err := s.direct.Get(t.Context(), s.key, &cluster); err != nil {
				t.Fatal(err)
			}
			test.change(&cluster, config.Spec.Cluster)
			for _, object := range []client.Object{&cluster, config} {
				if err := s.direct.Update(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}
			s.passes(t, 0)
			state, _, look := s.passes(t, touchAfter)
			if look != test.look {
				t.Errorf("the look is %q, want %q", look, test.look)
			}
			if want := cmp.Or(test.want, "False WaitingForFleet Unknown WaitingForFleet"); state != want && name != "import is off" {
				t.Errorf("got %q, want %q", state, want)
			}
			s.restart(t)
			s.reporter.now = func() time.Time { return s.now }
			if after, _, _ := s.passes(t, 0); after != state {
				t.Errorf("after a restart: %q", after)
			}
			if test.want == "" {
				return
			}
			if err := cmp.Or(s.direct.Get(t.Context(), client.ObjectKeyFromObject(config), config), s.direct.Delete(t.Context(), config), s.direct.Create(t.Context(), s.namespace())); err != nil {
				t.Fatal(err)
			}
			s.settings.Saw(config)
			s.settings.Saw(nil)
			if after, _, _ := s.passes(t, 0); !strings.HasPrefix(after, strings.Replace(test.want[:strings.Index(test.want, " Unknown")], "False", "True", 1)) {
				t.Errorf("with its namespace, and without settings: %q", after)
			}
		})
	}
}

func TestIsAboutNamespace(t *testing.T) {
	for message, want := range map[string]bool{
		fleetNamespace{name: "cluster-a"}.message():                                                  true,
		fleetNamespace{name: "cluster-a", deleted: time.Now()}.message():                             true,
		fleetNamespace{name: "cluster-a", deleted: time.Now(), blocked: "it does"}.message() + "; x": true,
		"the selectors do not match it":                                                              false, "": false,
	} {
		if isAboutNamespace(message) != want {
			t.Errorf("%q: %t", message, !want)
		}
	}
}

// While the old namespace goes, nothing is written, and after a minute the message says what keeps it.
func TestNamespaceThatGoes(t *testing.T) {
	s := newHomeless(t)
	s.passes(t, 0)
	namespace := s.namespace()
	namespace.Finalizers = []string{"example.com/keeps"}
	namespace.Status.Conditions = []corev1.NamespaceCondition{
		{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionTrue, Message: "Some content in the namespace has finalizers remaining"},
		{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionFalse, Message: "All resources successfully discovered"},
	}
	if err := s.direct.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	s.change(t, &fleetv1.Cluster{}, func(object client.Object) { object.(*fleetv1.Cluster).Status.Namespace = namespace.Name })
	if state, _, _ := s.passes(t, 0); state != "True Imported Unknown AgentNotSeen" {
		t.Errorf("got %q", state)
	}
	s.removeNamespace(t)
	s.now = time.Now()
	if state, again, look := s.passes(t, 10*time.Second); state != "False WaitingForFleet Unknown WaitingForFleet" || again < 40*time.Second || again > patience || look != "" {
		t.Errorf("got %q, again after %s, look %q", state, again, look)
	}
	_, message, _ := s.imported(t)
	if strings.Contains(message, "finalizers remaining") || !strings.Contains(message, namespace.Name) {
		t.Errorf("the message is %q", message)
	}
	if _, again, look := s.passes(t, time.Minute); again != longestWait || look != "" {
		t.Errorf("again after %s, look %q", again, look)
	}
	_, message, _ = s.imported(t)
	if !strings.Contains(message, "NamespaceFinalizersRemaining: Some content in the namespace has finalizers remaining") || strings.Contains(message, "discovered") {
		t.Errorf("the message is %q", message)
	}
}

// A Namespace of Fleet's wakes its Cluster when it appears, goes, or is gone; others wake none.
func TestNamespacesThatWake(t *testing.T) {
	fleets := func(going bool, annotations ...string) *metav1.PartialObjectMetadata {
		namespace := namespaceMetadata()
		namespace.Name = "cluster-team-prod-1"
		namespace.Annotations = map[string]string{}
		for _, key := range annotations {
			namespace.Annotations[key] = "x"
		}
		if going {
			namespace.DeletionTimestamp = new(metav1.Now())
		}
		return namespace
	}
	its := []string{fleetv1.ClusterAnnotation, fleetv1.ClusterNamespaceAnnotation}
	for name, test := range map[string]struct{ got, want bool }{
		"it appears":      {fleetNamespaceNews.Create(event.CreateEvent{Object: fleets(false, its...)}), true},
		"it is gone":      {fleetNamespaceNews.Delete(event.DeleteEvent{Object: fleets(true, its...)}), true},
		"it begins to go": {fleetNamespaceNews.Update(event.UpdateEvent{ObjectOld: fleets(false, its...), ObjectNew: fleets(true, its...)}), true},
		"it changes":      {fleetNamespaceNews.Update(event.UpdateEvent{ObjectOld: fleets(false, its...), ObjectNew: fleets(false, append(its, "more")...)}), false},
		"not Fleet's":     {fleetNamespaceNews.Create(event.CreateEvent{Object: fleets(false)}), false},
	} {
		if test.got != test.want {
			t.Errorf("%s: it wakes: %v", name, test.got)
		}
	}
	news := fleetClusterNews(bundlesReady{now: time.Now})
	named := seenAt(0, "", "")
	named.Status.Namespace = "cluster-team-prod-1"
	if !news.Update(event.UpdateEvent{ObjectOld: seenAt(0, "", ""), ObjectNew: named}) {
		t.Error("a Fleet Cluster that gets its namespace does not wake its Cluster")
	}
}

// While the import is off, conditions stay as they are, but for one that says that the namespace is missing.
func TestNamespaceIsBackWhileTheImportIsOff(t *testing.T) {
	s := newHomeless(t)
	s.passes(t, 0)
	s.fleetMakesIt(t)
	s.passes(t, 0)
	s.removeNamespace(t)
	if state, _, _ := s.passes(t, 0); !strings.HasPrefix(state, "False WaitingForFleet") {
		t.Fatal(state)
	}
	config := fixture.Config()
	if err := s.direct.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
	config.Spec.Cluster.Enabled = ptr.To(false)
	if err := s.direct.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if state, _, _ := s.passes(t, time.Minute); !strings.HasPrefix(state, "False WaitingForFleet") {
		t.Error(state)
	}
	s.fleetMakesIt(t)
	for range 2 {
		if state, _, _ := s.passes(t, time.Minute); !strings.HasPrefix(state, "True Imported") {
			t.Error(state)
		}
	}
}

// Whatever keeps a Cluster out of Fleet when its Fleet Cluster or the namespace has gone, a hold of its upgrade goes on.
func TestDisturbedHolds(t *testing.T) {
	for name, disturb := range map[string]func(s *homeless){
		"its Fleet Cluster is being deleted": func(s *homeless) {
			s.change(t, &fleetv1.Cluster{}, func(object client.Object) { object.SetFinalizers([]string{"fleet.cattle.io/cluster-finalizer"}) })
			var fleet fleetv1.Cluster
			if err := errors.Join(s.direct.Get(t.Context(), s.key, &fleet), s.direct.Delete(t.Context(), &fleet)); err != nil {
				t.Fatal(err)
			}
		},
		"Fleet cannot be made to look": func(s *homeless) {
			s.removeNamespace(t)
			s.passes(t, 0)
			s.refuse = func(object client.Object) error {
				if _, isFleet := object.(*fleetv1.Cluster); isFleet {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "clusters"}, object.GetName(), errors.New("a policy denies it"))
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHomeless(t)
			s.passes(t, 0)
			s.fleetMakesIt(t)
			s.passes(t, 0)
			disturb(s)
			s.now = s.now.Add(touchAfter)
			_, _ = s.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key}) // It reports its error.
			var cluster clusterv1.Cluster
			if err := s.direct.Get(t.Context(), s.key, &cluster); err != nil {
				t.Fatal(err)
			}
			if place := placeOf(&cluster); place == hold.Out || place == hold.In {
				t.Errorf("%d: %+v", place, meta.FindStatusCondition(cluster.Status.Conditions, addonsv1.FleetImportedCondition))
			}
		})
	}
}
