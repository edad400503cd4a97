package helm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/program"
)

// A Cluster enqueues the HelmChartProxies that begin or cease to select it, and those whose rollout it may concern: a label
// moves it to another stage, and its stage does not wait for it while it is paused.
func TestClustersEnqueueTheirHelmChartProxies(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	of.Spec.ClusterSelector.MatchLabels = map[string]string{"web": "yes"}
	elsewhere := of.DeepCopy()
	elsewhere.Namespace = "other"
	e := &enqueuer{fake.NewClientBuilder().WithScheme(scheme).WithObjects(of, elsewhere).Build()}
	labeled := func(labels map[string]string) *clusterv1.Cluster {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", Labels: labels}}
	}
	selected := labeled(map[string]string{"web": "yes"})
	paused := selected.DeepCopy()
	paused.Generation, paused.Spec.Paused = 1, new(bool)
	reported := selected.DeepCopy()
	reported.Status.Phase = "Provisioned"
	for name, test := range map[string]struct {
		before, after *clusterv1.Cluster
		want          int
	}{
		"selected":         {labeled(nil), selected, 1},
		"no longer":        {selected, labeled(nil), 1},
		"never":            {labeled(nil), labeled(map[string]string{"web": "no"}), 0},
		"in another stage": {selected, labeled(map[string]string{"web": "yes", "tier": "canary"}), 1},
		"paused":           {selected, paused, 1},
		"its status":       {selected, reported, 0},
	} {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		if its := (event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); changed.Update(its) {
			later(0)(e.selecting).Update(t.Context(), its, queue)
		}
		if queue.Len() != test.want {
			t.Errorf("%s: %d are enqueued, want %d", name, queue.Len(), test.want)
		}
		queue.ShutDown()
	}
}

// A HelmReleaseProxy enqueues those of others for its release, unless it is forged for a Cluster of another namespace.
func TestRivalsEnqueueEachOther(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	of := func(namespace, name string) *addonsv1.HelmChartProxy {
		return &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	}
	release := func(of *addonsv1.HelmChartProxy, name string) *addonsv1.HelmReleaseProxy {
		its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name + "-one", UID: of.UID + "-one",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, addonsv1.GroupVersion.WithKind("HelmChartProxy"))}}}
		its.Spec.ClusterRef.Namespace, its.Spec.ClusterRef.Name = "team", "one"
		its.Spec.ReleaseNamespace, its.Spec.ReleaseName = "kube-system", name
		return its
	}
	a, b, platform, evil := of("team", "a"), of("team", "b"), of("platform", "a"), of("evil", "a")
	platform.Spec.NamespaceSelector = &metav1.LabelSelector{}
	forged := release(of("team", "nobody"), "ccm")
	e := &enqueuer{fake.NewClientBuilder().WithScheme(scheme).WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByCluster, proxy.ClusterIndex).WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByRelease, proxy.AskedIndex).
		WithObjects(a, b, platform, evil, release(a, "ccm")).Build()}
	for name, test := range map[string]struct {
		its  *addonsv1.HelmReleaseProxy
		want int
	}{
		"of this namespace":           {release(b, "ccm"), 1},
		"of one for all namespaces":   {release(platform, "ccm"), 1},
		"forged in another namespace": {release(evil, "ccm"), 0},
		"forged in this namespace":    {forged, 0},
		"for another release":         {release(b, "cni"), 0},
		"for the same HelmChartProxy": {release(a, "ccm"), 0},
	} {
		if got := e.othersOfRelease(t.Context(), test.its); len(got) != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for i := range proxy.MostAsking + 1 { // Without a HelmChartProxy, they do not count.
		orphan := release(evil, "ccm")
		orphan.Name = fmt.Sprintf("orphan-%d", i)
		if err := e.Reader.(client.Client).Create(t.Context(), orphan); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.othersOfRelease(t.Context(), release(b, "ccm")); len(got) != 1 {
		t.Errorf("beside forged ones, %v are woken", got)
	}
	for i := range proxy.MostAsking + 1 { // Otherwise each would read all, at each event.
		crowd := release(a, "ccm")
		crowd.Name = fmt.Sprintf("crowd-%d", i)
		if err := e.Reader.(client.Client).Create(t.Context(), crowd); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.othersOfRelease(t.Context(), release(b, "ccm")); len(got) > 0 {
		t.Errorf("one of a crowd wakes %d", len(got))
	}
}

// The program's cache keeps of a record what is read, however others pad it.
func TestCacheReadsRecords(t *testing.T) {
	record := plan.Record{FleetCluster: "one", Installed: true}
	its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		plan.RecordAnnotation: strings.Replace(record.String(), "{", `{"x":[`+strings.Repeat("[],", 3000)+`[]],`, 1),
	}}}
	options := (&Options{}).Cache()
	transform := options.DefaultTransform
	for object, of := range options.ByObject {
		if _, is := object.(*addonsv1.HelmReleaseProxy); is {
			transform = of.Transform
		}
	}
	if _, err := transform(its); err != nil || its.Annotations[plan.RecordAnnotation] != record.String() {
		t.Errorf("%d bytes are left (%v)", len(its.Annotations[plan.RecordAnnotation]), err)
	}
}

// Whoever enqueues an object when the program ends does not wait for a controller that has ended.
func TestSendEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		go send(ctx, make(chan event.GenericEvent), plan.Key{Namespace: "team", Name: "web"})
		end() // Otherwise, the bubble would not end.
	})
}

// A release whose turn has come is reconciled before all others.
func TestTurnsComeFirst(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	for _, name := range []string{"a", "b", "turn"} {
		queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}})
	}
	first.Generic(t.Context(), event.GenericEvent{Object: &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "turn"}}}, queue)
	if got, _ := queue.Get(); got.Name != "turn" {
		t.Errorf("%s comes first", got)
	}
}

// The first change of a Cluster reconciles at once, whichever handler hears of it. Those that follow within a pause reconcile
// once together.
func TestPauseBeginsWithTheSecondEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = time.Second
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		taken := func() int { // Whoever takes a request is done with it before the next event.
			synctest.Wait()
			count := queue.Len()
			for range count {
				request, _ := queue.Get()
				queue.Done(request)
			}
			return count
		}
		collect := later(pause)
		handlers := []handler.EventHandler{collect(itself), collect(itself)}
		send := func(by int, name string) {
			handlers[by].Create(t.Context(), event.CreateEvent{Object: &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}}, queue)
		}
		for i, step := range []struct {
			by   int
			name string // empty for no event
			want int
			then time.Duration
		}{
			{0, "a", 1, pause / 2},
			{1, "a", 0, pause / 4}, // The second one within a pause.
			{0, "b", 1, 0},
			{0, "a", 0, pause / 4},
			{0, "", 1, pause / 2}, // Both together, at the end of the pause.
			{1, "a", 0, pause / 2},
			{0, "", 1, pause},
			{1, "a", 1, 0}, // Nothing has happened for a pause.
		} {
			if step.name != "" {
				send(step.by, step.name)
			}
			if got := taken(); got != step.want {
				t.Errorf("step %d: %d are enqueued, want %d", i, got, step.want)
			}
			time.Sleep(step.then)
		}
	})
}
