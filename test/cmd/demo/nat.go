package main

import (
	"context"
	"fmt"
	"strings"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
)

// shopfloor is a Cluster into which Fleet never connects.
var shopfloor = cluster{namespace: "shopfloor", name: "till"}

// nat registers a Cluster in advance, and hands its agent one manifest.
func (s *story) nat() {
	if !s.exists("fac", "fleet-addon-config") {
		s.configure()
	}
	s.act("A Cluster that the management cluster need not reach (docs/guides/nat.md): the annotation registration=agent")
	if s.exists("namespace", shopfloor.namespace) {
		s.must(fmt.Errorf("this story was played on this stack before; delete the namespace: kubectl -n %[1]s delete %[2]s --all && kubectl delete namespace %[1]s", shopfloor.namespace, capiClusters))
	}
	s.must(s.StartHostProvider(s.ctx))
	s.namespace("classes")
	s.namespace(shopfloor.namespace)
	s.must(s.Apply(s.ctx, s.HostClusterClass("classes", "standard")))
	s.must(s.WaitForClusterClass(s.ctx, "classes", "standard"))
	s.must(s.Apply(s.ctx, fixture.DataBundle(shopfloor.namespace, "prices", "[{clusterName: "+shopfloor.name+"}]", fixture.PodCIDRs)))
	s.apply(fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %s, name: %s, annotations: {%s: agent}}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.55.0.0/16]}, services: {cidrBlocks: [10.128.0.0/12]}}
  topology:
    classRef: {name: standard, namespace: classes}
    version: v1.36.3
    controlPlane: {replicas: 1}
    workers: {machineDeployments: [{class: default-worker, name: md-0, replicas: 1}]}
`, shopfloor.namespace, shopfloor.name, stamp.RegistrationAnnotation))
	s.untilTrue(addonsv1.FleetAgentManifestReadyCondition, patience, "-n", shopfloor.namespace, capiClusters, shopfloor.name)
	s.checked("Muster has registered it in advance: Secret %s/%s-fleet-agent holds one manifest", shopfloor.namespace, shopfloor.name)
	secret, err := s.Kubectl(s.ctx, "-n", shopfloor.namespace, "get", "clusters.fleet.cattle.io", shopfloor.name, "-o", "jsonpath={.spec.kubeConfigSecret}")
	s.must(err)
	if secret != "" {
		s.must(fmt.Errorf("the Fleet Cluster names the kubeconfig %s", secret))
	}
	s.until("the reason", patience, "WaitingForAgent", s.Kubectl, "-n", shopfloor.namespace, "get", capiClusters, shopfloor.name,
		"-o", `jsonpath={.status.conditions[?(@.type=="FleetImported")].reason}`)
	s.checked("the Fleet Cluster names no kubeconfig: Fleet cannot connect, and waits for the agent")

	s.act("What the cluster's own bootstrap would do: kubectl muster agent-manifest %s | kubectl apply -f -", shopfloor)
	s.must(s.WaitForControlPlane(s.ctx, shopfloor.namespace, shopfloor.name))
	manifest, err := s.muster("agent-manifest", shopfloor.String())
	s.must(err)
	applied, err := s.HostedKubectlInput(s.ctx, shopfloor.namespace, shopfloor.name, manifest, "apply", "-f", "-")
	s.must(err)
	s.checked("%d objects, %d bytes, with a credential for this cluster only", strings.Count(applied, "\n"), len(manifest))

	s.act("The agent registers itself")
	s.until("the reason", 2*patience, "Imported", s.Kubectl, "-n", shopfloor.namespace, "get", capiClusters, shopfloor.name,
		"-o", `jsonpath={.status.conditions[?(@.type=="FleetImported")].reason}`)
	s.checked("%s is in Fleet", shopfloor)
	inside := func(ctx context.Context, args ...string) (string, error) {
		return s.HostedKubectl(ctx, shopfloor.namespace, shopfloor.name, args...)
	}
	s.until("the Bundle", 2*patience, "10.55.0.0/16", inside, "-n", "default", "get", "configmap", "prices", "-o", "jsonpath={.data.pods}")
	s.checked("its agent has deployed Bundle prices there")
	s.end("kubectl muster tree -n " + shopfloor.namespace)
}
