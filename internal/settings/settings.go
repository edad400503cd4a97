// Package settings computes the effective settings from a FleetAddonConfig, which may be complete, partial or
// missing. It owns every default: a missing section or field means its default, never "off" (docs/reference/configuration.md).
// Except for Reader, it is pure and needs no cluster.
package settings

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
)

// DefaultAgentNamespace is where the Fleet agent runs on an imported cluster.
const DefaultAgentNamespace = "fleet-addon-agent"

// Settings are the effective settings.
type Settings struct {
	// ConfigName is the name of the FleetAddonConfig that claims Clusters.
	ConfigName string
	Cluster    Cluster
	Class      Class
	// Mappings are the keys of the BundleNamespaceMappings into workspaces of Rancher that the
	// administrator asks for. They matter to no Cluster.
	Mappings []types.NamespacedName
}

// Cluster holds the settings for CAPI Clusters.
type Cluster struct {
	Enabled, ApplyClassGroup, PatchResource, SetOwnerReferences, HostNetwork bool

	AgentNamespace   string
	AgentTolerations []corev1.Toleration
	AgentEnvVars     []corev1.EnvVar
	// AgentPullSecrets are nil if Fleet's own configuration decides.
	AgentPullSecrets  *[]corev1.LocalObjectReference
	Prefix, Suffix    string
	Selector          labels.Selector
	NamespaceSelector labels.Selector
	OnDeselect        addonsv1.DeselectPolicy
	// Rancher specifies what happens to the Clusters that Rancher manages.
	Rancher addonsv1.RancherMode
	// AgentInitiated means that the agents of the Clusters that AgentInitiatedSelector
	// matches register themselves.
	AgentInitiated         bool
	AgentInitiatedSelector labels.Selector
	// Unconfigured means that there is no FleetAddonConfig.
	Unconfigured bool
	// Exclude are JSON pointers into the template values.
	Exclude []string
	// NotCopied are the labels and annotations of Clusters and ClusterClasses that are not copied.
	NotCopied Keys
}

// Keys are keys of labels and annotations, and prefixes of keys, which end in "/".
type Keys map[string]bool

// Has reports whether a key, or its prefix, is among them.
func (k Keys) Has(key string) bool { return k[key] || k[key[:strings.Index(key, "/")+1]] }

// keysOf parses a list of keys, and of prefixes as in "example.com/*".
func keysOf(list []string) (keys Keys) {
	if len(list) > 0 {
		keys = Keys{}
	}
	for _, entry := range list {
		keys[strings.TrimSuffix(entry, "*")] = true
	}
	return keys
}

// Class holds the settings for ClusterClasses.
type Class struct {
	Enabled, PatchResource, SetOwnerReferences bool
}

// From returns the settings of a FleetAddonConfig. Nil means that there is no FleetAddonConfig, and gives the
// defaults. The error names the field of each selector that cannot be parsed; the settings are then unusable.
func From(config *addonsv1.FleetAddonConfig) (Settings, error) {
	var spec addonsv1.FleetAddonConfigSpec
	if config != nil {
		spec = config.Spec
	}
	cluster := ptr.Deref(spec.Cluster, addonsv1.ClusterConfig{})
	class := ptr.Deref(spec.ClusterClass, addonsv1.ClusterClassConfig{})
	naming := ptr.Deref(cluster.Naming, addonsv1.NamingStrategy{})
	values := ptr.Deref(cluster.TemplateValues, addonsv1.TemplateValuesConfig{})
	copies := ptr.Deref(cluster.Copy, addonsv1.CopyConfig{})

	selector, err := selectorOrEverything("spec.cluster.selector", cluster.Selector)
	namespaceSelector, nsErr := selectorOrEverything("spec.cluster.namespaceSelector", cluster.NamespaceSelector)
	agentSelector, agentErr := selectorOrEverything("spec.cluster.agentInitiatedSelector", cluster.AgentInitiatedSelector)
	if err := errors.Join(err, nsErr, agentErr); err != nil {
		return Settings{}, err
	}

	return Settings{
		ConfigName: addonsv1.FleetAddonConfigName,
		Cluster: Cluster{
			Enabled:                ptr.Deref(cluster.Enabled, true),
			ApplyClassGroup:        ptr.Deref(cluster.ApplyClassGroup, true),
			PatchResource:          ptr.Deref(cluster.PatchResource, true),
			SetOwnerReferences:     ptr.Deref(cluster.SetOwnerReferences, true),
			HostNetwork:            ptr.Deref(cluster.HostNetwork, true),
			AgentNamespace:         orDefault(ptr.Deref(cluster.AgentNamespace, ""), DefaultAgentNamespace),
			AgentTolerations:       tolerations(cluster.AgentTolerations),
			AgentEnvVars:           cluster.AgentEnvVars,
			AgentPullSecrets:       pullSecrets(cluster.AgentPullSecrets),
			Prefix:                 naming.Prefix,
			Suffix:                 naming.Suffix,
			Selector:               selector,
			NamespaceSelector:      namespaceSelector,
			OnDeselect:             orDefault(cluster.OnDeselect, addonsv1.DeselectKeep),
			Rancher:                orDefault(ptr.Deref(spec.Rancher, addonsv1.RancherConfig{}).Mode, addonsv1.RancherAuto),
			AgentInitiated:         ptr.Deref(cluster.AgentInitiated, false),
			AgentInitiatedSelector: agentSelector,
			Unconfigured:           config == nil,
			Exclude:                ptr.Deref(values.Exclude, DefaultExclude()),
			NotCopied:              keysOf(copies.Exclude),
		},
		Class: Class{
			Enabled:            ptr.Deref(class.Enabled, true),
			PatchResource:      ptr.Deref(class.PatchResource, true),
			SetOwnerReferences: ptr.Deref(class.SetOwnerReferences, true),
		},
		Mappings: MappingsOf(config),
	}, nil
}

// MappingsOf returns the keys of the BundleNamespaceMappings that a FleetAddonConfig asks for: a
// mapping is in the namespace of the Bundles, and has the name of the workspace.
func MappingsOf(config *addonsv1.FleetAddonConfig) (keys []types.NamespacedName) {
	if config == nil || config.Spec.Rancher == nil {
		return nil
	}
	for _, mapping := range config.Spec.Rancher.BundleMappings {
		keys = append(keys, types.NamespacedName{Namespace: mapping.Namespace, Name: mapping.Workspace})
	}
	return keys
}

// ClassPolicy returns how strictly, and for which verb, the webhook checks the use of a class in another namespace.
// It is not part of Settings because it is valid even if the rest of the FleetAddonConfig cannot be used.
func ClassPolicy(config *addonsv1.FleetAddonConfig) (addonsv1.CrossNamespaceClassPolicy, addonsv1.CrossNamespaceClassVerb) {
	var policy addonsv1.PolicyConfig
	if config != nil {
		policy = ptr.Deref(config.Spec.Policy, policy)
	}
	return orDefault(policy.CrossNamespaceClass, addonsv1.CrossNamespaceClassEnforce),
		orDefault(policy.CrossNamespaceClassVerb, addonsv1.CrossNamespaceClassVerbGet)
}

// AsksForInstall reports whether a FleetAddonConfig asks the installer to install Fleet.
func AsksForInstall(config *addonsv1.FleetAddonConfig) bool {
	if config == nil {
		return false
	}
	install := ptr.Deref(config.Spec.Install, addonsv1.FleetInstall{})
	return install.Version != nil || ptr.Deref(install.FollowLatest, false)
}

// AsksForFleetSettings reports whether a FleetAddonConfig asks the installer for settings of Fleet itself.
func AsksForFleetSettings(config *addonsv1.FleetAddonConfig) bool {
	if config == nil {
		return false
	}
	fleet := ptr.Deref(config.Spec.Config, addonsv1.FleetConfig{})
	return AsksForServer(fleet.Server) || fleet.FeatureGates != nil || fleet.BootstrapLocalCluster != nil
}

// AsksForServer reports whether the settings of Fleet set an address for agents.
func AsksForServer(server *addonsv1.Server) bool {
	if server == nil {
		return false
	}
	if server.InferLocal != nil {
		return *server.InferLocal
	}
	custom := ptr.Deref(server.Custom, server.CustomServer)
	return custom.APIServerURL != nil || custom.APIServerCAConfigRef != nil
}

// Suspended returns the settings for a FleetAddonConfig whose selectors cannot be parsed: disabled, so that
// everything stays as it is, and otherwise as in the FleetAddonConfig. For one that is gone, nothing else of them may
// be used.
func Suspended(config *addonsv1.FleetAddonConfig) Settings {
	rest := config.DeepCopy()
	if rest != nil && rest.Spec.Cluster != nil {
		rest.Spec.Cluster.Selector, rest.Spec.Cluster.NamespaceSelector, rest.Spec.Cluster.AgentInitiatedSelector = nil, nil, nil
	}
	suspended, err := From(rest)
	if err != nil { // From fails on selectors only, and there are none.
		panic(err)
	}
	suspended.Cluster.Enabled = false
	if config == nil {
		suspended.Cluster.Rancher = addonsv1.RancherOff // The roles for Rancher's objects may be missing.
	}
	return suspended
}

// Default returns the effective settings without a FleetAddonConfig.
func Default() Settings {
	defaults, err := From(nil)
	if err != nil { // From fails on selectors only, and there are none.
		panic(err)
	}
	return defaults
}

// tolerations returns the given tolerations, or CAAPF's default: the agent may start on nodes that are not set up
// yet. The order is CAAPF's, so that adoption does not change a Fleet Cluster.
func tolerations(asked *[]corev1.Toleration) []corev1.Toleration {
	if asked != nil {
		return *asked
	}
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: clusterv1.NodeUninitializedTaint.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: corev1.TolerationOpEqual, Value: "true", Effect: corev1.TaintEffectNoSchedule},
	}
}

func pullSecrets(asked *[]addonsv1.PullSecret) *[]corev1.LocalObjectReference {
	if asked == nil {
		return nil
	}
	secrets := []corev1.LocalObjectReference{}
	for _, its := range *asked {
		secrets = append(secrets, corev1.LocalObjectReference{Name: its.Name})
	}
	return &secrets
}

// selectorOrEverything parses a label selector; a missing one matches everything.
// (To apimachinery nil means nothing and {} everything.)
func selectorOrEverything(path string, selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	parsed, err := bounds.AsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return parsed, nil
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
