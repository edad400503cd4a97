package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/program"
)

// reconcilerOf returns a Reconciler whose inputs come from Bundles, and waits until they are read.
func reconcilerOf(t *testing.T, of *addonsv1.HelmChartProxy, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	failures := &sync.Map{}
	for _, its := range objects {
		its.SetUID(cmp.Or(its.GetUID(), "uid")) // As an API server does.
		failures.Store(client.ObjectKeyFromObject(its), "")
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, of)...).
		WithStatusSubresource(&addonsv1.HelmChartProxy{}, &addonsv1.HelmReleaseProxy{}).WithIndex(&addonsv1.HelmReleaseProxy{}, ByProxy, Index).Build()
	read := make(chan plan.Key, 1)
	r := &Reconciler{Store: store.New(c, c, "muster", clock.RealClock{}), Failures: failures, Now: time.Now, Recorder: events.NewFakeRecorder(10)}
	r.Inputs = &inputs.Reader{
		Live: c, Cached: c, Wake: func(key plan.Key, _ bool) { read <- key }, Now: time.Now,
		Check:  func(context.Context, string, []byte) error { return nil },
		Digest: func(context.Context, any) (string, error) { return "digest", nil },
	}
	if _, _, err := r.Inputs.Get(of); err == nil {
		t.Fatal("inputs are available before they are read")
	}
	<-read
	return r
}

// edited returns a HelmChartProxy in its second generation, with a release and a Bundle of its first.
func edited() (*addonsv1.HelmChartProxy, []client.Object) {
	of := proxyNamed("web")
	of.Generation, of.Finalizers, of.Spec.Version = 2, []string{plan.Finalizer}, "1.0.0"
	of.Spec.Credentials, of.Spec.TLSConfig, of.Spec.ValuesTemplate = nil, nil, "replicas: 5"
	chart := plan.Chart{Source: plan.SourceOf(of), Version: "1.0.0", Digest: "any"}
	plan.Default(of)
	have := wantedRelease(of, &inputs.Inputs{Chart: chart}, cluster, nil)
	have.Name, have.Generation, have.Status.ObservedGeneration = "web-one", 1, 1
	have.Annotations[plan.BundleAnnotation] = plan.BundleName(of, cluster, 0)
	have.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "one", Digest: "of replicas: 3", Installed: true}.String()
	SetConditions(&have.Status.Conditions, 1, plan.ReleaseConditions(plan.Trouble{}, plan.Release{Ready: true, Reason: "Ready"}), time.Now())
	bundle := plan.NewBundle(of, "team", plan.BundleName(of, cluster, 0), chart, "")
	bundle.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}}
	return of, []client.Object{have, bundle, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "one"}}}
}

func ready(t *testing.T, r *Reconciler, of *addonsv1.HelmChartProxy) *metav1.Condition {
	t.Helper()
	its := &addonsv1.HelmChartProxy{}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), its); err != nil {
		t.Fatal(err)
	}
	if _, err := r.reconcile(t.Context(), its); err != nil {
		t.Log(err)
	}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), its); err != nil {
		t.Fatal(err)
	}
	return meta.FindStatusCondition(its.Status.Conditions, addonsv1.ReadyCondition)
}

// After an edit, Ready is not True before every release has applied the edit, although none has changed its
// conditions yet.
func TestReadyAfterAnEdit(t *testing.T) {
	of, objects := edited()
	r := reconcilerOf(t, of, objects...)
	if got := ready(t, r, of); got.Status != metav1.ConditionFalse || got.Reason != addonsv1.HelmReleaseProxySpecsUpdatingReason {
		t.Errorf("before the release has seen it: %v", got)
	}
	in, _, err := r.Inputs.Get(of)
	if err != nil {
		t.Fatal(err)
	}
	saw(t, r, "web-one", in)
	if got := ready(t, r, of); got.Status != metav1.ConditionTrue {
		t.Errorf("after that: %v", got)
	}
}

// saw lets a release report the inputs.
func saw(t *testing.T, r *Reconciler, name string, in *inputs.Inputs) {
	t.Helper()
	release := &addonsv1.HelmReleaseProxy{}
	if err := r.Client.Get(t.Context(), plan.Key{Namespace: "team", Name: name}, release); err != nil {
		t.Fatal(err)
	}
	r.Inputs.Saw(release, in)
}

// The status that the program has written wakes it only in a rollout, and what others write always does.
func TestIsOwn(t *testing.T) {
	of, objects := edited()
	r := reconcilerOf(t, of, objects...)
	read := func() *addonsv1.HelmChartProxy {
		its := &addonsv1.HelmChartProxy{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), its); err != nil {
			t.Fatal(err)
		}
		return its
	}
	before := read()
	ready(t, r, of)
	after := read()
	if before.ResourceVersion == after.ResourceVersion || !r.IsOwn(before, after) {
		t.Errorf("the update from %s to %s is not the program's own", before.ResourceVersion, after.ResourceVersion)
	}
	earlier, staged := before.DeepCopy(), after.DeepCopy()
	earlier.ResourceVersion = "1"
	staged.Spec.Rollout = &addonsv1.RolloutStrategy{}
	theirs := after.DeepCopy()
	theirs.Status.Conditions = nil
	if err := r.Status().Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	for name, update := range map[string][2]client.Object{
		"in a rollout": {before, staged}, "by others": {after, theirs}, "by others and then its own": {earlier, after},
	} {
		if r.IsOwn(update[0], update[1]) {
			t.Errorf("%s: it counts as the program's own", name)
		}
	}
	// The cache may show the earlier status to the next reconcile, which then finds nothing to write.
	r.Managed = &Managed{Reader: r.Client}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(of)}); err == nil {
		t.Error("there is a CRD")
	}
	if r.IsOwn(before, after) {
		t.Error("a reconcile has begun since: the update counts as the program's own")
	}
}

// Trouble of one release names its Cluster, and does not hide a change that releases have yet to take over: the hold of an
// upgrade waits for the change, and not for other Clusters.
func TestTroubleOfOneRelease(t *testing.T) {
	for name, change := range map[string]func(*Reconciler, *addonsv1.HelmReleaseProxy, *fleetv1.Bundle){
		"Fleet is behind": func(_ *Reconciler, _ *addonsv1.HelmReleaseProxy, its *fleetv1.Bundle) { its.Generation = 2 },
		"the Bundle cannot be written": func(r *Reconciler, _ *addonsv1.HelmReleaseProxy, its *fleetv1.Bundle) {
			r.Failures.Store(client.ObjectKeyFromObject(its), "no")
		},
		"the release is reinstalled": func(_ *Reconciler, its *addonsv1.HelmReleaseProxy, _ *fleetv1.Bundle) {
			its.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		},
		"the release belongs to others": func(_ *Reconciler, its *addonsv1.HelmReleaseProxy, _ *fleetv1.Bundle) { its.OwnerReferences = nil },
	} {
		of, objects := edited()
		there := &Reconciler{Failures: &sync.Map{}}
		change(there, objects[0].(*addonsv1.HelmReleaseProxy), objects[1].(*fleetv1.Bundle))
		if name == "the release belongs to others" {
			other := objects[0].DeepCopyObject().(*addonsv1.HelmReleaseProxy)
			other.Name = plan.ReleaseProxyNames(client.ObjectKeyFromObject(of), cluster)[1]
			objects = append(objects, other)
		}
		second := wantedRelease(of, &inputs.Inputs{Chart: plan.Chart{Version: "1.0.0"}}, plan.Key{Namespace: "team", Name: "two"}, nil)
		second.Name, second.Annotations[plan.BundleAnnotation] = "web-two", objects[1].GetName()
		objects = append(objects, second, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "two", UID: "two"}})
		r := reconcilerOf(t, of, objects...)
		r.Failures = there.Failures
		isUpToDate := func(says string) bool {
			its := ready(t, r, of)
			if its.Status != metav1.ConditionFalse || !strings.HasPrefix(its.Message, says) {
				t.Errorf("%s: it says %q, want %q", name, its.Message, says)
			}
			now := &addonsv1.HelmChartProxy{}
			if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), now); err != nil {
				t.Fatal(err)
			}
			return plan.IsUpToDate(now)
		}
		if isUpToDate("") {
			t.Errorf("%s: it is up to date before the releases have taken the change over", name)
		}
		in, _, err := r.Inputs.Get(of)
		if err != nil {
			t.Fatal(err)
		}
		for _, release := range []string{"web-one", "web-two"} {
			saw(t, r, release, in)
		}
		if !isUpToDate("team/one: ") {
			t.Errorf("%s: the other Cluster waits for it", name)
		}
	}
}

// A HelmChartProxy that was Ready stays Ready when the program restarts. One whose release on a Cluster is not, says the same as
// before.
func TestReadyAfterARestart(t *testing.T) {
	for _, trouble := range []plan.Trouble{{}, {Reason: addonsv1.GetClusterFailedReason, Message: "there is no Cluster"}} {
		of, objects := edited()
		have := objects[0].(*addonsv1.HelmReleaseProxy)
		SetConditions(&have.Status.Conditions, 1, plan.ReleaseConditions(trouble, plan.Release{Ready: true, Reason: "Ready"}), time.Now())
		want := plan.ProxyConditions(plan.Trouble{}, "", []*addonsv1.HelmReleaseProxy{have})
		SetConditions(&of.Status.Conditions, 2, want, time.Now())
		of.Status.ObservedGeneration = 2
		if got := ready(t, reconcilerOf(t, of, objects...), of); got.Status != want[0].Status || got.Message != want[0].Message {
			t.Errorf("%v, want %v", got, want[0])
		}
	}
}

// silent answers no Get until the test ends.
type silent struct{ client.Reader }

func (silent) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// While the inputs are read, the conditions of the same generation stay, for a while. Those of an earlier one do not: the hold of an
// upgrade would take the change for done.
func TestConditionsWhileInputsAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		observed int64
		age      time.Duration
		want     metav1.ConditionStatus
		reason   string
	}{
		"of the same generation":           {2, 0, metav1.ConditionTrue, addonsv1.ReadyReason},
		"at the end of the patience":       {2, inputs.Patience - 1, metav1.ConditionTrue, addonsv1.ReadyReason},
		"after it":                         {2, inputs.Patience, metav1.ConditionUnknown, addonsv1.ReadingInputsReason},
		"of an earlier generation":         {1, 0, metav1.ConditionFalse, addonsv1.HelmReleaseProxySpecsUpdatingReason},
		"of an earlier one, after a while": {1, inputs.Patience, metav1.ConditionFalse, addonsv1.HelmReleaseProxySpecsUpdatingReason},
	} {
		of, objects := edited()
		of.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
		SetConditions(&of.Status.Conditions, test.observed, plan.ProxyConditions(plan.Trouble{}, "", nil), time.Now())
		of.Status.ObservedGeneration = test.observed
		r := reconcilerOf(t, of, objects...)
		now := clocktesting.NewFakeClock(time.Now())
		r.Now, r.Inputs = now.Now, &inputs.Reader{Live: silent{}, Now: now.Now, Wake: func(plan.Key, bool) {}}
		if _, _, err := r.Inputs.Get(of); !errors.Is(err, inputs.ErrReading) {
			t.Fatal(err)
		}
		now.Step(test.age)
		its := ready(t, r, of)
		if its.Status != test.want || its.Reason != test.reason {
			t.Errorf("%s: %v", name, its)
		}
		got := &addonsv1.HelmChartProxy{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), got); err != nil || plan.IsUpToDate(got) != (test.want == metav1.ConditionTrue) {
			t.Errorf("%s: up to date is %t (%v)", name, plan.IsUpToDate(got), err)
		}
	}
}

// A HelmReleaseProxy that lost its owner, or belongs to others, must not be mistaken for a lagging cache: the
// status reports it.
func TestTakenReleases(t *testing.T) {
	for name, change := range map[string]func(*addonsv1.HelmReleaseProxy){
		"without its owner": func(its *addonsv1.HelmReleaseProxy) { its.OwnerReferences = nil },
		"of others":         func(its *addonsv1.HelmReleaseProxy) { its.OwnerReferences, its.Spec.ClusterRef.Name = nil, "other" },
	} {
		of, objects := edited()
		change(objects[0].(*addonsv1.HelmReleaseProxy))
		other := objects[0].DeepCopyObject().(*addonsv1.HelmReleaseProxy)
		other.Name = plan.ReleaseProxyNames(client.ObjectKeyFromObject(of), cluster)[1]
		r := reconcilerOf(t, of, append(objects, other)...)
		if got := ready(t, r, of); got.Status != metav1.ConditionFalse || got.Reason != addonsv1.HelmReleaseProxyCreationFailedReason {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A Bundle that still has targets, because a Cluster moves to another management cluster, outlives its HelmChartProxy. The
// Bundle controller learns that it was deleted, and not moved.
func TestMovedClustersKeepTheirBundle(t *testing.T) {
	of, _ := edited()
	for name, test := range map[string]struct {
		targets                []fleetv1.BundleTarget
		isMoved, stays, marked bool
	}{
		"a target":                    {[]fleetv1.BundleTarget{{Name: "moved", ClusterName: "moved"}}, false, true, true},
		"none":                        {nil, false, false, false},
		"the HelmChartProxy is moved": {[]fleetv1.BundleTarget{{Name: "moved", ClusterName: "moved"}}, true, true, false},
	} {
		bundle := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Source: plan.SourceOf(of), Version: "1.0.0"}, "")
		bundle.Spec.Targets = test.targets
		r := reconcilerOf(t, of.DeepCopy(), bundle)
		deleted := &addonsv1.HelmChartProxy{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), deleted); err != nil {
			t.Fatal(err)
		}
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		if test.isMoved {
			metav1.SetMetaDataAnnotation(&deleted.ObjectMeta, clusterctlv1.DeleteForMoveAnnotation, "")
		}
		if err := r.finalize(t.Context(), deleted, nil); err != nil {
			t.Fatal(err)
		}
		its, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(bundle))
		if err != nil || (its != nil) != test.stays || its != nil && metav1.HasAnnotation(its.ObjectMeta, plan.DeletedAnnotation) != test.marked {
			t.Errorf("%s: the Bundle is %v (%v)", name, its, err)
		}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), deleted); err != nil || len(deleted.Finalizers) > 0 {
			t.Errorf("%s: the HelmChartProxy has %v (%v)", name, deleted.Finalizers, err)
		}
	}
}

// A Bundle in another namespace, which its author can forge so that the policy refuses the mark, does not hold a
// HelmChartProxy.
func TestForgedBundlesHoldNothing(t *testing.T) {
	of, objects := edited()
	forged := plan.NewBundle(of, "evil", "hcp-evil", plan.Chart{Source: plan.SourceOf(of), Version: "1.0.0"}, "")
	forged.Finalizers = []string{"example.com/evil"}
	forged.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	r := reconcilerOf(t, of.DeepCopy(), append(objects, forged)...)
	refusing := interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if object.GetNamespace() == "evil" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "bundles"}, object.GetName(), errors.New("may target clusters by clusterName only"))
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	r.Store = store.New(refusing, refusing, "muster", clock.RealClock{})
	deleted := &addonsv1.HelmChartProxy{}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), deleted); err != nil {
		t.Fatal(err)
	}
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	if err := r.finalize(t.Context(), deleted, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), deleted); err != nil || len(deleted.Finalizers) > 0 {
		t.Errorf("the HelmChartProxy has %v (%v)", deleted.Finalizers, err)
	}
}

// What people see is written with the rest of the status, or once a second.
func TestDisplay(t *testing.T) {
	of, _ := edited()
	r := reconcilerOf(t, of)
	now := clocktesting.NewFakeClock(time.Now())
	r.Store = store.New(r.Client, r.Live, "muster", now)
	var releases []*addonsv1.HelmReleaseProxy
	clusters := make([]*clusterv1.Cluster, 3)
	for i := range clusters {
		clusters[i] = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("c", i)}}
		releases = append(releases, &addonsv1.HelmReleaseProxy{})
	}
	report := func(version string, trouble plan.Trouble, ready int) (shown string, again time.Duration) {
		t.Helper()
		for i := range ready {
			releases[i].Status.Conditions = []metav1.Condition{{Type: addonsv1.HelmReleaseReadyCondition, Status: metav1.ConditionTrue}}
		}
		got := &addonsv1.HelmChartProxy{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(of), got); err != nil {
			t.Fatal(err)
		}
		result, err := r.report(t.Context(), got, state{trouble: trouble, clusters: clusters, releases: releases, version: version})
		if err := cmp.Or(err, r.Get(t.Context(), client.ObjectKeyFromObject(of), got)); err != nil {
			t.Fatal(err)
		}
		return got.Status.Display.Version + " " + got.Status.Display.Clusters, result.RequeueAfter
	}
	trouble := plan.Trouble{Reason: addonsv1.HelmReleaseProxySpecsUpdatingReason, Message: "busy"}
	for _, step := range []struct {
		version string
		trouble plan.Trouble
		ready   int
		shown   string
		again   time.Duration
		then    time.Duration
	}{
		{"1.0.0", trouble, 0, "1.0.0 0/3", 0, time.Minute},
		{"1.1.0", trouble, 0, "1.1.0 0/3", 0, 0},
		{"1.2.0", trouble, 0, "1.1.0 0/3", time.Second, time.Second},
		{"1.2.0", trouble, 0, "1.2.0 0/3", 0, 0},
		{"", plan.Trouble{}, 3, "1.2.0 3/3", 0, 0},
	} {
		if shown, again := report(step.version, step.trouble, step.ready); shown != step.shown || again != step.again {
			t.Errorf("%+v: %s, again after %s", step, shown, again)
		}
		now.Step(step.then)
	}
}
