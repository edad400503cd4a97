package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/picture"
)

// Release is how the release fares on one Cluster.
type Release struct {
	// Ready, Reason and Message are those of the condition HelmReleaseReady.
	Ready           bool
	Reason, Message string
	// Instead is what is to be said if the message may still be of other values, which were secret.
	Instead string
	// Status is Helm's word for it.
	Status   string
	Revision int
}

const (
	// Deployed is the status of a release that is there.
	Deployed       = "deployed"
	failed         = "failed"
	pendingInstall = "pending-install"
	pendingUpgrade = "pending-upgrade"
)

// ReleaseOf reads what Fleet says of the release on a Cluster; nil stands for nothing.
func ReleaseOf(deployment *fleetv1.BundleDeployment) Release {
	if deployment == nil {
		return Release{Reason: addonsv1.PreparingToHelmInstallReason, Message: "Fleet has not targeted the Cluster yet"}
	}
	spec, status := &deployment.Spec, &deployment.Status
	release := Release{Revision: revisionOf(status.Release)}
	pending := pendingInstall
	if release.Revision > 0 {
		pending = pendingUpgrade
	}
	instead := notQuoted + deployment.Namespace + "/" + deployment.Name
	quote := func(message string) string {
		if hasSecret(spec) {
			return instead
		}
		return message
	}
	broken := func(message string) Release {
		release.Status, release.Reason, release.Message = failed, addonsv1.HelmInstallOrUpgradeFailedReason, quote(message)
		return release
	}
	waiting := func(message string) Release { return release.waiting(pending, message) }
	isCurrent := status.AppliedDeploymentID == spec.DeploymentID && spec.DeploymentID != "" &&
		status.DownstreamResourcesGeneration == spec.DownstreamResourcesGeneration
	if message := falseCondition(status, fleetv1.BundleDeploymentConditionDeployed); message != "" {
		if !isCurrent {
			release.Instead = instead
		}
		return broken(message)
	}
	if !isCurrent {
		return waiting(notDeployed)
	}
	if message := falseCondition(status, fleetv1.BundleDeploymentConditionInstalled); message != "" {
		return broken(message)
	}
	if spec.StagedDeploymentID != spec.DeploymentID {
		return waiting("the rollout has not reached the Cluster yet")
	}
	release.Status = Deployed
	if !status.Ready {
		release.Reason, release.Message = addonsv1.HelmReleasePendingReason, quote(notReady(status))
		return release
	}
	release.Ready, release.Reason = true, ReadyReason
	if !status.NonModified {
		release.Message = "somebody has changed what is deployed"
	}
	return release
}

const (
	// ReadyReason is the reason of what is ready.
	ReadyReason = "Ready"
	notDeployed = "Fleet's agent has not deployed this yet"
)

// notQuoted is how what is said begins where values are from Secrets. What a chart says of them when it
// fails is in Fleet's text, and that is not handed on.
const notQuoted = "the release fails or is not ready, and has values from Secrets; what is wrong is said by BundleDeployment "

// hasSecret reports whether values of a release are from Secrets, or are about to be.
func hasSecret(spec *fleetv1.BundleDeploymentSpec) bool {
	isSecret := func(its fleetv1.DownstreamResource) bool { return strings.EqualFold(its.Kind, SecretKind) }
	return slices.ContainsFunc(spec.Options.DownstreamResources, isSecret) || slices.ContainsFunc(spec.StagedOptions.DownstreamResources, isSecret)
}

// After returns what is to be said of a release after what its HelmReleaseProxy, nil if there is none,
// says: what was notQuoted stays so until the agent has deployed something else.
func (r Release) After(mirror *addonsv1.HelmReleaseProxy) Release {
	if r.Instead == "" || mirror == nil {
		return r
	}
	its := meta.FindStatusCondition(mirror.Status.Conditions, addonsv1.HelmReleaseReadyCondition)
	if its != nil && strings.HasPrefix(its.Message, notQuoted) {
		r.Message = r.Instead
	}
	return r
}

// Installed returns what is known of a release that somebody else has installed once and for all.
func Installed(mirror *addonsv1.HelmReleaseProxy) Release {
	return Release{Ready: true, Reason: ReadyReason, Status: mirror.Status.Status, Revision: mirror.Status.Revision}
}

func (r Release) waiting(status, message string) Release {
	r.Ready, r.Status, r.Reason, r.Message = false, status, addonsv1.HelmReleasePendingReason, message
	return r
}

// Behind returns what becomes of a release whose values have changed, before Fleet notices.
func (r Release) Behind() Release { return r.waiting(pendingUpgrade, notDeployed) }

func falseCondition(status *fleetv1.BundleDeploymentStatus, of string) string {
	for _, condition := range status.Conditions {
		if condition.Type == of && string(condition.Status) == string(metav1.ConditionFalse) {
			if condition.Message == "" {
				return condition.Reason
			}
			return condition.Message
		}
	}
	return ""
}

func notReady(status *fleetv1.BundleDeploymentStatus) string {
	var parts []string
	for _, resource := range status.NonReadyStatus {
		parts = append(parts, resource.String())
	}
	if len(parts) == 0 {
		return "not everything that is deployed is ready"
	}
	return strings.Join(parts, "; ")
}

// revisionOf reads the revision from Fleet's "namespace/name:revision".
func revisionOf(release string) int {
	_, revision, found := strings.Cut(release, ":")
	number, err := strconv.Atoi(revision)
	if !found || err != nil {
		return 0
	}
	return number
}

// Outcome is how one selected Cluster fares.
type Outcome struct {
	Cluster Key
	// Trouble says why its values, or it, cannot be handed to Fleet; empty if they are.
	// Reason is the reason of the condition then.
	Trouble, Reason string
	Release         Release
}

// Conditions returns the conditions of a HelmChartProxy. Trouble is what is wrong with the
// HelmChartProxy itself; empty if nothing is.
func Conditions(trouble, reason string, outcomes []Outcome) []metav1.Condition {
	specs := condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition, true, "UpToDate", "")
	var troubled, unready []string
	unreadyReason := addonsv1.HelmReleasePendingReason
	for _, outcome := range outcomes {
		if outcome.Trouble != "" {
			troubled = append(troubled, outcome.Cluster.String()+": "+outcome.Trouble)
			if specs.Status == metav1.ConditionTrue {
				specs = condition(specs.Type, false, outcome.Reason, "")
			}
		}
		if !outcome.Release.Ready {
			unready = append(unready, outcome.Cluster.String()+": "+describe(outcome.Release))
			if outcome.Release.Reason == addonsv1.HelmInstallOrUpgradeFailedReason {
				unreadyReason = outcome.Release.Reason
			}
		}
	}
	specs.Message = list(troubled)
	if trouble != "" {
		specs = condition(specs.Type, false, reason, trouble)
	}
	ready := condition(addonsv1.HelmReleaseProxiesReadyCondition, len(unready) == 0, ReadyReason, "")
	switch {
	case len(outcomes) == 0:
		ready.Message = "no Cluster is selected"
	case len(unready) > 0:
		ready.Reason, ready.Message = unreadyReason, list(unready)
	}
	return append([]metav1.Condition{summary(specs, ready)}, specs, ready)
}

func summary(all ...metav1.Condition) metav1.Condition {
	for _, part := range all {
		if part.Status != metav1.ConditionTrue {
			return condition(addonsv1.ReadyCondition, false, part.Reason, part.Message)
		}
	}
	return condition(addonsv1.ReadyCondition, true, ReadyReason, "")
}

// MirrorConditions returns the conditions of a HelmReleaseProxy.
func MirrorConditions(outcome Outcome) []metav1.Condition {
	available := condition(addonsv1.ClusterAvailableCondition, true, "Available", "")
	if outcome.Trouble != "" {
		available = condition(available.Type, outcome.Reason != addonsv1.GetClusterFailedReason, outcome.Reason, outcome.Trouble)
	}
	ready := condition(addonsv1.HelmReleaseReadyCondition, outcome.Release.Ready, outcome.Release.Reason, outcome.Release.Message)
	return append([]metav1.Condition{summary(available, ready)}, available, ready)
}

func condition(of string, holds bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: of, Status: status, Reason: reason, Message: message}
}

func describe(release Release) string {
	if release.Message != "" {
		return release.Message
	}
	return release.Reason
}

const (
	// listed is how many Clusters a message names.
	listed = 5
	// longestEntry is how much of what is wrong with one it says.
	longestEntry = 400
)

func list(entries []string) string {
	var parts []string
	for i, entry := range entries {
		if i == listed {
			parts = append(parts, fmt.Sprintf("and %d more", len(entries)-listed))
			break
		}
		parts = append(parts, plain(entry))
	}
	return strings.Join(parts, "; ")
}

// plain returns a text that others may have written, in the length and the characters of a message.
func plain(text string) string {
	text = picture.Text(text)
	if len(text) <= longestEntry {
		return text
	}
	end := longestEntry
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
