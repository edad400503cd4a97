package stack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/muster-fleet/muster/test/stack/poll"
)

// TestFullStackProvisionsAndDeploys walks the whole way without Muster: Cluster API
// provisions a cluster in memory, Fleet imports the downstream, and its agent puts a
// Bundle's ConfigMap there.
func TestFullStackProvisionsAndDeploys(t *testing.T) {
	ctx := t.Context()
	s, err := Up(ctx, Options{Profile: Full, Dir: t.TempDir(), Progress: &testLog{t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range s.Processes() {
				t.Logf("end of the log of %s:\n%s", p.Name, s.LogTail(p.Name))
			}
		}
		if err := s.Down(); err != nil {
			t.Error(err)
		}
	})
	for _, namespace := range []string{"classes", "team"} {
		if err := s.hub.ensureNamespace(ctx, namespace); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("a cluster of a class elsewhere is provisioned", func(t *testing.T) {
		class, err := s.InMemoryClusterClass("classes")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(ctx, class); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitForClusterClass(ctx, "classes", InMemoryClass); err != nil {
			t.Fatal(err)
		}
		cluster := TopologyCluster{Namespace: "team", Name: "one", ClassNamespace: "classes", Workers: 1}
		begin := time.Now()
		if err := s.Apply(ctx, cluster.YAML()); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitForControlPlane(ctx, "team", "one"); err != nil {
			t.Fatal(err)
		}
		t.Logf("control plane initialized after %s", poll.Since(begin))
		old, err := s.Kubectl(ctx, "-n", "team", "get", "clusters.v1beta1.cluster.x-k8s.io", "one", "-o", "jsonpath={.spec.topology.classNamespace}")
		if err != nil || old != "classes" {
			t.Errorf("as v1beta1 its class namespace is %q (%v)", old, err)
		}
	})

	t.Run("Fleet's agent deploys to the downstream", func(t *testing.T) { deployDownstream(ctx, t, s) })
}

func deployDownstream(ctx context.Context, t *testing.T, s *Stack) {
	kubeconfig, err := s.StartDownstream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := s.Apply(ctx, fmt.Sprintf(importAndBundle, base64.StdEncoding.EncodeToString(kubeconfig))); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgent(ctx, DefaultAgentNamespace); err != nil {
		t.Fatal(err)
	}
	err = poll.Until(ctx, "the ConfigMap on the downstream", 2*time.Minute, func(ctx context.Context) error {
		out, err := s.DownstreamKubectl(ctx, "get", "configmap", "hello", "-o", "jsonpath={.data.from}")
		if err == nil && out != "fleet" {
			err = errors.New("it holds " + out)
		}
		return err
	})
	if err != nil {
		status, _ := s.Kubectl(ctx, "get", "clusters.fleet.cattle.io,bundles,bundledeployments", "-A")
		t.Fatalf("%v\n%s", err, status)
	}
	t.Logf("deployed after %s", poll.Since(begin))

	user := ServiceAccount(DefaultAgentNamespace, "fleet-agent")
	file, err := os.Open(s.downstream.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	events, err := readAudit(file, AuditFilter{Where: func(e AuditEvent) bool {
		return e.Resource == "configmaps" && e.Name == "hello" && e.Code < 300 && e.Verb != "get" && e.Verb != "watch"
	}})
	if err != nil || len(events) == 0 {
		t.Fatalf("nobody wrote the ConfigMap: %v", err)
	}
	for _, event := range events {
		if !strings.HasPrefix(event.User, user) {
			t.Errorf("not by the agent's ServiceAccount: %s", event)
		}
	}
}

const importAndBundle = `
apiVersion: v1
kind: Secret
metadata: {namespace: team, name: down-kubeconfig}
data: {value: %s}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Cluster
metadata: {namespace: team, name: down}
spec: {kubeConfigSecret: down-kubeconfig, agentNamespace: fleet-addon-agent}
---
apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {namespace: team, name: hello}
spec:
  defaultNamespace: default
  resources:
  - name: hello.yaml
    content: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: hello}
      data: {from: fleet}
  targets:
  - clusterName: down
`
