//go:build tools

// Package parts pins the programs of Fleet and Cluster API that the local stack builds.
package parts

import (
	_ "github.com/rancher/fleet/cmd/fleetagent"
	_ "github.com/rancher/fleet/cmd/fleetcli"
	_ "github.com/rancher/fleet/cmd/fleetcontroller"
	_ "sigs.k8s.io/cluster-api"
	_ "sigs.k8s.io/cluster-api/bootstrap/kubeadm"
	_ "sigs.k8s.io/cluster-api/cmd/clusterctl"
	_ "sigs.k8s.io/cluster-api/controlplane/kubeadm"
	_ "sigs.k8s.io/cluster-api/test/infrastructure/docker"
)
