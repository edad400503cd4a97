// Package admission decides at apply time. It stamps CAPI Clusters (stamper.go, with
// the rules of package stamp), refuses those whose author may not use their class
// (class_access.go) or whose name in Fleet is taken (cluster_policy.go), and refuses
// FleetAddonConfigs that would go wrong later (config_policy.go, which is pure,
// config_authority.go, which asks who may name a CA, and config_cluster.go, which looks
// at the Clusters). Policies see the rest of the cluster as an inventory (inventory.go),
// so that check.go can give the same answers about manifests, without a cluster. Webhooks
// that fail open do so for our own failures, too (open.go).
package admission
