// Package view gives the tests of test/page, which are a module of their own because of the
// browser's driver, a cluster to look at: a real API server, with Muster where that matters.
package view

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
)

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, Unplayed: true}, func(s *stack.Stack) (err error) {
		env = s
		root, err := stack.RepoRoot()
		if err != nil {
			return err
		}
		// Muster itself does not run: it would put right what the tests make wrong.
		for _, file := range []string{"crd/addons.cluster.x-k8s.io_fleetaddonconfigs", "helm/addons.cluster.x-k8s.io_helmchartproxies", "helm/addons.cluster.x-k8s.io_helmreleaseproxies"} {
			crd, err := os.ReadFile(filepath.Join(root, "manifests", filepath.FromSlash(file)+".yaml"))
			if err != nil {
				return err
			}
			if err := s.ApplyCRDs(ctx, crd); err != nil {
				return err
			}
		}
		admin, err = fixture.Client(s)
		return err
	}))
}

func putAll(all ...client.Object) error {
	for _, object := range all {
		if err := put(object); err != nil {
			return err
		}
	}
	return nil
}

var class = types.NamespacedName{Namespace: "classes", Name: "standard"}

// put creates an object and sets its status, if it has one.
func put(object client.Object) error {
	withStatus := object.DeepCopyObject().(client.Object)
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, object)); err != nil {
		return err
	}
	withStatus.SetResourceVersion(object.GetResourceVersion())
	switch object := withStatus.(type) {
	case *clusterv1.Cluster, *fleetv1.Cluster, *addonsv1.HelmChartProxy, *addonsv1.HelmReleaseProxy:
		return admin.Status().Update(ctx, withStatus)
	case *addonsv1.FleetAddonConfig:
		if object.Status.InstalledVersion != "" {
			return admin.Status().Update(ctx, withStatus)
		}
	case *fleetv1.BundleDeployment:
		if object.Status.Ready || len(object.Status.NonReadyStatus) > 0 {
			return admin.Status().Update(ctx, withStatus)
		}
	}
	return nil
}

// objects are a Cluster with what Muster and Fleet make of it.
func objects(namespace, name string) []client.Object {
	cluster := fixture.Cluster(namespace, name, class.Name, class.Namespace)
	cluster.Labels = stamp.Labels(class)
	cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: name}
	cluster.Status.Conditions = []metav1.Condition{{Type: "FleetImported", Status: metav1.ConditionTrue, Reason: "Imported", LastTransitionTime: metav1.Now()}}
	in := settings.Default()
	in.Cluster.SetOwnerReferences = false
	values := map[string]any{"Cluster": map[string]any{"metadata": map[string]any{"name": name}, "spec": strings.Repeat("x", 4<<10)}}
	fleet := desired.FleetCluster(in, cluster, nil, values, desired.Targets{}, "")
	fleet.Status.Namespace = "cluster-" + namespace + "-" + name
	fleet.Status.Agent.LastSeen = metav1.Now()
	fleet.Status.Display.ReadyBundles = "2/2"
	return []client.Object{cluster, fleet}
}

func deployment(namespace, name string, of types.NamespacedName) *fleetv1.BundleDeployment {
	result := &fleetv1.BundleDeployment{}
	result.Namespace, result.Name = namespace, name
	result.Labels = map[string]string{
		fleetv1.BundleLabel: name, fleetv1.BundleNamespaceLabel: class.Namespace, fleetv1.ClusterLabel: of.Name, fleetv1.ClusterNamespaceLabel: of.Namespace,
	}
	return result
}

// deployed is a BundleDeployment of which all is ready.
func deployed(namespace, name string, of types.NamespacedName) *fleetv1.BundleDeployment {
	result := deployment(namespace, name, of)
	result.Status.Ready, result.Status.NonModified = true, true
	result.Status.ResourceCounts = fleetv1.ResourceCounts{Ready: 6, DesiredReady: 6}
	return result
}

func scene(t testing.TB, namespaces ...string) {
	t.Helper()
	for _, name := range append([]string{class.Namespace}, namespaces...) {
		if err := put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	made := fixture.Class(class.Namespace, class.Name, nil)
	if err := put(made); err != nil {
		t.Fatal(err)
	}
	if err := admin.Get(ctx, class, made); err != nil { // Of a group without a real owner nothing is left.
		t.Fatal(err)
	}
	if err := put(desired.ClassGroup(settings.Default(), &desired.Class{ObjectMeta: made.ObjectMeta})); err != nil {
		t.Fatal(err)
	}
}

// page runs tests, or benchmarks, of test/page against the cluster.
func page(t testing.TB, flags []string, variables ...string) {
	t.Helper()
	root, err := stack.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append([]string{"test", "-count=1", "-v", "."}, flags...)...)
	cmd.Dir = filepath.Join(root, "test", "page")
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+env.Kubeconfig, "MUSTER_KUBECTL="+env.Program("kubectl")), variables...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip("see the output above")
	}
}

// TestLive has the page looked at while things change.
func TestLive(t *testing.T) {
	scene(t, "team-a", "cluster-team-a-prod")
	all := append(objects("team-a", "prod"), objects("team-a", "edge")...)
	all = append(all, desired.CrossNamespaceGroup(settings.Default(), "team-a", class, nil), desired.Mapping(class.Namespace, "team-a"),
		deployed("cluster-team-a-prod", "cni", types.NamespacedName{Namespace: "team-a", Name: "prod"}))
	if err := putAll(all...); err != nil {
		t.Fatal(err)
	}
	page(t, []string{"-run=^TestLive$"})
}

// manyOf makes many Clusters, each with two BundleDeployments, and returns how many Clusters
// there are.
func manyOf(t testing.TB, count int) int {
	t.Helper()
	const namespaces = 20
	scene(t, "many")
	shared := []client.Object{desired.CrossNamespaceGroup(settings.Default(), "many", class, nil), desired.Mapping(class.Namespace, "many")}
	for i := range namespaces {
		shared = append(shared, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("deployments-%d", i)}})
	}
	if err := putAll(shared...); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	var workers errgroup.Group
	workers.SetLimit(32)
	for i := range count {
		workers.Go(func() error {
			name := fmt.Sprintf("c%05d", i)
			all := objects("many", name)
			for _, bundle := range []string{"cni", "monitoring"} {
				// Their namespaces are fewer than Fleet's: that many Namespaces are not what is
				// measured. Nor is their status, which the overview does not read.
				all = append(all, deployment(fmt.Sprintf("deployments-%d", i%namespaces), name+"-"+bundle, types.NamespacedName{Namespace: "many", Name: name}))
			}
			return putAll(all...)
		})
	}
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("made in %s", time.Since(begin).Round(time.Second))
	there := &metav1.PartialObjectMetadataList{}
	there.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("ClusterList"))
	if err := admin.List(ctx, there); err != nil {
		t.Fatal(err)
	}
	return len(there.Items)
}

// TestMany has the page looked at with more Clusters than a list has on a page, and counts
// what the page asks of the API server: each kind is listed once, and the overview needs no
// BundleDeployment.
func TestMany(t *testing.T) {
	const many = 1200
	count := manyOf(t, many)
	since := time.Now()
	page(t, []string{"-run=^TestMany$"}, fmt.Sprintf("MUSTER_MANY=%d", count))

	lists := 0
	for asked, count := range askedOf(t, since) {
		verb, resource, _ := strings.Cut(asked, " ")
		if verb == "list" {
			lists += count
		}
		isClusters := resource == "clusters" // Cluster API's and Fleet's, which have many pages.
		if verb == "watch" && count > 2 || !isClusters && count > 1 && resource != "" {
			t.Errorf("%s: %d times", asked, count)
		}
	}
	// Pages of 500 for each of two kinds, and one list for each of six others.
	if most := 2*(count/500+1) + 6; lists > most {
		t.Errorf("%d lists, want at most %d", lists, most)
	}
}

// askedOf counts the page's requests to the API server since then, by verb and resource. It fails for requests
// other than lists and watches, and for BundleDeployments, which the overview does not need.
func askedOf(t testing.TB, since time.Time) map[string]int {
	t.Helper()
	asked, err := env.AuditLog(stack.AuditFilter{Since: since, Where: func(e stack.AuditEvent) bool { return strings.HasPrefix(e.UserAgent, "kubectl-muster/") }})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, event := range asked {
		counts[strings.TrimSpace(event.Verb+" "+event.Resource)]++
		isNeeded := event.Verb == "list" || event.Verb == "watch" || event.Resource == ""
		if !isNeeded || event.Resource == "bundledeployments" {
			t.Errorf("the page requested %s", event)
		}
	}
	t.Logf("what the page asked of the API server: %v", counts)
	return counts
}

// BenchmarkMany has the page measured with ten thousand Clusters, or MUSTER_MANY, and twice
// as many BundleDeployments.
func BenchmarkMany(b *testing.B) {
	many := 10_000
	if text := os.Getenv("MUSTER_MANY"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil || many < 500 {
			b.Fatalf("MUSTER_MANY: %q is no number from 500 on", text)
		}
	}
	count := manyOf(b, many)
	for b.Loop() {
		since := time.Now()
		b.Cleanup(func() { askedOf(b, since) }) // Also where a bar is missed.
		page(b, []string{"-run=^$", "-bench=^BenchmarkMany$", "-benchtime=1x"}, fmt.Sprintf("MUSTER_MANY=%d", count))
	}
}
