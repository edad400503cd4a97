package audit

import (
	"fmt"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

func (a *audit) index() {
	a.byName = map[types.NamespacedName]*clusterv1.Cluster{}
	a.users = map[string][]*clusterv1.Cluster{}
	a.copies = map[string][]*metav1.PartialObjectMetadata{}
	for _, cluster := range a.Clusters {
		a.byName[client.ObjectKeyFromObject(cluster)] = cluster
		if crosses(cluster) {
			a.users[cluster.Namespace] = append(a.users[cluster.Namespace], cluster)
		}
	}
	for _, cluster := range a.FleetClusters {
		if stamp.IsOurs(cluster) {
			a.copies[cluster.Namespace] = append(a.copies[cluster.Namespace], cluster)
		}
	}
}

// mappings finds the mappings that are open without a rightful user.
func (a *audit) mappings() {
	if a.undecided() {
		return
	}
	for _, mapping := range a.Mappings {
		if !stamp.IsOurs(mapping) || !mapping.DeletionTimestamp.IsZero() || !isOpen(mapping) {
			continue
		}
		retainers, rightful := a.retainers(mapping.Namespace, mapping.Name)
		if rightful {
			continue
		}
		a.report.Mappings = append(a.report.Mappings, Mapping{
			Namespace: mapping.Namespace, Name: mapping.Name, Edited: isEdited(mapping), RetainedBy: retainers,
		})
	}
}

// isOpen reports whether a mapping maps anything: for Fleet, a missing selector selects nothing. A mapping
// that is being retired is not open.
func isOpen(mapping *fleetv1.BundleNamespaceMapping) bool {
	return mapping.BundleSelector != nil && mapping.NamespaceSelector != nil
}

func isEdited(mapping *fleetv1.BundleNamespaceMapping) bool {
	want := desired.Mapping(mapping.Namespace, mapping.Name)
	return !equality.Semantic.DeepEqual(want.BundleSelector, mapping.BundleSelector) ||
		!equality.Semantic.DeepEqual(want.NamespaceSelector, mapping.NamespaceSelector)
}

// retainers returns the objects that retain the mapping from a class namespace to another one. rightful
// means that Muster would make the mapping for one of them.
func (a *audit) retainers(classNamespace, namespace string) (retainers []Retainer, rightful bool) {
	retainers = []Retainer{}
	if !a.Settings.Cluster.ApplyClassGroup {
		return retainers, false // Without applyClassGroup there should be no mapping.
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
			retainers = append(retainers, Retainer{Kind: "Cluster", Namespace: namespace, Name: cluster.Name, Why: why})
		}
	}
	for _, cluster := range a.copies[namespace] {
		if cluster.Labels[stamp.ClassNamespaceLabel] != classNamespace || cluster.Labels[stamp.ClassNameLabel] == "" {
			continue
		}
		origin, why := a.clusterOf(cluster), ""
		switch {
		case isReleased(cluster):
			why = "released"
		case origin != nil && isOwn(cluster, origin):
			why = fmt.Sprintf("of Cluster %s", origin.Name)
		default:
			continue
		}
		retainers = append(retainers, Retainer{Kind: "Fleet Cluster", Namespace: namespace, Name: cluster.Name, Why: why})
	}
	return retainers, false
}

// notRightful returns why Muster makes no mapping for a Cluster that uses a class of another namespace;
// empty if it is rightful. A Cluster that is neither claimed nor selected does not even keep one.
func (a *audit) notRightful(cluster *clusterv1.Cluster) (why string, keeps bool) {
	claimed := stamp.PinOf(cluster.Annotations).IsComplete()
	// While imports are off, Muster changes nothing, so rightful users remain rightful.
	in := a.Settings.Cluster
	in.Enabled = true
	selected, _ := stamp.SubjectOf(cluster, a.Namespaces[cluster.Namespace]).IsSelected(in)
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
		return "a ClusterClass in its namespace has the name of its group", true
	default:
		return "", true
	}
}

// crosses reports whether a Cluster uses a class of another namespace.
func crosses(cluster *clusterv1.Cluster) bool {
	class := cluster.GetClassKey()
	return class.Name != "" && class.Namespace != cluster.Namespace
}

// clusterOf returns the Cluster with the name from which a Fleet Cluster was made; nil if there is none.
// CAAPF does not record that name, but its Fleet Clusters have the expected one.
func (a *audit) clusterOf(cluster *metav1.PartialObjectMetadata) *clusterv1.Cluster {
	name := stamp.OriginOf(cluster).Name
	if name == "" {
		name = strings.TrimSuffix(strings.TrimPrefix(cluster.Name, a.Settings.Cluster.Prefix), a.Settings.Cluster.Suffix)
	}
	return a.byName[types.NamespacedName{Namespace: cluster.Namespace, Name: name}]
}

// isOwn reports whether a Fleet Cluster was made from this very Cluster, and not from an earlier one of
// the same name.
func isOwn(fleetCluster *metav1.PartialObjectMetadata, cluster *clusterv1.Cluster) bool {
	relation, _ := stamp.RelationOf(fleetCluster, cluster, func(string, types.UID) bool { return false })
	return relation == stamp.Own
}

func isReleased(cluster *metav1.PartialObjectMetadata) bool {
	return cluster.Annotations[stamp.ReleasedAnnotation] == "true"
}
