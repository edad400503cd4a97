package sync

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/references"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// installerConditions are written by the installer; the syncer only reads them.
var installerConditions = []string{addonsv1.FleetInstalledCondition, addonsv1.FleetConfiguredCondition}

// installerInterval is how often the syncer checks whether the installer runs.
const installerInterval = 30 * time.Second

// installerAvailable reports whether the installer acts on spec.install and spec.config.
func installerAvailable(missing bool) metav1.Condition {
	if missing {
		return metav1.Condition{Type: addonsv1.InstallerAvailableCondition, Status: metav1.ConditionFalse, Reason: addonsv1.InstallerMissingReason,
			Message: "spec.install and spec.config are not acted on, as the component installer does not run: kubectl apply -k manifests/installer, or installer.yaml of the release; or remove both sections"}
	}
	return metav1.Condition{Type: addonsv1.InstallerAvailableCondition, Status: metav1.ConditionTrue, Reason: addonsv1.AvailableReason}
}

// ofInstaller returns the conditions that the installer has reported for this generation of the
// FleetAddonConfig. A condition that it has not reported yet is False.
func ofInstaller(config *addonsv1.FleetAddonConfig, available metav1.Condition) []metav1.Condition {
	if available.Status == metav1.ConditionFalse {
		return []metav1.Condition{available} // Its last report may be old.
	}
	var result []metav1.Condition
	for _, entry := range []struct {
		kind, section string
		asks          bool
	}{
		{addonsv1.FleetConfiguredCondition, "spec.config", settings.AsksForFleetSettings(config)},
		{addonsv1.FleetInstalledCondition, "spec.install", settings.AsksForInstall(config)},
	} {
		if !entry.asks {
			continue
		}
		reported := meta.FindStatusCondition(config.Status.Conditions, entry.kind)
		switch {
		case reported == nil || reported.ObservedGeneration != config.Generation:
			result = append(result, metav1.Condition{Type: entry.kind, Status: metav1.ConditionFalse, Reason: addonsv1.WaitingForInstallerReason,
				Message: fmt.Sprintf("the installer has not acted on %s of this generation yet", entry.section)})
		case reported.Status == metav1.ConditionTrue && reported.Reason == addonsv1.UpgradingReason:
			under := *reported
			under.Status = metav1.ConditionFalse // Fleet runs, but not as spec.install asks.
			result = append(result, under)
		default:
			result = append(result, *reported)
		}
	}
	// A failure tells more than a wait.
	slices.SortStableFunc(result, func(a, b metav1.Condition) int { return rank(a) - rank(b) })
	return result
}

func rank(condition metav1.Condition) int {
	if condition.Reason == addonsv1.WaitingForInstallerReason {
		return 1
	}
	return 0
}

// helmAvailable reports whether the component helm carries out HelmChartProxies; nil if their CRD does
// not exist or is not Muster's.
func (r *configReconciler) helmAvailable(ctx context.Context) (*metav1.Condition, error) {
	crd := references.CRD()
	if err := r.Get(ctx, client.ObjectKey{Name: stamp.HelmCRD}, crd); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading CustomResourceDefinition %q: %w", stamp.HelmCRD, err)
	}
	if !stamp.IsHelmCRDOurs(crd, r.helm.lease.Namespace) {
		return nil, nil
	}
	if r.helm.isMissing(ctx) {
		return &metav1.Condition{Type: addonsv1.HelmAvailableCondition, Status: metav1.ConditionFalse, Reason: addonsv1.HelmMissingReason,
			Message: "HelmChartProxies are not carried out, as the component helm does not run: kubectl apply -k manifests/helm, or helm.yaml of the release; or delete their CustomResourceDefinition"}, nil
	}
	return &metav1.Condition{Type: addonsv1.HelmAvailableCondition, Status: metav1.ConditionTrue, Reason: addonsv1.AvailableReason}, nil
}
