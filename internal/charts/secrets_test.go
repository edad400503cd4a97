package charts

import (
	"context"
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// accessSecrets lists the Secrets with access.
func (s *scene) accessSecrets() (names []string) {
	s.Helper()
	var all corev1.SecretList
	if err := s.api.List(context.Background(), &all); err != nil {
		s.Fatal(err)
	}
	for i := range all.Items {
		if all.Items[i].Type == plan.AccessSecretType {
			names = append(names, all.Items[i].Name)
		}
	}
	return names
}

// A Secret with access that cannot be deleted at first is, once it can: something still tells of it.
func TestAccessIsNotLeftBehind(t *testing.T) {
	for name, change := range map[string]func(*scene, *addonsv1.HelmChartProxy){
		"to the manager": func(_ *scene, its *addonsv1.HelmChartProxy) { its.Spec.Download = addonsv1.DownloadManager },
		"nothing is selected": func(_ *scene, its *addonsv1.HelmChartProxy) {
			its.Spec.ClusterSelector.MatchLabels = map[string]string{"none": "yes"}
		},
		"another release and repository": func(s *scene, its *addonsv1.HelmChartProxy) {
			its.Spec.RepoURL, its.Spec.ReleaseName = s.charts.URL+"/", "other"
		},
		"another repository": func(s *scene, its *addonsv1.HelmChartProxy) { its.Spec.RepoURL = s.charts.URL + "/" },
		"gone":               nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.byAgents()
			s.handsOver(proxy)
			before := s.accessName()
			expect(t, "access", s.accessSecrets(), []string{before})
			if change != nil {
				s.change(proxy, func() { change(s, proxy); proxy.Generation = 2 })
			} else if err := s.api.Delete(context.Background(), proxy); err != nil {
				t.Fatal(err)
			}
			s.fails = func(object client.Object) bool {
				_, isSecret := object.(*corev1.Secret)
				return isSecret && object.GetName() == before
			}
			for range 3 {
				_, _ = s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key})
				s.follow()
			}
			s.fails = nil
			for range 3 {
				s.looks()
				s.follow()
			}
			for _, left := range s.accessSecrets() {
				if left == before {
					t.Errorf("%s is left behind", left)
				}
			}
			if s.exists(&fleetv1.HelmOp{}, bundleName) {
				expect(t, "what it named before", s.helmOp().Annotations[plan.FormerAnnotation], "")
			}
		})
	}
}

// follow does what Fleet does, wherever there is a HelmOp.
func (s *scene) follow() {
	s.Helper()
	if !s.exists(&fleetv1.HelmOp{}, bundleName) {
		return
	}
	if s.helmOp().DeletionTimestamp != nil {
		s.end()
		return
	}
	if s.exists(&fleetv1.Bundle{}, bundleName) && s.bundle().Spec.HelmOpOptions == nil {
		return // Fleet does not take it over.
	}
	s.fleet()
}

// As long as Fleet's Bundle names a Secret with access, it stays.
func TestAccessIsReplaced(t *testing.T) {
	s := newScene(t)
	proxy := s.byAgents()
	s.handsOver(proxy)
	before := s.accessName()
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Generation = s.charts.URL+"/", 2 })
	s.looks()
	after := plan.AccessName(proxy, "team")
	expect(t, "the one before, which Fleet reads", s.exists(&corev1.Secret{}, before), true)
	expect(t, "the HelmOp", s.helmOp().Spec.HelmSecretName, after)
	expect(t, "it says so", s.helmOp().Annotations[plan.FormerAnnotation], before)
	s.restart()
	if again := s.looksOnce(); again != pollInterval {
		t.Errorf("again in %v", again)
	}
	s.fleet()
	s.looks()
	expect(t, "when Fleet has followed", s.accessSecrets(), []string{after})
	expect(t, "and what it says", s.helmOp().Annotations[plan.FormerAnnotation], "")
}

// A Secret with access is not left behind where what was to name it was never written, or is lost:
// nothing tells of it then.
func TestAccessWithoutHelmOp(t *testing.T) {
	for name, test := range map[string]struct {
		restart bool
		change  func(*addonsv1.HelmChartProxy)
	}{
		"to the manager":                    {change: func(its *addonsv1.HelmChartProxy) { its.Spec.Download = addonsv1.DownloadManager }},
		"to the manager, after the program": {restart: true, change: func(its *addonsv1.HelmChartProxy) { its.Spec.Download = addonsv1.DownloadManager }},
		"nothing is selected": {change: func(its *addonsv1.HelmChartProxy) {
			its.Spec.ClusterSelector.MatchLabels = map[string]string{"none": "yes"}
		}},
		"gone": {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			proxy := s.byAgents()
			s.fails = func(object client.Object) bool {
				_, isHelmOp := object.(*fleetv1.HelmOp)
				return isHelmOp
			}
			s.create(proxy)
			for range 3 {
				_, _ = s.Reconcile(context.Background(), ctrl.Request{NamespacedName: key})
			}
			expect(t, "access", s.accessSecrets(), []string{s.accessName()})
			s.fails = nil
			if test.restart {
				s.restart()
			}
			if test.change != nil {
				s.change(proxy, func() { test.change(proxy); proxy.Generation = 2 })
			} else if err := s.api.Delete(context.Background(), proxy); err != nil {
				t.Fatal(err)
			}
			s.looks()
			expect(t, "access", s.accessSecrets(), []string(nil))
		})
	}
}

// A reconcile sends no update of a Secret that it has written already, until the Secret is due to be
// restored, or the program starts again.
func TestSecretsAreWrittenOnce(t *testing.T) {
	for _, download := range []addonsv1.DownloadMode{addonsv1.DownloadManager, addonsv1.DownloadAgent} {
		t.Run(string(download), func(t *testing.T) {
			s := newScene(t)
			now := time.Now()
			clock := func() time.Time { return now }
			s.now = clock
			ours := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: plan.SharedName(key, "team")}}
			names := []string{ours.Name}
			if download == addonsv1.DownloadAgent {
				names = append(names, s.accessName())
			}
			updates := func() []string {
				t.Helper()
				s.puts = nil
				s.looks()
				s.follow()
				slices.Sort(s.puts)
				return slices.Compact(s.puts)
			}
			slices.Sort(names)
			s.create(s.guarded(download))
			for range 3 {
				updates()
			}
			expect(t, "again", updates(), []string(nil))
			one := cluster("one")
			s.change(one, func() { delete(one.Labels, "web") })
			expect(t, "a change of one Cluster", updates(), []string(nil))

			source := s.valuesSecret()
			s.change(source, func() { source.Data["values.yaml"] = []byte("password: other") })
			first := ours.Name
			ours.Name += ".1"
			names[slices.Index(names, first)] = ours.Name
			slices.Sort(names)
			written := updates()
			for range 3 {
				written = append(written, updates()...) // The first is emptied once nothing reads it.
			}
			slices.Sort(written)
			expect(t, "other values", written, []string{first, ours.Name})

			s.drop(ours)
			expect(t, "deleted", updates(), []string(nil))
			now = now.Add(restoreInterval)
			expect(t, "deleted for a while", updates(), names)
			expect(t, "restored", s.exists(&corev1.Secret{}, ours.Name), true)
			expect(t, "and again", updates(), []string(nil))

			s.drop(ours)
			s.restart()
			s.now = clock
			after := updates()
			for _, name := range names {
				expect(t, "after a restart", slices.Contains(after, name), true)
			}
			expect(t, "restored", s.exists(&corev1.Secret{}, ours.Name), true)
		})
	}
}

// A Secret that was emptied is written again, though it is to hold what it held before.
func TestSecretIsWrittenAgain(t *testing.T) {
	s := newScene(t)
	proxy := s.byAgents()
	s.handsOver(proxy)
	s.looks()
	before := s.accessName()
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Generation = s.charts.URL+"/", 2 })
	s.looks()
	s.fleet()
	s.looksOnce()
	expect(t, "while another repository is named", s.exists(&corev1.Secret{}, before), false)
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Generation = s.charts.URL, 3 })
	s.looksOnce()
	expect(t, "when the first is named again", s.exists(&corev1.Secret{}, before), true)
}
