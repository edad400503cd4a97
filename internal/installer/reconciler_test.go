package installer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
)

// place is a cluster with one FleetAddonConfig, and an installer that has its time set.
type place struct {
	*testing.T
	client.Client
	*reconciler
	now      time.Time
	broken   error // what reading Secrets' releases, or writing ConfigMaps, ends in
	releases found
	patches  int
	fetches  int
	fetching error
	// forbidden is what the installer asks for, and is told that it may not do it.
	forbidden string
}

func (p *place) Offers(context.Context, string) ([]Offer, error) {
	return offers("0.16.0", "0.17.0").offers, nil
}

func (p *place) Fetch(context.Context, string, *semver.Version) ([]byte, error) {
	p.fetches++
	return []byte("chart"), p.fetching
}

func newPlace(t *testing.T, spec addonsv1.FleetAddonConfigSpec, objects ...client.Object) *place {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	config := &addonsv1.FleetAddonConfig{Spec: spec}
	config.Name, config.Generation = addonsv1.FleetAddonConfigName, 1
	namespace := &corev1.Namespace{}
	namespace.Name = FleetNamespace
	p := &place{T: t, now: now, releases: found{}}
	p.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(config).WithObjects(append(objects, config, namespace)...).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				review, asks := object.(*authorizationv1.SelfSubjectAccessReview)
				if !asks {
					return c.Create(ctx, object, options...)
				}
				of := review.Spec.ResourceAttributes
				review.Status.Allowed = p.forbidden != of.Verb+" "+of.Resource
				return nil
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				if p.patches++; p.broken != nil {
					return p.broken
				}
				return c.Patch(ctx, object, patch, options...)
			},
		}).Build()
	p.reconciler = &reconciler{
		Client: p.Client, Options: Options{LookupInterval: time.Hour, HelmTimeout: time.Minute}, live: p.Client,
		room: &room{Client: p.Client, live: p.Client}, releases: p.releases,
		repository: func(string, Credentials) (Repository, error) { return p, nil },
		recorder:   events.NewFakeRecorder(1000), now: func() time.Time { return p.now },
		rootCA:  func(context.Context) (string, error) { return "R", nil },
		lookups: newLookups(time.Hour), failures: map[string]*failure{}, writes: map[step]*written{}, pending: map[string]sighting{},
	}
	return p
}

// after looks again a while later, and returns what is told of a condition.
func (p *place) after(wait time.Duration, kind string) metav1.Condition {
	p.Helper()
	p.now = p.now.Add(wait)
	_, _ = p.Reconcile(p.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: addonsv1.FleetAddonConfigName}})
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(p.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
		p.Fatal(err)
	}
	if said := meta.FindStatusCondition(config.Status.Conditions, kind); said != nil {
		return *said
	}
	return metav1.Condition{}
}

func custom() addonsv1.FleetAddonConfigSpec {
	url := "https://here:6443"
	return addonsv1.FleetAddonConfigSpec{Config: &addonsv1.FleetConfig{Server: &addonsv1.Server{Custom: &addonsv1.CustomServer{APIServerURL: &url}}}}
}

func fleetSettings() *corev1.ConfigMap {
	object := settingsOf("{}")
	object.Namespace, object.Name = FleetNamespace, settingsName
	return object
}

// Somebody's self-healing is not fought with every time that is looked.
func TestSettingsThatAreTakenBack(t *testing.T) {
	p := newPlace(t, custom(), fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	if said := p.after(0, ConfiguredCondition); said.Reason != ReasonConfiguredForNow || p.patches != 1 {
		t.Fatalf("%+v, %d writes", said, p.patches)
	}
	undo := func() {
		object := fleetSettings()
		if err := p.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	var said metav1.Condition
	for range 4 * 60 { // an hour
		undo()
		said = p.after(lookInterval, ConfiguredCondition)
	}
	if said.Status != metav1.ConditionFalse || said.Reason != ReasonReverted || p.patches > 9 || p.patches < 6 {
		t.Errorf("%+v, %d writes in an hour", said, p.patches)
	}
	// Left alone at last.
	for range 4 * 40 {
		said = p.after(lookInterval, ConfiguredCondition)
	}
	if said.Status != metav1.ConditionTrue || said.Reason != ReasonConfiguredForNow {
		t.Errorf("it stands, and is said to be %+v", said)
	}
}

// A chart that cannot be fetched is tried less and less often, and nothing is told to be
// under way meanwhile.
func TestChartThatCannotBeFetched(t *testing.T) {
	p := newPlace(t, version("0.17.0"))
	p.fetching = errors.New("broken pipe")
	told := map[string]bool{}
	for range 4 * 60 { // an hour
		said := p.after(lookInterval, InstalledCondition)
		told[string(said.Status)+" "+said.Reason] = true
	}
	if p.fetches > 9 || p.fetches < 5 || len(told) != 1 || !told["False "+ReasonRepositoryOut] {
		t.Errorf("fetched %d times in an hour, told %v", p.fetches, told)
	}
	// Who changes something wants it to be tried.
	fetched := p.fetches
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(t.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
		t.Fatal(err)
	}
	config.Generation++
	if err := p.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if p.after(time.Second, InstalledCondition); p.fetches != fetched+1 {
		t.Errorf("fetched %d times more after a change", p.fetches-fetched)
	}
}

// An error that stays is told, and what is known of the version is kept.
func TestErrorThatStays(t *testing.T) {
	spec := custom()
	spec.Install = version("0.16.0").Install
	p := newPlace(t, spec, fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	p.broken = errors.New("denied by a policy")
	if said := p.after(0, ConfiguredCondition); said.Reason != "" {
		t.Errorf("told at once: %+v", said)
	}
	said := p.after(30*time.Second, ConfiguredCondition)
	if said.Status != metav1.ConditionFalse || said.Reason != ReasonFailing || !strings.Contains(said.Message, "denied by a policy") {
		t.Errorf("%+v", said)
	}
	if said := p.after(time.Second, InstalledCondition); said.Reason != ReasonForeignRelease {
		t.Errorf("it has nothing to do with the installation: %+v", said)
	}
	p.broken = nil
	if said := p.after(time.Second, ConfiguredCondition); said.Reason != ReasonConfiguredForNow {
		t.Errorf("%+v", said)
	}
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(t.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil || config.Status.InstalledVersion != "0.16.0" {
		t.Errorf("%+v, %v", config.Status, err)
	}
}
