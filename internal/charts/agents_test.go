package charts

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/plan"
	"github.com/muster-fleet/muster/internal/charts/repository"
)

func (s *scene) byAgents() *addonsv1.HelmChartProxy {
	its := s.proxy()
	its.Spec.Download = addonsv1.DownloadAgent
	return its
}

// handsOver creates a HelmChartProxy whose chart Fleet is to have downloaded, and plays that
// Fleet has taken it over.
func (s *scene) handsOver(proxy *addonsv1.HelmChartProxy) {
	s.Helper()
	s.create(proxy)
	s.looks()
	s.fleet()
	s.looks()
}

func (s *scene) helmOp() *fleetv1.HelmOp {
	s.Helper()
	its := &fleetv1.HelmOp{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: bundleName}, its); err != nil {
		s.Fatal(err)
	}
	return its
}

// fleet does for the HelmOp what Fleet does: it has a finalizer, and becomes a Bundle.
func (s *scene) fleet() {
	s.Helper()
	op := s.helmOp()
	s.change(op, func() { op.Finalizers = []string{helmOpFinalizer} })
	made := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: op.Namespace, Name: op.Name}}
	err := s.api.Get(context.Background(), client.ObjectKeyFromObject(made), made)
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	if err == nil && made.Spec.HelmOpOptions == nil {
		s.Fatal("Fleet does not take a Bundle over that is not of a HelmOp")
	}
	missing := err != nil
	made.Spec, made.Annotations, made.Labels = *plan.MadeOf(op), nil, map[string]string{fleetv1.HelmOpLabel: op.Name}
	for key, value := range op.Spec.Labels {
		made.Labels[key] = value
	}
	if missing {
		s.create(made)
	} else if err := s.api.Update(context.Background(), made); err != nil {
		s.Fatal(err)
	}
	s.writes = nil
}

// accessName is that of the Secret with which agents reach the repository.
func (s *scene) accessName() string { return plan.AccessName(s.proxy(), "team") }

func TestAgents(t *testing.T) {
	s := newScene(t)
	s.create(s.byAgents())
	written := s.looks()
	expect(t, "values, access, HelmOp", written[:5], []string{
		"create ConfigMap team/hcp-web.for.fleet-one", "create ConfigMap team/hcp-web.for.fleet-three", "create ConfigMap team/hcp-web.for.fleet-two",
		"create Secret team/" + s.accessName(), "create HelmOp team/" + bundleName,
	})
	paths, _ := s.charts.Asked()
	expect(t, "it is there", paths, []string{"/index.yaml", "/web-1.0.0.tgz"})
	expect(t, "before Fleet follows", s.condition("HelmReleaseProxySpecsUpToDate"),
		"False HelmReleaseProxySpecsUpdating Fleet has not taken HelmOp "+bundleName+" over yet")
	secret := &corev1.Secret{}
	if err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: s.accessName()}, secret); err != nil {
		t.Fatal(err)
	}
	expect(t, "access", secret.Data, map[string][]byte{"username": []byte(repository.Username), "password": []byte(repository.Password), "cacerts": s.charts.CA})
	s.fleet()
	s.looks()
	expect(t, "when Fleet follows", s.condition("HelmReleaseProxySpecsUpToDate"), "True UpToDate ")
	s.create(deployment(s.bundle(), "fleet-one"))
	expect(t, "one is deployed", s.looks(), []string{"patch status HelmReleaseProxy team/web-one", "patch status HelmChartProxy team/web"})

	s.restart()
	expect(t, "after a restart", s.looks(), []string(nil))

	proxy := s.proxy()
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.1.0", 2 })
	expect(t, "another version", s.looks()[0], "patch HelmOp team/"+bundleName)
	for _, target := range s.helmOp().Spec.Targets {
		expect(t, "version of a target", target.Helm.Version, "1.1.0")
	}
	s.fleet()
	s.looks()

	source := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "repository"}}
	s.change(source, func() { source.Data["password"] = []byte("other") })
	before := s.helmOp().Spec.Labels[plan.AccessLabel]
	expect(t, "other credentials", s.looks()[:2], []string{"update Secret team/" + s.accessName(), "patch HelmOp team/" + bundleName})
	if after := s.helmOp().Spec.Labels[plan.AccessLabel]; before == "" || after == "" || after == before {
		t.Errorf("Fleet is not told: %q, %q before", after, before)
	}
	s.fleet()
	expect(t, "and when it knows", s.looks(), []string(nil))

	one := cluster("one")
	s.change(one, func() { delete(one.Labels, "web") })
	expect(t, "deselected", s.looks()[0], "patch HelmOp team/"+bundleName)
	expect(t, "its values stay while it is deployed", s.exists(&corev1.ConfigMap{}, "hcp-web.for.fleet-one"), true)

	s.drop(proxy)
	written = s.looks()
	expect(t, "gone", written[:2], []string{"update Secret team/" + s.accessName(), "delete HelmOp team/" + bundleName})
	s.end()
	s.looks()
	for _, name := range []string{"one", "two", "three"} {
		expect(t, "values", s.exists(&corev1.ConfigMap{}, "hcp-web.for.fleet-"+name), false)
	}
}

// end ends what Fleet ends of a HelmOp that is deleted.
func (s *scene) end() {
	s.Helper()
	for _, object := range []client.Object{s.bundle(), s.helmOp()} {
		object.SetFinalizers(nil)
		if err := s.api.Update(context.Background(), object); err != nil {
			s.Fatal(err)
		}
		if err := s.api.Delete(context.Background(), object); client.IgnoreNotFound(err) != nil {
			s.Fatal(err)
		}
	}
}

func (s *scene) exists(object client.Object, name string) bool {
	s.Helper()
	err := s.api.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	return err == nil
}

// Who downloads the chart changes: what Fleet has made stays, and so does the release.
func TestCarriers(t *testing.T) {
	s := newScene(t)
	proxy := s.proxy()
	s.create(proxy)
	s.looks()
	before := s.bundle()
	s.change(proxy, func() { proxy.Spec.Download, proxy.Generation = addonsv1.DownloadAgent, 2 })
	expect(t, "to the agents", s.looks()[:3], []string{"create Secret team/" + s.accessName(), "patch Bundle team/" + bundleName, "create HelmOp team/" + bundleName})
	made := s.bundle()
	if len(made.Spec.Resources) > 0 || len(made.OwnerReferences) > 0 || made.UID != before.UID {
		t.Errorf("the Bundle: %v", made)
	}
	s.fleet()
	s.looks()
	expect(t, "and over", s.condition("HelmReleaseProxySpecsUpToDate"), "True UpToDate ")

	s.change(proxy, func() { proxy.Spec.Download, proxy.Generation = addonsv1.DownloadManager, 3 })
	expect(t, "and back", s.looks()[:4], []string{
		"patch Bundle team/" + bundleName, "update Secret team/" + s.accessName(), "patch HelmOp team/" + bundleName, "delete HelmOp team/" + bundleName,
	})
	after := s.bundle()
	after.ResourceVersion = before.ResourceVersion
	expect(t, "as before", after, before)
	expect(t, "it is over", s.condition("HelmReleaseProxySpecsUpToDate"), "True UpToDate ")
}

// What Fleet does not follow is shown to it again, not too often.
func TestNudge(t *testing.T) {
	s := newScene(t)
	now := time.Now()
	s.now = func() time.Time { return now }
	s.create(s.byAgents())
	s.looks()
	op := s.helmOp()
	s.change(op, func() { op.CreationTimestamp = metav1.NewTime(now) })
	for _, step := range []struct {
		after time.Duration
		want  []string
	}{{pollInterval - time.Second, nil}, {time.Second, []string{"patch HelmOp team/" + bundleName}}, {pollInterval - time.Second, nil}, {2 * time.Second, []string{"patch HelmOp team/" + bundleName}}} {
		now = now.Add(step.after)
		expect(t, "nobody follows", s.looks(), step.want)
		if again := s.looksOnce(); again != pollInterval {
			t.Errorf("again in %v", again)
		}
	}
	s.fleet()
	s.looks()
	now = now.Add(time.Hour)
	expect(t, "it follows", s.looks(), []string(nil))
	made := s.bundle()
	s.change(made, func() { made.Spec.Targets = made.Spec.Targets[:1] })
	expect(t, "somebody has edited what Fleet has made", s.looks()[0], "patch HelmOp team/"+bundleName)
	s.fleet()
	s.looks()
	op = s.helmOp()
	s.change(op, func() {
		op.Status.Conditions = []genericcondition.GenericCondition{{Type: fleetv1.HelmOpAcceptedCondition, Status: corev1.ConditionFalse, Message: "could not get a chart version"}}
	})
	s.looks()
	if got := s.condition("Ready"); !strings.HasPrefix(got, "False HelmReleaseProxyCreationFailed team/one: HelmOp "+bundleName+": could not get a chart version") {
		t.Error(got)
	}
}

// Somebody edits a HelmOp, or deletes it.
func TestHelmOpEdited(t *testing.T) {
	s := newScene(t)
	s.create(s.byAgents())
	s.looks()
	want := s.helmOp()
	for name, edit := range map[string]func(*fleetv1.HelmOp){
		"targets":  func(op *fleetv1.HelmOp) { op.Spec.Targets = nil },
		"polling":  func(op *fleetv1.HelmOp) { op.Spec.PollingInterval = &metav1.Duration{Duration: time.Minute} },
		"chart":    func(op *fleetv1.HelmOp) { op.Spec.Helm.Repo, op.Spec.Helm.Chart = "https://evil.example.com", "evil" },
		"access":   func(op *fleetv1.HelmOp) { op.Spec.HelmSecretName = "repository" },
		"account":  func(op *fleetv1.HelmOp) { op.Spec.ServiceAccount = "admin" },
		"labels":   func(op *fleetv1.HelmOp) { op.Spec.Labels = nil },
		"insecure": func(op *fleetv1.HelmOp) { op.Spec.InsecureSkipTLSverify = true },
	} {
		op := s.helmOp()
		s.change(op, func() { edit(op) })
		expect(t, name, s.looks(), []string{"patch HelmOp team/" + bundleName})
		got := s.helmOp()
		got.ResourceVersion = want.ResourceVersion
		expect(t, name, got, want)
	}
	if !s.exists(&corev1.Secret{}, "repository") {
		t.Error("somebody's Secret is deleted")
	}
	s.drop(s.helmOp())
	if written := s.looks(); !slices.Contains(written, "create HelmOp team/"+bundleName) {
		t.Errorf("deleted: %v", written)
	}
}

// A chart that leads where nobody is to connect to, or is not there, is not handed to Fleet.
func TestAgentsHeld(t *testing.T) {
	s := newScene(t)
	proxy := s.byAgents()
	proxy.Spec.Version = "7.0.0"
	s.create(proxy)
	s.looks()
	expect(t, "a HelmOp", s.exists(&fleetv1.HelmOp{}, bundleName), false)
	expect(t, "condition", s.condition("Ready"), `False HelmReleaseProxyCreationFailed repository `+s.charts.URL+` has no version "7.0.0" of chart "web"`)
	s.change(proxy, func() { proxy.Spec.Version, proxy.Generation = "1.0.0", 2 })
	s.looks()
	s.fleet()
	before := s.helmOp()
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Generation = s.charts.URL+"/none", 3 })
	s.looks()
	expect(t, "what is there stays", s.helmOp().Spec, before.Spec)
	expect(t, "and what it needs", s.exists(&corev1.Secret{}, s.accessName()), true)
	expect(t, "and what the other needs", s.exists(&corev1.Secret{}, plan.AccessName(proxy, "team")), false)
	one := cluster("one")
	s.change(one, func() { delete(one.Labels, "web") })
	s.looks()
	if slices.ContainsFunc(s.helmOp().Spec.Targets, func(its fleetv1.BundleTarget) bool { return its.ClusterName == "fleet-one" }) {
		t.Error("a Cluster is kept that is not selected any more")
	}
	s.change(proxy, func() { proxy.Spec.RepoURL, proxy.Generation = s.charts.URL, 4 })
	s.drop(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "repository"}})
	s.looks()
	expect(t, "access when nobody knows it any more", s.exists(&corev1.Secret{}, s.accessName()), true)
	if got := s.condition("Ready"); !strings.Contains(got, `spec.tlsConfig.caSecret: reading Secret team/repository`) {
		t.Error(got)
	}
}

// All that is left are Clusters that were moved: nothing is asked of the repository, and nothing changes
// but who is left.
func TestAgentsMoved(t *testing.T) {
	s := newScene(t)
	proxy := s.byAgents()
	s.create(proxy)
	s.looks()
	s.fleet()
	s.release("two")
	s.drop(cluster("two"))
	before := s.helmOp()
	s.change(proxy, func() { proxy.Spec.ClusterSelector.MatchLabels["none"] = "yes" })
	s.looks()
	after := s.helmOp()
	expect(t, "targets", len(after.Spec.Targets), 1)
	after.Spec.Targets = before.Spec.Targets
	expect(t, "the rest", after.Spec, before.Spec)
	expect(t, "access", s.exists(&corev1.Secret{}, s.accessName()), true)
}
