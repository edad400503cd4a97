package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// showTree prints what exists now, read from the API server.
func (s *story) showTree(ctx context.Context) error {
	s.act("What exists now")
	for _, namespace := range []string{platform, team} {
		fmt.Printf("   %s\n", namespace)
		for _, kind := range []struct{ resource, label string }{
			{"clusterclasses.cluster.x-k8s.io", "ClusterClass"},
			{"clustergroups.fleet.cattle.io", "ClusterGroup"},
			{"bundlenamespacemappings.fleet.cattle.io", "BundleNamespaceMapping"},
			{"bundles.fleet.cattle.io", "Bundle"},
		} {
			names, err := s.names(ctx, namespace, kind.resource)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !strings.HasPrefix(name, "fleet-agent-") {
					fmt.Printf("   ├─ %s %s\n", kind.label, name)
				}
			}
		}
		names, err := s.names(ctx, namespace, "clusters.cluster.x-k8s.io")
		if err != nil {
			return err
		}
		for _, name := range names {
			deployed, err := s.bundlesOf(ctx, cluster{namespace: namespace, name: name})
			if err != nil {
				return err
			}
			fmt.Printf("   └─ Cluster %s → Fleet Cluster %s\n", name, name)
			for _, bundle := range deployed {
				fmt.Printf("      └─ gets Bundle %s\n", bundle)
			}
		}
	}
	return nil
}

func (s *story) names(ctx context.Context, namespace, resource string) ([]string, error) {
	out, err := s.Kubectl(ctx, "-n", namespace, "get", resource, "-o", `jsonpath={.items[*].metadata.name}`)
	return strings.Fields(out), err
}

func (s *story) showNext() {
	fmt.Printf(`
Everything above was checked. The story took %s; the stack is still up. Try:

   export KUBECONFIG=$PWD/.dev/kubeconfig PATH=$PWD/.dev/bin:$PATH
   kubectl get clusters.cluster.x-k8s.io,clusters.fleet.cattle.io -A
   kubectl -n %s describe clusters.cluster.x-k8s.io alpha
   kubectl get fleetaddonconfig
   kubectl -n %s delete clusters.cluster.x-k8s.io --all     # and see group and mapping go
   make status     # what runs, and where it logs
   make down       # stop it all
`, time.Since(s.begin).Round(100*time.Millisecond), team, team)
}
