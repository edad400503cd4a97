//go:build tools

// Package tools pins the add-on provider whose API Muster shares: the test of the migration runs it.
package tools

import _ "sigs.k8s.io/cluster-api-addon-provider-helm"
