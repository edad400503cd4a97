package charts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// bounded is a HelmChartProxy whose rollout is bounded, carried out on all Clusters.
func (s *scene) bounded(download addonsv1.DownloadMode) *addonsv1.HelmChartProxy {
	s.Helper()
	proxy := s.guarded(download)
	proxy.Spec.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	proxy.Spec.ValuesTemplate = `name: {{ .Cluster.metadata.labels.other | default "none" }}`
	s.create(proxy)
	s.looks()
	s.follow()
	for _, its := range s.deployAll() {
		s.reach(its.Labels[fleetv1.ClusterLabel])
	}
	s.looks()
	return proxy
}

// reach is what Fleet does when a rollout reaches Clusters.
func (s *scene) reach(fleetClusters ...string) {
	s.Helper()
	for _, name := range fleetClusters {
		bundle := s.bundle()
		its := deployment(bundle, name)
		s.change(its, func() {
			resources := slices.Clone(bundle.Spec.DownstreamResources)
			for _, target := range bundle.Spec.Targets {
				if target.ClusterName == name {
					resources = append(resources, target.DownstreamResources...)
				}
			}
			its.Spec.Options.DownstreamResources, its.Spec.StagedOptions.DownstreamResources = resources, resources
		})
	}
}

// writesValues looks, has Fleet take over what was written, and returns what that was, without what is told.
func (s *scene) writesValues() []string {
	s.Helper()
	var all []string
	for range 2 {
		for _, its := range s.looks() {
			if !strings.Contains(its, "status") && !strings.Contains(its, bundleName) {
				all = append(all, its)
			}
		}
		s.follow()
	}
	return all
}

// read returns which keys of which objects the Bundle has a Cluster read.
func (s *scene) read(fleetCluster string) (names []string) {
	s.Helper()
	bundle := s.bundle()
	from := slices.Clone(bundle.Spec.Helm.ValuesFrom)
	for _, target := range bundle.Spec.Targets {
		if target.ClusterName == fleetCluster {
			from = append(from, target.Helm.ValuesFrom...)
		}
	}
	for _, its := range from {
		name, key := "", ""
		var found bool
		if its.SecretKeyRef != nil {
			name, key = its.SecretKeyRef.Name, its.SecretKeyRef.Key
			secret := &corev1.Secret{}
			s.get(name, secret)
			_, found = secret.Data[key]
		} else {
			name, key = its.ConfigMapKeyRef.Name, its.ConfigMapKeyRef.Key
			configMap := &corev1.ConfigMap{}
			s.get(name, configMap)
			_, found = configMap.Data[key]
		}
		if !found {
			s.Errorf("%s has no key %s", name, key)
		}
		names = append(names, strings.TrimPrefix(name, "hcp-web.")+" "+key)
	}
	return names
}

func (s *scene) get(name string, into client.Object) {
	s.Helper()
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: name}, into); err != nil {
		s.Error(err)
	}
}

// Where the rollout is bounded, nothing that is read changes, and what is not read any more goes.
func TestStage(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			s.bounded(download)
			expect(t, "at first", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one values.yaml"})
			testOwn(t, s)
			testShared(t, s)
			s.restart()
			expect(t, "after a restart", s.looks(), []string(nil))
		})
	}
}

func testOwn(t *testing.T, s *scene) {
	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "x" })
	expect(t, "its own values", s.writesValues(), []string{"create ConfigMap team/hcp-web.for.fleet-one.1"})
	expect(t, "are elsewhere", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one.1 values-1.yaml"})
	expect(t, "nothing more", s.writesValues(), []string(nil))
	s.change(one, func() { one.Labels["other"] = "y" })
	expect(t, "again, before the rollout has reached it", s.writesValues(), []string{
		"create ConfigMap team/hcp-web.for.fleet-one.2", "delete ConfigMap team/hcp-web.for.fleet-one.1",
	})
	s.reach("fleet-one")
	expect(t, "it has", s.writesValues(), []string{"delete ConfigMap team/hcp-web.for.fleet-one"})
	s.change(one, func() { one.Annotations["unresolved"] = "yes" })
	expect(t, "not known: they stay", s.writesValues(), []string(nil))
	expect(t, "not known: they are read", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one.2 values-2.yaml"})
	s.change(one, func() { delete(one.Annotations, "unresolved") })
	expect(t, "the same", s.writesValues(), []string(nil))
}

func testShared(t *testing.T, s *scene) {
	secret := s.valuesSecret()
	s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: other") })
	expect(t, "those of all", s.writesValues(), []string{"create Secret team/hcp-web.for-all.1"})
	s.reach("fleet-one")
	expect(t, "some have them", s.writesValues(), []string(nil))
	s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: third") })
	expect(t, "changed meanwhile", s.writesValues(), []string{"create Secret team/hcp-web.for-all.2"})
	expect(t, "are elsewhere", s.read("fleet-one"), []string{"for-all.2 00-2.yaml", "for.fleet-one.2 values-2.yaml"})
	s.reach("fleet-one", "fleet-two")
	expect(t, "nobody reads the second", s.writesValues(), []string{"update Secret team/hcp-web.for-all.1"})
	s.reach("fleet-three")
	expect(t, "nobody reads the first", s.writesValues(), []string{"update Secret team/hcp-web.for-all"})
	if former := s.bundle().Annotations[plan.FormerAnnotation]; former != "" {
		t.Errorf("the Bundle still says that it named %s", former)
	}
}

// Values for all Clusters become public, and secret again.
func TestStagedKind(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			proxy := s.bounded(download)
			s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "values"}, Data: map[string]string{"values.yaml": "public: yes"}})
			for i, step := range []struct{ kind, before, after string }{
				{"ConfigMap", "update Secret team/hcp-web.for-all", "ConfigMap team/hcp-web.for-all.1"},
				{"Secret", "delete ConfigMap team/hcp-web.for-all.1", "Secret team/hcp-web.for-all"},
			} {
				s.change(proxy, func() { proxy.Spec.ValuesFrom[0].Kind, proxy.Generation = step.kind, int64(2+i) })
				expect(t, step.kind, s.writesValues(), []string{"create " + step.after})
				s.reach("fleet-one", "fleet-two")
				expect(t, "the rollout goes on", s.writesValues(), []string(nil))
				s.reach("fleet-three")
				expect(t, "it is over", s.writesValues(), []string{step.before})
			}
		})
	}
}

// When the rollout is not bounded any more, what is read still does not change under those who read it.
func TestUnstaged(t *testing.T) {
	s := newScene(t)
	proxy := s.bounded(addonsv1.DownloadManager)
	one := cluster("one")
	s.change(one, func() { one.Labels["other"] = "x" })
	s.looks()
	s.reach("fleet-one")
	s.looks()
	s.change(proxy, func() { proxy.Spec.Rollout, proxy.Generation = nil, 2 })
	expect(t, "not bounded any more", s.writesValues(), []string(nil))
	s.change(one, func() { one.Labels["other"] = "y" })
	expect(t, "a change", s.writesValues(), []string{"create ConfigMap team/hcp-web.for.fleet-one"})
	expect(t, "has a key of its own", s.read("fleet-one"), []string{"for-all 00.yaml", "for.fleet-one values-2.yaml"})
}

// Something is read everywhere: the change waits, and nothing else does.
func TestNoPlace(t *testing.T) {
	s := newScene(t)
	proxy := s.bounded(addonsv1.DownloadManager)
	s.readAll()
	other := deployment(s.bundle(), "fleet-three")
	secret, one := s.valuesSecret(), cluster("one")
	s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: other") })
	s.change(one, func() { delete(one.Labels, "web") })
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.1.0", 2 })
	s.looks()
	expect(t, "condition", s.condition("HelmReleaseProxySpecsUpToDate"),
		"False HelmReleaseProxySpecsUpdating team/three: "+waitsForPlace+"; team/two: "+waitsForPlace)
	expect(t, "what else is asked for", s.bundle().Annotations[plan.VersionAnnotation], "1.1.0")
	expect(t, "values", s.read("fleet-two")[0], "for-all 00.yaml")
	expect(t, "targets", s.targets(), "fleet-three fleet-two")
	s.change(other, func() { other.Spec.Options.DownstreamResources = nil })
	s.writesValues()
	expect(t, "it goes on", s.read("fleet-two")[0], "for-all.4 00-1.yaml")
}

// Nothing is put into an object that is still there, though Fleet does not follow, and it comes to rest.
func TestStageFresh(t *testing.T) {
	s := newScene(t)
	s.bounded(addonsv1.DownloadManager)
	one, secret := cluster("one"), s.valuesSecret()
	for i, value := range []string{"a", "b", "c"} {
		s.change(one, func() { one.Labels["other"] = value })
		s.change(secret, func() { secret.Data["values.yaml"] = []byte("password: " + value) })
		bundle := s.bundle()
		s.change(bundle, func() { bundle.Generation++ }) // Fleet has not taken it over.
		s.looks()
		number := i + 1
		expect(t, value, s.read("fleet-one"), []string{
			fmt.Sprintf("for-all.%d 00-%d.yaml", number, number), fmt.Sprintf("for.fleet-one.%d values-%d.yaml", number, number),
		})
	}
}
