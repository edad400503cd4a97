package plan

import (
	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
)

// PolicyRefuses says that Fleet's Policies in the namespace of a Bundle refuse the ServiceAccount of a HelmChartProxy, and what
// to do.
func PolicyRefuses(namespace string, refusal *fleetpolicy.Refusal) Trouble {
	return Trouble{addonsv1.PolicyRefusesReason, refusal.Why(namespace) + "; " + refusal.Do("spec.serviceAccount of the HelmChartProxy") + "; until then, nothing changes on the Cluster"}
}

// IsPolicyRefusing reports whether a HelmReleaseProxy says that a Policy refuses its Bundle.
func IsPolicyRefusing(release *addonsv1.HelmReleaseProxy) bool {
	return find(release, addonsv1.ClusterAvailableCondition).Reason == addonsv1.PolicyRefusesReason
}

// HoldsBack reports whether a HelmReleaseProxy says that its release is not to be deployed now, although nothing in it is wrong.
func HoldsBack(release *addonsv1.HelmReleaseProxy) bool {
	return IsTaken(release) || IsPolicyRefusing(release)
}
