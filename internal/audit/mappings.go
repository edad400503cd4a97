package audit

import (
	"fmt"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/sync/apply"
	"github.com/muster-fleet/muster/internal/sync/desired"
)

func (a *audit) index() {
	a.exists = map[types.NamespacedName]bool{}
	a.users = map[string][]*clusterv1.Cluster{}
	a.copies = map[string][]*metav1.PartialObjectMetadata{}
	for _, cluster := range a.Clusters {
		a.exists[client.ObjectKeyFromObject(cluster)] = true
		if crosses(cluster) {
			a.users[cluster.Namespace] = append(a.users[cluster.Namespace], cluster)
		}
	}
	for _, cluster := range a.FleetClusters {
		if apply.IsOurs(cluster) {
			a.copies[cluster.Namespace] = append(a.copies[cluster.Namespace], cluster)
		}
	}
}

// mappings finds the mappings that are open without a maker.
func (a *audit) mappings() {
	if a.undecided() {
		return
	}
	for _, mapping := range a.Mappings {
		if !apply.IsOurs(mapping) || !mapping.DeletionTimestamp.IsZero() || !isOpen(mapping) {
			continue
		}
		keepers, rightful := a.keepers(mapping.Namespace, mapping.Name)
		if rightful {
			continue
		}
		a.report.Mappings = append(a.report.Mappings, Mapping{
			Namespace: mapping.Namespace, Name: mapping.Name, Edited: isEdited(mapping), KeptBy: keepers,
		})
	}
}

// isOpen reports whether a mapping maps anything: to Fleet a selector that is missing
// selects nothing. One that is being retired is not open.
func isOpen(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector != nil && mapping.NamespaceSelector != nil
}

func isEdited(mapping *fleetv1.BundleNamespaceMapping) bool {
	want := desired.Mapping(mapping.Namespace, mapping.Name)
	return !equality.Semantic.DeepEqual(want.BundleSelector, mapping.BundleSelector) ||
		!equality.Semantic.DeepEqual(want.NamespaceSelector, mapping.NamespaceSelector)
}

// keepers returns what keeps the mapping from a class namespace to another; rightful says
// that one of them is a Cluster for which it would be made.
func (a *audit) keepers(classNamespace, namespace string) (keepers []Keeper, rightful bool) {
	keepers = []Keeper{}
	if !a.Settings.Cluster.ApplyClassGroup {
		return keepers, false // Nobody is to have one.
	}
	for _, cluster := range a.users[namespace] {
		if cluster.GetClassKey().Namespace != classNamespace {
			continue
		}
		why, keeps := a.notRightful(cluster)
		if why == "" {
			return nil, true
		}
		if keeps {
			keepers = append(keepers, Keeper{Kind: "Cluster", Namespace: namespace, Name: cluster.Name, Why: why})
		}
	}
	for _, cluster := range a.copies[namespace] {
		if cluster.Labels[stamp.ClassNamespaceLabel] != classNamespace || cluster.Labels[stamp.ClassNameLabel] == "" {
			continue
		}
		origin := originOf(cluster)
		switch {
		case cluster.Annotations[desired.ReleasedAnnotation] == "true":
			keepers = append(keepers, Keeper{Kind: "Fleet Cluster", Namespace: namespace, Name: cluster.Name, Why: "released"})
		case origin != "" && a.exists[types.NamespacedName{Namespace: namespace, Name: origin}]:
			keepers = append(keepers, Keeper{Kind: "Fleet Cluster", Namespace: namespace, Name: cluster.Name,
				Why: fmt.Sprintf("of Cluster %s", origin)})
		}
	}
	return keepers, false
}

// notRightful says why nothing is made for a Cluster that uses a class of another
// namespace; empty if it is rightful. A Cluster that is neither claimed nor selected
// does not even keep what is there.
func (a *audit) notRightful(cluster *clusterv1.Cluster) (why string, keeps bool) {
	claimed := stamp.PinOf(cluster.Annotations).IsComplete()
	// While imports are off nothing is changed, so what was rightful stays so.
	in := a.Settings.Cluster
	in.Enabled = true
	selected, _ := stamp.Selected(in, stamp.WithClassLabels(cluster.Labels, cluster.GetClassKey()), a.Namespaces[cluster.Namespace])
	class := cluster.GetClassKey()
	switch {
	case !claimed && !selected:
		return "never claimed", false
	case !cluster.DeletionTimestamp.IsZero():
		return "being deleted", claimed
	case !claimed:
		return "not claimed yet", true
	case !selected:
		return "deselected", true
	case capiannotations.IsPaused(cluster, cluster):
		return "paused", true
	case a.Classes[types.NamespacedName{Namespace: cluster.Namespace, Name: stamp.GroupName(class.Name, class.Namespace)}]:
		return "a ClusterClass beside it has the name of its group", true
	default:
		return "", true
	}
}

// crosses reports whether a Cluster uses a class of another namespace.
func crosses(cluster *clusterv1.Cluster) bool {
	class := cluster.GetClassKey()
	return class.Name != "" && class.Namespace != cluster.Namespace
}

// originOf returns the name of the Cluster that a Fleet Cluster says it was made from.
func originOf(cluster *metav1.PartialObjectMetadata) string {
	if name := cluster.Annotations[desired.ImportedFromAnnotation]; name != "" {
		return name
	}
	if i := slices.IndexFunc(cluster.OwnerReferences, isCluster); i >= 0 {
		return cluster.OwnerReferences[i].Name
	}
	return ""
}
