package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/program"
)

const waiting = "2dbd9126ac23ea7d17103edb4b1aa5b6"

// ingress is a HelmChartProxy whose rollout has two stages, and Clusters in none.
func ingress(reason, message string, change func(*addonsv1.HelmChartProxy)) *addonsv1.HelmChartProxy {
	ten, status := int32(10), metav1.ConditionFalse
	if reason == addonsv1.RolloutCompletedReason {
		status = metav1.ConditionTrue
	}
	proxy := &addonsv1.HelmChartProxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "ingress", Generation: 4},
		Spec: addonsv1.HelmChartProxySpec{Rollout: &addonsv1.RolloutStrategy{Stages: []addonsv1.RolloutStage{
			{Name: "canary", Percent: &ten}, {Name: "rest", ClusterSelector: &metav1.LabelSelector{}, Approval: addonsv1.RolloutApprovalManual},
		}}},
		Status: addonsv1.HelmChartProxyStatus{
			ObservedGeneration: 4,
			Conditions: []metav1.Condition{{
				Type: addonsv1.RolloutCompletedCondition, Status: status, Reason: reason, Message: message, ObservedGeneration: 4, LastTransitionTime: ago(12 * time.Minute),
			}},
			Rollout: &addonsv1.RolloutStatus{Stages: []addonsv1.RolloutStageStatus{
				{Name: "canary", Clusters: 3, Updated: 3}, {Name: "rest", Clusters: 24, Updated: 24}, {Clusters: 1, Updated: 1},
			}},
		},
	}
	change(proxy)
	return proxy
}

func waitsForApproval(change func(*addonsv1.HelmChartProxy)) *addonsv1.HelmChartProxy {
	return ingress(addonsv1.RolloutWaitingForApprovalReason, "stage rest, 2 of 24 updated: approve the change for team-a/one, team-a/two", func(its *addonsv1.HelmChartProxy) {
		its.Status.Rollout.Stage, its.Status.Rollout.Approval = "rest", waiting
		its.Status.Rollout.Stages[1] = addonsv1.RolloutStageStatus{Name: "rest", Clusters: 24, Updated: 2, Held: 22, Offline: 1}
		change(its)
	})
}

func halted(change func(*addonsv1.HelmChartProxy)) *addonsv1.HelmChartProxy {
	return ingress(addonsv1.RolloutHaltedReason, "stage canary, 2 of 3 updated: no longer ready while its stage was soaking: team-a/one", func(its *addonsv1.HelmChartProxy) {
		its.Status.Rollout.Stage = "canary"
		its.Status.Rollout.Stages[0] = addonsv1.RolloutStageStatus{Name: "canary", Clusters: 3, Updated: 2, Failing: 1}
		its.Status.Rollout.Retry = failing
		change(its)
	})
}

// failing is the hash of what halts a rollout.
const failing = "fedcba9876543210"

func unchanged(*addonsv1.HelmChartProxy) {}

// server is an API server with a HelmChartProxy.
func server(t *testing.T, proxy *addonsv1.HelmChartProxy, faults interceptor.Funcs) client.WithWatch {
	t.Helper()
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(proxy).WithStatusSubresource(proxy).WithInterceptorFuncs(faults).
		WithIndex(proxy, metav1.ObjectNameField, func(object client.Object) []string { return []string{object.GetName()} }).Build()
}

// on runs a command of rollout on a server, and returns its output.
func on(ctx context.Context, server client.WithWatch, args ...string) (string, error) {
	return onServer(ctx, server, append([]string{"rollout"}, args...)...)
}

func onServer(ctx context.Context, server client.WithWatch, args ...string) (string, error) {
	var out bytes.Buffer
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	o.standIn = server
	root := newRoot(o)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// TestRolloutStatus compares the output and the exit code for each state of a rollout.
func TestRolloutStatus(t *testing.T) {
	var a archive
	for _, test := range []struct {
		name  string
		proxy *addonsv1.HelmChartProxy
		code  int
	}{
		{"completed", ingress(addonsv1.RolloutCompletedReason, "", unchanged), 0},
		{"soaking", ingress(addonsv1.RolloutSoakingReason, "stage canary, 3 of 3 updated: every Cluster must be ready for 1h0m0s", func(its *addonsv1.HelmChartProxy) {
			its.Status.Rollout.Stage = "canary"
			its.Status.Rollout.Stages[1], its.Status.Rollout.Stages[2] = addonsv1.RolloutStageStatus{Name: "rest", Clusters: 24, Held: 24}, addonsv1.RolloutStageStatus{Clusters: 1, Held: 1}
		}), 3},
		{"waiting", waitsForApproval(unchanged), 3},
		{"of no stage", ingress(addonsv1.RolloutProgressingReason, "the Clusters of no stage, 0 of 1 updated: waits for team-a/one", func(its *addonsv1.HelmChartProxy) {
			its.Status.Rollout.Stages[2] = addonsv1.RolloutStageStatus{Clusters: 1}
		}), 3},
		{"halted", halted(unchanged), 1},
		{"not current", waitsForApproval(func(its *addonsv1.HelmChartProxy) { its.Generation = 5 }), 2},
		{"inputs unusable", waitsForApproval(func(its *addonsv1.HelmChartProxy) {
			its.Generation, its.Status.ObservedGeneration = 5, 5
			its.Status.Conditions = append(its.Status.Conditions, metav1.Condition{
				Type: addonsv1.ReadyCondition, Status: metav1.ConditionFalse, Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: "no version 9.9.9\x1b[2J", ObservedGeneration: 5,
			})
		}), 2},
		{"not begun", ingress("", "", func(its *addonsv1.HelmChartProxy) { its.Status = addonsv1.HelmChartProxyStatus{} }), 2},
		{"no rollout", ingress("", "", func(its *addonsv1.HelmChartProxy) { its.Spec.Rollout = nil }), 2},
		{"installed once", ingress("", "", func(its *addonsv1.HelmChartProxy) { its.Spec.ReconcileStrategy = addonsv1.ReconcileStrategyInstallOnce }), 2},
		{"somebody else's", ingress("", "", func(its *addonsv1.HelmChartProxy) {
			its.Status.Conditions = append(its.Status.Conditions, metav1.Condition{Type: addonsv1.NotManagedCondition, Status: metav1.ConditionTrue, Message: "Muster does not reconcile it"})
		}), 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := on(t.Context(), server(t, test.proxy, interceptor.Funcs{}), "status", "ingress", "-n", "team-a")
			if got := program.ExitCode(err); got != test.code {
				t.Errorf("exit code %d, want %d: %v", got, test.code, err)
			}
			isShowable(t, out)
			a.add(test.name, out+fmt.Sprintf("error: %v\n", err))
		})
	}
	out, _ := on(t.Context(), server(t, waitsForApproval(unchanged), interceptor.Funcs{}), "status", "team-a/ingress", "-o", "json")
	a.add("waiting, json", out)

	// All rollouts, and what one changes.
	c := server(t, changed(), interceptor.Funcs{})
	for _, more := range []client.Object{
		halted(func(its *addonsv1.HelmChartProxy) { its.Namespace = "team-b" }), waitsForApproval(func(its *addonsv1.HelmChartProxy) { its.Name, its.Generation = "late", 5 }),
		ingress("", "", func(its *addonsv1.HelmChartProxy) { its.Name, its.Spec.Rollout = "none", nil }),
		changing("one", plan.Rollout{Pending: "x", Values: true}), changing("two", plan.Rollout{Pending: "y", Values: true}), changing("three", plan.Rollout{Pending: "z"}), changing("four", plan.Rollout{}),
	} {
		if err := c.Create(t.Context(), more); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"", "-o wide", "-n team-b", "-n nobody", "-o name", "status team-a/ingress", "promote team-a/ingress --dry-run", "abort team-a/ingress --dry-run", "status late", "status ingress", "status typo"} {
		out, err := on(t.Context(), c, strings.Fields(args)...)
		a.add("rollout "+args, out+fmt.Sprintf("error: %v\n", err))
	}
	is := &addonsv1.HelmChartProxy{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "ingress"}, is); err != nil || len(is.Annotations) > 0 || is.Spec.Version != "1.1.0" {
		t.Errorf("a dry run has changed it: %v, %+v (%v)", is.Annotations, is.Spec, err)
	}
	a.golden(t, "rollout")
}

// changed is a HelmChartProxy whose version and timeout have changed since its rollout was completed.
func changed() *addonsv1.HelmChartProxy {
	return waitsForApproval(func(its *addonsv1.HelmChartProxy) {
		its.Spec.ChartName, its.Spec.Version, its.Spec.ReleaseNamespace = "web", "1.1.0", "web"
		its.Status.Rollout.LastCompleted = &addonsv1.CompletedRollout{Time: ago(time.Hour), Version: "1.0.1"}
		its.Status.Rollout.LastCompleted.Spec.Raw = []byte(`{"chartName": "web", "version": "1.0.x", "namespace": "old"}`)
	})
}

// changing is the release of a Cluster in a rollout.
func changing(cluster string, its plan.Rollout) *addonsv1.HelmReleaseProxy {
	release := &addonsv1.HelmReleaseProxy{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-a", Name: cluster, Labels: map[string]string{addonsv1.HelmChartProxyLabel: "ingress"},
		Annotations: map[string]string{plan.RecordAnnotation: plan.Record{Rollout: &its}.String()},
	}}
	release.Spec.Version = "1.1.0"
	return release
}

// TestRolloutUnread runs rollout without the right to read HelmReleaseProxies, and without the component helm.
func TestRolloutUnread(t *testing.T) {
	listing := func(answer error, isFor func(client.ObjectList) bool) interceptor.Funcs {
		return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if isFor(list) {
				return answer
			}
			return c.List(ctx, list, options...)
		}}
	}
	faults := listing(apierrors.NewForbidden(schema.GroupResource{Resource: "helmreleaseproxies"}, "", errors.New("no")), func(list client.ObjectList) bool { _, is := list.(*addonsv1.HelmReleaseProxyList); return is })
	if out, _ := on(t.Context(), server(t, changed(), faults), "status", "team-a/ingress"); !strings.Contains(out, "Changes:          1.0.1 → 1.1.0; namespace \"old\" → \"web\"; it is unknown which values: reading HelmReleaseProxies: helmreleaseproxies is forbidden") {
		t.Errorf("forbidden:\n%s", out)
	}
	forbidden := listing(apierrors.NewForbidden(schema.GroupResource{Resource: "helmchartproxies"}, "", errors.New("no")), func(client.ObjectList) bool { return true })
	for args, want := range map[string]int{"status ingress -n team-a": 3, "status ingress -n team-b": 2} {
		if _, err := on(t.Context(), server(t, changed(), forbidden), strings.Fields(args)...); program.ExitCode(err) != want {
			t.Errorf("may only get: %s: %v", args, err)
		}
	}
	absent := listing(&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: addonsv1.GroupVersion.Group, Kind: "HelmChartProxy"}}, func(client.ObjectList) bool { return true })
	for _, args := range []string{"", "status ingress"} {
		if _, err := on(t.Context(), server(t, changed(), absent), strings.Fields(args)...); program.ExitCode(err) != 2 || !strings.HasSuffix(err.Error(), "install the component helm: kubectl apply --server-side -k manifests/helm") {
			t.Errorf("absent: rollout %s: %v", args, err)
		}
	}
}

// TestRolloutWatch follows a rollout until it is completed, while the API server fails now and then.
func TestRolloutWatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	looks := 0
	c := server(t, waitsForApproval(unchanged), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
		if looks++; looks == 2 {
			return apierrors.NewServiceUnavailable("restarting")
		}
		err := c.Get(ctx, key, into, options...)
		if looks == 3 {
			ingress(addonsv1.RolloutCompletedReason, "", unchanged).DeepCopyInto(into.(*addonsv1.HelmChartProxy))
		}
		return err
	}})
	out, err := on(ctx, c, "status", "team-a/ingress", "--watch", "-o", "jsonpath={.reason}")
	if out != "WaitingForApproval\nCompleted\n" || err != nil || looks != 3 {
		t.Errorf("after %d looks: %v\n%s", looks, err, out)
	}
	for name, broken := range map[string]error{
		"it is gone":         apierrors.NewNotFound(schema.GroupResource{Resource: "helmchartproxies"}, "ingress"),
		"it may not be read": apierrors.NewForbidden(schema.GroupResource{Resource: "helmchartproxies"}, "ingress", nil),
		"no answer at first": errors.New("connection refused"),
	} {
		c := server(t, waitsForApproval(unchanged), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return broken
		}})
		if out, err := on(ctx, c, "status", "team-a/ingress", "--watch"); program.ExitCode(err) != 2 || out != "" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestRolloutActs checks the annotations that promote and retry set, and the errors.
func TestRolloutActs(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: addonsv1.GroupVersion.Group, Resource: "helmchartproxies"}, "ingress",
		errors.New("ValidatingAdmissionPolicy 'muster-helm-promote' with binding 'muster-helm-promote' denied request"))
	patching := func(before func(client.WithWatch, client.Object) error) interceptor.Funcs {
		return interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := before(c, object); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		}}
	}
	overtaken := patching(func(c client.WithWatch, object client.Object) error { // The hash changes after it was read.
		current := &addonsv1.HelmChartProxy{}
		if err := c.Get(context.Background(), client.ObjectKeyFromObject(object), current); err != nil {
			return err
		}
		current.Status.Rollout.Approval = "another"
		return c.Status().Update(context.Background(), current)
	})
	var once sync.Once
	reported := patching(func(c client.WithWatch, object client.Object) (err error) { // Muster reports after it was read.
		once.Do(func() {
			current := &addonsv1.HelmChartProxy{}
			if err = c.Get(context.Background(), client.ObjectKeyFromObject(object), current); err == nil {
				current.Status.Rollout.Stages[0].Updated++
				err = c.Status().Update(context.Background(), current)
			}
		})
		return err
	})
	for name, test := range map[string]struct {
		args   string
		proxy  *addonsv1.HelmChartProxy
		faults interceptor.Funcs
		code   int
		// says lists texts that the output or the error must contain.
		says []string
		// approved and retried are the annotations.
		approved, retried string
	}{
		"approve":            {args: "promote team-a/ingress", proxy: waitsForApproval(unchanged), says: []string{"approve the change for team-a/one, team-a/two", "Approved: " + waiting}, approved: waiting},
		"approve by a hash":  {args: "promote ingress -n team-a --approval=" + waiting, proxy: waitsForApproval(unchanged), says: []string{"Approved: " + waiting}, approved: waiting},
		"another waits":      {args: "promote team-a/ingress --approval=0123", proxy: waitsForApproval(unchanged), code: 1, says: []string{"the change that waits for approval is " + waiting + ", not 0123"}},
		"no hash":            {args: "promote team-a/ingress --approval=", proxy: waitsForApproval(unchanged), code: 2, says: []string{"--approval: must not be empty"}},
		"nothing waits":      {args: "promote team-a/ingress", proxy: halted(unchanged), code: 1, says: []string{"nothing waits for approval: the rollout of HelmChartProxy team-a/ingress is Halted: stage canary"}},
		"not current":        {args: "promote team-a/ingress", proxy: waitsForApproval(func(its *addonsv1.HelmChartProxy) { its.Generation = 5 }), code: 1, says: []string{"it describes generation 4, but the HelmChartProxy is at generation 5; try again"}},
		"no rollout":         {args: "promote team-a/ingress", proxy: waitsForApproval(func(its *addonsv1.HelmChartProxy) { its.Spec.Rollout = nil }), code: 1, says: []string{"has no spec.rollout"}},
		"not there":          {args: "promote team-a/typo", proxy: waitsForApproval(unchanged), code: 2, says: []string{`"typo" not found`}},
		"overtaken":          {args: "promote team-a/ingress", proxy: waitsForApproval(unchanged), faults: overtaken, code: 1, says: []string{"has changed since it was read, so nothing was done: check it again with rollout status"}},
		"reported meanwhile": {args: "promote team-a/ingress", proxy: waitsForApproval(unchanged), faults: reported, says: []string{"Approved: " + waiting}, approved: waiting},
		"not allowed":        {args: "promote team-a/ingress", proxy: waitsForApproval(unchanged), faults: patching(func(client.WithWatch, client.Object) error { return forbidden }), code: 2, says: []string{"'muster-helm-promote'", "ask for a Role with the verbs get, patch and promote on resource helmchartproxies"}},
		"no answer":          {args: "promote team-a/ingress", proxy: waitsForApproval(unchanged), faults: patching(func(client.WithWatch, client.Object) error { return errors.New("refused") }), code: 2, says: []string{"writing HelmChartProxy team-a/ingress: refused"}},
		"retry":              {args: "retry team-a/ingress", proxy: halted(unchanged), says: []string{"no longer ready while its stage was soaking: team-a/one", "These regressions, and agents that went silent, no longer count", "A failed release is retried automatically"}, retried: failing},
		"nothing to retry":   {args: "retry team-a/ingress", proxy: waitsForApproval(unchanged), code: 1, says: []string{"not halted: the rollout of HelmChartProxy team-a/ingress is WaitingForApproval: stage rest"}},
		"only failures":      {args: "retry team-a/ingress", proxy: halted(func(its *addonsv1.HelmChartProxy) { its.Status.Rollout.Retry = "" }), code: 1, says: []string{"there is nothing to retry, because failed releases are retried automatically: the rollout of"}},
		"retry, not current": {args: "retry team-a/ingress", proxy: halted(func(its *addonsv1.HelmChartProxy) { its.Generation = 5 }), code: 1, says: []string{"not current"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.proxy.Annotations = map[string]string{"else": "kept"}
			c := server(t, test.proxy, test.faults)
			out, err := on(t.Context(), c, strings.Fields(test.args)...)
			if got := program.ExitCode(err); got != test.code {
				t.Errorf("exit code %d, want %d: %v", got, test.code, err)
			}
			for _, want := range test.says {
				if !strings.Contains(fmt.Sprintf("%s%v", out, err), want) {
					t.Errorf("%q is not in %s%v", want, out, err)
				}
			}
			is := &addonsv1.HelmChartProxy{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(test.proxy), is); err != nil {
				t.Fatal(err)
			}
			if got := is.Annotations[addonsv1.RolloutApprovedAnnotation]; got != test.approved || is.Annotations["else"] != "kept" {
				t.Errorf("annotations %v, want %q approved", is.Annotations, test.approved)
			}
			if got := is.Annotations[addonsv1.RolloutRetryAnnotation]; got != test.retried {
				t.Errorf("retried %q, want %q", got, test.retried)
			}
		})
	}
}

// TestRolloutAbort checks that abort gives the HelmChartProxy the spec that was last completed, and the errors.
func TestRolloutAbort(t *testing.T) {
	completed := func(spec string) func(*addonsv1.HelmChartProxy) {
		return func(its *addonsv1.HelmChartProxy) {
			its.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "web"}
			its.Spec.ChartName, its.Spec.Version, its.Spec.ValuesTemplate = "web", "2.0.0", "a: "+strings.Repeat("x", 100)
			its.Spec.Options.Timeout = &metav1.Duration{Duration: time.Minute}
			its.Status.Rollout.LastCompleted = &addonsv1.CompletedRollout{Time: metav1.NewTime(time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC))}
			if spec != "" {
				its.Status.Rollout.LastCompleted.Spec.Raw = []byte(spec)
			}
		}
	}
	old := `{"clusterSelector": {}, "chartName": "web", "version": "1.0.0", "credentials": {"secret": {"name": "before"}}}`
	for name, test := range map[string]struct {
		proxy *addonsv1.HelmChartProxy
		code  int
		says  string
	}{
		"halted": {proxy: halted(completed(old)), says: `HelmChartProxy team-a/ingress has the spec of the rollout that was completed at 2026-11-24T12:00:00Z again: ` +
			`credentials none → {"secret":{"name":"before"},"key":""}; options; valuesTemplate; version "2.0.0" → "1.0.0"` + "\nIf the HelmChartProxy comes from Git, revert the change there, too.\n"},
		"not current": {proxy: waitsForApproval(func(its *addonsv1.HelmChartProxy) { completed(old)(its); its.Generation = 5 }), says: "has the spec of the rollout that was completed"},
		"none known":  {proxy: halted(unchanged), code: 1, says: "no completed rollout of HelmChartProxy team-a/ingress is known: apply an earlier version of the HelmChartProxy"},
		"too large":   {proxy: halted(completed("")), code: 1, says: "no completed rollout"},
		"as it is": {proxy: halted(func(its *addonsv1.HelmChartProxy) {
			completed(`{"chartName": "web", "version": "2.0.0", "options": {"timeout": "1m0s"}, "valuesTemplate": "a: ` + strings.Repeat("x", 100) + `"}`)(its)
		}), code: 1, says: "already has the spec of the last completed rollout: if values have changed, restore the ConfigMap"},
		"as it is but for defaults": {proxy: halted(func(its *addonsv1.HelmChartProxy) {
			completed(`{"chartName": "web", "version": "2.0.0", "options": {"timeout": "1m0s"}, "valuesTemplate": "a: ` + strings.Repeat("x", 100) + `"}`)(its)
			its.Spec.ReleaseNamespace = "default"
		}), code: 1, says: "already has the spec of the last completed rollout"},
		"no rollout": {proxy: halted(func(its *addonsv1.HelmChartProxy) { its.Spec.Rollout = nil }), code: 2, says: "has no spec.rollout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := server(t, test.proxy, interceptor.Funcs{})
			out, err := on(t.Context(), c, "abort", "team-a/ingress")
			if got := program.ExitCode(err); got != test.code || !strings.Contains(fmt.Sprintf("%s%v", out, err), test.says) {
				t.Errorf("exit code %d, want %d: %s%v; want %s", got, test.code, out, err, test.says)
			}
			is, want := &addonsv1.HelmChartProxy{}, test.proxy.Spec.DeepCopy()
			if test.code == 0 {
				want.Version, want.ValuesTemplate, want.Options.Timeout = "1.0.0", "", nil
				want.Credentials = &addonsv1.Credentials{}
				want.Credentials.Secret.Name = "before"
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(test.proxy), is); err != nil || !equality.Semantic.DeepEqual(is.Spec, *want) {
				t.Errorf("the spec is %+v, want %+v (%v)", is.Spec, *want, err)
			}
		})
	}
}

// TestRolloutCompletion completes the names of HelmChartProxies.
func TestRolloutCompletion(t *testing.T) {
	c := server(t, waitsForApproval(unchanged), interceptor.Funcs{})
	for _, command := range []string{"status", "promote", "retry", "abort"} {
		var out bytes.Buffer
		o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &bytes.Buffer{}})
		o.standIn = c
		root := newRoot(o)
		root.SetArgs([]string{"__complete", "rollout", command, ""})
		if err := root.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "team-a/ingress\n") {
			t.Errorf("%s: %v\n%s", command, err, out.String())
		}
	}
}
