package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
)

// unchanged is what the syncer does while there is nothing to do.
type unchanged struct {
	// look is when all are looked at because the FleetAddonConfig has changed, elsewhere
	// when it has changed in what concerns the webhook only.
	look, elsewhere look
	// status are the requests after the status of control planes and Clusters changed.
	status        requests
	statusChanges int
	// resync are those of a syncer that resyncs all the time; nil if not measured.
	resync  requests
	resyncs int
}

func (s *session) measureUnchanged(ctx context.Context, g *load.Generator, n int, resync bool) (u unchanged, err error) {
	if err := s.measureLooks(ctx, n, &u); err != nil {
		return u, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return u, err
	}
	u.statusChanges = 2 * min(n, 100)
	for i := range u.statusChanges / 2 {
		for _, file := range []string{load.ControlPlaneFile, load.ClusterFile} {
			object, err := g.Object(file, i)
			if err != nil {
				return u, err
			}
			patch := fmt.Appendf(nil, `{"status":{"observedGeneration":%d}}`, time.Now().Unix())
			if err := s.admin.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return u, err
			}
		}
	}
	if err := p.quiet(ctx); err != nil {
		return u, err
	}
	u.status = p.requests
	if resync {
		u.resyncs, u.resync, err = s.measureResync(ctx)
	}
	return u, err
}

func (s *session) measureLooks(ctx context.Context, n int, u *unchanged) (err error) {
	if u.look, err = s.measureLook(ctx, n); err != nil {
		return err
	}
	u.elsewhere, err = s.lookAtAll(ctx, 0, s.touchConfig)
	return err
}

// measureResync runs the syncer with a short --sync-period for a while.
func (s *session) measureResync(ctx context.Context) (int, requests, error) {
	const period, periods = 5 * time.Second, 4
	name := types.NamespacedName{Namespace: "muster-system", Name: syncer}
	patch := func(text string) error {
		return s.admin.Patch(ctx, deployment(name), client.RawPatch(types.JSONPatchType, []byte(text)))
	}
	if err := patch(fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/args/0","value":"--sync-period=%s"}]`, period)); err != nil {
		return 0, nil, err
	}
	if err := s.restartSyncer(ctx); err != nil {
		return 0, nil, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return 0, nil, err
	}
	if err := sleep(ctx, periods*period); err != nil {
		return 0, nil, err
	}
	if _, err := p.read(); err != nil {
		return 0, nil, err
	}
	if err := patch(`[{"op":"remove","path":"/spec/template/spec/containers/0/args/0"}]`); err != nil {
		return 0, nil, err
	}
	return periods, p.requests, s.restartSyncer(ctx)
}

func (s *session) restartSyncer(ctx context.Context) error {
	if err := s.env.Stop(ctx, syncer); err != nil {
		return err
	}
	return s.startSyncer(ctx)
}
