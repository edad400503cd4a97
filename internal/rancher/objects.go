package rancher

import (
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/stamp"
)

// The kinds of Rancher's objects. A management Cluster is cluster-scoped.
var (
	ManagementKind   = schema.GroupVersionKind{Group: "management.cattle.io", Version: "v3", Kind: "Cluster"}
	ProvisioningKind = schema.GroupVersionKind{Group: "provisioning.cattle.io", Version: "v1", Kind: "Cluster"}
)

// The names of their CRDs. ManagementCRD tells Muster that Rancher is installed.
const (
	ManagementCRD   = "clusters.management.cattle.io"
	ProvisioningCRD = "clusters.provisioning.cattle.io"
)

const (
	byOwner      = "muster.owner"      // object.Owner
	byManagement = "muster.management" // object.Management
)

// Indexes are the indexes of both kinds.
var Indexes = map[string]client.IndexerFunc{
	byOwner:      func(of client.Object) []string { return value(objectOf(of).Owner.String()) },
	byManagement: func(of client.Object) []string { return value(objectOf(of).Management) },
}

// value returns the value of an index, if there is one.
func value(of string) []string {
	if of == "" || of == "/" {
		return nil
	}
	return []string{of}
}

// object holds the fields that Muster reads of a management Cluster, a provisioning Cluster or a Fleet Cluster.
type object struct {
	types.NamespacedName
	UID types.UID
	// Owner is the CAPI Cluster that the labels of a management Cluster name, that a Fleet Cluster is attached to, or that
	// has the name of a provisioning Cluster.
	Owner types.NamespacedName
	// Management is the name of a management Cluster, or of that of another object; empty while there is none.
	Management string
	// Workspace is the namespace of the Fleet Cluster of a management Cluster; empty while it has none.
	Workspace string
	// FromProvisioning means that Rancher made a management Cluster from a provisioning Cluster, whose author has chosen
	// the labels. Migrated means that Turtles does not look for the agent of CAAPF on its cluster.
	FromProvisioning, ExternallyManaged, Ready, Deleting, Migrated bool
}

func objectOf(of client.Object) object {
	labels, annotations := of.GetLabels(), of.GetAnnotations()
	its := object{NamespacedName: client.ObjectKeyFromObject(of), UID: of.GetUID(), Deleting: !of.GetDeletionTimestamp().IsZero()}
	whole, ok := of.(*unstructured.Unstructured)
	switch {
	case !ok:
		if its.Management = labels[stamp.RancherClusterLabel]; its.Management != "" {
			its.Owner.Namespace, its.Owner.Name, _ = strings.Cut(annotations[stamp.AttachedAnnotation], "/")
		}
	case whole.GroupVersionKind().Group == ProvisioningKind.Group:
		its.Owner = its.NamespacedName
		its.Management, _, _ = unstructured.NestedString(whole.Object, "status", "clusterName")
	default:
		its.Owner = types.NamespacedName{Namespace: labels[ownerNamespaceLabel], Name: labels[ownerLabel]}
		its.Management = its.Name
		its.Workspace, _, _ = unstructured.NestedString(whole.Object, "spec", "fleetWorkspaceName")
		external := annotations[externallyManagedAnnotation]
		its.ExternallyManaged = external != "" && !strings.EqualFold(external, "false")
		_, its.FromProvisioning = annotations[administratedAnnotation]
		_, its.Migrated = annotations[migratedAnnotation]
		conditions, _, _ := unstructured.NestedSlice(whole.Object, "status", "conditions")
		its.Ready = slices.ContainsFunc(conditions, func(condition any) bool {
			fields, _ := condition.(map[string]any)
			return fields["type"] == "Ready" && fields["status"] == "True"
		})
	}
	return its
}

// Object returns an object of a kind of Rancher's.
func Object(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// Trim is a cache transform: it keeps only the fields of Rancher's objects that objectOf reads.
func Trim(cached any) (any, error) {
	whole, ok := cached.(*unstructured.Unstructured)
	if !ok {
		return cached, nil
	}
	slim := Object(whole.GroupVersionKind())
	slim.SetNamespace(whole.GetNamespace())
	slim.SetName(whole.GetName())
	slim.SetUID(whole.GetUID())
	slim.SetResourceVersion(whole.GetResourceVersion())
	slim.SetDeletionTimestamp(whole.GetDeletionTimestamp())
	slim.SetLabels(bounds.Names(whole.GetLabels(), ownerLabel, ownerNamespaceLabel))
	slim.SetAnnotations(bounds.Names(whole.GetAnnotations(), externallyManagedAnnotation, administratedAnnotation, migratedAnnotation))
	for _, path := range [][]string{{"spec", "fleetWorkspaceName"}, {"status", "clusterName"}} {
		if value, _, _ := unstructured.NestedString(whole.Object, path...); value != "" {
			_ = unstructured.SetNestedField(slim.Object, bounds.Name(value), path...) // The parent is missing, or a map.
		}
	}
	if objectOf(whole).Ready {
		_ = unstructured.SetNestedSlice(slim.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
	}
	return slim, nil
}

// news passes changes of Rancher's objects after a list.
var news = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
	UpdateFunc: func(e event.UpdateEvent) bool { return objectOf(e.ObjectOld) != objectOf(e.ObjectNew) },
}

// CRDs passes Rancher's CRDs.
var CRDs = predicate.NewPredicateFuncs(func(crd client.Object) bool {
	return crd.GetName() == ManagementCRD || crd.GetName() == ProvisioningCRD
})

// IsFleetCluster reports whether a Fleet Cluster is Rancher's.
func IsFleetCluster(object client.Object) bool {
	return object.GetLabels()[stamp.RancherClusterLabel] != ""
}

// AttachManager is the field manager of attachments. With stamp.FieldManager, Muster would take Rancher's Fleet Cluster
// for its own, to change and to delete.
const AttachManager = "muster-attach"

// IsAttached reports whether a Fleet Cluster of Rancher's is attached to a CAPI Cluster. It proves nothing: any user who
// may write the Fleet Cluster can write the label and the annotations, and use the name of the field manager.
func IsAttached(fleetCluster metav1.Object) bool {
	return fleetCluster.GetLabels()[stamp.RancherClusterLabel] != "" && fleetCluster.GetAnnotations()[stamp.AttachedAnnotation] != "" &&
		slices.ContainsFunc(fleetCluster.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == AttachManager })
}

// IsAttachedTo reports whether a Fleet Cluster of Rancher's is attached to this CAPI Cluster, and not to an earlier one
// of the same name.
func IsAttachedTo(fleetCluster, cluster metav1.Object) bool {
	annotations := fleetCluster.GetAnnotations()
	return IsAttached(fleetCluster) && annotations[stamp.AttachedUIDAnnotation] == string(cluster.GetUID()) &&
		annotations[stamp.AttachedAnnotation] == cluster.GetNamespace()+"/"+cluster.GetName()
}

// AttachedCluster returns the CAPI Cluster that a Fleet Cluster says it is attached to; zero for none.
func AttachedCluster(fleetCluster *fleetv1.Cluster) types.NamespacedName {
	return objectOf(fleetCluster).Owner
}
