package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/view/source"
)

type rolloutOptions struct {
	*options
	output   *output
	watch    bool
	approval string
	dryRun   bool
	// changes is what a rollout changes, and changesOf the state of the rollout for which that was found.
	changes, changesOf string
}

func newRollout(common *options) *cobra.Command {
	o := &rolloutOptions{options: common, output: newOutput(common, "table", "wide")}
	cmd := &cobra.Command{
		Use:   "rollout [COMMAND]",
		Short: "Show the rollouts of HelmChartProxies, approve a change, retry or abort it",
		Long: `Show how far a change of a HelmChartProxy with spec.rollout has come, approve it for the
next stage, continue a halted rollout, or return to the spec of the last completed one.

Without a command, list all rollouts, or those of a namespace (-n). -o wide adds why each
waits.`,
		Args: withUsage(noCommand),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.list(cmd.Context()) },
	}
	o.output.addTo(cmd)
	cmd.AddCommand(newRolloutStatus(common), newRolloutPromote(common), newRolloutRetry(common), newRolloutAbort(common))
	return cmd
}

func newRolloutStatus(common *options) *cobra.Command {
	o := &rolloutOptions{options: common, output: newOutput(common, "text", "wide")}
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show the stages of a rollout, and what it waits for",
		Long: `Show what a rollout changes, its stages, and what it waits for. The HelmChartProxy is
NAMESPACE/NAME, or NAME, which is searched in the namespace of -n or of the kubeconfig, then
everywhere.

Exit codes: 0 every Cluster runs what the HelmChartProxy specifies; 1 the rollout is
halted; 2 unknown: wrong arguments, no such HelmChartProxy, no spec.rollout, a status that
is not current, no answer, or missing rights; 3 the rollout is in progress.`,
		Example: `  kubectl muster rollout status ingress
  kubectl muster rollout status team-a/ingress --watch`,
		Args:              withUsage(cobra.ExactArgs(1)),
		ValidArgsFunction: o.completeCharts,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.status(cmd.Context(), args[0]) },
	}
	o.output.addTo(cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Show it again whenever something changes, until the rollout is completed or halted.")
	return cmd
}

func newRolloutPromote(common *options) *cobra.Command {
	o := &rolloutOptions{options: common}
	cmd := &cobra.Command{
		Use:        "promote NAME",
		SuggestFor: []string{"approve"},
		Short:      "Approve the change that a stage waits for",
		Long: `Approve the change that a stage waits for, and no other: if the change is replaced
meanwhile, nothing is approved. You need the verbs get, patch and promote on the HelmChartProxy, which is
NAME, in the namespace of -n or of the kubeconfig, or NAMESPACE/NAME.

Exit codes: 0 approved; 1 no change waits for approval, or a different one; 2 wrong
arguments, no such HelmChartProxy, no answer, or missing rights.`,
		Example: `  kubectl muster rollout promote ingress
  kubectl muster rollout promote team-a/ingress --approval=2dbd9126ac23ea7d17103edb4b1aa5b6`,
		Args:              withUsage(cobra.ExactArgs(1)),
		ValidArgsFunction: o.completeCharts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("approval") && o.approval == "" { // Probably an unset variable in a script.
				return program.Exit(2, errors.New("--approval: must not be empty; name the hash that rollout status shows, or leave the flag out"))
			}
			return o.annotate(cmd.Context(), args[0], o.promotion)
		},
	}
	o.addDryRunTo(cmd)
	cmd.Flags().StringVar(&o.approval, "approval", "", "Approve only the change with this hash, as rollout status shows it.")
	return cmd
}

func newRolloutRetry(common *options) *cobra.Command {
	o := &rolloutOptions{options: common}
	cmd := &cobra.Command{
		Use:   "retry NAME",
		Short: "Continue a halted rollout, if the change was not the cause",
		Long: `Continue a halted rollout: the releases that ceased to be ready, and the agents that went
silent, no longer halt it; others that do so later, do. A failed release is retried
automatically, and halts the rollout until it succeeds.

You need the verbs get, patch and promote on the HelmChartProxy, which is NAME, in the
namespace of -n or of the kubeconfig, or NAMESPACE/NAME.

Exit codes: 0 done; 1 the rollout is not halted, or only by failed releases; 2 wrong arguments, no such
HelmChartProxy, no answer, or missing rights.`,
		Example:           "  kubectl muster rollout retry team-a/ingress",
		Args:              withUsage(cobra.ExactArgs(1)),
		ValidArgsFunction: o.completeCharts,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.annotate(cmd.Context(), args[0], retrial) },
	}
	o.addDryRunTo(cmd)
	return cmd
}

func newRolloutAbort(common *options) *cobra.Command {
	o := &rolloutOptions{options: common}
	cmd := &cobra.Command{
		Use:        "abort NAME",
		SuggestFor: []string{"undo", "rollback"},
		Short:      "Return to the spec of the last completed rollout",
		Long: `Reset the HelmChartProxy to the spec that it had when its rollout was last completed,
except for its stages and its selectors. Clusters that have the change go back at once,
within maxUnavailable: they wait for no stage and no approval. Values from ConfigMaps,
Secrets and the Clusters themselves are the current ones.

If the HelmChartProxy comes from Git, revert the change there, too.

You need the verbs get and patch on the HelmChartProxy, which is NAME, in the namespace of
-n or of the kubeconfig, or NAMESPACE/NAME.

Exit codes: 0 reset; 1 it already had that spec, or was changed meanwhile, or no completed
rollout is known; 2 wrong arguments, no such HelmChartProxy, no spec.rollout, no answer, or
missing rights.`,
		Example:           "  kubectl muster rollout abort team-a/ingress",
		Args:              withUsage(cobra.ExactArgs(1)),
		ValidArgsFunction: o.completeCharts,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.abort(cmd.Context(), args[0]) },
	}
	o.addDryRunTo(cmd)
	return cmd
}

func (o *rolloutOptions) addDryRunTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "Change nothing: print what would be done, and ask the API server whether you may do it.")
}

// rolloutReport describes a rollout, from the status of its HelmChartProxy.
type rolloutReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Current is false if the status belongs to an earlier generation, or is missing; Note then says so.
	Current bool   `json:"current"`
	Note    string `json:"note,omitempty"`
	// Reason and Message come from the condition RolloutCompleted.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is the time at which the rollout was completed, or began.
	Since *metav1.Time `json:"since,omitempty"`
	// Changes is what the rollout changes; empty if it is completed.
	Changes                string `json:"changes,omitempty"`
	addonsv1.RolloutStatus `json:",inline"`
}

// reportOf fails for a HelmChartProxy without a rollout.
func reportOf(proxy *addonsv1.HelmChartProxy) (*rolloutReport, error) {
	r := &rolloutReport{Namespace: proxy.Namespace, Name: proxy.Name}
	conditions := proxy.Status.Conditions
	other := meta.FindStatusCondition(conditions, addonsv1.NotManagedCondition)
	completed, ready := meta.FindStatusCondition(conditions, addonsv1.RolloutCompletedCondition), meta.FindStatusCondition(conditions, addonsv1.ReadyCondition)
	switch {
	case proxy.Spec.Rollout == nil:
		return nil, fmt.Errorf("%s has no spec.rollout, so every Cluster gets a change at once; see its condition Ready", r)
	case !plan.IsStaged(proxy):
		return nil, fmt.Errorf("%s has reconcileStrategy InstallOnce, so no Cluster gets a change, and spec.rollout has no effect", r)
	case other != nil && other.Status == metav1.ConditionTrue:
		return nil, fmt.Errorf("%s: %s", r, message.Text(other.Message))
	case completed == nil || proxy.Status.Rollout == nil:
		r.Note = "Muster has not reported its rollout yet"
	default:
		r.Reason, r.Message, r.Since, r.RolloutStatus = completed.Reason, completed.Message, &completed.LastTransitionTime, *proxy.Status.Rollout
		// status.observedGeneration is no substitute: it advances even while the inputs are unusable, and the
		// rollout stands still.
		if r.Current = completed.ObservedGeneration == proxy.Generation; !r.Current {
			r.Note = fmt.Sprintf("the status of its rollout is not current: it describes generation %d, but the HelmChartProxy is at generation %d", completed.ObservedGeneration, proxy.Generation)
		}
	}
	if !r.Current && ready != nil && ready.Status != metav1.ConditionTrue && ready.ObservedGeneration == proxy.Generation {
		r.Note += fmt.Sprintf("; it is not Ready: %s: %s", ready.Reason, ready.Message)
	}
	return r, nil
}

// String names the HelmChartProxy.
func (r *rolloutReport) String() string { return "HelmChartProxy " + r.Namespace + "/" + r.Name }

func (r *rolloutReport) identity() runtime.Object {
	return identity(addonsv1.GroupVersion.WithKind("HelmChartProxy"), r.Name)
}

// says sums up the rollout in a sentence.
func (r *rolloutReport) says() string {
	text := "the rollout of " + r.String() + " is " + r.Reason
	if r.Message != "" {
		text += ": " + r.Message
	}
	return message.Text(text)
}

// verdict returns the error of rollout status, with its exit code; nil for a completed rollout.
func (r *rolloutReport) verdict() error {
	switch {
	case !r.Current:
		return program.Exit(2, fmt.Errorf("the state is unknown: %s", message.Text(r.Note)))
	case r.Reason == addonsv1.RolloutCompletedReason:
		return nil
	case r.Reason == addonsv1.RolloutHaltedReason:
		return program.Exit(1, errors.New("the rollout is halted"))
	default:
		return program.Exit(3, fmt.Errorf("the rollout is not completed: %s", message.Text(r.Reason)))
	}
}

// isOver reports whether --watch ends.
func (r *rolloutReport) isOver() bool {
	return r.Current && (r.Reason == addonsv1.RolloutCompletedReason || r.Reason == addonsv1.RolloutHaltedReason)
}

// next returns the command that continues the rollout, or "" if the rollout needs none.
func (r *rolloutReport) next() string {
	its := strings.Replace(calledAs(), "-", " ", 1) + " rollout "
	switch {
	case r.Current && r.Approval != "":
		return its + "promote " + r.Namespace + "/" + r.Name + " --approval=" + r.Approval
	case r.Current && r.Reason == addonsv1.RolloutHaltedReason && r.Retry == "":
		return fmt.Sprintf("apply a corrected HelmChartProxy; or go back: %[1]sabort %[2]s/%[3]s", its, r.Namespace, r.Name)
	case r.Current && r.Reason == addonsv1.RolloutHaltedReason:
		return fmt.Sprintf("apply a corrected HelmChartProxy; or go back: %[1]sabort %[2]s/%[3]s; or, if the change was not the cause: %[1]sretry %[2]s/%[3]s", its, r.Namespace, r.Name)
	}
	return ""
}

// write writes the report as text.
func (r *rolloutReport) write(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	line := func(title, text string) {
		if text != "" {
			fmt.Fprintf(table, "%s\t%s\n", title, message.Text(text))
		}
	}
	state := r.Reason
	if r.Since != nil {
		if r.Reason != addonsv1.RolloutCompletedReason {
			state += ", not completed" // A change of the reason alone does not change the time.
		}
		state += " since " + r.Since.UTC().Format(time.RFC3339)
	}
	line("HelmChartProxy:", r.Namespace+"/"+r.Name)
	line("Rollout:", state)
	line("Changes:", r.Changes)
	line("Message:", r.Message)
	line("Note:", r.Note)
	line("Approval:", r.Approval)
	line("Next:", r.next())
	if len(r.Stages) > 0 {
		fmt.Fprintln(table, "\n  STAGE\tCLUSTERS\tUPDATED\tHELD\tFAILING\tOFFLINE")
	}
	for _, its := range r.Stages {
		sign, name := "  ", its.Name
		if its.Name == r.Stage && r.Reason != addonsv1.RolloutCompletedReason {
			sign = "→ "
		}
		if name == "" {
			name = "(no stage)"
		}
		fmt.Fprintf(table, "%s%s\t%d\t%d\t%d\t%d\t%d\n", sign, message.Text(name), its.Clusters, its.Updated, its.Held, its.Failing, its.Offline)
	}
	return table.Flush()
}

func (o *rolloutOptions) completeCharts(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(cmd, addonsv1.GroupVersion.WithKind("HelmChartProxyList")), cobra.ShellCompDirectiveNoFileComp
}

// isServed says which component to install if the API server does not know HelmChartProxies.
func isServed(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%w: install the component helm: kubectl apply --server-side -k manifests/helm", err)
	}
	return err
}

// find returns the key of the named HelmChartProxy. A name without a namespace may be in any. Who may only get
// HelmChartProxies in the first namespace can name those there.
func (o *rolloutOptions) find(ctx context.Context, cluster client.Reader, name string) (client.ObjectKey, error) {
	key, err := o.key(name, "NAME")
	if err != nil || strings.Contains(name, "/") {
		return key, err
	}
	if _, err := readProxy(ctx, cluster, key); !apierrors.IsNotFound(err) {
		return key, nil // A later read reports any error.
	}
	if key, err = source.Find(ctx, cluster, key.Namespace, name, addonsv1.GroupVersion.WithKind("HelmChartProxyList")); err != nil {
		return key, program.Exit(2, fmt.Errorf("HelmChartProxy %w", isServed(err)))
	}
	return key, nil
}

func (o *rolloutOptions) status(ctx context.Context, name string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	cluster, err := o.client()
	if err != nil {
		return err
	}
	key, err := o.find(ctx, cluster, name)
	if err != nil {
		return err
	}
	var report *rolloutReport
	for last := ""; ; {
		switch proxy, err := readProxy(ctx, cluster, key); {
		case err == nil:
			if report, err = reportOf(proxy); err != nil {
				return program.Exit(2, err)
			}
			report.Changes = o.whatChanges(ctx, cluster, proxy, report)
			if last, err = o.show(report, last); err != nil {
				return err
			}
			if !o.watch || report.isOver() {
				return report.verdict()
			}
		case report == nil || !kube.IsPassing(err):
			return program.Exit(2, err)
		}
		select {
		case <-ctx.Done():
			return report.verdict()
		case <-time.After(again):
		}
	}
}

// show prints the report if its text differs from the last one, and returns the text.
func (o *rolloutOptions) show(report *rolloutReport, last string) (string, error) {
	var text strings.Builder
	write := report.write
	if !o.output.isOwn() {
		write = func(to io.Writer) error {
			return o.output.print("Rollout", report, []runtime.Object{report.identity()}, to)
		}
	}
	if err := write(&text); err != nil {
		return "", err
	}
	if text.String() != last && o.watch {
		o.again(text.String())
	} else if text.String() != last {
		fmt.Fprint(o.Out, text.String())
	}
	return text.String(), nil
}

func readProxy(ctx context.Context, from client.Reader, key client.ObjectKey) (*addonsv1.HelmChartProxy, error) {
	proxy := &addonsv1.HelmChartProxy{}
	if err := from.Get(ctx, key, proxy); err != nil {
		return nil, fmt.Errorf("reading HelmChartProxy: %w", isServed(err))
	}
	return proxy, nil
}

// read reads the named HelmChartProxy once, and returns a client of its cluster, too.
func (o *rolloutOptions) read(ctx context.Context, name string) (client.Client, *addonsv1.HelmChartProxy, error) {
	key, err := o.key(name, "NAME")
	if err != nil {
		return nil, nil, err
	}
	cluster, err := o.client()
	if err != nil {
		return nil, nil, err
	}
	proxy, err := readProxy(ctx, cluster, key)
	if err != nil {
		return nil, nil, program.Exit(2, err)
	}
	return cluster, proxy, nil
}
