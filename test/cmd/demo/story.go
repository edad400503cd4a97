package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	platform = "demo-platform" // where the platform team keeps its classes
	team     = "demo-team"     // where an application team has its clusters
	class    = stack.InMemoryClass
	group    = class + "." + platform
	edge     = "edge" // a cluster that is really there, to deploy to

	capiClusters = "clusters.cluster.x-k8s.io"

	soon     = 10 * time.Second
	patience = time.Minute
)

type cluster struct{ namespace, name, pods, env string }

func (c cluster) String() string { return c.namespace + "/" + c.name }

var clusters = []cluster{
	{team, "alpha", "10.1.0.0/16", "prod"},
	{team, "beta", "10.2.0.0/16", "dev"},
	{platform, "home", "10.3.0.0/16", "prod"},
}

const config = `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {%s}
`

func (s *story) configure() {
	s.act("A FleetAddonConfig: import every cluster, nothing else said")
	s.apply(fmt.Sprintf(config, "cluster: {selector: {}}"))
	s.untilTrue("Ready", patience, "fac", "fleet-addon-config")
	s.checked("accepted and Ready")

	_, err := s.KubectlInput(s.ctx, fmt.Sprintf(config, `config: {server: {inferLocal: true, custom: {apiServerUrl: "https://fleet.example.com"}}}`), "apply", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "spec.config.server") {
		s.must(fmt.Errorf("a FleetAddonConfig with both inferLocal and custom should be refused, got: %w", err))
	}
	_, refusal, _ := strings.Cut(err.Error(), "set exactly one")
	refusal, _, _ = strings.Cut(refusal, "\n")
	refusal, _, _ = strings.Cut(refusal, ";")
	s.checked("one with both inferLocal and custom is refused: set exactly one%s", refusal)
}

func (s *story) addClass() {
	s.act("A ClusterClass %q in namespace %s", class, platform)
	s.namespace(platform)
	s.namespace(team)
	objects, err := s.InMemoryClusterClass(platform)
	s.must(err)
	s.must(s.Apply(s.ctx, objects))
	s.must(s.WaitForClusterClass(s.ctx, platform, class))
	s.until("the class's ClusterGroup", patience, class, s.Kubectl,
		"-n", platform, "get", "clustergroups.fleet.cattle.io", class, "-o", "jsonpath={.metadata.name}")
	s.checked("Fleet has ClusterGroup %s/%s", platform, class)
}

func (s *story) addBundles() {
	s.act("Two applications: one of the platform team for every cluster of the class, one of the application team")
	for _, bundle := range []struct{ namespace, name, targets string }{
		{platform, "baseline", "[{clusterGroup: " + group + "}, {clusterGroup: " + class + "}]"},
		{team, "app", "[{clusterSelector: {matchLabels: {env: prod}}}]"},
	} {
		s.must(s.Apply(s.ctx, fixture.DataBundle(bundle.namespace, bundle.name, bundle.targets, "{from: "+bundle.namespace+"}")))
		s.checked("Bundle %s/%s is there, waiting for clusters", bundle.namespace, bundle.name)
	}
}

func (s *story) addClusters() {
	s.act("Three Clusters of the class, for Cluster API to provision: two in %s, one beside the class", team)
	for _, c := range clusters {
		manifest := stack.TopologyCluster{Namespace: c.namespace, Name: c.name, ClassNamespace: platform, PodCIDR: c.pods, Labels: map[string]string{"env": c.env}}
		answer := s.apply(manifest.YAML())
		for _, key := range []string{"clusterclass-name.fleet", "clusterclass-namespace.fleet", "owned-by: fleet-addon-config", "cluster-name: " + c.name} {
			if !strings.Contains(answer, key) {
				s.must(fmt.Errorf("the answer to kubectl apply of %s lacks the stamp %q:\n%s", c, key, answer))
			}
		}
		s.checked("kubectl apply of %s answers with the stamp already on it", c)
	}
}

func (s *story) deployDownstream() {
	s.act("A cluster that is really there: a second API server, registered with Cluster API as %s/%s", team, edge)
	kubeconfig, err := s.StartDownstream(s.ctx)
	s.must(err)
	s.must(s.Apply(s.ctx, fixture.KubeconfigSecret(team, edge, kubeconfig)+fmt.Sprintf(`---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevCluster
metadata: {namespace: %[1]s, name: %[2]s, annotations: {cluster.x-k8s.io/managed-by: "its owner"}}
spec: {backend: {inMemory: {}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: %[1]s, name: %[2]s, labels: {env: edge}}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.42.0.0/16]}}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: DevCluster, name: %[2]s}
`, team, edge)))
	s.must(s.Apply(s.ctx, fixture.DataBundle(team, "edge-hello", "[{clusterName: "+edge+"}]", fixture.PodCIDRs)))
	// No provider provisions it, so only its owner can report that its control plane is up.
	_, err = s.Kubectl(s.ctx, "-n", team, "patch", capiClusters, edge, "--subresource=status", "--type=merge",
		"-p", `{"status":{"initialization":{"controlPlaneInitialized":true}}}`)
	s.must(err)
	s.must(s.StartAgent(s.ctx, stack.DefaultAgentNamespace))
	s.checked("Muster imported it, and Fleet's agent runs there")
	s.until("the ConfigMap on the downstream", patience, "10.42.0.0/16", s.DownstreamKubectl,
		"-n", "default", "get", "configmap", "edge-hello", "-o", "jsonpath={.data.pods}")
	s.checked("Fleet's agent deployed ConfigMap edge-hello there, with the cluster's own pod CIDR in it")
}

func (s *story) waitForClusters() {
	s.act("Cluster API has provisioned the three (in memory), Muster imports them when their control plane is there")
	for _, c := range clusters {
		s.must(s.WaitForControlPlane(s.ctx, c.namespace, c.name))
		s.untilTrue("FleetImported", soon, "-n", c.namespace, capiClusters, c.name)
		took := s.transition(c, "FleetImported").Sub(s.transition(c, "ControlPlaneInitialized"))
		if took > soon {
			s.must(fmt.Errorf("%s was imported %s after its control plane was initialized, more than %s", c, took, soon))
		}
		s.checked("%s is in Fleet, at most %s after its control plane was initialized", c, took+time.Second)
	}
	for _, object := range []struct{ namespace, kind, name, what string }{
		{team, "clustergroups.fleet.cattle.io", group, "ClusterGroup for the clusters of a class from elsewhere"},
		{platform, "bundlenamespacemappings.fleet.cattle.io", team, "BundleNamespaceMapping that lets the platform's bundles reach the team"},
	} {
		if !s.exists("-n", object.namespace, object.kind, object.name) {
			s.must(fmt.Errorf("there is no %s %s/%s", object.kind, object.namespace, object.name))
		}
		s.checked("%s: %s/%s", object.what, object.namespace, object.name)
	}
}

// transition is when a condition of a Cluster last changed, to the second.
func (s *story) transition(c cluster, condition string) time.Time {
	out, err := s.Kubectl(s.ctx, "-n", c.namespace, "get", capiClusters, c.name,
		"-o", fmt.Sprintf(`jsonpath={.status.conditions[?(@.type==%q)].lastTransitionTime}`, condition))
	s.must(err)
	at, err := time.Parse(time.RFC3339, out)
	s.must(err)
	return at
}

func (s *story) checkTargets() {
	s.act("Fleet targets the applications")
	for _, c := range clusters {
		want := []string{platform + "/baseline"}
		if c.namespace == team && c.env == "prod" {
			want = append(want, team+"/app")
		}
		s.must(poll.Until(s.ctx, "the bundles of "+c.String(), soon, func(ctx context.Context) error {
			got, err := s.bundlesOf(ctx, c)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%s has %v, not %v", c, got, want)
			}
			return err
		}))
		s.checked("%s gets %s, and nothing else", c, strings.Join(want, " and "))
	}
}

// bundlesOf returns the bundles Fleet deploys to a cluster, but for its own agent's.
func (s *story) bundlesOf(ctx context.Context, c cluster) ([]string, error) {
	out, err := s.Kubectl(ctx, "get", "bundledeployments", "-A",
		"-l", "fleet.cattle.io/cluster="+c.name+",fleet.cattle.io/cluster-namespace="+c.namespace,
		"-o", `jsonpath={range .items[*]}{.metadata.labels.fleet\.cattle\.io/bundle-namespace}/{.metadata.labels.fleet\.cattle\.io/bundle-name}{"\n"}{end}`)
	names := strings.Fields(out)
	names = slices.DeleteFunc(names, func(name string) bool { return name == c.namespace+"/fleet-agent-"+c.name })
	slices.Sort(names)
	return names, err
}

// hosted is the Cluster of docs/guides/cni.md, and addOn a Bundle on it whose values have the version of Kubernetes.
var hosted = cluster{namespace: "team", name: "prod"}

const addOn = "autoscaler"

// inside runs kubectl in the hosted Cluster.
func (s *story) inside(ctx context.Context, args ...string) (string, error) {
	return s.HostedKubectl(ctx, hosted.namespace, hosted.name, args...)
}

// addHosted applies the guide "Clusters that become ready on their own" unchanged, and the add-on. becomeReady waits for
// its Cluster, which takes as long as all that the story tells in between.
func (s *story) addHosted() {
	s.act("A Cluster that becomes ready alone: its CNI lies beside its class (docs/guides/cni.md, as it stands)")
	blocks, err := fixture.Guide("cni.md", 3)
	s.must(err)
	s.must(s.StartHostProvider(s.ctx))
	s.namespace("classes")
	s.namespace(hosted.namespace)
	s.must(s.Apply(s.ctx, s.HostClusterClass("classes", "standard")))
	s.must(s.WaitForClusterClass(s.ctx, "classes", "standard"))
	s.must(s.Apply(s.ctx, fixture.DataBundle(hosted.namespace, addOn, "[{clusterName: "+hosted.name+"}]", "{for: '${ .ClusterValues.Cluster.spec.topology.version }'}")))
	s.hosted = time.Now()
	// Not its FleetAddonConfig: there is no second agent on the node.
	for _, block := range blocks[1:] {
		s.apply(block)
	}
	s.checked("applied, and left alone")
}

func (s *story) becomeReady() {
	s.act("Meanwhile, %s/%s and %s become ready", team, edge, hosted)
	s.untilTrue("FleetBundlesReady", patience, "-n", team, capiClusters, edge)
	s.checked("CAPI Cluster %s/%s says FleetBundlesReady=True", team, edge)
	s.until("the agent's Pod", 2*patience, "Running", s.inside,
		"-n", stack.DefaultAgentNamespace, "get", "pods", "-l", "app=fleet-agent", "-o", "jsonpath={.items[*].status.phase}")
	s.checked("Fleet's agent runs on the worker of %s: it tolerates the taints of a starting node", hosted)
	s.until("the node", 2*patience, "True", s.inside, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
	s.checked("it deployed the CNI from beside the class, and the node became Ready")
	s.untilTrue("Available", 2*patience, "-n", hosted.namespace, capiClusters, hosted.name)
	s.checked("the Cluster is Available, gates FleetImported and FleetBundlesReady included, at most %s after kubectl apply", poll.Since(s.hosted))
}

// upgrade changes the version of the same Cluster, whose worker Cluster API then replaces.
func (s *story) upgrade() {
	const version, next = "v1.36.3", "v1.37.0"
	s.act("An upgrade that waits for its add-on (docs/guides/upgrades.md)")
	begin := time.Now()
	answer, err := s.Kubectl(s.ctx, "-n", hosted.namespace, "patch", capiClusters, hosted.name, "--type=merge", "-o", "yaml",
		"-p", fmt.Sprintf(`{"metadata":{"annotations":{%q:"5m"}},"spec":{"topology":{"version":%q}}}`, stamp.HoldAnnotation, next))
	s.must(err)
	if !strings.Contains(answer, stamp.HookAnnotation+": ") {
		s.must(fmt.Errorf("the answer to the new version lacks %s:\n%s", stamp.HookAnnotation, answer))
	}
	s.checked("the answer to the new version has the annotation for which Cluster API waits")
	s.until("the add-on", patience, next, s.inside, "-n", "default", "get", "configmap", addOn, "-o", "jsonpath={.data.for}")
	controlPlane := []string{"-n", hosted.namespace, "get", "hostcontrolplanes", "-l", "cluster.x-k8s.io/cluster-name=" + hosted.name, "-o", "jsonpath={.items[*].spec.version}"}
	got, err := s.Kubectl(s.ctx, controlPlane...)
	if err == nil && got != version {
		err = fmt.Errorf("the control plane already has %s, not %s", got, version)
	}
	s.must(err)
	s.checked("Fleet has deployed the add-on for %s; the control plane still has %s", next, version)
	s.until("the control plane", patience, next, s.Kubectl, controlPlane...)
	s.checked("Muster has ended the hold, and Cluster API upgrades the control plane, %s after the change", poll.Since(begin))
}
