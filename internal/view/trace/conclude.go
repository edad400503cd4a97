package trace

import (
	"fmt"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
)

// conclude compares the verdict with the actual BundleDeployment.
func (e *explainer) conclude() {
	deployed := e.trace.Deployed
	_, isUnread := e.Unread[view.Deployment]
	switch {
	case e.trace.Verdict == Undecided && deployed != nil:
		e.say("the Bundle is on the Cluster (%s); not everything that explains this could be read", deployed.State)
	case e.trace.Verdict == Undecided:
		e.say("it is unknown whether the Bundle targets the Cluster: some objects that decide this could not be read")
	case e.trace.Verdict == Targeted && isUnread:
		e.say("the Bundle targets the Cluster; it is unknown whether it is deployed there")
	case e.trace.Verdict == Targeted && deployed != nil:
		e.say("the Bundle targets the Cluster, and is deployed there: %s", deployed.State)
		if state := fleetv1.BundleState(deployed.State); state != fleetv1.Ready {
			e.trace.Do = view.DoFor(deployed.State)
		}
	case e.trace.Verdict == Targeted:
		e.say("the Bundle targets the Cluster, but Fleet has not deployed it yet")
		e.trace.Do = e.adviseMissing()
	case e.takenBy != "":
		e.say("the Bundle targets the Cluster, but the BundleDeployment of that name belongs to Bundle %s", e.takenBy)
	case e.trace.Verdict == Blocked && deployed != nil:
		e.say("the Bundle targets the Cluster, but an error stops Fleet; an earlier deployment is there (%s)", deployed.State)
	case e.trace.Verdict == Blocked:
		e.say("the Bundle targets the Cluster, but an error stops Fleet, which deploys nothing new")
	case deployed != nil && e.isFinal():
		e.say("the Bundle does not target the Cluster, and Fleet is about to remove it")
	case deployed != nil:
		e.say("the Bundle no longer targets the Cluster, but Fleet has not looked again: it is still deployed there (%s)", deployed.State)
		e.trace.Do = "Fleet reconciles it when the Bundle or a Fleet Cluster changes, not when a mapping, group or Namespace does; Muster takes care of its own mappings. To make Fleet look now: " +
			fmt.Sprintf("kubectl annotate bundles.fleet.cattle.io -n %s %s reconcile-at=\"$(date +%%s)\" --overwrite", e.Bundle.Namespace, e.Bundle.Name)
	default:
		e.say("the Bundle does not target the Cluster, and is not deployed there")
	}
}

// isFinal reports whether the failed step alone is the conclusion.
func (e *explainer) isFinal() bool {
	return e.trace.FailedStep == StepBundle || e.trace.FailedStep == StepCluster
}

func (e *explainer) say(format string, args ...any) {
	e.trace.Conclusion = fmt.Sprintf(format, args...)
}

// adviseMissing returns why Fleet may not have created an expected BundleDeployment.
func (e *explainer) adviseMissing() string {
	status := &e.Found.Status
	switch {
	case status.MaxUnavailablePartitions < status.UnavailablePartitions:
		return fmt.Sprintf("its rollout waits: %d partitions are unavailable, but only %d may be", status.UnavailablePartitions, status.MaxUnavailablePartitions)
	case e.Found.Spec.RolloutStrategy != nil && len(e.Found.Spec.RolloutStrategy.Partitions) > 0:
		return "its rolloutStrategy has partitions: a Cluster in none of them gets nothing"
	default:
		return "needs action from Fleet; if this stays, its controller does not run, or has not looked since a mapping or group was created: it looks when the Bundle or a Fleet Cluster changes"
	}
}

// clean makes texts from outside safe to show.
func (e *explainer) clean() {
	t := e.trace
	for _, text := range []*string{&t.Bundle, &t.HelmChartProxy, &t.Cluster, &t.Conclusion, &t.Do} {
		*text = message.Text(*text)
	}
	for i := range t.Steps {
		t.Steps[i].Message = message.Text(t.Steps[i].Message)
		for j := range t.Steps[i].Details {
			t.Steps[i].Details[j] = message.Text(strings.TrimSpace(t.Steps[i].Details[j]))
		}
	}
	if t.Deployed != nil {
		for _, text := range []*string{&t.Deployed.Namespace, &t.Deployed.Name, &t.Deployed.State} {
			*text = message.Text(*text)
		}
	}
}
