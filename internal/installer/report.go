package installer

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/metrics"
)

// report writes the installer's part of the status, and an event for each changed condition.
func (r *reconciler) report(ctx context.Context, config *addonsv1.FleetAddonConfig, version string, p *plan) error {
	if p.step != rest && p.installed == nil && p.configured == nil {
		return nil // This step is short, so only its result is reported.
	}
	have, owned := config.Status.Conditions, []string{addonsv1.FleetConfiguredCondition, addonsv1.FleetInstalledCondition}
	var given []metav1.Condition
	for i, wanted := range []*metav1.Condition{p.configured, p.installed} {
		if old := meta.FindStatusCondition(have, owned[i]); wanted == nil && old != nil && p.step != rest {
			wanted = old.DeepCopy() // It stays until the step has been taken.
			wanted.ObservedGeneration = config.Generation
		}
		if wanted != nil {
			given = append(given, *wanted)
		}
	}
	conditions, changed := kube.Merge(have, owned, config.Generation, r.now(), given...)
	want := addonsv1.FleetAddonConfigStatus{InstalledVersion: version, Conditions: conditions}
	tally(&want)
	if changed == nil && config.Status.InstalledVersion == version {
		return nil
	}
	object := &addonsv1.FleetAddonConfig{ObjectMeta: metav1.ObjectMeta{Name: config.Name, UID: config.UID}}
	if err := kube.ApplyStatus(ctx, r, FieldManager, addonsv1.GroupVersion.WithKind("FleetAddonConfig"), object, &want); err != nil {
		return client.IgnoreNotFound(err)
	}
	config.Status = want
	for _, condition := range want.Conditions {
		if kube.IsTurned(have, condition) {
			r.event(config, &condition)
		}
	}
	return nil
}

// failing reports a lasting error, of a step or of what comes before. FleetInstalled stays if writing settings failed.
func (s *state) failing(at step, why error) *plan {
	const format = "the installer makes no progress and keeps retrying: %v"
	p := &plan{step: at}
	if s.install != nil && at != writeSettings && at != writeGates {
		p.installed = installedIs(false, addonsv1.FailingReason, format, why)
	}
	if s.asksForSettings() {
		p.configured = configuredIs(false, addonsv1.FailingReason, format, why)
	}
	return p
}

// installedVersion is the version of Fleet that is actually running.
func (s *state) installedVersion() string {
	version := s.current()
	if s.fleet == nil {
		version = s.running
	}
	if version == nil {
		return ""
	}
	return version.String()
}

func (r *reconciler) event(config *addonsv1.FleetAddonConfig, condition *metav1.Condition) {
	kind, action := corev1.EventTypeWarning, "Install"
	if condition.Status == metav1.ConditionTrue && condition.Reason != addonsv1.KnownDefectReason || slices.Contains([]string{addonsv1.InstallingReason, addonsv1.ConfiguringReason, addonsv1.PlannedReason}, condition.Reason) {
		kind = corev1.EventTypeNormal
	}
	if condition.Type == addonsv1.FleetConfiguredCondition {
		action = "Configure"
	}
	r.recorder.Eventf(config, nil, kind, condition.Reason, action, "%s", message.Short(condition.Message, message.Note))
}

// reasonsToBeFalse has the reasons with which each condition can be False. All of them are exposed as
// metrics, so that an alert on one that never occurred finds 0 instead of no series.
var reasonsToBeFalse = map[string][]string{
	addonsv1.FleetInstalledCondition: {
		addonsv1.InstallingReason, addonsv1.PlannedReason, addonsv1.InstallFailedReason, addonsv1.UpgradeFailedReason, addonsv1.DowngradeRefusedReason,
		addonsv1.ForeignReleaseReason, addonsv1.ForeignFleetReason, addonsv1.ManagedByRancherReason, addonsv1.HelmBusyReason,
		addonsv1.VersionInvalidReason, addonsv1.VersionUnknownReason, addonsv1.ChartMissingReason,
		addonsv1.RepositoryUnreachableReason, addonsv1.RepositoryNotTrustedReason, addonsv1.RepositoryRefusedReason, addonsv1.RepositoryInvalidReason, addonsv1.SecretUnusableReason,
		addonsv1.FailingReason,
	},
	addonsv1.FleetConfiguredCondition: {
		addonsv1.ConfiguringReason, addonsv1.PlannedReason, addonsv1.FleetMissingReason, addonsv1.HelmBusyReason, addonsv1.BelongsToReleaseReason, addonsv1.ConfigureInRancherReason,
		addonsv1.ServerUnknownReason, addonsv1.CAUnusableReason, addonsv1.SettingsRevertedReason, addonsv1.SettingsBrokenReason, addonsv1.FeatureGatesUnwritableReason,
		addonsv1.ReleaseFailedReason, addonsv1.FailingReason,
	},
}

// tally exposes the conditions and the installed version as metrics.
func tally(status *addonsv1.FleetAddonConfigStatus) {
	metrics.FleetVersion(status.InstalledVersion)
	for kind, reasons := range reasonsToBeFalse {
		reported := ptr.Deref(meta.FindStatusCondition(status.Conditions, kind), metav1.Condition{})
		metrics.FleetCondition(kind, string(reported.Status), reported.Reason, reasons)
	}
}
