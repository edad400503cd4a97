package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetConfig holds settings of the Fleet installation itself.
type FleetConfig struct {
	// server specifies the address at which Fleet agents reach the management cluster. If it is
	// missing, Fleet's own setting stays unchanged.
	// +optional
	Server *Server `json:"server,omitempty"`

	// featureGates turns experimental features of Fleet on or off.
	// +optional
	FeatureGates *FeatureGates `json:"featureGates,omitempty"`

	// bootstrapLocalCluster lets Fleet manage the management cluster itself, with all rights there.
	// If Muster installs Fleet, the default is false.
	// +optional
	BootstrapLocalCluster *bool `json:"bootstrapLocalCluster,omitempty"`
}

// Server specifies the address at which Fleet agents reach the management cluster: exactly one of
// inferLocal and custom.
//
// +kubebuilder:validation:XValidation:rule="has(self.inferLocal) != (has(self.custom) || has(self.apiServerUrl) || has(self.apiServerCaConfigRef))",message="set exactly one of inferLocal and custom: inferLocal takes the management cluster's own address, custom takes yours; remove the other"
// +kubebuilder:validation:XValidation:rule="!has(self.custom) || !(has(self.apiServerUrl) || has(self.apiServerCaConfigRef))",message="move apiServerUrl and apiServerCaConfigRef into custom"
type Server struct {
	// inferLocal takes the address and CA of the management cluster's own
	// "kubernetes" endpoint.
	// +optional
	InferLocal *bool `json:"inferLocal,omitempty"`

	// custom sets the address and CA.
	// +optional
	Custom *CustomServer `json:"custom,omitempty"`

	// CAAPF's guide shows the fields of CustomServer directly under server. They mean the same as
	// under custom; prefer custom.
	CustomServer `json:",inline"`
}

// CustomServer is the address of the management cluster as Fleet agents see it.
type CustomServer struct {
	// apiServerUrl is an absolute https URL without user, query or fragment.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://') && isURL(self) && url(self).getHostname() != '' && !self.contains('?') && !self.contains('#') && !self.contains('@')",message="must be an absolute https URL with a host and without user, query or fragment, for example https://rancher.example.com:6443"
	APIServerURL *string `json:"apiServerUrl,omitempty"`

	// apiServerCaConfigRef names a ConfigMap or Secret whose key ca.crt holds the
	// CA certificates, in PEM, that agents trust.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind in ['ConfigMap','Secret']",message="kind must be ConfigMap or Secret",fieldPath=".kind"
	APIServerCAConfigRef *corev1.ObjectReference `json:"apiServerCaConfigRef,omitempty"`
}

// FeatureGates turns experimental features of Fleet on or off.
type FeatureGates struct {
	// experimentalOciStorage keeps bundle contents in an OCI registry. The default is true.
	// +optional
	// +kubebuilder:default=true
	ExperimentalOCIStorage *bool `json:"experimentalOciStorage,omitempty"`

	// experimentalHelmOps enables HelmOp resources. The default is true.
	// +optional
	// +kubebuilder:default=true
	ExperimentalHelmOps *bool `json:"experimentalHelmOps,omitempty"`

	// configMap names the ConfigMap with Fleet's values, if Rancher manages Fleet: the feature
	// gates are written there.
	// +optional
	ConfigMap *FeaturesConfigMap `json:"configMap,omitempty"`
}

// FeaturesConfigMap names the ConfigMap to which the feature gates are written.
type FeaturesConfigMap struct {
	// ref is the ConfigMap.
	// +optional
	Ref *corev1.ObjectReference `json:"ref,omitempty"`
}

// FleetInstall specifies which Fleet Muster installs: exactly one of followLatest and version.
//
// +kubebuilder:validation:XValidation:rule="has(self.followLatest) != has(self.version)",message="set exactly one of followLatest and version: followLatest installs the newest release, version the one you name"
type FleetInstall struct {
	// followLatest installs the newest release of Fleet. Versions with a known defect are avoided as long as
	// another one is offered.
	// +optional
	FollowLatest *bool `json:"followLatest,omitempty"`

	// version installs this release of Fleet, for example 0.16.0, or the newest of a
	// range, for example 0.16.x or ">=0.15.0, <0.17.0". The oldest supported is 0.12.0. A range avoids
	// versions with a known defect as followLatest does; a single version is installed as asked, and
	// FleetInstalled then has the reason KnownDefect.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^ *[=!<>~^]{0,2} *v?(0|[1-9][0-9]*|[xX*])([.](0|[1-9][0-9]*|[xX*])){0,2}(-[0-9A-Za-z.-]+)?([+][0-9A-Za-z.-]+)?(( *, *| - | +| *[|][|] *)[=!<>~^]{0,2} *v?(0|[1-9][0-9]*|[xX*])([.](0|[1-9][0-9]*|[xX*])){0,2}(-[0-9A-Za-z.-]+)?([+][0-9A-Za-z.-]+)?)* *$')",message="must be a semantic version, for example 0.16.0, or a range, for example 0.16.x"
	Version *string `json:"version,omitempty"`

	// repository is the Helm repository (https://…) or OCI registry (oci://…) of Fleet's charts. If
	// it is missing, the public repository is used.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://') || self.startsWith('http://') || self.startsWith('oci://')",message="must be a URL that starts with https://, http:// or oci://"
	Repository *string `json:"repository,omitempty"`

	// repositorySecretRef names a Secret with the credentials of the repository: username and
	// password, or token, and in ca.crt its certificate authority, in PEM. The user who sets this
	// field must be allowed to get the Secret.
	// +optional
	RepositorySecretRef *RepositorySecretReference `json:"repositorySecretRef,omitempty"`

	// mode specifies whether Muster installs and upgrades Fleet (Apply), or only reports in the
	// condition FleetInstalled what it would change (Plan). The default is Apply.
	// +optional
	// +kubebuilder:validation:Enum=Apply;Plan
	// +kubebuilder:default=Apply
	Mode InstallMode `json:"mode,omitempty"`
}

// InstallMode specifies whether Muster installs Fleet, or only reports what it would do.
type InstallMode string

const (
	// InstallApply installs and upgrades. It is the default.
	InstallApply InstallMode = "Apply"
	// InstallPlan reports what Muster would do.
	InstallPlan InstallMode = "Plan"
)

// RepositorySecretReference names a Secret with the credentials of a repository.
type RepositorySecretReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// namespace is the namespace of the Secret, by default cattle-fleet-system. In any other
	// namespace the installer needs a Role with the verb get on that Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// FleetAddonConfigStatus is the observed state.
type FleetAddonConfigStatus struct {
	// observedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of Muster. Ready summarizes the others.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// installedVersion is the deployed version of Fleet's chart, whoever deployed it.
	// +optional
	InstalledVersion string `json:"installedVersion,omitempty"`

	// clusters counts CAPI Clusters.
	// +optional
	Clusters *ClusterCounts `json:"clusters,omitempty"`

	// classes counts ClusterClasses that have a ClusterGroup.
	// +optional
	Classes *int32 `json:"classes,omitempty"`

	// bundleMappings are the entries of spec.rancher.bundleMappings that are in force.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=workspace
	// +kubebuilder:validation:MaxItems=64
	BundleMappings []BundleMappingStatus `json:"bundleMappings,omitempty"`
}

// BundleMappingStatus says how many clusters a mapping reaches.
type BundleMappingStatus struct {
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

	// clusters is the number of Fleet Clusters in the workspace. Each of them can receive
	// the Bundles of the namespace.
	// +required
	Clusters int32 `json:"clusters"`
}

// ClusterCounts counts CAPI Clusters by state.
type ClusterCounts struct {
	// selected is the number of Clusters that both selectors match.
	Selected int32 `json:"selected"`
	// imported is the number of Clusters whose Fleet Cluster is up to date. Clusters that are
	// paused, deselected, conflicted or failed are not counted, even if they have a Fleet Cluster.
	Imported int32 `json:"imported"`
	// pending is the number of selected Clusters that wait for their control plane or are paused.
	Pending int32 `json:"pending"`
	// conflicted is the number of Clusters whose Fleet Cluster name belongs to someone else.
	Conflicted int32 `json:"conflicted"`
}
