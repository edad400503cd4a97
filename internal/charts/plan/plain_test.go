package plan

import (
	"strings"
	"testing"
	"unicode/utf8"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
)

// What a repository has made Fleet say neither fills a condition nor fools who reads it.
func TestPlainMessages(t *testing.T) {
	op := &fleetv1.HelmOp{}
	op.Name = "x"
	for message, want := range map[string]string{
		"no chart":                     "HelmOp x: no chart",
		"a\x1b[2Jb\u202ec\x00":         `HelmOp x: a\x1b[2Jb\u202ec\x00`,
		strings.Repeat("é", 201):       "HelmOp x: " + strings.Repeat("é", 200) + "…",
		"a" + strings.Repeat("é", 200): "HelmOp x: a" + strings.Repeat("é", 199) + "…",
		strings.Repeat("\x1b", 1<<10):  "HelmOp x: " + strings.Repeat(`\x1b`, 100) + "…",
	} {
		op.Status.Conditions = []genericcondition.GenericCondition{{Type: fleetv1.HelmOpAcceptedCondition, Status: corev1.ConditionFalse, Message: message}}
		_, got := Follows(op, nil)
		expect(t, "trouble", got, want)
	}
	listed := list([]string{"a" + strings.Repeat("é", 300), "\x1b[2J"})
	if !utf8.ValidString(listed) || strings.Contains(listed, "\x1b") {
		t.Errorf("%q", listed)
	}
}
