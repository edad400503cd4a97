package random

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/rancher/player"
	"github.com/muster-fleet/muster/test/stack/poll"
)

// rancherStep is something that a user, Turtles or Rancher does about a Cluster.
type rancherStep struct {
	name   string
	weight int
	can    func(facts, *downstream) bool
	do     func(*rancherScene, *downstream) error
}

var rancherSteps = []rancherStep{
	{"a user makes a Cluster", 20, func(f facts, _ *downstream) bool { return f.cluster == nil }, (*rancherScene).makesCluster},
	{"a user marks a Cluster for Turtles", 4, hasCluster, (*rancherScene).marks},
	{"a user labels a Cluster", 4, hasCluster, (*rancherScene).labels},
	{"Turtles imports", 20, func(f facts, _ *downstream) bool {
		return f.cluster != nil && f.isMarked() && !f.isDone && !f.isManaged
	},
		(*rancherScene).turtlesImports},
	{"Rancher assigns a workspace", 12, func(f facts, d *downstream) bool { return isLive(f) && !f.isExternal && d.Workspace == "" },
		(*rancherScene).assigns},
	{"Rancher provisions", 12, func(f facts, d *downstream) bool { return isLive(f) && d.Workspace != "" && d.Provisioning == nil }, (*rancherScene).provisions},
	{"Rancher's agent becomes ready", 12, func(f facts, d *downstream) bool { return isLive(f) && d.Provisioning != nil && !f.isReady },
		(*rancherScene).becomesReady},
	{"Rancher applies", 30, func(f facts, _ *downstream) bool { return isLive(f) && f.isReady && !f.isExternal }, (*rancherScene).applies},
	{"Rancher does all that is left of an import", 40, func(f facts, _ *downstream) bool { return isLive(f) && !f.isExternal && f.fleet == nil },
		(*rancherScene).finishes},
	{"the annotation for external management changes", 8, func(f facts, _ *downstream) bool { return isLive(f) }, (*rancherScene).flips},
	{"Rancher's Fleet Cluster is deleted", 6, func(f facts, _ *downstream) bool { return f.fleet != nil }, (*rancherScene).deletesFleet},
	{"a user deletes Muster's Fleet Cluster", 6, func(f facts, _ *downstream) bool { return f.own != nil },
		func(s *rancherScene, d *downstream) error {
			own := s.factsOf(d).own.DeepCopy()
			return client.IgnoreNotFound(s.change(d, nothing, func() error { return s.Admin.Delete(ctx, own) }))
		}},
	{"a user deletes the management Cluster", 4, func(f facts, _ *downstream) bool { return isLive(f) }, (*rancherScene).deletesManagement},
	{"a user deletes the Cluster", 3, hasCluster, (*rancherScene).deletesCluster},
}

func hasCluster(f facts, _ *downstream) bool { return f.cluster != nil }
func isLive(f facts) bool                    { return f.cluster != nil && f.isManaged && !f.isDeleting }
func nothing(*facts)                         {}

func (s *rancherScene) makesCluster(d *downstream) error {
	mark := oneOf(s.rng, "", "true", "true", "false")
	cluster := fixture.Cluster(d.namespace, d.name, oneOf(s.rng, "", "std"), "")
	cluster.Labels = map[string]string{"env": "prod", "own": fmt.Sprint(s.steps)}
	if mark != "" {
		cluster.Labels[player.AutoImport] = mark
	}
	return s.change(d, func(f *facts) { f.cluster, f.mark = cluster, mark }, func() error { return s.NewCluster(ctx, cluster) })
}

func (s *rancherScene) marks(d *downstream) error {
	mark := oneOf(s.rng, "", "true", "false")
	return s.change(d, func(f *facts) { f.mark = mark }, func() error {
		return patchAs(s.Admin, d.cluster.DeepCopy(), metadata("labels", player.AutoImport, mark))
	})
}

// labels changes a label that Turtles did not copy.
func (s *rancherScene) labels(d *downstream) error {
	return s.change(d, nothing, func() error {
		return patchAs(s.Admin, d.cluster.DeepCopy(), metadata("labels", "own", fmt.Sprint(s.steps)))
	})
}

func (s *rancherScene) turtlesImports(d *downstream) error {
	annotations := map[string]string{}
	isExternal := s.rng.IntN(4) == 0
	if isExternal {
		annotations[player.ExternallyManaged] = "true"
	}
	return s.change(d, func(f *facts) { f.isManaged, f.isExternal, f.hasFinalizer = true, isExternal, true }, func() (err error) {
		d.Downstream, err = s.TurtlesImports(ctx, d.cluster.DeepCopy(), annotations)
		if err == nil {
			delete(d.Labels, "own")
		}
		return err
	})
}

func (s *rancherScene) assigns(d *downstream) error {
	return s.change(d, nothing, func() error { return d.AssignsWorkspace(ctx, s.workspace) })
}

func (s *rancherScene) becomesReady(d *downstream) error {
	return s.change(d, func(f *facts) { f.isReady = true }, func() error { return d.BecomesReady(ctx) })
}

func (s *rancherScene) provisions(d *downstream) error {
	s.mu.Lock()
	d.fleetKey = types.NamespacedName{Namespace: d.Workspace, Name: d.Management.GetName()}
	s.mu.Unlock()
	return s.change(d, nothing, func() error { return d.Provisions(ctx) })
}

// applies plays Rancher, which makes its Fleet Cluster or writes it again, perhaps with another label.
func (s *rancherScene) applies(d *downstream) error {
	if s.rng.IntN(3) == 0 {
		d.Labels["region"] = fmt.Sprint(s.steps)
	}
	want := d.FleetCluster()
	s.mu.Lock()
	d.wants = append(d.wants, want)
	s.mu.Unlock()
	if err := s.change(d, nothing, d.Applies); err != nil {
		return err
	}
	return s.until(d, "Rancher's Fleet Cluster to be seen", func(f facts) bool { return f.fleet != nil })
}

// finishes takes every step that is left until Rancher's Fleet Cluster is there.
func (s *rancherScene) finishes(d *downstream) error {
	if d.Workspace == "" {
		if err := s.assigns(d); err != nil {
			return err
		}
	}
	if d.Provisioning == nil {
		if err := s.provisions(d); err != nil {
			return err
		}
	}
	if !s.factsOf(d).isReady {
		if err := s.becomesReady(d); err != nil {
			return err
		}
	}
	return s.applies(d)
}

func (s *rancherScene) flips(d *downstream) error {
	value := oneOf(s.rng, "", "true", "false")
	return s.change(d, func(f *facts) { f.isExternal = value == "true" }, func() error {
		return patchAs(s.Admin, d.Management.DeepCopy(), metadata("annotations", player.ExternallyManaged, value))
	})
}

func (s *rancherScene) deletesFleet(d *downstream) error {
	gone := s.factsOf(d).fleet.DeepCopy()
	if gone == nil {
		return nil
	}
	if err := s.change(d, func(f *facts) { f.fleet, f.isAttached = nil, false }, func() error {
		return client.IgnoreNotFound(s.Admin.Delete(ctx, gone))
	}); err != nil {
		return err
	}
	return s.until(d, "Rancher's Fleet Cluster to go", func(f facts) bool { return f.fleet == nil })
}

// deletesManagement plays a user who deletes the management Cluster, and Turtles and Rancher, who then clean up.
// Sometimes Rancher's Fleet Cluster is left behind: Muster knows whose it is once it was attached.
func (s *rancherScene) deletesManagement(d *downstream) error {
	if s.rng.IntN(4) > 0 {
		if err := s.change(d, func(f *facts) { f.isDone = true }, func() error {
			return patchAs(s.Admin, d.cluster.DeepCopy(), metadata("annotations", "imported", "true"))
		}); err != nil {
			return err
		}
	}
	if err := s.change(d, func(f *facts) { f.isDeleting = true }, func() error { return s.Admin.Delete(ctx, d.Management.DeepCopy()) }); err != nil {
		return err
	}
	s.listen(oneOf(s.rng, 0, 3))
	now := s.factsOf(d)
	isKnown := now.fleet != nil && now.isAttached
	if now.fleet != nil && !isKnown {
		if err := s.deletesFleet(d); err != nil {
			return err
		}
	}
	return s.removesRanchers(d, isKnown && s.rng.IntN(3) == 0)
}

// removesRanchers plays Turtles and Rancher: they let the management Cluster go, delete the provisioning Cluster, and
// delete the Fleet Cluster, or leave it behind.
func (s *rancherScene) removesRanchers(d *downstream, leaves bool) error {
	effect := func(f *facts) { f.isManaged, f.isDeleting, f.isExternal, f.isReady = false, false, false, false }
	if err := s.change(d, effect, func() error { return s.Goes(ctx, d.Management.DeepCopy()) }); err != nil {
		return err
	}
	s.listen(oneOf(s.rng, 0, 3))
	if d.Provisioning == nil {
		return nil
	}
	if err := s.Goes(ctx, d.Provisioning.DeepCopy()); err != nil || leaves {
		return err
	}
	return s.deletesFleet(d)
}

// deletesCluster plays a user who deletes the CAPI Cluster, and Turtles and Rancher, who then clean up.
func (s *rancherScene) deletesCluster(d *downstream) error {
	gone := d.cluster.DeepCopy()
	s.mu.Lock()
	d.cluster = nil
	s.mu.Unlock()
	if err := s.Goes(ctx, gone); err != nil {
		return err
	}
	if err := s.until(d, "the Cluster to go", func(facts) bool {
		return client.IgnoreNotFound(s.Admin.Get(ctx, client.ObjectKeyFromObject(gone), gone.DeepCopy())) == nil
	}); err != nil {
		return err
	}
	s.listen(oneOf(s.rng, 0, 3))
	if s.factsOf(d).isManaged {
		if err := s.removesRanchers(d, false); err != nil {
			return err
		}
	}
	if s.factsOf(d).fleet != nil {
		if err := s.deletesFleet(d); err != nil {
			return err
		}
	}
	if err := s.until(d, "the Fleet Clusters to go", func(f facts) bool { return f.own == nil && f.fleet == nil }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.Downstream, d.fleetKey, d.wants = nil, types.NamespacedName{}, nil
	d.facts = facts{namespaceMark: d.namespaceMark}
	d.review()
	return nil
}

// until waits for something that the judge sees.
func (s *rancherScene) until(d *downstream, what string, is func(facts) bool) error {
	return poll.UntilOr(ctx, what, 30*time.Second, func(context.Context) error {
		if !is(s.factsOf(d)) {
			return errors.New(s.factsOf(d).String())
		}
		return nil
	}, s.violated)
}

// close deletes all Clusters, and expects nothing to be left.
func (s *rancherScene) close() error {
	for _, d := range s.all {
		if s.factsOf(d).cluster == nil {
			continue
		}
		if err := s.deletesCluster(d); err != nil {
			return err
		}
	}
	return cmp.Or(s.settles(), s.violated())
}
