// Package faults is a chaos test: it breaks things under a running Muster at random moments, and
// demands that Muster ends as if nothing had happened.
//
// A run has namespaces of its own. People (see people_test.go) create Clusters there,
// initialize, relabel, rebase and delete them, change control-plane objects, classes and
// the FleetAddonConfig. In the middle of it a fault strikes; they go on until it is over.
// Then they stop, and what is there is compared with what package oracle makes of their
// wishes alone, starting from nothing: that a Cluster was imported before the fault does
// not count in favour of what is there after it. A run passes if
//
//   - Muster makes all that the oracle expects, and nothing else, within the deadline,
//     labels, template values and conditions included, and the webhook answers as before;
//   - nothing is lost: no object that the oracle expects is missing at the deadline;
//   - nothing is orphaned: there is no object of Muster that the oracle does not expect, at the
//     deadline, or when everything that people made is deleted;
//   - nothing fails wrongly: no request is refused that should have been accepted, or the
//     other way round. While the API server or its etcd is down, it refuses requests
//     itself; people try those again, as with kubectl, and they do not count. What a
//     webhook refuses, or is refused because a webhook does not answer, counts always, but
//     for what failurePolicy Fail refuses while no webhook can be reached, which is right:
//     Clusters with a class of another namespace, and changes of the FleetAddonConfig.
//
// One fault strikes a staged rollout instead: the program that carries it out, Fleet's controller and the API server are
// taken away in any order. Each event is judged, and in the end the rollout completes (see package rollouts).
//
// The harness plays what a cluster has around the processes: a kubelet that starts what
// has ended, at once and then at growing distances; a Service that connects to replicas
// which are ready; a controller-manager that starts again after the API server was away,
// as one that has lost its lease does.
//
// A run is drawn from its seed, which is printed; the machine's timing is not.
package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/test/stack"
)

// fault is something that breaks.
type fault struct {
	name string
	// strike breaks something and, but for kills, mends it again. It returns when everything that
	// Muster needs is there again.
	strike func(context.Context, *run) error
	// agentInitiated means that there are Clusters whose agents register themselves, and the registrar that they need.
	agentInitiated bool
	// helm means that there are HelmChartProxies, and the program that carries them out.
	helm bool
	// rollout means that everything strikes a staged rollout on Fleet's own controller, each event of which is judged: see
	// package rollouts.
	rollout bool
	// short has it strike with -short, too: two of them show that all can.
	short bool
}

// faults are all that can strike. The long ones begin first, so that no stack is left alone with one in the end.
var faults = []fault{
	{name: "rollout-disturbed", rollout: true},
	{name: "apiserver-stopped", strike: stopAPIServer, helm: true},
	{name: "registrar-killed", strike: killRegistrar, agentInitiated: true},
	{name: "etcd-stopped", strike: stopEtcd, helm: true},
	{name: "helm-killed", strike: killHelm, helm: true},
	{name: "fleet-crds-removed", strike: removeFleetCRDs, helm: true},
	{name: "cert-manager-absent", strike: removeCertManager},
	{name: "syncer-killed", strike: killSyncer},
	{name: "certificate-expired", strike: expireCertificate},
	{name: "class-labels-changed", strike: changeClassLabels},
	{name: "watches-cut", strike: cutWatches, helm: true},
	{name: "webhooks-killed", strike: killBothWebhooks, helm: true, short: true},
	{name: "writes-fail", strike: failWrites, helm: true},
	{name: "syncer-terminated", strike: terminateSyncer, short: true},
	{name: "webhook-killed", strike: killOneWebhook},
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	code := m.Run()
	for _, labs := range idle {
		close(labs)
		for l := range labs {
			if err := l.close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// idle are the stacks on which nothing strikes, with Fleet's controller and without. Of each, there are as many as there
// are parallel tests, at most.
var idle = map[bool]chan *lab{false: make(chan *lab, 64), true: make(chan *lab, 64)}

// seed is that of the next run of each fault; -count lets them strike again with the ones after it.
var seed atomic.Uint64

func init() {
	first, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64)
	if err != nil {
		first = uint64(time.Now().Unix())
	}
	seed.Store(first)
}

func TestFaults(t *testing.T) {
	seed := seed.Add(1) - 1
	for _, f := range faults {
		if testing.Short() && !f.short {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var l *lab
			select {
			case l = <-idle[f.rollout]:
			default:
				var err error
				if l, err = newLab(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			said, err := l.strikes(t.Context(), f, seed)
			if err == nil {
				t.Logf("seed %d: %s", seed, said)
				idle[f.rollout] <- l
				return
			}
			// The next one gets another stack.
			t.Errorf("seed %d: %v", seed, err)
			path, err := l.saveLogs(fmt.Sprintf("%s-%d", f.name, seed))
			t.Logf("the logs are in %s (%v)", path, err)
			if err := l.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// strikes lets a fault strike once, and says what was seen.
func (l *lab) strikes(ctx context.Context, f fault, seed uint64) (said string, err error) {
	if f.rollout {
		return l.playRollout(ctx, seed)
	}
	r, err := l.play(ctx, f, seed)
	if err == nil {
		err = r.verdict()
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("converged after %s; %d requests, %d injected", r.took.Round(time.Millisecond), r.requests.Load(), r.injected), nil
}

// saveLogs keeps what helps to understand a run that went wrong.
func (l *lab) saveLogs(name string) (path string, err error) {
	dir := os.Getenv("MUSTER_TEST_DIR")
	if dir == "" {
		if dir, err = stack.DevDir(); err != nil {
			return "", err
		}
	}
	path = filepath.Join(dir, "faults", name)
	if err := os.RemoveAll(path); err != nil {
		return path, err
	}
	return path, os.CopyFS(path, os.DirFS(filepath.Join(l.env.Dir(), "logs")))
}

// run is one fault striking once.
type run struct {
	*lab
	*world
	*tally

	rng *rand.Rand
	// over is when everything that Muster needs was there again, if that was before the fault's end.
	over time.Time
	// mend undoes what lasts until Muster has come to rest.
	mend func()
	// injected is how often the proxy let something go wrong.
	injected int

	converged      bool
	took           time.Duration
	lost, orphaned []string
	problem        error
}

// between returns a random length of time.
func (r *run) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.rng.Int64N(int64(to-from)))
}

// pause waits for a random length of time, unless all is given up.
func (r *run) pause(ctx context.Context, from, to time.Duration) error {
	return sleep(ctx, r.between(from, to))
}

func sleep(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// kill ends processes with SIGKILL. The kubelet starts them again unless they are held.
func (r *run) kill(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := r.env.Kill(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// restartControllers is what Kubernetes' own controllers do when they could not renew
// their lease: they start again, and do not sleep until a retry is due.
func (r *run) restartControllers(ctx context.Context) error { return r.kill(ctx, controllers) }
