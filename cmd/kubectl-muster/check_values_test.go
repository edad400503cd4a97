package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/settings"
)

// TestCheckNamesClustersThatWaitForARight checks for a Cluster that is not imported, and for one that keeps its last
// values, because the syncer may not read a kind.
func TestCheckNamesClustersThatWaitForARight(t *testing.T) {
	const may = "template values cannot be resolved: spec.infrastructureRef: the syncer may not read fooclusters.infrastructure.cluster.x-k8s.io; give it a ClusterRole"
	w := newWorld()
	waiting, _ := w.cluster("team-a", "new", standard)
	stale, _ := w.cluster("team-a", "old", standard)
	w.cluster("team-a", "fine", standard)
	w.notImported(waiting, "TemplateValuesUnresolved", may)
	told(stale, metav1.ConditionTrue, "TemplateValuesUnresolved", "the last good template values are kept: "+may)
	out, code := checked(t, w)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"new", "old"} {
		if !regexp.MustCompile(`(?m)^.* ` + name + ` .*TemplateValuesUnresolved.*may not read fooclusters`).MatchString(out) {
			t.Errorf("%s is not named:\n%s", name, out)
		}
	}
	if strings.Contains(out, " fine ") {
		t.Errorf("fine is named:\n%s", out)
	}
}

// TestCheckSaysWhoLetSecretsIn checks with lists that lack parts of the default.
func TestCheckSaysWhoLetSecretsIn(t *testing.T) {
	almost := slices.DeleteFunc(settings.DefaultExclude(), func(pointer string) bool { return strings.HasSuffix(pointer, "/*/data") })
	for name, test := range map[string]struct {
		list       *[]string
		want, lack string
	}{
		"the default":           {nil, "", "note"},
		"extended":              {ptr.To(append(settings.DefaultExclude(), "/Variables/x")), "", "note"},
		"everything":            {&[]string{"/ControlPlane"}, "", "note"},
		"nothing":               {&[]string{}, "admin-tool replaced the default of spec.cluster.templateValues.exclude, so that secret fields can reach Fleet, of KubeadmControlPlane, KThreesControlPlane", "VCDCluster"},
		"all but one of Talos'": {&almost, "of TalosControlPlane\n", "RKE2ControlPlane"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.cluster("team-a", "fine", standard)
			w.config.Spec.Cluster = &addonsv1.ClusterConfig{TemplateValues: &addonsv1.TemplateValuesConfig{Exclude: test.list}}
			w.config.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "other", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:cluster":{"f:enabled":{}}}}`)}},
				{Manager: "admin-tool", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:cluster":{"f:templateValues":{"f:exclude":{}}}}}`)}},
			}
			out, code := checked(t, w)
			if code != 0 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(out, test.want) || strings.Contains(out, test.lack) {
				t.Errorf("want %q, not %q:\n%s", test.want, test.lack, out)
			}
		})
	}
}

// TestCheckNamesOlderCRDs checks with the report of the syncer, which fails nothing.
func TestCheckNamesOlderCRDs(t *testing.T) {
	for status, isNamed := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: true, metav1.ConditionFalse: false} {
		w := newWorld()
		w.cluster("team-a", "fine", standard)
		w.config.Status.Conditions = []metav1.Condition{{
			Type: addonsv1.APIsAvailableCondition, Status: status, Reason: addonsv1.AvailableReason, Message: "older than the syncer: CRD x; apply it",
		}}
		if out, code := checked(t, w); code != 0 || strings.Contains(out, "older than the syncer: CRD x; apply it") != isNamed {
			t.Errorf("%s: exit code %d:\n%s", status, code, out)
		}
	}
}

// checked returns the output and the exit code of check for a world.
func checked(t *testing.T, w *world) (string, int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "world.yaml")
	if err := os.WriteFile(file, recorded(t, w.objects), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := muster(t, "check", "-f", file)
	return out, program.ExitCode(err)
}
