package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// HelmChartProxy installs a Helm chart on every Cluster that it selects, and keeps the release up
// to date. It is the API of cluster-api-addon-provider-helm, implemented with Fleet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="fleet.addons.cluster.x-k8s.io/schema-revision=3"
// +kubebuilder:resource:path=helmchartproxies,scope=Namespaced,shortName=hcp,categories=cluster-api
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=='Ready')].message`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.display.version`,description="Exact version of the chart that the spec asks for"
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.display.clusters`
// +kubebuilder:printcolumn:name="Rollout",type=string,JSONPath=`.status.conditions[?(@.type=='RolloutCompleted')].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=muster"
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move-hierarchy=true"
// +kubebuilder:metadata:labels="visualizer.cluster.x-k8s.io="
type HelmChartProxy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec names the chart, its values, and the Clusters to install it on.
	// +optional
	Spec HelmChartProxySpec `json:"spec,omitempty"`
	// status is the observed state.
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
	// clusterSelector selects the Clusters on which the chart is installed, by their labels; {}
	// selects all. When a Cluster is no longer selected, the release is uninstalled there.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	ClusterSelector metav1.LabelSelector `json:"clusterSelector"`

	// namespaceSelector selects the namespaces of the Clusters, by the labels of the namespaces. If
	// it is not set, only Clusters of the HelmChartProxy's own namespace are selected; if it is
	// set, that namespace must match, too. The user who sets it must be allowed to create
	// HelmChartProxies in all namespaces.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.map(e, has(e.values) ? size(e.values) : 0).sum() <= 1024",message="must have at most 1024 values in all; select by a label that the objects share",fieldPath=".matchExpressions"
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// chartName is the name of the chart in the repository.
	// +kubebuilder:validation:MaxLength=256
	ChartName string `json:"chartName"`

	// repoURL is the URL of the repository, for example https://charts.example.com or
	// oci://registry.example.com/charts. The chart is below this URL.
	// +kubebuilder:validation:MaxLength=2048
	RepoURL string `json:"repoURL"`

	// releaseName is the name of the release on each Cluster. If it is not set, the name is derived
	// from the name of the HelmChartProxy.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ReleaseName string `json:"releaseName,omitempty"`

	// namespace is the namespace of the release on each Cluster. The default is default.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:default=default
	// +optional
	ReleaseNamespace string `json:"namespace,omitempty"`

	// version is the version of the chart, or a range of versions such as 1.2.x. If it is not set,
	// the latest version is installed. With a range, or without a version, Muster looks for a newer
	// version every few minutes.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Version string `json:"version,omitempty"`

	// valuesTemplate holds the values of the chart as YAML. It is a Go template with the functions
	// of sprig (without env, expandenv and getHostByName) over .Cluster, .ControlPlane,
	// .InfraCluster and .Variables, and is rendered for each Cluster.
	// +kubebuilder:validation:MaxLength=131072
	// +optional
	ValuesTemplate string `json:"valuesTemplate,omitempty"`

	// valuesFrom names ConfigMaps and Secrets with values, in the HelmChartProxy's namespace. They
	// are merged in this order; values from the template take precedence. The user who names one
	// must be allowed to get it.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ValuesFrom []ValuesReference `json:"valuesFrom,omitempty"`

	// reconcileStrategy specifies what happens after the first installation. With Continuous, which
	// is the default, the release follows the HelmChartProxy and the selection. With InstallOnce,
	// the release is never changed or uninstalled again. This field cannot be changed.
	// +kubebuilder:validation:Enum="";InstallOnce;Continuous;
	// +optional
	ReconcileStrategy string `json:"reconcileStrategy,omitempty"`

	// options are passed to Helm when it installs, upgrades and uninstalls.
	// +kubebuilder:default={}
	// +optional
	Options HelmOptions `json:"options,omitempty"`

	// credentials name the credentials of the repository.
	// +optional
	Credentials *Credentials `json:"credentials,omitempty"`

	// tlsConfig specifies how the certificate of the repository is checked.
	// +optional
	TLSConfig *TLSConfig `json:"tlsConfig,omitempty"`

	// download specifies who downloads the chart. With Manager, Muster downloads it once, and Fleet
	// passes it on to the Clusters, which then need neither the repository nor its credentials.
	// With Agent, Fleet's agent on each Cluster downloads the chart, with the credentials. The
	// default is Manager, or, if the chart is too large for that and needs no credentials, Agent.
	// +kubebuilder:validation:Enum=Manager;Agent
	// +optional
	Download DownloadMode `json:"download,omitempty"`

	// serviceAccount is the name of a ServiceAccount in the namespace of Fleet's agent on each
	// Cluster; the agent installs, upgrades and uninstalls the release with its rights. If it is
	// not set, the agent uses the ServiceAccount fleet-default of that namespace, or, if there is
	// none, its own rights, which are all. A Policy of Fleet in the namespace of the Clusters may
	// require one, and limit which.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	ServiceAccount string `json:"serviceAccount,omitempty"`

	// correctDrift reverts manual changes on a Cluster. The default is false.
	// +optional
	CorrectDrift *bool `json:"correctDrift,omitempty"`

	// rollout specifies in which order Clusters get a change, and when. If it is not set, all
	// Clusters get a change at once.
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
	// kind is ConfigMap or Secret.
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	Kind string `json:"kind"`
	// name is the name of the ConfigMap or Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key is the key of the values; values.yaml if not set.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
	// optional means that the ConfigMap or Secret, or its key, may be missing.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// RolloutStrategy specifies how a change of the chart, its version, the options or the values is rolled
// out. It does not concern the first installation on a Cluster.
type RolloutStrategy struct {
	// maxUnavailable is how many Clusters of a stage, as a number or a percentage, may be without a
	// working release while a change is rolled out. A percentage is rounded up. If it is not set,
	// all Clusters may.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// stages get a change one after another: a stage gets it once every Cluster of the earlier
	// stages has been ready with it for the soak time. Clusters that no stage selects get it last.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Stages []RolloutStage `json:"stages,omitempty"`
	// offlineAfter is how long Fleet's agent on a Cluster may be silent before a rollout continues
	// without that Cluster. It must be longer than the interval at which agents check in, which is
	// 15 minutes unless Fleet is configured otherwise. The default is 30 minutes.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	OfflineAfter *metav1.Duration `json:"offlineAfter,omitempty"`
}

// RolloutStage is a group of Clusters that get a change at the same time.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) != has(self.percent)",message="must have either clusterSelector or percent"
type RolloutStage struct {
	// name is the name of the stage.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// clusterSelector selects the Clusters of the stage by their labels, from those that are in no
	// earlier stage.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || size(self.matchLabels) <= 64",message="must have at most 64 labels; select by fewer",fieldPath=".matchLabels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || size(self.matchExpressions) <= 64",message="must have at most 64 expressions; select by fewer",fieldPath=".matchExpressions"
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// percent is the size of the stage, as a percentage of all selected Clusters, rounded up. The
	// Clusters are chosen by a hash of their names, from those that are in no earlier stage. Set
	// either this field or clusterSelector.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Percent *int32 `json:"percent,omitempty"`
	// maxUnavailable replaces spec.rollout.maxUnavailable for this stage.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// soak is how long every Cluster of the stage must have been ready with the change before the
	// next stage gets it.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	// +optional
	Soak *metav1.Duration `json:"soak,omitempty"`
	// approval specifies whether the stage begins automatically, which is the default, or waits
	// until a user with the verb promote on the HelmChartProxy approves exactly this change.
	// +kubebuilder:validation:Enum=Automatic;Manual
	// +optional
	Approval RolloutApproval `json:"approval,omitempty"`
	// maxFailing is the number of Clusters of the stage on which the change may fail. If it fails
	// on more, the rollout is halted. The default is 0.
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
	// secret holds the credentials.
	Secret corev1.SecretReference `json:"secret"`
	// key is the key with a Docker configuration; config.json if empty. A Secret without it may
	// have the keys username and password instead.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key"`
}

// TLSConfig specifies how the certificate of a repository is checked.
type TLSConfig struct {
	// caSecret names a Secret with the certificate authority in its key ca.crt.
	// +optional
	CASecretRef *corev1.SecretReference `json:"caSecret,omitempty"`
	// insecureSkipTLSVerify disables certificate verification.
	// +optional
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// HelmChartProxyStatus is the observed state.
type HelmChartProxyStatus struct {
	// conditions are the conditions of the HelmChartProxy.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// matchingClusters are the selected Clusters.
	// +optional
	MatchingClusters []corev1.ObjectReference `json:"matchingClusters"`
	// observedGeneration is the generation that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// rollout is the state of the rollout. It is not set without spec.rollout.
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// display is what `kubectl get` shows.
	// +optional
	Display HelmChartProxyDisplay `json:"display,omitzero"`
}

// HelmChartProxyDisplay summarizes a HelmChartProxy for people. It may be a second old.
type HelmChartProxyDisplay struct {
	// version is the exact version of the chart that the spec asks for. While a rollout is not
	// completed, Clusters may run an earlier one.
	// +optional
	Version string `json:"version,omitempty"`
	// clusters is the number of Clusters where the release is ready, and of those selected: 2/3.
	// +optional
	Clusters string `json:"clusters,omitempty"`
}

// RolloutStatus is the state of a rollout.
type RolloutStatus struct {
	// stage is the stage that the rollout waits for. It is empty if the rollout waits for the
	// Clusters that no stage selects, and when the rollout is complete.
	// +optional
	Stage string `json:"stage,omitempty"`
	// stages are the stages. If there are Clusters that no stage selects, they are the last entry.
	// +optional
	Stages []RolloutStageStatus `json:"stages,omitempty"`
	// approval is the hash of the changes that wait for approval; empty if none do.
	// +optional
	Approval string `json:"approval,omitempty"`
	// retry is the hash of what halts the rollout and does not pass by itself: releases that ceased
	// to be ready, and agents that went silent. It is empty if there is nothing of that kind.
	// +optional
	Retry string `json:"retry,omitempty"`
	// lastCompleted is the state of the HelmChartProxy when its rollout was last completed.
	// +optional
	LastCompleted *CompletedRollout `json:"lastCompleted,omitempty"`
}

// CompletedRollout describes a completed rollout.
type CompletedRollout struct {
	// time is when the rollout was completed.
	Time metav1.Time `json:"time"`
	// version is the exact version of the chart.
	// +optional
	Version string `json:"version,omitempty"`
	// spec is the spec of the HelmChartProxy without its selectors and without rollout. It is empty
	// if it is larger than 256 KiB.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +optional
	Spec runtime.RawExtension `json:"spec,omitempty,omitzero"`
}

// RolloutStageStatus is the state of a stage.
type RolloutStageStatus struct {
	// name is the name of the stage; empty for the Clusters that no stage selects.
	// +optional
	Name string `json:"name,omitempty"`
	// clusters is the number of Clusters in the stage.
	Clusters int `json:"clusters"`
	// updated is the number of Clusters that have been ready with the desired state.
	Updated int `json:"updated"`
	// held is the number of Clusters that wait for their turn.
	// +optional
	Held int `json:"held,omitempty"`
	// failing is the number of Clusters on which the change fails.
	// +optional
	Failing int `json:"failing,omitempty"`
	// offline is the number of Clusters without which the rollout continues, because their agents
	// are silent.
	// +optional
	Offline int `json:"offline,omitempty"`
}

// Keys of the annotations on HelmChartProxies with which people act on a rollout. To set them, a
// user needs the verb promote on the HelmChartProxy.
const (
	// RolloutApprovedAnnotation approves the changes with the hash that is its value: see
	// status.rollout.approval.
	RolloutApprovedAnnotation = "fleet.addons.cluster.x-k8s.io/rollout-approved"
	// RolloutRetryAnnotation continues a halted rollout: what has the hash that is its value no longer
	// counts, see status.rollout.retry.
	RolloutRetryAnnotation = "fleet.addons.cluster.x-k8s.io/rollout-retry"
)

// The condition of rollouts, and its reasons.
const (
	// RolloutCompletedCondition reports whether every Cluster runs what the HelmChartProxy
	// specifies.
	RolloutCompletedCondition = "RolloutCompleted"
	// RolloutCompletedReason means that every Cluster does; the message names those without which
	// the rollout is completed, and why.
	RolloutCompletedReason = "Completed"
	// RolloutProgressingReason means that a stage is getting a change.
	RolloutProgressingReason = "Progressing"
	// RolloutSoakingReason means that a stage has been ready for less than its soak time.
	RolloutSoakingReason = "Soaking"
	// RolloutWaitingForApprovalReason means that a stage waits for approval.
	RolloutWaitingForApprovalReason = "WaitingForApproval"
	// RolloutHaltedReason means that a change has failed, and no more Clusters get it.
	RolloutHaltedReason = "Halted"
)

// Conditions and reasons of HelmChartProxies.
const (
	// HelmReleaseProxySpecsUpToDateCondition means that everything that the HelmChartProxy
	// specifies has been passed to Fleet.
	HelmReleaseProxySpecsUpToDateCondition = "HelmReleaseProxySpecsUpToDate"
	// HelmReleaseProxiesReadyCondition means that the release is ready on all Clusters.
	HelmReleaseProxiesReadyCondition = "HelmReleaseProxiesReady"
	// ReadyCondition means that both of the above are True.
	ReadyCondition = "Ready"

	// NotManagedCondition means that Muster does not reconcile the HelmChartProxy, because the kind
	// belongs to another controller. Otherwise the condition is absent.
	NotManagedCondition = "NotManaged"
	// AnotherControllerReason is its reason, and that of the others while CAAPH reconciles the HelmChartProxy, too.
	AnotherControllerReason = "AnotherController"

	// UpToDateReason means that everything has been passed to Fleet.
	UpToDateReason = "UpToDate"

	// HelmReleaseProxySpecsUpdatingReason means that the objects of the HelmChartProxy are being
	// written.
	HelmReleaseProxySpecsUpdatingReason = "HelmReleaseProxySpecsUpdating"
	// ReadingInputsReason means that reading the chart and the values takes long, so that it is not known whether everything has
	// been passed to Fleet.
	ReadingInputsReason = "ReadingInputs"
	// HelmReleaseProxyCreationFailedReason means that there is no chart, or an object could not be
	// written.
	HelmReleaseProxyCreationFailedReason = "HelmReleaseProxyCreationFailed"
	// HelmReleaseProxyReinstallingReason means that the release is being uninstalled, and will be
	// installed under another name or in another namespace.
	HelmReleaseProxyReinstallingReason = "HelmReleaseProxyReinstalling"
	// ValueParsingFailedReason means that the values of a Cluster could not be rendered.
	ValueParsingFailedReason = "ValueParsingFailed"
	// ClusterSelectionFailedReason means that a selector cannot be used.
	ClusterSelectionFailedReason = "ClusterSelectionFailed"
)
