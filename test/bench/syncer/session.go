package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	syncer    = "muster-syncer"
	webhook   = "muster-webhook"
	apiserver = "kube-apiserver"
	// adminUser is who plays Cluster API and its users.
	adminUser = "admin"
	// armLabel is on namespaces and says who imports the Clusters in them.
	armLabel = "muster-bench"
	armBare  = "bare"
	// patience is how long anything may take.
	patience = 15 * time.Minute
)

// session is a stack with Clusters on it.
type session struct {
	options
	env   *stack.Stack
	admin client.Client
	begin time.Time
	// processors is what they had done then.
	processors  processorTime
	diagnostics *diagnostics
	// canaries tell when a syncer has started to work.
	canaries *canaries
	// labelled is how often a label of the classes was changed.
	labelled int
}

// open starts a stack; which Muster runs on it is in the stack's options.
func open(ctx context.Context, o options, muster stack.Options) (*session, error) {
	muster.Muster, muster.Progress, muster.Dir = true, os.Stderr, cmp.Or(muster.Dir, o.dir)
	env, err := stack.Up(ctx, muster)
	if err != nil {
		return nil, err
	}
	s := &session{options: o, env: env, begin: time.Now()}
	if err := s.connect(ctx); err != nil {
		_ = env.Down()
		return nil, err
	}
	s.processors, err = processorsUntilNow(env)
	return s, err
}

// close stops the stack and adds to the first table how much of the machine somebody else
// had meanwhile: figures of time from a machine that is not quiet mean little.
func (s *session) close(tables []report.Table) error {
	now, err := processorsUntilNow(s.env)
	if err == nil && len(tables) > 0 {
		others := (now.busy - s.processors.busy) - (now.ours - s.processors.ours)
		share := others.Seconds() / (time.Since(s.begin).Seconds() * float64(runtime.NumCPU()))
		tables[0].Note("others had %.0f%% of the processors meanwhile", 100*max(0, share))
	}
	return errors.Join(err, s.env.Down())
}

func (s *session) connect(ctx context.Context) error {
	var err error
	if s.admin, err = fixture.Client(s.env); err != nil {
		return err
	}
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o755); err != nil {
			return err
		}
	}
	s.diagnostics, err = newDiagnostics(ctx, s)
	return err
}

func (s *session) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7s  %s\n", time.Since(s.begin).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// generator returns one for Clusters that the syncer imports.
func (s *session) generator() *load.Generator {
	return &load.Generator{
		Client: s.admin, Concurrency: s.concurrency,
		Shape: load.Shape{Prefix: "bench", Namespaces: s.namespaces, Classes: s.classes},
	}
}

// configure turns the import on or off. Whoever is initialized while it is off is imported
// at once when it is turned on: by one write, with nothing else going on.
func (s *session) configure(ctx context.Context, enabled bool) error {
	_, err := s.setConfig(ctx, func(spec *addonsv1.FleetAddonConfigSpec) { spec.Cluster.Enabled = &enabled })
	return err
}

// rename changes what new Clusters are called in Fleet. That concerns the syncer, which has
// to look at every Cluster, and changes none: each is pinned to its name.
func (s *session) rename(ctx context.Context, suffix string) error {
	return s.changeConfig(ctx, func(spec *addonsv1.FleetAddonConfigSpec) {
		spec.Cluster.Naming = &addonsv1.NamingStrategy{Suffix: suffix}
	})
}

// touchConfig changes what concerns the webhook only.
func (s *session) touchConfig(ctx context.Context) error {
	return s.changeConfig(ctx, func(spec *addonsv1.FleetAddonConfigSpec) {
		if spec.Policy == nil || spec.Policy.CrossNamespaceClass != addonsv1.CrossNamespaceClassWarn {
			spec.Policy = &addonsv1.PolicyConfig{CrossNamespaceClass: addonsv1.CrossNamespaceClassWarn}
		} else {
			spec.Policy.CrossNamespaceClass = addonsv1.CrossNamespaceClassEnforce
		}
	})
}

func (s *session) changeConfig(ctx context.Context, change func(*addonsv1.FleetAddonConfigSpec)) error {
	changed, err := s.setConfig(ctx, change)
	if err == nil && !changed {
		return errors.New("the FleetAddonConfig did not change")
	}
	return err
}

func (s *session) setConfig(ctx context.Context, change func(*addonsv1.FleetAddonConfigSpec)) (changed bool, err error) {
	config := fixture.Config()
	var before int64
	_, err = controllerutil.CreateOrPatch(ctx, s.admin, config, func() error {
		before = config.Generation
		if config.Spec.Cluster == nil {
			config.Spec.Cluster = &addonsv1.ClusterConfig{NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: armLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{armBare}}},
			}}
		}
		change(&config.Spec)
		return nil
	})
	return config.Generation != before, err
}

// startSyncer starts the syncer, and waits until it leads and has nothing to do.
func (s *session) startSyncer(ctx context.Context) error {
	begin := metav1.NowMicro()
	if err := s.env.Start(ctx, syncer); err != nil {
		return err
	}
	if err := poll.Until(ctx, "the syncer to lead", time.Minute, func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: "muster-system", Name: syncer}, lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" || lease.Spec.RenewTime.Before(&begin) {
			return errors.New("nobody leads")
		}
		return nil
	}); err != nil {
		return err
	}
	return s.quiet(ctx)
}

// quiet waits for the syncer to have nothing to do.
func (s *session) quiet(ctx context.Context) error {
	p, err := s.followSyncer()
	if err != nil {
		return err
	}
	return p.quiet(ctx)
}

// cpu returns the processor time that a process has used.
func (s *session) cpu(name string) (time.Duration, error) {
	id, err := pid(s.env, name)
	if err != nil {
		return 0, err
	}
	return cpuOf(id)
}

func (s *session) memory(name string) (usage.Memory, error) {
	id, err := pid(s.env, name)
	if err != nil {
		return usage.Memory{}, err
	}
	return usage.MemoryOf(id)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
