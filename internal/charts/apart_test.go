package charts

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// What somebody forges in another namespace stops nothing.
func TestForgedElsewhere(t *testing.T) {
	s := newScene(t)
	forged := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{
		Namespace: "evil", Name: "any", Labels: plan.Labels(key), Finalizers: []string{"example.com/stays"},
		Annotations: map[string]string{plan.ProxyAnnotation: key.String()},
	}}
	s.create(forged)
	s.create(s.proxy())
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-three fleet-two")
	if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(forged), forged); err != nil || forged.DeletionTimestamp != nil {
		t.Errorf("what is not ours was touched: %v", err)
	}
}

// What is said of a release is believed where Fleet says it only: in the Fleet Cluster's own
// namespace.
func TestForgedDeployment(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	for _, where := range []struct{ its, cluster string }{{"evil", "team"}, {stamp.FleetNamespace("evil", "fleet-one"), "evil"}, {stamp.FleetNamespace("team", "fleet-two"), "team"}} {
		forged := deployment(s.bundle(), "fleet-one")
		forged.Namespace, forged.Labels[fleetv1.ClusterNamespaceLabel] = where.its, where.cluster
		forged.Status.Release = "default/web:666"
		s.create(forged)
	}
	expect(t, "after forged ones", s.looks(), []string(nil))
	s.create(deployment(s.bundle(), "fleet-one"))
	expect(t, "after Fleet's own", s.looks(), []string{"patch status HelmReleaseProxy team/web-one", "patch status HelmChartProxy team/web"})
}

// A Secret that a Bundle names is deleted only if it is ours.
func TestForeignSecret(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	bundle := s.bundle()
	s.change(bundle, func() {
		bundle.Spec.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "Secret", Name: "repository"}}
	})
	s.looks()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: "repository"}, &corev1.Secret{}); err != nil {
		t.Errorf("somebody's Secret: %v", err)
	}
}

// A Cluster that loses its pin keeps its release; one that is moved away does, even when the
// HelmChartProxy goes after it.
func TestLostAndMoved(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	one, two := cluster("one"), fleetCluster("team", "two")
	s.change(one, func() { delete(one.Annotations, stamp.ClusterNameAnnotation) })
	s.looks()
	expect(t, "after the pin is lost", s.targets(), "fleet-one fleet-three fleet-two")
	s.release("two")
	s.looks()
	if owners := s.bundle().OwnerReferences; len(owners) > 0 {
		t.Errorf("the Bundle goes with the HelmChartProxy: %v", owners)
	}
	s.drop(cluster("two"))
	s.looks()
	expect(t, "after the move", s.targets(), "fleet-one fleet-three fleet-two")
	s.drop(proxy)
	s.looks()
	expect(t, "after the HelmChartProxy is gone", s.targets(), "fleet-two")
	s.drop(two)
	s.looks()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: bundleName}, &fleetv1.Bundle{}); !apierrors.IsNotFound(err) {
		t.Errorf("a leftover: %v", err)
	}
}

// While the repository is down, Clusters come and go all the same.
func TestRepositoryDown(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	s.charts.Close()
	s.restart()
	four := cluster("four")
	four.Labels["other"] = "x"
	s.create(fleetCluster("team", "four"))
	s.create(four)
	s.looks()
	expect(t, "targets", s.targets(), "fleet-four fleet-one fleet-three fleet-two")
}

// What the selected Clusters are to get is not known: whoever is not selected any more is let go.
func TestDeselectedWhileHeld(t *testing.T) {
	for name, hold := range map[string]func(*addonsv1.HelmChartProxySpec){
		"no chart": func(spec *addonsv1.HelmChartProxySpec) { spec.Version = "7.0.0" },
		"no values": func(spec *addonsv1.HelmChartProxySpec) {
			spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "none"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			s.create(proxy)
			s.looks()
			before := s.bundle()
			s.change(proxy, func() { hold(&proxy.Spec); proxy.Generation = 2 })
			s.looks()
			expect(t, "held", s.bundle().Spec, before.Spec)
			one := cluster("one")
			s.change(one, func() { delete(one.Labels, "web") })
			s.looks()
			expect(t, "targets", s.targets(), "fleet-three fleet-two")
			after := s.bundle()
			after.Spec.Targets = before.Spec.Targets
			expect(t, "the rest", after.Spec, before.Spec)
			s.change(proxy, func() { proxy.Spec.ClusterSelector.MatchLabels["none"] = "yes" })
			s.looks()
			if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(before), before); !apierrors.IsNotFound(err) {
				t.Errorf("after all are deselected: %v", err)
			}
		})
	}
}

// Somebody has an object of our name: it is said.
func TestNameTaken(t *testing.T) {
	s := newScene(t)
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web.for.fleet-one"}})
	s.create(s.proxy())
	s.writes = nil
	if got := s.looksOnce(); got != pollInterval {
		t.Errorf("again in %v", got)
	}
	if got := s.condition("Ready"); !strings.Contains(got, "ConfigMap team/hcp-web.for.fleet-one exists and is not Muster's") {
		t.Error(got)
	}
	if slices.Contains(s.writes, "patch ConfigMap team/hcp-web.for.fleet-one") {
		t.Error("it is overwritten")
	}
}

func TestMirrorNames(t *testing.T) {
	a := plan.MirrorName(plan.Key{Namespace: "n", Name: "web"}, plan.Key{Namespace: "b", Name: "a"})
	b := plan.MirrorName(plan.Key{Namespace: "n", Name: "web"}, plan.Key{Namespace: "n", Name: "a-b"})
	if a == b {
		t.Errorf("two are named %s", a)
	}
}

// everywhere selects Clusters in all namespaces, and adds one in another.
func (s *scene) everywhere() *addonsv1.HelmChartProxy {
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	other := cluster("other")
	other.Namespace = "other"
	s.create(other)
	s.create(fleetCluster("other", "other"))
	proxy := s.proxy()
	proxy.Spec.NamespaceSelector = &metav1.LabelSelector{}
	return proxy
}

// What is wrong in one namespace holds up no other, and is said of its Clusters.
func TestOneNamespaceFails(t *testing.T) {
	for _, failing := range []string{"other", "team"} {
		s := newScene(t)
		s.create(s.everywhere())
		s.fails = func(object client.Object) bool {
			_, isValues := object.(*corev1.ConfigMap)
			return isValues && object.GetNamespace() == failing
		}
		if _, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key}); err == nil {
			t.Error("it is not tried again")
		}
		var bundles fleetv1.BundleList
		if err := s.api.List(context.Background(), &bundles); err != nil || len(bundles.Items) != 1 || bundles.Items[0].Namespace == failing {
			t.Errorf("%s fails: %d Bundles, %v", failing, len(bundles.Items), err)
		}
		got := s.condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition)
		if !strings.HasPrefix(got, "False HelmReleaseProxyCreationFailed "+failing+"/") || !strings.Contains(got, errRefused.Error()) ||
			strings.Contains(got, map[string]string{"other": "team/one", "team": "other/other"}[failing]) {
			t.Errorf("%s fails: %s", failing, got)
		}
		s.fails = nil
		s.looks()
		expect(t, "when it works again", s.condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition), "True UpToDate ")
	}
}

// A Namespace that is gone, or that the cache does not show yet, selects nothing, and stops nothing.
func TestMissingNamespace(t *testing.T) {
	s := newScene(t)
	proxy := s.everywhere()
	s.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	s.create(proxy)
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-three fleet-two")
	var bundles fleetv1.BundleList
	if err := s.api.List(context.Background(), &bundles); err != nil || len(bundles.Items) != 1 {
		t.Errorf("%d Bundles, %v", len(bundles.Items), err)
	}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	s.looks()
	if err := s.api.List(context.Background(), &bundles); err != nil || len(bundles.Items) != 2 {
		t.Errorf("once it is there: %d Bundles, %v", len(bundles.Items), err)
	}
}

// Who moves a HelmChartProxy to another management cluster pauses it: nothing is deleted with it.
func TestDisownOnPause(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		s := newScene(t)
		proxy := s.proxy()
		proxy.Spec.Download = download
		proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "values"}}
		s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string][]byte{"values.yaml": []byte("a: 1")}})
		s.create(proxy)
		s.looks()
		kind := map[addonsv1.DownloadMode]string{addonsv1.DownloadManager: "Bundle", addonsv1.DownloadAgent: "HelmOp"}[download]
		want := []string{
			kind + " team/" + bundleName,
			"ConfigMap team/hcp-web.for.fleet-one", "ConfigMap team/hcp-web.for.fleet-three", "ConfigMap team/hcp-web.for.fleet-two", "Secret team/hcp-web.for-all",
		}
		if download == addonsv1.DownloadAgent {
			want = append(want, "Secret team/"+s.accessName())
		}
		slices.Sort(want[1:])
		expect(t, "owned", s.owned(), want)
		s.change(proxy, func() { proxy.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
		for _, write := range s.looks() {
			if !strings.HasPrefix(write, "patch ") || strings.HasPrefix(write, "patch Secret") {
				t.Errorf("%s, of what is paused", write)
			}
		}
		expect(t, "while paused", s.owned(), []string(nil))
		s.change(proxy, func() { proxy.Annotations = nil })
		s.looks()
		expect(t, "when it goes on", s.owned(), want)
	}
}

// owned lists what goes with a HelmChartProxy: what it owns, and nothing else that stays.
func (s *scene) owned() (all []string) {
	for _, list := range []client.ObjectList{&fleetv1.BundleList{}, &fleetv1.HelmOpList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		if err := s.api.List(context.Background(), list); err != nil {
			s.Fatal(err)
		}
		_ = meta.EachListItem(list, func(object runtime.Object) error {
			its := object.(client.Object)
			isKept := slices.ContainsFunc(withoutProxies(its.GetOwnerReferences()), func(owner metav1.OwnerReference) bool {
				return !slices.Contains(all, owner.Kind+" team/"+owner.Name)
			})
			if isOwned(its) && !isKept {
				all = append(all, describe(its))
			}
			return nil
		})
	}
	return all
}

// While a Cluster is moved, nothing that it reads goes with the HelmChartProxy, also of what is not
// written then: values of a Cluster that is paused, and whatever is held.
func TestDisownWhileMoved(t *testing.T) {
	for name, hold := range map[string]func(*addonsv1.HelmChartProxySpec){
		"all is well": func(*addonsv1.HelmChartProxySpec) {},
		"no chart":    func(spec *addonsv1.HelmChartProxySpec) { spec.Version = "7.0.0" },
		"no values": func(spec *addonsv1.HelmChartProxySpec) {
			spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "none"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.proxy()
			s.create(proxy)
			s.looks()
			s.change(proxy, func() { hold(&proxy.Spec); proxy.Generation = 2 })
			s.looks()
			two := cluster("two")
			s.change(two, func() { two.Spec.Paused = ptr.To(true) })
			s.release("two")
			s.looks()
			expect(t, "owned", s.owned(), []string(nil))
		})
	}
}

// The name of a HelmReleaseProxy may be somebody's: it gets another one, and that one's stays.
func TestMirrorClash(t *testing.T) {
	s := newScene(t)
	other := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-one", Labels: map[string]string{addonsv1.HelmChartProxyLabel: "we"}}}
	other.Spec.ClusterRef.Namespace, other.Spec.ClusterRef.Name = "team", "b-one"
	s.create(other)
	s.create(s.proxy())
	s.looks()
	another := plan.OtherMirrorName(key, plan.Key{Namespace: "team", Name: "one"})
	its := &addonsv1.HelmReleaseProxy{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: another}, its); err != nil || its.Spec.ClusterRef.Name != "one" {
		t.Errorf("%s of %q: %v", another, its.Spec.ClusterRef.Name, err)
	}
	if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(other), its); err != nil || its.Spec.ClusterRef.Name != "b-one" || len(its.OwnerReferences) > 0 {
		t.Errorf("somebody's was touched: %v %v", its, err)
	}
	s.restart()
	expect(t, "the next look", s.looks(), []string(nil))
}

// What has taken the place of an object since the cache saw it is not deleted in its stead.
func TestReplacedMeanwhile(t *testing.T) {
	s := newScene(t)
	s.create(s.proxy())
	s.looks()
	for _, object := range []client.Object{s.bundle(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hcp-web.for.fleet-one"}}} {
		object.SetUID("of the one before")
		if err := s.remove(context.Background(), object); !apierrors.IsConflict(err) {
			t.Errorf("%s: %v", describe(object), err)
		}
	}
	expect(t, "the Bundle", s.targets(), "fleet-one fleet-three fleet-two")
}

func (s *scene) looksOnce() time.Duration {
	s.Helper()
	result, err := s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key})
	if err != nil {
		s.Fatal(err)
	}
	return result.RequeueAfter
}
