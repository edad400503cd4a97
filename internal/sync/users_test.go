package sync

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// TestOneUserAnswersForThousands: each event of a Cluster asks whether its class is used. As long as
// the last answer, a Cluster, is still right, nothing is listed; when it is not, the next one is
// found.
func TestOneUserAnswersForThousands(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	const many = 100
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}
	for i := range many {
		objects = append(objects, &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("c%03d", i), Annotations: map[string]string{
				stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: fmt.Sprintf("c%03d", i),
			}},
			Spec: clusterv1.ClusterSpec{Topology: clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: "std", Namespace: "classes"}}},
		})
	}
	lists := 0
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists++
			return c.List(ctx, list, options...)
		},
	})
	for _, object := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}} {
		builder = builder.WithIndex(object, byGroup, ofUse(byGroup)).WithIndex(object, byClassNamespace, ofUse(byClassNamespace))
	}
	cache := builder.Build()
	users := newUsers(cache, cache, kube.NewStore(cache, scheme))
	in := settings.Default()
	ask := func() use {
		t.Helper()
		used, err := users.maker(t.Context(), in, "team", ofClassesIn("classes"))
		if err != nil {
			t.Fatal(err)
		}
		return used
	}

	for range 2 * many {
		if ask().isZero() {
			t.Fatal("no user found")
		}
	}
	if lists > 1 {
		t.Errorf("listed %d times", lists)
	}
	// One Cluster after another is deleted, paused, or rebased: users finds a maker as long as there
	// is one.
	for i := range many {
		object := objects[i+1].DeepCopyObject().(*clusterv1.Cluster)
		switch i % 3 {
		case 0:
			err = cache.Delete(t.Context(), object)
		case 1:
			object.Annotations[clusterv1.PausedAnnotation] = ""
			err = cache.Update(t.Context(), object)
		default:
			object.Spec.Topology.ClassRef.Namespace = "others"
			err = cache.Update(t.Context(), object)
		}
		if err != nil {
			t.Fatal(err)
		}
		if found := !ask().isZero(); found != (i < many-1) {
			t.Fatalf("after %d of %d are gone: found %v", i+1, many, found)
		}
	}
	// Paused Clusters retain the existing objects.
	if keeps, err := users.retainer(t.Context(), in, "team", ofClassesIn("classes")); err != nil || !keeps {
		t.Errorf("keeps: %v, %v", keeps, err)
	}
}

// Each event asks who uses a class of another namespace. Clusters that Rancher manages do not: their number must not
// count, and they keep no group or mapping after they were handed over.
func TestAttachedClustersUseNothing(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}
	for i := range 100 {
		objects = append(objects, &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("c%03d", i), Annotations: map[string]string{
				stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: fmt.Sprintf("c%03d", i), stamp.ManagementAnnotation: "c-abcde",
			}},
			Spec: clusterv1.ClusterSpec{Topology: clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: "std", Namespace: "classes"}}},
		})
	}
	read := 0
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, list, options...)
			read += meta.LenList(list)
			return err
		},
	})
	for _, object := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}} {
		builder = builder.WithIndex(object, byGroup, ofUse(byGroup)).WithIndex(object, byClassNamespace, ofUse(byClassNamespace))
	}
	cache := builder.Build()
	users := newUsers(cache, cache, kube.NewStore(cache, scheme))
	for _, about := range []subset{ofClassesIn("classes"), ofGroup(stamp.GroupName("std", "classes"))} {
		used, err := users.maker(t.Context(), settings.Default(), "team", about)
		if err != nil || !used.isZero() {
			t.Errorf("%v: used %v, %v", about, used, err)
		}
		if keeps, err := users.retainer(t.Context(), settings.Default(), "team", about); err != nil || keeps {
			t.Errorf("%v: kept %v, %v", about, keeps, err)
		}
	}
	if read > 0 {
		t.Errorf("read %d Clusters", read)
	}
}

// clusterctl move deletes a Cluster right after the syncer released its Fleet Cluster, and the deletion may reach the
// cache before the release does. Its group and mapping must stay, or Fleet undeploys from a cluster that lives on.
func TestReleaseThatTheCacheDoesNotShow(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	readerOf := func(annotations map[string]string) client.Reader {
		builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "one", Annotations: annotations,
			Labels: map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.ClassNameLabel: "std", stamp.ClassNamespaceLabel: "classes"},
		}})
		for _, object := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}} {
			builder = builder.WithIndex(object, byGroup, ofUse(byGroup)).WithIndex(object, byClassNamespace, ofUse(byClassNamespace))
		}
		return builder.WithIndex(&clusterv1.Cluster{}, byPin, func(client.Object) []string { return nil }).Build()
	}
	stale := readerOf(nil)
	for _, c := range []struct {
		name  string
		live  client.Reader
		about subset
		keeps bool
	}{
		{"released", readerOf(map[string]string{stamp.ReleasedAnnotation: "true"}), ofClassesIn("classes"), true},
		{"released, its group", readerOf(map[string]string{stamp.ReleasedAnnotation: "true"}), ofGroup(stamp.GroupName("std", "classes")), true},
		{"released, another class", readerOf(map[string]string{stamp.ReleasedAnnotation: "true"}), ofClassesIn("elsewhere"), false},
		{"left behind", stale, ofClassesIn("classes"), false},
	} {
		keeps, err := newUsers(stale, c.live, kube.NewStore(stale, scheme)).retainerOrMoved(t.Context(), settings.Default(), "team", c.about)
		if err != nil || keeps != c.keeps {
			t.Errorf("%s: keeps %v, %v; want %v", c.name, keeps, err, c.keeps)
		}
	}
}

// The caller holds a lock while the API server lists, so the first Fleet Cluster that was moved ends the list.
func TestLiveListEndsEarly(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	live := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			pages++
			fleet := metav1.PartialObjectMetadata{}
			fleet.Namespace = "team"
			fleet.Labels = map[string]string{stamp.ManagedByLabel: stamp.ManagedBy, stamp.ClassNameLabel: "std", stamp.ClassNamespaceLabel: "classes"}
			fleet.Annotations = map[string]string{stamp.ReleasedAnnotation: strconv.FormatBool(pages == 2)}
			list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{fleet}
			if list.SetContinue(""); pages < 5 {
				list.SetContinue("more")
			}
			return nil
		},
	}).Build()
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, object := range []client.Object{&clusterv1.Cluster{}, &fleetv1.Cluster{}} {
		builder = builder.WithIndex(object, byClassNamespace, ofUse(byClassNamespace))
	}
	cached := builder.Build()
	keeps, err := newUsers(cached, live, kube.NewStore(cached, scheme)).retainerOrMoved(t.Context(), settings.Default(), "team", ofClassesIn("classes"))
	if err != nil || !keeps || pages != 2 {
		t.Errorf("keeps %t after %d pages, %v", keeps, pages, err)
	}
}
