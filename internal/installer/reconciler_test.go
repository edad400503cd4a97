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
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/program"
)

// fixture is a cluster with one FleetAddonConfig, and an installer with a clock that the test sets.
type fixture struct {
	*testing.T
	client.Client
	*reconciler
	now      time.Time
	broken   error // the error of reading releases, and of writing ConfigMaps
	releases found
	patches  int
	fetches  int
	fetching error
	// retry is when the queue reconciles again after the last error.
	retry time.Duration
	// asked counts the look-ups, each of which takes slow, and fails with asking.
	asked  int
	slow   time.Duration
	asking error
	// forbidden is the access that RBAC denies to the installer.
	forbidden string
}

func (p *fixture) Offers(context.Context, string, *semver.Version) ([]*semver.Version, error) {
	p.asked++
	p.now = p.now.Add(p.slow)
	return parsed("0.16.0", "0.17.0"), p.asking
}

func (p *fixture) Fetch(context.Context, string, *semver.Version) ([]byte, error) {
	p.fetches++
	return []byte("chart"), p.fetching
}

func newFixture(t *testing.T, spec addonsv1.FleetAddonConfigSpec, objects ...client.Object) *fixture {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	config := &addonsv1.FleetAddonConfig{Spec: spec}
	config.Name, config.Generation = addonsv1.FleetAddonConfigName, 1
	namespace := &corev1.Namespace{}
	namespace.Name = FleetNamespace
	p := &fixture{T: t, now: now, releases: found{}}
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
	p.reconciler = newReconciler(p.Client, p.Client, Options{LookupInterval: time.Hour, HelmTimeout: time.Minute}, "", p.releases,
		func(string, repository.Access) (Repository, error) { return p, nil })
	p.recorder, p.reconciler.now = events.NewFakeRecorder(1000), func() time.Time { return p.now }
	p.rootCA = func(context.Context) (string, error) { return "R", nil }
	return p
}

// after reconciles again a while later, and returns a condition.
func (p *fixture) after(wait time.Duration, kind string) metav1.Condition {
	p.Helper()
	p.now = p.now.Add(wait)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Name: addonsv1.FleetAddonConfigName}}
	switch result, err := p.Reconcile(p.Context(), request); {
	case err != nil: // The queue does the same.
		p.retry = p.limiter.When(request)
	case result.RequeueAfter != pollInterval:
		p.Errorf("the next observation is in %s", result.RequeueAfter)
	default:
		p.limiter.Forget(request)
	}
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(p.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
		p.Fatal(err)
	}
	if reported := meta.FindStatusCondition(config.Status.Conditions, kind); reported != nil {
		return *reported
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

// CAAPF's guide has the address directly under server.
func TestServerAsInTheGuideOfCAAPF(t *testing.T) {
	spec := custom()
	spec.Config.Server = &addonsv1.Server{CustomServer: *spec.Config.Server.Custom}
	p := newFixture(t, spec, fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	reported := p.after(0, addonsv1.FleetConfiguredCondition)
	if reported.Reason != addonsv1.ConfiguredOutsideReleaseReason || !strings.Contains(reported.Message, "at https://here:6443") || p.patches != 1 {
		t.Errorf("%+v, %d writes", reported, p.patches)
	}
}

// If another program keeps reverting the settings, the installer slows down.
func TestSettingsThatAreTakenBack(t *testing.T) {
	p := newFixture(t, custom(), fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	if reported := p.after(0, addonsv1.FleetConfiguredCondition); reported.Reason != addonsv1.ConfiguredOutsideReleaseReason || p.patches != 1 {
		t.Fatalf("%+v, %d writes", reported, p.patches)
	}
	undo := func() {
		object := fleetSettings()
		if err := p.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	var reported metav1.Condition
	for range 4 * 60 { // an hour
		undo()
		reported = p.after(pollInterval, addonsv1.FleetConfiguredCondition)
	}
	if reported.Status != metav1.ConditionFalse || reported.Reason != addonsv1.SettingsRevertedReason || p.patches > 9 || p.patches < 6 {
		t.Errorf("%+v, %d writes in an hour", reported, p.patches)
	}
	// Finally the other program stops.
	for range 4 * 40 {
		reported = p.after(pollInterval, addonsv1.FleetConfiguredCondition)
	}
	if reported.Status != metav1.ConditionTrue || reported.Reason != addonsv1.ConfiguredOutsideReleaseReason {
		t.Errorf("it stands, but the condition is %+v", reported)
	}
}

// The installer retries a chart that it cannot fetch at growing intervals, and reports no progress meanwhile.
func TestChartThatCannotBeFetched(t *testing.T) {
	p := newFixture(t, version("0.17.0"))
	p.fetching = errors.New("broken pipe")
	reported := map[string]bool{}
	for range 4 * 60 { // an hour
		condition := p.after(pollInterval, addonsv1.FleetInstalledCondition)
		reported[string(condition.Status)+" "+condition.Reason] = true
	}
	if p.fetches > 9 || p.fetches < 5 || len(reported) != 1 || !reported["False "+addonsv1.RepositoryUnreachableReason] {
		t.Errorf("fetched %d times in an hour, with events %v", p.fetches, reported)
	}
	// A changed FleetAddonConfig is tried at once.
	fetched := p.fetches
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(t.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
		t.Fatal(err)
	}
	config.Generation++
	if err := p.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if p.after(time.Second, addonsv1.FleetInstalledCondition); p.fetches != fetched+1 {
		t.Errorf("fetched %d times more after a change", p.fetches-fetched)
	}
}

// A firewall that drops packets makes each look-up take its whole timeout. That is reported after the first.
func TestRepositoryThatDoesNotAnswer(t *testing.T) {
	p := newFixture(t, version("0.17.0"))
	p.asking, p.slow = errors.New("i/o timeout"), 90*time.Second
	for want := range 3 {
		if reported := p.after(2*pollInterval, addonsv1.FleetInstalledCondition); reported.Reason != addonsv1.RepositoryUnreachableReason || p.asked != want+1 {
			t.Errorf("after %d look-ups: %s", p.asked, summary(&reported))
		}
	}
	p.asked, p.slow = 0, 0
	for range 4 * 60 { // an hour
		p.after(pollInterval, addonsv1.FleetInstalledCondition)
	}
	if p.asked < 3 || p.asked > 7 {
		t.Errorf("the installer asked %d times in the hour after that", p.asked)
	}
}

// The Secret of the repository appears long after the FleetAddonConfig that names it.
func TestSecretThatAppearsLate(t *testing.T) {
	spec := version("0.17.0")
	spec.Install.RepositorySecretRef = &addonsv1.RepositorySecretReference{Name: "credentials"}
	p := newFixture(t, spec)
	for range 4 * 60 { // an hour
		if reported := p.after(pollInterval, addonsv1.FleetInstalledCondition); reported.Reason != addonsv1.SecretUnusableReason || p.asked != 0 {
			t.Fatalf("asked %d times: %s", p.asked, summary(&reported))
		}
	}
	if err := p.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: FleetNamespace, Name: "credentials"}}); err != nil {
		t.Fatal(err)
	}
	if reported := p.after(2*pollInterval, addonsv1.FleetInstalledCondition); p.asked == 0 {
		t.Errorf("not asked: %s", summary(&reported))
	}
}

// A conflict, and a RoleBinding that the API server does not apply yet, are over in a moment: the queue retries at once.
func TestErrorsThatPass(t *testing.T) {
	p := newFixture(t, custom(), fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	p.broken = apierrors.NewConflict(corev1.Resource("configmaps"), settingsName, errTest)
	p.namespace, p.forbidden = "muster-system", "list secrets"
	for _, over := range []func(){func() { p.forbidden = "" }, func() { p.broken = nil }} {
		if got := p.after(0, addonsv1.FleetConfiguredCondition); got.Reason != "" || p.retry <= 0 || p.retry > time.Second {
			t.Errorf("the condition is %s, and the next reconcile in %s", summary(&got), p.retry)
		}
		p.retry = 0
		over()
	}
	binding := &rbacv1.RoleBinding{}
	if err := p.Get(t.Context(), client.ObjectKey{Namespace: FleetNamespace, Name: account}, binding); err != nil ||
		binding.RoleRef.Name != namespaceRole || len(binding.Subjects) != 1 || binding.Subjects[0].Namespace != "muster-system" {
		t.Errorf("the binding is %+v: %v", binding, err)
	}
	if got := p.after(time.Second, addonsv1.FleetConfiguredCondition); got.Reason != addonsv1.ConfiguredOutsideReleaseReason || p.patches != 2 {
		t.Errorf("the condition is %s after %d writes", summary(&got), p.patches)
	}
}

// The address in effect stays if its API server is away when the installer starts, even if its first reads fail.
func TestFirstObservationFails(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}}}
	slice.Namespace, slice.Name, slice.Endpoints = "default", "kubernetes", []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	p := newFixture(t, inferring(addonsv1.FleetAddonConfigSpec{}), slice)
	p.releases[FleetChart] = released("0.16.0", map[string]any{"apiServerURL": "https://10.0.0.2:6443", "apiServerCA": "R"})
	readCA := p.rootCA
	p.rootCA = func(context.Context) (string, error) { return "", errors.New("not yet") }
	p.after(0, addonsv1.FleetConfiguredCondition)
	p.rootCA = readCA
	if got := p.after(time.Second, addonsv1.FleetConfiguredCondition); got.Reason != addonsv1.ConfiguredReason || !strings.Contains(got.Message, "10.0.0.2") {
		t.Errorf("the condition is %s", summary(&got))
	}
}

// No message repeats a password in the URL of the repository: events have more readers than the FleetAddonConfig.
func TestPasswordInURL(t *testing.T) {
	for name, test := range map[string]struct {
		spec   addonsv1.FleetAddonConfigSpec
		asking error
	}{
		"out of reach": {version("0.17.0"), errors.New("broken pipe")},
		"no version":   {version("0.18.0"), nil},
	} {
		p := newFixture(t, test.spec)
		p.asking = test.asking
		config := &addonsv1.FleetAddonConfig{}
		if err := p.live.Get(t.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
			t.Fatal(err)
		}
		config.Spec.Install.Repository = ptr.To("https://me:secret@charts.example")
		if err := p.Update(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if reported := p.after(0, addonsv1.FleetInstalledCondition); !strings.Contains(reported.Message, "@charts.example") || strings.Contains(reported.Message, "secret") {
			t.Errorf("%s: %s", name, summary(&reported))
		}
	}
}

// A lasting error is reported, and the status keeps the installed version.
func TestPersistentError(t *testing.T) {
	spec := custom()
	spec.Install = version("0.16.0").Install
	p := newFixture(t, spec, fleetSettings())
	p.releases[FleetChart] = foreign(released("0.16.0", nil))
	p.broken = errors.New("denied by a policy")
	var reported metav1.Condition
	for passed := time.Duration(0); passed < 20*time.Second; passed += p.retry {
		if reported = p.after(p.retry, addonsv1.FleetConfiguredCondition); reported.Reason != "" {
			t.Fatalf("reported after %s: %+v", passed, reported)
		}
	}
	reported = p.after(p.retry, addonsv1.FleetConfiguredCondition)
	if reported.Status != metav1.ConditionFalse || reported.Reason != addonsv1.FailingReason || !strings.Contains(reported.Message, "denied by a policy") {
		t.Errorf("%+v", reported)
	}
	if reported := p.after(time.Second, addonsv1.FleetInstalledCondition); reported.Reason != addonsv1.ForeignReleaseReason {
		t.Errorf("it has nothing to do with the installation: %+v", reported)
	}
	p.broken = nil
	if reported := p.after(time.Second, addonsv1.FleetConfiguredCondition); reported.Reason != addonsv1.ConfiguredOutsideReleaseReason {
		t.Errorf("%+v", reported)
	}
	config := &addonsv1.FleetAddonConfig{}
	if err := p.live.Get(t.Context(), client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil || config.Status.InstalledVersion != "0.16.0" {
		t.Errorf("%+v, %v", config.Status, err)
	}
}

// An exact version with a known defect is installed as asked. The condition is True, and an event warns.
func TestKnownDefectIsAWarning(t *testing.T) {
	p := newFixture(t, version("0.16.0"))
	p.releases[CRDChart], p.releases[FleetChart] = released("0.16.0", nil), released("0.16.0", map[string]any{"bootstrap": map[string]any{"enabled": false}})
	if got := p.after(0, addonsv1.FleetInstalledCondition); got.Status != metav1.ConditionTrue || got.Reason != addonsv1.KnownDefectReason {
		t.Errorf("the condition is %s", summary(&got))
	}
	recorded := p.recorder.(*events.FakeRecorder).Events
	close(recorded)
	for event := range recorded {
		if strings.HasPrefix(event, "Warning KnownDefect Fleet 0.16.0") {
			return
		}
	}
	t.Error("no event warns")
}
