package parts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProgramsOfOneNameAreBuiltApart(t *testing.T) {
	a, b, other := program{name: "a", pkg: "one/main"}, program{name: "b", pkg: "two/main"}, program{name: "c", pkg: "c"}
	want := [][]program{{a, other}, {b}}
	if diff := cmp.Diff(want, buildable([]program{a, b, other}), cmp.AllowUnexported(program{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
