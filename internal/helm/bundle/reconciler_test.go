package bundle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/inputs"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/policies/policiestest"
	"github.com/muster-fleet/muster/internal/helm/proxy"
	"github.com/muster-fleet/muster/internal/helm/store"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

func reconciler(t *testing.T, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		object.SetGeneration(cmp.Or(object.GetGeneration(), 1)) // As an API server does.
		object.SetUID(cmp.Or(object.GetUID(), "uid"))
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&addonsv1.HelmReleaseProxy{}, ByBundle, Index).
		WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByCluster, proxy.ClusterIndex).WithIndex(&addonsv1.HelmReleaseProxy{}, proxy.ByRelease, proxy.AskedIndex).WithIndex(&fleetv1.Bundle{}, proxy.ByRelease, proxy.ReleaseIndex).Build()
	return &Reconciler{Store: store.New(c, c, "muster", clock.RealClock{}), Inputs: &inputs.Reader{}, Policies: policiestest.NewReader(c)}
}

func proxyOf(namespace, name string) *addonsv1.HelmChartProxy {
	of := &addonsv1.HelmChartProxy{}
	of.Namespace, of.Name, of.UID = namespace, name, types.UID(namespace+"/"+name)
	of.Spec.ChartName, of.Spec.RepoURL = "web", "https://charts.example.com"
	return of
}

// releaseOf returns the HelmReleaseProxy of a HelmChartProxy for a Cluster, in a Bundle.
func releaseOf(of *addonsv1.HelmChartProxy, cluster plan.Key, bundle string, record plan.Record) *addonsv1.HelmReleaseProxy {
	release := &addonsv1.HelmReleaseProxy{}
	release.Namespace, release.Name = of.Namespace, of.Name+"-"+cluster.Name
	release.Annotations = map[string]string{plan.BundleAnnotation: bundle, plan.RecordAnnotation: record.String()}
	release.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: of.Name, UID: of.UID, Controller: ptr.To(true),
	}}
	release.Spec.ClusterRef.Namespace, release.Spec.ClusterRef.Name = cluster.Namespace, cluster.Name
	release.Spec.ReleaseName, release.Spec.ReleaseNamespace = plan.ReleaseName(of), plan.ReleaseNamespace(of)
	return release
}

// A user who may write HelmChartProxies and HelmReleaseProxies in one namespace cannot change the Bundles of
// another namespace.
func TestForgedReleases(t *testing.T) {
	victim, thief := proxyOf("victim", "web"), proxyOf("thief", "web")
	cluster := plan.Key{Namespace: "victim", Name: "one"}
	name := plan.BundleName(victim, cluster, 0)
	own := releaseOf(victim, cluster, name, plan.Record{FleetCluster: "one"})
	forged := releaseOf(thief, cluster, name, plan.Record{FleetCluster: "one", Installed: true})
	key := plan.Key{Namespace: "victim", Name: name}
	have := plan.NewBundle(victim, key.Namespace, key.Name, plan.Chart{Version: "1.0.0"}, "")

	t.Run("next to the Bundle", func(t *testing.T) {
		s, err := reconciler(t, victim, thief, own, forged, have).find(t.Context(), key)
		if err != nil || s.have == nil || s.of == nil || s.of.UID != victim.UID || len(s.releases) != 1 || s.releases[0].Namespace != "victim" {
			t.Errorf("it is %+v (%v)", s, err)
		}
	})
	t.Run("before the Bundle", func(t *testing.T) {
		s, err := reconciler(t, victim, thief, own, forged).find(t.Context(), key)
		if err != nil || s.of == nil || s.of.UID != victim.UID || len(s.releases) != 1 {
			t.Errorf("it is %+v (%v)", s, err)
		}
	})
	t.Run("for a Bundle of their own in the other namespace", func(t *testing.T) {
		another := plan.BundleName(thief, cluster, 0)
		its := releaseOf(thief, cluster, another, plan.Record{FleetCluster: "one"})
		s, err := reconciler(t, victim, thief, its).find(t.Context(), plan.Key{Namespace: "victim", Name: another})
		if err != nil || s.of != nil {
			t.Errorf("it is %+v (%v)", s, err)
		}
	})
}

// A target whose HelmReleaseProxy was lost stays while its Cluster is selected: the loss uninstalls nothing.
// A target whose Cluster moves to another management cluster stays as well.
func TestTargetsWithoutReleases(t *testing.T) {
	of := proxyOf("team", "web")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "one", Labels: map[string]string{"web": "yes"}}}
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "one", Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "one", UID: "one"}},
	}}
	released := fleet.DeepCopy()
	released.Annotations, released.OwnerReferences = map[string]string{stamp.ReleasedAnnotation: "true"}, nil
	key := plan.Key{Namespace: "team", Name: plan.BundleName(of, plan.Key{Namespace: "team", Name: "one"}, 0)}
	have := plan.NewBundle(of, key.Namespace, key.Name, plan.Chart{Version: "1.0.0"}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}}
	selecting := func(value string) *addonsv1.HelmChartProxy {
		of := of.DeepCopy()
		of.Spec.ClusterSelector.MatchLabels = map[string]string{"web": value}
		return of
	}
	renamed := selecting("yes")
	renamed.Spec.ReleaseName = "other"
	deleted := selecting("yes")
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	leaving := releaseOf(of, plan.Key{Namespace: "team", Name: "one"}, key.Name, plan.Record{FleetCluster: "one", Installed: true})
	leaving.DeletionTimestamp = ptr.To(metav1.Now())
	emptied := leaving.DeepCopy()
	emptied.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "one", Leaving: plan.Emptied}.String()

	refused := leaving.DeepCopy()
	refused.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "one", Digest: "any"}.String()
	deployment := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: stamp.FleetNamespace("team", "one"), Name: key.Name}}
	deployment.Status.Conditions = []genericcondition.GenericCondition{{
		Type: fleetv1.BundleDeploymentConditionInstalled, Status: "False", Message: "unable to continue with install: it exists",
	}}
	withdrawn := refused.DeepCopy()
	withdrawn.Annotations[plan.RecordAnnotation] = plan.Record{FleetCluster: "one", Digest: "any", Leaving: plan.Withdrawn}.String()

	for name, test := range map[string]struct {
		of       *addonsv1.HelmChartProxy
		objects  []client.Object
		releases []*addonsv1.HelmReleaseProxy
		want     int
	}{
		"its Cluster is selected":               {selecting("yes"), []client.Object{cluster, fleet}, nil, 1},
		"its Cluster is not selected":           {selecting("no"), []client.Object{cluster, fleet}, nil, 0},
		"its Cluster is gone":                   {selecting("yes"), []client.Object{fleet}, nil, 0},
		"its Fleet Cluster is gone":             {selecting("yes"), []client.Object{cluster}, nil, 0},
		"its Fleet Cluster is released":         {selecting("no"), []client.Object{released}, nil, 1},
		"it should have another release":        {renamed, []client.Object{cluster, fleet}, nil, 0},
		"the HelmChartProxy is deleted":         {deleted, []client.Object{cluster, fleet}, nil, 0},
		"the release is being removed":          {selecting("yes"), []client.Object{cluster, fleet}, []*addonsv1.HelmReleaseProxy{leaving}, 0},
		"a moved Cluster is deselected":         {selecting("no"), []client.Object{released}, []*addonsv1.HelmReleaseProxy{leaving}, 1},
		"all are removed, its Cluster is moved": {deleted, []client.Object{released}, []*addonsv1.HelmReleaseProxy{leaving}, 1},
		"the release must be emptied":           {deleted, []client.Object{cluster, fleet, deployment}, []*addonsv1.HelmReleaseProxy{refused}, 1},
		"the release was emptied":               {deleted, []client.Object{cluster, fleet, deployment}, []*addonsv1.HelmReleaseProxy{withdrawn}, 0},
		"the release is emptied during a move":  {deleted, []client.Object{cluster, fleet}, []*addonsv1.HelmReleaseProxy{emptied}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			in := &inputs.Inputs{Incomplete: !test.of.DeletionTimestamp.IsZero()}
			if !in.Incomplete {
				in.Selector, _ = plan.NewSelector(test.of)
			}
			got, _, err := reconciler(t, test.objects...).targets(t.Context(), &scope{key: key, have: have, of: test.of, in: in, releases: test.releases})
			if err != nil || len(got) != test.want {
				t.Errorf("%d targets, want %d (%v)", len(got), test.want, err)
			}
		})
	}
}

// The cache may show that a Cluster was moved before it shows that its Fleet Cluster was released. Its target stays.
func TestReleasedUnseen(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	fleet := func(annotations map[string]string) *fleetv1.Cluster {
		return &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", Annotations: annotations, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}}
	}
	name := plan.BundleName(of, key, 0)
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0"}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}}
	leaving := releaseOf(of, key, name, plan.Record{FleetCluster: "one", Installed: true})
	leaving.DeletionTimestamp = ptr.To(metav1.Now())
	for want, live := range []client.Object{fleet(nil), fleet(map[string]string{stamp.ReleasedAnnotation: "true"})} {
		r := reconciler(t, fleet(nil))
		r.Live = reconciler(t, live).Client
		got, _, err := r.targets(t.Context(), &scope{key: client.ObjectKeyFromObject(have), have: have, of: of, in: &inputs.Inputs{}, releases: []*addonsv1.HelmReleaseProxy{leaving}})
		if err != nil || len(got) != want {
			t.Errorf("%d targets, want %d (%v)", len(got), want, err)
		}
	}
}

// In a Bundle without a HelmChartProxy, the targets of moved Clusters stay. If the HelmChartProxy was deleted, the
// targets of Clusters that come back are removed.
func TestOrphans(t *testing.T) {
	of := proxyOf("team", "web")
	fleet := func(name string, isReleased bool) *fleetv1.Cluster {
		its := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy}}}
		if isReleased {
			its.Annotations = map[string]string{stamp.ReleasedAnnotation: "true"}
		}
		return its
	}
	values := func(cluster string) client.Object {
		return plan.ValuesObject(client.ObjectKeyFromObject(of), "team", plan.Record{FleetCluster: cluster}, nil)
	}
	for name, test := range map[string]struct {
		wasDeleted bool
		fleets     []client.Object
		want       string
	}{
		"its HelmChartProxy is moved, or lost":  {false, []client.Object{fleet("one", false), fleet("two", true)}, "one two"},
		"lost, and one Fleet Cluster is gone":   {false, []client.Object{fleet("one", false)}, "one"},
		"lost, and all Fleet Clusters are gone": {false, nil, ""},
		"it was deleted":                        {true, []client.Object{fleet("one", true), fleet("two", true)}, "one two"},
		"it was deleted, and one comes back":    {true, []client.Object{fleet("one", false), fleet("two", true)}, "two"},
		"it was deleted, and both come back":    {true, []client.Object{fleet("one", false), fleet("two", false)}, ""},
		"it was deleted, and one is moved away": {true, []client.Object{fleet("one", true)}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			have := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
			have.Spec.Targets = []fleetv1.BundleTarget{{Name: "one", ClusterName: "one"}, {Name: "two", ClusterName: "two"}}
			if test.wasDeleted {
				have.Annotations[plan.DeletedAnnotation] = "true"
			}
			r := reconciler(t, append(test.fleets, have, values("one"), values("two"))...)
			if err := r.removeOrphan(t.Context(), &scope{have: have}); err != nil {
				t.Fatal(err)
			}
			var targets, kept []string
			after, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
			if err != nil {
				t.Fatal(err)
			}
			if after == nil {
				after = &fleetv1.Bundle{}
			}
			for _, target := range after.Spec.Targets {
				targets = append(targets, target.ClusterName)
				if r.Get(t.Context(), client.ObjectKeyFromObject(values(target.ClusterName)), &corev1.ConfigMap{}) == nil {
					kept = append(kept, target.ClusterName)
				}
			}
			if got := strings.Join(targets, " "); got != test.want || !slices.Equal(kept, targets) {
				t.Errorf("left is %q with the values of %v, want %q", got, kept, test.want)
			}
		})
	}
}

// If the values of a target cannot be removed at once, they are removed later, although the target is all that names them.
func TestOrphanedValuesGoLater(t *testing.T) {
	of := proxyOf("team", "web")
	have := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{{Name: "gone", ClusterName: "gone"}, {Name: "there", ClusterName: "there"}}
	values := plan.ValuesObject(client.ObjectKeyFromObject(of), "team", plan.Record{FleetCluster: "gone"}, nil)
	r := reconciler(t, have, values, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "there"}})
	isDown := true
	r.Client = interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if isDown {
				return errors.New("the API server is busy")
			}
			return c.Delete(ctx, object, options...)
		},
	})
	for _, isDown = range []bool{true, false} {
		its, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.removeOrphan(t.Context(), &scope{have: its}); (err != nil) != isDown {
			t.Errorf("down: %t, and the error is %v", isDown, err)
		}
	}
	its, err := r.Bundle(t.Context(), client.ObjectKeyFromObject(have))
	if err != nil || len(its.Spec.Targets) != 1 || its.Spec.Targets[0].ClusterName != "there" {
		t.Errorf("left is %v (%v)", its, err)
	}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(values), &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("the values are left (%v)", err)
	}
}

// The target of an outdated release stays unchanged until its HelmReleaseProxy is deleted. A target whose Fleet
// Cluster is gone is removed, unless its release is InstallOnce.
func TestOldTarget(t *testing.T) {
	of, cluster := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	once, renamed := of.DeepCopy(), of.DeepCopy()
	once.Spec.ReconcileStrategy, renamed.Spec.ReleaseName = addonsv1.ReconcileStrategyInstallOnce, "other"
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}}
	last := fleetv1.BundleTarget{Name: "one", ClusterName: "one"}
	for name, test := range map[string]struct {
		of      *addonsv1.HelmChartProxy
		objects []client.Object
		stays   bool
	}{
		"of another release":                          {renamed, []client.Object{fleet}, true},
		"its Fleet Cluster is gone":                   {of, nil, false},
		"its Fleet Cluster is gone, with InstallOnce": {once, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			release := releaseOf(of, cluster, plan.BundleName(of, cluster, 0), plan.Record{FleetCluster: "one", Installed: true, Sync: 1})
			got, err := reconciler(t, test.objects...).target(t.Context(), &scope{key: plan.Key{Namespace: "team"}, of: test.of, in: &inputs.Inputs{}}, release, plan.RecordOf(release), &last)
			if err != nil || (got != nil) != test.stays || got != nil && !equality.Semantic.DeepEqual(*got, last) {
				t.Errorf("the target is %v, want %v: %t (%v)", got, last, test.stays, err)
			}
		})
	}
}

// The program does not rewrite a retained Bundle when the HelmChartProxy specifies another release.
func TestRetained(t *testing.T) {
	of := proxyOf("team", "web")
	once := of.DeepCopy()
	once.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	cluster := plan.Key{Namespace: "team", Name: "one"}
	its := func(of *addonsv1.HelmChartProxy, record plan.Record) []*addonsv1.HelmReleaseProxy {
		return []*addonsv1.HelmReleaseProxy{releaseOf(of, cluster, plan.BundleName(of, cluster, 0), record)}
	}
	renamed := func(of *addonsv1.HelmChartProxy) *addonsv1.HelmChartProxy {
		of = of.DeepCopy()
		of.Spec.ReleaseName = "other"
		return of
	}
	for name, test := range map[string]struct {
		of         *addonsv1.HelmChartProxy
		releases   []*addonsv1.HelmReleaseProxy
		incomplete bool
		want       bool
	}{
		"a release":                      {of, its(of, plan.Record{Installed: true}), false, false},
		"no chart":                       {of, its(of, plan.Record{}), true, true},
		"nothing but moved Clusters":     {renamed(of), nil, false, true},
		"another release":                {renamed(of), its(of, plan.Record{Installed: true}), false, true},
		"InstallOnce, not installed yet": {once, its(once, plan.Record{}), false, false},
		"once":                           {once, its(once, plan.Record{Installed: true}), false, true},
		"InstallOnce, another name":      {renamed(once), its(once, plan.Record{Installed: true}), false, true},
	} {
		if got := (&scope{of: test.of, in: &inputs.Inputs{Incomplete: test.incomplete}, releases: test.releases}).isRetained(); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
		if isOutdated := len(test.releases) > 0 && proxy.IsOutdated(test.of, test.releases[0]); isOutdated != (name == "another release") {
			t.Errorf("%s: outdated %t", name, isOutdated)
		}
	}
}

// selected returns a Cluster of a HelmChartProxy, and its Fleet Cluster.
func selected() (*clusterv1.Cluster, *fleetv1.Cluster) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "one"}}
	return cluster, &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "one", Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "one", UID: "one"}},
	}}
}

// A new chart is not written before the releases have written their new values: Fleet would deploy it with the old
// values first.
func TestVersionWithValues(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.Version, of.Spec.ValuesTemplate = "1.0.0", "old: true"
	cluster, fleet := selected()
	name := plan.BundleName(of, key, 0)
	release := releaseOf(of, key, name, plan.Record{FleetCluster: "one", Digest: "old", Keys: []string{"values.yaml"}, Installed: true})
	last, _ := plan.TargetOf(of, release, plan.RecordOf(release))
	have := plan.NewBundle(of, "team", name, plan.Chart{Version: "1.0.0", Agent: true}, "")
	have.Spec.Targets = []fleetv1.BundleTarget{last, {Name: "two", ClusterName: "two"}}
	r, now := reconciler(t, cluster, fleet, have), testclock.NewFakeClock(time.Now())
	r.Store = store.New(r.Client, r.Client, "muster", now)
	r.Inputs = &inputs.Reader{Now: func() time.Time { return time.Time{} }} // No time passes.
	of.Spec.Version, of.Spec.ValuesTemplate = "2.0.0", "new: true"
	in := &inputs.Inputs{Chart: plan.Chart{Version: "2.0.0", Agent: true}, Digest: "2.0.0"}
	read := func() *fleetv1.Bundle {
		its := &fleetv1.Bundle{}
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(have), its); err != nil {
			t.Fatal(err)
		}
		return its
	}
	releases := []*addonsv1.HelmReleaseProxy{release}
	err := r.put(t.Context(), &scope{client.ObjectKeyFromObject(have), read(), of, in, releases, 0}, []fleetv1.BundleTarget{last})
	if got := read(); !errors.Is(err, errUnseen) || got.Spec.Helm.Version != "1.0.0" || len(got.Spec.Targets) != 1 {
		t.Errorf("%v; chart %s with %d targets", err, got.Spec.Helm.Version, len(got.Spec.Targets))
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		for range 2 { // An event in between makes it wait no longer.
			if got := r.wait(client.ObjectKeyFromObject(have), err); got != want {
				t.Errorf("it looks again after %s, want %s", got, want)
			}
		}
		now.Step(want)
	}
	r.Inputs.Saw(release, in)
	err = r.put(t.Context(), &scope{client.ObjectKeyFromObject(have), read(), of, in, releases, 0}, []fleetv1.BundleTarget{last})
	if got := read(); err != nil || got.Spec.Helm.Version != "2.0.0" {
		t.Errorf("%v; chart %s", err, got.Spec.Helm.Version)
	}
	if done, next := r.wait(client.ObjectKeyFromObject(have), err), r.wait(client.ObjectKeyFromObject(have), errUnseen); done != 0 || next != time.Second {
		t.Errorf("it looks again after %s, and in the next change after %s", done, next)
	}
}

// The CRD of Fleet before 0.16 has no mode, so a Bundle that lacks it is not written for it.
func TestFleetWithoutModes(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	cluster, fleet := selected()
	release := releaseOf(of, key, plan.BundleName(of, key, 0), plan.Record{FleetCluster: "one"})
	in := &inputs.Inputs{Chart: plan.Chart{Version: "1.0.0", Agent: true}}
	for mode, want := range map[fleetv1.TargetCustomizationMode]fleetv1.TargetCustomizationMode{
		"": "", fleetv1.TargetCustomizationModeAllMatches: fleetv1.TargetCustomizationModeFirstMatch,
	} {
		have := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), in.Chart, "")
		have.Spec.TargetCustomizationMode = mode
		r := reconciler(t, cluster.DeepCopy(), fleet.DeepCopy(), have)
		name := client.ObjectKeyFromObject(have)
		err := errors.Join(r.Get(t.Context(), name, have),
			r.put(t.Context(), &scope{name, have.DeepCopy(), of, in, []*addonsv1.HelmReleaseProxy{release}, 0}, nil))
		before := have.ResourceVersion
		err = errors.Join(err, r.Get(t.Context(), name, have))
		if got := have.Spec.TargetCustomizationMode; err != nil || got != want || (have.ResourceVersion == before) != (mode == want) {
			t.Errorf("%q became %q, want %q (%v)", mode, got, want, err)
		}
	}
}

// A target names no values that belong to an earlier Bundle: the garbage collector deletes them, and Fleet would work
// on no later target.
func TestValuesOfAnotherBundle(t *testing.T) {
	of, key := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.ValuesTemplate = "a: {{ .Cluster.metadata.name }}"
	cluster, fleet := selected()
	in := &inputs.Inputs{}
	in.Selector, _ = plan.NewSelector(of)
	have := plan.NewBundle(of, "team", plan.BundleName(of, key, 0), plan.Chart{Version: "1.0.0"}, "")
	have.UID = "this"
	for uid, want := range map[types.UID]bool{"": false, "earlier": false, "this": true} {
		release := releaseOf(of, key, have.Name, plan.Record{FleetCluster: "one", Digest: "any", Keys: []string{"values.yaml"}, Bundle: uid})
		got, err := reconciler(t, cluster, fleet).target(t.Context(), &scope{key: client.ObjectKeyFromObject(have), have: have, of: of, in: in}, release, plan.RecordOf(release), nil)
		if err != nil || (got != nil) != want {
			t.Errorf("%q: target %v, want one: %t (%v)", uid, got, want, err)
		}
	}
}

// The program removes the credentials of an earlier repository even if it was killed in between, and writes the new
// credentials before a Bundle names them.
func TestOtherRepository(t *testing.T) {
	of, cluster := proxyOf("team", "web"), plan.Key{Namespace: "team", Name: "one"}
	of.Spec.Credentials = &addonsv1.Credentials{}
	chart := plan.Chart{Version: "1.0.0", Agent: true}
	have := plan.NewBundle(of, "team", plan.BundleName(of, cluster, 0), chart, "")
	key, last, release := client.ObjectKeyFromObject(have), &corev1.Secret{}, releaseOf(of, cluster, have.Name, plan.Record{FleetCluster: "one"})
	r := reconciler(t, have)
	isCut := true
	r.Store = store.New(interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if isCut && object.GetName() == have.Spec.HelmOpOptions.SecretName && len(object.(*corev1.Secret).Data) == 0 {
				return errors.New("killed")
			}
			return c.Update(ctx, object, options...)
		},
	}), r.Client, "muster", clock.RealClock{})
	r.Inputs = &inputs.Reader{Now: func() time.Time { return time.Time{} }}
	in := &inputs.Inputs{Chart: chart, Credentials: map[string][]byte{"password": []byte("sesame")}}
	r.Inputs.Saw(release, in)
	write := func() error {
		its, err := r.Bundle(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return r.put(t.Context(), &scope{key, its, of, in, []*addonsv1.HelmReleaseProxy{release}, 0}, nil)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	of.Spec.RepoURL = "https://other.example.com"
	if err := write(); err == nil {
		t.Fatal("nothing was killed")
	}
	next := plan.Key{Namespace: "team", Name: plan.CredentialsName(of, have.Name)}
	if err := r.Get(t.Context(), next, &corev1.Secret{}); err != nil {
		t.Error(err)
	}
	isCut = false
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if err := r.Get(t.Context(), plan.Key{Namespace: "team", Name: have.Spec.HelmOpOptions.SecretName}, last); err != nil || len(last.Data) > 0 {
		t.Errorf("the last Secret has %d keys (%v)", len(last.Data), err)
	}
}

// A Bundle that was just changed is reconciled again later, with all that has changed until then.
func TestPaced(t *testing.T) {
	of := proxyOf("team", "web")
	have := plan.NewBundle(of, "team", "hcp-web", plan.Chart{Version: "1.0.0"}, "")
	r, key, now := reconciler(t, have), client.ObjectKeyFromObject(have), testclock.NewFakeClock(time.Now())
	r.Store, r.Failures = store.New(r.Client, r.Live, "muster", now), &sync.Map{}
	if err := r.Get(t.Context(), key, have); err != nil {
		t.Fatal(err)
	}
	if err := r.UpdateBundle(t.Context(), have, func(its *fleetv1.Bundle) { its.Spec.Paused = true }); err != nil {
		t.Fatal(err)
	}
	for _, isPaced := range []bool{true, false} { // It has no HelmChartProxy and no targets.
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		if err != nil || (result.RequeueAfter > 0) != isPaced {
			t.Errorf("paced: %t; it is reconciled again after %s (%v)", isPaced, result.RequeueAfter, err)
		}
		if err := r.Get(t.Context(), key, have); apierrors.IsNotFound(err) == isPaced {
			t.Errorf("paced: %t; its read answers %v", isPaced, err)
		}
		now.Step(result.RequeueAfter)
	}
}
