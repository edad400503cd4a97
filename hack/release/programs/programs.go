// Package programs is the table of what Muster ships as images. A program that joins it
// is built, described, pushed and released like the others.
package programs

import "cmp"

// Registry is where the shipped manifests look for the images.
const Registry = "ghcr.io/muster-fleet"

// Program is a command under cmd/ that has an image.
type Program struct {
	// Name is that of the file in its image, and of its folder under cmd/ if Folder is empty.
	Name, Folder string
	// Description is what registries show.
	Description string
	// Roots is whether it calls servers whose certificates the world's CAs sign: its image
	// then holds their roots.
	Roots bool
}

// Plugin is the folder, and the name as a plugin of kubectl, of what runs on people's own machines
// and in CI.
const Plugin = "kubectl-muster"

// All are the programs.
var All = []Program{
	{Name: "webhook", Description: "Muster's webhook: stamps Cluster API's Clusters for Rancher Fleet as they are applied"},
	{Name: "syncer", Description: "Muster's syncer: makes Rancher Fleet's objects follow Cluster API's Clusters"},
	{Name: "helm", Description: "Muster's helm: deploys charts of HelmChartProxies with Rancher Fleet", Roots: true},
	{Name: "registrar", Description: "Muster's registrar: registers Cluster API's Clusters in Rancher Fleet ahead of agents that must call"},
	{Name: "installer", Description: "Muster's installer: installs and upgrades Rancher Fleet itself, and sets it up", Roots: true},
	{Name: "muster", Folder: Plugin, Description: "Muster's command for people: looks at management clusters, and checks manifests in CI", Roots: true},
}

// Image is the last part of its image's name.
func (p Program) Image() string {
	if p.Folder == Plugin {
		return p.Name
	}
	return "muster-" + p.Name
}

// Built is the name of its folder under cmd/, and so of what go build makes of it.
func (p Program) Built() string { return cmp.Or(p.Folder, p.Name) }

// Path is where the program is in its image.
func (p Program) Path() string { return "/" + p.Name }

// Platforms are the architectures of Linux that each image is for.
var Platforms = []string{"amd64", "arm64"}
