package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
)

// act is the annotation that promote or retry sets.
type act struct {
	key, value string
	// done is printed once the annotation is set.
	done string
}

// promotion approves the change that waits for approval.
func (o *rolloutOptions) promotion(r *rolloutReport) (*act, error) {
	switch {
	case r.Approval == "":
		return nil, fmt.Errorf("nothing waits for approval: %s", r.says())
	case o.approval != "" && o.approval != r.Approval:
		return nil, fmt.Errorf("the change that waits for approval is %s, not %s: look at it with rollout status, and approve its hash", message.Text(r.Approval), message.Text(o.approval))
	}
	return &act{addonsv1.RolloutApprovedAnnotation, r.Approval, "Approved: " + r.Approval}, nil
}

// retrial continues a halted rollout.
func retrial(r *rolloutReport) (*act, error) {
	if r.Reason != addonsv1.RolloutHaltedReason {
		return nil, fmt.Errorf("there is nothing to retry, because the rollout is not halted: %s", r.says())
	}
	if r.Retry == "" {
		return nil, fmt.Errorf("there is nothing to retry, because failed releases are retried automatically: %s", r.says())
	}
	return &act{addonsv1.RolloutRetryAnnotation, r.Retry, "These regressions, and agents that went silent, no longer count. A failed release is retried automatically."}, nil
}

// annotate sets an annotation, unless the HelmChartProxy has changed since it was read.
func (o *rolloutOptions) annotate(ctx context.Context, name string, decide func(*rolloutReport) (*act, error)) error {
	cluster, proxy, err := o.read(ctx, name)
	if err != nil {
		return err
	}
	report, err := reportOf(proxy)
	if err != nil {
		return err
	}
	if !report.Current {
		return fmt.Errorf("%s: %s; try again later", report, message.Text(report.Note))
	}
	act, err := decide(report)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out, message.Text(report.String()+": "+report.Message))
	if changes := o.whatChanges(ctx, cluster, proxy, report); changes != "" {
		fmt.Fprintln(o.Out, "Changes: "+changes)
	}
	before := proxy.DeepCopy()
	metav1.SetMetaDataAnnotation(&proxy.ObjectMeta, act.key, act.value)
	if err := o.patch(ctx, cluster, report, before, proxy, "get, patch and promote"); err != nil {
		return err
	}
	fmt.Fprintln(o.Out, message.Text(o.done(act.done)))
	return nil
}

// done returns the last line of the output. As in kubectl, it names a dry run.
func (o *rolloutOptions) done(text string) string {
	if o.dryRun {
		return text + " (server dry run)"
	}
	return text
}

// patch writes a HelmChartProxy, unless a fact that the command acts on has changed since it was read. Muster's other
// reports do not count: while a rollout is under way, there is one every moment.
func (o *rolloutOptions) patch(ctx context.Context, cluster client.Client, report *rolloutReport, before, after *addonsv1.HelmChartProxy, verbs string) error {
	var options []client.PatchOption
	if o.dryRun {
		options = append(options, client.DryRunAll)
	}
	changed := fmt.Errorf("%s has changed since it was read, so nothing was done: check it again with rollout status", report)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := cluster.Patch(ctx, after.DeepCopy(), client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), options...)
		if !apierrors.IsConflict(err) {
			return err
		}
		live, failed := readProxy(ctx, cluster, client.ObjectKeyFromObject(before))
		if failed != nil {
			return failed
		}
		if !hasSameFacts(before, live) {
			return changed
		}
		before.ResourceVersion, after.ResourceVersion = live.ResourceVersion, live.ResourceVersion
		return err
	})
	switch {
	case err == nil, errors.Is(err, changed):
		return err
	case apierrors.IsConflict(err):
		return changed
	case apierrors.IsForbidden(err):
		return program.Exit(2, fmt.Errorf("%w: ask for a Role with the verbs %s on resource helmchartproxies of addons.cluster.x-k8s.io", err, verbs))
	default:
		return program.Exit(2, fmt.Errorf("writing %s: %w", report, err))
	}
}

// hasSameFacts reports whether two states of a HelmChartProxy are the same for the commands that change a rollout.
func hasSameFacts(one, other *addonsv1.HelmChartProxy) bool {
	facts := func(its *addonsv1.HelmChartProxy) []any {
		status := ptr.Deref(its.Status.Rollout, addonsv1.RolloutStatus{})
		return []any{its.UID, its.Generation, its.Annotations, status.Approval, status.Retry, status.LastCompleted}
	}
	return equality.Semantic.DeepEqual(facts(one), facts(other))
}

func (o *rolloutOptions) abort(ctx context.Context, name string) error {
	cluster, proxy, err := o.read(ctx, name)
	if err != nil {
		return err
	}
	report, err := reportOf(proxy)
	if err != nil {
		return program.Exit(2, err)
	}
	last, isKnown := plan.LastCompleted(proxy)
	if !isKnown {
		return fmt.Errorf("no completed rollout of %s is known: apply an earlier version of the HelmChartProxy", report)
	}
	if plan.IsBack(proxy) {
		return fmt.Errorf("%s already has the spec of the last completed rollout: if values have changed, restore the ConfigMap, Secret or Cluster that they come from", report)
	}
	changed := differences(&proxy.Spec, &last)
	before, since := proxy.DeepCopy(), plan.Completed(proxy).Time
	proxy.Spec = last
	if err := o.patch(ctx, cluster, report, before, proxy, "get and patch"); err != nil {
		return err
	}
	fmt.Fprintln(o.Out, o.done(fmt.Sprintf("%s has the spec of the rollout that was completed at %s again: %s", report, since.UTC().Format(time.RFC3339), message.Text(strings.Join(changed, "; ")))))
	fmt.Fprintln(o.Out, "If the HelmChartProxy comes from Git, revert the change there, too.")
	return nil
}
