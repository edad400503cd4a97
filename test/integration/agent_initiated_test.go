package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

// registers sets which side registers a Cluster.
func registers(g Gomega, cluster *clusterv1.Cluster, by string) {
	patch(g, cluster, entry("annotations", stamp.RegistrationAnnotation, by))
}

// agentInitiated returns a Cluster in a namespace; its agent registers itself.
func agentInitiated(g Gomega, namespace string) *clusterv1.Cluster {
	return plainCluster(g, namespace, "edge", map[string]string{stamp.RegistrationAnnotation: "agent"})
}

// checkIn plays the agent of a Cluster.
func checkIn(g Gomega, cluster *clusterv1.Cluster) {
	g.Expect(fixture.Call(ctx, admin, fleetCluster(g, cluster.Namespace, cluster.Name), time.Now())).To(Succeed())
	willReport(g, cluster, "Imported")
}

// isOf waits until a Fleet Cluster has this kubeconfig and a matching clientID, and returns the clientID.
func isOf(g Gomega, cluster *clusterv1.Cluster, kubeconfig string, clientID any) (found string) {
	matcher, ok := clientID.(gomegatypes.GomegaMatcher)
	if !ok {
		matcher = Equal(clientID)
	}
	g.Eventually(func(g Gomega) {
		spec := fleetCluster(g, cluster.Namespace, cluster.Name).Spec
		g.Expect(spec.KubeConfigSecret).To(Equal(kubeconfig))
		g.Expect(spec.ClientID).To(matcher)
		found = spec.ClientID
	}).Should(Succeed())
	return found
}

// drawn matches a clientID that Muster drew: 26 letters, each one of 32, are 130 bits.
var drawn = MatchRegexp(`^.{26,}$`)

// A Cluster whose agent registers itself gets its Fleet Cluster at creation, and nothing that would let Fleet install
// an agent. The registrar does not run here, and the condition says so.
func TestAgentInitiated(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	configureCluster(t, g, "{agentInitiated: true, agentInitiatedSelector: {matchLabels: {site: edge}}}")
	edge := fixture.Cluster(s.namespace, "edge", "", "")
	edge.Labels = map[string]string{"site": "edge"}
	create(g, edge)
	core := plainCluster(g, s.namespace, "core", nil)
	clientID := isOf(g, edge, "", drawn)
	willReport(g, edge, "RegistrarMissing")
	willReport(g, core, "WaitingForControlPlane")
	isGone(g, s.fleet("core"))

	// Neither a change of the Cluster or its control plane nor a restart draws a new clientID.
	patch(g, edge, entry("labels", "a", `"b"`))
	g.Expect(fixture.Initialize(ctx, admin, edge)).To(Succeed())
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, s.namespace, "edge").Labels).To(HaveKey("a")) }).Should(Succeed())
	g.Consistently(func(g Gomega) { reports(g, edge, "RegistrarMissing") }).Should(Succeed())
	isOf(g, edge, "", clientID)
	checkIn(g, edge) // The agent is registered, whether or not a registrar runs.

	// The manager registers the Cluster, then the agent again. A new clientID would cut off the agent.
	registers(g, edge, `"manager"`)
	isOf(g, edge, "edge-kubeconfig", clientID)
	registers(g, edge, "null")
	isOf(g, edge, "", clientID)
	willReport(g, edge, "Imported")

	// Muster takes over the clientID that Fleet drew for an agent that it installed.
	g.Expect(fixture.Initialize(ctx, admin, core)).To(Succeed())
	appears(g, s.fleet("core"))
	patch(g, s.fleet("core"), `{"spec":{"clientID":"drawn-by-fleet-itself"}}`)
	registers(g, core, `"agent"`)
	isOf(g, core, "", "drawn-by-fleet-itself")
	registers(g, core, `"manager"`)
	isOf(g, core, "core-kubeconfig", "drawn-by-fleet-itself")
}

// A topology Cluster is registered once the objects that it refers to exist. Without their values, every bundle that
// reads them would stop, for all clusters.
func TestAgentInitiatedWaitsForItsValues(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newScene(t, g)
	cluster := s.cluster("edge")
	cluster.Annotations = map[string]string{stamp.RegistrationAnnotation: "agent"}
	create(g, cluster)
	willReport(g, cluster, "WaitingForControlPlane")
	isGone(g, s.fleet("edge"))
	initialize(g, cluster)
	appears(g, s.fleet("edge"))
	isOf(g, cluster, "", drawn)
	g.Expect(fleetCluster(g, s.namespace, "edge").Spec.TemplateValues.Data).To(HaveKey("ControlPlane"))
}

// A user hands over a Fleet Cluster made by hand. Muster removes the kubeconfig, by which Fleet would import the
// cluster, and keeps the clientID, by which Fleet knows the agent, unless it can be guessed.
func TestAgentInitiatedHandedOver(t *testing.T) {
	t.Parallel()
	for clientID, want := range map[string]any{"0123456789abcdef": "0123456789abcdef", "edge-1": drawn} {
		g := NewWithT(t)
		namespace := newNamespace(t, g, "team", nil)
		theirs := named(&fleetv1.Cluster{Spec: fleetv1.ClusterSpec{ClientID: clientID, KubeConfigSecret: "edge-kubeconfig"}}, namespace, "edge")
		theirs.Annotations = map[string]string{stamp.AdoptAnnotation: "true"}
		create(g, theirs)
		cluster := agentInitiated(g, namespace)
		isOf(g, cluster, "", want)
		willReport(g, cluster, "RegistrarMissing")
		g.Expect(fleetCluster(g, namespace, "edge").Annotations).To(HaveKeyWithValue(stamp.ImportedFromAnnotation, "edge"))
	}
}

// A Cluster is handed to the management side before its control plane exists. Fleet would look for the kubeconfig in
// vain, and then not again for minutes.
func TestTurnedBeforeTheControlPlane(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := agentInitiated(g, newNamespace(t, g, "team", nil))
	appears(g, named(&fleetv1.Cluster{}, cluster.Namespace, "edge"))
	clientID := isOf(g, cluster, "", drawn)
	patchf(g, cluster, `{"metadata":{"labels":{"a":"b"},"annotations":{%q:"manager"}}}`, stamp.RegistrationAnnotation)
	willReport(g, cluster, "False WaitingForControlPlane")
	g.Eventually(func(g Gomega) { g.Expect(fleetCluster(g, cluster.Namespace, "edge").Labels).To(HaveKey("a")) }).Should(Succeed())
	isOf(g, cluster, "", clientID)
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
	isOf(g, cluster, "edge-kubeconfig", clientID)
	willReport(g, cluster, "Imported")
}

// The agent of a Cluster that registers itself stays in the namespace that holds its credential.
func TestAgentNamespaceOfAgentInitiated(t *testing.T) {
	g := NewWithT(t)
	namespace := newNamespace(t, g, "team", nil)
	configure(t, g, "{}")
	cluster := agentInitiated(g, namespace)
	isOf(g, cluster, "", drawn)
	patch := mergePatch(fmt.Sprintf(`{"status":{"agent":{"lastSeen":%q,"namespace":"fleet-addon-agent"}}}`, time.Now().Format(time.RFC3339)))
	g.Expect(admin.Status().Patch(ctx, fleetCluster(g, namespace, "edge"), patch)).To(Succeed())
	willReport(g, cluster, "Imported")

	g.Expect(warnedBy(g, "", "patch", "fac", "fleet-addon-config", "--type=merge", "-p",
		`{"spec":{"cluster":{"agentNamespace":"elsewhere","hostNetwork":false}}}`)).
		To(MatchRegexp(`the agents of [1-9][0-9]* Clusters register themselves`))
	willReport(g, cluster, "Imported", `its agent stays in namespace "fleet-addon-agent" instead of "elsewhere" (spec.cluster.agentNamespace)`)
	g.Eventually(func(g Gomega) {
		g.Expect(fleetCluster(g, namespace, "edge").Spec).To(And(HaveField("HostNetwork", HaveValue(BeFalse())), HaveField("AgentNamespace", "fleet-addon-agent")))
	}).Should(Succeed())
}

// The guide's examples for RKE2 and k3s are patches of these providers' templates. Applied as Cluster API applies
// them, they yield objects that the API server accepts; it validates them strictly against the providers' own CRDs.
func TestProviders(t *testing.T) {
	t.Parallel()
	for _, provider := range []struct {
		module, template, manifest string
		files                      []string
	}{
		{"github.com/rancher/cluster-api-provider-rke2", `
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: RKE2ControlPlaneTemplate
metadata: {namespace: default, name: example}
spec: {template: {spec: {files: [{path: /etc/motd, content: hello}], rolloutStrategy: {type: RollingUpdate}}}}
`, "/var/lib/rancher/rke2/server/manifests/fleet-agent.yaml", []string{"spec", "template", "spec", "files"}},
		{"github.com/k3s-io/cluster-api-k3s", `
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KThreesControlPlaneTemplate
metadata: {namespace: default, name: example}
spec: {template: {spec: {kthreesConfigSpec: {files: [{path: /etc/motd, content: hello}]}}}}
`, "/var/lib/rancher/k3s/server/manifests/fleet-agent.yaml", []string{"spec", "template", "spec", "kthreesConfigSpec", "files"}},
	} {
		g := NewWithT(t)
		before := object(g, provider.template)
		root, err := stack.RepoRoot()
		g.Expect(err).NotTo(HaveOccurred())
		dir, err := parts.ModuleDir(ctx, filepath.Join(root, "test", "providers"), provider.module)
		g.Expect(err).NotTo(HaveOccurred())
		crd := "controlplane.cluster.x-k8s.io_" + strings.ToLower(before.GetKind()) + "s.yaml"
		content, err := os.ReadFile(filepath.Join(dir, "controlplane/config/crd/bases", crd))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(env.ApplyCRDs(ctx, content)).To(Succeed())
		t.Cleanup(func() { remove(NewWithT(t), object(g, string(content))) })
		g.Expect(strictly().Create(ctx, before.DeepCopy(), client.DryRunAll)).To(Succeed(), "the template itself")

		after := patched(g, before)
		g.Expect(strictly().Create(ctx, after, client.DryRunAll)).To(Succeed())
		files, _, err := unstructured.NestedSlice(after.Object, provider.files...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).To(HaveLen(2), "the class's file, and ours")
		g.Expect(files[1]).To(Equal(map[string]any{
			"path": provider.manifest, "owner": "root:root", "permissions": "0600",
			"contentFrom": map[string]any{"secret": map[string]any{"name": "prod-fleet-agent", "key": "manifest"}},
		}))
	}
}

// patched changes a template as the guide's patch changes the template of Cluster prod.
func patched(g Gomega, before *unstructured.Unstructured) *unstructured.Unstructured {
	definition := definitionFor(g, before.GetKind())
	g.Expect([]string{definition.Selector.APIVersion, definition.Selector.Kind}).To(Equal([]string{before.GetAPIVersion(), before.GetKind()}))
	g.Expect(definition.Selector.MatchResources.ControlPlane).To(HaveValue(BeTrue()))
	content, err := before.MarshalJSON()
	g.Expect(err).NotTo(HaveOccurred())
	for _, operation := range definition.JSONPatches {
		g.Expect(operation.ValueFrom).NotTo(BeNil(), "the example does not render its value")
		text, err := template.New("value").Option("missingkey=error").Parse(operation.ValueFrom.Template)
		g.Expect(err).NotTo(HaveOccurred())
		var rendered bytes.Buffer
		g.Expect(text.Execute(&rendered, map[string]any{"builtin": map[string]any{"cluster": map[string]any{"name": "prod"}}})).To(Succeed())
		var value any
		g.Expect(yaml.Unmarshal(rendered.Bytes(), &value)).To(Succeed())
		encoded, err := json.Marshal([]any{map[string]any{"op": operation.Op, "path": operation.Path, "value": value}})
		g.Expect(err).NotTo(HaveOccurred())
		patch, err := jsonpatch.DecodePatch(encoded)
		g.Expect(err).NotTo(HaveOccurred())
		content, err = patch.Apply(content)
		g.Expect(err).NotTo(HaveOccurred())
	}
	return object(g, string(content))
}

// definitionFor returns the one definition of the guide's patch for templates of a kind. It decodes the patch
// strictly, too.
func definitionFor(g Gomega, kind string) clusterv1.PatchDefinition {
	blocks, err := fixture.Guide("nat.md", 5)
	g.Expect(err).NotTo(HaveOccurred())
	var found []clusterv1.PatchDefinition
	for _, block := range blocks {
		if strings.Contains(block, "kind: "+kind+"\n") {
			var class clusterv1.ClusterClassSpec
			g.Expect(yaml.UnmarshalStrict([]byte(block), &class, yaml.DisallowUnknownFields)).To(Succeed())
			for _, patch := range class.Patches {
				found = append(found, patch.Definitions...)
			}
		}
	}
	g.Expect(found).To(HaveLen(1), "definitions for "+kind)
	return found[0]
}

// Fleet makes a namespace only when it looks. A Fleet Cluster without one is changed, so that Fleet looks: after 5 s,
// and a minute later. The intervals survive a restart. A paused Cluster stays as it is.
func TestFleetIsMadeToLook(t *testing.T) {
	g := NewWithT(t)
	s := newScene(t, g)
	itself := map[string]string{stamp.RegistrationAnnotation: "agent"}
	edge, paused := plainCluster(g, s.namespace, "edge", itself), plainCluster(g, s.namespace, "paused", itself)
	appears(g, s.fleet("edge"), s.fleet("paused"))
	patch(g, paused, entry("annotations", clusterv1.PausedAnnotation, `""`))
	look := func(g Gomega, name string) string {
		return fleetCluster(g, s.namespace, name).Annotations["fleet.addons.cluster.x-k8s.io/retarget"]
	}
	g.Eventually(func(g Gomega) { g.Expect(look(g, "edge")).To(HavePrefix("namespace.1.")) }).Should(Succeed())
	first, since := look(g, "edge"), time.Now()
	g.Expect(env.Restart(ctx, syncerProcess)).To(Succeed())
	g.Eventually(func(g Gomega) { g.Expect(look(g, "edge")).NotTo(Equal(first)) }).WithTimeout(2 * time.Minute).Should(Succeed())
	g.Expect(time.Since(since)).To(BeNumerically(">", 50*time.Second))
	g.Expect(look(g, "edge")).To(HavePrefix("namespace.2."))
	g.Expect(look(g, "paused")).To(BeEmpty())

	// The agent has reported, and Fleet has made the namespace: the Cluster is in Fleet.
	checkIn(g, edge)
	willReport(g, edge, "True Imported")
	bundlesReady(g, edge, "Unknown AgentNotSeen", "its agent among those of the cluster")
}
