package charts

import (
	"context"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/settings"
)

// deployAll makes what Fleet makes of the Bundle for each Cluster, ready.
func (s *scene) deployAll() map[string]*fleetv1.BundleDeployment {
	s.Helper()
	all := map[string]*fleetv1.BundleDeployment{}
	for _, target := range s.bundle().Spec.Targets {
		all[target.ClusterName] = deployment(s.bundle(), target.ClusterName)
		s.create(all[target.ClusterName])
	}
	return all
}

// Nothing is up to date before Fleet has taken it over.
func TestTaken(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			proxy.Spec.Download = download
			s.create(proxy)
			s.looksOnce()
			kind := "Bundle"
			if download == addonsv1.DownloadAgent {
				kind = "HelmOp"
				s.fleet()
			}
			not := "Fleet has not taken " + kind + " " + bundleName + " over yet"
			want := "False HelmReleaseProxySpecsUpdating " + not
			expect(t, "just made", s.condition("HelmReleaseProxySpecsUpToDate"), want)
			s.deployAll()
			s.looks()
			expect(t, "taken over", s.condition("Ready"), "True Ready ")

			s.change(proxy, func() { proxy.Spec.Options.Atomic, proxy.Generation = true, 2 })
			s.looksOnce()
			expect(t, "just changed", s.condition("Ready"), want)
			if download == addonsv1.DownloadAgent {
				s.fleet()
			}
			made := s.bundle()
			s.change(made, func() { made.Generation, made.Status.ObservedGeneration = 3, 2 })
			s.looks()
			expect(t, "Fleet is behind", s.condition("Ready"), want)
			s.change(made, func() { made.Status.ObservedGeneration = 3 })
			s.looks()
			expect(t, "and no more", s.condition("Ready"), "True Ready ")
		})
	}
}

// A release is not called ready while it reads the values before, whatever the rollout is bounded by.
func TestReadersOfOldValues(t *testing.T) {
	s := newScene(t)
	proxy := s.guarded(addonsv1.DownloadManager)
	proxy.Spec.ValuesTemplate = `name: {{ .Cluster.metadata.labels.other | default "none" }}`
	s.create(proxy)
	s.looks()
	s.deployAll()
	s.reach("fleet-one", "fleet-two", "fleet-three")
	s.looks()
	expect(t, "at first", s.condition("Ready"), "True Ready ")

	const not = ": Fleet's agent has not deployed this yet"
	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "y" })
	s.looks()
	expect(t, "its own values", s.condition("Ready"), "False HelmReleasePending team/one"+not)
	s.reach("fleet-one")
	s.looks()
	expect(t, "when Fleet has handed them on", s.condition("Ready"), "True Ready ")

	source := s.valuesSecret()
	s.change(source, func() { source.Data["values.yaml"] = []byte("password: other") })
	s.looks()
	expect(t, "those of all", s.condition("Ready"), "False HelmReleasePending team/one"+not+"; team/three"+not+"; team/two"+not)
	s.reach("fleet-one", "fleet-two", "fleet-three")
	s.looks()
	expect(t, "when they are handed on, too", s.condition("Ready"), "True Ready ")
}

// Values that are not wanted any more leave the object that all Clusters read, and it is written once.
func TestValuesGo(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	proxy.Spec.ValuesTemplate = ""
	for _, name := range []string{"a", "b"} {
		its := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Data: map[string][]byte{plan.ValuesKey: []byte("password: " + name)}}
		s.create(its)
		proxy.Spec.ValuesFrom = append(proxy.Spec.ValuesFrom, addonsv1.ValuesReference{Kind: plan.SecretKind, Name: name})
	}
	s.create(proxy)
	s.looks()
	s.deployAll()
	s.looks()
	s.change(proxy, func() { proxy.Spec.ValuesFrom, proxy.Generation = proxy.Spec.ValuesFrom[:1], 2 })
	s.looks() // It comes to rest.
	values := &corev1.Secret{}
	if err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "hcp-web.for-all.1"}, values); err != nil {
		t.Fatal(err)
	}
	for key, value := range values.Data {
		if string(value) != "password: a" {
			t.Errorf("%s is still %s", key, value)
		}
	}
	expect(t, "keys", len(values.Data), 1)
}

func TestPace(t *testing.T) {
	now := time.Now()
	p := newPace()
	expect(t, "nobody has looked", p.left(key, now), time.Duration(0))
	p.begin(key, now)
	expect(t, "during the first", p.left(key, now), time.Duration(0))
	p.end(key, 10*time.Millisecond, now)
	expect(t, "after a short look", p.left(key, now), 40*time.Millisecond)
	now = now.Add(time.Second)
	expect(t, "a while later", p.left(key, now), time.Duration(0))
	p.begin(key, now)
	expect(t, "during the next", p.left(key, now), 50*time.Millisecond)
	p.end(key, time.Minute, now)
	expect(t, "after a long look", p.left(key, now), longestRest)
	p.end(types.NamespacedName{Name: "other"}, time.Millisecond, now.Add(2*time.Hour))
	expect(t, "what is over is forgotten", len(p.all), 1)
}

// News of what has been made waits, and is one look then.
func TestPaced(t *testing.T) {
	p := newPace()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	events := p.paced(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request(key)} })
	news := event.UpdateEvent{ObjectOld: &addonsv1.HelmReleaseProxy{}, ObjectNew: &addonsv1.HelmReleaseProxy{}}
	events.Update(t.Context(), news, queue)
	expect(t, "at once", queue.Len(), 1)
	got, _ := queue.Get()
	queue.Done(got)
	p.end(key, 50*time.Millisecond, time.Now())
	for range 10 {
		events.Update(t.Context(), news, queue)
	}
	expect(t, "not yet", queue.Len(), 0)
	begin := time.Now()
	got, _ = queue.Get()
	queue.Done(got)
	if waited := time.Since(begin); waited < 100*time.Millisecond {
		t.Errorf("the next look was %s after the last, which took 50 ms", waited)
	}
	expect(t, "nothing else waits", queue.Len(), 0)
}

func TestNotOnlyStatus(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*addonsv1.HelmReleaseProxy)
		want   bool
	}{
		"its status":  {func(its *addonsv1.HelmReleaseProxy) { its.Status.Revision, its.ResourceVersion = 3, "2" }, false},
		"its spec":    {func(its *addonsv1.HelmReleaseProxy) { its.Generation = 2 }, true},
		"a label":     {func(its *addonsv1.HelmReleaseProxy) { its.Labels = map[string]string{"a": "b"} }, true},
		"a finalizer": {func(its *addonsv1.HelmReleaseProxy) { its.Finalizers = []string{peersReleaseFinalizer} }, true},
		"its end":     {func(its *addonsv1.HelmReleaseProxy) { its.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &addonsv1.HelmReleaseProxy{}
			before.Generation, before.ResourceVersion = 1, "1"
			after := before.DeepCopy()
			test.change(after)
			expect(t, "looked at", notOnlyStatus.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}), test.want)
		})
	}
}

// A look that waited for a repository says nothing of how long the next takes.
func TestPaceAfterALongWait(t *testing.T) {
	now := time.Now()
	p := newPace()
	p.end(key, 90*time.Second, now)
	now = now.Add(time.Minute)
	p.begin(key, now)
	expect(t, "during the next", p.left(key, now), 2*longestRest)
}

// What is kept of a Cluster is what it is worked out from: its version, and the settings.
func TestReadIsKept(t *testing.T) {
	m, in := newMemory(), &settings.InForce{Effect: "a"}
	cluster := &clusterv1.Cluster{}
	cluster.UID, cluster.ResourceVersion = "one", "1"
	read := func(what string) uint64 {
		t.Helper()
		digest, err := m.read(key, cluster, in)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return digest
	}
	first := read("first")
	m.put(key, cluster.UID, 7, []byte("values"))
	cluster.Labels = map[string]string{"a": "b"}
	expect(t, "the same version is not read again", read("again") == first, true)
	cluster.ResourceVersion = "2"
	labelled := read("labelled")
	expect(t, "another version is", labelled != first, true)
	in.Effect, in.Cluster.Exclude = "b", []string{"/Cluster/metadata/labels"}
	expect(t, "other settings, too", read("settings") != labelled, true)
	if values, found := m.get(key, cluster.UID, 7); !found || string(values) != "values" {
		t.Errorf("what was rendered is %q, %t", values, found)
	}
	m.keep(key, []*selected{{Cluster: &clusterv1.Cluster{}}})
	if _, found := m.get(key, cluster.UID, 7); found || len(m.all[key]) != 0 {
		t.Errorf("of a Cluster that is not selected any more is kept: %v", m.all[key])
	}
	if _, found := m.get(key, types.UID("two"), 0); found {
		t.Error("something is found of what was never rendered")
	}
}
