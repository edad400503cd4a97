package view

import (
	"strings"
	"testing"
)

func TestShown(t *testing.T) {
	long := strings.Repeat("é", 40_000)
	got := shown(long)
	if len(got) > longest || !strings.HasSuffix(got, "é…") {
		t.Errorf("%[2]d of %[1]d bytes are kept, with the end %[3]q", len(long), len(got), got[len(got)-20:])
	}
}
