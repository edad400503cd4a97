package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

// step is one action of a tenant. The API server may refuse it or let it through.
type step func(g Gomega, m *tenant)

type annotations = map[string]string

var (
	released = annotations{stamp.Domain + "/released": "true"}
	ofMine   = annotations{stamp.Domain + "/imported-from": "mine"}
	adopt    = annotations{stamp.AdoptAnnotation: "true"}
	fullName = annotations{stamp.ClassFullNameAnnotation: "a.class.of.the.platform.whose.name.is.longer.than.a.label.value.may.be"}
	pin      = annotations{stamp.OwnedByAnnotation: "fleet-addon-config", stamp.ClusterNameAnnotation: "forged"}
)

func joined(all ...annotations) annotations {
	result := annotations{}
	for _, one := range all {
		maps.Copy(result, one)
	}
	return result
}

// made creates a Cluster of mallory's own class. imported waits for its Fleet Cluster, too.
func made(g Gomega, m *tenant) { g.Expect(m.Create(ctx, m.topology("mine", "own", ""))).To(Succeed()) }

func imported(g Gomega, m *tenant) {
	cluster := m.topology("mine", "own", "")
	g.Expect(m.Create(ctx, cluster)).To(Succeed())
	m.initialize(g, cluster)
	g.Eventually(func() error { return m.Get(ctx, client.ObjectKeyFromObject(cluster), &fleetv1.Cluster{}) }).Should(Succeed())
}

// forge creates a Fleet Cluster that looks as if Muster had made it for the platform's class.
func forge(name string, with ...annotations) step {
	return func(_ Gomega, m *tenant) {
		m.try("making Fleet Cluster "+name, m.Create(ctx, m.fleetCluster(name, with...)))
	}
}

// relabel sets labels and annotations on a Fleet Cluster.
func relabel(name string, labels map[string]string, with ...annotations) step {
	return func(_ Gomega, m *tenant) {
		m.try("relabelling Fleet Cluster "+name, m.relabel(m.fleetCluster(name), labels, joined(with...)))
	}
}

// relabelCluster sets labels and annotations on a Cluster.
func relabelCluster(name string, labels map[string]string, with ...annotations) step {
	return func(_ Gomega, m *tenant) {
		m.try("relabelling Cluster "+name, m.relabel(m.topology(name, "", ""), labels, joined(with...)))
	}
}

// pause pauses a Cluster, and gives the syncer time to release the Fleet Cluster.
func pause(name string) step {
	return func(g Gomega, m *tenant) {
		g.Expect(m.Patch(ctx, m.topology(name, "", ""), mergePatch(`{"spec":{"paused":true}}`))).To(Succeed())
		time.Sleep(time.Second)
	}
}

func unpause(g Gomega, m *tenant) {
	time.Sleep(time.Second)
	g.Expect(m.Patch(ctx, m.topology("mine", "", ""), mergePatch(`{"spec":{"paused":false}}`))).To(Succeed())
}

// applied applies Fleet Clusters of the platform's class, without Muster's label.
func applied(manager string, name string, with annotations) step {
	return func(g Gomega, m *tenant) {
		m.try("applying Fleet Cluster "+name, m.applyAs(g, manager, "fleet.cattle.io/v1alpha1", name, platformLabels, with))
	}
}

// again relabels a Fleet Cluster of Muster's repeatedly, while Muster reverts it.
func again(with ...annotations) step {
	return func(g Gomega, m *tenant) {
		for range 10 {
			relabel("mine", platformLabels, with...)(g, m)
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// handMadeGroup creates the ClusterGroup for the platform's class by hand.
func handMadeGroup(selector *metav1.LabelSelector) step {
	return func(_ Gomega, m *tenant) {
		group := &fleetv1.ClusterGroup{}
		group.Namespace, group.Name, group.Labels = m.namespace, platformGroup, m.fleetCluster("").Labels
		group.Spec.Selector = selector
		m.try("making the group", m.Create(ctx, group))
	}
}

// unselected makes a Cluster that no selector matches and that may use the platform's class, and tries three times
// to get it imported.
func unselected(name string, try func(g Gomega, m *tenant, cluster *clusterv1.Cluster) error) trick {
	return trick{name: name, unselected: true, after: nothingClaimed, play: []step{func(g Gomega, m *tenant) {
		cluster := m.ofPlatform(g, platformClass, nil)
		for range 3 {
			m.try("forging the pin", try(g, m, cluster.DeepCopy()))
			time.Sleep(200 * time.Millisecond)
		}
	}}}
}

func tricks() []trick {
	var all []trick
	for _, some := range [][]trick{fleetClusterTricks(), pinTricks(), classTricks(), keepingTricks()} {
		all = append(all, some...)
	}
	return all
}

// fleetClusterTricks are attacks through Fleet's objects in mallory's own namespace.
func fleetClusterTricks() []trick {
	return []trick{
		{name: "a hand-made Fleet Cluster, released", play: []step{forge("forged", released)}},
		{name: "a hand-made Fleet Cluster, imported from a Cluster that is not there", play: []step{forge("forged", ofMine)}},
		{name: "a hand-made Fleet Cluster, released, of a class with a dotted and long name", play: []step{forge("forged", released, fullName)}},
		{name: "a hand-made Fleet Cluster, imported from a Cluster of his", play: []step{made, forge("forged", ofMine)}},
		{name: "a hand-made Fleet Cluster that a Cluster of his owns", play: []step{made, func(g Gomega, m *tenant) {
			mine := getCluster(g, m.key("mine"))
			for version, forged := range map[string]*fleetv1.Cluster{"v1beta2": m.fleetCluster("forged", ofMine), "v1beta1": m.fleetCluster("without-name")} {
				forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/" + version, Kind: "Cluster", Name: mine.Name, UID: mine.UID}}
				m.try("making "+forged.Name, m.Create(ctx, forged))
			}
		}}},
		{name: "a hand-made Fleet Cluster that says which UID it is of", play: []step{made, func(g Gomega, m *tenant) {
			forge("forged", ofMine, annotations{stamp.Domain + "/imported-uid": string(getCluster(g, m.key("mine")).UID)})(g, m)
		}}},
		{name: "a Fleet Cluster handed over to a Cluster of his", play: []step{forge("mine", released, adopt), func(g Gomega, m *tenant) {
			mine := m.topology("mine", "own", "")
			m.try("making the Cluster of its name", m.Create(ctx, mine))
			if mine.UID != "" {
				m.initialize(g, mine)
			}
		}, forge("other", released, adopt)}},
		{name: "applied as addon-provider-fleet", play: []step{made,
			applied("addon-provider-fleet", "forged", released), applied("addon-provider-fleet", "forged-too", ofMine)}},
		{name: "applied as x-addon-provider-fleet", play: []step{made,
			applied("x-addon-provider-fleet", "forged", released), applied("x-addon-provider-fleet", "forged-too", ofMine)}},
		{name: "Muster's own Fleet Cluster, relabelled", play: []step{imported, again()}},
		{name: "Muster's own Fleet Cluster, relabelled and released", play: []step{imported, again(released)}},
		{name: "Muster's own Fleet Cluster, relabelled to a class with a dotted and long name", play: []step{imported, again(fullName)}},
		{name: "Muster's own Fleet Cluster, frozen by a pause, relabelled", play: []step{imported, pause("mine"), relabel("mine", platformLabels), unpause}},
		{name: "Muster's own Fleet Cluster, deleted and made again", play: []step{imported, func(_ Gomega, m *tenant) {
			for range 20 {
				_ = m.Delete(ctx, m.fleetCluster("mine"))
				if err := m.Create(ctx, m.fleetCluster("mine", released)); err == nil {
					m.Log("the tenant was faster than the syncer")
				}
				time.Sleep(50 * time.Millisecond)
			}
		}}},
		{name: "a hand-made ClusterGroup under the name of the one for the platform's class", play: []step{
			handMadeGroup(&metav1.LabelSelector{}), forge("forged", released)}},
	}
}

// pinTricks are attempts to get a Cluster imported that no selector matches. The Cluster may use the platform's
// class; only the import is not allowed.
func pinTricks() []trick {
	byManager := func(manager string) trick {
		return unselected("a pin applied as "+manager, func(g Gomega, m *tenant, cluster *clusterv1.Cluster) error {
			return m.applyAs(g, manager, "cluster.x-k8s.io/v1beta2", cluster.Name, nil, pin)
		})
	}
	return []trick{
		unselected("a pin forged by a patch", func(_ Gomega, m *tenant, cluster *clusterv1.Cluster) error {
			return m.relabel(cluster, nil, pin)
		}),
		unselected("a pin forged through v1beta1", func(g Gomega, m *tenant, cluster *clusterv1.Cluster) error {
			old := fromYAML(g, fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {namespace: %s, name: %s}}", cluster.Namespace, cluster.Name))
			return m.relabel(old, nil, pin)
		}),
		unselected("a pin forged through the status", func(g Gomega, m *tenant, cluster *clusterv1.Cluster) error {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": pin}, "status": map[string]any{"phase": "Provisioned"}})
			g.Expect(err).NotTo(HaveOccurred())
			return m.Status().Patch(ctx, cluster, mergePatch(string(patch)))
		}),
		byManager("addon-provider-fleet"),
		byManager("x-addon-provider-fleet"),
		{name: "a pin forged on a Cluster that is paused meanwhile", unselected: true, after: nothingClaimed, play: []step{func(g Gomega, m *tenant) {
			m.ofPlatform(g, platformClass, nil)
		}, pause("theirs"), relabelCluster("theirs", nil, pin), func(g Gomega, m *tenant) {
			g.Expect(m.Patch(ctx, m.topology("theirs", "", ""), mergePatch(`{"spec":{"paused":false}}`))).To(Succeed())
		}}},
		{name: "a pin brought along at create", unselected: true, after: nothingClaimed, play: []step{func(g Gomega, m *tenant) {
			m.ofPlatform(g, platformClass, pin)
		}}},
		{name: "a pin brought along with generateName", unselected: true, after: nothingClaimed, play: []step{func(g Gomega, m *tenant) {
			cluster := m.topology("", platformClass, platform)
			cluster.GenerateName, cluster.Annotations = "theirs-", pin
			g.Expect(admin.Create(ctx, cluster)).To(Succeed())
			m.initialize(g, cluster)
		}}},
		{name: "a Fleet Cluster made for a Cluster that nothing selects", unselected: true, after: retainedAtMost, play: []step{func(g Gomega, m *tenant) {
			m.ofPlatform(g, platformClass, nil)
		}, forge("theirs", annotations{stamp.Domain + "/imported-from": "theirs"}), relabelCluster("theirs", nil, pin, annotations{stamp.ClusterNameAnnotation: "theirs"})}},
		{name: "class labels forged for the selector", after: nothingClaimed, play: []step{func(g Gomega, m *tenant) {
			m.ofPlatform(g, "never", nil)
		}, relabelCluster("theirs", map[string]string{stamp.ClassNameLabel: platformClass}), relabelCluster("theirs", platformLabels, pin)}},
	}
}

// classTricks are attempts to reach the platform's class through his Clusters and ClusterClasses.
func classTricks() []trick {
	topology := func(version, more string) func(g Gomega, m *tenant) client.Object {
		return func(g Gomega, m *tenant) client.Object {
			return fromYAML(g, fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/%s
kind: Cluster
metadata: {namespace: %s, name: mine}
spec: {topology: {class: %s, classNamespace: %s, version: v1.33.0%s}}
`, version, m.namespace, platformClass, platform, more))
		}
	}
	wear := relabelCluster("mine", platformLabels, annotations{stamp.ClassFullNameAnnotation: platformClass})
	return []trick{
		{name: "a Cluster of the platform's class", play: []step{func(g Gomega, m *tenant) {
			m.refused(g, m.Create(ctx, m.topology("mine", platformClass, platform)))
			m.refused(g, m.Create(ctx, topology("v1beta1", "")(g, m)))
			cluster := m.topology("", platformClass, platform)
			cluster.GenerateName, cluster.Annotations = "mine-", pin
			m.refused(g, m.Create(ctx, cluster))
		}}},
		{name: "the fields of v1beta1 in a Cluster of v1beta2", play: []step{func(g Gomega, m *tenant) {
			m.try("making it", m.Create(ctx, topology("v1beta2", ", classRef: {name: own}")(g, m)))
			m.try("setting them later", m.Patch(ctx, m.topology("mine", "own", ""), mergePatch(
				`{"spec":{"topology":{"class":"`+platformClass+`","classNamespace":"`+platform+`"}}}`)))
		}}},
		{name: "a Cluster of his, rebased", play: []step{imported, tryRebase}},
		{name: "a Cluster of his, paused and released, rebased, unpaused", play: []step{imported, pause("mine"), tryRebase, relabel("mine", platformLabels, released), unpause}},
		{name: "a Cluster of his that is being deleted and kept by a finalizer", play: []step{imported, func(g Gomega, m *tenant) {
			// Cluster API writes the whole list when it adds its own.
			g.Eventually(func(g Gomega) []string { return getCluster(g, m.key("mine")).Finalizers }).Should(ContainElement(clusterv1.ClusterFinalizer))
			mine := m.topology("mine", "", "")
			g.Expect(m.Patch(ctx, mine, mergePatch(`{"metadata":{"finalizers":["cluster.cluster.x-k8s.io","tenant.example/kept"]}}`))).To(Succeed())
			g.Expect(m.Delete(ctx, mine)).To(Succeed())
		}, tryRebase, forge("forged", ofMine), relabel("mine", platformLabels, released), relabelCluster("mine", platformLabels, pin)}},
		{name: "a Cluster without a topology that wears the class labels", play: []step{func(g Gomega, m *tenant) {
			g.Expect(env.Apply(ctx, fmt.Sprintf(`
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevCluster
metadata: {namespace: %s, name: mine, annotations: {cluster.x-k8s.io/managed-by: "its owner"}}
spec: {backend: {inMemory: {}}}
`, m.namespace))).To(Succeed())
			mine := m.topology("mine", "", "")
			mine.Labels = maps.Clone(platformLabels)
			mine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DevCluster", Name: "mine"}
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			g.Expect(m.Status().Patch(ctx, mine.DeepCopy(), mergePatch(`{"status":{"initialization":{"controlPlaneInitialized":true}}}`))).To(Succeed())
			g.Eventually(func() error { return m.Get(ctx, m.key("mine"), &fleetv1.Cluster{}) }).Should(Succeed())
		}, wear}, after: withoutClassLabels},
		{name: "a Cluster of his own class that wears the platform's labels", play: []step{func(g Gomega, m *tenant) {
			mine := m.topology("mine", "own", "")
			mine.Labels = maps.Clone(platformLabels)
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			m.initialize(g, mine)
		}, wear}, after: withoutClassLabels},
		{name: "a ClusterClass of his own with the name of the group", ownGroup: true, play: []step{func(g Gomega, m *tenant) {
			m.try("making the class", m.Create(ctx, fromYAML(g, fmt.Sprintf(classYAML, m.namespace, platformGroup))))
			acceptClass(g, m.namespace, platformGroup)
			mine := m.topology("mine", platformGroup, "")
			g.Expect(m.Create(ctx, mine)).To(Succeed())
			m.initialize(g, mine)
		}, forge("forged", released)}},
		{name: "a ClusterClass of his own that wears the platform's labels", play: []step{func(_ Gomega, m *tenant) {
			class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "own"}}
			m.try("labelling it", m.relabel(class, m.fleetCluster("").Labels, released))
			m.try("making a Cluster of it", m.Create(ctx, m.topology("mine", "own", "")))
		}}},
	}
}

// keepingTricks are attempts to keep bundles that a Cluster got legitimately: the platform team made it in his
// namespace, and it is gone now.
func keepingTricks() []trick {
	observed := map[string]string{"look": "again"}
	copies := func(g Gomega, m *tenant) {
		forge("copy", released)(g, m)
		forge("copy-of-mine", ofMine)(g, m)
		applied("x-addon-provider-fleet", "applied", released)(g, m)
	}
	patched := func(patch func(g Gomega, m *tenant) string) step {
		return func(g Gomega, m *tenant) {
			m.try("changing its owners", m.Patch(ctx, m.fleetCluster("theirs"), mergePatch(`{"metadata":{"ownerReferences":`+patch(g, m)+`}}`)))
		}
	}
	return []trick{
		{name: "copies of a legitimate Fleet Cluster, made before its Cluster goes", play: []step{
			legitimate, imported, copies, closes, copies, relabel("copy", observed), relabel("copy-of-mine", observed), relabel("applied", observed)}},
		{name: "a legitimate Fleet Cluster, released by hand before its Cluster goes", play: []step{
			legitimate, pause("theirs"), relabel("theirs", nil, released), patched(func(Gomega, *tenant) string { return "null" }),
			closes, relabel("theirs", observed, released), func(_ Gomega, m *tenant) {
				m.try("making a namesake of its Cluster", m.Create(ctx, m.topology("theirs", "own", "")))
			}}},
		{name: "a legitimate Fleet Cluster, handed to another Cluster of his", play: []step{
			legitimate, imported, relabel("theirs", nil, ofMine, adopt), patched(func(g Gomega, m *tenant) string {
				return fmt.Sprintf(`[{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","name":"mine","uid":%q}]`, getCluster(g, m.key("mine")).UID)
			}), closes, relabel("theirs", platformLabels, ofMine, adopt)}},
		{name: "the group of a legitimate Cluster, kept by hand", play: []step{
			legitimate, closes, handMadeGroup(&metav1.LabelSelector{MatchLabels: platformLabels}), forge("theirs", annotations{stamp.Domain + "/imported-from": "theirs"})}},
	}
}
