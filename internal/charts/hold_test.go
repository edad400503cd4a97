package charts

import (
	"slices"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// held has a HelmChartProxy carried out, and its values then be out of reach.
func (s *scene) held(change func(*addonsv1.HelmChartProxy)) {
	s.Helper()
	proxy := s.guarded(addonsv1.DownloadManager)
	change(proxy)
	s.create(proxy)
	s.looks()
	s.drop(s.valuesSecret())
}

// carried lists what was made that deploys, or is read by what does.
func (s *scene) carried() (all []string) {
	s.Helper()
	for _, list := range []client.ObjectList{&fleetv1.BundleList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}} {
		if err := s.api.List(s.Context(), list, client.MatchingLabels(plan.Labels(key))); err != nil {
			s.Fatal(err)
		}
		switch typed := list.(type) {
		case *fleetv1.BundleList:
			for i := range typed.Items {
				all = append(all, describe(&typed.Items[i]))
			}
		case *corev1.SecretList:
			for i := range typed.Items {
				all = append(all, describe(&typed.Items[i]))
			}
		case *corev1.ConfigMapList:
			for i := range typed.Items {
				all = append(all, describe(&typed.Items[i]))
			}
		}
	}
	return all
}

// While its values cannot be read, nothing of a HelmChartProxy stays for Clusters that are not selected
// any more, whichever of its Bundles share a Secret, and though the program is killed right after.
func TestHeldLeavesNothing(t *testing.T) {
	for name, change := range map[string]func(*addonsv1.HelmChartProxy){
		"one Bundle":             func(*addonsv1.HelmChartProxy) {},
		"a Bundle for each":      func(its *addonsv1.HelmChartProxy) { its.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce },
		"with a bounded rollout": func(its *addonsv1.HelmChartProxy) { its.Spec.Rollout = &addonsv1.RolloutStrategy{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.held(change)
			if !slices.Contains(s.carried(), "Secret team/hcp-web.for-all") {
				t.Fatalf("there is no Secret with values, but %v", s.carried())
			}
			for _, name := range []string{"one", "two", "three"} {
				its := cluster(name)
				s.change(its, func() { its.Labels = nil })
			}
			if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			s.restart()
			s.looks()
			s.looks()
			expect(t, "left", s.carried(), []string(nil))
		})
	}
}

// Of those that stay selected nothing goes, not even while the Fleet Cluster of one is away.
func TestHeldKeepsTheOthers(t *testing.T) {
	s := newScene(t)
	s.held(func(its *addonsv1.HelmChartProxy) {
		its.Spec.ValuesTemplate = "name: {{ .Cluster.metadata.name }}"
	})
	before := s.carried()
	three := cluster("three")
	s.change(three, func() { three.Labels = nil })
	s.drop(fleetCluster("team", "one"))
	s.looks()
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-two")
	expect(t, "left", s.carried(), slices.DeleteFunc(before, func(its string) bool { return its == "ConfigMap team/hcp-web.for.fleet-three" }))
}

// What a Bundle names that is not in the cache yet stays.
func TestHeldBehind(t *testing.T) {
	s := newScene(t)
	s.held(func(its *addonsv1.HelmChartProxy) {
		its.Spec.ValuesTemplate = "name: {{ .Cluster.metadata.name }}"
	})
	before := s.carried()
	s.Client = behind{Client: trimmed{s.api}, bundles: &fleetv1.BundleList{}}
	s.looks()
	expect(t, "left", s.carried(), before)
}

// A Bundle that is for others by now, of which the cache knows nothing yet, is left alone.
func TestHeldTargetsBehind(t *testing.T) {
	s := newScene(t)
	s.held(func(*addonsv1.HelmChartProxy) {})
	three := cluster("three")
	s.change(three, func() { three.Labels = nil })
	cached := &fleetv1.BundleList{Items: []fleetv1.Bundle{*s.bundle()}}
	bundle := s.bundle()
	s.change(bundle, func() { bundle.Generation = 2 })
	s.Client = behind{Client: trimmed{s.api}, bundles: cached}
	s.looks()
	expect(t, "targets", s.targets(), "fleet-one fleet-three fleet-two")
	s.Client = trimmed{s.api}
	s.looks()
	expect(t, "targets, when it is known", s.targets(), "fleet-one fleet-two")
}

// What goes in one namespace does not wait for what cannot go in another.
func TestHeldApart(t *testing.T) {
	s := newScene(t)
	selector := s.everywhere().Spec.NamespaceSelector
	s.held(func(its *addonsv1.HelmChartProxy) { its.Spec.NamespaceSelector = selector })
	if s.bundleIn("other") == nil {
		t.Fatal("nothing is deployed in the other namespace")
	}
	other := cluster("other")
	other.Namespace = "other"
	for _, its := range []*clusterv1.Cluster{cluster("one"), cluster("two"), cluster("three"), other} {
		s.change(its, func() { its.Labels = nil })
	}
	s.fails = func(object client.Object) bool {
		_, isSecret := object.(*corev1.Secret)
		return isSecret && object.GetNamespace() == "other"
	}
	_, _ = s.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	if s.bundleIn("other") == nil || s.bundleIn("team") != nil {
		t.Error("the wrong Bundles are there")
	}
}

// bundleIn returns a Bundle in a namespace; nil for none.
func (s *scene) bundleIn(namespace string) *fleetv1.Bundle {
	s.Helper()
	var all fleetv1.BundleList
	if err := s.api.List(s.Context(), &all, client.InNamespace(namespace)); err != nil {
		s.Fatal(err)
	}
	if len(all.Items) == 0 {
		return nil
	}
	return &all.Items[0]
}

// A Secret that a Bundle that stays has named before, and that Clusters may still read, does not go with
// another Bundle that has named it, too.
func TestRetiredApart(t *testing.T) {
	s := newScene(t)
	s.bounded(addonsv1.DownloadManager)
	secret := &corev1.Secret{}
	s.get("hcp-web.for-all", secret)
	former := secret.DeepCopy()
	former.Name, former.ResourceVersion = "hcp-web.for-all.1", ""
	s.create(former)
	stays := s.bundle()
	stays.Annotations[plan.FormerAnnotation] = former.Name
	goes := stays.DeepCopy()
	goes.Name, goes.ResourceVersion = "hcp-web-other", ""
	s.create(goes)
	v := &visit{key: key, proxy: s.proxy(), bundles: []fleetv1.Bundle{*stays, *goes}}
	if _, err := s.retireAll(t.Context(), v, []*fleetv1.Bundle{&v.bundles[1]}, map[client.ObjectKey]bool{}); err != nil {
		t.Fatal(err)
	}
	if s.exists(&fleetv1.Bundle{}, goes.Name) || !s.exists(&corev1.Secret{}, former.Name) {
		t.Error("the Bundle stays, or the Secret goes")
	}
	v.bundles = v.bundles[:1]
	if _, err := s.retireAll(t.Context(), v, []*fleetv1.Bundle{&v.bundles[0]}, map[client.ObjectKey]bool{}); err != nil {
		t.Fatal(err)
	}
	if s.exists(&corev1.Secret{}, former.Name) {
		t.Error("the Secret stays")
	}
}
