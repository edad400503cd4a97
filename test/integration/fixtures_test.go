package integration

import (
	"fmt"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

var counter atomic.Int64

// newNamespace creates a Namespace with a name of its own.
func newNamespace(t *testing.T, g Gomega, prefix string, labels map[string]string) string {
	t.Helper()
	name := fmt.Sprintf("%s-%d", prefix, counter.Add(1))
	namespace := &corev1.Namespace{}
	namespace.Name, namespace.Labels = name, labels
	g.Expect(admin.Create(ctx, namespace)).To(Succeed())
	return name
}

func newClass(g Gomega, namespace, name string, labels map[string]string) *clusterv1.ClusterClass {
	template := func(kind, group string) clusterv1.ClusterClassTemplateReference {
		return clusterv1.ClusterClassTemplateReference{Kind: kind, APIVersion: group + "/v1beta2", Name: name}
	}
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name, class.Labels = namespace, name, labels
	class.Spec.Infrastructure.TemplateRef = template("DevClusterTemplate", "infrastructure.cluster.x-k8s.io")
	class.Spec.ControlPlane.TemplateRef = template("KubeadmControlPlaneTemplate", "controlplane.cluster.x-k8s.io")
	g.Expect(admin.Create(ctx, class)).To(Succeed())
	return class
}

// topologyCluster returns a Cluster as a user writes it.
func topologyCluster(namespace, name, class, classNamespace string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = namespace, name
	cluster.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.7.0.0/16"}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Name: class, Namespace: classNamespace}
	cluster.Spec.Topology.Version = "v1.36.3"
	return cluster
}

// initialize plays Cluster API: control plane and infrastructure appear, the Cluster
// refers to them, and its control plane is initialized.
func initialize(g Gomega, cluster *clusterv1.Cluster) {
	controlPlane := object(g, fmt.Sprintf(`
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {namespace: %s, name: %s-cp}
spec:
  version: v1.36.3
  replicas: 1
  machineTemplate:
    spec:
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: DevMachineTemplate, name: m}
  kubeadmConfigSpec:
    files: [{path: /etc/secret, content: hunter2}]
    users: [{name: root, passwd: hunter2}]
    preKubeadmCommands: [echo hunter2]
    clusterConfiguration:
      apiServer: {extraArgs: [{name: profiling, value: "false"}]}
`, cluster.Namespace, cluster.Name))
	infrastructure := object(g, fmt.Sprintf(`
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevCluster
metadata: {namespace: %s, name: %s-infra}
spec:
  backend: {inMemory: {}}
`, cluster.Namespace, cluster.Name))
	g.Expect(admin.Create(ctx, controlPlane)).To(Succeed())
	g.Expect(admin.Create(ctx, infrastructure)).To(Succeed())

	before := cluster.DeepCopy()
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "controlplane.cluster.x-k8s.io", Kind: "KubeadmControlPlane", Name: controlPlane.GetName()}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DevCluster", Name: infrastructure.GetName()}
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	before = cluster.DeepCopy()
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	g.Expect(admin.Status().Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
}

func object(g Gomega, text string) *unstructured.Unstructured {
	result := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte(text), &result.Object)).To(Succeed())
	return result
}

// apply applies YAML through kubectl, as a user does, and returns what it printed.
func apply(t *testing.T, text string, args ...string) (string, error) {
	t.Helper()
	return env.KubectlInput(ctx, text, append([]string{"apply", "-f", "-"}, args...)...)
}

func get[T client.Object](g Gomega, into T, namespace, name string) T {
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)).To(Succeed())
	return into
}

func fleetCluster(g Gomega, namespace, name string) *fleetv1.Cluster {
	return get(g, &fleetv1.Cluster{}, namespace, name)
}

// setConfig makes the FleetAddonConfig hold this spec until the test ends.
func setConfig(t *testing.T, g Gomega, spec addonsv1.FleetAddonConfigSpec) {
	t.Helper()
	config := &addonsv1.FleetAddonConfig{}
	config.Name = addonsv1.FleetAddonConfigName
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, config.DeepCopy()))).To(Succeed())
	config.Spec = spec
	g.Expect(admin.Create(ctx, config)).To(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, config)); err != nil {
			t.Errorf("deleting the FleetAddonConfig: %v", err)
		}
	})
}
