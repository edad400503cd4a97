package main

import (
	"context"
	"fmt"

	"github.com/muster-fleet/muster/test/fixture"
)

// measureSmall measures the memory of the programs of a small installation: one replica of each, with few Clusters. There
// are no HelmChartProxies, and no agents that register themselves.
func measureSmall(ctx context.Context, s *session) error {
	if err := s.env.Apply(ctx, fixture.FleetSettings("https://fleet.example.com")); err != nil {
		return err
	}
	for _, component := range []string{"helm", "registrar"} {
		if err := s.env.StartComponent(ctx, component); err != nil {
			return err
		}
	}
	if err := s.enable(ctx, true); err != nil {
		return err
	}
	g := s.clusters("bench", namespaces, classes)
	if err := s.warmUp(ctx, g); err != nil {
		return err
	}
	t := table{title: "A small installation"}
	t.note("memory is VmRSS after the imports, when the program is idle and holds no less than 5 s before")
	for _, n := range []int{100, 500} {
		s.say("%d Clusters: memory", n)
		if _, err := s.importAtOnce(ctx, g, n-g.next); err != nil {
			return err
		}
		for _, process := range []string{webhook, syncer, helm, "muster-registrar"} {
			memory, err := s.atRest(ctx, process)
			if err != nil {
				return err
			}
			t.add(value(fmt.Sprintf("%s, %d Clusters", process, n), "MiB", memory.Now))
		}
	}
	s.print(t)
	return nil
}
