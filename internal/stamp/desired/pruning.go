package desired

import (
	"maps"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// prunedBy are the keys by which a tool deletes the objects that carry them. A copy is not among what the tool
// applies, so it would delete the copy, and Fleet would uninstall what was deployed through it. The values are IDs or
// times, which no selector names. Keys whose values are names, by which people select, are copied (see spared), and so are
// those of tools that delete by a record of their own, such as Flux, Helm and kustomize.
var prunedBy = settings.Keys{
	// kubectl apply --prune --applyset deletes by part-of, whoever owns the object. The other keys mark a parent, with
	// what to delete: a copy is none. ApplysetPartOfLabel in k8s.io/kubectl, pkg/cmd/apply/applyset.go.
	"applyset.kubernetes.io/": true,
	// kapp deploy and kapp delete: kappAppLabelKey in pkg/kapp/app/recorded_app.go, and kappAssociationLabelKey in
	// pkg/kapp/resources/association_label.go.
	"kapp.k14s.io/app":         true,
	"kapp.k14s.io/association": true,
	// clusterctl delete, together with cluster.x-k8s.io/provider: ClusterctlLabel in cmd/clusterctl/api/v1alpha3/labels.go,
	// and Delete in cmd/clusterctl/client/cluster/components.go. The prefix has the keys that steer clusterctl move.
	"clusterctl.cluster.x-k8s.io":  true,
	"clusterctl.cluster.x-k8s.io/": true,
	// Argo CD, if it tracks by annotation: AnnotationKeyAppInstance in common/common.go.
	"argocd.argoproj.io/tracking-id": true,
	// kluctl prune spares what has an owner, or what it has not applied, but for objects with this annotation:
	// isManagedByKluctl in pkg/deployment/utils/delete_utils.go. Its label kluctl.io/discriminator alone deletes nothing.
	"kluctl.io/force-managed": true,
	// Kyverno, when the time has come: LabelCleanupTtl in api/kyverno/constants.go. On a ClusterClass, it would delete the
	// Fleet Clusters of all Clusters that still use the class, again and again.
	"cleanup.kyverno.io/ttl": true,
	// kube-janitor, likewise: TTL_ANNOTATION and EXPIRY_ANNOTATION in kube_janitor/janitor.py.
	"janitor/ttl":     true,
	"janitor/expires": true,
}

// IsPrunedBy reports whether a tool deletes objects by this key. Muster and CAAPF have copied such keys.
func IsPrunedBy(key string) bool { return prunedBy.Has(key) }

// spared are the annotations by which Argo CD spares an object that carries its label
// (app.kubernetes.io/instance, argocd.argoproj.io/instance): AnnotationSyncOptions and AnnotationCompareOptions in
// common/common.go. It spares objects with an owner anyway. So each object of Muster's carries them while it has none,
// whatever would be copied under these keys.
var spared = map[string]string{
	"argocd.argoproj.io/sync-options":    "Prune=false",
	"argocd.argoproj.io/compare-options": "IgnoreExtraneous",
}

// Spared returns the annotations of an object that has no owner.
func Spared() map[string]string { return maps.Clone(spared) }

// UnsparedBy returns, for each key of Spared, the annotation that the Fleet Cluster of a Cluster has instead when it
// has its owner: the Cluster's, or nil for none.
func UnsparedBy(in settings.Settings, cluster *clusterv1.Cluster) map[string]any {
	changes := map[string]any{}
	for key := range spared {
		changes[key] = nil
		if value, found := cluster.Annotations[key]; found && isCopied(in, key) {
			changes[key] = value
		}
	}
	return changes
}
