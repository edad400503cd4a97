package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HelmOptions are passed to Helm when it installs, upgrades and uninstalls.
type HelmOptions struct {
	// disableHooks is refused: Fleet always runs the hooks of a chart.
	// +optional
	DisableHooks bool `json:"disableHooks,omitempty"`
	// wait makes Helm wait until all resources are ready, for up to the timeout.
	// +optional
	Wait bool `json:"wait,omitempty"`
	// waitForJobs makes Helm also wait until all Jobs are complete. It needs wait.
	// +optional
	WaitForJobs bool `json:"waitForJobs,omitempty"`
	// dependencyUpdate has no effect: a chart in a repository contains its dependencies.
	// +optional
	DependencyUpdate bool `json:"dependencyUpdate,omitempty"`
	// timeout is how long Helm waits. It has an effect only with wait. The default is "10m0s".
	// +kubebuilder:default="10m0s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 10m"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// skipCRDs has no effect: Fleet always installs the CRDs of a chart.
	// +optional
	SkipCRDs bool `json:"skipCRDs,omitempty"`
	// options has no effect. In Go, it is SubNotes.
	// +optional
	SubNotes bool `json:"options,omitempty"`
	// disableOpenAPIValidation has no effect: Fleet always validates.
	// +optional
	DisableOpenAPIValidation bool `json:"disableOpenAPIValidation,omitempty"`
	// atomic rolls back a failed upgrade. It sets wait.
	// +optional
	Atomic bool `json:"atomic,omitempty"`
	// install holds options for the first installation.
	// +optional
	Install HelmInstallOptions `json:"install,omitempty"`
	// upgrade holds options for upgrades.
	// +optional
	Upgrade HelmUpgradeOptions `json:"upgrade,omitempty"`
	// uninstall holds options for the uninstallation.
	// +optional
	Uninstall *HelmUninstallOptions `json:"uninstall,omitempty"`
	// enableClientCache has no effect. The default is false.
	// +kubebuilder:default=false
	// +optional
	EnableClientCache bool `json:"enableClientCache,omitempty"`
	// takeOwnership takes over existing objects, whoever created them.
	// +optional
	TakeOwnership bool `json:"takeOwnership,omitempty"`
}

// HelmInstallOptions are options for the first installation.
type HelmInstallOptions struct {
	// createNamespace creates the namespace of the release. False has no effect: Fleet always
	// creates it. The default is true.
	// +kubebuilder:default=true
	// +optional
	CreateNamespace *bool `json:"createNamespace,omitempty"`
	// includeCRDs has no effect: Fleet always installs the CRDs of a chart.
	// +optional
	IncludeCRDs bool `json:"includeCRDs,omitempty"`
}

// HelmUpgradeOptions are options for upgrades.
type HelmUpgradeOptions struct {
	// force replaces resources that cannot be changed in place.
	// +optional
	Force bool `json:"force,omitempty"`
	// resetValues has no effect: Fleet always resets the values.
	// +optional
	ResetValues bool `json:"resetValues,omitempty"`
	// reuseValues has no effect: values are never taken over from the last release.
	// +optional
	ReuseValues bool `json:"reuseValues,omitempty"`
	// resetThenReuseValues has no effect: values are never taken over from the last release.
	// +optional
	ResetThenReuseValues bool `json:"resetThenReuseValues,omitempty"`
	// recreate has no effect.
	// +optional
	Recreate bool `json:"recreate,omitempty"`
	// maxHistory is the number of revisions of the release that Helm keeps. The default is 10.
	// +kubebuilder:default=10
	// +optional
	MaxHistory int `json:"maxHistory,omitempty"`
	// cleanupOnFail has no effect: Fleet keeps the resources that a failed upgrade has created.
	// +optional
	CleanupOnFail bool `json:"cleanupOnFail,omitempty"`
}

// HelmUninstallOptions are options for the uninstallation.
type HelmUninstallOptions struct {
	// keepHistory is refused: Fleet never keeps the history of an uninstalled release.
	// +optional
	KeepHistory bool `json:"keepHistory,omitempty"`
	// description has no effect.
	// +optional
	Description string `json:"description,omitempty"`
}
