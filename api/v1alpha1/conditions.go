package v1alpha1

// The conditions of HelmChartProxies and HelmReleaseProxies are declared with these kinds.

// Conditions of Muster's on CAPI Clusters.
const (
	// FleetImportedCondition says whether the Cluster is in Fleet, and if not, why. A Cluster that was never claimed has it
	// only while it is paused. spec.availabilityGates may name it.
	FleetImportedCondition = "FleetImported"
	// FleetBundlesReadyCondition mirrors the condition Ready of the Cluster's Fleet Cluster. spec.availabilityGates may name
	// it.
	FleetBundlesReadyCondition = "FleetBundlesReady"
	// FleetUpgradeHeldCondition says whether the upgrade of a Cluster that asks for holds is held, and why not. Its message
	// begins with the versions that it is about.
	FleetUpgradeHeldCondition = "FleetUpgradeHeld"
	// FleetAgentManifestReadyCondition says whether there is a manifest for the agent of a Cluster that registers itself. The
	// registrar writes it.
	FleetAgentManifestReadyCondition = "FleetAgentManifestReady"
)

// Reasons of several conditions.
const (
	// WaitingForFleetReason means that Fleet has not made or reported something yet: of FleetImported and FleetBundlesReady,
	// the namespace of the Fleet Cluster, or its bundles; of FleetAgentManifestReady, an object of the registration; of
	// FleetUpgradeHeld, that the held Cluster was moved here, and is not in Fleet here yet.
	WaitingForFleetReason = "WaitingForFleet"
	// FailedReason is one of FleetImported and FleetAgentManifestReady: an error lasts, and the message has it.
	FailedReason = "Failed"
	// ReadyReason is the reason of conditions about readiness that are True.
	ReadyReason = "Ready"
	// AvailableReason is the reason of conditions about availability that are True.
	AvailableReason = "Available"
)

// Reasons of FleetImportedCondition.
const (
	// ImportedReason means that the Fleet Cluster is up to date.
	ImportedReason = "Imported"
	// AttachedReason means that the Fleet Cluster is Rancher's, and has the labels and template values.
	AttachedReason = "Attached"
	// DoubleImportReason means that the Cluster has a Fleet Cluster of Muster's and one of Rancher's.
	DoubleImportReason = "DoubleImport"
	// PausedReason means that the Cluster is paused, so that nothing changes.
	PausedReason = "Paused"
	// DeselectedReason means that the selectors do not match the Cluster any more, and what Fleet has of it stays.
	DeselectedReason = "Deselected"
	// NameConflictReason means that an object in Fleet has a name or a namespace that the Cluster needs, and is someone
	// else's.
	NameConflictReason = "NameConflict"
	// TemplateValuesUnresolvedReason means that an object that the Cluster refers to cannot be read. If the condition is True,
	// the last good values stay.
	TemplateValuesUnresolvedReason = "TemplateValuesUnresolved"
	// TooMuchMetadataReason means that the Cluster or its ClusterClass has too many labels and annotations to copy. If the
	// condition is True, the last ones stay.
	TooMuchMetadataReason = "TooMuchMetadata"
	// WaitingForControlPlaneReason means that the control plane is not initialized yet.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
	// WaitingForAgentReason means that the agent has not registered itself yet.
	WaitingForAgentReason = "WaitingForAgent"
	// RegistrarMissingReason means that the agent is to register itself, but the registrar does not run.
	RegistrarMissingReason = "RegistrarMissing"
	// WaitingForRancherReason means that Rancher manages the Cluster, or will, and has no Fleet Cluster for it yet.
	WaitingForRancherReason = "WaitingForRancher"
	// FleetClusterDeletingReason means that an earlier Fleet Cluster, or its namespace, is still being deleted.
	FleetClusterDeletingReason = "FleetClusterDeleting"
)

// FleetImportedReasons are all reasons of FleetImportedCondition.
var FleetImportedReasons = []string{
	ImportedReason, PausedReason, NameConflictReason, TemplateValuesUnresolvedReason, TooMuchMetadataReason, FailedReason,
	DeselectedReason, WaitingForControlPlaneReason, FleetClusterDeletingReason, WaitingForAgentReason, RegistrarMissingReason,
	WaitingForRancherReason, AttachedReason, DoubleImportReason, WaitingForFleetReason,
}

// Reasons of FleetBundlesReadyCondition.
const (
	// BundlesReadyReason means that all bundles for the Cluster are ready.
	BundlesReadyReason = "BundlesReady"
	// BundlesNotReadyReason means that Fleet reports a bundle that is not ready.
	BundlesNotReadyReason = "BundlesNotReady"
	// AgentNotSeenReason means that the agent of this Fleet Cluster has not reported yet.
	AgentNotSeenReason = "AgentNotSeen"
	// AgentStaleReason means that the agent has been silent for too long.
	AgentStaleReason = "AgentStale"
)

// Reasons of FleetAgentManifestReadyCondition.
const (
	// ManifestReadyReason means that the Secret has the manifest.
	ManifestReadyReason = "ManifestReady"
	// FleetNotConfiguredReason means that Fleet's settings have no usable apiServerURL.
	FleetNotConfiguredReason = "FleetNotConfigured"
	// AlreadyRegisteredReason means that an agent has checked in with a credential that the registrar did not issue. The agent
	// keeps that credential.
	AlreadyRegisteredReason = "AlreadyRegistered"
	// RegistrationNotGrantedReason means that Fleet has not granted the registration for too long.
	RegistrationNotGrantedReason = "RegistrationNotGranted"
	// RegistrationConflictReason means that someone else has, or has changed, what the registration needs.
	RegistrationConflictReason = "RegistrationConflict"
	// SecretConflictReason means that a Secret of the manifest's name is someone else's, or an earlier Cluster's.
	SecretConflictReason = "SecretConflict"
	// CredentialLostReason means that neither the registrar nor Fleet has the credential any more.
	CredentialLostReason = "CredentialLost" //nolint:gosec // It is a reason.
)

// FleetAgentManifestReadyReasons are all reasons of FleetAgentManifestReadyCondition.
var FleetAgentManifestReadyReasons = []string{
	ManifestReadyReason, WaitingForFleetReason, RegistrationNotGrantedReason, FleetNotConfiguredReason, AlreadyRegisteredReason,
	RegistrationConflictReason, SecretConflictReason, CredentialLostReason, FailedReason,
}

// Reasons of FleetUpgradeHeldCondition. The condition is True with WaitingForAddOnsReason and WaitingForFleetReason. All but
// these two and NoUpgradeReason are the end of a hold, or say that there was none.
const (
	// WaitingForAddOnsReason means that Cluster API waits with the upgrade for the add-ons.
	WaitingForAddOnsReason = "WaitingForAddOns"
	// NoUpgradeReason means that the hold takes effect with the next version.
	NoUpgradeReason = "NoUpgrade"
	// AddOnsReadyReason means that the add-ons for the new version are ready.
	AddOnsReadyReason = "AddOnsReady"
	// AddOnsUnchangedReason means that no add-on is changed for the new version.
	AddOnsUnchangedReason = "AddOnsUnchanged"
	// BoundPassedReason means that the upgrade was held for as long as the Cluster allows.
	BoundPassedReason = "BoundPassed"
	// RevertedReason means that the version was changed back.
	RevertedReason = "Reverted"
	// OptedOutReason means that the Cluster no longer asks for holds. It is an event's only.
	OptedOutReason = "OptedOut"
	// NotInFleetReason means that the Cluster is no longer in Fleet. It is an event's only.
	NotInFleetReason = "NotInFleet"
	// InvalidHoldReason means that Muster did not write the annotation, and has removed it.
	InvalidHoldReason = "InvalidHold"
	// ReleasedReason means that the hold is gone, for an unknown reason.
	ReleasedReason = "Released"
	// NotHeldReason means that Cluster API upgrades, or may do so, without a hold.
	NotHeldReason = "NotHeld"
)

// Conditions of the FleetAddonConfig. ReadyCondition sums up the others, except HelmAvailableCondition.
const (
	// ConfigValidCondition says whether the settings can be used.
	ConfigValidCondition = "ConfigValid"
	// APIsAvailableCondition says whether the CRDs of Cluster API and Fleet are served.
	APIsAvailableCondition = "APIsAvailable"
	// ClustersImportedCondition says whether a Cluster is kept out of Fleet by a conflict or a failure.
	ClustersImportedCondition = "ClustersImported"
	// InstallerAvailableCondition says whether the installer runs. It exists only if spec.install or spec.config asks for the
	// installer's work.
	InstallerAvailableCondition = "InstallerAvailable"
	// HelmAvailableCondition says whether a program carries out HelmChartProxies. It exists only if their CRD is Muster's.
	// Clusters do not wait for that program, so Ready does not sum it up.
	HelmAvailableCondition = "HelmAvailable"
	// FleetInstalledCondition says whether Fleet is installed as spec.install specifies. The installer writes it.
	FleetInstalledCondition = "FleetInstalled"
	// FleetConfiguredCondition says whether Fleet is configured as spec.config specifies. The installer writes it.
	FleetConfiguredCondition = "FleetConfigured"
)

// Reasons of the syncer's conditions on the FleetAddonConfig. Ready has the reason of the first condition that is False.
const (
	// ValidReason means that the settings are in force.
	ValidReason = "Valid"
	// InvalidReason means that the settings cannot be used, or that one has no effect.
	InvalidReason = "Invalid"
	// WaitingReason means that kinds of Cluster API or Fleet are not served.
	WaitingReason = "Waiting"
	// NoneStuckReason means that no Cluster is in conflict or has failed.
	NoneStuckReason = "NoneStuck"
	// ClustersStuckReason means that some Clusters are in conflict or have failed.
	ClustersStuckReason = "ClustersStuck"
	// InstallerMissingReason means that the component installer does not run.
	InstallerMissingReason = "InstallerMissing"
	// WaitingForInstallerReason is one of Ready: the installer has not acted on this generation of the settings yet.
	WaitingForInstallerReason = "WaitingForInstaller"
	// HelmMissingReason means that the component helm does not run.
	HelmMissingReason = "HelmMissing"
)

// Reasons of both FleetInstalledCondition and FleetConfiguredCondition.
const (
	// FailingReason means that an error lasts, so the installer makes no progress.
	FailingReason = "Failing"
	// PlannedReason means that the installer only plans. The message has the plan.
	PlannedReason = "Planned"
	// HelmBusyReason means that another Helm process works on the release.
	HelmBusyReason = "HelmBusy"
)

// Reasons of FleetInstalledCondition.
const (
	// InstalledReason means that Fleet is installed as specified.
	InstalledReason = "Installed"
	// KnownDefectReason means that Fleet is installed as specified, and that this version has a known defect.
	KnownDefectReason = "KnownDefect"
	// InstallingReason means that Fleet is being installed.
	InstallingReason = "Installing"
	// UpgradingReason means that Fleet runs, and is being replaced by another version.
	UpgradingReason = "Upgrading"
	// InstallFailedReason means that Helm could not install Fleet.
	InstallFailedReason = "InstallFailed"
	// UpgradeFailedReason means that Helm could not upgrade Fleet. The old version keeps running.
	UpgradeFailedReason = "UpgradeFailed"
	// DowngradeRefusedReason means that a newer Fleet is installed, and stays.
	DowngradeRefusedReason = "DowngradeRefused"
	// ForeignReleaseReason means that the release of Fleet is someone else's.
	ForeignReleaseReason = "ForeignRelease"
	// ForeignFleetReason means that someone installed Fleet without Helm.
	ForeignFleetReason = "ForeignFleet"
	// ManagedByRancherReason means that Fleet is Rancher's.
	ManagedByRancherReason = "ManagedByRancher"
	// VersionInvalidReason means that spec.install.version is no version or range.
	VersionInvalidReason = "VersionInvalid"
	// VersionUnknownReason means that the repository has no such version.
	VersionUnknownReason = "VersionUnknown"
	// ChartMissingReason means that the repository lacks one of the charts.
	ChartMissingReason = "ChartMissing"
	// RepositoryUnreachableReason means that the repository does not answer.
	RepositoryUnreachableReason = "RepositoryUnreachable"
	// RepositoryNotTrustedReason means that the certificate of the repository is not trusted.
	RepositoryNotTrustedReason = "RepositoryNotTrusted"
	// RepositoryRefusedReason means that the repository requires other credentials.
	RepositoryRefusedReason = "RepositoryRefused"
	// RepositoryInvalidReason means that there is no repository at the URL, or that it is broken.
	RepositoryInvalidReason = "RepositoryInvalid"
	// SecretUnusableReason means that the Secret with the credentials cannot be used.
	SecretUnusableReason = "SecretUnusable"
)

// Reasons of FleetConfiguredCondition.
const (
	// ConfiguredReason means that the settings are in effect.
	ConfiguredReason = "Configured"
	// ConfiguredOutsideReleaseReason means that the settings are in Fleet's ConfigMap, but not in the values of its release.
	ConfiguredOutsideReleaseReason = "ConfiguredOutsideRelease"
	// ConfiguringReason means that the settings are not in effect yet.
	ConfiguringReason = "Configuring"
	// FleetMissingReason means that there is no Fleet to configure.
	FleetMissingReason = "FleetMissing"
	// BelongsToReleaseReason means that the setting belongs to a release that someone else manages.
	BelongsToReleaseReason = "BelongsToRelease"
	// ConfigureInRancherReason means that the setting belongs to Rancher.
	ConfigureInRancherReason = "ConfigureInRancher"
	// ServerUnknownReason means that the source of the API server's URL is missing or unusable.
	ServerUnknownReason = "ServerUnknown"
	// CAUnusableReason means that the source of the certificate authority is missing or unusable.
	CAUnusableReason = "CAUnusable"
	// SettingsRevertedReason means that another writer keeps reverting the settings.
	SettingsRevertedReason = "SettingsReverted"
	// SettingsBrokenReason means that Fleet's ConfigMap cannot be read, and is left as it is.
	SettingsBrokenReason = "SettingsBroken"
	// FeatureGatesUnwritableReason means that the ConfigMap with Fleet's feature gates cannot be changed.
	FeatureGatesUnwritableReason = "FeatureGatesUnwritable"
	// ReleaseFailedReason means that the release could not be changed.
	ReleaseFailedReason = "ReleaseFailed"
)
