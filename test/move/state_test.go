package move

import (
	"encoding/json"
	"time"

	. "github.com/onsi/gomega"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
)

func (s *side) cluster(g Gomega) *clusterv1.Cluster {
	live := &clusterv1.Cluster{}
	g.Expect(s.admin.Get(ctx, prod, live)).To(Succeed())
	return live
}

// state is what a side's Fleet has of the cluster: its objects and their UIDs.
type state struct {
	uid                 types.UID
	owners              []types.UID
	released, namespace string
	// deployments are the UIDs of the BundleDeployments by the names of their Bundles.
	deployments map[string]types.UID
}

func (s *side) state(g Gomega) state {
	var live fleetv1.Cluster
	g.Expect(s.admin.Get(ctx, prod, &live)).To(Succeed())
	now := state{uid: live.UID, released: live.Annotations[stamp.ReleasedAnnotation], namespace: live.Status.Namespace, deployments: map[string]types.UID{}}
	for _, owner := range live.OwnerReferences {
		now.owners = append(now.owners, owner.UID)
	}
	for _, deployment := range s.bundleDeployments(g, now.namespace) {
		now.deployments[bundleOf(&deployment)] = deployment.UID
	}
	return now
}

func (s *side) bundleDeployments(g Gomega, namespace string) []fleetv1.BundleDeployment {
	g.Expect(namespace).NotTo(BeEmpty(), "Fleet has not looked at the cluster yet")
	var all fleetv1.BundleDeploymentList
	g.Expect(s.admin.List(ctx, &all, client.InNamespace(namespace))).To(Succeed())
	return all.Items
}

func bundleOf(deployment *fleetv1.BundleDeployment) string {
	return deployment.Labels["fleet.cattle.io/bundle-namespace"] + "/" + deployment.Labels["fleet.cattle.io/bundle-name"]
}

// waitDeployed waits until the cluster is in the Fleet of this side with exactly these bundles and its agent's
// bundle, all ready, and its agent has checked in since the given time.
func (s *side) waitDeployed(g Gomega, since time.Time, bundles ...string) {
	g.Eventually(func(g Gomega) {
		imported := conditions.Get(s.cluster(g), "FleetImported")
		g.Expect(imported).NotTo(BeNil())
		g.Expect(imported.Reason).To(Equal("Imported"), imported.Message)
		var live fleetv1.Cluster
		g.Expect(s.admin.Get(ctx, prod, &live)).To(Succeed())
		g.Expect(live.Status.Agent.LastSeen.After(since)).To(BeTrue(), "its agent was seen last at %s", live.Status.Agent.LastSeen)
		var ready []string
		for _, deployment := range s.bundleDeployments(g, live.Status.Namespace) {
			if bundle := bundleOf(&deployment); deployment.Status.Ready && deployment.Status.AppliedDeploymentID == deployment.Spec.DeploymentID {
				ready = append(ready, bundle)
			}
		}
		g.Expect(ready).To(ConsistOf(append([]string{"team/fleet-agent-prod"}, bundles...)), s.name)
		g.Expect(conditions.IsTrue(s.cluster(g), "FleetBundlesReady")).To(BeTrue(), conditions.GetMessage(s.cluster(g), "FleetBundlesReady"))
	}).WithTimeout(2 * soon).Should(Succeed())
}

// deployed returns the applications on the cluster, by name: their content and the UIDs of their objects.
func deployed(g Gomega) map[string]string {
	out, err := home.HostedKubectl(ctx, prod.Namespace, prod.Name, "-n", "default", "get", "configmaps",
		"--field-selector=metadata.name!=kube-root-ca.crt", "-o", "json")
	g.Expect(err).NotTo(HaveOccurred())
	var list corev1.ConfigMapList
	g.Expect(json.Unmarshal([]byte(out), &list)).To(Succeed())
	found := map[string]string{}
	for _, item := range list.Items {
		found[item.Name] = string(item.UID) + " " + item.Data["pods"]
	}
	return found
}
