//go:build tools

// Package parts pins the Cluster API Operator, which one of the ways to install needs.
package parts

import _ "sigs.k8s.io/cluster-api-operator/cmd"
