package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/bench/load"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/report"
)

// fillCommand is the argument with which this program fills caches, and does nothing else.
const fillCommand = "fill-caches"

// filled is what it says when its caches are.
const filled = "filled"

// fill fills controller-runtime's caches with the objects that the syncer reads the most of:
// Clusters, Fleet Clusters, and what Clusters refer to. Of each object it keeps nothing but
// the name. Then it says so, and keeps them up to date until its input ends. What this costs
// is the least that any syncer with these libraries does.
func fill(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	utilruntime.Must(clusterv1.AddToScheme(scheme))
	utilruntime.Must(fleetv1.AddToScheme(scheme))
	objects, err := cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: nameOnly})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- objects.Start(ctx) }()
	for _, object := range []client.Object{
		&clusterv1.Cluster{}, &fleetv1.Cluster{},
		fixture.ControlPlane(&clusterv1.Cluster{}), fixture.Infrastructure(&clusterv1.Cluster{}),
	} {
		if _, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
			return err
		}
	}
	if !objects.WaitForCacheSync(ctx) {
		return errors.New("the caches are not filled")
	}
	fmt.Println(filled)
	_, err = io.Copy(io.Discard, os.Stdin)
	stop()
	return errors.Join(err, <-ended)
}

func nameOnly(object any) (any, error) {
	name := func(from client.Object) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: from.GetNamespace(), Name: from.GetName(), ResourceVersion: from.GetResourceVersion()}
	}
	switch typed := object.(type) {
	case *clusterv1.Cluster:
		return &clusterv1.Cluster{ObjectMeta: name(typed)}, nil
	case *fleetv1.Cluster:
		return &fleetv1.Cluster{ObjectMeta: name(typed)}, nil
	case *unstructured.Unstructured:
		kept := &unstructured.Unstructured{}
		kept.SetGroupVersionKind(typed.GroupVersionKind())
		kept.SetNamespace(typed.GetNamespace())
		kept.SetName(typed.GetName())
		kept.SetResourceVersion(typed.GetResourceVersion())
		return kept, nil
	}
	return object, nil
}

// caches are a process that fills caches.
type caches struct {
	command *exec.Cmd
	input   io.Closer
	errors  bytes.Buffer
}

// fillCaches starts one, with the syncer's GOGC, and waits until its caches are filled.
func (s *session) fillCaches(ctx context.Context) (*caches, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &caches{command: exec.CommandContext(ctx, program, fillCommand, s.env.Kubeconfig)}
	c.command.Env = append(os.Environ(), "GOGC=50")
	c.command.Stderr = &c.errors
	if c.input, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if line, _ := bufio.NewReader(output).ReadString('\n'); line != filled+"\n" {
		_, err := c.end()
		return nil, errors.Join(fmt.Errorf("caches are not filled, but %q", line), err)
	}
	return c, nil
}

// end ends it, and returns the processor time that it used.
func (c *caches) end() (time.Duration, error) {
	_ = c.input.Close()
	if err := c.command.Wait(); err != nil {
		return 0, fmt.Errorf("filling caches: %w: %s", err, c.errors.String())
	}
	return c.command.ProcessState.UserTime() + c.command.ProcessState.SystemTime(), nil
}

// beside does something while caches are kept up to date.
func (s *session) beside(ctx context.Context, work func() error) error {
	c, err := s.fillCaches(ctx)
	if err != nil {
		return err
	}
	err = work()
	_, ended := c.end()
	return errors.Join(err, ended)
}

// bareLabel is on Fleet Clusters that the bare client wrote.
const bareLabel = "bench.example.com/bare"

// least is what anyone needs who watches all Clusters, and who writes to each.
type least struct {
	// filling is the processor time of a process that fills caches and does nothing else.
	filling time.Duration
	// writes is how long one write to each Fleet Cluster takes, as many at a time as the
	// syncer reconciles.
	writes time.Duration
}

// measureLeast measures with imported Clusters, while the syncer does not run.
func (s *session) measureLeast(ctx context.Context, g *load.Generator, n int) (l least, err error) {
	if err := s.env.Stop(ctx, syncer); err != nil {
		return l, err
	}
	c, err := s.fillCaches(ctx)
	if err != nil {
		return l, err
	}
	if l.filling, err = c.end(); err != nil {
		return l, err
	}
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(s.workers)
	begin := time.Now()
	for i := range n {
		group.Go(func() error {
			cluster := &fleetv1.Cluster{}
			cluster.Namespace, cluster.Name = g.Key(i).Namespace, g.Key(i).Name
			if err := s.admin.Patch(writing, cluster, labelPatch(bareLabel, n)); err != nil {
				return fmt.Errorf("labelling a Fleet Cluster: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return l, err
	}
	l.writes = time.Since(begin)
	if err := s.startSyncer(ctx); err != nil {
		return l, err
	}
	return l, s.quiet(ctx)
}

// fillingEach is the processor time of filling caches, in ms for each Cluster.
func (l level) fillingEach() float64 { return perOne(l.least.filling, l.n) }

// maxLook is which part of the processor time that filling caches with a Cluster takes
// looking at it may take.
const maxLook = 0.2

// look is what it costs to look at Clusters that are as they should be.
type look struct {
	// wanted is how many were to be looked at, looks how many looks there were.
	wanted, looks int
	cpu           time.Duration
	requests      requests
}

// lookAtAll makes a change after which a number of Clusters is looked at.
func (s *session) lookAtAll(ctx context.Context, n int, change func(context.Context) error) (l look, err error) {
	before, err := s.counts(ctx)
	if err != nil {
		return l, err
	}
	p, err := s.followSyncer()
	if err != nil {
		return l, err
	}
	if err := change(ctx); err != nil {
		return l, err
	}
	l.wanted = n
	l.looks, l.cpu, err = p.lookedAt(ctx, before, n)
	l.requests = p.requests
	return l, err
}

// lookedAt returns when a number of Clusters was looked at and the syncer is quiet, with the
// number of looks and the processor time since the phase began.
func (p *phase) lookedAt(ctx context.Context, before counts, n int) (looks int, cpu time.Duration, err error) {
	for progress := (progress{from: before}); ; {
		if err := p.quiet(ctx); err != nil {
			return 0, 0, err
		}
		// Before it is asked for its counts, which costs it something.
		if cpu, err = p.work(); err != nil {
			return 0, 0, err
		}
		now, err := p.session.counts(ctx)
		if err != nil {
			return 0, 0, err
		}
		if progress.over(now, n) {
			return now.looks - before.looks, cpu, nil
		}
	}
}

// measureLook lets the syncer look at every Cluster twice, because new ones would get
// another name, and then what they were called before.
func (s *session) measureLook(ctx context.Context, n int) (look, error) {
	var both look
	for _, suffix := range []string{"-renamed", ""} {
		one, err := s.lookAtAll(ctx, n, func(ctx context.Context) error { return s.rename(ctx, suffix) })
		if err != nil {
			return both, err
		}
		both.wanted, both.looks, both.cpu = both.wanted+n, both.looks+one.looks, both.cpu+one.cpu
		both.requests = append(both.requests, one.requests...)
	}
	return both, nil
}

func (l look) perCluster() float64 { return perOne(l.cpu, l.wanted) }

// all is a figure that is short if not every Cluster was looked at: then the others mean
// nothing.
func (l look) all(name string) report.Figure {
	return report.Value(name, "", float64(l.looks)).Against(float64(l.wanted)).RatioAtLeast(1)
}

func lookTable(levels []level) report.Table {
	table := report.Table{Title: "Looking at Clusters that have not changed"}
	table.Note("the FleetAddonConfig gets another spec.cluster.naming.suffix, and then that of before: it concerns the syncer, and changes no Cluster that is there; until each was looked at twice, by the syncer's own metrics, and it is idle")
	table.Note("baseline of the processor time: a process that fills the same caches, keeps the names only and does nothing else, divided by the Clusters")
	table.Note("a change that concerns the webhook only: spec.policy.crossNamespaceClass")
	for _, l := range levels {
		at := fmt.Sprintf(", %d Clusters", l.n)
		table.Add(
			report.Value("processor time for one Cluster"+at, "ms", l.unchanged.look.perCluster()).Against(l.fillingEach()).RatioAtMost(maxLook),
			l.unchanged.look.all("looks at Clusters"+at),
			nothing("requests"+at, l.unchanged.look.requests),
			report.Value("processor time of a change that concerns the webhook only"+at, "ms", report.Milliseconds(l.unchanged.elsewhere.cpu)),
			report.Value("looks at Clusters after it"+at, "", float64(l.unchanged.elsewhere.looks)),
			nothing("requests after it"+at, l.unchanged.elsewhere.requests),
		)
	}
	return table
}
