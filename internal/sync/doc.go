// Package sync makes Fleet's objects follow from the stamped CAPI Clusters. It
// decides when, and in which order, objects are written; what they hold is decided
// in package desired, and how they are written in package apply.
//
// Each kind of object has a reconciler of its own, keyed by that object: clusters
// (cluster.go); groups (group.go), mappings (mapping.go) and namespaces (namespace.go), which
// ask "who needs it now?". Because Fleet does not watch groups and mappings when it targets
// bundles, the cluster reconciler sees to it that they exist before the Fleet Cluster does.
package sync
