package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

// deed is one row of a table.
type deed fixture.Deed

// tryAll tries deeds with a token. The name of a policy that refuses one matches policies.
func tryAll(t *testing.T, by client.Client, policies string, deeds []deed) {
	for _, test := range deeds {
		t.Run(test.Name, func(t *testing.T) {
			g := NewWithT(t)
			err := fixture.Deed(test).Try(ctx, by)
			if test.Refused == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			isForbidden(g, err, test.Refused)
			g.Expect(err).To(MatchError(MatchRegexp(policies)))
		})
	}
}

// fieldsOf returns one of Muster's objects with these fields, as YAML.
func fieldsOf(g Gomega, its *unstructured.Unstructured, fields string) *unstructured.Unstructured {
	its.SetLabels(map[string]string{stamp.ManagedByLabel: stamp.ManagedBy})
	maps.Copy(its.Object, object(g, fields).Object)
	return its
}

// The syncer's token allows exactly what the syncer does. RBAC allows all of these requests unless the test says
// otherwise: the shipped policies refuse them.
func TestSyncerToken(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	s.imported(g, "plain")
	syncer := thief(g)
	fleets := func(kind, name string) *unstructured.Unstructured {
		return target(fleetVersion, kind, s.namespace, name)
	}
	foreign := func(kind string) *unstructured.Unstructured { return fleets(kind, "foreign") }
	own, handedOver, bundle := fleets("Cluster", "one"), fleets("Cluster", "handed-over"), fleets("Bundle", "bundle")
	cluster, class := target(capiVersion, "Cluster", s.namespace, "one"), target(capiVersion, "ClusterClass", s.classNamespace, "standard")
	namespace, secret := target("v1", "Namespace", "", s.namespace), target("v1", "Secret", s.namespace, "secret")
	g.Expect(env.Apply(ctx, fmt.Sprintf(`
{apiVersion: fleet.cattle.io/v1alpha1, kind: Cluster, metadata: {namespace: %[1]s, name: foreign}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: labelled, labels: {app.kubernetes.io/managed-by: muster, management.cattle.io/cluster-name: c-1}}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: %[1]s, name: handed-over, annotations: {fleet.addons.cluster.x-k8s.io/adopt: "true"}}
spec: {privateRepoURL: registry.example}
---
{apiVersion: fleet.cattle.io/v1alpha1, kind: ClusterGroup, metadata: {namespace: %[1]s, name: foreign}, spec: {selector: {}}}
---
{apiVersion: fleet.cattle.io/v1alpha1, kind: BundleNamespaceMapping, metadata: {namespace: %[1]s, name: foreign}}
---
{apiVersion: fleet.cattle.io/v1alpha1, kind: Bundle, metadata: {namespace: %[1]s, name: bundle}, spec: {resources: []}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: secret}}
`, s.namespace))).To(Succeed())

	// The syncer may neither change nor remove these labels and annotations.
	shared := []*unstructured.Unstructured{bundle, cluster, class, namespace}
	for _, object := range shared {
		patch(g, object.DeepCopy(), `{"metadata":{"labels":{"kept":"1"},"annotations":{"kept":"1"}}}`)
	}
	topology := func(body string) string { return `{"spec":{"topology":{` + body + `}}}` }
	workers := func(md string) string {
		return topology(`"workers":{"machineDeployments":[` + md + `{"class":"default","name":"plain","replicas":1}]}`)
	}
	md := func(replicas int, overrides string) string {
		return fmt.Sprintf(`{"class":"default","name":"md","replicas":%d,"variables":{"overrides":[%s]}},`, replicas, overrides)
	}
	value := func(name, value string) string { return fmt.Sprintf(`{"name":%q,"value":%s}`, name, value) }
	region, disks, zones := value("region", `"west"`), value("disks", `{"root":{"size":1}}`), value("zones", `["a","b"]`)
	north := value("region", `"north"`)
	variables := func(all ...string) string { return topology(`"variables":[` + strings.Join(all, ",") + `]`) }
	overrides := func(all string) string { return topology(`"controlPlane":{"variables":{"overrides":` + all + `}}`) }
	for _, body := range []string{variables(region, disks, zones), workers(md(1, north)), topology(`"controlPlane":{"replicas":1}`),
		overrides("[" + value("region", `"east"`) + "]")} {
		patch(g, cluster.DeepCopy(), body)
	}

	held := target(capiVersion, "Cluster", s.namespace, "held") // It is not imported, so the syncer does not end its hold.
	holding := s.cluster(held.GetName())
	holding.Annotations = map[string]string{
		stamp.HoldAnnotation: "1h", "before-upgrade.hook.cluster.cluster.x-k8s.io/else": "x",
		stamp.HookAnnotation: hold.Hold{From: "v1.35.0", To: fixture.KubernetesVersion, Since: time.Now()}.String(),
	}
	holding.Spec.Paused = ptr.To(true)
	create(g, holding)
	const (
		label      = `{"metadata":{"labels":{"a":"b"}}}`
		finalizer  = `{"metadata":{"finalizers":["a.example/b"]}}`
		owner      = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`
		condition  = `status {"status":{"conditions":[{"type":"Available","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
		notMusters = "may not change a Fleet object that is not Muster's"
		notDeleted = "may not delete a Fleet object that is not Muster's"
		ofFleet    = " of a Fleet Cluster"
		noSpec     = "may not change a Cluster's spec"
	)
	tryAll(t, syncer, "ValidatingAdmissionPolicy 'muster-(syncer-|fleet-cluster-namespace)", []deed{
		{"may not label a foreign Fleet Cluster", foreign("Cluster"), label, notMusters},
		{"may not claim a foreign Fleet Cluster", foreign("Cluster"), entry("labels", stamp.ManagedByLabel, `"muster"`), notMusters},
		{"may not adopt a foreign Fleet Cluster", foreign("Cluster"), entry("annotations", stamp.AdoptAnnotation, `"true"`), notMusters},
		{"may not edit the spec of a foreign Fleet Cluster", foreign("Cluster"), `{"spec":{"kubeConfigSecret":"x"}}`, notMusters},
		{"may not apply over a foreign Fleet Cluster", fieldsOf(g, foreign("Cluster"), "{}"), "apply", notMusters},
		{"may not delete a foreign Fleet Cluster", foreign("Cluster"), "delete", notDeleted},
		{"may not edit a foreign ClusterGroup", foreign("ClusterGroup"), label, notMusters},
		{"may not edit a foreign BundleNamespaceMapping", foreign("BundleNamespaceMapping"), `{"bundleSelector":{}}`, notMusters},
		{"may not delete a foreign BundleNamespaceMapping", foreign("BundleNamespaceMapping"), "delete", notDeleted},
		{"may not create a Fleet Cluster that is nobody's", fleets("Cluster", "new"), "create", "only with the label app.kubernetes.io/managed-by=muster"},

		{"may not choose the image of an agent", own, `{"spec":{"privateRepoURL":"registry.evil.example"}}`, "spec.privateRepoURL" + ofFleet},
		{"may not make a Fleet Cluster with such an image", fieldsOf(g, fleets("Cluster", "new"), "spec: {privateRepoURL: registry.evil.example}"),
			"create", "spec.privateRepoURL" + ofFleet},
		{"may not read a kubeconfig of another namespace", own, `{"spec":{"kubeConfigSecretNamespace":"kube-system"}}`, "spec.kubeConfigSecretNamespace" + ofFleet},
		{"may not place an agent", own, `{"spec":{"agentAffinity":{}}}`, "spec.agentAffinity" + ofFleet},
		{"may not starve an agent", own, `{"spec":{"agentResources":{}}}`, "spec.agentResources" + ofFleet},
		{"may not outrank others with an agent", own, `{"spec":{"agentSchedulingCustomization":{"priorityClass":{"value":1}}}}`,
			"spec.agentSchedulingCustomization" + ofFleet},
		{"may not make a Fleet Cluster look like Rancher's", own, entry("labels", stamp.RancherClusterLabel, `"c-1"`), stamp.RancherClusterLabel},
		{"may not have Fleet ignore a Fleet Cluster", own, entry("labels", "fleet.cattle.io/cluster-management", `"true"`), "fleet.cattle.io/cluster-management"},
		{"may not hand a Fleet Cluster over to itself", own, entry("annotations", stamp.AdoptAnnotation, `"true"`), "may not set on a Fleet object"},
		{"may not keep a Fleet Cluster from going", own, finalizer, "no finalizers"},
		{"may not pause a Fleet Cluster", own, `{"spec":{"paused":true}}`, "spec.paused" + ofFleet},
		{"may not take off what others set", handedOver, `{"spec":{"privateRepoURL":null}}`, "spec.privateRepoURL" + ofFleet},

		{"may not edit a Bundle's spec", bundle, `{"spec":{"paused":true}}`, "may not change a Bundle's spec"},
		{"may not put a label of Fleet on a Bundle", bundle, entry("labels", "objectset.rio.cattle.io/hash", `"x"`),
			"reserved domain to a Bundle: objectset.rio.cattle.io/hash"},
		{"may not put an owner on a Bundle", bundle, owner, "may not change a Bundle's owners"},
		{"may not put a finalizer on a Bundle", bundle, finalizer, "may not change a Bundle's finalizers"},

		{"may not edit a CAPI Cluster's spec", cluster, topology(`"version":"v1.99.0"`), noSpec},
		{"may not take a CAPI Cluster's topology off", cluster, `{"spec":{"topology":null}}`, noSpec},
		{"may not change a CAPI Cluster's class", cluster, topology(`"classRef":{"name":"x"}`), noSpec},
		{"may not pause a CAPI Cluster", cluster, `{"spec":{"paused":true}}`, noSpec},
		{"may not edit it as v1beta1", target("cluster.x-k8s.io/v1beta1", "Cluster", s.namespace, "plain"), `{"spec":{"paused":true}}`, noSpec},
		{"may not pause a CAPI Cluster by annotation", cluster, entry("annotations", "cluster.x-k8s.io/paused", `""`),
			"reserved domain to a Cluster: cluster.x-k8s.io/paused"},
		{"may not put an annotation of Cluster API on it", cluster, entry("annotations", "topology.cluster.x-k8s.io/hold-upgrade-sequence", `""`),
			"topology.cluster.x-k8s.io/hold-upgrade-sequence"},
		{"may not put an annotation of Muster on it", cluster, entry("annotations", stamp.AdoptAnnotation, `"true"`), stamp.AdoptAnnotation},
		{"may not begin a hold under a key that Cluster API takes for one", held, entry("annotations", "before-upgrade.hook.cluster.cluster.x-k8s.io.evil/x", `""`),
			"before-upgrade.hook.cluster.cluster.x-k8s.io.evil/x"},
		{"may not end a hold of others", held, entry("annotations", "before-upgrade.hook.cluster.cluster.x-k8s.io/else", "null"),
			"may not change or remove labels and annotations of a Cluster: before-upgrade.hook.cluster.cluster.x-k8s.io/else"},
		{"may not ask for holds as a user does", cluster, entry("annotations", stamp.HoldAnnotation, `"1h"`), stamp.HoldAnnotation},
		{"may not change a variable", cluster, variables(value("region", `"x"`), disks, zones), "variables of a Cluster's topology: region of topology"},
		{"may not change what is in a variable", cluster, variables(region, value("disks", `{"root":{"size":2,"kind":"ssd"}}`), zones), "disks of topology"},
		{"may not add to the list of a variable", cluster, variables(region, disks, value("zones", `["a","b","c"]`)), "zones of topology"},
		{"may not take variables off", cluster, variables(region), "disks, zones of topology"},
		{"may not change an override", cluster, overrides("[" + value("region", `"x"`) + "]"), "region of controlPlane"},
		{"may not take the overrides off", cluster, topology(`"controlPlane":{"variables":null}`), "region of controlPlane"},
		{"may not change an override of workers", cluster, workers(md(1, value("region", `"x"`))), "region of MachineDeployment md"},
		{"may not scale the control plane", cluster, topology(`"controlPlane":{"replicas":3}`), "spec.topology: controlPlane"},
		{"may not scale workers", cluster, workers(md(3, north)), "spec.topology: MachineDeployment md"},
		{"may not take workers off", cluster, workers(""), "spec.topology: MachineDeployment md"},
		{"may not add workers", cluster, workers(`{"class":"default","name":"more"},` + md(1, north)), "spec.topology: MachineDeployment more"},
		{"may not put a finalizer on a CAPI Cluster", cluster, finalizer, "put none on"},
		{"may not put an owner on a CAPI Cluster", cluster, owner, "may not change a Cluster's owners"},
		{"may not set another condition of a CAPI Cluster", cluster, condition, "only FleetImported, FleetBundlesReady and FleetUpgradeHeld"},
		{"may not set another status of a CAPI Cluster", cluster, `status {"status":{"initialization":{"controlPlaneInitialized":false}}}`,
			"may change of a Cluster's status only"},

		{"may not edit a ClusterClass's spec", class, `{"spec":{"infrastructure":{"templateRef":{"name":"x"}}}}`, "may not change a ClusterClass's spec"},
		{"may not put a label of Cluster API on a ClusterClass", class, entry("labels", "cluster.x-k8s.io/watch-filter", `"x"`),
			"reserved domain to a ClusterClass: cluster.x-k8s.io/watch-filter"},
		{"may not put a finalizer on a ClusterClass", class, finalizer, "put none on"},

		{"may not take a Namespace's protection off", namespace, entry("labels", "pod-security.kubernetes.io/enforce", `"privileged"`),
			"reserved domain to a Namespace: pod-security.kubernetes.io/enforce"},
		{"may not put a Namespace into a project of Rancher", namespace, entry("annotations", "field.cattle.io/projectId", `"c-1:p-1"`), "field.cattle.io/projectId"},
		{"may not put a finalizer on a Namespace", namespace, finalizer, "may not change a Namespace's finalizers"},

		{"may change what it made", own, label, ""},
		{"may write every field that it sets", own, `{"spec":{"kubeConfigSecret":"x","clientID":"x","agentNamespace":"x","agentTolerations":[{"key":"x"}],
			"agentEnvVars":[{"name":"x","value":"y"}],"agentPullSecrets":[{"name":"x"}],"hostNetwork":true,"templateValues":{"x":1},"redeployAgentGeneration":1}}`, ""},
		{"may change what was handed over", handedOver, label, ""},
		{"may change its own with Rancher's label", fleets("Cluster", "labelled"), label, ""},
		{"may retarget a Bundle", bundle, entry("annotations", stamp.Domain+"/retarget", `"1"`), ""},
		{"may add variables", cluster, variables(region, value("disks", `{"root":{"size":1,"kind":"ssd"},"data":{}}`), zones, value("new", "1")), ""},
		{"may add an override", cluster, overrides("[" + value("region", `"east"`) + "," + value("new", "1") + "]"), ""},
		{"may add overrides to workers", cluster, strings.Replace(workers(md(1, north)), `"plain",`, `"plain","variables":{"overrides":[`+value("new",
			"1")+`]},`, 1), ""},
		{"may end a hold", held, entry("annotations", stamp.HookAnnotation, "null"), ""},
		{"may pass on the wish of a class", cluster, entry("annotations", stamp.ClassHoldAnnotation, `"1h"`), ""},
		{"may stamp a Cluster", cluster, entry("labels", stamp.ClassNameLabel, "null"), ""},
		{"may annotate a Namespace", namespace, entry("annotations", workspace, "null"), ""},
	})
	var deeds []deed
	for _, object := range shared {
		kind := object.GetKind()
		for _, where := range []string{"labels", "annotations"} {
			for _, value := range []string{`"2"`, "null"} {
				deeds = append(deeds, deed{Name: fmt.Sprintf("may not set one of the %s of a %s to %s", where, kind, value), Object: object,
					Do: entry(where, "kept", value), Refused: "may not change or remove labels and annotations of a " + kind + ": kept"})
			}
			// What mutating webhooks add to the syncer's requests looks like its own change.
			deeds = append(deeds, deed{Name: "may add to the " + where + " of a " + kind, Object: object, Do: entry(where, "example.com/cost", `"1"`)})
		}
	}
	tryAll(t, syncer, "", deeds)
	noRight := []deed{{"read", secret, "get", "secrets"}, {"patch", secret, `{"data":{"a":"Yg=="}}`, "secrets"},
		{"create", target("v1", "Secret", s.namespace, "new"), "create", "secrets"}, {"delete", secret, "delete", "secrets"}}
	t.Run("has no right to a Secret", func(t *testing.T) { tryAll(t, syncer, "cannot", noRight) })

	// A role that a user adds to the syncer's gives it no right to write.
	grant(t, g, "", "system:serviceaccount:muster-system:muster-syncer", may("", "secrets", "patch"))
	isForbidden(g, fixture.Deed(noRight[1]).Try(ctx, syncer), "muster-syncer has no business to update secrets")
}

// A mapping delivers the bundles of a namespace. The syncer's token can create only mappings of the shape that Muster
// uses, and only groups of a class.
func TestShapesOfTheSyncer(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	s.imported(g, "one")
	stop(t, g, syncerProcess) // A running syncer would revert the edits here.
	mappingOf := func(name, fields string) *unstructured.Unstructured {
		return fieldsOf(g, target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, name), fields)
	}
	edited := mappingOf("edited", "{bundleSelector: {matchLabels: {by: somebody}}, namespaceSelector: {matchLabels: {by: somebody}}}")
	create(g, edited.DeepCopy())
	const (
		ownBundles   = "{matchExpressions: [{key: objectset.rio.cattle.io/hash, operator: DoesNotExist}]}"
		ownBundlesIn = `{"bundleSelector":{"matchLabels":null,"matchExpressions":[{"key":"objectset.rio.cattle.io/hash","operator":"DoesNotExist"}]}`
		victim       = "{matchLabels: {kubernetes.io/metadata.name: victim}}"
		ofClass      = "clusterclass-name.fleet.addons.cluster.x-k8s.io: a, clusterclass-namespace.fleet.addons.cluster.x-k8s.io: b"
		mappings     = "muster-syncer may only make BundleNamespaceMappings"
		groups       = "muster-syncer may only make ClusterGroups"
	)
	mapping := func(bundles, namespaces string) *unstructured.Unstructured {
		return mappingOf("victim", "{bundleSelector: "+bundles+", namespaceSelector: "+namespaces+"}")
	}
	group := func(selector string) *unstructured.Unstructured {
		return fieldsOf(g, target(fleetVersion, "ClusterGroup", s.namespace, "new"), "spec: {selector: "+selector+"}")
	}
	ours := target(fleetVersion, "BundleNamespaceMapping", s.classNamespace, s.namespace)
	oursGroup := target(fleetVersion, "ClusterGroup", s.namespace, s.group().Name)
	lease := func(name string) *unstructured.Unstructured {
		return target("coordination.k8s.io/v1", "Lease", "muster-system", name)
	}
	its := lease(syncerProcess)
	exists(g, its)
	tryAll(t, thief(g), "", []deed{
		{"may not make a mapping of all bundles", mapping("{}", victim), "create", mappings},
		{"may not make a mapping to all namespaces", mapping(ownBundles, "{}"), "create", mappings},
		{"may not make a mapping to another namespace", mapping(ownBundles, strings.Replace(victim, "victim", "other", 1)), "create", mappings},
		{"may not make a mapping to its namespace and more", mapping(ownBundles, strings.Replace(victim, "{", "{matchExpressions: [], ", 1)), "create", mappings},
		{"may not make a mapping of agent bundles", mapping(strings.Replace(ownBundles, "DoesNotExist", "Exists", 1), victim), "create", mappings},
		{"may not make a mapping of chosen bundles", mapping(strings.Replace(ownBundles, "{", "{matchLabels: {a: b}, ", 1), victim), "create", mappings},
		{"may not let a mapping map all bundles", ours, `{"bundleSelector":{"matchExpressions":null}}`, mappings},
		{"may not let a mapping map to all namespaces", ours, `{"namespaceSelector":{"matchLabels":null}}`, mappings},
		{"may not let a mapping map to another namespace", ours, `{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"other"}}}`, mappings},
		{"may not set one selector beside what somebody made of it", edited, ownBundlesIn + "}", mappings},
		{"may not make a group of all clusters", group("{}"), "create", groups},
		{"may not make a group of chosen clusters", group("{matchLabels: {a: b}}"), "create", groups},
		{"may not make a group of half a class", group("{matchLabels: {clusterclass-name.fleet.addons.cluster.x-k8s.io: a}}"), "create", groups},
		{"may not make a group of a class and others", group("{matchLabels: {a: b, " + ofClass + "}}"), "create", groups},
		{"may not make a group by expressions", group("{matchLabels: {" + ofClass + "}, matchExpressions: [{key: a, operator: Exists}]}"), "create", groups},
		{"may not let a group hold all clusters", oursGroup, `{"spec":{"selector":{"matchLabels":null}}}`, groups},
		{"may not let a group hold clusters of no class", oursGroup, `{"spec":{"selector":null}}`, groups},
		{"may make a mapping", mapping(ownBundles, victim), "create", ""},
		{"may make a mapping that maps nothing", mappingOf("victim", "{}"), "create", ""},
		{"may make a group", group("{matchLabels: {" + ofClass + "}}"), "create", ""},
		{"may retire a mapping", ours, `{"bundleSelector":null,"namespaceSelector":null}`, ""},
		{"may retire a mapping that somebody edited", edited, `{"bundleSelector":null,"namespaceSelector":null}`, ""},
		{"may half retire a mapping that is half somebody's", edited, `{"namespaceSelector":null}`, ""},
		{"may label a mapping that somebody edited", edited, entry("labels", "a", `"b"`), ""},
		{"may put back what somebody edited", edited, ownBundlesIn + `,"namespaceSelector":{"matchLabels":{"by":null,"kubernetes.io/metadata.name":"edited"}}}`, ""},

		// RBAC cannot check a name at creation; the fence can.
		{"may make no Lease but its own", lease("other"), "create", "muster-syncer has no business to create leases"},
		{"may make no ConfigMap but the record of the FleetAddonConfig", target("v1", "ConfigMap", "muster-system", "other"), "create", "muster-syncer has no business to create configmaps"},
		{"may read no other ConfigMap", target("v1", "ConfigMap", "muster-system", "other"), "get", "cannot get"},
		{"may read no Lease but its own", lease("other"), "get", "cannot get"},
		{"may read its own", its, "get", ""},
		{"may renew its own", its, "update", ""},
	})
}

// Fleet makes accounts, deploys and deletes in the namespace that a Fleet Cluster's status names, and any agent may
// write that status. Fleet also reads kubeconfigs in some namespaces for any user who names them.
func TestWhereFleetDeploysIsFleets(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	agents, fleets := "agent-"+s.namespace, "fleet-"+s.namespace
	granted := may("", "secrets", "get")
	granted.ResourceNames = []string{"granted-kubeconfig"}
	grant(t, g, s.namespace, agents, may("*", "*", "*"))
	grant(t, g, "", fleets, may("fleet.cattle.io", "clusters", "*"), may("fleet.cattle.io", "clusters/status", "*"), may("", "namespaces", "*"), granted)
	agent, fleet := tenant(g, agents), tenant(g, fleets)
	newFleetCluster(g, s.namespace, "bare", nil)
	const (
		fleetsOnly = "only Fleet may set or change status.namespace"
		foreign    = "only who may get the Secret may name the kubeconfig of another namespace"
	)
	made := target(fleetVersion, "Cluster", s.namespace, "made")
	g.Expect(unstructured.SetNestedField(made.Object, "cluster-fleet-local", "spec", "kubeConfigSecretNamespace")).To(Succeed())
	isForbidden(g, agent.Create(ctx, made), foreign)
	for _, test := range []struct {
		by      client.Client
		status  bool
		patch   string
		refused string
	}{
		{agent, true, `{"status":{"agent":{"lastSeen":"2026-01-02T03:04:05Z"}}}`, ""},
		{agent, true, `{"status":{"namespace":"victim"}}`, fleetsOnly},
		{fleet, true, `{"status":{"namespace":"cluster-its-own"}}`, ""},
		{agent, true, `{"status":{"agent":{"lastSeen":"2026-01-02T03:05:05Z"}}}`, ""},
		{agent, true, `{"status":{"namespace":"victim"}}`, fleetsOnly},
		{agent, true, `{"status":{"namespace":null}}`, fleetsOnly},
		{agent, true, `{"status":null}`, fleetsOnly},
		{agent, false, entry("labels", "a", `"b"`), ""},
		{fleet, true, `{"status":{"namespace":"cluster-another"}}`, ""},
		{agent, false, `{"spec":{"kubeConfigSecretNamespace":"fleet-default","kubeConfigSecret":"victim-kubeconfig"}}`, foreign},
		{agent, false, fmt.Sprintf(`{"spec":{"kubeConfigSecretNamespace":%q,"kubeConfigSecret":"its-kubeconfig"}}`, s.namespace), ""},
		{agent, false, `{"spec":{"kubeConfigSecretNamespace":"fleet-default"}}`, foreign},
		{fleet, false, `{"spec":{"kubeConfigSecretNamespace":"fleet-default"}}`, foreign},
		{fleet, false, `{"spec":{"kubeConfigSecretNamespace":"fleet-default","kubeConfigSecret":"granted-kubeconfig"}}`, ""},
		{agent, false, `{"spec":{"kubeConfigSecret":"victim-kubeconfig"}}`, foreign},
		{agent, false, `{"spec":{"agentNamespace":"agents"}}`, ""},
		{agent, false, `{"spec":{"kubeConfigSecretNamespace":null}}`, ""},
	} {
		write := test.by.Patch
		if test.status {
			write = func(ctx context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
				return test.by.Status().Patch(ctx, object, patch)
			}
		}
		err := write(ctx, s.fleet("bare"), mergePatch(test.patch))
		if test.refused == "" {
			g.Expect(err).NotTo(HaveOccurred(), test.patch)
		} else {
			isForbidden(g, err, test.refused)
		}
	}
}

// The fence has gaps that no policy can close. This test shows why the documentation says so; no role that ships
// opens one.
func TestWhatPoliciesDoNotBound(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	secret, kind := target("v1", "Secret", s.namespace, "secret"), "admissionregistration.k8s.io/v1"
	create(g, secret.DeepCopy())
	careless := []rbacv1.PolicyRule{may("admissionregistration.k8s.io", "*", "patch", "create"), may("", "users", "impersonate"),
		may("", "secrets", "get", "patch"), may("", "serviceaccounts/token", "create")}
	grant(t, g, "", "system:serviceaccount:muster-system:muster-syncer", careless...)
	grant(t, g, "", "pat", careless...)
	const label = `{"metadata":{"labels":{"a":"b"}}}`
	syncer := thief(g)
	deeds := []deed{
		// The API server evaluates no policy on policies and their bindings, on reads, or on the user that a request
		// impersonates. It does on webhooks and on tokens of other accounts.
		{"a policy's binding", target(kind, "ValidatingAdmissionPolicyBinding", "", "muster-syncer-nothing-else"), label, ""},
		{"a policy", target(kind, "ValidatingAdmissionPolicy", "", "muster-syncer-nothing-else"), label, ""},
		{"to read", secret, "get", ""},
		{"to write", secret, label, "muster-syncer has no business to update secrets"},
		{"a webhook", target(kind, "ValidatingWebhookConfiguration", "", "muster-validating-webhook"), label,
			"muster-syncer has no business to update validatingwebhookconfigurations"},
	}
	if parts.Chosen.HasMutatingPolicies() {
		mutating := fieldsOf(g, target(kind, "MutatingAdmissionPolicyBinding", "", "new"), "spec: {policyName: none}")
		deeds = append(deeds, deed{"a policy that changes", mutating, "create", ""})
	}
	tryAll(t, syncer, "", deeds)
	config, err := env.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	config = rest.AnonymousClientConfig(config)
	config.UserAgent, config.Impersonate.UserName = thiefAgent, "pat"
	config.BearerToken = tokenOf(g, "muster-system", syncerProcess)
	asPat, err := fixture.ClientOf(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(asPat.Patch(ctx, secret, mergePatch(label), client.DryRunAll)).To(Succeed())
	isForbidden(g, syncer.SubResource("token").Create(ctx, named(&corev1.ServiceAccount{}, "kube-system", "generic-garbage-collector"),
		&authenticationv1.TokenRequest{}),
		"muster-syncer has no business to create serviceaccounts/token")
}

// nothingRefused checks the audit log when all tests on a stack are done: neither RBAC nor the syncer's policies
// refused a request of the two ServiceAccounts. One exception: the webhook may be refused the CA that a
// FleetAddonConfig refers to, because it tries to read it without having the right.
func nothingRefused(s *stack.Stack) error {
	return fixture.NothingRefused(s, "muster-system", []string{webhookProcess, syncerProcess}, func(e stack.AuditEvent) bool {
		isCA := e.User == stack.ServiceAccount("muster-system", webhookProcess) && e.Verb == "get" && (e.Resource == "configmaps" || e.Resource == "secrets")
		_, onPurpose := provoked.Load(e.Namespace)
		_, isGone := provoked.Load(e.Resource)
		return e.UserAgent == thiefAgent || isCA || onPurpose || isGone
	})
}

func tokenOf(g Gomega, namespace, account string) string {
	token, err := env.Kubectl(ctx, "create", "token", account, "-n", namespace)
	g.Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(token)
}

// This test lists every right of the two ServiceAccounts, so that none is too broad.
func TestAccessIsNarrow(t *testing.T) {
	g := NewWithT(t)
	var roles rbacv1.ClusterRoleList
	g.Expect(admin.List(ctx, &roles)).To(Succeed())
	seen := 0
	for _, role := range roles.Items {
		if !strings.HasPrefix(role.Name, "muster-") {
			continue
		}
		seen++
		for _, rule := range role.Rules {
			all := slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs)
			g.Expect(all).NotTo(ContainElement(ContainSubstring("*")), "a wildcard in %s", role.Name)
			g.Expect(rule.Resources).NotTo(ContainElement(BeElementOf("secrets", "configmaps")), role.Name)
			g.Expect(rule.Verbs).NotTo(ContainElement(BeElementOf("escalate", "bind", "impersonate", "deletecollection")), role.Name)
		}
	}
	g.Expect(seen).To(BeNumerically(">", 5))

	var bindings rbacv1.ClusterRoleBindingList
	g.Expect(admin.List(ctx, &bindings)).To(Succeed())
	for _, binding := range bindings.Items {
		for _, subject := range binding.Subjects {
			if subject.Namespace == "muster-system" {
				g.Expect(binding.RoleRef.Name).To(HavePrefix("muster-"), binding.Name)
			}
		}
	}
}

// Users who may create namespaces and accounts choose their names: no name exempts from a policy.
func TestNoNameExempts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	create(g, named(&corev1.ServiceAccount{}, s.namespace, syncerProcess))
	grant(t, g, s.namespace, "system:serviceaccount:"+s.namespace+":"+syncerProcess, may("*", "*", "*"))
	grant(t, g, "muster-system", "squatter", may("*", "*", "*"))

	// The policies bound another account with the syncer's name like the syncer; it loses nothing but its own rights.
	namesake := accountClient(g, s.namespace, syncerProcess)
	bare := fieldsOf(g, target(fleetVersion, "Cluster", s.namespace, "bare"), "{}")
	create(g, bare.DeepCopy())
	g.Expect(namesake.Patch(ctx, bare.DeepCopy(), mergePatch(entry("labels", "a", `"b"`)))).To(Succeed())
	isForbidden(g, namesake.Patch(ctx, bare.DeepCopy(), mergePatch(entry("annotations", stamp.ReleasedAnnotation, `"x"`))), "muster-bookkeeping")
	isForbidden(g, namesake.Create(ctx, named(&corev1.ConfigMap{}, s.namespace, "new")), "muster-syncer-nothing-else")
	// A namespace with Muster's name does not exempt, either.
	isForbidden(g, tenant(g, "squatter").Create(ctx, fixture.Cluster("muster-system", "squatting", "standard", s.classNamespace), client.DryRunAll),
		"class-access.clusters.fleet.addons.cluster.x-k8s.io")
}

// The shipped namespace enforces the restricted profile, and the API server admits the pods of the shipped
// Deployments to it. No controller makes pods here, so the test does.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	namespace := get(g, &corev1.Namespace{}, "", "muster-system")
	for _, mode := range []string{"enforce", "warn", "audit"} {
		g.Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/"+mode, "restricted"))
		g.Expect(namespace.Labels).To(HaveKey("pod-security.kubernetes.io/" + mode + "-version"))
	}
	for _, name := range []string{webhookProcess, syncerProcess} {
		pod := podOf(get(g, &appsv1.Deployment{}, "muster-system", name))
		g.Expect(admin.Create(ctx, pod.DeepCopy(), client.DryRunAll)).To(Succeed())
		for _, container := range pod.Spec.Containers {
			g.Expect(container.SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
		}
		for what, change := range map[string]func(pod *corev1.PodSpec, container *corev1.SecurityContext){
			"privileged": func(_ *corev1.PodSpec, container *corev1.SecurityContext) {
				container.Privileged, container.AllowPrivilegeEscalation = ptr.To(true), nil
			},
			"runAsNonRoot":              func(pod *corev1.PodSpec, _ *corev1.SecurityContext) { pod.SecurityContext.RunAsNonRoot = nil },
			"seccompProfile":            func(pod *corev1.PodSpec, _ *corev1.SecurityContext) { pod.SecurityContext.SeccompProfile = nil },
			"allowPrivilegeEscalation":  func(_ *corev1.PodSpec, container *corev1.SecurityContext) { container.AllowPrivilegeEscalation = nil },
			"unrestricted capabilities": func(_ *corev1.PodSpec, container *corev1.SecurityContext) { container.Capabilities = nil },
			"host namespaces":           func(pod *corev1.PodSpec, _ *corev1.SecurityContext) { pod.HostNetwork = true },
		} {
			changed := pod.DeepCopy()
			change(&changed.Spec, changed.Spec.Containers[0].SecurityContext)
			isForbidden(g, admin.Create(ctx, changed, client.DryRunAll), `violates PodSecurity "restricted:v1.36"`, what)
		}
	}
}

// podOf returns a pod of a Deployment, as its controller would make it.
func podOf(deployment *appsv1.Deployment) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: "pod", Labels: deployment.Spec.Template.Labels},
		Spec:       *deployment.Spec.Template.Spec.DeepCopy(),
	}
}
