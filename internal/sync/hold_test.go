package sync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// heldOne is a Cluster whose upgrade is held.
func heldOne() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "1", Labels: map[string]string{"addon": "yes"},
		Annotations: map[string]string{stamp.ClusterNameAnnotation: "one", stamp.OwnedByAnnotation: "fleet-addon-config"}}}
}

func releaseFor(namespace, proxy string, uid types.UID) *addonsv1.HelmReleaseProxy {
	release := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{plan.Finalizer}, Namespace: namespace, Name: proxy + "-one", Labels: map[string]string{clusterv1.ClusterNameLabel: "one"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "addons.cluster.x-k8s.io/v1alpha1", Kind: "HelmChartProxy", Name: proxy, UID: uid, Controller: ptr.To(true)}}}}
	release.Spec.ClusterRef.Namespace, release.Spec.ClusterRef.Name = "team", "one"
	return release
}

func proxyOf(namespace, name, addon string) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Finalizers: []string{plan.Finalizer}}}
	its.Spec.ClusterSelector.MatchLabels = map[string]string{"addon": addon}
	return its
}

// Whoever may write HelmReleaseProxies, but not make a HelmChartProxy select the Cluster, holds no upgrade.
func TestForgedReleasesHoldNothing(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	everywhere := proxyOf("platform", "everywhere", "yes")
	everywhere.Spec.NamespaceSelector = &metav1.LabelSelector{}
	ofCAAPH := releaseFor("team", "caaph", "teamcaaph") // It never has a Bundle.
	ofCAAPH.Finalizers = nil
	byCAAPH := proxyOf("team", "caaph", "yes")
	byCAAPH.Finalizers = []string{"helmchartproxy.addons.cluster.x-k8s.io"}
	leaving := proxyOf("team", "leaving", "yes")
	leaving.Finalizers, leaving.DeletionTimestamp = []string{plan.Finalizer}, &metav1.Time{Time: time.Now()}
	there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		proxyOf("team", "cni", "yes"), releaseFor("team", "cni", "teamcni"),
		releaseFor("team", "nobody", "x"),
		proxyOf("team", "anew", "yes"), releaseFor("team", "anew", "older"),
		byCAAPH, ofCAAPH, leaving,
		proxyOf("team", "other", "no"), releaseFor("team", "other", "teamother"),
		proxyOf("evil", "cni", "yes"), releaseFor("evil", "cni", "evilcni"),
		everywhere, releaseFor("platform", "everywhere", "platformeverywhere"),
	).Build()
	deployment := func(bundle, namespace string) fleetv1.BundleDeployment {
		its := fleetv1.BundleDeployment{}
		its.Name, its.Labels = bundle, map[string]string{fleetv1.BundleLabel: bundle, plan.ProxyNamespaceLabel: namespace}
		return its
	}
	reader := addOnReader{live: there, scopes: &scopeReader{Reader: there}, now: time.Now}
	got, err := reader.releases(t.Context(), heldOne(), []fleetv1.BundleDeployment{deployment("hcp-x", "platform"), deployment("hcp-y", "evil"), deployment("other", "kube-system")})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, addOn := range got {
		names = append(names, addOn.Name+addOn.ID)
	}
	slices.Sort(names)
	if want := []string{"HelmChartProxy anew", "HelmChartProxy cni 0", "HelmChartProxy platform/everywhere 0"}; !slices.Equal(names, want) {
		t.Errorf("the add-ons are %v, want %v", names, want)
	}
}

// doneRelease is a release that is deployed to a held Cluster with the values for its version, and ready.
type doneRelease struct {
	cluster    *clusterv1.Cluster
	proxy      *addonsv1.HelmChartProxy
	release    *addonsv1.HelmReleaseProxy
	record     plan.Record
	deployment fleetv1.BundleDeployment
}

func newDoneRelease() *doneRelease {
	is := &doneRelease{cluster: heldOne(), proxy: proxyOf("team", "cni", "yes"), release: releaseFor("team", "cni", "teamcni")}
	is.cluster.Spec.Topology.Version = "v2"
	is.proxy.Spec.ValuesTemplate = "version: {{ .Cluster.spec.topology.version }}"
	is.proxy.Status.Conditions = []metav1.Condition{{Type: addonsv1.HelmReleaseProxySpecsUpToDateCondition, Status: metav1.ConditionTrue}}
	is.release.UID, is.release.Spec.ReleaseNamespace, is.release.Spec.ReleaseName = "release", "addons", "cni"
	is.release.Status.Conditions = []metav1.Condition{{Type: addonsv1.ReadyCondition, Status: metav1.ConditionTrue}}
	is.record = plan.Record{
		FleetCluster: "one", Of: &plan.Of{Cluster: "1", Release: "release"}, Digest: "x", Version: "v2", Revision: 1, Installed: true,
	}
	is.deployment.Name, is.deployment.Labels = "hcp-cni", map[string]string{plan.ContentLabel: "c"}
	is.deployment.Spec.DeploymentID, is.deployment.Spec.StagedDeploymentID = "id", "id"
	is.deployment.Spec.Options.DownstreamResources = []fleetv1.DownstreamResource{{
		Kind: plan.ConfigMapKind, Name: plan.ValuesName(client.ObjectKeyFromObject(is.proxy), "team", "one", is.record.Revision),
	}}
	is.deployment.Status.AppliedDeploymentID, is.deployment.Status.Release = "id", "addons/cni:3"
	return is
}

// The values of a release count only once they were rendered for the new version, and are deployed and ready. What is
// wrong with another Cluster does not matter.
func TestWhenAReleaseIsDone(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	says := func(message string) func(*doneRelease) {
		return func(is *doneRelease) {
			its := &is.proxy.Status.Conditions[0]
			its.Status, its.Message = metav1.ConditionFalse, message
		}
	}
	taken := func(is *doneRelease) {
		is.release.Status.Conditions = []metav1.Condition{
			{Type: addonsv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: addonsv1.ReleaseTakenReason},
			{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: addonsv1.ReleaseTakenReason},
		}
	}
	for name, test := range map[string]struct {
		change func(*doneRelease)
		want   bool
	}{
		"another HelmChartProxy has the release":        {func(is *doneRelease) { taken(is); is.deployment.Name = "hcp-other" }, true},
		"another has it, and has not deployed it yet":   {func(is *doneRelease) { taken(is); is.deployment.Name, is.deployment.Status.Release = "hcp-other", "" }, false},
		"another has it, too":                           {taken, true},
		"another has it, too, and this is not rendered": {func(is *doneRelease) { taken(is); is.record.Version = "v1" }, false},
		"done":                             {func(*doneRelease) {}, true},
		"rendered for the last version":    {func(is *doneRelease) { is.record.Version = "v1" }, false},
		"no version in the template":       {func(is *doneRelease) { is.record.Version = "" }, true},
		"none, and of an earlier Cluster":  {func(is *doneRelease) { is.record.Version, is.record.Of.Cluster = "", "0" }, true},
		"none, and values are not there":   {func(is *doneRelease) { is.record.Version, is.record.Digest = "", "" }, false},
		"none, and no record at all":       {func(is *doneRelease) { is.record = plan.Record{} }, false},
		"none, and its template is new":    {func(is *doneRelease) { is.record.Version, is.proxy.Generation = "", 2 }, false},
		"the record of another release":    {func(is *doneRelease) { is.record.Of.Release = "other" }, false},
		"the record of an earlier Cluster": {func(is *doneRelease) { is.record.Of.Cluster = "0" }, false},
		"a forged record":                  {func(is *doneRelease) { is.record.Of = nil }, false},
		"InstallOnce": {func(is *doneRelease) {
			is.record.Version, is.proxy.Spec.ReconcileStrategy = "v1", addonsv1.ReconcileStrategyInstallOnce
		}, true},
		"InstallOnce, not installed yet": {func(is *doneRelease) {
			is.record.Version, is.record.Installed, is.proxy.Spec.ReconcileStrategy = "v1", false, addonsv1.ReconcileStrategyInstallOnce
		}, false},
		"it waits for its turn":             {func(is *doneRelease) { is.record.Rollout = &plan.Rollout{Pending: "change"} }, false},
		"it failed":                         {func(is *doneRelease) { is.release.Status.Conditions[0].Status = metav1.ConditionFalse }, false},
		"it was Ready with the last spec":   {func(is *doneRelease) { is.release.Generation = 2 }, false},
		"Fleet has not got the values":      {func(is *doneRelease) { is.record.Revision = 2 }, false},
		"the agent is behind":               {func(is *doneRelease) { is.deployment.Status.AppliedDeploymentID = "last" }, false},
		"no HelmReleaseProxy":               {func(is *doneRelease) { is.release.Name, is.release.Spec.ClusterRef.Name = "cni-two", "two" }, false},
		"no Bundle":                         {func(is *doneRelease) { is.deployment.Name = "other" }, false},
		"a spec that nobody has looked at":  {func(is *doneRelease) { is.proxy.Generation = 2 }, false},
		"a HelmChartProxy without a status": {func(is *doneRelease) { is.proxy.Status.Conditions = nil }, false},
		"a chart that is missing":           {says("chart cni 1.0.1: not found"), false},
		"another Cluster is not in Fleet":   {says("team/two: the Cluster is not in Fleet; see its condition FleetImported"), true},
	} {
		is := newDoneRelease()
		test.change(is)
		is.release.Annotations = map[string]string{plan.RecordAnnotation: is.record.String(), plan.BundleAnnotation: "hcp-cni"}
		there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(is.proxy, is.release).Build()
		reader := addOnReader{live: there, scopes: &scopeReader{Reader: there}, now: time.Now}
		got, err := reader.releases(t.Context(), is.cluster, []fleetv1.BundleDeployment{is.deployment})
		if err != nil || len(got) != 1 || got[0].Ready != test.want {
			t.Errorf("%s: %+v (%v)", name, got, err)
		}
	}
}

// If Muster is upgraded while an upgrade is held, the hold goes on by the records that the version before has written: a
// release whose template cannot read the version has none in its record, and holds nothing.
func TestHoldGoesOnByEarlierRecords(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const record = `{"fleetCluster":"one","of":{"cluster":"1","release":"release"},"bundle":"b","revision":1,"digest":"x",%s"keys":["values.yaml"],"installed":true}`
	for version, waits := range map[string]bool{`"version":"v1",`: true, `"version":"v2",`: false, "": false} {
		is, began := newDoneRelease(), time.Now()
		is.release.Annotations = map[string]string{plan.RecordAnnotation: fmt.Sprintf(record, version), plan.BundleAnnotation: "hcp-cni"}
		objects := append(inFleet(t, is.cluster, "v2", "1", began.Add(-time.Hour)), is.proxy, is.release, &is.deployment)
		is.deployment.Namespace, is.deployment.Status.Ready = objects[1].GetName(), true
		for key, value := range map[string]string{
			fleetv1.ClusterNamespaceLabel: "team", fleetv1.ClusterLabel: "one", fleetv1.BundleLabel: "hcp-cni", fleetv1.BundleNamespaceLabel: "team",
		} {
			is.deployment.Labels[key] = value
		}
		api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
		r := &holdReconciler{
			now: time.Now, held: map[types.NamespacedName]*heldCluster{},
			addOns: addOnReader{live: api, settings: settings.NewReader(api), scopes: &scopeReader{Reader: api}, now: time.Now},
		}
		for look := range 2 {
			progress := r.progress(t.Context(), is.cluster, hold.Hold{From: "v1", To: "v2", Since: began})
			if !progress.Handed || slices.Equal(progress.Waiting, []string{"HelmChartProxy cni"}) != waits || len(progress.Waiting) > 0 != waits || len(progress.Unproven) > 0 {
				t.Errorf("%q, look %d: %+v", version, look, progress)
			}
		}
	}
}

// Muster reads ConfigMaps and Secrets again at an interval, so the values may be those of an earlier one.
func TestPolledValues(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*doneRelease)
		want   bool
	}{
		"valuesTemplate": {func(*doneRelease) {}, false},
		"valuesFrom":     {func(is *doneRelease) { is.proxy.Spec.ValuesFrom = []addonsv1.ValuesReference{{Name: "values"}} }, true},
		"InstallOnce": {func(is *doneRelease) {
			is.proxy.Spec.ValuesFrom, is.proxy.Spec.ReconcileStrategy = []addonsv1.ValuesReference{{Name: "values"}}, addonsv1.ReconcileStrategyInstallOnce
		}, false},
	} {
		is := newDoneRelease()
		test.change(is)
		is.release.Annotations = map[string]string{plan.RecordAnnotation: is.record.String(), plan.BundleAnnotation: "hcp-cni"}
		there := fake.NewClientBuilder().WithScheme(scheme).WithObjects(is.proxy, is.release).Build()
		reader := addOnReader{live: there, scopes: &scopeReader{Reader: there}, now: time.Now}
		got, err := reader.releases(t.Context(), is.cluster, []fleetv1.BundleDeployment{is.deployment})
		if err != nil || len(got) != 1 || !got[0].Ready || got[0].ReadAtIntervals != test.want || (got[0].Patience > plan.PollInterval) != test.want {
			t.Errorf("%s: %+v (%v)", name, got, err)
		}
	}
}

// However many Bundles a tenant makes, few namespaces are searched.
func TestFewNamespacesAreSearched(t *testing.T) {
	var deployments []fleetv1.BundleDeployment
	for i := range 1000 {
		its := fleetv1.BundleDeployment{}
		its.Labels = map[string]string{fleetv1.BundleLabel: "hcp-x", plan.ProxyNamespaceLabel: "n" + string(rune('a'+i%26)) + string(rune('a'+i/26%26))}
		deployments = append(deployments, its)
	}
	if got := len(releaseNamespaces(heldOne(), deployments)); got > mostReleaseNamespaces {
		t.Errorf("%d namespaces", got)
	}
}

// An API server that does not answer is an error, and no proof that all add-ons are ready.
func TestUnreadableAddOns(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	broken := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no")
		},
	}).Build()
	reader := addOnReader{live: broken, scopes: &scopeReader{Reader: broken}, now: time.Now}
	if _, err := reader.deployments(t.Context(), heldOne()); err == nil {
		t.Error("BundleDeployments that cannot be read count as none")
	}
	if _, err := reader.releases(t.Context(), heldOne(), nil); err == nil {
		t.Error("HelmReleaseProxies that cannot be read count as none")
	}
}

// The syncer logs once why the add-ons of a held Cluster cannot be read, not at each look.
func TestUnreadableAddOnsAreLoggedOnce(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	var broken error
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken },
	}).Build()
	r := &holdReconciler{
		now: time.Now, held: map[types.NamespacedName]*heldCluster{},
		addOns: addOnReader{live: api, settings: settings.NewReader(api), scopes: &scopeReader{Reader: api}},
	}
	lines := 0
	ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, _ string) { lines++ }, funcr.Options{}))
	for look, next := range []struct {
		broken error
		lines  int
	}{{errors.New("no"), 1}, {errors.New("no"), 1}, {errors.New("not now"), 2}, {nil, 2}, {errors.New("not now"), 3}} {
		broken = next.broken
		if progress := r.progress(ctx, heldOne(), hold.Hold{}); progress.Unreadable != (broken != nil) || lines != next.lines {
			t.Errorf("look %d: %d lines, want %d (%+v)", look, lines, next.lines, progress)
		}
	}
}

// Clusters without a wish cause no work when they change.
func TestHoldNews(t *testing.T) {
	plain, asking := heldOne(), heldOne()
	plain.Spec.Topology.ClassRef.Name, asking.Spec.Topology.ClassRef.Name = "standard", "standard"
	asking.Annotations[stamp.HoldAnnotation] = "30m"
	changed := func(cluster *clusterv1.Cluster) *clusterv1.Cluster {
		cluster = cluster.DeepCopy()
		cluster.ResourceVersion = "2"
		cluster.Spec.Topology.Version = "v2"
		return cluster
	}
	imported := changed(plain)
	imported.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue}}
	paused := changed(plain)
	paused.Spec.Paused = ptr.To(true)
	rebased := changed(plain)
	rebased.Spec.Topology.ClassRef.Name = "other"
	for name, test := range map[string]struct {
		before, after *clusterv1.Cluster
		want          bool
	}{
		"a version, and nobody asks": {plain, changed(plain), false},
		"a version":                  {asking, changed(asking), true},
		"opts in":                    {plain, changed(asking), true},
		"opts out":                   {asking, changed(plain), true},
		"is imported":                {plain, imported, true},
		"has another class":          {plain, rebased, true},
		"is unpaused":                {paused, changed(plain), true},
	} {
		if got := holdNews.Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// An event of a Fleet Cluster makes the syncer look at its Cluster at once if that is held, and at no other.
func TestFleetClusterOfAHeldCluster(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := heldOne()
	all := &enqueuer{Reader: fake.NewClientBuilder().WithScheme(scheme).WithIndex(&clusterv1.Cluster{}, byPin, func(client.Object) []string { return nil }).Build()}
	r := &holdReconciler{held: map[types.NamespacedName]*heldCluster{}}
	requests := func() []ctrl.Request {
		return r.heldOf(all)(t.Context(), inFleet(t, cluster, "v2", "1", time.Now())[0])
	}
	if got := requests(); len(got) > 0 {
		t.Errorf("nothing is held, and %v are looked at", got)
	}
	r.enter(client.ObjectKeyFromObject(cluster))
	if got := requests(); len(got) != 1 || got[0].NamespacedName != client.ObjectKeyFromObject(cluster) {
		t.Errorf("%v are looked at", got)
	}
}

// A Cluster that changes while it gets its class's wish gets it later: it does not ask for holds yet, so that its event
// causes no work.
func TestClassHoldMeetsAChange(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := heldOne()
	cluster.Spec.Topology.ClassRef.Name = "standard"
	cluster.Status.Conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue}}
	class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "standard", Annotations: map[string]string{stamp.HoldAnnotation: "30m"}}}
	isChanged := true
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, class).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if isChanged {
				return apierrors.NewConflict(schema.GroupResource{Resource: "clusters"}, object.GetName(), errors.New("it has changed"))
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}).Build()
	r := &holdReconciler{Client: c, applier: &kube.Applier{Client: c, Live: c, Store: kube.NewStore(c, scheme)}, now: time.Now, held: map[types.NamespacedName]*heldCluster{}}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}
	if result, err := kube.Consistent(r).Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 {
		t.Errorf("%+v (%v)", result, err)
	}
	isChanged = false
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), request.NamespacedName, cluster); err != nil || cluster.Annotations[stamp.ClassHoldAnnotation] != "30m" {
		t.Errorf("%v (%v)", cluster.Annotations, err)
	}
}

// At a start, only Clusters and classes that ask for holds cause work.
func TestHoldNewsAtTheStart(t *testing.T) {
	for annotation, want := range map[string]bool{
		"": false, "other": false, stamp.HoldAnnotation: true, stamp.ClassHoldAnnotation: true, stamp.HookAnnotation: true,
	} {
		cluster := heldOne()
		cluster.Annotations[annotation] = "30m"
		if got := holdNews.Create(event.CreateEvent{Object: cluster}); got != want {
			t.Errorf("a Cluster with %q: %t", annotation, got)
		}
		class := newClass()
		class.Annotations = map[string]string{annotation: "30m"}
		if got, want := classHoldNews.Create(event.CreateEvent{Object: class}), annotation == stamp.HoldAnnotation; got != want {
			t.Errorf("a class with %q: %t", annotation, got)
		}
		if got, want := classHoldNews.Update(event.UpdateEvent{ObjectOld: newClass(), ObjectNew: class}), annotation == stamp.HoldAnnotation; got != want {
			t.Errorf("a class that gets %q: %t", annotation, got)
		}
	}
}

// Many holds at once do not load the API server: the syncer reads the add-ons of each Cluster less often.
func TestHoldInterval(t *testing.T) {
	r := &holdReconciler{held: map[types.NamespacedName]*heldCluster{}}
	key := types.NamespacedName{Name: "one"}
	if got := r.interval(key); got > 3*time.Second {
		t.Errorf("one is looked at every %s", got)
	}
	for i := range 5000 {
		r.held[types.NamespacedName{Name: "n", Namespace: string(rune(i))}] = &heldCluster{}
	}
	if got := r.interval(key); 5000/got.Seconds() > 100 {
		t.Errorf("of 5000, each is looked at every %s", got)
	}
	r.held[key] = &heldCluster{took: time.Minute} // The bound of the hold comes in time: see Decide.
	if got := r.interval(key); got < restFactor*time.Minute {
		t.Errorf("a look that takes a minute comes every %s", got)
	}
}

// The syncer reads the add-ons of a Cluster less often if reading takes long, even if the Cluster has few add-ons.
func TestSlowLooks(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	slow := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			now = now.Add(time.Second)
			return nil
		},
	}).Build()
	r := &holdReconciler{
		now: func() time.Time { return now }, held: map[types.NamespacedName]*heldCluster{},
		addOns: addOnReader{live: slow, settings: settings.NewReader(slow), scopes: &scopeReader{Reader: slow}},
	}
	progress := r.progress(t.Context(), heldOne(), hold.Hold{From: "v1", To: "v2", Since: now})
	if progress.Unreadable || progress.Handed {
		t.Errorf("without a Fleet Cluster: %+v", progress)
	}
	if got := r.interval(client.ObjectKeyFromObject(heldOne())); got < restFactor*time.Second {
		t.Errorf("the next look comes after %s", got)
	}
}

// inFleet returns a Fleet Cluster with a version, and its namespace.
func inFleet(t *testing.T, cluster *clusterv1.Cluster, version, uid string, made time.Time) []client.Object {
	t.Helper()
	meta := metav1.ObjectMeta{
		Namespace: cluster.Namespace, Name: stamp.PinOf(cluster.Annotations).ClusterName, UID: types.UID("fleet " + uid),
		CreationTimestamp: metav1.NewTime(made), OwnerReferences: []metav1.OwnerReference{desired.Owner(cluster)},
	}
	fleet := &fleetv1.Cluster{ObjectMeta: meta, Spec: fleetv1.ClusterSpec{TemplateValues: &fleetv1.GenericMap{Data: map[string]any{}}}}
	if version != "" {
		if err := unstructured.SetNestedField(fleet.Spec.TemplateValues.Data, version, hold.TopologyVersion...); err != nil {
			t.Fatal(err)
		}
	}
	return []client.Object{fleet, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: stamp.FleetNamespace(fleet.Namespace, fleet.Name), UID: types.UID("namespace " + uid), CreationTimestamp: meta.CreationTimestamp,
	}}}
}

// Fleet deploys everything anew to a Fleet Cluster or namespace that is made again. Until it has, its BundleDeployments
// say nothing.
func TestHoldWhileFleetDeploysAnew(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster, began := heldOne(), time.Now().Truncate(time.Second)
	of := hold.Hold{From: "v1", To: "v2", Since: began}
	earlier, later := inFleet(t, cluster, "v2", "1", began.Add(-time.Hour)), inFleet(t, cluster, "v2", "2", began.Add(time.Minute))
	bundle := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: earlier[1].GetName(), Name: "cni", Labels: map[string]string{
		fleetv1.ClusterNamespaceLabel: cluster.Namespace, fleetv1.ClusterLabel: earlier[0].GetName(), fleetv1.BundleLabel: "cni", fleetv1.BundleNamespaceLabel: cluster.Namespace,
	}}}
	bundle.Spec.DeploymentID, bundle.Spec.StagedDeploymentID = "1", "1"
	going := earlier[1].DeepCopyObject().(client.Object)
	going.SetDeletionTimestamp(&metav1.Time{Time: began})
	going.SetFinalizers([]string{"kubernetes"})
	ignored := earlier[0].DeepCopyObject().(client.Object)
	ignored.SetLabels(map[string]string{fleetv1.ClusterManagementLabel: "any"})
	for name, after := range map[string][]client.Object{
		"the Fleet Cluster is gone":          {earlier[1]},
		"its namespace is gone":              {earlier[0]},
		"its namespace is going":             {earlier[0], going},
		"its namespace is made anew":         {earlier[0], later[1]},
		"the Fleet Cluster is made anew":     {later[0], earlier[1]},
		"both are made anew":                 later,
		"both are there, but for the Bundle": nil,
		"Fleet ignores it":                   {ignored},
	} {
		t.Run(name, func(t *testing.T) {
			now := began.Add(time.Second)
			on := func(objects ...client.Object) addOnReader {
				api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
				return addOnReader{live: api, settings: settings.NewReader(api), scopes: &scopeReader{Reader: api}, now: time.Now}
			}
			r := &holdReconciler{now: func() time.Time { return now }, held: map[types.NamespacedName]*heldCluster{}}
			look := func() (isOver bool) {
				progress := r.progress(t.Context(), cluster, of)
				if progress.Unreadable {
					t.Fatal(progress)
				}
				return progress.Handed && len(progress.Waiting)+len(progress.Unproven) == 0
			}
			r.addOns = on(earlier[0], earlier[1], bundle)
			if look() {
				t.Fatal("a Bundle that is not ready holds nothing")
			}
			now = now.Add(2 * time.Minute)
			if r.addOns = on(after...); after == nil {
				r.addOns = on(earlier...)
			}
			isOver := look()
			if name == "Fleet ignores it" { // It has no namespace, and what was seen was in another home.
				isOver = look()
			}
			if isOver != (after == nil || name == "Fleet ignores it") {
				t.Errorf("the hold ends: %t", isOver)
			}
		})
	}
}

// While the settings are unknown, a Fleet Cluster without the new version may get it later. A hold does not end before.
func TestHoldWhileTheSettingsAreUnknown(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster, of := heldOne(), hold.Hold{From: "v1", To: "v2"}
	for name, test := range map[string]struct {
		config  *addonsv1.ClusterConfig
		isGone  bool
		version string
		want    bool
	}{
		"gone, the old version":    {isGone: true, version: "v1"},
		"gone, the new version":    {isGone: true, version: "v2", want: true},
		"gone, perhaps excluded":   {isGone: true},
		"invalid, the old version": {config: &addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}}, version: "v1"},
		"import turned off":        {config: &addonsv1.ClusterConfig{Enabled: ptr.To(false)}, version: "v1", want: true},
		"excluded":                 {config: &addonsv1.ClusterConfig{}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := inFleet(t, cluster, test.version, "1", time.Now())
			if test.config != nil {
				objects = append(objects, &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: addonsv1.FleetAddonConfigName}, Spec: addonsv1.FleetAddonConfigSpec{Cluster: test.config}})
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			r := addOnReader{live: api, settings: settings.NewReader(api), scopes: &scopeReader{Reader: api}}
			if test.isGone {
				r.settings.Saw(nil)
			}
			if seen, err := r.inFleet(t.Context(), cluster, of); err != nil || seen.Handed != test.want || seen.Home == "" {
				t.Errorf("%+v (%v)", seen, err)
			}
		})
	}
}

// The control planes of EKS and GKE, and their nodes, report versions that are older than the wanted one for ever.
func TestGivenVersion(t *testing.T) {
	for name, status := range map[string]map[string]any{
		"EKS":      {"version": "1.31"},
		"GKE":      {"version": "1.31.4-gke.1014001", "currentVersion": "1.31.4-gke.1014001"},
		"versions": {"version": "v1.30.0", "versions": []any{map[string]any{"version": "v1.31.4-eks-2d98532", "replicas": int64(3)}}},
		"none":     nil,
	} {
		controlPlane := map[string]any{"spec": map[string]any{"version": "v1.31.4"}, "status": status}
		if got := givenVersion(controlPlane); got != "v1.31.4" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := givenVersion(nil); got != "" {
		t.Errorf("without a control plane: %q", got)
	}
}
