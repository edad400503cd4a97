// Package programs is the table of the programs that Muster ships as images. A new program in it is built,
// described, pushed and released like the others.
package programs

import "cmp"

// Registry and Version are the registry and the tag in the shipped manifests.
const (
	Registry = "ghcr.io/muster-fleet"
	Version  = "v0.1.0"
)

// Program is a command under cmd/ that has an image.
type Program struct {
	// Name is the name of the file in its image, and of its folder under cmd/ if Folder is empty.
	Name, Folder string
	// Description is shown by registries.
	Description string
	// Default means that manifests/default runs it, and so do the components for clusterctl and the operator.
	Default bool
	// Roots means that the program calls servers with certificates from public CAs: its image then has those.
	Roots bool
}

// Plugin is the name of the kubectl plugin, which runs on people's machines and in CI, and of its folder.
const Plugin = "kubectl-muster"

// All are the programs.
var All = []Program{
	{Name: "webhook", Default: true, Description: "Muster's webhook: stamps Cluster API's Clusters for Rancher Fleet as they are applied"},
	{Name: "syncer", Default: true, Description: "Muster's syncer: makes Rancher Fleet's objects follow Cluster API's Clusters"},
	{Name: "helm", Description: "Muster's helm: deploys charts of HelmChartProxies with Rancher Fleet", Roots: true},
	{Name: "registrar", Description: "Muster's registrar: registers Cluster API's Clusters in Rancher Fleet ahead of agents that must call"},
	{Name: "installer", Description: "Muster's installer: installs and upgrades Rancher Fleet itself, and sets it up", Roots: true},
	{Name: "muster", Folder: Plugin, Description: "Muster's command for people: looks at management clusters, and checks manifests in CI", Roots: true},
}

// IsDeployed reports whether the program runs in a cluster.
func (p Program) IsDeployed() bool { return p.Folder != Plugin }

// Image returns the last part of its image's name.
func (p Program) Image() string {
	if !p.IsDeployed() {
		return p.Name
	}
	return "muster-" + p.Name
}

// Built returns the name of its folder under cmd/, which go build gives to the binary.
func (p Program) Built() string { return cmp.Or(p.Folder, p.Name) }

// Path returns the program's path in its image.
func (p Program) Path() string { return "/" + p.Name }

// Platforms are the Linux architectures of each image.
var Platforms = []string{"amd64", "arm64"}
