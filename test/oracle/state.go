package oracle

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

// Key names an object.
type Key = types.NamespacedName

// Reference names an object that a Cluster refers to.
type Reference struct {
	Group, Kind string
	Key
}

// ReferenceTo names an object.
func ReferenceTo(object *unstructured.Unstructured) Reference {
	kind := object.GroupVersionKind()
	return Reference{Group: kind.Group, Kind: kind.Kind, Key: client.ObjectKeyFromObject(object)}
}

// State is everything that Muster reads and writes, at one moment.
type State struct {
	Config *addonsv1.FleetAddonConfig // nil if there is none
	// IsConfigGone means that there was a FleetAddonConfig, and is none now.
	IsConfigGone bool

	Namespaces map[string]*corev1.Namespace
	Classes    map[Key]*clusterv1.ClusterClass
	Clusters   map[Key]*clusterv1.Cluster
	Referenced map[Reference]*unstructured.Unstructured

	FleetClusters map[Key]*fleetv1.Cluster
	Groups        map[Key]*fleetv1.ClusterGroup
	Mappings      map[Key]*fleetv1.BundleNamespaceMapping
	// FleetNamespaces are the namespaces that Fleet keeps for Fleet Clusters, by name, with the Fleet Cluster in
	// their annotations.
	FleetNamespaces map[string]Key

	// AgentInitiated is the part about Clusters whose agents register themselves.
	AgentInitiated AgentInitiated
	// Helm is the part about HelmChartProxies.
	Helm Helm

	// GarbageRemains means that the garbage collector is stopped: objects whose owners are all gone still exist.
	GarbageRemains bool
}

// NewState returns a state without objects.
func NewState() State {
	return State{
		Namespaces: map[string]*corev1.Namespace{}, Classes: map[Key]*clusterv1.ClusterClass{},
		Clusters: map[Key]*clusterv1.Cluster{}, Referenced: map[Reference]*unstructured.Unstructured{},
		FleetClusters: map[Key]*fleetv1.Cluster{}, Groups: map[Key]*fleetv1.ClusterGroup{},
		Mappings: map[Key]*fleetv1.BundleNamespaceMapping{}, FleetNamespaces: map[string]Key{}, AgentInitiated: newAgentInitiated(), Helm: newHelm(),
	}
}

// Copy returns a copy that shares nothing with the state.
func (s *State) Copy() State {
	return State{
		Config: s.Config.DeepCopy(), IsConfigGone: s.IsConfigGone, Namespaces: copyMap(s.Namespaces), Classes: copyMap(s.Classes),
		Clusters: copyMap(s.Clusters), Referenced: copyMap(s.Referenced),
		FleetClusters: copyMap(s.FleetClusters), Groups: copyMap(s.Groups), Mappings: copyMap(s.Mappings), FleetNamespaces: maps.Clone(s.FleetNamespaces),
		AgentInitiated: s.AgentInitiated.copy(), Helm: s.Helm.copy(), GarbageRemains: s.GarbageRemains,
	}
}

// sorted returns the keys of a map in order.
func sorted[T any](objects map[Key]T) []Key {
	return slices.SortedFunc(maps.Keys(objects), func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
}

func copyMap[K comparable, V interface{ DeepCopy() V }](from map[K]V) map[K]V {
	to := make(map[K]V, len(from))
	for key, value := range from {
		to[key] = value.DeepCopy()
	}
	return to
}

// Keys that Muster writes or reads.
const (
	domain            = "fleet.addons.cluster.x-k8s.io"
	classLabel        = "clusterclass-name." + domain
	classNsLabel      = "clusterclass-namespace." + domain
	fullClass         = domain + "/clusterclass-name" // where the label holds a shortened name
	ownedBy           = domain + "/owned-by"
	pinnedName        = domain + "/cluster-name"
	importedFrom      = domain + "/imported-from"
	importedUID       = domain + "/imported-uid" // where no owner reference tells it
	released          = domain + "/released"
	adopt             = domain + "/adopt"
	legacyFinalizer   = domain
	manager           = "addon-provider-fleet"
	managedBy         = "app.kubernetes.io/managed-by"
	workspace         = "field.cattle.io/allow-fleetworkspace-creation-for-existing-namespace"
	pauseAnnotation   = "cluster.x-k8s.io/paused"
	importedCondition = "FleetImported"
	bundlesCondition  = "FleetBundlesReady"

	// Others is the domain of the labels and annotations that other clients put on Fleet objects. They stay.
	Others = "others.example/"
)

// isOurs reports whether Muster or CAAPF made the object, or its maker handed it over.
func isOurs(object client.Object) bool {
	return object.GetLabels()[managedBy] == "muster" || object.GetAnnotations()[adopt] == "true" || isManager(object)
}

func isManager(object client.Object) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == manager || strings.HasSuffix(entry.Manager, "-"+manager)
	})
}

func isClaimed(cluster *clusterv1.Cluster) bool {
	return cluster.Annotations[ownedBy] != "" && isDNSLabel(cluster.Annotations[pinnedName])
}

// isKnown reports whether the Cluster is or was imported. Muster ignores other Clusters.
func isKnown(cluster *clusterv1.Cluster, fleet *fleetv1.Cluster) bool {
	return isClaimed(cluster) || fleet != nil && isOurs(fleet)
}

// classOf returns the class that a Cluster's topology names. Without a namespace, it is in the Cluster's own.
func classOf(cluster *clusterv1.Cluster) Key {
	class := Key{Namespace: cluster.Spec.Topology.ClassRef.Namespace, Name: cluster.Spec.Topology.ClassRef.Name}
	if class.Name == "" {
		return Key{}
	}
	if class.Namespace == "" {
		class.Namespace = cluster.Namespace
	}
	return class
}

// groupedBy returns the class whose labels an object of Fleet carries.
func groupedBy(object client.Object) Key {
	class := Key{Namespace: object.GetLabels()[classNsLabel], Name: object.GetLabels()[classLabel]}
	if full := object.GetAnnotations()[fullClass]; full != "" {
		class.Name = full
	}
	return class
}

func set(object map[string]string, key, value string) map[string]string {
	if object == nil {
		object = map[string]string{}
	}
	if object[key] = value; value == "" {
		delete(object, key)
	}
	return object
}

// copied returns the keys that may be copied to a Fleet object: none that steer Fleet or Rancher, describe the
// original, or are our own. The last map wins.
func copied(sources ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, source := range sources {
		maps.Copy(result, source)
	}
	maps.DeleteFunc(result, func(key, _ string) bool {
		return slices.ContainsFunc([]string{
			"fleet.cattle.io/", "management.cattle.io/", "objectset.rio.cattle.io/",
			"kubectl.kubernetes.io/last-applied-configuration", "meta.helm.sh/", domain + "/",
			"runtime.cluster.x-k8s.io/", "topology.internal.cluster.x-k8s.io/",
		}, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) || wholeCopies.MatchString(key) || pruning.MatchString(key)
	})
	return result
}

// pruning matches the keys by which a tool deletes what carries them.
var pruning = regexp.MustCompile(`^(applyset\.kubernetes\.io/.*|kapp\.k14s\.io/(app|association)|clusterctl\.cluster\.x-k8s\.io(/.*)?|argocd\.argoproj\.io/tracking-id)$`)

// optOuts are what an object of Muster's carries as long as it has no owner, so that Argo CD spares it.
var optOuts = map[string]string{"argocd.argoproj.io/sync-options": "Prune=false", "argocd.argoproj.io/compare-options": "IgnoreExtraneous"}

// othersIn returns the keys that other clients put there, which stay. Unwanted keys of ours go, whichever client
// wrote them, and so does the key that handed the object over.
func othersIn(have map[string]string) map[string]string {
	result := map[string]string{}
	for key, value := range have {
		if strings.HasPrefix(key, Others) {
			result[key] = value
		}
	}
	return result
}
