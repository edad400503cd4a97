package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

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
