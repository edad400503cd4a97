package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies/policiestest"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/helm/templates"
	"github.com/muster-fleet/muster/internal/helm/worker"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// renderer counts its calls. It returns the same values each time, unless it is unsteady.
type renderer struct {
	count    int
	gives    string
	fails    error
	unsteady bool
}

func (r *renderer) Render(_ context.Context, _, _ string, data func() (map[string]any, error)) ([]byte, error) {
	if _, err := data(); err != nil {
		return nil, err
	}
	r.count++
	if r.unsteady {
		return fmt.Appendf(nil, "%s%d", r.gives, r.count), r.fails
	}
	return []byte(r.gives), r.fails
}

type noSources struct{}

func (noSources) Objects(context.Context, *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error) {
	return nil, nil, nil
}

func (noSources) Digest(context.Context, *clusterv1.Cluster, io.Writer) error { return nil }

// world is a release on one Cluster, and a clock.
type world struct {
	*Reconciler
	client.Client
	clock *testclock.FakeClock
	// woken are the releases whose turn to render has come.
	woken chan types.NamespacedName
}

func newWorld(t *testing.T, renders Renderer) *world {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&addonsv1.HelmReleaseProxy{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object.SetUID(cmp.Or(object.GetUID(), "made")) // As an API server does.
			return c.Create(ctx, object, options...)
		},
	}).WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByCluster, proxy.ClusterIndex).WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByRelease, proxy.AskedIndex).WithIndex(&fleetv1.Bundle{}, proxy.ByRelease, proxy.ReleaseIndex).Build()
	w := &world{Client: c, clock: testclock.NewFakeClock(time.Now()), woken: make(chan types.NamespacedName, 1)}
	w.Reconciler = &Reconciler{
		Store: store.New(w.Client, w.Client, "muster", w.clock), Policies: policiestest.NewReader(w.Client), Settings: settings.NewReader(w.Client), Sources: noSources{}, Renderer: renders,
		Turns: fair.NewTurns(2, func(key types.NamespacedName) { w.woken <- key }),
		Now:   w.clock.Now, Recorder: events.NewFakeRecorder(10),
	}
	return w
}

// said returns the last event; empty if there is none.
func (w *world) said() string {
	select {
	case said := <-w.Reconciler.Recorder.(*events.FakeRecorder).Events:
		return said
	default:
		return ""
	}
}

// scopeOf returns the scope of a release whose Bundle exists.
func scopeOf(t *testing.T, template string) *scope {
	t.Helper()
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "web"}}
	of.Spec.ValuesTemplate = template
	parsed, errs, err := templates.Examine(t.Context(), of)
	if err != nil || len(errs) > 0 {
		t.Fatal(errs, err)
	}
	release := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-one"}}
	release.Spec.ClusterRef.Namespace, release.Spec.ClusterRef.Name = "team", "one"
	release.Spec.ReleaseName, release.Spec.ReleaseNamespace = "web", "default"
	bundle := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
	bundle.UID = types.UID("bundle")
	return &scope{
		settings: &settings.InForce{Settings: settings.Default()}, turn: fair.NewTurns(1, nil).Of(plan.Key{}), proxy: of, release: release, bundle: bundle, record: plan.Record{FleetCluster: "one"}, inputs: &inputs.Inputs{Template: parsed},
		cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "one"}},
	}
}

// write writes the values as one reconcile does, and returns its scope.
func (w *world) write(t *testing.T, record plan.Record, template string, change func(*scope)) *scope {
	t.Helper()
	s := scopeOf(t, template)
	s.record, s.turn = record, w.Turns.Of(client.ObjectKeyFromObject(s.release))
	defer s.turn.End()
	change(s)
	var err error
	if s.settings, err = w.Settings.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.writeValues(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A release whose Fleet Cluster is gone loses its record, but not after a move, before the Fleet Cluster
// exists, and not if it is installed once.
func TestFleetClusterIsGone(t *testing.T) {
	of := plan.Of{Cluster: "one", Release: "web-one"}
	for name, test := range map[string]struct {
		strategy string
		of       plan.Of
		goes     bool
	}{
		"gone":  {of: of, goes: true},
		"moved": {of: plan.Of{Cluster: "before", Release: "before"}},
		"once":  {of: of, strategy: addonsv1.ReconcileStrategyInstallOnce},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, (*worker.Pool)(nil))
			s := scopeOf(t, "who: me")
			s.release.UID, s.proxy.Spec.ReconcileStrategy = of.Release, test.strategy
			s.record.Installed, s.record.Of = true, &test.of
			if err := w.Create(t.Context(), s.cluster.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			_, err := w.find(t.Context(), s)
			if err = cmp.Or(err, w.forgetGone(t.Context(), s)); err != nil || (s.record.FleetCluster == "") != test.goes || *cmp.Or(s.record.Of, &test.of) != test.of {
				t.Errorf("the record is %s, and goes: %t (%v)", s.record, test.goes, err)
			}
		})
	}
}

// A release whose Fleet Cluster is gone keeps its record until the Bundle has no target for it. The Bundle may not be
// writable for long, so it looks again less and less often.
func TestWaitsForItsTargetToGo(t *testing.T) {
	w := newWorld(t, (*worker.Pool)(nil))
	var last *scope
	look := func(targets ...fleetv1.BundleTarget) (again time.Duration) {
		last = scopeOf(t, "who: me")
		last.bundle.Spec.Targets, last.record.Of = targets, &plan.Of{Cluster: "one"}
		if err := w.forgetGone(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		return last.again
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		for range 2 { // An event in between makes it wait no longer.
			if got := look(fleetv1.BundleTarget{ClusterName: "one"}); got != want*time.Second || last.record.FleetCluster == "" {
				t.Errorf("it looks again after %s, want %d s; its record is %s", got, want, last.record)
			}
		}
		w.clock.Step(want * time.Second)
	}
	if again := look(); again != 0 || last.record.FleetCluster != "" {
		t.Errorf("it looks again after %s, and its record is %s", again, last.record)
	}
	if got := look(fleetv1.BundleTarget{ClusterName: "one"}); got != time.Second {
		t.Errorf("the next time, it looks again after %s", got)
	}
}

// An outdated release keeps its values: it may have to stay for a long time.
func TestOutdatedKeepsItsValues(t *testing.T) {
	w := newWorld(t, (*worker.Pool)(nil))
	s := w.write(t, plan.Record{FleetCluster: "one", Digest: "last"}, "who: me", func(s *scope) { s.proxy.Spec.ReleaseName = "other" })
	if s.record.Digest != "last" || s.record.Revision != 0 {
		t.Errorf("it has other values: %+v", s.record)
	}
}

// After a template fails or takes too long, events do not render it again until its sources change or
// checkInterval is over.
func TestFailuresAreRemembered(t *testing.T) {
	for name, test := range map[string]struct {
		fails error
		again int
	}{
		"an error of the template": {worker.Problem("no such field"), 1},
		"its limit":                {worker.LimitError("it takes longer than 5s"), 1},
		"no free worker":           {io.ErrUnexpectedEOF, 2},
	} {
		t.Run(name, func(t *testing.T) {
			renders := &renderer{fails: test.fails}
			w := newWorld(t, renders)
			record, nothing := plan.Record{FleetCluster: "one"}, func(*scope) {}
			for range 2 {
				s := w.write(t, record, "a: {{ .Cluster.metadata.name }}", nothing)
				if s.trouble.Message != test.fails.Error() || s.trouble.Reason != addonsv1.ValueParsingFailedReason {
					t.Errorf("the status says %v", s.trouble)
				}
			}
			if renders.count != test.again {
				t.Errorf("rendered %d times, want %d", renders.count, test.again)
			}
			w.write(t, record, "a: {{ .Cluster.metadata.name }}", func(s *scope) { s.cluster.Labels = map[string]string{"tier": "web"} })
			if renders.count != test.again+1 {
				t.Error("not rendered again for another label of the Cluster")
			}
			w.clock.Step(checkInterval)
			w.write(t, record, "a: {{ .Cluster.metadata.name }}", func(s *scope) { s.cluster.Labels = map[string]string{"tier": "web"} })
			if renders.count != test.again+2 {
				t.Error("never rendered again")
			}
		})
	}
}

// The program cannot see that a user has deleted a Secret with values, so it writes the Secret again after a
// while.
func TestDeletedSecretsComeBack(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	secret := func(s *scope) {
		s.inputs.Secret, s.inputs.Layers = true, []plan.Layer{{Key: "00.yaml", Data: []byte("a: secret")}}
	}
	first := w.write(t, plan.Record{FleetCluster: "one"}, "a: {{ .Cluster.metadata.name }}", secret)
	key := first.key(first.record)
	if err := w.Get(t.Context(), key, &corev1.Secret{}); err != nil || !first.record.Secret {
		t.Fatalf("the values are not in a Secret: %v", err)
	}
	if err := w.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
		t.Fatal(err)
	}
	second := w.write(t, first.record, "a: {{ .Cluster.metadata.name }}", secret)
	if err := w.Get(t.Context(), key, &corev1.Secret{}); !apierrors.IsNotFound(err) || second.again == 0 || second.again > checkInterval {
		t.Errorf("the next reconcile is in %s (%v)", second.again, err)
	}
	w.clock.Step(checkInterval)
	third := w.write(t, second.record, "a: {{ .Cluster.metadata.name }}", secret)
	if err := w.Get(t.Context(), key, &corev1.Secret{}); err != nil || third.record.Revision != first.record.Revision {
		t.Errorf("the Secret has not come back (%v), or its values count as changed", err)
	}
}

// While the cache lacks the record, or its write has failed, a Secret is not written again; but it is once it was
// removed.
func TestWrittenOnce(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	before := plan.Record{FleetCluster: "one"}
	first := w.write(t, before, ofCluster, secretOf("a: secret"))
	key := first.key(first.record)
	version := func() string {
		its := &corev1.Secret{}
		if err := w.Get(t.Context(), key, its); err != nil {
			t.Fatal(err)
		}
		return its.ResourceVersion
	}
	last := version()
	second := w.write(t, before, ofCluster, secretOf("a: secret"))
	if version() != last || second.record.Digest != first.record.Digest || second.record.Bundle != first.record.Bundle {
		t.Errorf("version %s, then %s; the record was %s, and is %s", last, version(), first.record, second.record)
	}
	if err := w.RemoveValues(t.Context(), client.ObjectKeyFromObject(second.proxy), key, true); err != nil {
		t.Fatal(err)
	}
	last = version()
	if w.write(t, before, ofCluster, secretOf("a: secret")); version() == last {
		t.Error("the Secret stays empty")
	}
}

// A template that renders something else each time causes no upgrade while its sources stay the same, although
// values in a Secret are written again.
func TestUnsteadyTemplates(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b", unsteady: true})
	secret := func(s *scope) {
		s.inputs.Secret, s.inputs.Layers = true, []plan.Layer{{Key: "00.yaml", Data: []byte("a: secret")}}
	}
	first := w.write(t, plan.Record{FleetCluster: "one"}, "a: {{ .Cluster.metadata.name }}", secret)
	w.clock.Step(checkInterval)
	second := w.write(t, first.record, "a: {{ .Cluster.metadata.name }}", secret)
	if second.record.Digest != first.record.Digest || second.record.Revision != first.record.Revision || second.again != checkInterval {
		t.Errorf("the record was %v, and is %v; again in %s", first.record, second.record, second.again)
	}
	third := w.write(t, second.record, "a: {{ .Cluster.metadata.name }}", func(s *scope) {
		secret(s)
		s.cluster.Labels = map[string]string{"tier": "web"}
	})
	if third.record.Digest == first.record.Digest || third.record.Revision == first.record.Revision {
		t.Error("the values do not follow a label of the Cluster")
	}
}

// While others wait for the workers, a release keeps its values. It is woken when it is its turn, and a turn that it does not use
// is the next one's.
func TestBusy(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	other := w.Turns.Of(types.NamespacedName{Namespace: "team", Name: "other"})
	if !other.Take() {
		t.Fatal("there is no turn")
	}
	for range 2 {
		s := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, func(*scope) {})
		if s.again != 0 || !s.isUnfinished || s.trouble.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason || s.record.Digest != "" {
			t.Errorf("again in %s, with %v", s.again, s.trouble)
		}
	}
	other.End()
	key := <-w.woken
	paused := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, func(s *scope) { s.inputs.Incomplete = true })
	if key != client.ObjectKeyFromObject(paused.release) || paused.record.Digest != "" {
		t.Errorf("%s is woken; the record is %s", key, paused.record)
	}
	if s := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, func(*scope) {}); s.isUnfinished || s.record.Digest == "" {
		t.Errorf("it is not rendered: %v", s.trouble)
	}
}

// listing is the API server while it lists the kinds that Clusters refer to.
type listing struct{}

func (listing) Objects(context.Context, *clusterv1.Cluster) (controlPlane, infrastructure map[string]any, err error) {
	return nil, nil, &references.ListingError{Err: errors.New("it is being listed"), Left: time.Second}
}

func (listing) Digest(context.Context, *clusterv1.Cluster, io.Writer) error {
	return errors.New("it is being listed")
}

// A release that cannot render its values yet does not count as having processed its inputs: a rollout would take
// it for done.
func TestListing(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	w.Sources = listing{}
	s := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, func(*scope) {})
	if !s.isUnfinished || !s.isWaiting || s.again != time.Second || s.trouble.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason || s.record.Digest != "" {
		t.Errorf("finished, with %v, again in %v", s.trouble, s.again)
	}
}

// deploymentOf returns a BundleDeployment with the wanted state, which reads an object with values.
func (w *world) deploymentOf(s *scope, reads ...fleetv1.DownstreamResource) *fleetv1.BundleDeployment {
	its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{plan.ContentLabel: s.content()}}}
	its.Spec.DeploymentID, its.Spec.StagedDeploymentID, its.Status.AppliedDeploymentID, its.Status.Release = "x", "x", "x", "default/web:2"
	its.Spec.Options.DownstreamResources = reads
	return its
}

func secretOf(text string) func(*scope) {
	return func(s *scope) {
		s.inputs.Secret, s.inputs.Layers, s.inputs.Values = true, []plan.Layer{{Key: "00.yaml", Data: []byte(text)}}, text
	}
}

const ofCluster = "a: {{ .Cluster.metadata.name }}"

// Values in a Secret are emptied once the agent does not read them, and not before.
func TestRemovedValues(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	first := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, secretOf("a: secret"))
	key := first.key(first.record)
	second := w.write(t, first.record, "", func(*scope) {})
	for _, step := range []struct {
		reads    []fleetv1.DownstreamResource
		deployed bool
		left     int
	}{{[]fleetv1.DownstreamResource{{Kind: "Secret", Name: key.Name}}, false, 2}, {nil, true, 0}} {
		second.deployment = w.deploymentOf(second, step.reads...)
		observed := second.observe(w.clock.Now())
		if err := w.removeStale(t.Context(), second, observed); err != nil || observed.Deployed != step.deployed {
			t.Fatalf("deployed: %t, want %t (%v)", observed.Deployed, step.deployed, err)
		}
		its := &corev1.Secret{}
		if err := w.Get(t.Context(), key, its); err != nil || len(its.Data) != step.left || second.record.Stale != (step.left > 0) {
			t.Errorf("the Secret has %d keys, want %d; the record is %v (%v)", len(its.Data), step.left, second.record, err)
		}
	}
}

// Until the agent has deployed other values, its messages may contain values from a Secret.
func TestValuesOfASecretStayUnsaid(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	first := w.write(t, plan.Record{FleetCluster: "one", Installed: true}, ofCluster, secretOf("a: sesame"))
	for name, template := range map[string]string{"in a Secret": ofCluster, "no longer": ""} {
		s := first
		if template == "" {
			s = w.write(t, first.record, template, func(*scope) {})
		}
		s.deployment = w.deploymentOf(s)
		if template != "" {
			s.deployment = w.deploymentOf(s, fleetv1.DownstreamResource{Kind: "Secret", Name: s.key(s.record).Name})
		}
		s.deployment.Status.Conditions = []genericcondition.GenericCondition{{
			Type: fleetv1.BundleDeploymentConditionDeployed, Status: corev1.ConditionFalse, Message: "sesame",
		}}
		if got := s.observe(w.clock.Now()); !got.Failed || strings.Contains(got.Message, "sesame") {
			t.Errorf("%s: failed: %t, %s", name, got.Failed, got.Message)
		}
	}
}

// Values move from a Secret that no agent has read to a ConfigMap of the same name.
func TestFromSecretToConfigMap(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	first := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, secretOf("a: 1"))
	reads := func(s *scope) {
		s.deployment = w.deploymentOf(s, fleetv1.DownstreamResource{Kind: "Secret", Name: first.key(first.record).Name})
	}
	second := w.write(t, first.record, ofCluster, func(s *scope) {
		secretOf("a: 2")(s)
		reads(s)
	})
	third := w.write(t, second.record, ofCluster, func(s *scope) {
		s.inputs.Values = "3"
		reads(s)
	})
	if second.key(second.record) != third.key(third.record) {
		t.Fatalf("%s, then %s", second.key(second.record), third.key(third.record))
	}
	third.deployment = w.deploymentOf(third, fleetv1.DownstreamResource{Kind: "ConfigMap", Name: third.key(third.record).Name})
	if err := w.removeStale(t.Context(), third, plan.Release{Deployed: true}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*scope{first, second} {
		its := &corev1.Secret{}
		if err := w.Get(t.Context(), s.key(s.record), its); err != nil || len(its.Data) > 0 {
			t.Errorf("Secret %s has %d keys (%v)", s.key(s.record), len(its.Data), err)
		}
	}
}

// While inputs are incomplete, the record may be older than the values that the Bundle names: none are removed.
func TestIncompleteInputsRemoveNothing(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b", unsteady: true})
	first := w.write(t, plan.Record{FleetCluster: "one", Installed: true}, ofCluster, func(*scope) {})
	second := w.write(t, first.record, ofCluster, func(s *scope) { s.inputs.Values = "2" })
	late := w.write(t, first.record, ofCluster, func(s *scope) { s.inputs.Incomplete = true })
	if err := w.removeStale(t.Context(), late, plan.Release{Deployed: true}); err != nil {
		t.Fatal(err)
	}
	if err := w.Get(t.Context(), second.key(second.record), &corev1.ConfigMap{}); err != nil {
		t.Error(err)
	}
}

// A release that is installed once stays Ready when its Fleet Cluster is made anew: Fleet never deploys a paused Bundle.
func TestInstalledOnceStaysReady(t *testing.T) {
	w := newWorld(t, &renderer{})
	s := scopeOf(t, "")
	s.proxy.Spec.ReconcileStrategy, s.record.Installed = addonsv1.ReconcileStrategyInstallOnce, true
	metav1.SetMetaDataAnnotation(&s.release.ObjectMeta, plan.RecordAnnotation, s.record.String())
	anew := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: s.bundle.Labels}}
	anew.Spec.StagedDeploymentID = "x"
	for _, its := range []*fleetv1.BundleDeployment{nil, anew} {
		s.deployment = its
		if got := s.observe(w.clock.Now()); !got.Ready {
			t.Errorf("%v is not ready: %s", its, got.Message)
		}
	}
}

// A forged HelmReleaseProxy that is deleted empties no Secret in the namespace of others: names of values are hashes that
// can be found. A Bundle of the HelmChartProxy proves that the values are its own.
func TestForgedReleaseEmptiesNothing(t *testing.T) {
	for name, isProven := range map[string]bool{"forged": false, "its Bundle is there": true} {
		w := newWorld(t, &renderer{})
		s := scopeOf(t, "")
		s.release.Spec.ClusterRef.Namespace, s.record = "victim", plan.Record{FleetCluster: "prod", Secret: true}
		s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
		if !isProven {
			s.bundle = nil
		}
		if secret, err := w.uninstallFrom(t, s); err != nil || (len(secret.Data) == 0) != isProven {
			t.Errorf("%s: the Secret has %d keys (%v)", name, len(secret.Data), err)
		}
	}
}

// uninstallFrom uninstalls a release that has a Secret with one value, and returns the Secret afterwards.
func (w *world) uninstallFrom(t *testing.T, s *scope) (*corev1.Secret, error) {
	t.Helper()
	key := s.key(s.record)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: plan.ValuesSecretType, Data: map[string][]byte{"a": nil}}
	if err := w.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := w.uninstall(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	err := w.Get(t.Context(), key, secret)
	return secret, err
}

// The values of a Cluster that is gone stay until its Bundle drops the target. Then they are removed: the Bundle lives on with
// others. The release waits for that only within limits.
func TestGoneBeforeItsTarget(t *testing.T) {
	for _, test := range []struct {
		isTarget bool
		age      time.Duration
		left     int
		said     string
	}{{true, 0, 1, ""}, {false, 0, 0, ""}, {true, uninstallPatience, 1, "Muster has not removed the target"}} {
		w, s := newWorld(t, &renderer{}), scopeOf(t, "")
		w.Recorder = events.NewFakeRecorder(1)
		s.bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "two"}}
		if test.isTarget {
			s.bundle.Spec.Targets = append(s.bundle.Spec.Targets, fleetv1.BundleTarget{ClusterName: "one"})
		}
		s.record.Secret = true
		s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now().Add(-test.age)}
		secret, err := w.uninstallFrom(t, s)
		if err != nil || len(secret.Data) != test.left || (s.again > 0) != (test.isTarget && test.age == 0) {
			t.Errorf("target: %t, age %s: the Secret has %d keys, and the next look is after %s (%v)", test.isTarget, test.age, len(secret.Data), s.again, err)
		}
		if said := w.said(); !strings.Contains(said, test.said) || (said == "") != (test.said == "") {
			t.Errorf("target: %t, age %s: the event is %q", test.isTarget, test.age, said)
		}
	}
}

// A Cluster that was moved keeps its values, although the cache does not show yet that its Fleet Cluster was released.
func TestReleasedUnseen(t *testing.T) {
	for left, annotations := range []map[string]string{nil, {stamp.ReleasedAnnotation: "true"}} {
		w, live := newWorld(t, &renderer{}), newWorld(t, &renderer{})
		w.Live = live.Client
		fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", Annotations: annotations, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}}
		if err := live.Create(t.Context(), fleet); err != nil {
			t.Fatal(err)
		}
		s := scopeOf(t, "")
		s.record.Secret = true
		s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
		if secret, err := w.uninstallFrom(t, s); err != nil || len(secret.Data) != left {
			t.Errorf("the Secret has %d keys, want %d (%v)", len(secret.Data), left, err)
		}
	}
}

// A release that is being uninstalled reads its Fleet Cluster past the cache once, before its finalizer goes, and not at each event.
func TestUninstallReadsLiveOnce(t *testing.T) {
	for name, isReleased := range map[string]bool{"uninstalled": false, "released meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			w, reads := newWorld(t, &renderer{}), 0
			w.Live = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					reads++
					return c.Get(ctx, key, object, options...)
				},
			})
			fleet, s := ownFleetCluster("first"), scopeOf(t, "")
			s.release.Finalizers = []string{plan.Finalizer}
			for _, its := range []client.Object{fleet, s.release} {
				if err := w.Client.Create(t.Context(), its); err != nil {
					t.Fatal(err)
				}
			}
			s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
			target, deployment := []fleetv1.BundleTarget{{ClusterName: "one"}}, w.deploymentOf(s)
			isDone := func() bool {
				s.again = 0
				if err := w.uninstall(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				its := &addonsv1.HelmReleaseProxy{}
				if err := w.Get(t.Context(), client.ObjectKeyFromObject(s.release), its); err != nil {
					t.Fatal(err)
				}
				return len(its.Finalizers) == 0
			}
			for i := range 6 { // While it is a target, and then while Fleet has its BundleDeployment.
				s.bundle.Spec.Targets, s.deployment = target[i/3:], deployment
				if isDone() || s.again == 0 || reads > 0 {
					t.Fatalf("after %d events, there were %d live reads, and the next look is after %s", i+1, reads, s.again)
				}
			}
			if s.deployment = nil; isReleased {
				s.deployment, fleet.Annotations = deployment, map[string]string{stamp.ReleasedAnnotation: "true"}
				if err := w.Client.Update(t.Context(), fleet); err != nil {
					t.Fatal(err)
				}
			}
			if !isDone() || reads != 1 {
				t.Errorf("at the end, there were %d live reads", reads)
			}
		})
	}
}

// The agent has time for the empty chart from when the program asks for it, which may have been away at the deletion.
func TestEmptiedLate(t *testing.T) {
	w := newWorld(t, &renderer{})
	s := scopeOf(t, "")
	s.record = plan.Record{FleetCluster: "one", Digest: "any"}
	s.deployment = &fleetv1.BundleDeployment{}
	s.deployment.Status.Conditions = []genericcondition.GenericCondition{{
		Type: fleetv1.BundleDeploymentConditionInstalled, Status: "False", Message: "unable to continue with install: it exists",
	}}
	if err := w.Client.Create(t.Context(), s.release); err != nil {
		t.Fatal(err)
	}
	s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now().Add(-time.Hour)}
	leaving := func() string {
		if _, err := w.empty(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		its := &addonsv1.HelmReleaseProxy{}
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(s.release), its); err != nil {
			t.Fatal(err)
		}
		s.record, s.release.ResourceVersion = plan.RecordOf(its), its.ResourceVersion
		return s.record.Leaving
	}
	if got := []string{leaving(), leaving()}; got[0] != plan.Emptied || got[1] != plan.Emptied {
		t.Errorf("it is %v", got)
	}
	w.clock.Step(emptyPatience)
	if got := leaving(); got != plan.Withdrawn {
		t.Errorf("finally it is %s", got)
	}
}

// The record names the version for which the values were rendered last, although they are the same: the hold of an
// upgrade waits for that. It is written once for each version, and for no template that does not read it.
func TestRecordNamesTheVersion(t *testing.T) {
	of := func(version string, reads bool) func(*scope) {
		return func(s *scope) { s.cluster.Spec.Topology.Version, s.inputs.Template.ReadsVersion = version, reads }
	}
	renders := &renderer{gives: "a: b"}
	w := newWorld(t, renders)
	first := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, of("v1", true)).record
	next := w.write(t, first, ofCluster, of("v2", true)).record
	again := w.write(t, next, ofCluster, of("v2", true)).record
	if first.Version != "v1" || next.Version != "v2" || next.Digest != first.Digest || next.Revision != first.Revision {
		t.Errorf("the record was %s, and is %s", first, next)
	}
	if again.String() != next.String() || renders.count != 2 {
		t.Errorf("without a change, the record was %s, and is %s; rendered %d times", next, again, renders.count)
	}
	renders.fails = worker.Problem("no such field")
	if failed := w.write(t, next, ofCluster, of("v3", true)).record; failed.Version != "v2" {
		t.Errorf("the template fails, and the record says %s", failed)
	}
	renders.fails = nil
	if old := w.write(t, plan.Record{FleetCluster: "one", Digest: first.Digest, Bundle: first.Bundle, Keys: first.Keys}, ofCluster, of("v1", true)).record; old.Version != "v1" {
		t.Errorf("a record of an earlier Muster becomes %s", old)
	}
	if other := w.write(t, first, ofCluster, of("v1", false)).record; other.Version != "" {
		t.Errorf("the template no longer reads the version, and the record says %s", other)
	}
	if empty := w.write(t, first, "", of("v1", false)).record; empty.Version != "" {
		t.Errorf("there are no values, and the record says %s", empty)
	}
	// The sources do not show the version.
	config := &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: "fleet-addon-config"}}
	config.Spec.Cluster = &addonsv1.ClusterConfig{TemplateValues: &addonsv1.TemplateValuesConfig{Exclude: &[]string{"/Cluster/spec/topology"}}}
	if err := w.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	first = w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, of("v1", true)).record
	if next := w.write(t, first, ofCluster, of("v2", true)).record; next.Version != "v2" || next.Digest != first.Digest || next.Revision != first.Revision {
		t.Errorf("the settings exclude the version, and the record, which was %s, is %s", first, next)
	}
	// A release that waits for its turn in a rollout keeps the values of the last version.
	record := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, both(staged(""), of("v1", true))).record
	record.Installed, renders.gives = true, "a: new"
	if held := w.write(t, record, ofCluster, both(staged(""), of("v2", true))).record; held.Version != "v1" || held.Rollout.Pending == "" {
		t.Errorf("it waits for its turn, and the record says %s", held)
	}
}

// reads creates the release and its Cluster, which is not in Fleet, and reads the inputs; the repository does not answer.
func (w *world) reads(t *testing.T, s *scope) {
	t.Helper()
	s.proxy.Spec.RepoURL, s.proxy.Spec.ChartName, s.proxy.Spec.Version = "https://charts.example.com", "web", "1.0.0"
	s.release.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.proxy, addonsv1.GroupVersion.WithKind("HelmChartProxy"))}
	if err := cmp.Or(w.Create(t.Context(), s.release), w.Create(t.Context(), s.cluster.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	read := make(chan bool, 2) // They are read again.
	w.Inputs = &inputs.Reader{Live: w.Client, Cached: w.Client, Charts: repository.New(repository.Options{}), Wake: func(plan.Key, bool) { read <- true }, Now: w.clock.Now}
	if _, _, err := w.Inputs.Get(s.proxy); !errors.Is(err, inputs.ErrReading) {
		t.Fatal(err)
	}
	<-read
}

// After new inputs, nothing is reported before the HelmReleaseProxy has the new spec, for a while: the write of the spec would meet
// that of the status. An outdated release, with another name, gets no new spec.
func TestSpecComesFirst(t *testing.T) {
	for name, test := range map[string]struct {
		version, release string
		age              time.Duration
		reports          bool
	}{
		"the last spec":              {"0.9.0", "web", 0, false},
		"the last spec, for long":    {"0.9.0", "web", inputs.Patience, true},
		"the new spec":               {"1.0.0", "web", 0, true},
		"a release that is to go":    {"0.9.0", "other", 0, true},
		"almost too long":            {"0.9.0", "web", inputs.Patience - 1, false},
		"the new spec, after a time": {"1.0.0", "web", inputs.Patience, true},
	} {
		w := newWorld(t, &renderer{gives: "a: b"})
		s := scopeOf(t, "")
		w.reads(t, s)
		plan.Default(s.proxy)
		s.release.Spec.ChartName, s.release.Spec.RepoURL, s.release.Spec.Version, s.release.Spec.ReleaseName = "web", s.proxy.Spec.RepoURL, test.version, test.release
		s.release.Spec.ClusterRef.APIVersion, s.release.Spec.ClusterRef.Kind = clusterv1.GroupVersion.String(), clusterv1.ClusterKind
		s.release.Spec.Options = plan.StoredOptions(s.proxy.Spec.Options)
		s.release.Spec.ReconcileStrategy, s.proxy.Spec.ReleaseName = s.proxy.Spec.ReconcileStrategy, "web"
		w.clock.Step(test.age)
		if err := w.reconcile(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if reports := len(s.release.Status.Conditions) > 0; reports != test.reports || !reports && s.again == 0 {
			t.Errorf("%s: it reports %v, again in %s", name, s.release.Status.Conditions, s.again)
		}
	}
}

// While the settings are unknown, a release that has values of the HelmChartProxy stays as it is. One that has none, also in a rollout,
// goes on: its Cluster is not in Fleet, and its status says so, also while the repository does not answer.
func TestSettingsAreUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmChartProxySpec)
		says   bool
	}{
		"no values":  {func(*addonsv1.HelmChartProxySpec) {}, true},
		"a rollout":  {func(its *addonsv1.HelmChartProxySpec) { its.Rollout = &addonsv1.RolloutStrategy{} }, true},
		"a template": {func(its *addonsv1.HelmChartProxySpec) { its.ValuesTemplate = ofCluster }, false},
		"a ConfigMap": {func(its *addonsv1.HelmChartProxySpec) {
			its.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values", Optional: true}}
		}, false},
	} {
		w := newWorld(t, &renderer{gives: "a: b"})
		s := scopeOf(t, "")
		test.change(&s.proxy.Spec)
		w.reads(t, s)
		w.Settings.Saw(nil) // It is gone.
		w.clock.Step(inputs.Patience)
		if err := w.reconcile(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		available := meta.FindStatusCondition(s.release.Status.Conditions, addonsv1.ClusterAvailableCondition)
		if says := available != nil && available.Reason == addonsv1.GetClusterFailedReason; says != test.says {
			t.Errorf("%s: it says %v", name, available)
		}
	}
}

// The values of a release stay while a target names them, also if its Fleet Cluster is gone for a moment:
// without them, Fleet would deploy nothing from the Bundle to any cluster. The release then describes the new
// Fleet Cluster.
func TestFleetClusterComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		isCut, isTarget bool
		stays           bool
	}{
		"a target":     {isTarget: true, stays: true},
		"not cached":   {isCut: true, stays: true},
		"not a target": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &renderer{gives: "a: b"})
			in := func(s *scope) {
				s.release.UID, s.record.Of = "web-one", &plan.Of{Cluster: "one", Release: "web-one"}
				s.inputs.Selector, _ = plan.NewSelector(s.proxy)
				s.cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "one"}
				if test.isTarget {
					s.bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}}
				}
				if test.isCut {
					s.bundle.Spec.Targets = make([]fleetv1.BundleTarget, 2*plan.MaxTargets+1)
					if _, err := store.Trim(s.bundle); err != nil || !store.IsCut(s.bundle) {
						t.Fatal("not cut", err)
					}
				}
			}
			first := w.write(t, plan.Record{FleetCluster: "one", Fleet: "first", Installed: true, Sync: 2}, ofCluster, in)
			if err := w.Create(t.Context(), first.cluster.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			reconcile := func(record plan.Record) *scope {
				s := scopeOf(t, ofCluster)
				s.record = record
				in(s)
				_, err := w.find(t.Context(), s)
				if err := cmp.Or(err, w.forgetGone(t.Context(), s), w.renew(t.Context(), s)); err != nil {
					t.Fatal(err)
				}
				return s
			}
			gone := reconcile(first.record)
			if got := w.Get(t.Context(), first.key(first.record), &corev1.ConfigMap{}); (got == nil) != test.stays || (gone.record.Digest != "") != test.stays || gone.record.Fleet != "first" {
				t.Fatalf("the record is %s, and its values are there: %v", gone.record, got)
			}
			if test.stays && gone.again == 0 {
				t.Error("nothing looks again when the target is gone")
			}
			if err := w.Create(t.Context(), ownFleetCluster("second")); err != nil {
				t.Fatal(err)
			}
			back := reconcile(gone.record)
			if test.stays && (back.record.Fleet != "second" || back.record.Installed || back.record.Digest != first.record.Digest || back.record.Sync != 2) {
				t.Errorf("the record is %s", back.record)
			}
			back = w.write(t, back.record, ofCluster, func(s *scope) { in(s); s.fleet = "second" })
			if back.record.Fleet != "second" || back.record.Digest != first.record.Digest {
				t.Errorf("the record is %s", back.record)
			}
		})
	}
}

// ownFleetCluster returns the Fleet Cluster of the Cluster of scopeOf.
func ownFleetCluster(uid types.UID) *fleetv1.Cluster {
	return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "one", UID: uid, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "one", UID: "one"}},
	}}
}

// Values that do not exist, and that cannot be rendered for another Fleet Cluster, stay those of the last one: the Bundle
// drops the target.
func TestLostValuesOfAnotherFleetCluster(t *testing.T) {
	w := newWorld(t, &renderer{fails: worker.Problem("no such field")})
	s := scopeOf(t, ofCluster)
	s.record, s.fleet = plan.Record{FleetCluster: "one", Fleet: "first", Digest: "any", Keys: []string{"values.yaml"}, Bundle: "bundle"}, "second"
	if err := cmp.Or(w.renew(t.Context(), s), w.writeValues(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
	if s.record.Fleet != "first" || s.trouble.Reason != addonsv1.ValueParsingFailedReason {
		t.Errorf("the record is %s, and the status says %v", s.record, s.trouble)
	}
}

// Values count as written with the key that the record names, and with no other.
func TestWrittenUnderItsKey(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	stale := w.write(t, plan.Record{FleetCluster: "one", Revision: 1}, ofCluster, func(*scope) {}).record
	newest := stale
	newest.Revision = 9
	key := func(s *scope) (all []string) {
		its := &corev1.ConfigMap{}
		if err := w.Get(t.Context(), s.key(s.record), its); err != nil {
			t.Fatal(err)
		}
		return slices.Collect(maps.Keys(its.Data))
	}
	for _, record := range []plan.Record{newest, stale} { // The last write of the record was refused.
		s := w.write(t, record, ofCluster, func(s *scope) {})
		if got := key(s); !slices.Equal(got, []string{s.record.Key("values.yaml")}) {
			t.Errorf("the values are under %v, and the record is %s", got, s.record)
		}
	}
}

// A record of an earlier version, which does not name the UID of its Fleet Cluster, stays as it is, and so does its target.
func TestRecordWithoutFleetCluster(t *testing.T) {
	w := newWorld(t, &renderer{gives: "a: b"})
	none := func(*scope) {}
	first := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, none).record
	next := first
	next.Fleet = "living"
	target, _ := plan.TargetOf(scopeOf(t, ofCluster).proxy, scopeOf(t, ofCluster).release, first)
	same, _ := plan.TargetOf(scopeOf(t, ofCluster).proxy, scopeOf(t, ofCluster).release, next)
	if !equality.Semantic.DeepEqual(target, same) {
		t.Errorf("the target was %v, and is %v", target, same)
	}
	for restarted := range 2 {
		s := scopeOf(t, ofCluster)
		s.record, s.fleet = first, "living"
		if err := cmp.Or(w.forgetGone(t.Context(), s), w.renew(t.Context(), s), w.writeValues(t.Context(), s)); err != nil || s.record.String() != first.String() {
			t.Errorf("restarted %d times, the record was %s, and is %s (%v)", restarted, first, s.record, err)
		}
		w.rendered.Clear()
	}
}

// An older state of etcd, or a user, may bring back other values. What the cache shows is mended at once, and a Secret, which
// is not cached, with the next event after a minute.
func TestRestoredValues(t *testing.T) {
	for name, test := range map[string]struct {
		from     func(*scope)
		restored client.Object
		later    time.Duration
	}{
		"ConfigMap": {func(*scope) {}, &corev1.ConfigMap{Data: map[string]string{"values.yaml": "a: old"}}, 0},
		"Secret":    {secretOf("a: secret"), &corev1.Secret{Type: plan.ValuesSecretType, Data: map[string][]byte{"values.yaml": []byte("a: old")}}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &renderer{gives: "a: b"})
			first := w.write(t, plan.Record{FleetCluster: "one"}, ofCluster, test.from)
			object := reflect.New(reflect.TypeOf(test.restored).Elem()).Interface().(client.Object)
			keys := func() string {
				if err := w.Get(t.Context(), first.key(first.record), object); err != nil {
					t.Fatal(err)
				}
				return plan.JSON(object)
			}
			want := keys()
			test.restored.SetName(object.GetName())
			test.restored.SetNamespace(object.GetNamespace())
			test.restored.SetLabels(object.GetLabels())
			test.restored.SetAnnotations(object.GetAnnotations())
			test.restored.SetOwnerReferences(object.GetOwnerReferences())
			test.restored.SetUID(object.GetUID())
			if err := w.Client.Update(t.Context(), test.restored); err != nil {
				t.Fatal(err)
			}
			w.clock.Step(test.later)
			w.write(t, first.record, ofCluster, test.from)
			if got := keys(); !strings.Contains(got, first.record.Key("values.yaml")) {
				t.Errorf("it is %s, and was %s", got, want)
			}
		})
	}
}

// The cache may lack a Fleet Cluster that was made again. Its release is not gone while Fleet has its BundleDeployment.
func TestFleetClusterUnseen(t *testing.T) {
	for left, exists := range []bool{false, true} {
		w, live := newWorld(t, &renderer{}), newWorld(t, &renderer{})
		w.Live = live.Client
		if exists {
			if err := live.Create(t.Context(), ownFleetCluster("second")); err != nil {
				t.Fatal(err)
			}
		}
		s := scopeOf(t, "")
		s.record.Secret, s.deployment = true, w.deploymentOf(s)
		s.release.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
		if secret, err := w.uninstallFrom(t, s); err != nil || len(secret.Data) != left {
			t.Errorf("the Secret has %d keys, want %d (%v)", len(secret.Data), left, err)
		}
	}
}

// The agent has installed an InstallOnce release while the program was away, or had no settings, and the HelmChartProxy has
// changed since: the release keeps its values.
func TestInstalledOnceMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		strategy string
		change   func(*fleetv1.BundleDeployment)
		want     bool
	}{
		"installed":         {addonsv1.ReconcileStrategyInstallOnce, func(*fleetv1.BundleDeployment) {}, true},
		"not yet installed": {addonsv1.ReconcileStrategyInstallOnce, func(its *fleetv1.BundleDeployment) { its.Status.Release = "" }, false},
		"of other content": {addonsv1.ReconcileStrategyInstallOnce, func(its *fleetv1.BundleDeployment) {
			its.Labels = map[string]string{plan.ContentLabel: "other"}
		}, false},
		"Continuous": {addonsv1.ReconcileStrategyContinuous, func(*fleetv1.BundleDeployment) {}, false},
	} {
		s := scopeOf(t, "who: me")
		s.proxy.Spec.ReconcileStrategy = test.strategy
		s.record.Digest, s.record.Keys = "earlier", []string{"00.yaml"}
		target, _ := plan.TargetOf(s.proxy, s.release, s.record)
		s.deployment = &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: s.bundle.Labels}}
		s.deployment.Spec.Options.DownstreamResources = target.DownstreamResources
		s.deployment.Spec.DeploymentID, s.deployment.Spec.StagedDeploymentID, s.deployment.Status.AppliedDeploymentID = "1", "1", "1"
		s.deployment.Status.Release = "default/web:1"
		test.change(s.deployment)
		s.inputs.Chart.Version = "2.0.0"
		if s.noteInstalledOnce(); s.record.Installed != test.want {
			t.Errorf("%s: installed %t", name, s.record.Installed)
		}
	}
	s := scopeOf(t, "who: me")
	s.bundle, s.proxy.Spec.ReconcileStrategy = nil, addonsv1.ReconcileStrategyInstallOnce
	if s.noteInstalledOnce(); s.record.Installed {
		t.Error("installed without a Bundle")
	}
}

// While a release waits for its turn to be rendered, its status stays for a while. After a restart, when the program does not know
// yet whether the values are current, it stays until the release has its turn.
func TestStatusWhileWaiting(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*scope)
		isNew  bool
		want   metav1.ConditionStatus
	}{
		"a restart":                 {func(*scope) {}, true, metav1.ConditionTrue},
		"a restart with a new spec": {func(s *scope) { s.release.Generation++ }, true, metav1.ConditionFalse},
		"another source":            {func(s *scope) { s.cluster.Labels = map[string]string{"tier": "web"} }, false, metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &renderer{gives: "a: b"})
			w.Inputs = &inputs.Reader{Now: w.clock.Now}
			if err := w.Create(t.Context(), scopeOf(t, ofCluster).release); err != nil {
				t.Fatal(err)
			}
			record := plan.Record{FleetCluster: "one"}
			reconcile := func(change func(*scope)) *metav1.Condition {
				s := scopeOf(t, ofCluster)
				s.turn = w.Turns.Of(client.ObjectKeyFromObject(s.release))
				defer s.turn.End()
				if err := w.Get(t.Context(), client.ObjectKeyFromObject(s.release), s.release); err != nil {
					t.Fatal(err)
				}
				target, _ := plan.TargetOf(s.proxy, s.release, record)
				s.deployment, s.record = w.deploymentOf(s, target.DownstreamResources...), record
				s.deployment.Status.NonModified = true
				change(s)
				err := w.conclude(t.Context(), s, record, w.writeValues(t.Context(), s))
				if err != nil {
					t.Fatal(err)
				}
				record = s.record
				return meta.FindStatusCondition(s.release.Status.Conditions, addonsv1.ReadyCondition)
			}
			for range 3 {
				reconcile(func(*scope) {})
			}
			if its := reconcile(func(*scope) {}); its == nil || its.Status != metav1.ConditionTrue {
				t.Fatalf("before: %v", its)
			}
			if test.isNew {
				w.rendered.Clear()
			}
			other := w.Turns.Of(types.NamespacedName{Namespace: "team", Name: "other"})
			other.Take()
			for _, want := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionTrue, test.want} {
				if its := reconcile(test.change); its.Status != want {
					t.Errorf("while it waits: %s, %s", its.Status, its.Message)
				}
				w.clock.Step(inputs.Patience / 2)
			}
			other.End()
			<-w.woken
			if its := reconcile(test.change); its.Status == metav1.ConditionFalse && test.isNew {
				t.Errorf("after its turn: %s", its.Message)
			}
		})
	}
}
