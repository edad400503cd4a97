package integration

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// The webhook refuses a name that Fleet already has, so that the user sees it at once; TestClusterValidator in
// internal/admission has all the cases.
func TestNamesThatAreTaken(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configure(t, g, "{}")
	byHand := fmt.Sprintf(" was created by someone else; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n %s theirs %s=true; delete it only if its cluster is gone; or name this Cluster differently",
		s.namespace, stamp.AdoptAnnotation)
	newFleetCluster(g, s.namespace, "theirs", nil)
	create(g, s.cluster("prod.eu"))
	for _, test := range []struct{ name, manifest, messages string }{
		{"by a Fleet Cluster that somebody made", s.yaml("theirs"), `Fleet Cluster "theirs"` + byHand},
		{"as v1beta1 too", fmt.Sprintf(
			"{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {namespace: %s, name: theirs}, spec: {clusterNetwork: {pods: {cidrBlocks: [10.7.0.0/16]}}}}",
			s.namespace), "was created by someone else"},
		{"by another Cluster's pin, before it is in Fleet", s.yaml("prod-eu-2740657d"),
			`Cluster "prod.eu" of this namespace has the Fleet Cluster "prod-eu-2740657d", which would be this Cluster's as well; name this Cluster differently`},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func(g Gomega) { // The webhook's cache sees other objects a moment later.
				_, err := apply(t, test.manifest, "--dry-run=server")
				g.Expect(err).To(MatchError(And(ContainSubstring(test.messages),
					ContainSubstring(`admission webhook "names.clusters.fleet.addons.cluster.x-k8s.io" denied the request`))))
			}).Should(Succeed())
		})
	}
	t.Run("but not what is handed over, elsewhere, or not imported", func(t *testing.T) {
		g := NewWithT(t)
		newFleetCluster(g, s.namespace, "handed", map[string]string{stamp.AdoptAnnotation: "true"})
		newFleetCluster(g, s.classNamespace, "elsewhere", nil)
		for _, name := range []string{"handed", "elsewhere"} {
			g.Eventually(func() error { return admin.Create(ctx, s.cluster(name)) }).Should(Succeed())
		}
		configureCluster(t, g, "{enabled: false}")
		g.Eventually(func() error { return admin.Create(ctx, s.cluster("theirs")) }).Should(Succeed())
	})
}

// A Fleet Cluster with several owning Clusters belongs to one of them. Otherwise, a user who may write owner
// references could make them overwrite each other for ever.
func TestFleetClusterOfSeveralOwners(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	first := plainCluster(g, namespace, "a", nil)
	initialize(g, first)
	appears(g, named(&fleetv1.Cluster{}, namespace, "a"))
	owners := ""
	for i := range 3 {
		other := plainCluster(g, namespace, fmt.Sprintf("b%d", i), nil)
		owners += fmt.Sprintf("{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: %s, uid: %s}, ", other.Name, other.UID)
	}
	caapf(g, "mallory", fmt.Sprintf("{apiVersion: %s, kind: Cluster, metadata: {namespace: %s, name: a, ownerReferences: [%s]}}", fleetVersion, namespace, owners))
	g.Eventually(func(g Gomega) {
		live := fleetCluster(g, namespace, "a")
		g.Expect(live.OwnerReferences).To(ConsistOf(HaveField("UID", first.UID)))
		g.Expect(live.Spec.KubeConfigSecret).To(Equal("a-kubeconfig"))
	}).Should(Succeed())
	quiet(g, in(namespace))
	since := time.Now()
	time.Sleep(2 * time.Second)
	g.Expect(requests(g, since, in(namespace), isWrite)).To(BeEmpty())
}

// Two Clusters have pins with the same name and become ready at once: one gets it, and the other never writes to it.
func TestRaceForOneName(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	stop(t, g, webhookProcess)
	const pairs = 10
	var clusters []*clusterv1.Cluster
	for i := range pairs {
		for _, name := range []string{"one", "two"} {
			clusters = append(clusters, plainCluster(g, namespace, fmt.Sprintf("%s-%d", name, i), pinned(fmt.Sprintf("one-%d-two-%d", i, i))))
		}
	}
	quiet(g)
	for _, cluster := range clusters {
		g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	}
	for i := range pairs {
		oneHasIt(g, clusters[2*i], clusters[2*i+1])
		g.Expect(fleetCluster(g, namespace, fmt.Sprintf("one-%d-two-%d", i, i)).Generation).To(BeEquivalentTo(1), "written once")
	}
}

// A Cluster's manifest is exported, renamed and applied: the pin in it is the first Cluster's, and the second gets a name
// of its own, from the webhook or else from the syncer.
func TestCopiedPin(t *testing.T) { bothWays(t, testCopiedPin) }

func testCopiedPin(t *testing.T, isStamped bool) {
	g := NewWithT(t)
	configure(t, g, "{}")
	namespace := newNamespace(t, g, "team", nil)
	manifest := fmt.Sprintf(`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: %s, name: twin, annotations: {%s: prod, %s: fleet-addon-config}},
  spec: {clusterNetwork: {pods: {cidrBlocks: [10.7.0.0/16]}}}}`, namespace, stamp.ClusterNameAnnotation, stamp.OwnedByAnnotation)
	if isStamped { // A webhook that has just started does not know Fleet's Clusters yet, and leaves the pin to the syncer.
		g.Eventually(func() string { return warnedApply(g, manifest, "--dry-run=server") }).Should(
			ContainSubstring(`names Fleet Cluster "prod", which is not this Cluster's: it is replaced`))
	}
	_, err := apply(t, manifest)
	g.Expect(err).NotTo(HaveOccurred())
	cluster := get(g, &clusterv1.Cluster{}, namespace, "twin")
	initialize(g, cluster)
	appears(g, named(&fleetv1.Cluster{}, namespace, "twin"))
	isGone(g, named(&fleetv1.Cluster{}, namespace, "prod"))
	g.Expect(stamp.PinOf(current(g, cluster).Annotations).ClusterName).To(Equal("twin"))
}

// A Cluster is restored from a backup, without its UID: into its own namespace, where its Fleet Cluster was restored
// before it, and into another one. Naming has changed since, so only the pin still says its name.
func TestRestoredPin(t *testing.T) { bothWays(t, testRestoredPin) }

func testRestoredPin(t *testing.T, _ bool) {
	g := NewWithT(t)
	configureCluster(t, g, "{setOwnerReferences: false, naming: {prefix: early-}}")
	namespace, other := newNamespace(t, g, "team", nil), newNamespace(t, g, "team", nil)
	cluster := plainCluster(g, namespace, "prod", nil)
	initialize(g, cluster)
	appears(g, named(&fleetv1.Cluster{}, namespace, "early-prod"))
	backup := current(g, cluster).Annotations
	fleet := fleetCluster(g, namespace, "early-prod")
	configureCluster(t, g, "{setOwnerReferences: false, naming: {prefix: late-}}")
	configObserved(g)
	for _, lost := range []client.Object{cluster, fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)} {
		deleteNow(g, lost)
		vanishes(g, lost)
	}
	g.Expect(fleetCluster(g, namespace, "early-prod").UID).To(Equal(fleet.UID), "it stays, as documented")
	for _, where := range []string{namespace, other} {
		restored := plainCluster(g, where, "prod", map[string]string{
			stamp.ClusterNameAnnotation: backup[stamp.ClusterNameAnnotation], stamp.OwnedByAnnotation: backup[stamp.OwnedByAnnotation],
		})
		initialize(g, restored)
		willReport(g, restored, "Imported")
		g.Expect(stamp.PinOf(current(g, restored).Annotations).ClusterName).To(Equal("early-prod"), "in %s", where)
		isGone(g, named(&fleetv1.Cluster{}, where, "late-prod"))
	}
}

// The Fleet Cluster of a Cluster with a pin that is not made of its name is deleted by somebody: the pin stays, and it is
// made again under the same name, because people's Bundles name it.
func TestPinStaysWithoutItsFleetCluster(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{}")
	namespace := newNamespace(t, g, "team", nil)
	newFleetCluster(g, namespace, "legacy", map[string]string{stamp.AdoptAnnotation: "true", stamp.ImportedFromAnnotation: "prod"})
	cluster := plainCluster(g, namespace, "prod", pinned("legacy"))
	initialize(g, cluster)
	willReport(g, cluster, "Imported")
	old := fleetCluster(g, namespace, "legacy")
	g.Expect(admin.Delete(ctx, old)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, namespace, "legacy").UID).NotTo(Equal(old.UID))
	}).Should(Succeed())
	g.Expect(stamp.PinOf(current(g, cluster).Annotations).ClusterName).To(Equal("legacy"))
}

func pinned(name string) map[string]string {
	return map[string]string{stamp.OwnedByAnnotation: addonsv1.FleetAddonConfigName, stamp.ClusterNameAnnotation: name}
}

// oneHasIt waits until one of two Clusters is imported, and the other has a conflict.
func oneHasIt(g Gomega, one, other *clusterv1.Cluster) {
	g.Eventually(func(g Gomega) {
		g.Expect([]string{importedReason(g, one), importedReason(g, other)}).To(ConsistOf("Imported", "NameConflict"))
	}).Should(Succeed())
}

// A handover takes effect once, for one Cluster.
func TestAdoptIsActedOnOnce(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	shared := newFleetCluster(g, s.namespace, "one-two", map[string]string{stamp.AdoptAnnotation: "true"})
	stop(t, g, webhookProcess)
	one, two := plainCluster(g, s.namespace, "one", pinned("one-two")), plainCluster(g, s.namespace, "two", pinned("one-two"))
	initialize(g, one)
	initialize(g, two)
	converged := func(g Gomega) {
		live := fleetCluster(g, s.namespace, "one-two")
		g.Expect(live.UID).To(Equal(shared.UID))
		g.Expect(live.Annotations).NotTo(HaveKey(stamp.AdoptAnnotation))
		g.Expect(live.OwnerReferences).To(HaveLen(1))
	}
	g.Eventually(converged).Should(Succeed())
	oneHasIt(g, one, two)
	// A user hands it over again: its present Cluster exists, so that Cluster keeps it.
	live := fleetCluster(g, s.namespace, "one-two")
	owner := live.OwnerReferences[0].UID
	patch(g, live, entry("annotations", stamp.AdoptAnnotation, `"true"`))
	g.Eventually(converged).Should(Succeed())
	g.Consistently(func(g Gomega) {
		converged(g)
		g.Expect(fleetCluster(g, s.namespace, "one-two").OwnerReferences[0].UID).To(Equal(owner))
	}).Should(Succeed())
	oneHasIt(g, one, two)
}

// A name may be taken while the webhook is down; then the syncer reports the conflict. A conflict with an existing
// Cluster ends when that Cluster goes, as the message says.
func TestConflictEndsWithItsRival(t *testing.T) {
	g := NewWithT(t)
	configureCluster(t, g, "{setOwnerReferences: false}")
	namespace := newNamespace(t, g, "team", nil)
	rival := plainCluster(g, namespace, "a", nil)
	newFleetCluster(g, namespace, "b", map[string]string{stamp.AdoptAnnotation: "true", stamp.ImportedFromAnnotation: "a"})
	restart := stop(t, g, webhookProcess)
	waiting := plainCluster(g, namespace, "b", nil)
	restart()
	initialize(g, waiting)
	willReport(g, waiting, "NameConflict", "which exists")
	g.Expect(admin.Delete(ctx, rival)).To(Succeed())
	willReport(g, waiting, "Imported")
}

// Class std.classes of a namespace and class std of namespace classes need groups of the same name. The class in the
// group's namespace gets the group, and no bundle is targeted through the wrong one.
func TestGroupOfTwoClasses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	before := s.imported(g, "before")
	appears(g, s.group())
	selects := func(namespace string) {
		g.Eventually(func(g Gomega) {
			group := s.group()
			exists(g, group)
			g.Expect(group.Spec.Selector.MatchLabels).To(HaveKeyWithValue(stamp.ClassNamespaceLabel, namespace))
		}).Should(Succeed())
	}
	dotted := newClass(g, s.namespace, "standard."+s.classNamespace, nil)
	selects(s.namespace)
	willReport(g, before, "True NameConflict", "rename one of the two classes") // It stays in Fleet.
	later := s.started(g, "later")
	willReport(g, later, "NameConflict")
	isGone(g, s.fleet("later"))

	deleteNow(g, dotted)
	selects(s.classNamespace)
	willReport(g, later, "Imported")
	willReport(g, before, "Imported")
}

// FleetImported names a group or mapping that another user made under the needed name. The Cluster is imported, and
// adopting the object ends the conflict.
func TestForeignTarget(t *testing.T) {
	for name, test := range map[string]struct {
		kind   string
		object func(scene) client.Object
	}{
		"ClusterGroup":           {"ClusterGroup", func(s scene) client.Object { return s.group() }},
		"BundleNamespaceMapping": {"BundleNamespaceMapping", func(s scene) client.Object { return s.mapping() }},
		"the class's own group":  {"ClusterGroup", func(s scene) client.Object { return named(&fleetv1.ClusterGroup{}, s.namespace, "own") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			s := newScene(t, g)
			foreign := test.object(s)
			foreign.SetLabels(map[string]string{"theirs": "yes"}) // The API server notes the manager of a field, and an object may have none.
			g.Expect(admin.Create(ctx, foreign, client.FieldOwner("somebody"))).To(Succeed())
			cluster := s.cluster("one")
			if name == "the class's own group" {
				provoked.Store(s.namespace, true) // The syncer may see the class before the group, which its policy then protects.
				newClass(g, s.namespace, "own", nil)
				cluster = fixture.Cluster(s.namespace, "one", "own", "")
			}
			create(g, cluster)
			initialize(g, cluster)
			willReport(g, cluster, "True NameConflict", test.kind+" "+client.ObjectKeyFromObject(foreign).String(), "somebody", stamp.AdoptAnnotation+"=true")
			exists(g, s.fleet("one"))

			patch(g, foreign.DeepCopyObject().(client.Object), entry("annotations", stamp.AdoptAnnotation, `"true"`))
			willReport(g, cluster, "Imported")
			adopted := test.object(s)
			exists(g, adopted)
			g.Expect(adopted.GetUID()).To(Equal(foreign.GetUID()))
			g.Expect(adopted.GetLabels()).To(HaveKeyWithValue(stamp.ManagedByLabel, "muster"))
		})
	}
}

// Fleet derives the same namespace for Clusters of two teams. The webhook refuses the second, with a message that
// proposes a free name.
func TestOneFleetNamespaceForTwo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rightful, other := rivalsFor(g, "refused")
	create(g, rightful)
	shared := stamp.FleetNamespace(rightful.Namespace, rightful.Name)
	isRefused := func(options ...client.CreateOption) {
		g.Eventually(func(g Gomega) { // The webhook's cache sees other objects a moment later.
			isForbidden(g, admin.Create(ctx, other.DeepCopy(), append(options, client.DryRunAll)...),
				fmt.Sprintf("Fleet would give it Namespace %q", shared), fmt.Sprintf("for example %q", other.Name+"-2"))
		}).Should(Succeed())
	}
	isRefused() // The first Cluster's pin is enough for the refusal.
	initialize(g, rightful)
	appears(g, named(&fleetv1.Cluster{}, rightful.Namespace, rightful.Name))
	isRefused()
	create(g, fixture.Cluster(other.Namespace, other.Name+"-2", "", ""))
}

// A victim's Cluster waits for its control plane. An attacker names a Cluster so that Fleet would deploy it to the
// same Fleet namespace; its own agent would register at once. It does not get there: not if it is selected only
// later, not if the webhook could not check it, and not with a pin that the attacker wrote.
func TestNoFleetNamespaceOfAnotherForLatecomers(t *testing.T) {
	g := NewWithT(t)
	configureCluster(t, g, "{selector: {matchLabels: {fleet: \"yes\"}}}")
	configObserved(g)
	for name, attack := range map[string]func(g Gomega, attacker *clusterv1.Cluster){
		"late-selected": func(g Gomega, attacker *clusterv1.Cluster) {
			attacker.Labels = nil
			create(g, attacker)
			patch(g, attacker, entry("labels", "fleet", `"yes"`))
		},
		"unchecked": func(g Gomega, attacker *clusterv1.Cluster) { passes(t, g, attacker) },
		"forged": func(g Gomega, attacker *clusterv1.Cluster) {
			attacker.Annotations = stamp.Merge(attacker.Annotations, pinned(attacker.Name))
			passes(t, g, attacker)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			victim, attacker := rivalsFor(g, name)
			create(g, victim)
			willReport(g, victim, "False WaitingForControlPlane")
			attack(g, attacker)
			its := named(&fleetv1.Cluster{}, attacker.Namespace, attacker.Name)
			shared := stamp.FleetNamespace(victim.Namespace, victim.Name)
			isRefused := func(g Gomega) {
				reports(g, attacker, "False NameConflict", shared, fmt.Sprintf("for example %q", attacker.Name+"-2"))
				isGone(g, its)
			}
			g.Eventually(isRefused).Should(Succeed())
			initialize(g, victim)
			willReport(g, victim, "True Imported")
			g.Consistently(isRefused).Should(Succeed())

			// Until Fleet removes the namespace, the first Cluster's deployments may still be there.
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shared}}
			patch(g, namespace, `{"metadata":{"finalizers":["example.com/kept"]}}`)
			g.Expect(admin.Delete(ctx, victim)).To(Succeed())
			vanishes(g, named(&fleetv1.Cluster{}, victim.Namespace, victim.Name))
			g.Consistently(isRefused).Should(Succeed())
			// Once the namespace is gone, the other Cluster gets the name.
			patch(g, namespace, `{"metadata":{"finalizers":null}}`)
			g.Eventually(func(g Gomega) {
				g.Expect(fleetCluster(g, its.Namespace, its.Name).Annotations).To(HaveKeyWithValue(stamp.ImportedFromAnnotation, attacker.Name))
			}).Should(Succeed())
		})
	}
	t.Run("a forged pin of an unselected Cluster blocks no other", func(t *testing.T) {
		g := NewWithT(t)
		victim, attacker := rivalsFor(g, "squat")
		attacker.Labels = nil
		attacker.Annotations = stamp.Merge(attacker.Annotations, pinned(attacker.Name))
		passes(t, g, attacker, victim)
		initialize(g, victim)
		willReport(g, victim, "True Imported")
	})
}

// passes creates Clusters without any webhook's check.
func passes(t *testing.T, g Gomega, clusters ...client.Object) {
	t.Helper()
	defer stop(t, g, webhookProcess)()
	create(g, clusters...)
}

// rivalsFor returns two Clusters in two new namespaces, for which Fleet derives the same namespace. The agent of the
// second registers itself.
func rivalsFor(g Gomega, namespace string) (victim, attacker *clusterv1.Cluster) {
	const name = "production-eu-west-1-payments-cluster-0001"
	create(g, named(&corev1.Namespace{}, "", namespace+"-a"), named(&corev1.Namespace{}, "", namespace))
	wanted := stamp.FleetNamespace(namespace+"-a", name)
	for i := range 1 << 24 {
		other := fmt.Sprintf("a-%s%d", name, i)
		if stamp.FleetNamespace(namespace, other) == wanted {
			victim, attacker = fixture.Cluster(namespace+"-a", name, "", ""), fixture.Cluster(namespace, other, "", "")
			victim.Labels, attacker.Labels = map[string]string{"fleet": "yes"}, map[string]string{"fleet": "yes"}
			attacker.Annotations = map[string]string{stamp.RegistrationAnnotation: string(stamp.ByAgent)}
			return victim, attacker
		}
	}
	g.Expect(wanted).To(BeEmpty(), "no name with this namespace was found")
	return nil, nil
}
