package sync

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	gosync "sync"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

var standard = types.NamespacedName{Namespace: "classes", Name: "std"}

// using returns a Cluster of namespace team that is pinned to a Fleet Cluster of its name, and uses a class.
func using(name string, class types.NamespacedName, changes ...func(*clusterv1.Cluster)) clusterv1.Cluster {
	cluster := clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{
			stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: name,
		}},
		Spec: clusterv1.ClusterSpec{Topology: clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: class.Name, Namespace: class.Namespace}}},
	}
	for _, change := range changes {
		change(&cluster)
	}
	return cluster
}

// fleetClusterOf returns the Fleet Cluster of a Cluster that used a class.
func fleetClusterOf(cluster clusterv1.Cluster, class types.NamespacedName, annotations map[string]string) fleetv1.Cluster {
	return fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: cluster.Namespace, Name: cluster.Name, Annotations: annotations,
		Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.ClassNameLabel: class.Name, stamp.ClassNamespaceLabel: class.Namespace},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID,
		}},
	}}
}

func withPause(cluster *clusterv1.Cluster) {
	cluster.Annotations[clusterv1.PausedAnnotation] = ""
}

func TestNeeds(t *testing.T) {
	unpinned := func(cluster *clusterv1.Cluster) { cluster.Annotations = nil }
	deleted := func(cluster *clusterv1.Cluster) { cluster.DeletionTimestamp = new(metav1.Now()) }
	labelled := func(cluster *clusterv1.Cluster) { cluster.Labels = map[string]string{"env": "test"} }
	ofRancher := func(cluster *clusterv1.Cluster) { cluster.Annotations[rancher.NoteAnnotation] = "c-abcde" }
	other := types.NamespacedName{Namespace: "others", Name: "std"}
	selecting := settings.Default()
	selecting.Cluster.Selector = labels.SelectorFromSet(labels.Set{"env": "prod"})
	one := using("one", standard)
	for name, test := range map[string]struct {
		in            *settings.Settings
		clusters      []clusterv1.Cluster
		fleetClusters []fleetv1.Cluster
		taken         bool
		fails         error
		// What becomes of the group and the mapping of standard, and of the annotation on the Namespace.
		makes, keeps, makesAnnotation, keepsAnnotation bool
	}{
		"nothing there":                   {},
		"a maker":                         {clusters: []clusterv1.Cluster{one}, makes: true, keeps: true, makesAnnotation: true, keepsAnnotation: true},
		"a maker of something else":       {clusters: []clusterv1.Cluster{using("one", other)}, makesAnnotation: true, keepsAnnotation: true},
		"a maker after others":            {clusters: []clusterv1.Cluster{using("a", other), using("b", other), one}, makes: true, keeps: true, makesAnnotation: true, keepsAnnotation: true},
		"a class of its own namespace":    {clusters: []clusterv1.Cluster{using("one", types.NamespacedName{Namespace: "team", Name: "std"})}, makesAnnotation: true, keepsAnnotation: true},
		"the group's name is taken":       {clusters: []clusterv1.Cluster{one}, taken: true, keeps: true, makesAnnotation: true, keepsAnnotation: true},
		"Rancher's objects are unknown":   {clusters: []clusterv1.Cluster{one}, taken: true, fails: rancher.ErrUnlisted, keeps: true, makesAnnotation: true, keepsAnnotation: true},
		"paused":                          {clusters: []clusterv1.Cluster{using("one", standard, withPause)}, keeps: true, keepsAnnotation: true},
		"being deleted":                   {clusters: []clusterv1.Cluster{using("one", standard, deleted)}, keeps: true, keepsAnnotation: true},
		"not claimed yet":                 {clusters: []clusterv1.Cluster{using("one", standard, unpinned)}, keeps: true, keepsAnnotation: true},
		"not claimed yet, being deleted":  {clusters: []clusterv1.Cluster{using("one", standard, unpinned, deleted)}},
		"deselected":                      {in: &selecting, clusters: []clusterv1.Cluster{using("one", standard, labelled)}, keeps: true, keepsAnnotation: true},
		"never selected":                  {in: &selecting, clusters: []clusterv1.Cluster{using("one", standard, unpinned, labelled)}},
		"Rancher's":                       {clusters: []clusterv1.Cluster{using("one", standard, ofRancher)}, makesAnnotation: true, keepsAnnotation: true},
		"rebased, its Fleet Cluster not":  {clusters: []clusterv1.Cluster{using("one", other)}, fleetClusters: []fleetv1.Cluster{fleetClusterOf(one, standard, nil)}, keeps: true, makesAnnotation: true, keepsAnnotation: true},
		"a Fleet Cluster without Cluster": {fleetClusters: []fleetv1.Cluster{fleetClusterOf(one, standard, nil)}},
		"a Fleet Cluster that was moved":  {fleetClusters: []fleetv1.Cluster{fleetClusterOf(one, standard, map[string]string{stamp.ReleasedAnnotation: "true"})}, keeps: true},
		"a Fleet Cluster of a namesake":   {clusters: []clusterv1.Cluster{using("one", other, func(c *clusterv1.Cluster) { c.UID = "anew" })}, fleetClusters: []fleetv1.Cluster{fleetClusterOf(one, standard, nil)}, makesAnnotation: true, keepsAnnotation: true},
		"somebody's Fleet Cluster":        {fleetClusters: []fleetv1.Cluster{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "x", Labels: map[string]string{stamp.ClassNameLabel: "std", stamp.ClassNamespaceLabel: "classes"}, Annotations: map[string]string{stamp.ReleasedAnnotation: "true"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			in := settings.Default()
			if test.in != nil {
				in = *test.in
			}
			n := findNeeds(in, nil, test.clusters, test.fleetClusters, func(*clusterv1.Cluster) (bool, error) { return !test.taken, test.fails })
			if !errors.Is(n.err, test.fails) {
				t.Errorf("the error is %v", n.err)
			}
			its := use{"team", standard}
			if got := n.makers[its]; got != test.makes {
				t.Errorf("makes the group and the mapping: %t", got)
			}
			if n.hasMaker != test.makesAnnotation {
				t.Errorf("sets the annotation: %t", n.hasMaker)
			}
			if n.hasUser != test.keepsAnnotation {
				t.Errorf("keeps the annotation: %t", n.hasUser)
			}
			if got := n.inUse[its.group()]; got != test.keeps {
				t.Errorf("keeps the group: %t", got)
			}
			if got := n.inUse[its.mapping()]; got != test.keeps {
				t.Errorf("keeps the mapping: %t", got)
			}
		})
	}
}

// newTargetsOf returns targets on a fake API server.
func newTargetsOf(t *testing.T, live client.Reader, functions interceptor.Funcs, objects ...client.Object) (*targets, client.WithWatch) {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(functions).
		WithIndex(&fleetv1.BundleNamespaceMapping{}, byMapped, mappedBy)
	cached := builder.Build()
	if live == nil {
		live = cached
	}
	return &targets{
		Reader: cached, Applier: &kube.Applier{Client: cached, Live: cached, Store: kube.NewStore(cached, scheme)}, live: live,
		retiring: map[types.NamespacedName]*retirement{},
	}, cached
}

// clusterctl move deletes a Cluster right after the syncer released its Fleet Cluster, and the deletion may reach the
// cache before the release does. Its group and mapping must stay, or Fleet undeploys from a cluster that lives on.
func TestReleaseThatTheCacheDoesNotShow(t *testing.T) {
	one := using("one", standard)
	stale := fleetClusterOf(one, standard, nil)
	mapping, group := desired.Mapping("classes", "team"), desired.CrossNamespaceGroup(settings.Default(), "team", standard, nil)
	for name, test := range map[string]struct {
		live  fleetv1.Cluster
		keeps bool
	}{
		"released":                {fleetClusterOf(one, standard, map[string]string{stamp.ReleasedAnnotation: "true"}), true},
		"released, another class": {fleetClusterOf(one, types.NamespacedName{Namespace: "elsewhere", Name: "std"}, map[string]string{stamp.ReleasedAnnotation: "true"}), false},
		"left behind":             {stale, false},
	} {
		t.Run(name, func(t *testing.T) {
			live, _ := newTargetsOf(t, nil, interceptor.Funcs{}, &test.live)
			targets, cached := newTargetsOf(t, live.Reader, interceptor.Funcs{}, stale.DeepCopy(), mapping.DeepCopy(), group.DeepCopy())
			if keeps, err := targets.isNeeded(t.Context(), settings.Default(), "team", client.ObjectKeyFromObject(mapping)); err != nil || keeps != test.keeps {
				t.Errorf("the mapping: %t, %v", keeps, err)
			}
			if err := targets.removeGroup(t.Context(), settings.Default(), client.ObjectKeyFromObject(group)); err != nil {
				t.Fatal(err)
			}
			if err := cached.Get(t.Context(), client.ObjectKeyFromObject(group), &fleetv1.ClusterGroup{}); (err == nil) != test.keeps {
				t.Errorf("the group: %v", err)
			}
		})
	}
}

// The caller holds a lock while the API server lists, so the first Fleet Cluster that was moved ends the list.
func TestLiveListEndsEarly(t *testing.T) {
	pages := 0
	targets, _ := newTargetsOf(t, nil, interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			pages++
			fleet := metav1.PartialObjectMetadata{ObjectMeta: fleetClusterOf(using("one", standard), standard, map[string]string{stamp.ReleasedAnnotation: strconv.FormatBool(pages == 2)}).ObjectMeta}
			list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{fleet}
			if list.SetContinue(""); pages < 5 {
				list.SetContinue("more")
			}
			return nil
		},
	})
	isMoved, err := targets.isMoved(t.Context(), "team", use{"team", standard}.mapping())
	if err != nil || !isMoved || pages != 2 {
		t.Errorf("moved %t after %d pages, %v", isMoved, pages, err)
	}
}

// Tenants write Fleet Clusters, Bundles and, in their own namespaces, BundleDeployments, each with as much metadata as etcd accepts.
// A page of them must fit into the memory of the syncer: with 500 it would end, and at every start again.
func TestLivePagesAreSmall(t *testing.T) {
	const mostOfOne, most = 3 << 19, 64 << 20 // What etcd accepts, and an eighth of the limit of the syncer.
	pages := 0
	targets, _ := newTargetsOf(t, nil, interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			its := (&client.ListOptions{}).ApplyOptions(options)
			if pages++; its.Limit == 0 || its.Limit*mostOfOne > most {
				t.Errorf("a page of %s has %d objects", list.GetObjectKind().GroupVersionKind().Kind, its.Limit)
			}
			return nil
		},
	})
	mapping := desired.Mapping("classes", "team")
	_, moved := targets.isMoved(t.Context(), "team", client.ObjectKeyFromObject(mapping))
	_, deployed := targets.deployedThrough(t.Context(), client.ObjectKeyFromObject(mapping))
	_, bundles := targets.retargetBundles(t.Context(), mapping)
	if err := errors.Join(moved, deployed, bundles); err != nil || pages != 3 {
		t.Errorf("%d pages, %v", pages, err)
	}
}

// A Cluster may make its group and mapping after a pass has found no need for them, and before the pass removes them.
func TestNeedBetweenListAndRemoval(t *testing.T) {
	in := settings.Default()
	for i := range 1000 {
		targets, cached := newTargetsOf(t, nil, interceptor.Funcs{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
		cluster := using("one", standard)
		key, group := useOf(&cluster).mapping(), useOf(&cluster).group()
		nobody, err := targets.needsOf(t.Context(), in, "team")
		if err != nil {
			t.Fatal(err)
		}
		if err := cached.Create(t.Context(), &cluster); err != nil {
			t.Fatal(err)
		}
		var both gosync.WaitGroup
		failed := make([]error, 2)
		both.Go(func() {
			if _, failed[0] = targets.ensureGroup(t.Context(), in, "team", standard); failed[0] == nil {
				_, failed[0] = targets.ensureMapping(t.Context(), in, useOf(&cluster))
			}
		})
		both.Go(func() {
			if failed[1] = targets.removeGroup(t.Context(), in, group); failed[1] == nil {
				_, failed[1] = targets.removeMapping(t.Context(), in, key, nobody)
			}
		})
		both.Wait()
		for _, err := range failed {
			if err != nil {
				t.Fatal(err)
			}
		}
		var mapping fleetv1.BundleNamespaceMapping
		if err := cached.Get(t.Context(), key, &mapping); err != nil || !isLive(&mapping) {
			t.Fatalf("round %d: the mapping: %v, %v", i, mapping.BundleSelector, err)
		}
		if err := cached.Get(t.Context(), group, &fleetv1.ClusterGroup{}); err != nil {
			t.Fatalf("round %d: the group: %v", i, err)
		}
	}
}

// BenchmarkNeeds measures a pass over one namespace with 5000 Clusters and 5000 Fleet Clusters: when a Cluster needs what is
// there, and when none does, so that the Fleet Clusters are asked, too. The contract is 10 ms.
func BenchmarkNeeds(b *testing.B) {
	const many = 5000
	for name, changes := range map[string][]func(*clusterv1.Cluster){
		"makers": nil, "none keeps": {func(c *clusterv1.Cluster) { c.Annotations = nil; c.DeletionTimestamp = new(metav1.Now()) }},
	} {
		var clusters []clusterv1.Cluster
		var fleetClusters []fleetv1.Cluster
		for i := range many {
			cluster := using(fmt.Sprintf("c%04d", i), standard, changes...)
			clusters = append(clusters, cluster)
			gone := using(fmt.Sprintf("gone%04d", i), standard)
			fleetClusters = append(fleetClusters, fleetClusterOf(gone, standard, nil))
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				findNeeds(settings.Default(), nil, clusters, fleetClusters, func(*clusterv1.Cluster) (bool, error) { return true, nil })
			}
		})
	}
}
