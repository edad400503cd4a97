package trace

import (
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
)

// A template that is nested too deep to be parsed here proves nothing about Fleet, which has no such bound. It does not
// matter whether it is rendered for the Cluster or for another one.
func TestDeepTemplateIsUnknown(t *testing.T) {
	deep := &fleetv1.HelmOptions{TemplateValues: map[string]string{"a": "${ " + strings.Repeat("(", 101) + "1" + strings.Repeat(")", 101) + " }"}}
	for name, of := range map[string]string{"the Cluster": "prod", "another": "test"} {
		t.Run(name, func(t *testing.T) {
			cluster := func(name string) *fleetv1.Cluster {
				its := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{"env": "a"}}}
				its.Status.Namespace = "cluster-" + name
				return its
			}
			key := types.NamespacedName{Namespace: "team", Name: "prod"}
			bundle := &fleetv1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
			for _, name := range []string{"prod", "test"} {
				target := fleetv1.BundleTarget{ClusterName: name}
				if name == of {
					target.Helm = deep
				}
				bundle.Spec.Targets = append(bundle.Spec.Targets, target)
			}
			got := Explain(&Input{
				Bundle: types.NamespacedName{Namespace: "team", Name: "web"}, Cluster: key, Found: bundle, Fleet: cluster("prod"),
				Others: func(visit func(*fleetv1.Cluster)) error { visit(cluster("test")); return nil },
			})
			values := slices.IndexFunc(got.Steps, func(its Step) bool { return its.Name == StepValues })
			if values < 0 || got.Steps[values].Result != Unknown || !strings.Contains(got.Steps[values].Message, "more than 100 deep") || got.Verdict != Targeted {
				t.Errorf("%+v", got)
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
