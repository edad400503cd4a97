package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HelmReleaseProxy shows how the release of a HelmChartProxy fares on one Cluster. It is
// written by Muster for people to read: to change it changes nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=helmreleaseproxies,scope=Namespaced,shortName=hrp,categories=cluster-api
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`,description="Cluster to which this HelmReleaseProxy belongs"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=='Ready')].message`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.revision`
// +kubebuilder:metadata:labels="app.kubernetes.io/managed-by=muster"
// +kubebuilder:metadata:labels="visualizer.cluster.x-k8s.io="
type HelmReleaseProxy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec specifies what is installed where.
	// +optional
	Spec HelmReleaseProxySpec `json:"spec,omitempty"`
	// Status is what was seen last.
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

// HelmReleaseProxySpec specifies what is installed where.
type HelmReleaseProxySpec struct {
	// ClusterRef is the Cluster.
	ClusterRef corev1.ObjectReference `json:"clusterRef"`
	// ChartName is the name of the chart in the repository.
	ChartName string `json:"chartName"`
	// RepoURL is the URL of the repository.
	RepoURL string `json:"repoURL"`
	// ReleaseName is the name of the release.
	// +optional
	ReleaseName string `json:"releaseName,omitempty"`
	// ReleaseNamespace is the namespace of the release.
	// +optional
	ReleaseNamespace string `json:"namespace"`
	// Version is the version of the chart.
	// +optional
	Version string `json:"version,omitempty"`
	// Values is left empty: values may hold secrets.
	// +optional
	Values string `json:"values,omitempty"`
	// ReconcileStrategy is that of the HelmChartProxy.
	// +kubebuilder:validation:Enum="";InstallOnce;Continuous;
	// +optional
	ReconcileStrategy string `json:"reconcileStrategy,omitempty"`
	// Options are those of the HelmChartProxy.
	// +optional
	Options HelmOptions `json:"options,omitempty"`
	// Credentials are those of the HelmChartProxy.
	// +optional
	Credentials *Credentials `json:"credentials,omitempty"`
	// TLSConfig is that of the HelmChartProxy.
	// +optional
	TLSConfig *TLSConfig `json:"tlsConfig,omitempty"`
}

// HelmReleaseProxyStatus is what was seen last.
type HelmReleaseProxyStatus struct {
	// Conditions say how the release fares.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Status is the status of the release as Helm names it, for example deployed.
	// +optional
	Status string `json:"status,omitempty"`
	// Revision is that of the release.
	// +optional
	Revision int `json:"revision,omitempty"`
	// ObservedGeneration is the generation that the rest of the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

const (
	// HelmChartProxyLabel on a HelmReleaseProxy names its HelmChartProxy.
	HelmChartProxyLabel = "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"

	// ReleaseNameGeneratedAnnotation on a HelmReleaseProxy says that the name of the release was
	// made, and not given.
	ReleaseNameGeneratedAnnotation = "helmreleaseproxy.addons.cluster.x-k8s.io/is-release-name-generated"
	// ReleaseInstalledAnnotation on a HelmReleaseProxy says that the release has been ready.
	ReleaseInstalledAnnotation = "helmreleaseproxy.addons.cluster.x-k8s.io/release-successfully-installed"

	// HelmReleaseReadyCondition reports whether the release is ready.
	HelmReleaseReadyCondition = "HelmReleaseReady"
	// ClusterAvailableCondition reports whether the Cluster can be deployed to.
	ClusterAvailableCondition = "ClusterAvailable"

	// PreparingToHelmInstallReason means that the release is not installed yet.
	PreparingToHelmInstallReason = "PreparingToHelmInstall"
	// HelmReleasePendingReason means that the release is being installed or upgraded.
	HelmReleasePendingReason = "HelmReleasePending"
	// HelmInstallOrUpgradeFailedReason means that Helm has failed.
	HelmInstallOrUpgradeFailedReason = "HelmInstallOrUpgradeFailed"
	// GetClusterFailedReason means that the Cluster is not, or not yet, in Fleet.
	GetClusterFailedReason = "GetClusterFailed"
)
