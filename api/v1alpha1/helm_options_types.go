package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HelmOptions are passed to Helm when it installs, upgrades and uninstalls.
type HelmOptions struct {
	// DisableHooks is refused: Fleet always runs the hooks of a chart.
	// +optional
	DisableHooks bool `json:"disableHooks,omitempty"`
	// Wait makes Helm wait until all resources are ready, for up to Timeout.
	// +optional
	Wait bool `json:"wait,omitempty"`
	// WaitForJobs makes Helm also wait until all Jobs are complete. It needs Wait.
	// +optional
	WaitForJobs bool `json:"waitForJobs,omitempty"`
	// DependencyUpdate has no effect: a chart in a repository contains its dependencies.
	// +optional
	DependencyUpdate bool `json:"dependencyUpdate,omitempty"`
	// Timeout is how long Helm waits; 10m if not set. It has an effect only with Wait.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// SkipCRDs has no effect: Fleet always installs the CRDs of a chart.
	// +optional
	SkipCRDs bool `json:"skipCRDs,omitempty"`
	// SubNotes has no effect.
	// +optional
	SubNotes bool `json:"options,omitempty"`
	// DisableOpenAPIValidation has no effect: Fleet always validates.
	// +optional
	DisableOpenAPIValidation bool `json:"disableOpenAPIValidation,omitempty"`
	// Atomic rolls back a failed upgrade. It sets Wait.
	// +optional
	Atomic bool `json:"atomic,omitempty"`
	// Install holds options for the first installation.
	// +optional
	Install HelmInstallOptions `json:"install,omitempty"`
	// Upgrade holds options for upgrades.
	// +optional
	Upgrade HelmUpgradeOptions `json:"upgrade,omitempty"`
	// Uninstall holds options for the uninstallation.
	// +optional
	Uninstall *HelmUninstallOptions `json:"uninstall,omitempty"`
	// EnableClientCache has no effect.
	// +kubebuilder:default=false
	// +optional
	EnableClientCache bool `json:"enableClientCache,omitempty"`
	// TakeOwnership takes over existing objects, whoever created them.
	// +optional
	TakeOwnership bool `json:"takeOwnership,omitempty"`
}

// HelmInstallOptions are options for the first installation.
type HelmInstallOptions struct {
	// CreateNamespace creates the namespace of the release. False has no effect: Fleet always
	// creates it.
	// +kubebuilder:default=true
	// +optional
	CreateNamespace *bool `json:"createNamespace,omitempty"`
	// IncludeCRDs has no effect: Fleet always installs the CRDs of a chart.
	// +optional
	IncludeCRDs bool `json:"includeCRDs,omitempty"`
}

// HelmUpgradeOptions are options for upgrades.
type HelmUpgradeOptions struct {
	// Force replaces resources that cannot be changed in place.
	// +optional
	Force bool `json:"force,omitempty"`
	// ResetValues has no effect: Fleet always resets the values.
	// +optional
	ResetValues bool `json:"resetValues,omitempty"`
	// ReuseValues has no effect: values are never taken over from the last release.
	// +optional
	ReuseValues bool `json:"reuseValues,omitempty"`
	// ResetThenReuseValues has no effect: values are never taken over from the last release.
	// +optional
	ResetThenReuseValues bool `json:"resetThenReuseValues,omitempty"`
	// Recreate has no effect.
	// +optional
	Recreate bool `json:"recreate,omitempty"`
	// MaxHistory is the number of revisions of the release that Helm keeps.
	// +kubebuilder:default=10
	// +optional
	MaxHistory int `json:"maxHistory,omitempty"`
	// CleanupOnFail has no effect: Fleet keeps the resources that a failed upgrade has created.
	// +optional
	CleanupOnFail bool `json:"cleanupOnFail,omitempty"`
}

// HelmUninstallOptions are options for the uninstallation.
type HelmUninstallOptions struct {
	// KeepHistory is refused: Fleet never keeps the history of an uninstalled release.
	// +optional
	KeepHistory bool `json:"keepHistory,omitempty"`
	// Description has no effect.
	// +optional
	Description string `json:"description,omitempty"`
}
