package kubelet

import (
	"testing"

	"github.com/muster-fleet/muster/test/stack/process"
)

// host gives out ports one after another.
type host struct{ port int }

func (h *host) Start(process.Spec) (*process.Process, error) { return nil, nil }
func (h *host) Drop(*process.Process)                        {}
func (h *host) Port(int) (int, error)                        { h.port++; return h.port, nil }

func TestPortsClashOnlyWithinOneNetwork(t *testing.T) {
	processes := &host{}
	one, other := &portMap{host: processes}, &portMap{host: processes}
	a, _ := one.move([]int{8080})
	b, _ := one.move([]int{8080, 8081})
	c, _ := other.move([]int{8080})
	if a[8080] != b[8080] || b[8080] == b[8081] || c[8080] == a[8080] {
		t.Errorf("moved to %v, %v and %v", a, b, c)
	}
}

func TestImagesAreFoundByRepositoryAndProgram(t *testing.T) {
	images := Images{"registry:5000/a/b": {Programs: map[string][]string{"cp": {"cp"}, "": {"entry"}}}}
	for _, test := range []struct{ image, command, want string }{
		{"registry:5000/a/b", "", "entry"},
		{"registry:5000/a/b:v1", "/usr/bin/cp", "cp"},
		{"registry:5000/a/b:v1@sha256:0", "cp", "cp"},
		{"registry:5000/a/b", "mv", ""},
		{"registry:5000/a", "", ""},
	} {
		_, program, err := images.find(test.image, test.command)
		if (err == nil) != (test.want != "") || (err == nil && program[0] != test.want) {
			t.Errorf("%s %q: %v, %v", test.image, test.command, program, err)
		}
	}
}
