package trace

import (
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
