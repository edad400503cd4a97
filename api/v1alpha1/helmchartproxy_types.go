package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// HelmChartProxy installs a Helm chart on every Cluster that it selects, and keeps it as
// described. It is the API of cluster-api-addon-provider-helm, carried out by Fleet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=helmchartproxies,scope=Namespaced,shortName=hcp,categories=cluster-api
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=='Ready')].message`
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=muster"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move-hierarchy=true"
// +kubebuilder:metadata:labels="visualizer.cluster.x-k8s.io="
type HelmChartProxy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec names the chart, its values, and the Clusters to install it on.
	// +optional
	Spec HelmChartProxySpec `json:"spec,omitempty"`
	// Status is what was seen last.
	// +optional
	Status HelmChartProxyStatus `json:"status,omitempty"`
}

// HelmChartProxyList is a list of HelmChartProxies.
//
// +kubebuilder:object:root=true
type HelmChartProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HelmChartProxy `json:"items"`
}

// HelmChartProxySpec names the chart, its values, and the Clusters to install it on.
type HelmChartProxySpec struct {
	// ClusterSelector selects Clusters by their labels; {} selects all. The chart is installed
	// on each of them. When a Cluster is no longer selected, the release is uninstalled there.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`

	// NamespaceSelector selects Clusters of other namespaces, too, by the labels of these. The
	// Clusters of the HelmChartProxy's own namespace are then selected only if it matches, like
	// the others. If it is not set, only they are. Who sets it must be allowed to create
	// HelmChartProxies in all namespaces.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// ChartName is the name of the chart in the repository.
	// +kubebuilder:validation:MaxLength=256
	ChartName string `json:"chartName"`

	// RepoURL is the URL of the repository, for example https://charts.example.com or
	// oci://registry.example.com/charts. The chart lies below it.
	// +kubebuilder:validation:MaxLength=2048
	RepoURL string `json:"repoURL"`

	// ReleaseName is the name of the release on each Cluster. If it is not set, a name is
	// made of that of the HelmChartProxy.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ReleaseName string `json:"releaseName,omitempty"`

	// ReleaseNamespace is the namespace of the release on each Cluster; default if not set.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ReleaseNamespace string `json:"namespace,omitempty"`

	// Version is the version of the chart, or a range of versions such as 1.2.x. If it is not
	// set, the latest version is installed. What a range or no version stands for is looked up
	// again every few minutes.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Version string `json:"version,omitempty"`

	// ValuesTemplate is the values of the chart as YAML. It may hold Go templates with the
	// functions of sprig (without env, expandenv and getHostByName) over .Cluster,
	// .ControlPlane, .InfraCluster and .Variables, and is rendered for each Cluster.
	// +kubebuilder:validation:MaxLength=131072
	// +optional
	ValuesTemplate string `json:"valuesTemplate,omitempty"`

	// ValuesFrom are values in ConfigMaps and Secrets of the HelmChartProxy's namespace. They
	// are merged in this order; those of the template take precedence. Who names one must be
	// allowed to get it.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ValuesFrom []ValuesReference `json:"valuesFrom,omitempty"`

	// ReconcileStrategy specifies what happens after the first installation. With Continuous, which
	// is the default, the release follows the HelmChartProxy and the selection. With InstallOnce
	// it is never changed or uninstalled again. It cannot be changed.
	// +kubebuilder:validation:Enum="";InstallOnce;Continuous;
	// +optional
	ReconcileStrategy string `json:"reconcileStrategy,omitempty"`

	// Options are passed to Helm when it installs, upgrades and uninstalls.
	// +optional
	Options HelmOptions `json:"options,omitempty"`

	// Credentials are those of the repository.
	// +optional
	Credentials *Credentials `json:"credentials,omitempty"`

	// TLSConfig specifies how the certificate of the repository is checked.
	// +optional
	TLSConfig *TLSConfig `json:"tlsConfig,omitempty"`

	// Download specifies who downloads the chart. With Manager it is downloaded once on the
	// management side, and Fleet carries it to the Clusters, which then need neither the
	// repository nor its credentials. With Agent, Fleet's agent on each Cluster downloads it, with
	// the credentials, and Fleet itself asks the repository which versions there are. If it is not
	// set, it is Manager, and without credentials Agent where a chart is too large to be carried.
	// +kubebuilder:validation:Enum=Manager;Agent
	// +optional
	Download DownloadMode `json:"download,omitempty"`

	// CorrectDrift reverts manual changes on a Cluster. The default is false.
	// +optional
	CorrectDrift *bool `json:"correctDrift,omitempty"`

	// Rollout specifies in which order Clusters get a change, and when. If it is not set, all get it
	// at once.
	// +optional
	Rollout *RolloutStrategy `json:"rollout,omitempty"`
}

// DownloadMode specifies who downloads a chart.
type DownloadMode string

// The download modes.
const (
	DownloadManager DownloadMode = "Manager"
	DownloadAgent   DownloadMode = "Agent"
)

// The reconcile strategies. An empty one is Continuous.
const (
	ReconcileStrategyContinuous  = "Continuous"
	ReconcileStrategyInstallOnce = "InstallOnce"
)

// ValuesReference names values in a ConfigMap or Secret.
type ValuesReference struct {
	// Kind is ConfigMap or Secret.
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	Kind string `json:"kind"`
	// Name is its name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key is the key of the values; values.yaml if not set.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
	// Optional means that it may be missing.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// RolloutStrategy specifies how a change of the chart, its version, the options or the values is rolled
// out. It does not concern the first installation on a Cluster.
type RolloutStrategy struct {
	// MaxUnavailable is how many Clusters of a stage, as a number or a percentage, may be without a
	// working release while a change is rolled out. A percentage is rounded up. If it is not set, all.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Stages get a change one after another: a stage gets it once every Cluster of the stages before
	// has it, ready for their soak time. Clusters that no stage selects get it last.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Stages []RolloutStage `json:"stages,omitempty"`
	// OfflineAfter is how long Fleet's agent on a Cluster may be silent, before a rollout goes on
	// without that Cluster. It must be longer than the interval at which agents check in, which is 15
	// minutes unless Fleet is configured otherwise. The default is 30 minutes.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	OfflineAfter *metav1.Duration `json:"offlineAfter,omitempty"`
}

// RolloutStage is a group of Clusters that get a change at the same time.
type RolloutStage struct {
	// Name is the name of the stage.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// ClusterSelector selects the Clusters of the stage by their labels, among the Clusters that no
	// stage before has.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Percent is the size of the stage, as a percentage of all selected Clusters, rounded up. The
	// Clusters are chosen by a hash of their names, among those that no stage before has. Set
	// either this or clusterSelector.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Percent *int32 `json:"percent,omitempty"`
	// MaxUnavailable replaces spec.rollout.maxUnavailable for this stage.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Soak is how long every Cluster of the stage must have been ready with the change, before the
	// next stage gets it.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	Soak *metav1.Duration `json:"soak,omitempty"`
	// Approval specifies whether the stage begins by itself, which is the default, or waits until
	// a user with the verb promote on the HelmChartProxy approves exactly this change.
	// +kubebuilder:validation:Enum=Automatic;Manual
	// +optional
	Approval RolloutApproval `json:"approval,omitempty"`
	// MaxFailing is on how many Clusters of the stage the change may fail. If it fails on more, the
	// rollout is halted. The default is 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxFailing *int32 `json:"maxFailing,omitempty"`
}

// RolloutApproval specifies who begins a stage.
type RolloutApproval string

// The approvals.
const (
	RolloutApprovalAutomatic RolloutApproval = "Automatic"
	RolloutApprovalManual    RolloutApproval = "Manual"
)

// Credentials name the credentials of a repository.
type Credentials struct {
	// Secret holds the credentials.
	Secret corev1.SecretReference `json:"secret"`
	// Key is the key with a Docker configuration; config.json if empty. A Secret without it may
	// have the keys username and password instead.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key"`
}

// TLSConfig specifies how the certificate of a repository is checked.
type TLSConfig struct {
	// CASecretRef names a Secret with the certificate authority in its key ca.crt.
	// +optional
	CASecretRef *corev1.SecretReference `json:"caSecret,omitempty"`
	// InsecureSkipTLSVerify has no certificate checked.
	// +optional
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// HelmChartProxyStatus is what was seen last.
type HelmChartProxyStatus struct {
	// Conditions say how the HelmChartProxy fares.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// MatchingClusters are the Clusters that are selected.
	// +optional
	MatchingClusters []corev1.ObjectReference `json:"matchingClusters"`
	// ObservedGeneration is the generation that the rest of the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Rollout is the state of the rollout; not set without spec.rollout.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
}

// RolloutStatus is the state of a rollout.
type RolloutStatus struct {
	// Stage is the stage that the rollout waits for; empty for the Clusters that no stage selects, and
	// once the rollout is complete.
	// +optional
	Stage string `json:"stage,omitempty"`
	// Stages are the stages, and last the Clusters that no stage selects, if there are any.
	// +optional
	Stages []RolloutStageStatus `json:"stages,omitempty"`
	// Approval is the hash of the changes that a stage waits to have approved; empty if none does.
	// +optional
	Approval string `json:"approval,omitempty"`
	// LastCompleted is what the HelmChartProxy asked for when the rollout was last completed.
	// +optional
	LastCompleted *CompletedRollout `json:"lastCompleted,omitempty"`
}

// CompletedRollout is what a completed rollout has brought to all Clusters.
type CompletedRollout struct {
	// Time is when the rollout was completed.
	Time metav1.Time `json:"time"`
	// Version is the exact version of the chart.
	// +optional
	Version string `json:"version,omitempty"`
	// Spec is the spec of the HelmChartProxy without what selects Clusters and without the rollout. It is
	// empty if it is larger than 256 KiB.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +optional
	Spec runtime.RawExtension `json:"spec,omitempty,omitzero"`
}

// RolloutStageStatus is the state of a stage.
type RolloutStageStatus struct {
	// Name is the name of the stage; empty for the Clusters that no stage selects.
	// +optional
	Name string `json:"name,omitempty"`
	// Clusters is the number of Clusters in the stage.
	Clusters int `json:"clusters"`
	// Updated is how many of them have been ready with the wanted state.
	Updated int `json:"updated"`
	// Held is how many of them wait for their turn.
	// +optional
	Held int `json:"held,omitempty"`
	// Failing is on how many of them the change fails.
	// +optional
	Failing int `json:"failing,omitempty"`
	// Offline is how many of them the rollout goes on without, since their agents are silent.
	// +optional
	Offline int `json:"offline,omitempty"`
}

// Keys of annotations on HelmChartProxies by which people act on a rollout. Setting them needs the verb
// promote on the HelmChartProxy.
const (
	// RolloutApprovedAnnotation approves the changes whose hash is its value: see status.rollout.approval.
	RolloutApprovedAnnotation = "fleet.addons.cluster.x-k8s.io/rollout-approved"
	// RolloutRetryAnnotation lets a halted rollout go on: regressions before this time, in RFC 3339, no
	// longer count.
	RolloutRetryAnnotation = "fleet.addons.cluster.x-k8s.io/rollout-retry"
)

// The condition of rollouts, and its reasons.
const (
	// RolloutCompletedCondition reports whether every Cluster has what the HelmChartProxy asks for.
	RolloutCompletedCondition = "RolloutCompleted"
	// RolloutCompletedReason means that every Cluster has it.
	RolloutCompletedReason = "Completed"
	// RolloutProgressingReason means that a stage is getting a change.
	RolloutProgressingReason = "Progressing"
	// RolloutSoakingReason means that a stage has been ready for less than its soak time.
	RolloutSoakingReason = "Soaking"
	// RolloutWaitingForApprovalReason means that a stage waits for approval.
	RolloutWaitingForApprovalReason = "WaitingForApproval"
	// RolloutHaltedReason means that a change has failed, and that no more Clusters get it.
	RolloutHaltedReason = "Halted"
)

// Conditions and reasons of HelmChartProxies.
const (
	// HelmReleaseProxySpecsUpToDateCondition means that everything is handed to Fleet as the
	// HelmChartProxy has it.
	HelmReleaseProxySpecsUpToDateCondition = "HelmReleaseProxySpecsUpToDate"
	// HelmReleaseProxiesReadyCondition means that the release is ready on all Clusters.
	HelmReleaseProxiesReadyCondition = "HelmReleaseProxiesReady"
	// ReadyCondition says both.
	ReadyCondition = "Ready"

	// NotManagedCondition means that Muster does not carry the HelmChartProxy out, because the kind
	// belongs to another controller. The condition is absent otherwise.
	NotManagedCondition = "NotManaged"

	// HelmReleaseProxySpecsUpdatingReason means that something is being written.
	HelmReleaseProxySpecsUpdatingReason = "HelmReleaseProxySpecsUpdating"
	// HelmReleaseProxyCreationFailedReason means that something could not be written.
	HelmReleaseProxyCreationFailedReason = "HelmReleaseProxyCreationFailed"
	// HelmReleaseProxyReinstallingReason means that the release is uninstalled, to be installed
	// under another name or in another namespace.
	HelmReleaseProxyReinstallingReason = "HelmReleaseProxyReinstalling"
	// ValueParsingFailedReason means that the values of a Cluster could not be rendered.
	ValueParsingFailedReason = "ValueParsingFailed"
	// ClusterSelectionFailedReason means that a selector cannot be used.
	ClusterSelectionFailedReason = "ClusterSelectionFailed"
)
