package stamp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

const (
	// RancherAnnotation on a Cluster takes precedence over spec.rancher.mode of the
	// FleetAddonConfig, and has the same values.
	RancherAnnotation = Domain + "/rancher"
	// ManagementAnnotation on a Cluster holds the name of the management Cluster through which Rancher
	// manages it, or has managed it. Muster writes it before it attaches the Cluster, and removes it
	// when neither that management Cluster nor a Fleet Cluster of it is left: until then, Rancher's
	// agent may run, whatever the conditions of the Cluster say. A forged one keeps the user's own
	// Cluster waiting, and whoever may edit the Cluster can remove it.
	ManagementAnnotation = Domain + "/rancher-cluster"
	// OriginNamespaceLabel on Rancher's Fleet Cluster holds the namespace of the CAPI Cluster that is
	// attached to it. One workspace holds the Fleet Clusters of many namespaces.
	OriginNamespaceLabel = "cluster-namespace." + Domain
	// AttachedAnnotation on Rancher's Fleet Cluster holds namespace and name of that CAPI Cluster.
	AttachedAnnotation = Domain + "/attached"
	// AttachedUIDAnnotation holds its UID.
	AttachedUIDAnnotation = Domain + "/attached-uid"
	// AttachManager is the field manager of attachments. With FieldManager, Muster would take
	// Rancher's Fleet Cluster for its own, to change and to delete.
	AttachManager = "muster-attach"

	// ManagementCRD is the name of the CRD that tells Muster that Rancher is installed.
	ManagementCRD = "clusters.management.cattle.io"
	// RancherClusterLabel on Rancher's Fleet Cluster holds the name of its management Cluster.
	RancherClusterLabel = "management.cattle.io/cluster-name"

	// ApplierAnnotation is on every object that Rancher applies for another. It sets no owner reference.
	ApplierAnnotation = "objectset.rio.cattle.io/owner-gvk"

	// The labels of a management Cluster that name its CAPI Cluster.
	managementOwnerLabel          = "cluster-api.cattle.io/capi-cluster-owner"
	managementOwnerNamespaceLabel = "cluster-api.cattle.io/capi-cluster-owner-ns"
	// autoImportLabel on a Cluster, or on its Namespace, asks Turtles to import it into Rancher.
	autoImportLabel = "cluster-api.cattle.io/rancher-auto-import"
	// turtlesFinalizer is on Clusters that Turtles has imported.
	turtlesFinalizer = "capicluster.turtles.cattle.io"
	// importedAnnotation on a Cluster keeps Turtles from importing it again.
	importedAnnotation = "imported"
	// externallyManagedAnnotation on a management Cluster says that Rancher does not manage its Fleet
	// Cluster.
	externallyManagedAnnotation = "provisioning.cattle.io/externally-managed"
	// administratedAnnotation is on the management Clusters that Rancher makes from provisioning Clusters.
	administratedAnnotation = "provisioning.cattle.io/administrated"

	// migratedAnnotation on a management Cluster, or KeepAgentLabel on a Cluster, keeps an older
	// Turtles from removing the namespace that holds the agents of CAAPF and, by default, of Muster.
	migratedAnnotation = "cluster-api.cattle.io/fleet-namespace-migrated"
	// KeepAgentLabel is the key that a user can set.
	KeepAgentLabel = "cluster-api.cattle.io/disable-fleet-auto-import"

	provisioningGroup = "provisioning.cattle.io"
)

// Management holds the fields of a management Cluster of Rancher that Muster reads.
type Management struct {
	Name string
	// Owner is the CAPI Cluster that the labels name.
	Owner types.NamespacedName
	// Workspace is the namespace of its Fleet Cluster; empty while it has none.
	Workspace string
	// FromProvisioning means that Rancher made it from a provisioning Cluster, whose author has chosen
	// the labels.
	FromProvisioning, ExternallyManaged, Ready, Deleting bool
	// Migrated means that Turtles does not look for the agent of CAAPF on the cluster.
	Migrated bool
}

// ManagementOf returns the Management of a management Cluster.
func ManagementOf(metadata metav1.Object, workspace string, ready bool) Management {
	labels, annotations := metadata.GetLabels(), metadata.GetAnnotations()
	external := annotations[externallyManagedAnnotation]
	_, administrated := annotations[administratedAnnotation]
	_, migrated := annotations[migratedAnnotation]
	return Management{
		Name: metadata.GetName(), Owner: types.NamespacedName{Namespace: labels[managementOwnerNamespaceLabel], Name: labels[managementOwnerLabel]},
		Workspace: workspace, Ready: ready, FromProvisioning: administrated, Migrated: migrated, Deleting: !metadata.GetDeletionTimestamp().IsZero(),
		ExternallyManaged: external != "" && !strings.EqualFold(external, "false"),
	}
}

// RancherKeys returns the labels or annotations of Rancher's objects that Muster reads.
func RancherKeys(all map[string]string) map[string]string {
	kept := map[string]string{}
	for _, key := range []string{managementOwnerLabel, managementOwnerNamespaceLabel, externallyManagedAnnotation, administratedAnnotation, migratedAnnotation} {
		if value, found := all[key]; found {
			kept[key] = value
		}
	}
	return kept
}

// Provisioning holds the fields of a provisioning Cluster of Rancher that Muster reads.
type Provisioning struct {
	types.NamespacedName
	UID types.UID
	// Management is the name of its management Cluster; empty while there is none.
	Management string
}

// RancherObjects gives access to Rancher's objects.
type RancherObjects interface {
	// IsThere reports whether Rancher is installed. If not, its labels have no meaning.
	IsThere() bool
	// Claims returns the management Clusters whose labels name a CAPI Cluster.
	Claims(cluster types.NamespacedName) []Management
	Management(name string) (Management, bool)
	Provisioning(key types.NamespacedName) (Provisioning, bool)
	// ProvisioningOf returns the provisioning Clusters that name a management Cluster in their status.
	ProvisioningOf(management string) []Provisioning
	// FleetCluster returns a Fleet Cluster, or nil.
	FleetCluster(key types.NamespacedName) metav1.Object
	// FleetClustersOf returns the Fleet Clusters that carry the label of a management Cluster.
	FleetClustersOf(management string) []types.NamespacedName
	// Reads reports whether Muster reads the Fleet Clusters of a namespace.
	Reads(namespace string) bool
}

// Way specifies how a Cluster comes into Fleet in a management cluster with Rancher.
type Way string

// The ways.
const (
	// Import makes a Fleet Cluster, as without Rancher. It is the zero value.
	Import Way = ""
	// Wait makes no Fleet Cluster, because Rancher has one, or will have one.
	Wait Way = "Wait"
	// Attach makes no Fleet Cluster, and labels the one that Rancher has.
	Attach Way = "Attach"
)

// Beside says how a Cluster comes into Fleet, given Rancher's objects.
type Beside struct {
	Way Way
	// For says what the Cluster waits for; empty for the other ways.
	For string
	// Fleet is the Fleet Cluster that Rancher has for it; zero if there is none.
	Fleet types.NamespacedName
	// Management is the value that ManagementAnnotation should have; empty for none.
	Management string
	// Left is the management Cluster that the annotation names, if nothing of it is left.
	Left string
	// RemovesAgent means that an older Turtles removes an agent from its default namespace.
	RemovesAgent bool
}

// RancherMode returns the mode that counts for a Cluster. An annotation with an unknown value counts
// as none.
func RancherMode(in settings.Cluster, annotations map[string]string) addonsv1.RancherMode {
	switch asked := addonsv1.RancherMode(annotations[RancherAnnotation]); asked {
	case addonsv1.RancherAuto, addonsv1.RancherImport, addonsv1.RancherOff:
		return asked
	default:
		return in.Rancher
	}
}

// ManagementNotedOn returns the value of ManagementAnnotation on a Cluster; empty if no management
// Cluster can have that name.
func ManagementNotedOn(cluster metav1.Object) string {
	name := cluster.GetAnnotations()[ManagementAnnotation]
	if len(validation.IsDNS1123Label(name)) > 0 {
		return ""
	}
	return name
}

// BesideRancher decides, from Rancher's objects, how a Cluster comes into Fleet.
func BesideRancher(in settings.Cluster, cluster metav1.Object, namespaceLabels map[string]string, rancher RancherObjects) Beside {
	mode := RancherMode(in, cluster.GetAnnotations())
	if mode == addonsv1.RancherOff {
		return Beside{Way: Import}
	}
	management, provisioning, waits := managing(cluster, namespaceLabels, rancher)
	fleet, wrong := fleetClusterOf(management, provisioning, rancher)
	noted := ManagementNotedOn(cluster)
	_, keeps := cluster.GetLabels()[KeepAgentLabel]
	note := cmp.Or(management.Name, noted)
	if noted != "" && noted != note && leftOf(noted, rancher) != "" {
		note = noted // There is one note, and nothing else says that an agent of the earlier one may still run.
	}
	beside := Beside{
		Way: Wait, Fleet: fleet, Management: note,
		RemovesAgent: management.Name != "" && management.Ready && !management.Migrated && !keeps,
	}
	left := fleet
	if management.ExternallyManaged {
		left = cmp.Or(left, firstOf(management, rancher))
	}
	switch {
	case mode == addonsv1.RancherImport:
		beside.Way, beside.Management = Import, ""
	case waits != "":
		beside.For = waits
	case management.ExternallyManaged && left.Name != "":
		beside.For = fmt.Sprintf("Fleet Cluster %q of Rancher to go: management Cluster %q is externally managed now", left, management.Name)
	case management.Name == "" || management.ExternallyManaged:
		if beside.For = leftOf(noted, rancher); beside.For == "" {
			beside.Way, beside.Management, beside.Left = Import, "", noted
		}
	case management.Deleting:
		beside.For = fmt.Sprintf("management Cluster %q to be deleted", management.Name)
	case wrong != "":
		beside.For = wrong
	case fleet.Name != "":
		beside.Way = Attach
	case management.Workspace == "":
		beside.For = fmt.Sprintf("management Cluster %q to get a Fleet workspace (spec.fleetWorkspaceName)", management.Name)
	case !management.Ready:
		beside.For = fmt.Sprintf("management Cluster %q to become Ready: Rancher's agent (cattle-cluster-agent) must run on the cluster, and needs a CNI there", management.Name)
	default:
		beside.For = fmt.Sprintf("Rancher to make the Fleet Cluster of management Cluster %q in workspace %q", management.Name, management.Workspace)
	}
	return beside
}

// firstOf returns a Fleet Cluster of a management Cluster, in whatever workspace; zero if there is none.
func firstOf(management Management, rancher RancherObjects) types.NamespacedName {
	if all := rancher.FleetClustersOf(management.Name); len(all) > 0 {
		return all[0]
	}
	return types.NamespacedName{}
}

// leftOf says what a Cluster waits for after Rancher has let go of it; empty if nothing is left of the
// management Cluster.
func leftOf(management string, rancher RancherObjects) string {
	if management == "" {
		return ""
	}
	if left := rancher.FleetClustersOf(management); len(left) > 0 {
		return LeftBehind(management, left[0])
	}
	if found, ok := rancher.Management(management); ok && !found.ExternallyManaged {
		return fmt.Sprintf("management Cluster %q to go, or to name the Cluster in its labels again: Rancher may make a Fleet Cluster for it; if it has nothing to do with this Cluster, remove the annotation %s",
			management, ManagementAnnotation)
	}
	return ""
}

// LeftBehind says that a Cluster waits for a Fleet Cluster that Rancher has left behind.
func LeftBehind(management string, fleet types.NamespacedName) string {
	return fmt.Sprintf("Fleet Cluster %q of Rancher to go: Rancher no longer manages the Cluster, and the agent of that Fleet Cluster may still run; if it does not, delete that Fleet Cluster, or remove the annotation %s=%s",
		fleet, ManagementAnnotation, management)
}

// managing returns the management Cluster through which Rancher manages a Cluster, and its
// provisioning Cluster, if there are any. If Rancher will manage the Cluster, waits says what the
// Cluster still waits for.
//
// A user who may edit a management or a provisioning Cluster can write any label on it. So the labels
// count only if the Cluster itself, or its Namespace, says that Turtles imports it.
func managing(cluster metav1.Object, namespaceLabels map[string]string, rancher RancherObjects) (_ Management, _ Provisioning, waits string) {
	if !rancher.IsThere() {
		return Management{}, Provisioning{}, ""
	}
	if owner := provisioningOwner(cluster); owner != nil {
		return provisioned(cluster, owner, rancher)
	}
	isImported := slices.Contains(cluster.GetFinalizers(), turtlesFinalizer)
	_, isDone := cluster.GetAnnotations()[importedAnnotation]
	willBe := cmp.Or(cluster.GetLabels()[autoImportLabel], namespaceLabels[autoImportLabel]) == "true"
	if !isImported && !willBe {
		return Management{}, Provisioning{}, ""
	}
	claims, dropped := claimsOn(cluster, rancher)
	switch {
	case len(claims) == 1:
		return claims[0].management, claims[0].provisioning, ""
	case len(claims) > 1:
		// The one through which Rancher has managed the Cluster so far keeps it.
		var names []string
		for _, claim := range claims {
			if claim.management.Name == ManagementNotedOn(cluster) {
				return claim.management, claim.provisioning, ""
			}
			names = append(names, claim.management.Name)
		}
		slices.Sort(names)
		return Management{}, Provisioning{}, fmt.Sprintf("the labels %s and %s to be taken off all management Clusters but its own: %s name it", managementOwnerLabel, managementOwnerNamespaceLabel, strings.Join(names, ", "))
	case willBe && !isDone:
		return Management{}, Provisioning{}, fmt.Sprintf("Turtles to make its management Cluster: the label %s asks for that", autoImportLabel)
	case isImported && len(dropped) > 0:
		slices.Sort(dropped)
		return Management{}, Provisioning{}, fmt.Sprintf("the labels %s and %s to be taken off the management Clusters that Rancher made from provisioning Clusters: %s name it, and Turtles has imported it; if Rancher no longer manages it, choose mode Import for it",
			managementOwnerLabel, managementOwnerNamespaceLabel, strings.Join(dropped, ", "))
	default:
		return Management{}, Provisioning{}, ""
	}
}

// claim is a management Cluster whose labels name a Cluster, with its provisioning Cluster.
type claim struct {
	management   Management
	provisioning Provisioning
}

// claimsOn returns the claims that count, and the names of the management Clusters whose claims do
// not. Rancher makes one provisioning Cluster from a management Cluster of Turtles, of the same name.
// If Rancher made the management Cluster from the provisioning Cluster instead, a user has chosen the
// labels.
func claimsOn(cluster metav1.Object, rancher RancherObjects) (claims []claim, dropped []string) {
	for _, management := range rancher.Claims(types.NamespacedName{Namespace: cluster.GetNamespace(), Name: cluster.GetName()}) {
		made := provisioningOf(management, rancher)
		switch {
		case management.FromProvisioning, slices.ContainsFunc(made, func(p Provisioning) bool { return p.Name != management.Name }):
			dropped = append(dropped, management.Name)
		case len(made) > 0:
			claims = append(claims, claim{management, made[0]})
		default:
			claims = append(claims, claim{management: management})
		}
	}
	return claims, dropped
}

// provisioningOf returns the provisioning Clusters of a management Cluster. They are in its workspace:
// in another namespace, a user can name any management Cluster in the status of his own.
func provisioningOf(management Management, rancher RancherObjects) []Provisioning {
	return slices.DeleteFunc(rancher.ProvisioningOf(management.Name), func(p Provisioning) bool { return p.Namespace != management.Workspace })
}

// provisioned does the same as managing for a Cluster that Rancher made from a provisioning Cluster of
// the same name. That one owns the Cluster, by UID, so labels do not count.
func provisioned(cluster metav1.Object, owner *metav1.OwnerReference, rancher RancherObjects) (_ Management, _ Provisioning, waits string) {
	key := types.NamespacedName{Namespace: cluster.GetNamespace(), Name: owner.Name}
	provisioning, found := rancher.Provisioning(key)
	switch {
	case !found || provisioning.UID != owner.UID || owner.Name != cluster.GetName():
		return Management{}, Provisioning{}, fmt.Sprintf("provisioning Cluster %q, which owns it", key)
	case provisioning.Management == "":
		return Management{}, Provisioning{}, fmt.Sprintf("provisioning Cluster %q to get a management Cluster", key)
	}
	management, found := rancher.Management(provisioning.Management)
	if !found {
		return Management{}, Provisioning{}, fmt.Sprintf("management Cluster %q of provisioning Cluster %q", provisioning.Management, key)
	}
	if made := provisioningOf(management, rancher); len(made) > 1 {
		return Management{}, Provisioning{}, fmt.Sprintf("management Cluster %q to be that of one provisioning Cluster: %d name it", management.Name, len(made))
	}
	// A user can make the provisioning Cluster of an import the owner of a Cluster of his own.
	if !management.FromProvisioning {
		return Management{}, Provisioning{}, fmt.Sprintf("management Cluster %q to be one that Rancher made from provisioning Cluster %q, which owns it: it is that of an import, and of another Cluster", management.Name, key)
	}
	return management, provisioning, ""
}

// provisioningOwner returns the provisioning Cluster that owns a Cluster; nil if none does.
func provisioningOwner(cluster metav1.Object) *metav1.OwnerReference {
	for _, owner := range cluster.GetOwnerReferences() {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil && version.Group == provisioningGroup && owner.Kind == clusterv1.ClusterKind {
			return &owner
		}
	}
	return nil
}

// fleetClusterOf returns the Fleet Cluster that Rancher has for a management Cluster; zero if there is
// none. Wrong says why the Cluster cannot be attached to it.
func fleetClusterOf(management Management, provisioning Provisioning, rancher RancherObjects) (_ types.NamespacedName, wrong string) {
	if management.Workspace == "" || provisioning.Name == "" {
		return types.NamespacedName{}, ""
	}
	if !rancher.Reads(management.Workspace) {
		return types.NamespacedName{}, fmt.Sprintf("the syncer to read workspace %q, where the Fleet Cluster of management Cluster %q is: its flag --namespace keeps it out", management.Workspace, management.Name)
	}
	key := types.NamespacedName{Namespace: management.Workspace, Name: provisioning.Name}
	fleet := rancher.FleetCluster(key)
	switch {
	case fleet == nil:
		return types.NamespacedName{}, ""
	case fleet.GetLabels()[RancherClusterLabel] != management.Name:
		return types.NamespacedName{}, fmt.Sprintf("Fleet Cluster %q, which is not that of management Cluster %q, to make room", key, management.Name)
	case !fleet.GetDeletionTimestamp().IsZero():
		return key, fmt.Sprintf("Fleet Cluster %q of Rancher to be deleted", key)
	default:
		return key, ""
	}
}

// IsAttached reports whether a Fleet Cluster of Rancher's is attached to a CAPI Cluster. It proves
// nothing: any user who may write the Fleet Cluster can write the label and the annotations, and use
// the name of the field manager.
func IsAttached(fleetCluster metav1.Object) bool {
	return fleetCluster.GetLabels()[RancherClusterLabel] != "" && fleetCluster.GetAnnotations()[AttachedAnnotation] != "" &&
		slices.ContainsFunc(fleetCluster.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == AttachManager })
}

// IsAttachedTo reports whether a Fleet Cluster of Rancher's is attached to this CAPI Cluster, and not
// to an earlier one of the same name.
func IsAttachedTo(fleetCluster, cluster metav1.Object) bool {
	annotations := fleetCluster.GetAnnotations()
	return IsAttached(fleetCluster) && annotations[AttachedUIDAnnotation] == string(cluster.GetUID()) &&
		annotations[AttachedAnnotation] == cluster.GetNamespace()+"/"+cluster.GetName()
}

// WorkspaceGroupName returns the name of the ClusterGroup, in a workspace, for the Clusters of a
// namespace that use a class. The name is "<class>.<namespace>" if the class is in the Clusters'
// namespace. Otherwise, and if the name of the class has dots, the namespace of the class stands
// between the two.
func WorkspaceGroupName(class types.NamespacedName, origin string) string {
	if class.Namespace == origin && !strings.Contains(class.Name, ".") {
		return Subdomain(class.Name + "." + origin)
	}
	return Subdomain(class.Name + "." + class.Namespace + "." + origin)
}
