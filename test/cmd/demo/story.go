package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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

	provisioning = 4 * time.Minute
	soon         = 10 * time.Second
	patience     = time.Minute
)

// story is the demo's plot; each act prints what it did and checked.
type story struct {
	*stack.Stack
	begin time.Time
	step  int
	// page is the address of the page that is left.
	page string
}

type cluster struct{ namespace, name, pods, env string }

func (c cluster) String() string { return c.namespace + "/" + c.name }

var clusters = []cluster{
	{team, "alpha", "10.1.0.0/16", "prod"},
	{team, "beta", "10.2.0.0/16", "dev"},
	{platform, "home", "10.3.0.0/16", "prod"},
}

func (s *story) act(format string, args ...any) {
	s.step++
	fmt.Printf("\n%d. %s\n", s.step, fmt.Sprintf(format, args...))
}

func (s *story) checked(format string, args ...any) {
	fmt.Printf("   ✓ %s  [%s]\n", fmt.Sprintf(format, args...), time.Since(s.begin).Round(100*time.Millisecond))
}

// wait polls until a check holds.
func (s *story) wait(ctx context.Context, what string, timeout time.Duration, check func(context.Context) error) error {
	return poll.Until(ctx, what, timeout, check)
}

// is checks that kubectl prints exactly this.
func (s *story) is(want string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := s.Kubectl(ctx, args...)
		if err == nil && strings.TrimSpace(got) != want {
			err = fmt.Errorf("kubectl %s printed %q, not %q", strings.Join(args, " "), strings.TrimSpace(got), want)
		}
		return err
	}
}

func (s *story) configure(ctx context.Context) error {
	s.act("A FleetAddonConfig: import every cluster, nothing else said")
	if _, err := s.KubectlInput(ctx, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {cluster: {selector: {}}}
`, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := s.wait(ctx, "the FleetAddonConfig to be Ready", patience,
		s.is("True", "get", "fac", "fleet-addon-config", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)); err != nil {
		return err
	}
	s.checked("accepted and Ready")

	_, err := s.KubectlInput(ctx, `
apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: FleetAddonConfig
metadata: {name: fleet-addon-config}
spec: {config: {server: {inferLocal: true, custom: {apiServerUrl: "https://fleet.example.com"}}}}
`, "apply", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "spec.config.server") {
		return fmt.Errorf("a FleetAddonConfig with both inferLocal and custom should be refused, got: %w", err)
	}
	s.checked("one with both inferLocal and custom is refused: %s", sentence(err.Error(), "set exactly one"))
	return nil
}

// sentence returns the text from where it starts to its line's end.
func sentence(text, start string) string {
	if at := strings.Index(text, start); at >= 0 {
		text, _, _ = strings.Cut(text[at:], "\n")
	}
	text, _, _ = strings.Cut(text, ";")
	return strings.TrimSpace(text)
}

func (s *story) addClass(ctx context.Context) error {
	s.act("A ClusterClass %q in namespace %s", class, platform)
	for _, namespace := range []string{platform, team} {
		if err := s.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)); err != nil {
			return err
		}
	}
	objects, err := s.InMemoryClusterClass(platform)
	if err != nil {
		return err
	}
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	if err := s.WaitForClusterClass(ctx, platform, class); err != nil {
		return err
	}
	if err := s.wait(ctx, "the class's ClusterGroup", patience,
		s.is(class, "-n", platform, "get", "clustergroups.fleet.cattle.io", class, "-o", "jsonpath={.metadata.name}")); err != nil {
		return err
	}
	s.checked("Fleet has ClusterGroup %s/%s", platform, class)
	return nil
}

func (s *story) addBundles(ctx context.Context) error {
	s.act("Two applications: one of the platform team for every cluster of the class, one of the application team")
	for _, bundle := range []struct{ namespace, name, targets string }{
		{platform, "baseline", "[{clusterGroup: " + group + "}, {clusterGroup: " + class + "}]"},
		{team, "app", "[{clusterSelector: {matchLabels: {env: prod}}}]"},
	} {
		if err := s.Apply(ctx, fixture.DataBundle(bundle.namespace, bundle.name, bundle.targets, "{from: "+bundle.namespace+"}")); err != nil {
			return err
		}
		s.checked("Bundle %s/%s is there, waiting for clusters", bundle.namespace, bundle.name)
	}
	return nil
}

func (s *story) addClusters(ctx context.Context) error {
	s.act("Three Clusters of the class, for Cluster API to provision: two in %s, one beside the class", team)
	for _, c := range clusters {
		manifest := stack.TopologyCluster{Namespace: c.namespace, Name: c.name, ClassNamespace: platform, PodCIDR: c.pods, Labels: map[string]string{"env": c.env}}
		answer, err := s.KubectlInput(ctx, manifest.YAML(), "apply", "-f", "-", "-o", "yaml")
		if err != nil {
			return err
		}
		for _, key := range []string{"clusterclass-name.fleet", "clusterclass-namespace.fleet", "owned-by: fleet-addon-config", "cluster-name: " + c.name} {
			if !strings.Contains(answer, key) {
				return fmt.Errorf("the answer to kubectl apply of %s lacks the stamp %q:\n%s", c, key, answer)
			}
		}
		s.checked("kubectl apply of %s answers with the stamp already on it", c)
	}
	return nil
}

func (s *story) waitForClusters(ctx context.Context) error {
	s.act("Cluster API has provisioned the three (in memory), Muster imports them when their control plane is there")
	for _, c := range clusters {
		if err := s.WaitForControlPlane(ctx, c.namespace, c.name); err != nil {
			return err
		}
		if err := s.wait(ctx, "the import of "+c.String(), soon,
			s.is("True", "-n", c.namespace, "get", "clusters.cluster.x-k8s.io", c.name, "-o", `jsonpath={.status.conditions[?(@.type=="FleetImported")].status}`)); err != nil {
			return err
		}
		took, err := s.between(ctx, c, "ControlPlaneInitialized", "FleetImported")
		if err != nil {
			return err
		}
		s.checked("%s is in Fleet, %s after its control plane was initialized", c, took)
	}
	for _, object := range []struct{ namespace, kind, name, what string }{
		{team, "clustergroups.fleet.cattle.io", group, "ClusterGroup for the clusters of a class from elsewhere"},
		{platform, "bundlenamespacemappings.fleet.cattle.io", team, "BundleNamespaceMapping that lets the platform's bundles reach the team"},
	} {
		if _, err := s.Kubectl(ctx, "-n", object.namespace, "get", object.kind, object.name); err != nil {
			return err
		}
		s.checked("%s: %s/%s", object.what, object.namespace, object.name)
	}
	return nil
}

// between says how long after one condition of a Cluster another became what it is, by
// the times in the conditions, which are of whole seconds.
func (s *story) between(ctx context.Context, c cluster, from, to string) (string, error) {
	const transition = `{.status.conditions[?(@.type==%q)].lastTransitionTime}`
	out, err := s.Kubectl(ctx, "-n", c.namespace, "get", "clusters.cluster.x-k8s.io", c.name,
		"-o", "jsonpath="+fmt.Sprintf(transition+" "+transition, from, to))
	if err != nil {
		return "", err
	}
	var times []time.Time
	for _, field := range strings.Fields(out) {
		at, err := time.Parse(time.RFC3339, field)
		if err != nil {
			return "", err
		}
		times = append(times, at)
	}
	if len(times) != 2 {
		return "", fmt.Errorf("%s lacks the condition %s or %s", c, from, to)
	}
	took := times[1].Sub(times[0])
	if took > soon {
		return "", fmt.Errorf("%s was imported %s after its control plane was initialized, more than %s", c, took, soon)
	}
	return fmt.Sprintf("at most %s", took+time.Second), nil
}

func (s *story) checkTargets(ctx context.Context) error {
	s.act("Fleet targets the applications")
	for _, c := range clusters {
		want := []string{platform + "/baseline"}
		if c.namespace == team && c.env == "prod" {
			want = append(want, team+"/app")
		}
		if err := s.wait(ctx, "the bundles of "+c.String(), soon, func(ctx context.Context) error {
			got, err := s.bundlesOf(ctx, c)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%s has %v, not %v", c, got, want)
			}
			return err
		}); err != nil {
			return err
		}
		s.checked("%s gets %s, and nothing else", c, strings.Join(want, " and "))
	}
	return nil
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

func (s *story) deployDownstream(ctx context.Context) error {
	s.act("A cluster that is really there: a second API server, registered with Cluster API as %s/%s", team, edge)
	kubeconfig, err := s.StartDownstream(ctx)
	if err != nil {
		return err
	}
	if err := s.Apply(ctx, fixture.KubeconfigSecret(team, edge, kubeconfig)+fmt.Sprintf(`---
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
`, team, edge)); err != nil {
		return err
	}
	if err := s.Apply(ctx, fixture.DataBundle(team, "edge-hello", "[{clusterName: "+edge+"}]", fixture.PodCIDRs)); err != nil {
		return err
	}
	// Nobody provisions it, so nobody but its owner can say that its control plane is up.
	if _, err := s.Kubectl(ctx, "-n", team, "patch", "clusters.cluster.x-k8s.io", edge, "--subresource=status", "--type=merge",
		"-p", `{"status":{"initialization":{"controlPlaneInitialized":true}}}`); err != nil {
		return err
	}
	if err := s.StartAgent(ctx, stack.DefaultAgentNamespace); err != nil {
		return err
	}
	s.checked("Muster imported it, and Fleet registered its agent there")
	if err := s.wait(ctx, "the ConfigMap on the downstream", patience, func(ctx context.Context) error {
		out, err := s.DownstreamKubectl(ctx, "-n", "default", "get", "configmap", "edge-hello", "-o", "jsonpath={.data.pods}")
		if err == nil && out != "10.42.0.0/16" {
			err = fmt.Errorf("it holds %q", out)
		}
		return err
	}); err != nil {
		return err
	}
	s.checked("Fleet's agent deployed ConfigMap edge-hello there, with the cluster's own pod CIDR in it")
	ready := s.is("True", "-n", team, "get", "clusters.cluster.x-k8s.io", edge, "-o", `jsonpath={.status.conditions[?(@.type=="FleetBundlesReady")].status}`)
	if err := s.wait(ctx, "FleetBundlesReady", patience, func(ctx context.Context) error {
		if err := s.reportAgent(ctx); err != nil {
			return err
		}
		return ready(ctx)
	}); err != nil {
		return err
	}
	s.checked("the CAPI Cluster says FleetBundlesReady=True")
	return nil
}

// reportAgent says on the downstream that the agent's Deployment runs, as it does: as a
// process, where no kubelet is to say so.
func (s *story) reportAgent(ctx context.Context) error {
	deployment := []string{"-n", stack.DefaultAgentNamespace, "deployment", "fleet-agent"}
	generation, err := s.DownstreamKubectl(ctx, append([]string{"get", "-o", "jsonpath={.metadata.generation}"}, deployment...)...)
	if err != nil {
		return err
	}
	_, err = s.DownstreamKubectl(ctx, append([]string{"patch", "--subresource=status", "--type=merge", "-p",
		`{"status":{"observedGeneration":` + generation + `,"replicas":1,"readyReplicas":1,"availableReplicas":1,"updatedReplicas":1,"conditions":[` +
			`{"type":"Available","status":"True","reason":"MinimumReplicasAvailable"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`}, deployment...)...)
	return err
}
