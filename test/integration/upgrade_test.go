package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// Muster is upgraded beside 500 Clusters, rolled back, and upgraded again. The syncer writes nothing, and every object of
// Cluster API and Fleet keeps its resource version.
func TestUpgradeWritesNothing(t *testing.T) {
	g := NewWithT(t)
	earlier, err := fixture.Earlier(ctx, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(earlier).NotTo(BeNil(), "name a revision to upgrade from in "+fixture.EarlierVariable)
	ownStackOf(t, g, stack.Options{Manifests: earlier.Manifests, Binaries: earlier.Binaries})
	s := newScene(t, g)
	newClass(g, s.namespace, "own", nil)
	for i := range 500 {
		name := fmt.Sprintf("c-%03d", i)
		cluster := s.cluster(name)
		switch i % 5 {
		case 0:
			cluster = fixture.Cluster(s.namespace, name, "own", "")
		case 1:
			cluster = fixture.Cluster(s.namespace, name, "", "")
		}
		create(g, cluster)
		if i%25 == 0 {
			continue // It waits for its control plane.
		}
		initialize(g, cluster)
		fleet := s.fleet(name)
		appears(g, fleet)
		g.Expect(fixture.AssignNamespace(ctx, admin, fleet)).To(Succeed())
		if i%2 == 0 {
			g.Expect(fixture.Call(ctx, admin, fleet, time.Now())).To(Succeed())
		}
		if i%50 == 3 {
			pause(g, cluster)
		}
	}
	quiet(g)
	before := versions(g)
	for _, step := range []struct {
		name string
		fixture.Revision
	}{{name: "upgraded"}, {"rolled back", *earlier}, {name: "upgraded again"}} {
		since := time.Now()
		g.Expect(env.UseMuster(ctx, step.Manifests, step.Binaries)).To(Succeed())
		g.Expect(env.Restart(ctx, webhookProcess)).To(Succeed())
		g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(metric(g, readerToken(g), `controller_runtime_reconcile_total\{controller="cluster",[^}]*\}`)).To(BeNumerically(">=", 500))
		}).WithTimeout(time.Minute).Should(Succeed())
		quiet(g)
		g.Expect(requests(g, since, isWrite, isNoReview)).To(BeEmpty(), step.name)
		now := versions(g)
		for key, version := range before {
			if now[key] != version {
				t.Errorf("%s: %s had version %s and has %q", step.name, key, version, now[key])
			}
		}
		t.Logf("%s: nothing was written", step.name)
	}
}

// isNoReview leaves out token reviews and access reviews.
func isNoReview(e stack.AuditEvent) bool {
	return !strings.HasSuffix(e.Resource, "reviews")
}

// versions returns the resource versions of all objects that Muster makes or stamps.
func versions(g Gomega) map[string]string {
	all := map[string]string{}
	for _, kind := range []schema.GroupVersionKind{
		clusterv1.GroupVersion.WithKind("Cluster"), clusterv1.GroupVersion.WithKind("ClusterClass"), {Version: "v1", Kind: "Namespace"},
		fleetv1.SchemeGroupVersion.WithKind("Cluster"), fleetv1.SchemeGroupVersion.WithKind("ClusterGroup"),
		fleetv1.SchemeGroupVersion.WithKind("BundleNamespaceMapping"),
	} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		g.Expect(admin.List(ctx, &list)).To(Succeed())
		for _, its := range list.Items {
			if its.Name != "muster-system" { // kubectl applies that Namespace.
				all[kind.GroupKind().String()+" "+its.Namespace+"/"+its.Name] = its.ResourceVersion
			}
		}
	}
	return all
}
