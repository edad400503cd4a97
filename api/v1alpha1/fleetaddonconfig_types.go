package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetAddonConfigName is the only allowed name of a FleetAddonConfig.
const FleetAddonConfigName = "fleet-addon-config"

// FleetAddonConfig specifies which Cluster API clusters are imported into Rancher Fleet, and how.
// The only one is named "fleet-addon-config". Without it, and for every section or field that it
// leaves out, the documented defaults apply: a missing section never means "off".
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="fleet.addons.cluster.x-k8s.io/schema-revision=3"
// +kubebuilder:resource:path=fleetaddonconfigs,scope=Cluster,shortName=fac,categories=cluster-api
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Imported",type=integer,JSONPath=`.status.clusters.imported`
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.status.installedVersion`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'fleet-addon-config'",reason=FieldValueInvalid,message="metadata.name: the only FleetAddonConfig is named fleet-addon-config; rename this one"
type FleetAddonConfig struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired configuration. All fields are optional.
	// +optional
	// +kubebuilder:default={}
	Spec FleetAddonConfigSpec `json:"spec,omitempty"`
	// status is the observed state.
	// +optional
	Status FleetAddonConfigStatus `json:"status,omitempty"`
}

// FleetAddonConfigList is a list of FleetAddonConfig.
//
// +kubebuilder:object:root=true
type FleetAddonConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FleetAddonConfig `json:"items"`
}

// FleetAddonConfigSpec is the desired configuration.
type FleetAddonConfigSpec struct {
	// cluster specifies which CAPI Clusters are imported into Fleet, under which names, and how
	// their Fleet agents are configured.
	// +optional
	Cluster *ClusterConfig `json:"cluster,omitempty"`

	// clusterClass specifies how ClusterClasses appear in Fleet: each as a
	// ClusterGroup of the same name in the same namespace.
	// +optional
	ClusterClass *ClusterClassConfig `json:"clusterClass,omitempty"`

	// policy specifies what the admission webhooks refuse.
	// +optional
	Policy *PolicyConfig `json:"policy,omitempty"`

	// rancher specifies what happens to the CAPI Clusters that Rancher manages.
	// +optional
	Rancher *RancherConfig `json:"rancher,omitempty"`

	// config holds settings of the Fleet installation itself.
	// +optional
	Config *FleetConfig `json:"config,omitempty"`

	// install makes Muster install Fleet. If it is missing, Fleet must already be installed.
	// +optional
	Install *FleetInstall `json:"install,omitempty"`
}

// ClusterConfig specifies which CAPI Clusters are imported, and how.
type ClusterConfig struct {
	// enabled turns the import of CAPI Clusters on or off. If it is false, no new Cluster is
	// imported, and imported Clusters stay as they are. The default is true.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// applyClassGroup creates a ClusterGroup "<class>.<class namespace>" and a
	// BundleNamespaceMapping if a Cluster uses a ClusterClass of another namespace, so that the
	// bundles in the namespace of the class reach the Cluster. The default is true.
	// +optional
	// +kubebuilder:default=true
	ApplyClassGroup *bool `json:"applyClassGroup,omitempty"`

	// patchResource keeps the Fleet objects of Clusters in the desired state. If it is false, they
	// are created, and recreated when they are deleted, but never changed. The default is true.
	// +optional
	// +kubebuilder:default=true
	PatchResource *bool `json:"patchResource,omitempty"`

	// setOwnerReferences makes the CAPI Cluster own its Fleet Cluster, so that the Fleet Cluster is
	// deleted with its Cluster. If it is false, the Fleet Cluster stays when its CAPI Cluster is
	// deleted. The default is true.
	// +optional
	// +kubebuilder:default=true
	SetOwnerReferences *bool `json:"setOwnerReferences,omitempty"`

	// hostNetwork runs the Fleet agent in the host's network, so that it can deploy the cluster's
	// CNI. The default is true.
	// +optional
	// +kubebuilder:default=true
	HostNetwork *bool `json:"hostNetwork,omitempty"`

	// agentNamespace is the namespace of the Fleet agent on the imported cluster. The default is
	// fleet-addon-agent.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')",message="must be a namespace name: lower-case letters, digits and '-', starting and ending with a letter or digit, for example fleet-addon-agent"
	// +kubebuilder:default=fleet-addon-agent
	AgentNamespace *string `json:"agentNamespace,omitempty"`

	// agentTolerations are the tolerations of the Fleet agent. If they are missing, the agent
	// tolerates the NoSchedule taints of a node that is still being set up:
	// node.kubernetes.io/not-ready, node.cluster.x-k8s.io/uninitialized and
	// node.cloudprovider.kubernetes.io/uninitialized=true. An empty list means none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	AgentTolerations *[]corev1.Toleration `json:"agentTolerations,omitempty"`

	// agentEnvVars are extra environment variables of the Fleet agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	AgentEnvVars []corev1.EnvVar `json:"agentEnvVars,omitempty"`

	// agentPullSecrets name the Secrets, in the agent's namespace on each imported cluster, with
	// which the image of the Fleet agent is pulled. They replace those in Fleet's own configuration,
	// and Fleet then copies no Secret into the cluster: create them there yourself. An empty list
	// means none. The field needs Fleet 0.16 or newer.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	AgentPullSecrets *[]PullSecret `json:"agentPullSecrets,omitempty"`

	// naming forms the name of a Fleet Cluster: prefix, name of the CAPI Cluster, suffix. A change
	// affects only Clusters that are imported afterwards.
	// +optional
	Naming *NamingStrategy `json:"naming,omitempty"`

	// selector limits the import to CAPI Clusters with matching labels. If it is
	// missing or {}, all match. Both selector and namespaceSelector must match.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In','NotIn','Exists','DoesNotExist'])",message="operator must be one of In, NotIn, Exists, DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['In','NotIn']) || (has(e.values) && size(e.values) > 0))",message="an expression with operator In or NotIn needs at least one entry in values; to match any value use Exists or DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['Exists','DoesNotExist']) || !has(e.values) || size(e.values) == 0)",message="an expression with operator Exists or DoesNotExist takes no values; remove them or use In or NotIn",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaceSelector limits the import to CAPI Clusters in Namespaces with
	// matching labels. If it is missing or {}, all match. Both selector and
	// namespaceSelector must match.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In','NotIn','Exists','DoesNotExist'])",message="operator must be one of In, NotIn, Exists, DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['In','NotIn']) || (has(e.values) && size(e.values) > 0))",message="an expression with operator In or NotIn needs at least one entry in values; to match any value use Exists or DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['Exists','DoesNotExist']) || !has(e.values) || size(e.values) == 0)",message="an expression with operator Exists or DoesNotExist takes no values; remove them or use In or NotIn",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// onDeselect specifies what happens to an imported Cluster that the selectors no longer match.
	// Keep leaves its Fleet Cluster as it is. Delete deletes the Fleet Cluster, and with it
	// everything that Fleet has deployed to the cluster. The default is Keep.
	// +optional
	// +kubebuilder:default=Keep
	OnDeselect DeselectPolicy `json:"onDeselect,omitempty"`

	// agentInitiated makes the Fleet agents of the selected clusters register themselves, for
	// clusters that the management cluster cannot reach, for example behind NAT. The component
	// "registrar" writes the manifest that you apply to such a cluster into the Secret
	// "<cluster>-fleet-agent". If it is false, Fleet installs the agents. The annotation
	// fleet.addons.cluster.x-k8s.io/registration (agent or manager) on a Cluster takes precedence.
	// The default is false.
	// +optional
	// +kubebuilder:default=false
	AgentInitiated *bool `json:"agentInitiated,omitempty"`

	// agentInitiatedSelector limits agentInitiated to CAPI Clusters with matching
	// labels. If it is missing or {}, all match.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In','NotIn','Exists','DoesNotExist'])",message="operator must be one of In, NotIn, Exists, DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['In','NotIn']) || (has(e.values) && size(e.values) > 0))",message="an expression with operator In or NotIn needs at least one entry in values; to match any value use Exists or DoesNotExist",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, !(e.operator in ['Exists','DoesNotExist']) || !has(e.values) || size(e.values) == 0)",message="an expression with operator Exists or DoesNotExist takes no values; remove them or use In or NotIn",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	AgentInitiatedSelector *metav1.LabelSelector `json:"agentInitiatedSelector,omitempty"`

	// templateValues specifies which parts of a Cluster and the objects that it refers to are
	// available to bundles in Fleet, as .ClusterValues.
	// +optional
	TemplateValues *TemplateValuesConfig `json:"templateValues,omitempty"`

	// copy specifies which labels and annotations Fleet Clusters and ClusterGroups get from CAPI
	// Clusters and ClusterClasses.
	// +optional
	Copy *CopyConfig `json:"copy,omitempty"`
}

// DeselectPolicy specifies what happens to an imported Cluster that no selector matches any more.
//
// +kubebuilder:validation:Enum=Keep;Delete
type DeselectPolicy string

const (
	// DeselectKeep leaves the Fleet Cluster as it is.
	DeselectKeep DeselectPolicy = "Keep"
	// DeselectDelete removes the stamp and the Fleet Cluster.
	DeselectDelete DeselectPolicy = "Delete"
)

// PullSecret names a Secret with the credentials of an image registry.
type PullSecret struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be the name of a Secret: lower-case letters, digits, '-' and '.', starting and ending with a letter or digit"
	Name string `json:"name"`
}

// NamingStrategy forms the names of Fleet Clusters.
type NamingStrategy struct {
	// prefix is put before the name of the CAPI Cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=62
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9][-a-z0-9]*)?$')",message="must start with a lower-case letter or digit and hold only lower-case letters, digits and '-', because a Fleet Cluster's name is a DNS label; for example capi-"
	Prefix string `json:"prefix,omitempty"`
	// suffix is put after the name of the CAPI Cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=62
	// +kubebuilder:validation:XValidation:rule="self.matches('^([-a-z0-9]*[a-z0-9])?$')",message="must end with a lower-case letter or digit and hold only lower-case letters, digits and '-', because a Fleet Cluster's name is a DNS label; for example -fleet"
	Suffix string `json:"suffix,omitempty"`
}

// TemplateValuesConfig specifies the contents of the template values.
type TemplateValuesConfig struct {
	// exclude lists JSON pointers (RFC 6901) to values in {Cluster, ControlPlane,
	// InfrastructureCluster, Variables} that never reach Fleet. The segment "*" matches every list
	// item or key. /Variables/x also removes variable x and its overrides from Cluster. If the list
	// is missing, the parts of known control planes that carry secrets are left out: inline files,
	// users, commands and bootstrap tokens (docs/reference.md lists them). An explicit list, even
	// an empty one, replaces that default. Parts of some other kinds always stay out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(/([^~/]|~0|~1)*)+$')",message="must be a JSON pointer that starts with '/', for example /ControlPlane/spec/kubeadmConfigSpec/files"
	Exclude *[]string `json:"exclude,omitempty"`
}

// CopyConfig specifies which labels and annotations are copied to Fleet.
type CopyConfig struct {
	// exclude lists labels and annotations of CAPI Clusters and ClusterClasses that are not copied
	// to Fleet Clusters and ClusterGroups: keys, such as example.com/cost-center, and prefixes, such
	// as example.com/*. Muster's and Fleet's own keys cannot be listed. What was copied earlier
	// goes from Fleet, too. A label that goes deselects: Fleet uninstalls the bundles that
	// were targeted by it. If a bundle's template reads a label or annotation that goes, the
	// template fails, and Fleet deploys the bundle to no cluster at all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$|^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/[*]$')",message="must be the key of a label or annotation, for example example.com/cost-center, or a prefix followed by /*, for example example.com/*"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('^((fleet|management|objectset[.]rio)[.]cattle[.]io/|([^/]+[.])?addons[.]cluster[.]x-k8s[.]io(/|$)|app[.]kubernetes[.]io/managed-by$|before-upgrade[.]hook[.]cluster[.]cluster[.]x-k8s[.]io/muster$)')",message="is one of Muster's, Fleet's or Rancher's own keys, which Muster sets or never copies; remove it"
	Exclude []string `json:"exclude,omitempty"`
}

// ClusterClassConfig specifies how ClusterClasses appear in Fleet.
type ClusterClassConfig struct {
	// enabled turns the ClusterGroups of ClusterClasses on or off. If it is false, no new group is
	// created, and existing groups stay as they are. The default is true.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// patchResource keeps the ClusterGroups in the desired state. If it is false, they are created,
	// and recreated when they are deleted, but never changed. The default is true.
	// +optional
	// +kubebuilder:default=true
	PatchResource *bool `json:"patchResource,omitempty"`

	// setOwnerReferences makes the ClusterClass own its ClusterGroup, so that the ClusterGroup is
	// deleted with its ClusterClass. The default is true.
	// +optional
	// +kubebuilder:default=true
	SetOwnerReferences *bool `json:"setOwnerReferences,omitempty"`
}

// RancherConfig specifies what happens to the CAPI Clusters that Rancher manages.
type RancherConfig struct {
	// mode specifies how such a Cluster gets into Fleet. Auto leaves the Fleet Cluster and the
	// agent to Rancher, and writes class labels, copied labels and annotations, and template values
	// to Rancher's Fleet Cluster. Import creates another Fleet Cluster, so that two agents run in
	// the cluster. "Off" does the same without reading Rancher's objects (write it in quotes: YAML
	// reads a bare Off as false). The annotation fleet.addons.cluster.x-k8s.io/rancher on a Cluster
	// takes precedence. The default is Auto.
	// +optional
	// +kubebuilder:default=Auto
	Mode RancherMode `json:"mode,omitempty"`

	// bundleMappings opens namespaces, as a rule those of ClusterClasses, to workspaces of
	// Rancher: every Fleet Cluster of such a workspace can receive the Bundles of the
	// namespace, whomever it belongs to. Without an entry here, nothing is opened. The
	// status says how many clusters an entry reaches.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=workspace
	// +kubebuilder:validation:MaxItems=64
	BundleMappings []BundleMapping `json:"bundleMappings,omitempty"`
}

// BundleMapping opens a namespace to a workspace of Rancher.
// +kubebuilder:validation:XValidation:rule="self.namespace != self.workspace",message="a workspace needs no mapping for its own Bundles"
type BundleMapping struct {
	// namespace holds the Bundles.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// workspace is the namespace of the Fleet Clusters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Workspace string `json:"workspace"`
}

// RancherMode specifies what happens to the CAPI Clusters that Rancher manages.
//
// +kubebuilder:validation:Enum=Auto;Import;Off
type RancherMode string

// The values of RancherMode.
const (
	RancherAuto   RancherMode = "Auto"
	RancherImport RancherMode = "Import"
	RancherOff    RancherMode = "Off"
)

// PolicyConfig specifies what the admission webhooks refuse.
type PolicyConfig struct {
	// crossNamespaceClass specifies what happens when a user sets a ClusterClass of another
	// namespace in a Cluster without the right to get that class (or to use it, see
	// crossNamespaceClassVerb). Such a Cluster receives the bundles of the class's namespace.
	// Enforce refuses the Cluster, Warn allows it with a warning, "Off" does not check the right
	// (write it in quotes: YAML reads a bare Off as false). The default is Enforce.
	// +optional
	// +kubebuilder:default=Enforce
	CrossNamespaceClass CrossNamespaceClassPolicy `json:"crossNamespaceClass,omitempty"`

	// crossNamespaceClassVerb is the verb on clusterclasses.cluster.x-k8s.io that the author of
	// such a Cluster needs: get, or, if all users may read the classes but only some may use them,
	// use. The default is get.
	// +optional
	// +kubebuilder:default=get
	CrossNamespaceClassVerb CrossNamespaceClassVerb `json:"crossNamespaceClassVerb,omitempty"`
}

// CrossNamespaceClassPolicy specifies how strictly the use of a class in another namespace is checked.
//
// +kubebuilder:validation:Enum=Enforce;Warn;Off
type CrossNamespaceClassPolicy string

// The values of CrossNamespaceClassPolicy.
const (
	CrossNamespaceClassEnforce CrossNamespaceClassPolicy = "Enforce"
	CrossNamespaceClassWarn    CrossNamespaceClassPolicy = "Warn"
	CrossNamespaceClassOff     CrossNamespaceClassPolicy = "Off"
)

// CrossNamespaceClassVerb is the verb that the author of a Cluster needs on its class, if the class is
// in another namespace.
//
// +kubebuilder:validation:Enum=get;use
type CrossNamespaceClassVerb string

// The values of CrossNamespaceClassVerb.
const (
	CrossNamespaceClassVerbGet CrossNamespaceClassVerb = "get"
	CrossNamespaceClassVerbUse CrossNamespaceClassVerb = "use"
)
