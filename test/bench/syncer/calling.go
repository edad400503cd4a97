package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	registrar = "muster-registrar"
	// agentSize and tokenSize are about what Fleet's agent and a credential take.
	agentSize, tokenSize = 7 << 10, 900
)

// called is the memory of the registrar with a number of Clusters whose agents have called.
type called struct {
	n                  int
	settled, restarted usage.Memory
}

// measureCalling measures the memory of the optional registrar. The benchmark plays Fleet, and
// the agents.
func measureCalling(ctx context.Context, o options) (tables []report.Table, err error) {
	s, err := open(ctx, o, stack.Options{Profile: stack.API})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(tables)) }()
	if err := s.env.Apply(ctx, fixture.FleetSettings("https://fleet.example.com")); err != nil {
		return nil, err
	}
	if err := s.env.StartComponent(ctx, "registrar"); err != nil {
		return nil, err
	}
	if _, err := s.setConfig(ctx, func(spec *addonsv1.FleetAddonConfigSpec) { spec.Cluster.AgentInitiated = ptr.To(true) }); err != nil {
		return nil, err
	}
	g := s.generator()
	if err := g.Prepare(ctx); err != nil {
		return nil, err
	}
	var all []called
	have := 0
	for _, n := range steps(s.n) {
		c, err := s.measureCalled(ctx, g, have, n)
		if err != nil {
			return nil, fmt.Errorf("with %d Clusters: %w", n, err)
		}
		all, have = append(all, c), n
	}
	return []report.Table{callingTable(all)}, nil
}

func (s *session) measureCalled(ctx context.Context, g *load.Generator, have, n int) (c called, err error) {
	c.n = n
	id, err := pid(s.env, registrar)
	if err == nil {
		err = usage.ResetPeak(id)
	}
	if err != nil {
		return c, err
	}
	s.say("%d Clusters: register, hand out, call", n)
	if err := g.Create(ctx, have, n); err != nil {
		return c, err
	}
	group, all := errgroup.WithContext(ctx)
	group.SetLimit(s.concurrency)
	for i := have; i < n; i++ {
		group.Go(func() error { return s.playFleet(all, g.Key(i)) })
	}
	if err := group.Wait(); err != nil {
		return c, err
	}
	s.say("%d Clusters: memory of the registrar", n)
	if c.settled, err = s.atRest(ctx, registrar); err != nil {
		return c, err
	}
	if err := s.env.Restart(ctx, registrar); err != nil {
		return c, err
	}
	c.restarted, err = s.atRest(ctx, registrar)
	return c, err
}

// playFleet does for a Cluster what Fleet and its agent do, until the agent has called.
func (s *session) playFleet(ctx context.Context, key client.ObjectKey) error {
	fleet := &fleetv1.Cluster{}
	if err := poll.Until(ctx, "Fleet Cluster "+key.String(), patience, func(ctx context.Context) error {
		return s.admin.Get(ctx, key, fleet)
	}); err != nil {
		return err
	}
	if err := fixture.AssignNamespace(ctx, s.admin, fleet); err != nil {
		return err
	}
	bundle := oracle.Agent(fleet)
	bundle.Spec.Resources[0].Content += strings.Repeat("# a line of Fleet's agent\n", agentSize/len("# a line of Fleet's agent\n"))
	if err := s.admin.Create(ctx, bundle); err != nil {
		return err
	}
	var asked *fleetv1.ClusterRegistration
	if err := poll.Until(ctx, "the registration of "+key.String(), patience, func(ctx context.Context) error {
		var err error
		asked, err = s.registrationOf(ctx, fleet)
		return err
	}); err != nil {
		return err
	}
	if err := s.admin.Create(ctx, oracle.Credential(asked, fleet, strings.Repeat("t", tokenSize))); err != nil {
		return err
	}
	if err := fixture.Grant(ctx, s.admin, asked, fleet.Name); err != nil {
		return err
	}
	if err := poll.Until(ctx, "the manifest of "+key.String(), patience, func(ctx context.Context) error {
		return s.admin.Get(ctx, oracle.ManifestOf(key), &corev1.Secret{})
	}); err != nil {
		return err
	}
	if err := s.admin.Get(ctx, key, fleet); err != nil {
		return err
	}
	return fixture.Call(ctx, s.admin, fleet, time.Now())
}

// registrationOf finds what was registered for a Fleet Cluster. To list them for each of many
// would take most of the time: whose they are is enough.
func (s *session) registrationOf(ctx context.Context, fleet *fleetv1.Cluster) (*fleetv1.ClusterRegistration, error) {
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("ClusterRegistrationList"))
	if err := s.admin.List(ctx, all, client.InNamespace(fleet.Namespace)); err != nil {
		return nil, err
	}
	for _, one := range all.Items {
		if len(one.OwnerReferences) == 1 && one.OwnerReferences[0].UID == fleet.UID {
			asked := &fleetv1.ClusterRegistration{}
			return asked, s.admin.Get(ctx, types.NamespacedName{Namespace: one.Namespace, Name: one.Name}, asked)
		}
	}
	return nil, errors.New("there is none")
}

// atRest waits until a program does next to nothing and holds no less than before.
func (s *session) atRest(ctx context.Context, process string) (usage.Memory, error) {
	const look, looks, idle, hardly = 5 * time.Second, 24, 100 * time.Millisecond, 0.01
	var before usage.Memory
	var used time.Duration
	for range looks {
		if err := sleep(ctx, look); err != nil {
			return before, err
		}
		now, err := s.memory(process)
		if err != nil {
			return now, err
		}
		cpu, err := s.cpu(process)
		if err != nil {
			return now, err
		}
		if cpu-used < idle && before.Now-now.Now < hardly*before.Now {
			return now, nil
		}
		before, used = now, cpu
	}
	return before, fmt.Errorf("%s does not come to rest", process)
}

func callingTable(all []called) report.Table {
	table := report.Table{Title: "Memory of the registrar"}
	table.Note("VmRSS and VmHWM of /proc, of one replica; each Cluster's agent has called, and its manifest takes %d KiB", agentSize>>10)
	var settled, restarted []report.Point
	for _, c := range all {
		at := fmt.Sprintf(", %d Clusters that call", c.n)
		table.Add(
			report.Value("registrar, settled"+at, "MiB", c.settled.Now),
			report.Value("registrar, peak"+at, "MiB", c.settled.Peak),
			report.Value("registrar, settled after a restart"+at, "MiB", c.restarted.Now),
			report.Value("registrar, peak of a restart"+at, "MiB", c.restarted.Peak),
		)
		settled = append(settled, report.Point{X: float64(c.n), Y: c.settled.Now * 1024})
		restarted = append(restarted, report.Point{X: float64(c.n), Y: c.restarted.Now * 1024})
	}
	table.Add(
		report.Value("registrar's growth per Cluster", "KiB", report.Slope(settled)),
		report.Value("registrar's growth per Cluster, after restarts", "KiB", report.Slope(restarted)),
	)
	return table
}
