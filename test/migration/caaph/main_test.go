// Package caaph moves a management cluster from cluster-api-addon-provider-helm to Muster by the steps of
// docs/migrate-from-caaph.md, and back. It runs the real cluster-api-addon-provider-helm.
package caaph

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/muster-fleet/muster/test/helm/repository"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

var (
	ctx    = context.Background()
	env    *stack.Stack
	charts *repository.Registry
)

const team = "team"

// clusters have their own API servers and agents.
var clusters = []string{"one", "two"}

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(2 * time.Minute)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	os.Exit(stack.Main(m, stack.Options{Profile: stack.Full, Muster: true, Parts: []parts.Module{parts.CAAPH}}, prepare))
}

func prepare(s *stack.Stack) (err error) {
	env = s
	if charts, err = repository.StartRegistry(ctx, s); err != nil {
		return err
	}
	if err := s.StartHostProvider(ctx); err != nil {
		return err
	}
	if err := s.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: classes}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: "+team+"}}"); err != nil {
		return err
	}
	if err := s.Apply(ctx, s.HostClusterClass("classes", "standard")); err != nil {
		return err
	}
	if err := s.WaitForClusterClass(ctx, "classes", "standard"); err != nil {
		return err
	}
	for _, name := range clusters {
		its := stack.TopologyCluster{Namespace: team, Name: name, Class: "standard", ClassNamespace: "classes", Workers: 1, Labels: map[string]string{"web": "yes"}}
		if err := s.Apply(ctx, its.YAML()); err != nil {
			return err
		}
	}
	for _, name := range clusters {
		if err := s.WaitForControlPlane(ctx, team, name); err != nil {
			return err
		}
	}
	return nil
}
