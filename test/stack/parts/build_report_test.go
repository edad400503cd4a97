package parts

import (
	"strings"
	"testing"
)

func TestBuildReportCountsAndKeepsErrors(t *testing.T) {
	var progress strings.Builder
	report := &buildReport{progress: &progress}
	for _, text := range []string{
		"go: downloading k8s.io/api v0.36.3\nk8s.io/", "api/core/v1\n",
		"# example.com/broken\n", "broken.go:1:1: expected 'package'\n",
	} {
		if _, err := report.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if report.downloaded != 1 || report.compiled != 1 {
		t.Errorf("downloaded %d, compiled %d", report.downloaded, report.compiled)
	}
	if want := "# example.com/broken\nbroken.go:1:1: expected 'package'\n"; report.rest.String() != want {
		t.Errorf("kept %q, not %q", report.rest.String(), want)
	}
	if want := "build: ... 1 modules downloaded, 0 packages compiled\n"; progress.String() != want {
		t.Errorf("said %q, not %q: the second line came too early", progress.String(), want)
	}
}
