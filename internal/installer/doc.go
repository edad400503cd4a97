// Package installer keeps Fleet itself as the FleetAddonConfig says: its charts, as Helm
// releases that Helm's own commands understand, and its settings.
//
// What is wanted (wanted.go), whose Fleet is there and what to do next (decide.go), which
// version it is to be (version.go), and what goes into the chart's values (values.go),
// Fleet's ConfigMap (settings.go) or that of Rancher (gates.go), is pure. The rest looks,
// takes one step, and looks again. The package does not know Helm: repositories are read by
// package charts, releases are made by package helm, and the program puts the three together.
package installer
