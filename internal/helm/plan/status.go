package plan

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
)

// Helm's words for the status of a release.
const (
	Deployed       = "deployed"
	failed         = "failed"
	pendingInstall = "pending-install"
	pendingUpgrade = "pending-upgrade"
)

const (
	// NotDeployed says that Fleet's agent is behind.
	NotDeployed = "Fleet's agent has not deployed this yet"
	// NotCopied says that the agent cannot install the release yet.
	NotCopied = "Fleet's agent has not copied the values to the cluster yet"
	// OldFleet says that Fleet leaves the values out.
	OldFleet = "Fleet ignores the values of each Cluster; it must be 0.16 or newer"
)

// Release is the observed state of a release on one Cluster.
type Release struct {
	// Ready, Reason and Message become the condition HelmReleaseReady.
	Ready           bool
	Reason, Message string
	// Status is Helm's status of the release.
	Status   string
	Revision int
	// Failed says that the agent tried the current target and failed, GivenUp that the agent will not retry by
	// itself, and Refused that Helm stored no release: its checks before the installation failed.
	Failed, GivenUp, Refused bool
	// WithoutValues says that the agent failed because it has not copied the values to the cluster yet. It does so at the
	// same time as it installs, and tries again within seconds (seen on Fleet 0.16): the wanted state is not why.
	WithoutValues bool
	// Since is the time of the first failure, where the agent retries by itself.
	Since time.Time
	// Deployed says that the agent has deployed the current target, and Healthy that its resources are ready, too.
	Deployed, Healthy bool
}

// Wanted is the content and the target that a BundleDeployment must show.
type Wanted struct {
	// Content is the value of ContentLabel on the Bundle.
	Content string
	// Target is the wanted target of the release.
	Target fleetv1.BundleTarget
	// Secretive says that Fleet's messages may contain values from Secrets.
	Secretive bool
}

// Observe returns the state of a release. If the BundleDeployment has other content, values or retries than the
// wanted ones, it does not describe the wanted release: the agent, Fleet or our cache is behind.
func Observe(deployment *fleetv1.BundleDeployment, wanted Wanted) Release {
	if deployment == nil {
		return Release{Reason: addonsv1.PreparingToHelmInstallReason, Message: "Fleet has not targeted the Cluster yet"}
	}
	spec, status := &deployment.Spec, &deployment.Status
	release := Release{Revision: revisionOf(status.Release)}
	pending := pendingInstall
	if release.Revision > 0 {
		pending = pendingUpgrade
	}
	waiting := func(message string) Release {
		release.Status, release.Reason, release.Message = pending, addonsv1.HelmReleasePendingReason, message
		return release
	}
	if spec.StagedDeploymentID != spec.DeploymentID {
		return waiting("the rollout has not reached the Cluster yet")
	}
	switch {
	case isWithoutValues(deployment, wanted):
		return waiting(OldFleet)
	case !isOf(deployment, wanted):
		return waiting(NotDeployed)
	}
	broken := func(message string) Release {
		release.Failed, release.Refused = true, refused.MatchString(message)
		if wanted.Secretive { // If a chart fails with an error about its values, Fleet's message contains it.
			message = "the release failed, and has values from Secrets; see BundleDeployment " + deployment.Namespace + "/" + deployment.Name
		}
		release.Status, release.Reason, release.Message = failed, addonsv1.HelmInstallOrUpgradeFailedReason, message
		return release
	}
	isApplied := spec.DeploymentID != "" && status.AppliedDeploymentID == spec.DeploymentID &&
		status.DownstreamResourcesGeneration == spec.DownstreamResourcesGeneration
	if condition := falseCondition(status, fleetv1.BundleDeploymentConditionDeployed); condition != nil {
		release.Since, _ = time.Parse(time.RFC3339, condition.LastUpdateTime)
		if !lacksValues.MatchString(condition.Message) {
			return broken(condition.Message)
		}
		release.Failed, release.Refused, release.WithoutValues = true, true, true
		return waiting(NotCopied)
	}
	if condition := falseCondition(status, fleetv1.BundleDeploymentConditionInstalled); condition != nil && isApplied {
		release.GivenUp = true
		return broken(condition.Message)
	}
	if !isApplied || release.Revision == 0 {
		return waiting(NotDeployed)
	}
	// Helm has returned. With wait, all resources were ready then; without it, Ready follows Helm, as with
	// cluster-api-addon-provider-helm.
	release.Ready, release.Deployed, release.Status, release.Reason = true, true, Deployed, addonsv1.ReadyReason
	release.Healthy = status.Ready
	if !status.NonModified {
		release.Message = "others have changed deployed objects"
	}
	return release
}

const missingValues = `is missing from (secret|configmap)|(secrets|configmaps) "[^"]*" not found`

var (
	// lacksValues matches the agent's errors about values that are not on the cluster.
	lacksValues = regexp.MustCompile(missingValues)
	// refused matches those, and the errors of Helm's checks before an installation: values against the schema, the syntax of
	// templates, and so on. The execution of a template is not among them, because it may depend on what the cluster has.
	refused = regexp.MustCompile(missingValues + `|values don't meet the specifications of the schema|parse error (at|in) \(|` +
		`unable to continue with install|chart requires kubeVersion|YAML parse error|MalformedYAMLError`)
)

// IsRefused reports whether Helm has refused to begin an installation.
func IsRefused(deployment *fleetv1.BundleDeployment) bool {
	if deployment == nil || deployment.Status.Release != "" {
		return false
	}
	condition := falseCondition(&deployment.Status, fleetv1.BundleDeploymentConditionInstalled)
	return condition != nil && refused.MatchString(condition.Message)
}

// MustBeEmptied reports whether Muster must replace a deleted release with the empty chart before it withdraws
// the release: see Emptied.
func MustBeEmptied(record Record, bundle *fleetv1.Bundle, deployment *fleetv1.BundleDeployment) bool {
	return record.Leaving == "" && !record.Installed && record.Digest != "" &&
		bundle != nil && bundle.Spec.HelmOpOptions == nil && IsRefused(deployment)
}

// isOf reports whether a BundleDeployment shows the wanted content, values and retry.
func isOf(deployment *fleetv1.BundleDeployment, wanted Wanted) bool {
	options := &deployment.Spec.Options
	isLacking := func(its fleetv1.DownstreamResource) bool { return !slices.Contains(options.DownstreamResources, its) }
	return deployment.Labels[ContentLabel] == wanted.Content && options.ForceSyncGeneration == wanted.Target.ForceSyncGeneration &&
		len(options.DownstreamResources) == len(wanted.Target.DownstreamResources) && // Otherwise the agent still reads obsolete values.
		!slices.ContainsFunc(wanted.Target.DownstreamResources, isLacking)
}

// isWithoutValues reports whether Fleet has taken over the content, but none of the values that the target
// names: Fleet takes over both in one write, but ignores values before version 0.16.
func isWithoutValues(deployment *fleetv1.BundleDeployment, wanted Wanted) bool {
	return deployment.Labels[ContentLabel] == wanted.Content && len(wanted.Target.DownstreamResources) > 0 &&
		len(deployment.Spec.Options.DownstreamResources) == 0
}

// Reads reports whether Fleet makes an agent read an object with values.
func Reads(deployment *fleetv1.BundleDeployment, name string) bool {
	return deployment != nil && slices.ContainsFunc(deployment.Spec.Options.DownstreamResources, func(its fleetv1.DownstreamResource) bool { return its.Name == name })
}

func falseCondition(status *fleetv1.BundleDeploymentStatus, of string) *genericcondition.GenericCondition {
	for i := range status.Conditions {
		if its := &status.Conditions[i]; its.Type == of && string(its.Status) == string(metav1.ConditionFalse) {
			return its
		}
	}
	return nil
}

// revisionOf reads the revision from Fleet's "namespace/name:revision"; 0 if there is none.
func revisionOf(release string) int {
	_, revision, _ := strings.Cut(release, ":")
	number, _ := strconv.ParseInt(revision, 10, 32)
	return int(number)
}

// CannotRender reports whether the values of a release cannot be rendered now, by its status.
func CannotRender(release *addonsv1.HelmReleaseProxy) bool {
	return find(release, addonsv1.ClusterAvailableCondition).Reason == addonsv1.ValueParsingFailedReason
}

// Trouble says why Muster cannot deploy something; the zero value means no trouble.
type Trouble struct{ Reason, Message string }

// ReleaseConditions returns the conditions of a HelmReleaseProxy.
func ReleaseConditions(trouble Trouble, release Release) []metav1.Condition {
	available := condition(addonsv1.ClusterAvailableCondition, true, addonsv1.AvailableReason, "")
	if trouble != (Trouble{}) {
		available = condition(available.Type, trouble.Reason != addonsv1.GetClusterFailedReason, trouble.Reason, trouble.Message)
	}
	ready := condition(addonsv1.HelmReleaseReadyCondition, release.Ready, release.Reason, release.Message)
	all := summary(available, ready)
	if trouble != (Trouble{}) { // The deployed release is older than the wanted one.
		all = condition(addonsv1.ReadyCondition, false, trouble.Reason, trouble.Message)
	}
	return []metav1.Condition{all, available, ready}
}

// ProxyConditions returns the conditions of a HelmChartProxy, based on the conditions of its
// HelmReleaseProxies. Trouble is a problem of the HelmChartProxy itself, or one About a Cluster, and notice a message for
// its author.
func ProxyConditions(trouble Trouble, notice string, releases []*addonsv1.HelmReleaseProxy) []metav1.Condition {
	specs := condition(addonsv1.HelmReleaseProxySpecsUpToDateCondition, true, addonsv1.UpToDateReason, notice)
	ready := condition(addonsv1.HelmReleaseProxiesReadyCondition, true, addonsv1.ReadyReason, "")
	var troubled, unready, drifted []string
	entry := func(release *addonsv1.HelmReleaseProxy, its *metav1.Condition) string {
		// Another writer may have written the message.
		return message.Short(message.Text(About(ClusterOf(release), cmp.Or(its.Message, its.Reason))), longestEntry)
	}
	add := func(to *metav1.Condition, entries []string, release *addonsv1.HelmReleaseProxy, its *metav1.Condition) []string {
		if len(entries) == 0 || its.Reason == addonsv1.HelmInstallOrUpgradeFailedReason {
			to.Status, to.Reason = metav1.ConditionFalse, its.Reason
		}
		return append(entries, entry(release, its))
	}
	for _, release := range releases {
		if its := find(release, addonsv1.ClusterAvailableCondition); its.Reason != addonsv1.AvailableReason {
			troubled = add(&specs, troubled, release, its)
		}
		switch its := find(release, addonsv1.HelmReleaseReadyCondition); {
		case its.Status != metav1.ConditionTrue:
			unready = add(&ready, unready, release, its)
		case its.Message != "":
			drifted = append(drifted, entry(release, its))
		}
	}
	switch {
	case trouble != (Trouble{}):
		specs = condition(specs.Type, false, trouble.Reason, trouble.Message)
	case len(troubled) > 0:
		specs.Message = message.List(troubled, listed, "; ")
	}
	switch {
	case len(releases) == 0:
		ready.Message = "no Cluster is selected"
	case len(unready) > 0:
		ready.Message = message.List(unready, listed, "; ")
	default:
		ready.Message = message.List(drifted, listed, "; ")
	}
	return []metav1.Condition{summary(specs, ready), specs, ready}
}

// Display returns what `kubectl get` shows of a HelmChartProxy that selects so many Clusters.
func Display(version string, selected int, releases []*addonsv1.HelmReleaseProxy) addonsv1.HelmChartProxyDisplay {
	ready := 0
	for _, release := range releases {
		if release.DeletionTimestamp.IsZero() && find(release, addonsv1.HelmReleaseReadyCondition).Status == metav1.ConditionTrue {
			ready++
		}
	}
	return addonsv1.HelmChartProxyDisplay{Version: version, Clusters: fmt.Sprintf("%d/%d", ready, selected)}
}

// About returns a message about the release on one Cluster.
func About(cluster Key, text string) string { return cluster.String() + ": " + text }

// IsUpToDate reports whether the last reconcile of a HelmChartProxy, of its current spec, found nothing wrong that concerns
// all its releases. What is wrong with one of them, its HelmReleaseProxy shows: Ready then compares with the current spec.
func IsUpToDate(proxy *addonsv1.HelmChartProxy) bool {
	specs := meta.FindStatusCondition(proxy.Status.Conditions, addonsv1.HelmReleaseProxySpecsUpToDateCondition)
	if specs == nil || proxy.Status.ObservedGeneration != proxy.Generation {
		return false
	}
	return specs.Status == metav1.ConditionTrue || aboutCluster.MatchString(specs.Message)
}

// aboutCluster matches what About returns.
var aboutCluster = regexp.MustCompile(`^[a-z0-9.-]+/[a-z0-9.-]+: `)

// IsReady reports whether a HelmReleaseProxy of its current generation is Ready.
func IsReady(release *addonsv1.HelmReleaseProxy) bool {
	return find(release, addonsv1.ReadyCondition).Status == metav1.ConditionTrue
}

// find returns a condition of a HelmReleaseProxy. A condition of an earlier generation counts as unknown.
func find(release *addonsv1.HelmReleaseProxy, of string) *metav1.Condition {
	if its := meta.FindStatusCondition(release.Status.Conditions, of); its != nil && release.Status.ObservedGeneration == release.Generation {
		return its
	}
	unknown := condition(of, false, addonsv1.PreparingToHelmInstallReason, "the HelmReleaseProxy has not been reconciled yet")
	if of == addonsv1.ClusterAvailableCondition {
		unknown.Reason = addonsv1.HelmReleaseProxySpecsUpdatingReason
	}
	return &unknown
}

func summary(all ...metav1.Condition) metav1.Condition {
	for _, part := range all {
		if part.Status != metav1.ConditionTrue {
			part.Type = addonsv1.ReadyCondition
			return part
		}
	}
	return condition(addonsv1.ReadyCondition, true, addonsv1.ReadyReason, "")
}

func condition(of string, holds bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	switch {
	case holds:
		status = metav1.ConditionTrue
	case reason == addonsv1.ReadingInputsReason:
		status = metav1.ConditionUnknown
	}
	return metav1.Condition{Type: of, Status: status, Reason: reason, Message: message}
}

const (
	// listed is how many Clusters a message names.
	listed = 5
	// longestEntry is the maximum number of bytes for each of them.
	longestEntry = 400
)
