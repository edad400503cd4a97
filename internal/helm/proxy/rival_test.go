package proxy

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
)

// rivalOf returns a HelmChartProxy, its HelmReleaseProxy for Cluster team/one, and its Bundle with a target.
func rivalOf(namespace, name string, record plan.Record) (*addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy, *fleetv1.Bundle) {
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	of.Spec.ReleaseName, of.Spec.ReleaseNamespace = "ccm", "kube-system"
	if namespace != "team" {
		of.Spec.NamespaceSelector = &metav1.LabelSelector{}
	}
	cluster := plan.Key{Namespace: "team", Name: "one"}
	bundle := plan.NewBundle(of, "team", plan.BundleName(of, cluster, 0), plan.Chart{Version: "1.0.0"}, "")
	bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "one"}}
	release := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name + "-one", Finalizers: []string{plan.Finalizer},
		Annotations:     map[string]string{plan.BundleAnnotation: bundle.Name, plan.RecordAnnotation: record.String()},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: addonsv1.GroupVersion.String(), Kind: "HelmChartProxy", Name: name, UID: of.UID, Controller: ptr.To(true)}},
	}}
	release.Spec.ClusterRef.Namespace, release.Spec.ClusterRef.Name = cluster.Namespace, cluster.Name
	release.Spec.ReleaseName, release.Spec.ReleaseNamespace = plan.ReleaseName(of), plan.ReleaseNamespace(of)
	return of, release, bundle
}

// deploymentOf returns the BundleDeployment of a Bundle for a Cluster of a namespace, with the release that the agent reports.
func deploymentOf(bundle *fleetv1.Bundle, namespace, release string) *fleetv1.BundleDeployment {
	its := &fleetv1.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: stamp.FleetNamespace("team", "one"), Name: bundle.Name, Labels: maps.Clone(bundle.Labels)}}
	its.Labels[fleetv1.ClusterNamespaceLabel], its.Status.Release = namespace, release
	return its
}

// Who has a release is judged from objects alone, and forged objects count only for their author.
func TestClaims(t *testing.T) {
	ownProxy, own, ownBundle := rivalOf("team", "own", plan.Record{})
	of, its, bundle := rivalOf("team", "its", plan.Record{})
	far, farRelease, farBundle := rivalOf("platform", "far", plan.Record{FleetCluster: "one", Installed: true})
	key := client.ObjectKeyFromObject(of)
	is := func(change func(*addonsv1.HelmReleaseProxy)) *addonsv1.HelmReleaseProxy {
		release := its.DeepCopy()
		change(release)
		return release
	}
	foreign := far.DeepCopy()
	foreign.Spec.NamespaceSelector = nil
	renamed := of.DeepCopy()
	renamed.Spec.ReleaseName = "other"
	paused := of.DeepCopy()
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	once := of.DeepCopy()
	once.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce
	elsewhere, other, unlabelled := bundle.DeepCopy(), bundle.DeepCopy(), bundle.DeepCopy()
	elsewhere.Spec.Targets[0].ClusterName, other.Spec.Helm.ReleaseName, unlabelled.Labels = "two", "other", nil
	type claims = map[plan.Key]plan.Claim
	for name, test := range map[string]struct {
		objects []client.Object
		want    claims
	}{
		"nobody else":         {nil, nil},
		"it asks":             {[]client.Object{of, its}, claims{key: plan.Asks}},
		"for another release": {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) { r.Spec.ReleaseName = "other" })}, nil},
		"on another Cluster":  {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) { r.Spec.ClusterRef.Name = "two" })}, nil},
		"but no longer":       {[]client.Object{renamed, its}, nil},
		"but is paused":       {[]client.Object{paused, its}, nil},
		"but a Policy refuses it": {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) {
			r.Status.Conditions = []metav1.Condition{{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionFalse, Reason: addonsv1.PolicyRefusesReason}}
		})}, nil},
		"it has a target, and a Policy refuses it": {[]client.Object{of, bundle, is(func(r *addonsv1.HelmReleaseProxy) {
			r.Status.Conditions = []metav1.Condition{{Type: addonsv1.ClusterAvailableCondition, Status: metav1.ConditionFalse, Reason: addonsv1.PolicyRefusesReason}}
		})}, claims{key: plan.Has}},
		"its HelmChartProxy is gone":   {[]client.Object{its}, nil},
		"forged for another namespace": {[]client.Object{foreign, farRelease}, nil},
		"installed, from another one":  {[]client.Object{far, farRelease}, claims{{Namespace: "platform", Name: "far"}: plan.Installed}},
		"installed on another": {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) {
			r.Annotations[plan.RecordAnnotation] = `{"fleetCluster":"two","installed":true}`
		})}, claims{key: plan.Asks}},
		"installed once, by CAAPH": {[]client.Object{once, is(func(r *addonsv1.HelmReleaseProxy) {
			r.Annotations[addonsv1.ReleaseInstalledAnnotation], r.Status.Status, r.Status.Revision = "true", "deployed", 1
		})}, claims{key: plan.Installed}},
		"leaving, with nothing":           {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) { r.DeletionTimestamp = ptr.To(metav1.Now()) })}, nil},
		"leaving, with a target":          {[]client.Object{of, bundle, is(func(r *addonsv1.HelmReleaseProxy) { r.DeletionTimestamp = ptr.To(metav1.Now()) })}, claims{key: plan.Has}},
		"its HelmReleaseProxy was lost":   {[]client.Object{of, bundle}, claims{key: plan.Has}},
		"its HelmChartProxy was, too":     {[]client.Object{bundle}, claims{key: plan.Has}},
		"a target for another Cluster":    {[]client.Object{elsewhere}, nil},
		"a target for another release":    {[]client.Object{other}, nil},
		"a Bundle that is not Muster's":   {[]client.Object{unlabelled}, nil},
		"being uninstalled by the agent":  {[]client.Object{of, deploymentOf(bundle, "team", "kube-system/ccm:3"), is(func(r *addonsv1.HelmReleaseProxy) { r.DeletionTimestamp = ptr.To(metav1.Now()) })}, claims{key: plan.Has}},
		"not yet installed by the agent":  {[]client.Object{of, deploymentOf(bundle, "team", ""), is(func(r *addonsv1.HelmReleaseProxy) { r.DeletionTimestamp = ptr.To(metav1.Now()) })}, claims{key: plan.Has}},
		"only the BundleDeployment left":  {[]client.Object{deploymentOf(bundle, "team", "kube-system/ccm:3")}, claims{key: plan.Has}},
		"that of another release":         {[]client.Object{deploymentOf(bundle, "team", "kube-system/cc:3")}, nil},
		"of a namesake's Cluster":         {[]client.Object{deploymentOf(bundle, "another", "kube-system/ccm:3")}, nil},
		"another's BundleDeployment":      {[]client.Object{of, is(func(r *addonsv1.HelmReleaseProxy) { r.Annotations[plan.BundleAnnotation] = farBundle.Name }), deploymentOf(farBundle, "team", "")}, nil},
		"it has a target, and asks again": {[]client.Object{of, its, bundle, ownBundle}, claims{key: plan.Has, client.ObjectKeyFromObject(ownProxy): plan.Has}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := program.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			builder := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&addonsv1.HelmReleaseProxy{}, ByRelease, AskedIndex).WithIndex(&fleetv1.Bundle{}, ByRelease, ReleaseIndex)
			for _, object := range append(test.objects, ownProxy, own) {
				builder.WithObjects(object.DeepCopyObject().(client.Object))
			}
			want := claims{client.ObjectKeyFromObject(ownProxy): plan.Asks}
			maps.Copy(want, test.want)
			got, _, err := Claims(t.Context(), builder.Build(), own, "one")
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// Thousands of forged HelmReleaseProxies of one HelmChartProxy count as a few, and the more ask, the less often each looks.
func TestManyClaims(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	of := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "a"}}
	its := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, addonsv1.GroupVersion.WithKind("HelmChartProxy"))}}}
	of.Spec.ReleaseName = "ccm"
	its.Spec.ClusterRef.Namespace, its.Spec.ClusterRef.Name, its.Spec.ReleaseNamespace, its.Spec.ReleaseName = "team", "one", "default", "ccm"
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(of).WithIndex(&addonsv1.HelmReleaseProxy{}, ByRelease, AskedIndex).WithIndex(&fleetv1.Bundle{}, ByRelease, ReleaseIndex)
	for i := range 2 * mostOfOne {
		forged := its.DeepCopy()
		forged.Name = fmt.Sprintf("forged-%02d", i)
		if i >= mostOfOne {
			forged.Annotations = map[string]string{plan.RecordAnnotation: `{"fleetCluster":"one","installed":true}`}
		}
		builder.WithObjects(forged)
	}
	for i := range 3 { // They have no HelmChartProxy.
		orphan := its.DeepCopy()
		orphan.Name, orphan.Namespace = fmt.Sprintf("orphan-%02d", i), "evil"
		builder.WithObjects(orphan)
	}
	claims, asking, err := Claims(t.Context(), builder.Build(), its, "one")
	if want := (map[plan.Key]plan.Claim{client.ObjectKeyFromObject(of): plan.Asks}); !maps.Equal(claims, want) || asking != 2*mostOfOne || err != nil {
		t.Errorf("%v, %d (%v)", claims, asking, err)
	}
	for asking, want := range map[int]time.Duration{2: 30 * time.Second, MostAsking - 1: 30 * time.Second, MostAsking: time.Minute, 10 * MostAsking: 330 * time.Second, 1000 * MostAsking: 10 * time.Minute} {
		if got := UntilFree(asking); got != want {
			t.Errorf("each of %d looks every %s, want %s", asking, got, want)
		}
	}
}

// Known: a release whose Fleet Cluster was away loses its record and its target, so that it only asks for the release when its
// Cluster is back. One that comes first by name may then get it. It is left because a record that outlives its Fleet Cluster
// could be of another cluster, and a tenant may forge it.
func TestKnownAwayReleaseLosesItsPlace(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	first, its, _ := rivalOf("team", "a", plan.Record{})
	of, release, bundle := rivalOf("team", "b", plan.Record{FleetCluster: "one", Installed: true, Fleet: "1"})
	for name, isAway := range map[string]bool{"it has the release": false, "its Fleet Cluster was away": true} {
		builder := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&addonsv1.HelmReleaseProxy{}, ByRelease, AskedIndex).WithIndex(&fleetv1.Bundle{}, ByRelease, ReleaseIndex).
			WithObjects(first, its, of)
		if isAway {
			release = release.DeepCopy()
			release.Annotations[plan.RecordAnnotation] = plan.Record{Fleet: "1"}.String() // What the release's reconciler keeps.
			builder.WithObjects(release)
		} else {
			builder.WithObjects(release.DeepCopy(), bundle)
		}
		claims, _, err := Claims(t.Context(), builder.Build(), its, "one")
		if _, waits := plan.OtherHolder(client.ObjectKeyFromObject(of), "team", claims); waits != isAway || err != nil {
			t.Errorf("%s: it waits: %t (%v)", name, waits, err)
		}
	}
}
