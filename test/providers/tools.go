//go:build tools

// Package providers pins the providers whose CRDs the guides' examples are checked against.
package providers

import (
	_ "github.com/k3s-io/cluster-api-k3s/pkg/errors"
	_ "github.com/rancher/cluster-api-provider-rke2/pkg/consts"
)
