package integration

import (
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

var (
	printedCommand = regexp.MustCompile(`kubectl [^;]+`)
	printedName    = regexp.MustCompile(`for example "([^"]+)"`)
)

// A user who follows the advice of a refusal gets the request through, and other users lose nothing. Each case follows one
// advice of one refusal; a command is run as it is printed.
func TestAdviceOfRefusals(t *testing.T) {
	g := NewWithT(t)
	configure(t, g, "{}")
	const long = "a-name-with-which-the-namespace-in-fleet-is-cut"
	run := func(t *testing.T, g Gomega, message string, _ *clusterv1.Cluster) {
		t.Helper()
		shell, err := fixture.NewShell(env, t.TempDir(), t.TempDir())
		g.Expect(err).NotTo(HaveOccurred())
		command := printedCommand.FindString(message)
		g.Expect(command).NotTo(BeEmpty(), message)
		_, _, err = shell.Run(ctx, env.Kubeconfig, command)
		g.Expect(err).NotTo(HaveOccurred())
	}
	rename := func(_ *testing.T, g Gomega, message string, cluster *clusterv1.Cluster) {
		g.Expect(message).To(ContainSubstring("name this Cluster differently"))
		cluster.Name += "-2"
		if example := printedName.FindStringSubmatch(message); example != nil {
			cluster.Name = example[1]
		}
	}
	unpin := func(_ *testing.T, g Gomega, message string, cluster *clusterv1.Cluster) {
		g.Expect(message).To(ContainSubstring("remove its annotation " + stamp.ClusterNameAnnotation))
		cluster.Annotations = nil
	}
	someones := func(g Gomega, namespace string) { newFleetCluster(g, namespace, "prod", nil) }
	ofOneThatIsGone := func(g Gomega, namespace string) {
		newFleetCluster(g, namespace, "prod", map[string]string{stamp.ImportedFromAnnotation: "old"})
	}
	ofOneThatLives := func(g Gomega, namespace string) {
		initialize(g, plainCluster(g, namespace, "prod-eu", nil))
		appears(g, named(&fleetv1.Cluster{}, namespace, "prod-eu"))
	}
	ofOneThatWaits := func(g Gomega, namespace string) { plainCluster(g, namespace, "prod-eu", nil) }
	sharesNamespace := func(g Gomega, namespace string) {
		shared := &corev1.Namespace{}
		shared.Name = stamp.FleetNamespace(namespace, long)
		shared.Annotations = map[string]string{fleetv1.ClusterNamespaceAnnotation: "elsewhere", fleetv1.ClusterAnnotation: "other"}
		create(g, shared)
	}
	for _, test := range []struct {
		name    string
		prepare func(g Gomega, namespace string)
		cluster string
		pin     map[string]string
		follow  func(t *testing.T, g Gomega, message string, cluster *clusterv1.Cluster)
	}{
		{"a Fleet Cluster of somebody's is handed over", someones, "prod", nil, run},
		{"a Fleet Cluster of somebody's is left alone", someones, "prod", nil, rename},
		{"a Fleet Cluster whose Cluster is gone is handed over", ofOneThatIsGone, "prod", nil, run},
		{"a Fleet Cluster whose Cluster is gone is left alone", ofOneThatIsGone, "prod", nil, rename},
		{"a copied annotation is removed", ofOneThatLives, "prod", pinned("prod-eu"), unpin},
		{"a copied annotation is removed before the import", ofOneThatWaits, "prod", pinned("prod-eu"), unpin},
		{"the namespace in Fleet is another's", sharesNamespace, long, nil, rename},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			namespace := newNamespace(t, g, "team", nil)
			test.prepare(g, namespace)
			theirs := belongings(t, g, namespace)
			cluster := fixture.Cluster(namespace, test.cluster, "", "")
			cluster.Annotations = test.pin
			message := ""
			g.Eventually(func(g Gomega) { // The webhook's cache sees other objects a moment later.
				err := admin.Create(ctx, cluster.DeepCopy(), client.DryRunAll)
				g.Expect(err).To(MatchError(ContainSubstring("denied the request: ")))
				message = err.Error()
			}).Should(Succeed())
			test.follow(t, g, message, cluster)
			g.Eventually(func() error { return admin.Create(ctx, cluster) }).Should(Succeed(), message)
			initialize(g, cluster)
			willReport(g, cluster, "True Imported")
			for object, uid := range theirs {
				exists(g, object)
				g.Expect(object.GetUID()).To(Equal(uid), "%T %s", object, object.GetName())
			}
		})
	}
}

// belongings creates a Secret and what Fleet deploys to each Fleet Cluster of a namespace, and returns these with the
// Fleet Clusters, and their UIDs.
func belongings(t *testing.T, g Gomega, namespace string) map[client.Object]types.UID {
	t.Helper()
	result := map[client.Object]types.UID{}
	add := func(objects ...client.Object) {
		for _, object := range objects {
			result[object] = object.GetUID()
		}
	}
	fleetClusters := &fleetv1.ClusterList{}
	g.Expect(admin.List(ctx, fleetClusters, client.InNamespace(namespace))).To(Succeed())
	for i := range fleetClusters.Items {
		fleet := &fleetClusters.Items[i]
		deployment := named(&fleetv1.BundleDeployment{}, newNamespace(t, g, "cluster", nil), "cni")
		deployment.Labels = map[string]string{fleetv1.BundleLabel: "cni", fleetv1.BundleNamespaceLabel: namespace, fleetv1.ClusterLabel: fleet.Name, fleetv1.ClusterNamespaceLabel: namespace}
		create(g, deployment)
		add(fleet, deployment)
	}
	kubeconfig := named(&corev1.Secret{}, namespace, "someones-kubeconfig")
	create(g, kubeconfig)
	add(kubeconfig)
	return result
}
