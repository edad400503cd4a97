// Package manifests holds the CRDs that are shipped, for programs that apply their rules without
// an API server.
package manifests

import "embed"

// CRDs are the CustomResourceDefinitions of Muster's own kinds.
//
//go:embed crd/addons.*.yaml helm/addons.*.yaml
var CRDs embed.FS
