package charts

import (
	"context"
	"fmt"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// forge makes an object look as if it were made for the HelmChartProxy, in a namespace in which that
// selects nothing.
func forge[T client.Object](object T, name string) T {
	object.SetNamespace("evil")
	object.SetName(name)
	object.SetLabels(plan.Labels(key))
	object.SetAnnotations(map[string]string{plan.ProxyAnnotation: key.String()})
	return object
}

func forgedTargets(names ...string) (targets []fleetv1.BundleTarget) {
	for _, name := range names {
		targets = append(targets, fleetv1.BundleTarget{Name: name, ClusterName: name})
	}
	return targets
}

// forgeries are what somebody may forge under names that are given, with targets.
func forgeries(proxy *addonsv1.HelmChartProxy, targets ...string) map[string]client.Object {
	name := plan.BundleName(proxy, "evil", "")
	bundle, op := forge(&fleetv1.Bundle{}, name), forge(&fleetv1.HelmOp{}, name)
	bundle.Spec.Targets = forgedTargets(targets...)
	op.Spec.Targets = forgedTargets(targets...)
	op.Spec.Helm = &fleetv1.HelmOptions{Repo: "https://evil.example.com", Chart: "evil"}
	op.Spec.HelmSecretName = plan.AccessName(proxy, "evil")
	return map[string]client.Object{
		"ConfigMap": forge(&corev1.ConfigMap{}, plan.ValuesName(key, "evil", "x")), "Bundle": bundle, "HelmOp": op,
	}
}

// inEvil lists what is in the namespace in which things are forged.
func (s *scene) inEvil(lists ...client.ObjectList) (all []string) {
	s.Helper()
	for _, list := range lists {
		if err := s.api.List(context.Background(), list, client.InNamespace("evil")); err != nil {
			s.Fatal(err)
		}
		_ = meta.EachListItem(list, func(object runtime.Object) error {
			all = append(all, describe(object.(client.Object)))
			return nil
		})
	}
	return all
}

func (s *scene) valuesSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string][]byte{"values.yaml": []byte("password: sesame")}}
}

// guarded is a HelmChartProxy with values and credentials that are nobody else's.
func (s *scene) guarded(download addonsv1.DownloadMode) *addonsv1.HelmChartProxy {
	s.create(s.valuesSecret())
	its := s.proxy()
	its.Spec.Download = download
	its.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "Secret", Name: "values"}}
	return its
}

// What looks as if it were ours has nothing written where no Cluster is selected.
func TestForgedNames(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		for name := range forgeries(&addonsv1.HelmChartProxy{}) {
			t.Run(string(download)+name, func(t *testing.T) {
				s := newScene(t)
				proxy := s.guarded(download)
				s.create(forgeries(proxy, "fleet-x")[name])
				s.create(proxy)
				s.looks()
				expect(t, "what is there", s.inEvil(&corev1.ConfigMapList{}, &corev1.SecretList{}, &fleetv1.BundleList{}, &fleetv1.HelmOpList{}), []string(nil))
				if !s.exists(&corev1.Secret{}, "hcp-web.for-all") {
					t.Error("the Clusters that are selected lack their values")
				}
			})
		}
	}
}

// A Fleet Cluster that is released keeps what it has, and gets nothing.
func TestForgedForReleased(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		for _, name := range []string{"Bundle", "HelmOp"} {
			t.Run(string(download)+name, func(t *testing.T) {
				s := newScene(t)
				released := fleetCluster("evil", "x")
				released.OwnerReferences, released.Annotations = nil, map[string]string{stamp.ReleasedAnnotation: "true"}
				s.create(released)
				proxy := s.guarded(download)
				forged := forgeries(proxy, "fleet-x", "fleet-y")[name]
				s.create(forged)
				s.create(proxy)
				s.looks()
				s.looks()
				expect(t, "what is there", s.inEvil(&corev1.SecretList{}, &corev1.ConfigMapList{}, &fleetv1.BundleList{}, &fleetv1.HelmOpList{}), []string{describe(forged)})
				want := forgeries(proxy, "fleet-x")[name]
				if err := s.api.Get(context.Background(), client.ObjectKeyFromObject(forged), forged); err != nil {
					t.Fatal(err)
				}
				want.SetResourceVersion(forged.GetResourceVersion())
				expect(t, "what was forged", forged, want)
				asked := len(s.asked())
				s.looks()
				expect(t, "what the repository is asked again", len(s.asked()), asked)
			})
		}
	}
}

func (s *scene) asked() []string {
	paths, _ := s.charts.Asked()
	return paths
}

// What cannot be cleared where no Cluster is selected is nobody's trouble.
func TestForgedStays(t *testing.T) {
	s := newScene(t)
	proxy := s.guarded(addonsv1.DownloadManager)
	s.create(forgeries(proxy)["ConfigMap"])
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: plan.SharedName(key, "evil")}})
	s.create(proxy)
	s.fails = func(object client.Object) bool { return object.GetNamespace() == "evil" }
	s.looksOnce()
	for range 2 {
		if again := s.looksOnce(); again != pollInterval {
			t.Errorf("again in %v", again)
		}
		expect(t, "condition", s.condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition), "True UpToDate ")
	}
	s.fails = nil
	s.looks()
	expect(t, "what is there", s.inEvil(&corev1.ConfigMapList{}), []string(nil))
}

// What cannot be cleared is no trouble either while the values cannot be read, or once the HelmChartProxy
// is gone.
func TestForgedIsNoTroubleOfTheHeldOrGone(t *testing.T) {
	for name, test := range map[string]func(*scene, *addonsv1.HelmChartProxy){
		"held": func(s *scene, proxy *addonsv1.HelmChartProxy) {
			s.change(proxy, func() {
				proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Kind: "ConfigMap", Name: "none"}}
				proxy.Generation = 2
			})
		},
		"gone": func(s *scene, proxy *addonsv1.HelmChartProxy) { s.drop(proxy) },
	} {
		for _, kind := range []string{"Bundle", "ConfigMap"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				s := newScene(t)
				proxy := s.guarded(addonsv1.DownloadManager)
				s.create(proxy)
				s.looks()
				forged := forgeries(proxy, "fleet-x", "fleet-y")[kind]
				if bundle, ok := forged.(*fleetv1.Bundle); ok { // Of the same release, so that it is taken for one of ours.
					bundle.Spec.DefaultNamespace, bundle.Spec.Helm = plan.ReleaseNamespace(proxy), &fleetv1.HelmOptions{ReleaseName: plan.ReleaseName(proxy)}
				}
				s.create(forged)
				test(s, proxy)
				tried := 0
				s.fails = func(object client.Object) bool {
					if object.GetNamespace() != "evil" {
						return false
					}
					tried++
					return true
				}
				for range 3 {
					if again := s.looksOnce(); again != pollInterval {
						t.Errorf("again in %v", again)
					}
				}
				if tried == 0 {
					t.Error("nothing was tried")
				}
				s.fails = nil
				s.looks()
				expect(t, "what is there", s.inEvil(&fleetv1.BundleList{}, &corev1.ConfigMapList{}), []string(nil))
			})
		}
	}
}

// What is forged takes neither much memory nor much time.
func TestForgedSize(t *testing.T) {
	var names []string
	for i := range 50000 {
		names = append(names, fmt.Sprintf("cluster-%d", i))
	}
	for name, want := range map[string]int{"other": 0, "hcp-other": plan.MostTargets} {
		bundle, op := forge(&fleetv1.Bundle{}, name), forge(&fleetv1.HelmOp{}, name)
		bundle.Spec.Targets, op.Spec.Targets = forgedTargets(names...), forgedTargets(names...)
		for _, object := range []client.Object{bundle, op} {
			if _, err := Trim(object); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, "targets of Bundle "+name, []int{len(bundle.Spec.Targets), cap(bundle.Spec.Targets)}, []int{want, want})
		expect(t, "targets of HelmOp "+name, []int{len(op.Spec.Targets), cap(op.Spec.Targets)}, []int{want, want})
	}
	proxy := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	its := forge(&fleetv1.Bundle{}, plan.BundleName(proxy, "evil", "x"))
	for want, targets := range map[bool][]string{true: {"x"}, false: {"x", "y"}} {
		its.Spec.Targets = forgedTargets(targets...)
		expect(t, "is of one Cluster", plan.IsBundleName(proxy, its), want)
	}
}

// counting counts what is read past the cache.
type counting struct {
	client.Reader
	gets int
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	c.gets++
	return c.Reader.Get(ctx, key, object, options...)
}

// An annotation that names thousands of Secrets costs a few requests, of a HelmChartProxy that is there and
// of one that is not.
func TestForgedFormerAccess(t *testing.T) {
	for _, exists := range []bool{true, false} {
		s := newScene(t)
		proxy := s.proxy()
		if exists {
			s.create(proxy)
			s.looks()
		}
		for _, object := range forgeries(proxy) {
			if _, isConfigMap := object.(*corev1.ConfigMap); isConfigMap {
				continue
			}
			base := strings.TrimRight(plan.AccessName(proxy, "evil"), "0123456789abcdef")
			var names []string
			for i := range 5000 {
				names = append(names, fmt.Sprintf("%s%08x", base, i), fmt.Sprintf("%s%x", base, i))
			}
			annotations := object.GetAnnotations()
			annotations[plan.FormerAnnotation] = strings.Join(names, " ")
			object.SetAnnotations(annotations)
			object.SetFinalizers([]string{"evil.example.com/stay"})
			s.create(object)
		}
		live := &counting{Reader: s.api}
		s.live = live
		if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		if live.gets > 100 {
			t.Errorf("%v: %d requests", exists, live.gets)
		}
	}
}

// asking is a reader past the cache that notes what it reads whole.
type asking struct {
	client.Reader
	whole []string
}

func (a *asking) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	a.whole = append(a.whole, key.String())
	return a.Reader.Get(ctx, key, object, options...)
}

func (a *asking) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*metav1.PartialObjectMetadataList); !ok {
		a.whole = append(a.whole, fmt.Sprintf("%T", list))
	}
	return a.Reader.List(ctx, list, options...)
}

// Past the cache it reads whole only those BundleDeployments that belong to a Bundle and have changed
// since the cache saw them: anyone can label others like them, in any number and size.
func TestForgedDeploymentsAreNotRead(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	deployments := s.deployAll()
	for i := range 3 {
		forged := deployments["fleet-one"].DeepCopy()
		forged.Namespace, forged.Name, forged.ResourceVersion = "evil", fmt.Sprintf("forged-%d", i), ""
		s.create(forged)
	}
	bundles, err := s.bundlesOf(t.Context(), key, proxy)
	if err != nil {
		t.Fatal(err)
	}
	v := &visit{key: key, bundles: bundles}
	if err := s.lookAtDeployments(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	changed := deployments["fleet-two"]
	s.change(changed, func() {
		changed.Spec.Options.DownstreamResources = []fleetv1.DownstreamResource{{Kind: "ConfigMap", Name: "hcp-new"}}
	})
	live := &asking{Reader: s.api}
	s.live = live
	if err := s.askDeployments(t.Context(), v, "team"); err != nil {
		t.Fatal(err)
	}
	expect(t, "read whole", live.whole, []string{client.ObjectKeyFromObject(changed).String()})
	expect(t, "deployments", len(v.deployments), 3)
	expect(t, "what is known of the changed one", readBy(v.deployments[deploymentKey{"team", "fleet-two"}]), []string{"hcp-new"})
}
