// Package integration runs the shipped manifests and both programs against a real API
// server, with the CRDs of Cluster API and Fleet but without their controllers: the
// tests play those, and see exactly what Muster does.
package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	webhookProcess = "muster-webhook"
	syncerProcess  = "muster-syncer"
	// patience is how long a condition may take on a loaded machine before it fails.
	patience = 30 * time.Second
)

var (
	ctx = context.Background()
	env *stack.Stack
	// admin is a client with all rights; what Muster does is done by its own ServiceAccounts.
	admin client.Client
	// use lets tests run on a stack.
	use = fixture.Use(&env, &admin)
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.API, Muster: true}, use, nothingRefused))
}

// ownStack gives a test a stack of its own, because of what it does to it that others could
// not bear. Tests of this package run one after another: until this one ends, that stack
// is the one in use.
func ownStack(t *testing.T, g Gomega) {
	t.Helper()
	own, err := stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	shared := env
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{webhookProcess, syncerProcess} {
				t.Logf("the end of the log of %s:\n%s", name, own.LogTail(name))
			}
		}
		if err := errors.Join(nothingRefused(own), own.Down(), use(shared)); err != nil {
			t.Error(err)
		}
	})
	g.Expect(use(own)).To(Succeed())
}

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
	class := fixture.Class(namespace, name, labels)
	g.Expect(admin.Create(ctx, class)).To(Succeed())
	return class
}

// initialize plays Cluster API: control plane and infrastructure appear, the Cluster
// refers to them, and its control plane is initialized.
func initialize(g Gomega, cluster *clusterv1.Cluster) {
	controlPlane, infrastructure := fixture.ControlPlane(cluster), fixture.Infrastructure(cluster)
	g.Expect(admin.Create(ctx, controlPlane)).To(Succeed())
	g.Expect(admin.Create(ctx, infrastructure)).To(Succeed())
	before := cluster.DeepCopy()
	cluster.Spec.ControlPlaneRef = fixture.ReferenceTo(controlPlane)
	cluster.Spec.InfrastructureRef = fixture.ReferenceTo(infrastructure)
	g.Expect(admin.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	g.Expect(fixture.Initialize(ctx, admin, cluster)).To(Succeed())
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
	config := fixture.Config()
	g.Expect(client.IgnoreNotFound(admin.Delete(ctx, config.DeepCopy()))).To(Succeed())
	config.Spec = spec
	g.Expect(admin.Create(ctx, config)).To(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(ctx, config)); err != nil {
			t.Errorf("deleting the FleetAddonConfig: %v", err)
		}
	})
}
