package rancher

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// ModeAnnotation on a Cluster takes precedence over spec.rancher.mode of the FleetAddonConfig, and has the same
	// values.
	ModeAnnotation = stamp.Domain + "/rancher"
	// NoteAnnotation on a Cluster holds the name of the management Cluster through which Rancher manages it, or has
	// managed it. Muster writes it before it attaches the Cluster, and removes it when neither that management Cluster
	// nor a Fleet Cluster of it is left: until then, Rancher's agent may run, whatever the conditions of the Cluster
	// say. A forged one keeps the user's own Cluster waiting, and whoever may edit the Cluster can remove it.
	NoteAnnotation = stamp.Domain + "/rancher-cluster"
	// ApplierAnnotation is on every object that Rancher applies for another. It sets no owner reference.
	ApplierAnnotation = "objectset.rio.cattle.io/owner-gvk"
	// KeepAgentLabel on a Cluster, or migratedAnnotation on a management Cluster, keeps an older Turtles from removing
	// the namespace that holds the agents of CAAPF and, by default, of Muster.
	KeepAgentLabel     = "cluster-api.cattle.io/disable-fleet-auto-import"
	migratedAnnotation = "cluster-api.cattle.io/fleet-namespace-migrated"

	// The labels of a management Cluster that name its CAPI Cluster.
	ownerLabel          = "cluster-api.cattle.io/capi-cluster-owner"
	ownerNamespaceLabel = "cluster-api.cattle.io/capi-cluster-owner-ns"
	// autoImportLabel on a Cluster, or on its Namespace, asks Turtles to import it into Rancher.
	autoImportLabel = "cluster-api.cattle.io/rancher-auto-import"
	// turtlesFinalizer is on Clusters that Turtles has imported.
	turtlesFinalizer = "capicluster.turtles.cattle.io"
	// importedAnnotation on a Cluster keeps Turtles from importing it again.
	importedAnnotation = "imported"
	// externallyManagedAnnotation on a management Cluster says that Rancher does not manage its Fleet Cluster.
	externallyManagedAnnotation = "provisioning.cattle.io/externally-managed"
	// administratedAnnotation is on the management Clusters that Rancher makes from provisioning Clusters.
	administratedAnnotation = "provisioning.cattle.io/administrated"
)

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

// Relation is the relation of a Cluster to Rancher: how the Cluster comes into Fleet.
type Relation struct {
	Way Way
	// For says what the Cluster waits for; empty for the other ways.
	For string
	// Fleet is the Fleet Cluster that Rancher has for it; zero if there is none.
	Fleet types.NamespacedName
	// Management is the value that NoteAnnotation should have; empty for none.
	Management string
	// Left is the management Cluster that the annotation names, if nothing of it is left.
	Left string
	// RemovesAgent means that an older Turtles removes an agent from its default namespace.
	RemovesAgent bool
	// Attached are the Fleet Clusters that a Cluster of this name is attached to, read-only.
	Attached []fleetv1.Cluster `json:"-"`
	// Unknown is why nothing else is known: not all of Rancher's objects are read yet, and Rancher may manage the
	// Cluster. It is ErrUnlisted during kinds.Patience.
	Unknown error
}

// objects gives a decision access to Rancher's objects.
type objects interface {
	// isThere reports whether Rancher is installed. If not, its labels have no meaning.
	isThere() bool
	// list returns the Clusters of a kind of Rancher's, by an index.
	list(kind schema.GroupVersionKind, index, value string) []object
	// fleetCluster returns a Fleet Cluster, or nil.
	fleetCluster(key types.NamespacedName) metav1.Object
	// fleetClustersOf returns the Fleet Clusters that carry the label of a management Cluster.
	fleetClustersOf(management string) []types.NamespacedName
	// reads reports whether Muster reads the Fleet Clusters of a namespace.
	reads(namespace string) bool
}

// modeOf returns the mode that counts for a Cluster. An annotation with an unknown value counts as none.
func modeOf(in settings.Cluster, cluster metav1.Object) addonsv1.RancherMode {
	switch asked := addonsv1.RancherMode(cluster.GetAnnotations()[ModeAnnotation]); asked {
	case addonsv1.RancherAuto, addonsv1.RancherImport, addonsv1.RancherOff:
		return asked
	default:
		return in.Rancher
	}
}

// NotedOn returns the value of NoteAnnotation on a Cluster; empty if no management Cluster can have that name.
func NotedOn(cluster metav1.Object) string {
	name := cluster.GetAnnotations()[NoteAnnotation]
	if len(validation.IsDNS1123Label(name)) > 0 {
		return ""
	}
	return name
}

// decide returns the relation of a Cluster to Rancher.
func decide(in settings.Cluster, cluster metav1.Object, namespaceLabels map[string]string, rancher objects) Relation {
	mode := modeOf(in, cluster)
	if mode == addonsv1.RancherOff {
		return Relation{}
	}
	its := managing(cluster, namespaceLabels, rancher)
	management := its.management
	fleet, wrong := its.fleetCluster(rancher)
	noted := NotedOn(cluster)
	_, keeps := cluster.GetLabels()[KeepAgentLabel]
	note := cmp.Or(management.Name, noted)
	if noted != "" && noted != note && leftOf(noted, rancher) != "" {
		note = noted // There is one note, and nothing else says that an agent of the earlier one may still run.
	}
	relation := Relation{
		Way: Wait, Fleet: fleet, Management: note,
		RemovesAgent: management.Name != "" && management.Ready && !management.Migrated && !keeps,
	}
	left := fleet
	if management.ExternallyManaged && left.Name == "" { // It may be in another workspace.
		left = cmp.Or(append(rancher.fleetClustersOf(management.Name), left)...)
	}
	switch {
	case mode == addonsv1.RancherImport:
		relation.Way, relation.Management = Import, ""
	case its.waits != "":
		relation.For = its.waits
	case management.ExternallyManaged && left.Name != "":
		relation.For = fmt.Sprintf("Fleet Cluster %q of Rancher to go: management Cluster %q is externally managed now", left, management.Name)
	case management.Name == "" || management.ExternallyManaged:
		if relation.For = leftOf(noted, rancher); relation.For == "" {
			relation.Way, relation.Management, relation.Left = Import, "", noted
		}
	case management.Deleting:
		relation.For = fmt.Sprintf("management Cluster %q to be deleted", management.Name)
	case wrong != "":
		relation.For = wrong
	case fleet.Name != "":
		relation.Way = Attach
	case management.Workspace == "":
		relation.For = fmt.Sprintf("management Cluster %q to get a Fleet workspace (spec.fleetWorkspaceName)", management.Name)
	case !management.Ready:
		relation.For = fmt.Sprintf("management Cluster %q to become Ready: Rancher's agent (cattle-cluster-agent) must run on the cluster, and needs a CNI there", management.Name)
	default:
		relation.For = fmt.Sprintf("Rancher to make the Fleet Cluster of management Cluster %q in workspace %q", management.Name, management.Workspace)
	}
	return relation
}

// leftOf says what a Cluster waits for after Rancher has let go of it; empty if nothing is left of the management
// Cluster.
func leftOf(management string, rancher objects) string {
	if management == "" {
		return ""
	}
	if left := rancher.fleetClustersOf(management); len(left) > 0 {
		return leftBehind(management, left[0])
	}
	if found := rancher.list(ManagementKind, byManagement, management); len(found) > 0 && !found[0].ExternallyManaged {
		return fmt.Sprintf("management Cluster %q to go, or to name the Cluster in its labels again: Rancher may make a Fleet Cluster for it; if it has nothing to do with this Cluster, remove the annotation %s",
			management, NoteAnnotation)
	}
	return ""
}

// leftBehind says that a Cluster waits for a Fleet Cluster that Rancher has left behind.
func leftBehind(management string, fleet types.NamespacedName) string {
	return fmt.Sprintf("Fleet Cluster %q of Rancher to go: Rancher no longer manages the Cluster, and the agent of that Fleet Cluster may still run; if it does not, delete that Fleet Cluster, or remove the annotation %s=%s",
		fleet, NoteAnnotation, management)
}

// claim is the management Cluster through which Rancher manages a Cluster, and its provisioning Cluster, if there are
// any. If Rancher will manage the Cluster, waits says what the Cluster still waits for.
type claim struct {
	management, provisioning object
	waits                    string
}

func waits(format string, values ...any) claim { return claim{waits: fmt.Sprintf(format, values...)} }

// managing returns the claim on a Cluster.
//
// A user who may edit a management or a provisioning Cluster can write any label on it. So the labels count only if the
// Cluster itself, or its Namespace, says that Turtles imports it.
func managing(cluster metav1.Object, namespaceLabels map[string]string, rancher objects) claim {
	if !rancher.isThere() {
		return claim{}
	}
	for _, owner := range cluster.GetOwnerReferences() {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil && version.Group == ProvisioningKind.Group && owner.Kind == clusterv1.ClusterKind {
			return provisioned(cluster, owner, rancher)
		}
	}
	isImported := slices.Contains(cluster.GetFinalizers(), turtlesFinalizer)
	_, isDone := cluster.GetAnnotations()[importedAnnotation]
	willBe := cmp.Or(cluster.GetLabels()[autoImportLabel], namespaceLabels[autoImportLabel]) == "true"
	if !isImported && !willBe {
		return claim{}
	}
	var claims []claim
	var names, dropped []string // of the management Clusters whose claims count, and of the others
	for _, management := range rancher.list(ManagementKind, byOwner, cluster.GetNamespace()+"/"+cluster.GetName()) {
		its := claim{management: management}
		made := its.made(rancher)
		// Rancher makes one provisioning Cluster from a management Cluster of Turtles, of the same name. If Rancher made the
		// management Cluster from the provisioning Cluster instead, a user has chosen the labels.
		if management.FromProvisioning || slices.ContainsFunc(made, func(p object) bool { return p.Name != management.Name }) {
			dropped = append(dropped, management.Name)
			continue
		}
		if len(made) > 0 {
			its.provisioning = made[0]
		}
		if management.Name == NotedOn(cluster) { // The one through which Rancher has managed the Cluster so far keeps it.
			return its
		}
		claims, names = append(claims, its), append(names, management.Name)
	}
	slices.Sort(names)
	slices.Sort(dropped)
	switch {
	case len(claims) == 1:
		return claims[0]
	case len(claims) > 1:
		return waits("the labels %s and %s to be taken off all management Clusters but its own: %s name it", ownerLabel, ownerNamespaceLabel, strings.Join(names, ", "))
	case willBe && !isDone:
		return waits("Turtles to make its management Cluster: the label %s asks for that", autoImportLabel)
	case isImported && len(dropped) > 0:
		return waits("the labels %s and %s to be taken off the management Clusters that Rancher made from provisioning Clusters: %s name it, and Turtles has imported it; if Rancher no longer manages it, choose mode Import for it",
			ownerLabel, ownerNamespaceLabel, strings.Join(dropped, ", "))
	default:
		return claim{}
	}
}

// made returns the provisioning Clusters of a management Cluster. They are in its workspace: in another namespace, a
// user can name any management Cluster in the status of his own.
func (c claim) made(rancher objects) []object {
	return slices.DeleteFunc(rancher.list(ProvisioningKind, byManagement, c.management.Name), func(p object) bool { return p.Namespace != c.management.Workspace })
}

// provisioned returns the claim on a Cluster that Rancher made from a provisioning Cluster of the same name. That one
// owns the Cluster, by UID, so labels do not count.
func provisioned(cluster metav1.Object, owner metav1.OwnerReference, rancher objects) claim {
	key := types.NamespacedName{Namespace: cluster.GetNamespace(), Name: owner.Name}
	owners := rancher.list(ProvisioningKind, byOwner, key.String())
	switch {
	case len(owners) == 0 || owners[0].UID != owner.UID || owner.Name != cluster.GetName():
		return waits("provisioning Cluster %q, which owns it", key)
	case owners[0].Management == "":
		return waits("provisioning Cluster %q to get a management Cluster", key)
	}
	found := rancher.list(ManagementKind, byManagement, owners[0].Management)
	if len(found) == 0 {
		return waits("management Cluster %q of provisioning Cluster %q", owners[0].Management, key)
	}
	its := claim{management: found[0], provisioning: owners[0]}
	if made := its.made(rancher); len(made) > 1 {
		return waits("management Cluster %q to be that of one provisioning Cluster: %d name it", found[0].Name, len(made))
	}
	// A user can make the provisioning Cluster of an import the owner of a Cluster of his own.
	if !found[0].FromProvisioning {
		return waits("management Cluster %q to be one that Rancher made from provisioning Cluster %q, which owns it: it is that of an import, and of another Cluster", found[0].Name, key)
	}
	return its
}

// fleetCluster returns the Fleet Cluster that Rancher has for a management Cluster; zero if there is none. Wrong says
// why the Cluster cannot be attached to it.
func (c claim) fleetCluster(rancher objects) (_ types.NamespacedName, wrong string) {
	key, management := types.NamespacedName{Namespace: c.management.Workspace, Name: c.provisioning.Name}, c.management.Name
	if key.Namespace == "" || key.Name == "" {
		return types.NamespacedName{}, ""
	}
	if !rancher.reads(key.Namespace) {
		return types.NamespacedName{}, fmt.Sprintf("the syncer to read workspace %q, where the Fleet Cluster of management Cluster %q is: its flag --namespace keeps it out", key.Namespace, management)
	}
	fleet := rancher.fleetCluster(key)
	switch {
	case fleet == nil:
		return types.NamespacedName{}, ""
	case fleet.GetLabels()[stamp.RancherClusterLabel] != management:
		return types.NamespacedName{}, fmt.Sprintf("Fleet Cluster %q, which is not that of management Cluster %q, to make room", key, management)
	case !fleet.GetDeletionTimestamp().IsZero():
		return key, fmt.Sprintf("Fleet Cluster %q of Rancher to be deleted", key)
	default:
		return key, ""
	}
}
