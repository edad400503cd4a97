package installer

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
)

// reasonsToBeFalse are those that each condition can have while it is False: all of them are
// exposed, so that an alert on one that never was finds it at 0, and not gone.
var reasonsToBeFalse = map[string][]string{
	InstalledCondition: {
		ReasonInstalling, ReasonPlanned, ReasonInstallFailed, ReasonUpgradeFailed, ReasonDowngradeRefused,
		ReasonForeignRelease, ReasonForeignFleet, ReasonManagedByRancher, ReasonHelmBusy,
		ReasonVersionInvalid, ReasonVersionUnknown, ReasonChartMissing,
		ReasonRepositoryOut, ReasonRepositoryTrust, ReasonRepositoryRefuse, ReasonRepositoryBroken, ReasonSecretUnusable,
		ReasonFailing,
	},
	ConfiguredCondition: {
		ReasonConfiguring, ReasonPlanned, ReasonFleetMissing, ReasonHelmBusy, ReasonBelongsToRelease, ReasonConfigureByHand,
		ReasonServerUnknown, ReasonCAUnusable, ReasonReverted, ReasonSettingsBroken, ReasonGatesUnwritable,
		ReasonReleaseFailed, ReasonFailing,
	},
}

// tally exposes what the conditions say.
func tally(status *addonsv1.FleetAddonConfigStatus) {
	metrics.FleetVersion(status.InstalledVersion)
	for kind, reasons := range reasonsToBeFalse {
		var said metav1.Condition
		if found := meta.FindStatusCondition(status.Conditions, kind); found != nil {
			said = *found
		}
		metrics.FleetCondition(kind, string(said.Status), said.Reason, reasons)
	}
}
