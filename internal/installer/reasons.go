package installer

// The conditions that the installer owns on the FleetAddonConfig.
const (
	// InstalledCondition says whether Fleet is there as spec.install asks.
	InstalledCondition = "FleetInstalled"
	// ConfiguredCondition says whether it is set up as spec.config asks.
	ConfiguredCondition = "FleetConfigured"
)

// ReasonFailing is one of both conditions: an error stays, and nothing can be told or done.
const ReasonFailing = "Failing"

// Reasons of InstalledCondition.
const (
	ReasonInstalled        = "Installed"
	ReasonInstalling       = "Installing"
	ReasonUpgrading        = "Upgrading"
	ReasonPlanned          = "Planned"
	ReasonInstallFailed    = "InstallFailed"
	ReasonUpgradeFailed    = "UpgradeFailed"
	ReasonDowngradeRefused = "DowngradeRefused"
	ReasonForeignRelease   = "ForeignRelease"
	ReasonForeignFleet     = "ForeignFleet"
	ReasonManagedByRancher = "ManagedByRancher"
	ReasonHelmBusy         = "HelmBusy"
	ReasonVersionInvalid   = "VersionInvalid"
	ReasonVersionUnknown   = "VersionUnknown"
	ReasonChartMissing     = "ChartMissing"
	ReasonRepositoryOut    = "RepositoryUnreachable"
	ReasonRepositoryTrust  = "RepositoryNotTrusted"
	ReasonRepositoryRefuse = "RepositoryRefused"
	ReasonRepositoryBroken = "RepositoryInvalid"
	ReasonSecretUnusable   = "SecretUnusable"
)

// Reasons of ConfiguredCondition.
const (
	ReasonConfigured       = "Configured"
	ReasonConfiguredForNow = "ConfiguredOutsideRelease"
	ReasonConfiguring      = "Configuring"
	ReasonFleetMissing     = "FleetMissing"
	ReasonBelongsToRelease = "BelongsToRelease"
	ReasonServerUnknown    = "ServerUnknown"
	ReasonCAUnusable       = "CAUnusable"
	ReasonReverted         = "SettingsReverted"
	ReasonSettingsBroken   = "SettingsBroken"
	ReasonGatesUnwritable  = "FeatureGatesUnwritable"
	ReasonConfigureByHand  = "ConfigureInRancher"
	ReasonReleaseFailed    = "ReleaseFailed"
)
