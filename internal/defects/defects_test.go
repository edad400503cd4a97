package defects

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestMessage(t *testing.T) {
	for version, want := range map[string]string{
		"0.12.0": "has", "0.12.0-alpha.6": "has", "0.12.19": "has", "0.13.15": "has", "0.14.10": "has", "0.15.6": "has", "0.15.6-rc.1": "has", "0.16.0": "has", "0.16.1-rc.2": "has", "0.16.1": "has",
		"0.12.20": "may have", "0.13.16-rc.2": "may have", "0.14.12": "may have", "0.15.7": "may have",
		"0.16.2-rc.1": "", "0.16.2": "", "0.16.3": "", "0.17.0-alpha.1": "", "0.17.0": "", "109.0.7+up0.15.7": "",
	} {
		got := Message(semver.MustParse(version))
		if prefix := fmt.Sprintf("Fleet %s %s a known defect: an agent", version, want); want == "" && got != "" || want != "" && !strings.HasPrefix(got, prefix) {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
	if got := Message(nil); got != "" {
		t.Errorf("without a version: %q", got)
	}
}

func TestRunning(t *testing.T) {
	for image, want := range map[string]string{
		"rancher/fleet:v0.16.0": "0.16.0", "registry:5000/rancher/fleet:v0.15.7-rc.1@sha256:0": "0.15.7-rc.1", "rancher/fleet:head": "<nil>", "rancher/fleet": "<nil>",
	} {
		controller := &appsv1.Deployment{}
		controller.Name = "fleet-controller"
		controller.Spec.Template.Spec.Containers = []corev1.Container{{Name: "sidecar", Image: "other:v1.2.3"}, {Name: controller.Name, Image: image}}
		if got := fmt.Sprint(Running(controller)); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

// docs/support.md has a row for each entry of the table.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/support.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, defect := range Known {
		shown := strings.NewReplacer("-0", "", "||", "or")
		notKnown := "none"
		if defect.NotKnown != "" {
			notKnown = "`" + strings.Join(strings.Split(shown.Replace(defect.NotKnown), " or "), "`, `") + "`"
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %s | [%[5]s](%[5]s) |", shown.Replace(defect.Versions), defect.Text, defect.Fixed, notKnown, defect.Source)
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/support.md lacks the row\n%s", row)
		}
	}
}
