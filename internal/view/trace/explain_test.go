package trace

import (
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/view"
)

// What Fleet reports about a Bundle stops it on every Cluster. A template is not run here: one that cannot be rendered, or
// never ends, changes nothing until Fleet reports it.
func TestReported(t *testing.T) {
	for name, test := range map[string]struct {
		status, reason, message string
		verdict                 Verdict
		step                    string
	}{
		"nothing":                 {"", "", "", Targeted, ""},
		"the values":              {"False", "Error", "targeting error: cluster test in namespace team: failed to process template values", Blocked, StepError},
		"another error":           {"False", "Error", "no such Secret\x1b[2J", Blocked, StepError},
		"a summary of clusters":   {"False", "Error", "NotReady(1) [Cluster team/prod]", Targeted, ""},
		"an error that is over":   {"True", "Error", "targeting error: cluster test", Targeted, ""},
		"what is no error at all": {"False", "", "NotReady(1) [Cluster team/prod]", Targeted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
			bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "prod"}}
			bundle.Spec.Helm = &fleetv1.HelmOptions{TemplateValues: map[string]string{"a": "${ range untilStep 0 1000000000 1 }${ range untilStep 0 1000000000 1 }x${ end }${ end }", "b": "${ .ClusterValues.none"}}
			if test.status != "" {
				bundle.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: corev1.ConditionStatus(test.status), Reason: test.reason, Message: test.message}}
			}
			fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Labels: map[string]string{"env": "a"}}}
			fleet.Status.Namespace = "cluster-prod"
			got := Explain(&Input{Bundle: types.NamespacedName{Namespace: "team", Name: "web"}, Cluster: types.NamespacedName{Namespace: "team", Name: "prod"}, Found: bundle, Fleet: fleet})
			if got.Verdict != test.verdict || got.FailedStep != test.step {
				t.Errorf("%+v", got)
			}
			if says := got.Steps[len(got.Steps)-2].Message; test.step != "" && says != "Fleet reports about the Bundle: "+message.Text(test.message) {
				t.Errorf("it says %q", says)
			}
		})
	}
}

// A Policy of the Bundle's namespace that refuses its ServiceAccount stops Fleet, before it looks at the values.
func TestPolicyRefuses(t *testing.T) {
	require := []fleetv1.Policy{{RequireServiceAccount: true, AllowedServiceAccounts: []string{"deployer"}}}
	for name, test := range map[string]struct {
		policies       []fleetv1.Policy
		serviceAccount string
		labels         map[string]string
		unread         string
		verdict        Verdict
		result         Result // of the step; empty if there is none
		says, do       string
	}{
		"no Policy":       {verdict: Targeted},
		"allowed":         {policies: require, serviceAccount: "deployer", verdict: Targeted},
		"required":        {policies: require, verdict: Blocked, result: Failed, says: "a Policy of Fleet in namespace team requires a ServiceAccount", do: "set spec.serviceAccount of the Bundle, or of the HelmChartProxy that makes it, to one that is allowed: deployer"},
		"not allowed":     {policies: require, serviceAccount: "other", verdict: Blocked, result: Failed, says: "no Policy of Fleet in namespace team allows ServiceAccount other"},
		"of a GitRepo":    {policies: require, labels: map[string]string{fleetv1.RepoLabel: "apps"}, verdict: Blocked, result: Failed, do: "set spec.serviceAccount of GitRepo apps to"},
		"may not be read": {unread: "you may not read them", verdict: Targeted, result: Unknown, says: "Policies: you may not read them"},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", Labels: test.labels}}
			bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterName: "prod"}}
			bundle.Spec.ServiceAccount = test.serviceAccount
			fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}
			fleet.Status.Namespace = "cluster-prod"
			in := &Input{
				Bundle: types.NamespacedName{Namespace: "team", Name: "web"}, Cluster: types.NamespacedName{Namespace: "team", Name: "prod"},
				Found: bundle, Fleet: fleet, Policies: test.policies, Unread: map[view.Kind]string{},
			}
			if test.unread != "" {
				in.Unread[view.Policy] = test.unread
			}
			got := Explain(in)
			at := slices.IndexFunc(got.Steps, func(its Step) bool { return its.Name == StepPolicy })
			if got.Verdict != test.verdict || (at < 0) != (test.result == "") || !strings.Contains(got.Do, test.do) {
				t.Fatalf("%+v", got)
			}
			if at >= 0 && (got.Steps[at].Result != test.result || !strings.Contains(got.Steps[at].Message, test.says)) {
				t.Errorf("%+v", got.Steps[at])
			}
			var survey Survey
			survey.Add(got)
			if said := survey.Groups()[0].Says; (test.verdict == Blocked) != strings.Contains(said, "a Policy refuses its ServiceAccount") {
				t.Errorf("the survey says %q", said)
			}
		})
	}
}
