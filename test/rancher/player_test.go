package rancher

import (
	"fmt"
	"sync/atomic"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
)

var (
	counter atomic.Int64
	crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	// plays acts as Turtles and Rancher.
	plays *player.Player
)

// newNamespace creates a Namespace with a unique name.
func newNamespace(g Gomega, prefix string, labels map[string]string) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, counter.Add(1)), Labels: labels}}
	g.Expect(admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// downstream is a Downstream whose failures end the test.
type downstream struct{ *player.Downstream }

// newCluster plays a user and Cluster API: it creates a Cluster whose control plane is initialized.
func newCluster(g Gomega, namespace, name, class, classNamespace string, labels map[string]string) *clusterv1.Cluster {
	cluster := fixture.Cluster(namespace, name, class, classNamespace)
	cluster.Labels = labels
	g.Expect(plays.NewCluster(ctx, cluster)).To(Succeed())
	return cluster
}

// marked returns the labels of a Cluster that Turtles imports.
func marked(more ...string) map[string]string {
	labels := map[string]string{player.AutoImport: "true"}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

func turtlesImports(g Gomega, cluster *clusterv1.Cluster, annotations map[string]string) *downstream {
	d, err := plays.TurtlesImports(ctx, cluster, annotations)
	g.Expect(err).NotTo(HaveOccurred())
	return &downstream{d}
}

func (d *downstream) assignsWorkspace(g Gomega, workspace string) {
	g.Expect(d.AssignsWorkspace(ctx, workspace)).To(Succeed())
}

func (d *downstream) provisions(g Gomega)   { g.Expect(d.Provisions(ctx)).To(Succeed()) }
func (d *downstream) becomesReady(g Gomega) { g.Expect(d.BecomesReady(ctx)).To(Succeed()) }
func (d *downstream) applies(g Gomega)      { g.Expect(d.Applies()).To(Succeed()) }

func (d *downstream) fleet(g Gomega) *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{}
	g.Expect(admin.Get(ctx, d.Key(), fleet)).To(Succeed())
	return fleet
}

// imports plays the whole import.
func imports(g Gomega, cluster *clusterv1.Cluster, workspace string) *downstream {
	d := turtlesImports(g, cluster, nil)
	d.assignsWorkspace(g, workspace)
	d.provisions(g)
	d.becomesReady(g)
	d.applies(g)
	return d
}

func provisioned(g Gomega, workspace, name string, labels map[string]string) *downstream {
	d, err := plays.Provisioned(ctx, workspace, name, fmt.Sprintf("c-m-%08d", counter.Add(1)), labels)
	g.Expect(err).NotTo(HaveOccurred())
	return &downstream{d}
}

func patch(g Gomega, object client.Object, body string) {
	g.Expect(plays.Patch(ctx, object, "%s", body)).To(Succeed())
}
