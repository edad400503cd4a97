package installer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
)

func TestPreviewWrite(t *testing.T) {
	preview := &Previewed{
		Releases: []PreviewedRelease{
			{Name: CRDChart, To: "0.16.0", Changes: []string{"+ CustomResourceDefinition a"}},
			{Name: "fleet", From: "0.15.1", To: "0.16.0", Changes: []string{"~ Deployment b: .spec.replicas", "- Secret c"}},
			{Name: "other", From: "0.16.0", To: "0.16.0"},
		},
		Next:       string(writeGates),
		Conditions: []metav1.Condition{{Type: "FleetInstalled", Status: metav1.ConditionTrue, Reason: "Installed", Message: "Fleet 0.16.0"}},
	}
	var out strings.Builder
	if err := preview.Write(&out); err != nil {
		t.Fatal(err)
	}
	const want = `Helm release fleet-crd would be installed at 0.16.0:
  + CustomResourceDefinition a
Helm release fleet would be upgraded from 0.15.1 to 0.16.0:
  ~ Deployment b: .spec.replicas
  - Secret c
Helm release other would stay at 0.16.0:
would write the feature gates
FleetInstalled would be True, Installed: Fleet 0.16.0
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	out.Reset()
	nothing := &Previewed{Conditions: preview.Conditions}
	if err := nothing.Write(&out); err != nil || out.String() != "nothing would change: no Helm release of Fleet would be installed or upgraded\nFleetInstalled would be True, Installed: Fleet 0.16.0\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestDifference(t *testing.T) {
	const before = "kind: Deployment\nmetadata: {name: a, labels: {app: x, old: y}}\nspec: {replicas: 1, template: {spec: {containers: [{name: c}]}}}\n---\n" +
		"kind: Secret\nmetadata: {name: b}\n---\n# nothing\n---\nkind: Role\nmetadata: {name: same}\nrules: []\n"
	const after = "---\nkind: Role\nmetadata: {name: same}\nrules: []\n---\nkind: Service\nmetadata: {name: d}\n---\n" +
		"kind: Deployment\nmetadata: {name: a, labels: {app: z}}\nspec: {replicas: 1, paused: true, template: {spec: {containers: [{name: c, image: i}]}}}\n"
	got, err := difference(before, after)
	want := []string{"~ Deployment a: .metadata.labels.app, .metadata.labels.old, .spec.paused, .spec.template.spec.containers", "- Secret b", "+ Service d"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := difference(before, before); err != nil || got == nil || len(got) > 0 {
		t.Errorf("nothing changes, but it lists %v: %v", got, err)
	}
	if _, err := difference("a: [", before); err == nil {
		t.Error("a broken manifest is no error")
	}
}

// Without spec.install, a first release that failed is deployed again at its own version.
func TestPreviewOfFailedRelease(t *testing.T) {
	p := newFixture(t, custom())
	p.releases[FleetChart] = failed(released("0.16.0", nil), "")
	config := &addonsv1.FleetAddonConfig{Spec: custom()}
	preview, err := Preview(t.Context(), p.Client, p.releases, p.repository, config)
	if err != nil || len(preview.Releases) != 1 || preview.Releases[0].To != "0.16.0" {
		t.Errorf("%+v, %v", preview, err)
	}
}
