package view

import (
	"fmt"
	"maps"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/stamp"
)

// Objects are the objects that exist, reduced to the fields that the graph shows: there may be ten
// thousand Clusters.
type Objects struct {
	// Now is the time from which ages are counted.
	Now time.Time
	// StaleAfter is how long an agent may be silent.
	StaleAfter time.Duration

	// Server is the host and port of the API server from which the objects were read; empty if it is not known.
	Server string

	// Config is the FleetAddonConfig, or nil if there is none. IsConfigGone means that there was one.
	Config       *addonsv1.FleetAddonConfig
	IsConfigGone bool
	// Namespaces are the labels of each Namespace.
	Namespaces map[string]map[string]string
	// Classes are the existing ClusterClasses.
	Classes       map[types.NamespacedName]bool
	Clusters      map[types.NamespacedName]*CAPICluster
	FleetClusters map[types.NamespacedName]*InFleet
	Groups        map[types.NamespacedName]*fleetv1.ClusterGroup
	Mappings      map[types.NamespacedName]*fleetv1.BundleNamespaceMapping
	Proxies       map[types.NamespacedName]*Proxy
	// Deployments are the BundleDeployments that were read, by their namespace.
	Deployments map[string][]*Deployed

	// Unread has, for each kind that could not be read, the reason.
	Unread map[Kind]string
}

// NewObjects returns empty Objects.
func NewObjects() *Objects {
	return &Objects{
		StaleAfter:    stamp.DefaultStaleAfter,
		Namespaces:    map[string]map[string]string{},
		Classes:       map[types.NamespacedName]bool{},
		Clusters:      map[types.NamespacedName]*CAPICluster{},
		FleetClusters: map[types.NamespacedName]*InFleet{},
		Groups:        map[types.NamespacedName]*fleetv1.ClusterGroup{},
		Mappings:      map[types.NamespacedName]*fleetv1.BundleNamespaceMapping{},
		Proxies:       map[types.NamespacedName]*Proxy{},
		Deployments:   map[string][]*Deployed{},
		Unread:        map[Kind]string{},
	}
}

// Clone returns the same objects in new maps.
func (o *Objects) Clone() *Objects {
	copied := *o
	copied.Deployments = maps.Clone(o.Deployments)
	copied.Namespaces, copied.Classes = maps.Clone(o.Namespaces), maps.Clone(o.Classes)
	copied.Clusters, copied.FleetClusters = maps.Clone(o.Clusters), maps.Clone(o.FleetClusters)
	copied.Groups, copied.Mappings = maps.Clone(o.Groups), maps.Clone(o.Mappings)
	copied.Proxies, copied.Unread = maps.Clone(o.Proxies), maps.Clone(o.Unread)
	return &copied
}

// CAPICluster is a reduced CAPI Cluster.
type CAPICluster struct {
	Class types.NamespacedName
	// Labels are kept only while the Cluster has no condition FleetImported.
	Labels           map[string]string
	Pin              stamp.Pin
	Deleting, Paused bool
	// Endpoint is the host and port of its API server, where known.
	Endpoint string
	// Imported and BundlesReady are Muster's conditions; nil if absent.
	Imported, BundlesReady *Condition
	// Held is the condition of a held upgrade; nil if none is held.
	Held *Condition
}

// Condition is a reduced condition.
type Condition struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	Since           time.Time
}

// CutCluster reduces a CAPI Cluster.
func CutCluster(in *clusterv1.Cluster) *CAPICluster {
	_, annotated := in.Annotations[clusterv1.PausedAnnotation]
	result := &CAPICluster{
		Class:        in.GetClassKey(),
		Pin:          stamp.PinOf(in.Annotations),
		Deleting:     !in.DeletionTimestamp.IsZero(),
		Paused:       annotated || ptr.Deref(in.Spec.Paused, false),
		Endpoint:     endpointOf(in),
		Imported:     cutCondition(in.Status.Conditions, addonsv1.FleetImportedCondition),
		BundlesReady: cutCondition(in.Status.Conditions, addonsv1.FleetBundlesReadyCondition),
	}
	if held := cutCondition(in.Status.Conditions, addonsv1.FleetUpgradeHeldCondition); held != nil && held.Status == metav1.ConditionTrue {
		result.Held = held
	}
	if result.Imported == nil {
		result.Labels = in.Labels
	}
	return result
}

func endpointOf(in *clusterv1.Cluster) string {
	if !in.Spec.ControlPlaneEndpoint.IsValid() {
		return ""
	}
	return in.Spec.ControlPlaneEndpoint.String()
}

func cutCondition(conditions []metav1.Condition, name string) *Condition {
	found := meta.FindStatusCondition(conditions, name)
	if found == nil {
		return nil
	}
	return &Condition{found.Status, shown(found.Reason), shown(found.Message), found.LastTransitionTime.Time}
}

// Proxy is a reduced HelmChartProxy.
type Proxy struct {
	// names has the fields from which the names of its Bundles are made.
	names *addonsv1.HelmChartProxy
	// Rollout describes the rollout; empty if none is in progress.
	Rollout string
}

// CutProxy reduces a HelmChartProxy.
func CutProxy(in *addonsv1.HelmChartProxy) *Proxy {
	names := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: in.Namespace, Name: in.Name}}
	names.Spec.ReleaseName, names.Spec.ReleaseNamespace, names.Spec.ReconcileStrategy = in.Spec.ReleaseName, in.Spec.ReleaseNamespace, in.Spec.ReconcileStrategy
	return &Proxy{names, rolloutOf(in)}
}

func rolloutOf(in *addonsv1.HelmChartProxy) string {
	completed := meta.FindStatusCondition(in.Status.Conditions, addonsv1.RolloutCompletedCondition)
	if completed == nil || completed.Status == metav1.ConditionTrue || in.Status.Rollout == nil {
		return ""
	}
	text := completed.Reason + ": " + completed.Message
	for _, stage := range in.Status.Rollout.Stages {
		switch {
		case stage.Held > 0 && stage.Name == "":
			text += fmt.Sprintf("; %d of no stage wait", stage.Held)
		case stage.Held > 0:
			text += fmt.Sprintf("; %d of stage %s wait", stage.Held, stage.Name)
		}
	}
	return shown(text)
}

// InFleet is a reduced Fleet Cluster.
type InFleet struct {
	// Class is the class in its labels: a hint, not proof.
	Class  types.NamespacedName
	Origin stamp.Origin
	// Attached is the Cluster that Muster has attached to this Fleet Cluster of Rancher's, according to the
	// annotation: not proof.
	Attached types.NamespacedName
	// Ours means that Muster made it.
	Ours, Deleting bool
	// Namespace is where Fleet keeps its BundleDeployments.
	Namespace string
	LastSeen  time.Time
	// State is the state that Fleet reports; empty until then.
	State, ReadyBundles, Message     string
	ResourcesReady, ResourcesDesired int
}

// CutFleetCluster reduces a Fleet Cluster.
func CutFleetCluster(in *fleetv1.Cluster) *InFleet {
	result := &InFleet{
		Class:            types.NamespacedName{Namespace: in.Labels[stamp.ClassNamespaceLabel], Name: in.Labels[stamp.ClassNameLabel]},
		Origin:           stamp.OriginOf(in),
		Attached:         attachedTo(in),
		Ours:             stamp.IsOurs(in),
		Deleting:         !in.DeletionTimestamp.IsZero(),
		Namespace:        in.Status.Namespace,
		LastSeen:         in.Status.Agent.LastSeen.Time,
		State:            shown(string(stateOfCluster(&in.Status))),
		ReadyBundles:     shown(in.Status.Display.ReadyBundles),
		ResourcesReady:   in.Status.ResourceCounts.Ready,
		ResourcesDesired: in.Status.ResourceCounts.DesiredReady,
	}
	for _, condition := range in.Status.Conditions {
		if condition.Type == "Ready" {
			result.Message = shown(condition.Message)
		}
	}
	return result
}

func attachedTo(in *fleetv1.Cluster) types.NamespacedName {
	namespace, name, _ := strings.Cut(in.Annotations[stamp.AttachedAnnotation], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// Deployed is a reduced BundleDeployment.
type Deployed struct {
	Name   string
	Bundle types.NamespacedName
	// Proxy is the HelmChartProxy that has the Bundle; empty for any other.
	Proxy types.NamespacedName
	// Source is the HelmOp or GitRepo that made the Bundle; empty if neither did.
	Source string
	State  fleetv1.BundleState
	// Message is the message that Fleet reports.
	Message string
	// Ready is how many of the Desired resources are ready.
	Ready, Desired int
	// Troubled are the resources that are not ready, or modified.
	Troubled []Troubled
}

// Troubled is a resource of a Bundle that is not ready, or modified.
type Troubled struct {
	Kind, Namespace, Name, Why string
}

// CutDeployment reduces a BundleDeployment.
func CutDeployment(in *fleetv1.BundleDeployment) *Deployed {
	result := &Deployed{
		Name:    in.Name,
		Bundle:  types.NamespacedName{Namespace: in.Labels[fleetv1.BundleNamespaceLabel], Name: in.Labels[fleetv1.BundleLabel]},
		Proxy:   ProxyOf(in.Labels[fleetv1.BundleLabel], in.Labels),
		Source:  SourceOf(in.Labels),
		State:   stateOf(in),
		Message: shown(messageOf(in)),
		Ready:   in.Status.ResourceCounts.Ready,
		Desired: in.Status.ResourceCounts.DesiredReady,
	}
	for _, resource := range in.Status.NonReadyStatus {
		why := resource.Summary.State
		if len(resource.Summary.Message) > 0 {
			why += ": " + strings.Join(resource.Summary.Message, "; ")
		}
		result.Troubled = append(result.Troubled, Troubled{shown(resource.Kind), shown(resource.Namespace), shown(resource.Name), shown(why)})
	}
	for _, resource := range in.Status.ModifiedStatus {
		why := "modified"
		switch {
		case resource.Create:
			why = "missing"
		case resource.Delete:
			why = "extra"
		}
		if resource.Patch != "" {
			why += ": " + resource.Patch
		}
		result.Troubled = append(result.Troubled, Troubled{shown(resource.Kind), shown(resource.Namespace), shown(resource.Name), shown(why)})
	}
	return result
}

// ProxyOf returns the HelmChartProxy whose Bundle has this name and these labels, which its BundleDeployments have, too;
// empty for any other.
func ProxyOf(bundle string, labels map[string]string) types.NamespacedName {
	if !plan.MayBeOurs(bundle) || labels[plan.ProxyLabel] == "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: labels[plan.ProxyNamespaceLabel], Name: labels[plan.ProxyLabel]}
}

// SourceOf returns the HelmOp, GitRepo or HelmChartProxy that made a Bundle, from the labels of the Bundle or of one of
// its BundleDeployments.
func SourceOf(labels map[string]string) string {
	switch {
	case labels[fleetv1.HelmOpLabel] != "":
		return "HelmOp " + labels[fleetv1.HelmOpLabel]
	case labels[fleetv1.RepoLabel] != "":
		return "GitRepo " + labels[fleetv1.RepoLabel]
	case labels[plan.ProxyLabel] != "":
		return "HelmChartProxy " + labels[plan.ProxyNamespaceLabel] + "/" + labels[plan.ProxyLabel]
	default:
		return ""
	}
}

// stateOfCluster returns the state that Fleet reports, except that Bundles which wait for those in their dependsOn
// have not failed.
func stateOfCluster(in *fleetv1.ClusterStatus) fleetv1.BundleState {
	state := fleetv1.BundleState(in.Display.State)
	failed, _ := failures(&in.Summary)
	switch {
	case state != fleetv1.ErrApplied || in.Summary.ErrApplied == 0 || failed > 0:
		return state
	case in.Summary.NotReady > 0:
		return fleetv1.NotReady
	case in.Summary.Modified > 0:
		return fleetv1.Modified
	default:
		return waitingForDependency
	}
}

// stateOf derives Fleet's state from a BundleDeployment, as Fleet does, except that one which waits for a Bundle in
// its dependsOn has not failed.
func stateOf(in *fleetv1.BundleDeployment) fleetv1.BundleState {
	switch {
	case in.Status.AppliedDeploymentID != in.Spec.DeploymentID:
		for _, condition := range in.Status.Conditions {
			switch {
			case condition.Type != fleetv1.BundleDeploymentConditionDeployed || condition.Status != "False":
			case isDependency(condition.Message):
				return waitingForDependency
			default:
				return fleetv1.ErrApplied
			}
		}
		return fleetv1.WaitApplied
	case !in.Status.Ready:
		return fleetv1.NotReady
	case in.Spec.DeploymentID != in.Spec.StagedDeploymentID:
		return fleetv1.OutOfSync
	case !in.Status.NonModified:
		return fleetv1.Modified
	default:
		return fleetv1.Ready
	}
}

func messageOf(in *fleetv1.BundleDeployment) string {
	messages := map[string]string{}
	for _, condition := range in.Status.Conditions {
		messages[condition.Type] = condition.Message
	}
	if in.Status.AppliedDeploymentID != in.Spec.DeploymentID {
		delete(messages, fleetv1.BundleDeploymentConditionInstalled) // This message is about the previous deployment.
	}
	for _, name := range []string{fleetv1.BundleDeploymentConditionDeployed, fleetv1.BundleDeploymentConditionInstalled, fleetv1.BundleDeploymentConditionMonitored} {
		if messages[name] != "" {
			return messages[name]
		}
	}
	return ""
}
