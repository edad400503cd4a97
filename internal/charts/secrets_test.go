package charts

import (
	"context"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
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
