package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
	"github.com/muster-fleet/muster/test/fixture"
)

// sets sets or removes annotations or labels of an object.
func sets(g Gomega, object client.Object, where string, entries map[string]string, remove bool) {
	values := map[string]any{}
	for key, value := range entries {
		if values[key] = value; remove {
			values[key] = nil
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{where: values}})
	g.Expect(err).NotTo(HaveOccurred())
	patch(g, object, string(body))
}

// One Cluster with 40 000 annotations waits, and costs another one nothing.
func TestTooManyAnnotations(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	large := s.cluster("large")
	large.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	create(g, large)
	initialize(g, large)
	annotate := func(annotations map[string]string) {
		t.Helper()
		change, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/metadata/annotations", "value": annotations}})
		g.Expect(err).NotTo(HaveOccurred())
		begin := time.Now()
		g.Expect(admin.Patch(ctx, large, client.RawPatch(types.JSONPatchType, change))).To(Succeed())
		t.Logf("writing %d annotations took %s", len(annotations), time.Since(begin).Round(time.Millisecond))
	}
	annotate(many(40_000))
	begin := time.Now()
	s.imported(g, "ordinary")
	t.Logf("the ordinary Cluster was imported after %s", time.Since(begin).Round(time.Millisecond))
	willReport(g, large, "False TooMuchMetadata", "it has 0 labels and 40000 annotations to copy, of ", "at most 512 labels, 512 annotations and 131072 bytes", "remove some")
	isAnnounced(g, large, "Warning", "TooMuchMetadata")
	isGone(g, s.fleet("large"))

	annotate(map[string]string{"note": "one"})
	willReport(g, large, "True Imported")
	g.Expect(fleetCluster(g, s.namespace, "large").Annotations).To(HaveKeyWithValue("note", "one"))
}

// copiedOf returns the parts of a Fleet Cluster that are copied.
func copiedOf(live *fleetv1.Cluster) (labels, annotations map[string]string, values any) {
	ours := func(key, value string) bool {
		optOut, found := spared[key]
		return stamp.IsKey(key) || key == stamp.ManagedByLabel || len(live.OwnerReferences) == 0 && found && optOut == value
	}
	labels, annotations = maps.Clone(live.Labels), maps.Clone(live.Annotations)
	maps.DeleteFunc(labels, ours)
	maps.DeleteFunc(annotations, ours)
	return labels, annotations, live.Spec.TemplateValues.Data
}

// Above the bound, copied labels, annotations and values stay as they are, and all else goes on.
func TestAboveTheBoundAllElseGoesOn(t *testing.T) {
	const settings = "selector: {matchExpressions: [{key: out, operator: DoesNotExist}]}, "
	for name, tooMuch := range map[string]struct {
		before, after func(g Gomega, s scene, cluster *clusterv1.Cluster)
		message       string
	}{
		"of a Cluster": {
			after:   func(g Gomega, _ scene, cluster *clusterv1.Cluster) { sets(g, cluster, "annotations", many(600), false) },
			message: "nothing is copied from the Cluster, because it has 2 labels and 601 annotations",
		},
		"of a Cluster that an older Muster imported": {
			before: func(g Gomega, s scene, cluster *clusterv1.Cluster) {
				sets(g, cluster, "annotations", many(500), false)
				g.Eventually(func(g Gomega) {
					g.Expect(fleetCluster(g, s.namespace, "one").Annotations).To(haveKeys(slices.Collect(maps.Keys(many(500)))...))
				}).Should(Succeed())
			},
			after: func(g Gomega, s scene, cluster *clusterv1.Cluster) {
				defer stop(t, g, syncerProcess)()
				sets(g, cluster, "annotations", many(3000), false)
				live := fleetCluster(g, s.namespace, "one")
				live.ManagedFields, live.ResourceVersion, live.UID = nil, "", ""
				maps.Copy(live.Annotations, many(3000))
				fields, err := desired.Configuration(live)
				g.Expect(err).NotTo(HaveOccurred())
				fields["apiVersion"], fields["kind"] = fleetVersion, "Cluster"
				g.Expect(admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: fields}), client.FieldOwner(stamp.FieldManager), client.ForceOwnership)).To(Succeed())
			},
			message: "nothing is copied from the Cluster, because it has 2 labels and 3001 annotations",
		},
		"of its class": {
			after:   func(g Gomega, s scene, _ *clusterv1.Cluster) { sets(g, s.class, "labels", many(600), false) },
			message: "nothing is copied from ClusterClass ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene(t, g)
			sets(g, s.class, "labels", map[string]string{"tier": "gold"}, false)
			configureCluster(t, g, "{"+settings+"agentNamespace: first}")
			cluster := s.cluster("one")
			cluster.Labels, cluster.Annotations = map[string]string{"env": "prod", "gone": "soon"}, map[string]string{"note": "kept"}
			create(g, cluster)
			initialize(g, cluster)
			willReport(g, cluster, "True Imported")
			if tooMuch.before != nil {
				tooMuch.before(g, s, cluster)
			}
			tooMuch.after(g, s, cluster)
			willReport(g, cluster, "True TooMuchMetadata", "the last labels, annotations and template values are kept", tooMuch.message)
			isAnnounced(g, cluster, "Warning", "TooMuchMetadata")
			labels, annotations, values := copiedOf(fleetCluster(g, s.namespace, "one"))
			uid := fleetCluster(g, s.namespace, "one").UID
			stays := func(g Gomega) {
				live := fleetCluster(g, s.namespace, "one")
				g.Expect(live.UID).To(Equal(uid))
				nowLabels, nowAnnotations, nowValues := copiedOf(live)
				g.Expect(nowLabels).To(Equal(labels))
				g.Expect(nowAnnotations).To(Equal(annotations))
				g.Expect(nowValues).To(Equal(values))
			}
			will := func(check func(g Gomega, live *fleetv1.Cluster)) {
				t.Helper()
				g.Eventually(func(g Gomega) {
					check(g, fleetCluster(g, s.namespace, "one"))
					stays(g)
				}).Should(Succeed())
			}
			g.Expect(labels).To(And(HaveKeyWithValue("env", "prod"), HaveKeyWithValue("tier", "gold")))
			g.Expect(annotations).To(HaveKeyWithValue("note", "kept"))

			// What is copied stays, whatever changes.
			patch(g, cluster, `{"metadata":{"labels":{"env":"test","gone":null,"new":"x"},"annotations":{"note":null}}}`)
			g.Consistently(stays).Should(Succeed())

			// Conditions.
			fleetReports(g, cluster, corev1.ConditionFalse, "ErrApplied(1)", 0)
			bundlesReady(g, cluster, "False BundlesNotReady", "ErrApplied(1)")

			// Agent settings.
			patch(g, fixture.Config(), `{"spec":{"cluster":{"agentNamespace":"second","agentEnvVars":[{"name":"A","value":"b"}]}}}`)
			will(func(g Gomega, live *fleetv1.Cluster) {
				g.Expect(live.Spec.AgentNamespace).To(Equal("second"))
				g.Expect(live.Spec.AgentEnvVars).To(HaveLen(1))
			})
			patch(g, fixture.Config(), `{"spec":{"cluster":{"agentEnvVars":null}}}`)
			will(func(g Gomega, live *fleetv1.Cluster) { g.Expect(live.Spec.AgentEnvVars).To(BeEmpty()) })

			// The side that registers.
			registers(g, cluster, `"agent"`)
			clientID := isOf(g, cluster, "", drawn)
			registers(g, cluster, `"manager"`)
			isOf(g, cluster, "one-kubeconfig", clientID)
			stays(g)

			// The owner reference.
			pause(g, cluster)
			will(func(g Gomega, live *fleetv1.Cluster) {
				g.Expect(live.OwnerReferences).To(BeEmpty())
				g.Expect(live.Annotations).To(HaveKeyWithValue(stamp.ReleasedAnnotation, "true"))
			})
			unpause(g, cluster)
			will(func(g Gomega, live *fleetv1.Cluster) {
				g.Expect(live.OwnerReferences).To(HaveLen(1))
				g.Expect(live.Annotations).NotTo(HaveKey(stamp.ReleasedAnnotation))
			})

			// The class, in its group and on the Cluster.
			group := s.group()
			exists(g, group)
			g.Expect(group.Labels).To(HaveKeyWithValue("tier", "gold"))
			other := newClass(g, s.classNamespace, "other", map[string]string{"tier": "lead"})
			if name == "of its class" {
				sets(g, other, "labels", many(600), false)
			}
			patch(g, cluster, `{"spec":{"topology":{"classRef":{"name":"other"}}}}`)
			will(func(g Gomega, live *fleetv1.Cluster) {
				g.Expect(live.Labels).To(HaveKeyWithValue(stamp.ClassNameLabel, "other"))
			})
			vanishes(g, s.group())
			appears(g, named(&fleetv1.ClusterGroup{}, s.namespace, "other."+s.classNamespace))

			// Deselection.
			patch(g, cluster, entry("labels", "out", `"yes"`))
			willReport(g, cluster, "True Deselected")
			patch(g, cluster, entry("labels", "out", "null"))
			willReport(g, cluster, "True TooMuchMetadata")
			stays(g)

			// With less, everything is copied.
			sets(g, cluster, "annotations", many(3000), true)
			sets(g, other, "labels", many(600), true)
			willReport(g, cluster, "True Imported")
			g.Eventually(func(g Gomega) {
				labels, annotations, values := copiedOf(fleetCluster(g, s.namespace, "one"))
				g.Expect(labels).To(Equal(map[string]string{"env": "test", "new": "x", "tier": "lead"}))
				g.Expect(annotations).To(BeEmpty())
				g.Expect(values).To(HaveKeyWithValue("Cluster", HaveKeyWithValue("metadata", HaveKeyWithValue("labels", HaveKeyWithValue("env", "test")))))
			}).Should(Succeed())

			// The deletion.
			tooMuch.after(g, scene{s.classNamespace, s.namespace, other}, cluster)
			willReport(g, cluster, "True TooMuchMetadata")
			patch(g, fixture.Config(), `{"spec":{"cluster":{"onDeselect":"Delete"}}}`)
			patch(g, cluster, entry("labels", "out", `"yes"`))
			vanishes(g, s.fleet("one"))
			deleteNow(g, cluster)
		})
	}
}

// The labels of a ClusterGroup stay while its class has too many, and its owner comes and goes with the pause of the class.
func TestGroupAboveTheBound(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace := newNamespace(t, g, "classes", nil)
	class := newClass(g, namespace, "standard", map[string]string{"tier": "gold"})
	its := named(&fleetv1.ClusterGroup{}, namespace, "standard")
	appears(g, its)
	uid := its.UID
	sets(g, class, "labels", many(600), false)
	patch(g, class, entry("labels", "tier", `"lead"`))
	hasOwners := func(count int) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			exists(g, its)
			g.Expect(its.OwnerReferences).To(HaveLen(count))
		}).Should(Succeed())
	}
	for _, paused := range []string{`"true"`, "null", `"true"`} {
		patch(g, class, entry("annotations", clusterv1.PausedAnnotation, paused))
		hasOwners(map[string]int{`"true"`: 0, "null": 1}[paused])
	}
	g.Expect(its.Labels).To(Equal(map[string]string{
		"tier": "gold", stamp.ManagedByLabel: stamp.ManagedBy, stamp.ClassNameLabel: "standard", stamp.ClassNamespaceLabel: namespace,
	}))
	patch(g, class, entry("annotations", clusterv1.PausedAnnotation, "null"))
	hasOwners(1)

	// One that is made meanwhile has no label of the class.
	remove(g, its)
	g.Eventually(func(g Gomega) {
		exists(g, its)
		g.Expect(its.UID).NotTo(Equal(uid))
	}).Should(Succeed())
	g.Expect(its.Labels).To(HaveLen(3))

	sets(g, class, "labels", many(600), true)
	g.Eventually(func(g Gomega) {
		exists(g, its)
		g.Expect(its.Labels).To(HaveKeyWithValue("tier", "lead"))
		g.Expect(its.Labels).To(HaveLen(4))
	}).Should(Succeed())
	deleteNow(g, class)
}

// An upgrade that is held goes on once nothing is copied any more: Fleet never hears of the new version.
func TestHoldEndsAboveTheBound(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.holds(g, "one", "30m")
	reportsApplied(g, addOn(g, cluster, "cni"), false)
	g.Expect(setVersion(g, cluster, nextVersion)).NotTo(BeEmpty())
	willHold(g, cluster, "True WaitingForAddOns")
	sets(g, cluster, "annotations", many(600), false)
	g.Eventually(func(g Gomega) { isFree(g, cluster) }).Should(Succeed())
}

// A Fleet Cluster that etcd refuses is sent once, and again when its content has changed.
func TestTooLargeForEtcd(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	large := s.cluster("large")
	large.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: "x", Value: apiextensionsv1.JSON{Raw: []byte(`"` + strings.Repeat("x", 900_000) + `"`)}}}
	begin := time.Now()
	create(g, large)
	initialize(g, large)
	willReport(g, large, "False Failed", "the biggest part of its template values is /Cluster/spec/topology/variables, 9000", "spec.cluster.templateValues.exclude", "too large")
	isGone(g, s.fleet("large"))
	sent := func() int {
		return len(requests(g, begin, isWrite, about("/fleet.cattle.io/v1alpha1/namespaces/"+s.namespace+"/clusters/large")))
	}
	first := sent()
	g.Expect(first).To(BeNumerically(">", 0))
	for _, provisioned := range []bool{true, false, true} { // The Cluster is reconciled, with the same content.
		g.Expect(admin.Status().Patch(ctx, large, mergePatch(fmt.Sprintf(`{"status":{"initialization":{"infrastructureProvisioned":%t}}}`, provisioned)))).To(Succeed())
		time.Sleep(500 * time.Millisecond)
	}
	g.Consistently(sent).Should(Equal(first))
	configureCluster(t, g, `{templateValues: {exclude: [/Variables]}}`)
	willReport(g, large, "True Imported")
}
