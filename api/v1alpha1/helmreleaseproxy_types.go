package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HelmReleaseProxy shows the state of the release of a HelmChartProxy on one Cluster. Muster writes
// it for people to read, and reverts changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="fleet.addons.cluster.x-k8s.io/schema-revision=3"
// +kubebuilder:resource:path=helmreleaseproxies,scope=Namespaced,shortName=hrp,categories=cluster-api
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`,description="Cluster to which this HelmReleaseProxy belongs"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=='Ready')].message`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=muster"
// +kubebuilder:metadata:labels="visualizer.cluster.x-k8s.io="
type HelmReleaseProxy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec specifies the release and its Cluster.
	// +optional
	Spec HelmReleaseProxySpec `json:"spec,omitempty"`
	// status is the observed state.
	// +optional
	Status HelmReleaseProxyStatus `json:"status,omitempty"`
}

// HelmReleaseProxyList is a list of HelmReleaseProxies.
//
// +kubebuilder:object:root=true
type HelmReleaseProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HelmReleaseProxy `json:"items"`
}

// HelmReleaseProxySpec specifies the release and its Cluster.
type HelmReleaseProxySpec struct {
	// clusterRef refers to the Cluster.
	// +kubebuilder:validation:XValidation:rule="[self.?namespace.orValue(''), self.?name.orValue('')] == [oldSelf.?namespace.orValue(''), oldSelf.?name.orValue('')]",message="field is immutable"
	ClusterRef corev1.ObjectReference `json:"clusterRef"`
	// chartName is the name of the chart in the repository.
	ChartName string `json:"chartName"`
	// repoURL is the URL of the repository.
	RepoURL string `json:"repoURL"`
	// releaseName is the name of the release.
	// +optional
	ReleaseName string `json:"releaseName,omitempty"`
	// namespace is the namespace of the release.
	// +optional
	ReleaseNamespace string `json:"namespace"`
	// version is the version of the chart.
	// +optional
	Version string `json:"version,omitempty"`
	// values is always empty, because values may hold secrets.
	// +optional
	Values string `json:"values,omitempty"`
	// reconcileStrategy is the reconcileStrategy of the HelmChartProxy.
	// +kubebuilder:validation:Enum="";InstallOnce;Continuous;
	// +optional
	ReconcileStrategy string `json:"reconcileStrategy,omitempty"`
	// options are the options of the HelmChartProxy.
	// +optional
	Options HelmOptions `json:"options,omitempty"`
	// credentials are the credentials of the HelmChartProxy.
	// +optional
	Credentials *Credentials `json:"credentials,omitempty"`
	// tlsConfig is the tlsConfig of the HelmChartProxy.
	// +optional
	TLSConfig *TLSConfig `json:"tlsConfig,omitempty"`
}

// HelmReleaseProxyStatus is the observed state.
type HelmReleaseProxyStatus struct {
	// conditions are the conditions of the release.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// status is Helm's name for the status of the release, for example deployed.
	// +optional
	Status string `json:"status,omitempty"`
	// revision is the revision of the release.
	// +optional
	Revision int `json:"revision,omitempty"`
	// observedGeneration is the generation that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

const (
	// HelmChartProxyLabel on a HelmReleaseProxy names its HelmChartProxy.
	HelmChartProxyLabel = "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"

	// ReleaseNameGeneratedAnnotation on a HelmReleaseProxy means that the name of the release was
	// generated.
	ReleaseNameGeneratedAnnotation = "helmreleaseproxy.addons.cluster.x-k8s.io/is-release-name-generated"
	// ReleaseInstalledAnnotation on a HelmReleaseProxy means that the release has been ready.
	ReleaseInstalledAnnotation = "helmreleaseproxy.addons.cluster.x-k8s.io/release-successfully-installed"

	// HelmReleaseReadyCondition reports whether the release is ready.
	HelmReleaseReadyCondition = "HelmReleaseReady"
	// ClusterAvailableCondition reports whether Fleet can deploy to the Cluster.
	ClusterAvailableCondition = "ClusterAvailable"

	// PreparingToHelmInstallReason means that the release is not installed yet.
	PreparingToHelmInstallReason = "PreparingToHelmInstall"
	// HelmReleasePendingReason means that the release is being installed or upgraded.
	HelmReleasePendingReason = "HelmReleasePending"
	// HelmInstallOrUpgradeFailedReason means that Helm has failed.
	HelmInstallOrUpgradeFailedReason = "HelmInstallOrUpgradeFailed"
	// ReleaseTakenReason means that another HelmChartProxy has the release on the Cluster, or comes first.
	ReleaseTakenReason = "ReleaseTaken"
	// PolicyRefusesReason means that a Policy of Fleet does not allow the ServiceAccount of the HelmChartProxy, or
	// requires one.
	PolicyRefusesReason = "PolicyRefuses"
	// GetClusterFailedReason means that the Cluster is not, or not yet, in Fleet.
	GetClusterFailedReason = "GetClusterFailed"
)
