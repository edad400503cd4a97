package charts

import (
	"context"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// behind has a cache that shows BundleDeployments, Bundles or both as they were.
type behind struct {
	client.Client
	all     *fleetv1.BundleDeploymentList
	bundles *fleetv1.BundleList
}

func (b behind) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch its := list.(type) {
	case *fleetv1.BundleDeploymentList:
		if b.all != nil {
			b.all.DeepCopyInto(its)
			return nil
		}
	case *fleetv1.BundleList:
		if b.bundles != nil {
			b.bundles.DeepCopyInto(its)
			return nil
		}
	}
	return b.Client.List(ctx, list, options...)
}

// What Fleet has a Cluster read stays, though the watch of BundleDeployments does not show it yet.
func TestStagedBehind(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			s.bounded(download)
			all := &fleetv1.BundleDeploymentList{}
			if err := s.api.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			secret, one := s.valuesSecret(), cluster("one")
			change := func(value string) []string {
				s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: " + value) })
				s.change(one, func() { one.Labels["other"] = value })
				return s.writesValues()
			}
			expect(t, "changed", change("a"), []string{"create Secret team/hcp-web.for-all.1", "create ConfigMap team/hcp-web.for.fleet-one.1"})
			s.reach("fleet-one")
			s.Client = behind{Client: trimmed{s.api}, all: all}
			expect(t, "changed, and behind", change("b"), []string{"create Secret team/hcp-web.for-all.2", "create ConfigMap team/hcp-web.for.fleet-one.2", "delete ConfigMap team/hcp-web.for.fleet-one"})
			for _, its := range []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}} {
				name := map[bool]string{true: "hcp-web.for-all.1", false: "hcp-web.for.fleet-one.1"}
				_, isSecret := its.(*corev1.Secret)
				if !s.exists(its, name[isSecret]) {
					t.Errorf("%s is read, and gone", name[isSecret])
				}
			}
			s.Client = trimmed{s.api}
			s.reach("fleet-one", "fleet-two", "fleet-three")
			expect(t, "nobody reads the first", len(s.writesValues()), 3)
		})
	}
}

// What Fleet has not taken over in one namespace keeps nothing in another.
func TestStagedApart(t *testing.T) {
	s := newScene(t)
	proxy := s.everywhere()
	proxy.Spec.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	s.create(proxy)
	s.looks()
	other := &fleetv1.Bundle{}
	other.Namespace, other.Name = "other", plan.BundleName(proxy, "other", "")
	s.change(other, func() { other.Generation = 5 })
	one := cluster("one")
	s.change(one, func() { delete(one.Labels, "web") })
	s.looks()
	if s.exists(&corev1.ConfigMap{}, "hcp-web.for.fleet-one") {
		t.Error("values of a Cluster that is deselected stay")
	}
}

func namedResources(names ...string) (all []fleetv1.DownstreamResource) {
	for _, name := range names {
		all = append(all, fleetv1.DownstreamResource{Kind: plan.SecretKind, Name: name})
	}
	return all
}

// readAll has Clusters read all objects that values for all may be put into.
func (s *scene) readAll() {
	s.Helper()
	for i, name := range []string{"fleet-two", "fleet-three"} {
		its := deployment(s.bundle(), name)
		names := plan.SharedNames(key, "team")[4*i:]
		s.change(its, func() {
			its.Spec.Options.DownstreamResources, its.Spec.StagedOptions.DownstreamResources = namedResources(names[:2]...), namedResources(names[2:4]...)
		})
	}
}

// Where no place is left, the bound can be taken away, and values are mended.
func TestNoPlaceUnbounded(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			proxy, secret := s.bounded(download), s.valuesSecret()
			s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: other") })
			s.writesValues()
			s.readAll()
			s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: mended") })
			expect(t, "bounded", s.writesValues(), []string(nil))
			expect(t, "as it was", s.read("fleet-one")[0], "for-all.1 00-1.yaml")
			s.change(proxy, func() { proxy.Spec.Rollout, proxy.Spec.Version, proxy.Generation = nil, "1.1.0", 2 })
			expect(t, "not bounded any more", s.writesValues(), []string{
				"update Secret team/hcp-web.for-all.1", "patch HelmReleaseProxy team/web-one", "patch HelmReleaseProxy team/web-three", "patch HelmReleaseProxy team/web-two",
			})
			expect(t, "in its place", s.read("fleet-one")[0], "for-all.1 00-1.yaml")
			values := &corev1.Secret{}
			s.get("hcp-web.for-all.1", values)
			expect(t, "values", string(values.Data["00-1.yaml"]), "password: mended")
			bundle := s.bundle()
			if bundle.Spec.RolloutStrategy != nil || download == addonsv1.DownloadManager && bundle.Annotations[plan.VersionAnnotation] != "1.1.0" {
				t.Errorf("the rest is not written: %v %v", bundle.Spec.RolloutStrategy, bundle.Annotations)
			}
		})
	}
}

// Where no place is left, values that are public now stay secret, and are still read.
func TestNoPlaceOfKind(t *testing.T) {
	s := newScene(t)
	proxy, one := s.bounded(addonsv1.DownloadManager), cluster("one")
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string]string{"values.yaml": "public: yes"}})
	s.readAll()
	s.change(proxy, func() { proxy.Spec.ValuesFrom[0].Kind, proxy.Generation = "ConfigMap", 2 })
	s.change(one, func() { one.Labels["other"] = "x" })
	expect(t, "values", s.writesValues(), []string{"create ConfigMap team/hcp-web.for.fleet-one.1"})
	expect(t, "are read", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one.1 values-1.yaml"})
	if !s.exists(&corev1.Secret{}, "hcp-web.for-all") {
		t.Error("the Secret is gone")
	}
}

// A ConfigMap whose values are in a Secret of its name now goes, when nothing reads it any more.
func TestKindChanges(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		s := newScene(t)
		proxy := s.guarded(addonsv1.DownloadManager)
		proxy.Spec.ValuesFrom[0].Kind = "ConfigMap"
		s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string]string{"values.yaml": "public: yes"}})
		s.create(proxy)
		s.looks()
		s.deployAll()
		s.reach("fleet-one", "fleet-two", "fleet-three")
		s.looks()
		if restarts {
			s.restart()
		}
		s.change(proxy, func() { proxy.Spec.ValuesFrom[0].Kind, proxy.Generation = "Secret", 2 })
		expect(t, "secret now", s.writesValues(), []string{"create Secret team/hcp-web.for-all.1"})
		s.reach("fleet-one", "fleet-two")
		expect(t, "one still reads it", s.writesValues(), []string(nil))
		s.reach("fleet-three")
		expect(t, "nobody reads it", s.writesValues(), []string{"delete ConfigMap team/hcp-web.for-all"})
		expect(t, "it rests", s.writesValues(), []string(nil))
	}
}

// Values that were just made stay although nothing names them: the Bundle that does may not be in the cache.
func TestUnnamedValuesStayForAWhile(t *testing.T) {
	s := newScene(t)
	s.bounded(addonsv1.DownloadManager)
	now := time.Now().Truncate(time.Second)
	s.now = func() time.Time { return now }
	made := &corev1.ConfigMap{}
	s.get("hcp-web.for.fleet-one", made)
	made.ResourceVersion, made.UID, made.Name, made.CreationTimestamp = "", "", made.Name+".3", metav1.NewTime(now)
	s.create(made)
	if again := s.looksOnce(); again != unnamed {
		t.Errorf("again in %s", again)
	}
	expect(t, "just made", s.exists(&corev1.ConfigMap{}, made.Name), true)
	now = now.Add(unnamed)
	s.looks()
	expect(t, "later", s.exists(&corev1.ConfigMap{}, made.Name), false)
}

// What a Cluster keeps is not taken for missing because the cache does not show it.
func TestKeptValuesThatTheCacheLacks(t *testing.T) {
	s := newScene(t)
	s.bounded(addonsv1.DownloadManager)
	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "x" })
	s.looks()
	s.reach("fleet-one")
	s.looks()
	expect(t, "reads", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one.1 values-1.yaml"})
	s.change(one, func() { one.Spec.Paused = ptr.To(true) })
	v := &visit{key: key, clusters: []*selected{{Cluster: one, fleet: "fleet-one", kept: true}}}
	v.bundles = []fleetv1.Bundle{*s.bundle()}
	v.proxy = s.proxy()
	there, err := s.valuesIn(t.Context(), v, "team", nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "found", there[client.ObjectKey{Namespace: "team", Name: "hcp-web.for.fleet-one.1"}] != nil, true)
	in := v.input("team", there)
	expect(t, "kept", in.Targets[0].Kept, true)
}

// A Secret that was written, and no Bundle has named, goes: when the values are again as they were, or with
// the HelmChartProxy.
func TestStagedKilled(t *testing.T) {
	for _, test := range []struct{ gone, bounded bool }{{}, {gone: true}, {bounded: true}, {true, true}} {
		s := newScene(t)
		proxy, secret := s.bounded(addonsv1.DownloadManager), s.valuesSecret()
		if !test.bounded {
			s.change(proxy, func() { proxy.Spec.Rollout, proxy.Generation = nil, 2 })
			s.looks()
		}
		s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: other") })
		s.patching = func(object client.Object, _ client.Patch) error {
			if _, isBundle := object.(*fleetv1.Bundle); isBundle {
				return errRefused
			}
			return nil
		}
		if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err == nil {
			t.Error("the Bundle was written")
		}
		its := &corev1.Secret{}
		s.get("hcp-web.for-all.1", its)
		s.change(its, func() { its.OwnerReferences = nil }) // As it is in other namespaces.
		s.patching = nil
		s.restart()
		if test.gone {
			s.drop(proxy)
		} else {
			s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: sesame") })
		}
		s.looks()
		if s.exists(its, "hcp-web.for-all.1") {
			t.Errorf("%+v: it stays", test)
		}
	}
}
