package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HelmOptions are passed to Helm when it installs, upgrades and uninstalls.
type HelmOptions struct {
	// DisableHooks would keep hooks from running. It is refused: Fleet always runs them.
	// +optional
	DisableHooks bool `json:"disableHooks,omitempty"`
	// Wait has Helm wait until everything is ready, for as long as Timeout says.
	// +optional
	Wait bool `json:"wait,omitempty"`
	// WaitForJobs has Helm wait until all Jobs are complete, too. It needs Wait.
	// +optional
	WaitForJobs bool `json:"waitForJobs,omitempty"`
	// DependencyUpdate has no effect: a chart in a repository holds its dependencies.
	// +optional
	DependencyUpdate bool `json:"dependencyUpdate,omitempty"`
	// Timeout is how long Helm waits; 10m if not set. It has an effect only with Wait.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// SkipCRDs would keep the CRDs of the chart from being installed. It has no effect: Fleet
	// always installs them.
	// +optional
	SkipCRDs bool `json:"skipCRDs,omitempty"`
	// SubNotes has no effect.
	// +optional
	SubNotes bool `json:"options,omitempty"`
	// DisableOpenAPIValidation has no effect: Fleet always validates.
	// +optional
	DisableOpenAPIValidation bool `json:"disableOpenAPIValidation,omitempty"`
	// Atomic rolls a failed upgrade back. It sets Wait.
	// +optional
	Atomic bool `json:"atomic,omitempty"`
	// Install is for the first installation.
	// +optional
	Install HelmInstallOptions `json:"install,omitempty"`
	// Upgrade is for upgrades.
	// +optional
	Upgrade HelmUpgradeOptions `json:"upgrade,omitempty"`
	// Uninstall is for uninstalling.
	// +optional
	Uninstall *HelmUninstallOptions `json:"uninstall,omitempty"`
	// EnableClientCache has no effect.
	// +kubebuilder:default=false
	// +optional
	EnableClientCache bool `json:"enableClientCache,omitempty"`
	// TakeOwnership takes over objects that exist already, whoever made them.
	// +optional
	TakeOwnership bool `json:"takeOwnership,omitempty"`
}

// HelmInstallOptions are for the first installation.
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

// HelmUpgradeOptions are for upgrades.
type HelmUpgradeOptions struct {
	// Force replaces what cannot be changed in place.
	// +optional
	Force bool `json:"force,omitempty"`
	// ResetValues has no effect: values are never taken over from the last release.
	// +optional
	ResetValues bool `json:"resetValues,omitempty"`
	// ReuseValues would take over the values of the last release. It has no effect.
	// +optional
	ReuseValues bool `json:"reuseValues,omitempty"`
	// ResetThenReuseValues would take over the values of the last release. It has no effect.
	// +optional
	ResetThenReuseValues bool `json:"resetThenReuseValues,omitempty"`
	// Recreate has no effect.
	// +optional
	Recreate bool `json:"recreate,omitempty"`
	// MaxHistory is how many revisions of the release are kept.
	// +kubebuilder:default=10
	// +optional
	MaxHistory int `json:"maxHistory,omitempty"`
	// CleanupOnFail would delete what a failed upgrade has created. It has no effect.
	// +optional
	CleanupOnFail bool `json:"cleanupOnFail,omitempty"`
}

// HelmUninstallOptions are for uninstalling.
type HelmUninstallOptions struct {
	// KeepHistory would keep the history of an uninstalled release. It is refused.
	// +optional
	KeepHistory bool `json:"keepHistory,omitempty"`
	// Description has no effect.
	// +optional
	Description string `json:"description,omitempty"`
}
