package main

import (
	"context"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
)

// TestCheckExitCodes compares the exit codes. A Cluster that does not exist is not healthy.
func TestCheckExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		state string
		args  []string
		want  int
	}{
		"all are well":                {"healthy", nil, 0},
		"one is well":                 {"bundle-failing", []string{"classes/dev"}, 0},
		"a class is well":             {"healthy", []string{"class/standard"}, 0},
		"one is not":                  {"bundle-failing", []string{"team-a/prod"}, 1},
		"its class is not":            {"bundle-failing", []string{"class/standard"}, 1},
		"held is fine":                {"paused", []string{"team-a/prod"}, 0},
		"no such Cluster":             {"healthy", []string{"team-a/typo"}, 2},
		"no such Cluster among ill":   {"bundle-failing", []string{"typo"}, 2},
		"no such class":               {"healthy", []string{"class/typo"}, 2},
		"no such Cluster, waited for": {"healthy", []string{"team-a/typo", "--wait", "--timeout=1ms"}, 2},
		"an unknown format":           {"healthy", []string{"-o", "typo"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"check", "-f", stateFile(t, test.state)}, test.args...)
			out, err := muster(t, args...)
			if got := program.ExitCode(err); got != test.want {
				t.Errorf("%v: got %d, want %d: %v\n%s", args, got, test.want, err, out)
			}
		})
	}
}

// TestProblemsOfNobody asks for the problems of a Cluster that does not exist.
func TestProblemsOfNobody(t *testing.T) {
	if out, err := muster(t, "tree", "--problems", "team-a/typo", "-f", stateFile(t, "healthy")); err == nil {
		t.Errorf("no error, and this was printed:\n%s", out)
	}
}

// arriving is a cluster in which a Cluster is made after a while.
type arriving struct {
	client.Reader
	looks *int
}

func (a arriving) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch list.(type) {
	case *clusterv1.ClusterList:
		*a.looks++
	case *fleetv1.ClusterList:
	default:
		return a.Reader.List(ctx, list, options...)
	}
	if *a.looks == 1 {
		return nil
	}
	return a.Reader.List(ctx, list, options...)
}

// Now implements the clock of a file.
func (a arriving) Now() time.Time { return noon }

// TestCheckWaitsForACluster waits for a Cluster that does not exist yet.
func TestCheckWaitsForACluster(t *testing.T) {
	looks := 0
	out := through(t, func(reader client.Reader) client.Reader { return arriving{reader, &looks} },
		"check", "classes/dev", "--wait", "--quiet", "-f", stateFile(t, "healthy"))
	if out != "" || looks != 2 {
		t.Errorf("after %d looks: %s", looks, out)
	}
}
