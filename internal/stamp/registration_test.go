package stamp

import (
	"testing"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

func TestRegistrationOf(t *testing.T) {
	config := func(initiated *bool, selector *metav1.LabelSelector) settings.Cluster {
		in, err := settings.From(&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &addonsv1.ClusterConfig{
			AgentInitiated: initiated, AgentInitiatedSelector: selector,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return in.Cluster
	}
	fleet := func(checkedIn bool, kubeconfig string) *fleetv1.Cluster {
		result := &fleetv1.Cluster{Spec: fleetv1.ClusterSpec{KubeConfigSecret: kubeconfig}}
		if checkedIn {
			result.Status.Agent.LastSeen = metav1.Now()
		}
		return result
	}
	edge := &metav1.LabelSelector{MatchLabels: map[string]string{"site": "edge"}}
	ofClass := &metav1.LabelSelector{MatchLabels: map[string]string{ClassNameLabel: "edge"}}
	for name, test := range map[string]struct {
		in          settings.Cluster
		labels      map[string]string
		class, asks string
		fleet       *fleetv1.Cluster
		want        Registration
	}{
		"by default":                            {in: settings.Default().Cluster, want: ByManager},
		"the section is there, the field isn't": {in: config(nil, nil), want: ByManager},
		"all":                                   {in: config(ptr.To(true), nil), want: ByAgent},
		"{} is all":                             {in: config(ptr.To(true), &metav1.LabelSelector{}), want: ByAgent},
		"a selector alone":                      {in: config(nil, edge), labels: map[string]string{"site": "edge"}, want: ByManager},
		"selected":                              {in: config(ptr.To(true), edge), labels: map[string]string{"site": "edge"}, want: ByAgent},
		"not selected":                          {in: config(ptr.To(true), edge), labels: map[string]string{"site": "core"}, want: ByManager},
		"selected by class, not stamped yet":    {in: config(ptr.To(true), ofClass), class: "edge", want: ByAgent},
		"annotation: agent":                     {in: config(nil, nil), asks: "agent", want: ByAgent},
		"annotation: agent, not selected":       {in: config(ptr.To(true), edge), asks: "agent", want: ByAgent},
		"annotation: manager":                   {in: config(ptr.To(true), nil), asks: "manager", want: ByManager},
		"no config, its agent has checked in":   {in: settings.Default().Cluster, fleet: fleet(true, ""), want: ByAgent},
		"no config, it has not":                 {in: settings.Default().Cluster, fleet: fleet(false, ""), want: ByManager},
		"no config, Fleet has installed one":    {in: settings.Default().Cluster, fleet: fleet(true, "edge-kubeconfig"), want: ByManager},
		"no config, annotation: manager":        {in: settings.Default().Cluster, fleet: fleet(true, ""), asks: "manager", want: ByManager},
		"a config without agentInitiated":       {in: config(nil, nil), fleet: fleet(true, ""), want: ByManager},
		"annotation: unknown value":             {in: config(ptr.To(true), nil), asks: "Manager", want: ByAgent},
	} {
		t.Run(name, func(t *testing.T) {
			subject := Subject{Labels: test.labels, Annotations: map[string]string{}}
			if test.class != "" {
				subject.Class = types.NamespacedName{Namespace: "classes", Name: test.class}
			}
			if test.asks != "" {
				subject.Annotations[RegistrationAnnotation] = test.asks
			}
			if got := RegistrationOf(test.in, subject, test.fleet); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Helm writes its label over ours. Without a label, CAAPH has the CRD back.
func TestIsHelmCRDOurs(t *testing.T) {
	for name, test := range map[string]struct {
		label, release string
		want           bool
	}{
		"by kubectl":                {ManagedBy, "", true},
		"by our release":            {"Helm", "muster-system", true},
		"by a release elsewhere":    {"Helm", "caaph-system", false},
		"by no release":             {"Helm", "", false},
		"taken back from a release": {"", "muster-system", false},
		"CAAPH's":                   {"", "", false},
	} {
		crd := &metav1.PartialObjectMetadata{}
		crd.Labels = map[string]string{ManagedByLabel: test.label}
		if test.release != "" {
			crd.Annotations = map[string]string{"meta.helm.sh/release-namespace": test.release}
		}
		for namespace, want := range map[string]bool{"muster-system": test.want, "": test.label == ManagedBy} {
			if got := IsHelmCRDOurs(crd, namespace); got != want {
				t.Errorf("%s, with Muster in %q: %t", name, namespace, got)
			}
		}
	}
}
