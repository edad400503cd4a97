package e2e

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	// platform is where the platform team keeps its class std and the bundles beside it.
	platform      = "platform"
	platformClass = "std"
	platformGroup = platformClass + "." + platform
	baseline      = "baseline"

	// lookout is how long after the last trick nothing may happen. The syncer acts within
	// milliseconds and Fleet within two seconds.
	lookout = 8 * time.Second
)

// trick is one way in that a tenant tries, in a namespace of its own.
type trick struct {
	name string
	// unselected says that the namespace is one that the namespaceSelector leaves out.
	unselected bool
	// ownGroup says that Muster makes a group of that name for a class of the namespace.
	ownGroup bool
	play     func(g Gomega, m *tenant)
	// after is what else must hold when all is played.
	after func(g Gomega, m *tenant)
}

// A tenant, mallory, may write everything that is his to write: Clusters, ClusterClasses
// and Fleet's objects of his namespaces. He has no right in the namespace platform, so
// nothing of it may ever reach him, whatever he writes. Muster's admission policies are a
// second fence: all of it must hold without them.
func TestTenant(t *testing.T) {
	g := NewWithT(t)
	setUpPlatform(t, g)
	tricks := append(append(append(fleetClusterTricks(), pinTricks()...), classTricks()...), keepingTricks()...)

	t.Run("as shipped", func(t *testing.T) { playTricks(t, "fenced", tricks) })
	t.Run("without our policies", func(t *testing.T) {
		withoutPolicies(t, NewWithT(t))
		playTricks(t, "open", tricks)
	})
}

// playTricks plays every trick, watches the platform's namespace meanwhile and some time
// longer, and then says of each what it has led to.
func playTricks(t *testing.T, prefix string, tricks []trick) {
	g := NewWithT(t)
	audit, err := env.AuditTail()
	g.Expect(err).NotTo(HaveOccurred())
	tenants := newTenants(t, g, prefix, tricks)
	watch := watchPlatform()
	defer watch.stop()

	for i, trick := range tricks {
		t.Run("playing: "+trick.name, func(t *testing.T) {
			tenants[i].T = t
			trick.play(NewWithT(t), tenants[i])
		})
	}
	touchBundle(g) // What a mapping has opened, Fleet finds when it looks at the bundle.
	time.Sleep(lookout)
	watch.stop()

	written, err := audit.Read(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Where: makesTargets})
	g.Expect(err).NotTo(HaveOccurred())
	for i, trick := range tricks {
		t.Run(trick.name, func(t *testing.T) {
			g := NewWithT(t)
			m := tenants[i]
			g.Expect(watch.problem).NotTo(HaveOccurred())
			g.Expect(watch.seen(m.namespace, m.since)).To(BeEmpty(), "what of the namespace platform was open to him")
			for _, event := range written {
				if event.Received.Before(m.since) {
					continue
				}
				g.Expect(event.Resource == "bundlenamespacemappings" && event.Namespace == platform && event.Name == m.namespace).
					To(BeFalse(), "Muster wrote a mapping: %s", event)
				g.Expect(!trick.ownGroup && event.Resource == "clustergroups" && event.Namespace == m.namespace && strings.HasSuffix(event.Name, "."+platform)).
					To(BeFalse(), "Muster wrote a group: %s", event)
			}
			if trick.after != nil {
				m.T = t
				trick.after(g, m)
			}
		})
	}
}

// makesTargets selects the requests that made or changed a group or a mapping.
func makesTargets(event stack.AuditEvent) bool {
	targets := event.Resource == "bundlenamespacemappings" || event.Resource == "clustergroups"
	return targets && event.Code < 300 && (event.Verb == "create" || event.Verb == "patch" || event.Verb == "update")
}

// withoutPolicies takes Muster's admission policies out of force until the test ends.
func withoutPolicies(t *testing.T, g Gomega) {
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	g.Expect(admin.List(ctx, &bindings)).To(Succeed())
	gone := 0
	for _, binding := range bindings.Items {
		if !strings.HasPrefix(binding.Name, "muster-") {
			continue
		}
		gone++
		g.Expect(admin.Delete(ctx, &binding)).To(Succeed())
		t.Cleanup(func() {
			binding.ObjectMeta = metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels, Annotations: binding.Annotations}
			if err := admin.Create(ctx, &binding); err != nil {
				t.Errorf("putting back the policy binding %s: %v", binding.Name, err)
			}
		})
	}
	g.Expect(gone).To(BeNumerically(">", 0))
	time.Sleep(2 * time.Second) // The API server forgets them a moment later.
}

// touchBundle makes Fleet work out the targets of the platform's bundle again.
func touchBundle(g Gomega) {
	_, err := env.Kubectl(ctx, "-n", platform, "annotate", "--overwrite", "bundles.fleet.cattle.io", baseline, "look="+time.Now().Format("150405.000"))
	g.Expect(err).NotTo(HaveOccurred())
}

// keepingTricks are ways to keep what was open with every right, for a Cluster that the
// platform team made in his namespace and that is gone now. What is live may be kept; once
// it is gone nothing of his brings it back.
func keepingTricks() []trick {
	copies := func(g Gomega, m *tenant) {
		m.try("a copy that is released", m.Create(ctx, m.fleetCluster("copy", released)))
		m.try("a copy that is his Cluster's", m.Create(ctx, m.fleetCluster("copy-of-mine", importedFrom("mine"))))
		m.try("a copy applied as CAAPF's", m.apply("x-addon-provider-fleet", "applied", released))
	}
	return []trick{
		{name: "copies of a legitimate Fleet Cluster, made before its Cluster goes", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			m.imported(g, "mine")
			copies(g, m)
			m.deleteCluster(g, theirs)
			m.closed(g)
			copies(g, m)
			for _, name := range []string{"copy", "copy-of-mine", "applied"} {
				m.try("labelling "+name, m.relabel(m.fleetCluster(name, nil), map[string]string{"look": "again"}, nil))
			}
		}},
		{name: "a legitimate Fleet Cluster, released by hand before its Cluster goes", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			g.Expect(m.Patch(ctx, theirs, mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
			time.Sleep(time.Second)
			m.try("releasing it", m.relabel(m.fleetCluster("theirs", nil), nil, released))
			m.try("disowning it", m.Patch(ctx, m.fleetCluster("theirs", nil), mergePatch(`{"metadata":{"ownerReferences":null}}`)))
			m.deleteCluster(g, theirs)
			m.closed(g)
			m.try("labelling it", m.relabel(m.fleetCluster("theirs", nil), map[string]string{"look": "again"}, released))
			m.try("making a namesake of its Cluster", m.Create(ctx, m.topology("theirs", "own", "")))
		}},
		{name: "a legitimate Fleet Cluster, handed to another Cluster of his", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			mine := m.imported(g, "mine")
			annotations := maps.Clone(importedFrom("mine"))
			annotations[stamp.AdoptAnnotation] = "true"
			m.try("handing it over", m.relabel(m.fleetCluster("theirs", nil), nil, annotations))
			m.try("owning it", m.Patch(ctx, m.fleetCluster("theirs", nil), mergePatch(
				`{"metadata":{"ownerReferences":[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"mine","uid":"`+string(mine.UID)+`"}]}}`)))
			m.deleteCluster(g, theirs)
			m.closed(g)
			m.try("labelling it", m.relabel(m.fleetCluster("theirs", nil), platformLabels, annotations))
		}},
		{name: "the group of a legitimate Cluster, kept by hand", play: func(g Gomega, m *tenant) {
			theirs := m.legitimate(g)
			m.deleteCluster(g, theirs)
			m.closed(g)
			group := &fleetv1.ClusterGroup{}
			group.Namespace, group.Name, group.Labels = m.namespace, platformGroup, maps.Clone(platformLabels)
			group.Labels["app.kubernetes.io/managed-by"] = "muster"
			group.Spec.Selector = &metav1.LabelSelector{MatchLabels: platformLabels}
			m.try("making it again", m.Create(ctx, group))
			m.try("and a Fleet Cluster", m.Create(ctx, m.fleetCluster("theirs", importedFrom("theirs"))))
		}},
	}
}

// legitimate makes a Cluster of the platform's class in his namespace, as one who may,
// and waits until the platform's bundle is there: what the other tricks must not reach.
func (m *tenant) legitimate(g Gomega) *clusterv1.Cluster {
	cluster := m.ofPlatform(g, "theirs", platformClass, nil)
	g.Eventually(func(g Gomega) {
		g.Expect(m.deployed(g)).NotTo(BeEmpty())
	}).WithTimeout(soon).Should(Succeed())
	return cluster
}

// deployed returns what Fleet deploys of the platform's bundles in his namespace.
func (m *tenant) deployed(g Gomega) []string {
	var deployments fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &deployments, client.MatchingLabels{
		fleetv1.BundleNamespaceLabel: platform, fleetv1.ClusterNamespaceLabel: m.namespace})).To(Succeed())
	var names []string
	for _, deployment := range deployments.Items {
		names = append(names, deployment.Labels[fleetv1.ClusterLabel])
	}
	return names
}

// deleteCluster deletes a Cluster, as whoever owns it would.
func (m *tenant) deleteCluster(g Gomega, cluster *clusterv1.Cluster) {
	g.Expect(m.Delete(ctx, cluster.DeepCopy())).To(Succeed())
	// Cluster API does not end the deletion of a paused one.
	g.Expect(client.IgnoreNotFound(m.Patch(ctx, cluster.DeepCopy(), mergePatch(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	g.Eventually(func() error {
		return client.IgnoreNotFound(m.Get(ctx, client.ObjectKeyFromObject(cluster), cluster.DeepCopy()))
	}).Should(Succeed())
}

// closed takes away by hand what may have been kept, and begins to watch.
func (m *tenant) closed(g Gomega) {
	time.Sleep(2 * time.Second)
	m.Logf("kept, which it may be: %v", m.deployed(g))
	mapping := &fleetv1.BundleNamespaceMapping{}
	mapping.Namespace, mapping.Name = platform, m.namespace
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, mapping))).To(Succeed())
	m.since = time.Now()
	// Fleet drops what it deployed when it looks at the bundle, which nobody tells it to.
	g.Eventually(func(g Gomega) {
		touchBundle(g)
		g.Expect(m.deployed(g)).To(BeEmpty())
	}).WithPolling(time.Second).WithTimeout(15 * time.Second).Should(Succeed())
	m.since = time.Now()
}

// platformWatch looks several times a second at what of the namespace platform is open
// to whom: mappings, and what Fleet deploys of its bundles.
type platformWatch struct {
	once, done chan struct{}
	stopOnce   sync.Once

	mu      sync.Mutex
	found   map[types.UID]sighting
	problem error
}

type sighting struct {
	namespace, what string
	first, last     time.Time
}

func watchPlatform() *platformWatch {
	w := &platformWatch{once: make(chan struct{}), done: make(chan struct{}), found: map[types.UID]sighting{}}
	go func() {
		defer close(w.done)
		for {
			if err := w.look(); err != nil {
				w.mu.Lock()
				w.problem = err
				w.mu.Unlock()
			}
			select {
			case <-w.once:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	}()
	return w
}

func (w *platformWatch) stop() {
	w.stopOnce.Do(func() { close(w.once) })
	<-w.done
}

func (w *platformWatch) look() error {
	var mappings fleetv1.BundleNamespaceMappingList
	if err := admin.List(ctx, &mappings, client.InNamespace(platform)); err != nil {
		return err
	}
	for i := range mappings.Items {
		w.note(&mappings.Items[i], mappings.Items[i].Name, "the mapping")
	}
	var deployments fleetv1.BundleDeploymentList
	if err := admin.List(ctx, &deployments, client.MatchingLabels{fleetv1.BundleNamespaceLabel: platform}); err != nil {
		return err
	}
	for i := range deployments.Items {
		labels := deployments.Items[i].Labels
		w.note(&deployments.Items[i], labels[fleetv1.ClusterNamespaceLabel],
			fmt.Sprintf("bundle %s on cluster %s", labels[fleetv1.BundleLabel], labels[fleetv1.ClusterLabel]))
	}
	return nil
}

func (w *platformWatch) note(object client.Object, namespace, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	seen, again := w.found[object.GetUID()]
	if !again {
		seen = sighting{namespace: namespace, what: what, first: now}
	}
	seen.last = now
	w.found[object.GetUID()] = seen
}

// seen returns what was open to a namespace at some time since.
func (w *platformWatch) seen(namespace string, since time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var result []string
	for _, seen := range w.found {
		if seen.namespace == namespace && seen.last.After(since) {
			result = append(result, fmt.Sprintf("%s, for %s", seen.what, seen.last.Sub(seen.first).Round(100*time.Millisecond)))
		}
	}
	return result
}
