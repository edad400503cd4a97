package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

// begunKey is the annotation that makes Fleet look at a Fleet Cluster's Bundles again.
const begunKey = "fleet.addons.cluster.x-k8s.io/retarget"

// looks returns the values that the annotation of each Fleet Cluster of a namespace has had since now.
func looks(t *testing.T, g Gomega, namespace string) func() map[string][]string {
	t.Helper()
	watching, err := fixture.Client(env)
	g.Expect(err).NotTo(HaveOccurred())
	events, err := watching.Watch(ctx, &fleetv1.ClusterList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(events.Stop)
	var mu sync.Mutex
	seen, last := map[string][]string{}, map[string]string{}
	go func() {
		for event := range events.ResultChan() {
			cluster, ok := event.Object.(*fleetv1.Cluster)
			if !ok {
				continue
			}
			mu.Lock()
			if value := cluster.Annotations[begunKey]; value != last[cluster.Name] {
				seen[cluster.Name], last[cluster.Name] = append(seen[cluster.Name], value), value
			}
			mu.Unlock()
		}
	}()
	return func() map[string][]string {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(seen)
	}
}

// isIn selects requests in the namespaces of a scene.
func (s scene) isIn(e stack.AuditEvent) bool {
	return e.Namespace == s.namespace || e.Namespace == s.classNamespace
}

// begun returns the values that a mapping brings, in their order.
func begun(g Gomega, mapping *fleetv1.BundleNamespaceMapping, generation int) []string {
	exists(g, mapping)
	value := fmt.Sprintf("%s.%d", mapping.UID, generation)
	return []string{value, value + ".again"}
}

// Fleet does not watch mappings. When one is made where Fleet Clusters are already, each of them changes twice, and so
// Fleet looks at its Bundles: also one that is deselected, one that patchResource keeps as it is, and one of another
// class. A paused one changes when it is unpaused. A start of the syncer, after an upgrade too, changes none.
func TestMappingBeginsToMap(t *testing.T) {
	for _, patchResource := range []bool{true, false} {
		t.Run(fmt.Sprintf("patchResource %t", patchResource), func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			configureCluster(t, g, fmt.Sprintf("{patchResource: %t, selector: {matchExpressions: [{key: leave, operator: DoesNotExist}]}}", patchResource))
			left, paused, frozen := s.imported(g, "left"), s.imported(g, "paused"), s.imported(g, "frozen")
			s.imported(g, "one")
			plain := plainCluster(g, s.namespace, "plain", nil)
			initialize(g, plain)
			appears(g, s.fleet("plain"))
			patch(g, left, entry("labels", "leave", `"yes"`))
			willReport(g, left, "Deselected")
			pause(g, paused)
			patch(g, frozen, entry("annotations", clusterv1.PausedAnnotation, `""`))
			for _, cluster := range []*clusterv1.Cluster{paused, frozen} {
				willReport(g, cluster, "Paused")
			}
			values := looks(t, g, s.namespace)
			isUnchanged := func() {
				quiet(g, s.isIn) // Conditions and events may follow what the test waited for.
				since := time.Now()
				g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
				quiet(g, s.isIn)
				g.Expect(requests(g, since, isWrite, s.isIn)).To(BeEmpty())
			}
			isUnchanged()
			g.Expect(values()).To(BeEmpty())

			since, mapping := time.Now(), s.mapping()
			exists(g, mapping)
			old := mapping.UID
			remove(g, s.mapping())
			g.Eventually(func(g Gomega) { exists(g, mapping); g.Expect(mapping.UID).NotTo(Equal(old)) }).Should(Succeed())
			both := begun(g, mapping, 1)
			g.Eventually(values).Should(Equal(map[string][]string{"one": both[:1], "left": both[:1], "plain": both[:1]}))
			g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
			all := map[string][]string{"one": both, "left": both, "plain": both}
			g.Eventually(values).Should(Equal(all))
			quiet(g, s.isIn)
			g.Expect(requests(g, since, isWrite, in(s.namespace), func(e stack.AuditEvent) bool { return e.Resource == "clusters" && e.Group == "fleet.cattle.io" })).To(HaveLen(2 * len(all)))
			isUnchanged()

			unpause(g, paused)
			patch(g, frozen, entry("annotations", clusterv1.PausedAnnotation, "null"))
			all["paused"], all["frozen"] = both[1:], both[1:]
			g.Eventually(values).Should(Equal(all))
			if patchResource {
				patch(g, mapping, `{"bundleSelector":{"matchLabels":{"none":"such"}}}`)
				both := begun(g, mapping, 3)
				for name := range all {
					all[name] = append(slices.Clone(all[name]), both...)
				}
				g.Eventually(values).Should(Equal(all))
			}
			isUnchanged()
			g.Expect(values()).To(Equal(all))
		})
	}
}

// A mapping that is revived begins to map, one that is retired does not, and one for the first Cluster of its namespace
// has nothing to begin for.
func TestRevivedMappingBeginsToMap(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	one := s.imported(g, "one")
	mapping := s.mapping()
	exists(g, mapping)
	g.Expect(mapping.Annotations).NotTo(HaveKey(begunKey))
	plain := plainCluster(g, s.namespace, "plain", nil)
	initialize(g, plain)
	appears(g, s.fleet("plain"))
	values := looks(t, g, s.namespace)
	s.deployed(t, g, "app", "one") // Fleet never drops it, so the mapping stays for a minute.
	remove(g, one)
	g.Eventually(s.isRetired).Should(Succeed())
	g.Consistently(values).Should(BeEmpty())
	s.imported(g, "two")
	both := begun(g, mapping, 3)
	g.Eventually(values).Should(HaveKeyWithValue("plain", both))
	g.Expect(strings.Join(values()["two"], " ")).To(Or(Equal(both[1]), Equal(strings.Join(both, " "))))

	// The next mapping into the namespace brings its own. One that goes brings nothing.
	other := scene{newNamespace(t, g, "classes", nil), s.namespace, nil}
	other.class = newClass(g, other.classNamespace, "standard", nil)
	third := other.imported(g, "three")
	next := begun(g, other.mapping(), 1)
	g.Eventually(values).Should(HaveKeyWithValue("plain", []string{both[0], both[1], joined(both[1], next[0]), joined(both[1], next[1])}))
	now := values()
	remove(g, third)
	vanishes(g, other.mapping())
	g.Consistently(func() []string { return values()["plain"] }).Should(Equal(now["plain"]))
}

// joined returns the value that names two mappings.
func joined(a, b string) string {
	both := []string{a, b}
	slices.Sort(both)
	return strings.Join(both, " ")
}
