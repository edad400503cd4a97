package random

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack"
)

// TestRancher plays Turtles and Rancher beside Muster, all seeds at once, while it kills Muster in the middle of what
// they do. It judges each event of a Fleet Cluster.
func TestRancher(t *testing.T) {
	first, seeds, steps := number(t, "MUSTER_SEED", 1), number(t, "MUSTER_SEEDS", 2), number(t, "MUSTER_STEPS", 50)
	if err := env.ApplyCRDs(ctx, player.CRDs()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := env.Kubectl(ctx, "delete", "--timeout=30s", "crd", "clusters.management.cattle.io", "clusters.provisioning.cattle.io"); err != nil {
			t.Error(err)
		}
	})
	begin, all := time.Now(), &outages{}
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed < first+seeds; seed++ {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				if err := playRancher(t, seed, steps, all.kill); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
		}
	})
	refused, err := env.AuditLog(stack.AuditFilter{User: stack.ServiceAccount("muster-system", syncerProcess), Since: begin, Where: func(event stack.AuditEvent) bool {
		return event.Code == 403
	}})
	if err != nil {
		t.Error(err)
	}
	for _, event := range refused {
		t.Errorf("refused: %s", event)
	}
}

func playRancher(t *testing.T, seed, steps int, kill func(string) error) error {
	begin := time.Now()
	direct, err := fixture.Client(env)
	if err != nil {
		return err
	}
	s, err := newRancherScene(seed, kill)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events, err := direct.Watch(watching, &fleetv1.ClusterList{})
	if err != nil {
		return err
	}
	go s.follow(events.ResultChan())
	err = s.play(steps)
	if err == nil {
		err = s.close()
	}
	t.Logf("seed %d: %d steps in %s; %d events of Fleet Clusters, %d imports, %d attachments, %d kills",
		seed, s.steps, time.Since(begin).Round(time.Second), s.events, s.imported, s.attached, s.kills)
	if err != nil {
		return errors.Join(err, errors.New("what came before:\n"+strings.Join(s.history[max(0, len(s.history)-40):], "\n")))
	}
	return nil
}
