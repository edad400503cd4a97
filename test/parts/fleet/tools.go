//go:build tools

// Package parts pins the Fleet programs that the local stack builds.
package parts

import (
	_ "github.com/rancher/fleet/cmd/fleetagent"
	_ "github.com/rancher/fleet/cmd/fleetcli"
	_ "github.com/rancher/fleet/cmd/fleetcontroller"
)
