// Command demo plays Muster's main job on the stack of `make up`, with real objects and
// real controllers, and prints what happens. Each line with a check mark was checked:
// the command fails at the first that does not hold.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\n  ✗ %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "check-clean" {
		return checkClean(ctx)
	}
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	env, err := stack.Attach(dir)
	if err != nil {
		return fmt.Errorf("no stack to play on; run make up first: %w", err)
	}
	story := &story{Stack: env, begin: time.Now()}
	for _, act := range []func(context.Context) error{
		story.configure, story.addClass, story.addBundles, story.addClusters,
		// While Cluster API provisions, which takes half a minute.
		story.deployDownstream,
		story.waitForClusters, story.checkTargets, story.becomeReady, story.showTree,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	story.showNext()
	return nil
}

// checkClean fails if the demo was played on this stack before: its clusters live in
// the memory of the old processes, so it starts over on a new stack.
func checkClean(ctx context.Context) error {
	dir, err := stack.DevDir()
	if err != nil {
		return err
	}
	env, err := stack.Attach(dir)
	if err != nil {
		return nil //nolint:nilerr // no stack: clean
	}
	if _, err := env.Kubectl(ctx, "get", "namespace", platform); err == nil {
		return errors.New("the demo was played on this stack before")
	}
	return nil
}

// becomeReady applies the guide "Clusters that become ready alone" as it stands.
func (s *story) becomeReady(ctx context.Context) error {
	const namespace, name = "team", "prod" // the guide's
	s.act("A Cluster that becomes ready alone: Fleet deploys its CNI (docs/guides/cni.md, as it stands)")
	blocks, err := fixture.Guide("cni.md", 3)
	if err != nil {
		return err
	}
	if err := s.StartHostProvider(ctx); err != nil {
		return err
	}
	for _, namespace := range []string{"classes", "team"} {
		if err := s.Apply(ctx, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)); err != nil {
			return err
		}
	}
	if err := s.Apply(ctx, s.HostClusterClass("classes", "standard")); err != nil {
		return err
	}
	if err := s.WaitForClusterClass(ctx, "classes", "standard"); err != nil {
		return err
	}
	begin := time.Now()
	// Not its FleetAddonConfig: there is no second agent on the node.
	for _, block := range blocks[1:] {
		if _, err := s.KubectlInput(ctx, block, "apply", "-f", "-"); err != nil {
			return err
		}
	}
	in := func(args ...string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return s.HostedKubectl(ctx, namespace, name, args...) }
	}
	prints := func(want string, get func(context.Context) (string, error)) func(context.Context) error {
		return func(ctx context.Context) error {
			got, err := get(ctx)
			if err == nil && strings.TrimSpace(got) != want {
				err = fmt.Errorf("got %q, not %q", strings.TrimSpace(got), want)
			}
			return err
		}
	}
	for _, step := range []struct {
		what, want string
		get        func(context.Context) (string, error)
		done       string
	}{
		{"the agent's Pod", "Running", in("-n", stack.DefaultAgentNamespace, "get", "pods", "-l", "app=fleet-agent", "-o", "jsonpath={.items[*].status.phase}"),
			"Fleet's agent runs on the worker: it tolerates the taints of a starting node"},
		{"the node", "True", in("get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`),
			"it deployed the CNI from beside the class, and the node became Ready"},
	} {
		if err := s.wait(ctx, step.what, 2*patience, prints(step.want, step.get)); err != nil {
			return err
		}
		s.checked("%s", step.done)
	}
	if err := s.wait(ctx, "the Cluster to be Available", 2*patience,
		s.is("True", "-n", namespace, "get", "clusters.cluster.x-k8s.io", name, "-o", `jsonpath={.status.conditions[?(@.type=="Available")].status}`)); err != nil {
		return err
	}
	s.checked("the Cluster is Available, gates FleetImported and FleetBundlesReady included, %s after kubectl apply", time.Since(begin).Round(100*time.Millisecond))
	return nil
}
