// Package e2e tests the whole system: Cluster API provisions clusters in memory, Muster imports them, and Fleet's
// own controllers target bundles at them.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	syncerProcess  = "muster-syncer"
	classNamespace = "classes"
	// soon is the time within which Fleet must follow. The contract says 10 s. The tests print the time that it
	// took, usually one or two seconds. They wait longer, because a busy machine is no defect.
	soon = time.Minute
)

var (
	ctx   = context.Background()
	env   *stack.Stack
	admin client.Client
	// earlier is the revision that TestUpgrade starts from; nil if none is named.
	earlier *fixture.Revision
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	options := stack.Options{Profile: stack.Full, Muster: true}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "muster-former-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			earlier, err = fixture.Earlier(ctx, dir)
		}
		if earlier != nil {
			options.Manifests, options.Binaries = earlier.Manifests, earlier.Binaries
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return stack.Main(m, options, fixture.Use(&env, &admin))
	}())
}

func kubectl(g Gomega, args ...string) string {
	out, err := env.Kubectl(ctx, args...)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

// withDefaults gives the FleetAddonConfig an empty spec. Without one, the settings would be unknown.
func withDefaults(g Gomega) {
	kubectl(g, "delete", "fleetaddonconfig", "fleet-addon-config", "--ignore-not-found")
	g.Expect(env.Apply(ctx, "{apiVersion: addons.cluster.x-k8s.io/v1alpha1, kind: FleetAddonConfig, metadata: {name: fleet-addon-config}, spec: {}}")).To(Succeed())
}

// kubectlApply applies objects with kubectl and these flags, as a user does.
func kubectlApply(g Gomega, yaml string, flags ...string) string {
	out, err := env.KubectlInput(ctx, yaml, append([]string{"apply", "-f", "-"}, flags...)...)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func namespaces(g Gomega, names ...string) {
	for _, name := range names {
		g.Expect(env.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")).To(Succeed())
	}
}

// inMemoryClass creates the class of in-memory clusters in a namespace. Each change edits its YAML.
func inMemoryClass(g Gomega, namespace string, change ...func(Gomega, string) string) {
	namespaces(g, namespace)
	class, err := env.InMemoryClusterClass(namespace)
	g.Expect(err).NotTo(HaveOccurred())
	for _, changed := range change {
		class = changed(g, class)
	}
	g.Expect(env.Apply(ctx, class)).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, namespace, stack.InMemoryClass)).To(Succeed())
}

// hostClass creates the class standard, whose clusters are processes on this host.
func hostClass(g Gomega) {
	g.Expect(env.Apply(ctx, env.HostClusterClass(classNamespace, "standard"))).To(Succeed())
	g.Expect(env.WaitForClusterClass(ctx, classNamespace, "standard")).To(Succeed())
}

// bundles creates a Bundle of one ConfigMap with these targets.
func bundles(g Gomega, namespace, name, targets string) {
	g.Expect(env.Apply(ctx, fixture.DataBundle(namespace, name, "["+targets+"]", "{from: "+name+"}"))).To(Succeed())
}

// waitImported waits until a Cluster is imported, and returns the time of the import.
func waitImported(t *testing.T, g Gomega, key types.NamespacedName) time.Time {
	t.Helper()
	g.Expect(env.WaitForControlPlane(ctx, key.Namespace, key.Name)).To(Succeed())
	var at time.Time
	g.Eventually(func(g Gomega) {
		condition := conditions.Get(getCluster(g, key), "FleetImported")
		g.Expect(condition).NotTo(BeNil())
		g.Expect(string(condition.Status)).To(Equal("True"), condition.Message)
		at = condition.LastTransitionTime.Time
	}).WithTimeout(soon).Should(Succeed())
	return at.Add(time.Second) // Conditions have whole seconds.
}

func getCluster(g Gomega, key types.NamespacedName) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	g.Expect(admin.Get(ctx, key, cluster)).To(Succeed())
	return cluster
}

func fleetCluster(g Gomega, key types.NamespacedName) *fleetv1.Cluster {
	cluster := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, key, cluster)).To(Succeed())
	return cluster
}

func eventuallyGone(g Gomega, object client.Object) {
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object)))
	}).WithTimeout(2*time.Minute).Should(BeTrue(), "%T %s/%s should be gone", object, object.GetNamespace(), object.GetName())
}

// mappingGone waits until the mapping from one namespace to another is gone.
func mappingGone(g Gomega, from, to string) {
	mapping := &fleetv1.BundleNamespaceMapping{}
	mapping.Namespace, mapping.Name = from, to
	eventuallyGone(g, mapping)
}

// fleetNamespace returns the namespace in which Fleet keeps a cluster's BundleDeployments.
func fleetNamespace(g Gomega, key types.NamespacedName) string {
	namespace := fleetCluster(g, key).Status.Namespace
	g.Expect(namespace).NotTo(BeEmpty())
	return namespace
}

// deployments returns the bundles that are deployed to a cluster, as namespace/name.
func deployments(g Gomega, key types.NamespacedName) []string {
	var names []string
	for name := range list(g, fleetNamespace(g, key)) {
		names = append(names, name)
	}
	return names
}

// list returns the bundles that are deployed in a namespace of Fleet's, except its own agents.
func list(g Gomega, namespace string) map[string]types.UID {
	var all fleetv1.BundleDeploymentList
	g.Expect(admin.List(ctx, &all, client.InNamespace(namespace))).To(Succeed())
	result := map[string]types.UID{}
	for _, deployment := range all.Items {
		if own := deployment.Labels[fleetv1.BundleLabel] == "fleet-agent-"+deployment.Labels[fleetv1.ClusterLabel] &&
			deployment.Labels[fleetv1.BundleNamespaceLabel] == deployment.Labels[fleetv1.ClusterNamespaceLabel]; !own {
			result[deployment.Labels[fleetv1.BundleNamespaceLabel]+"/"+deployment.Labels[fleetv1.BundleLabel]] = deployment.UID
		}
	}
	return result
}
