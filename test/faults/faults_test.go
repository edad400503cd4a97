// Package faults is a chaos test: it breaks parts under a running Muster at random moments, and demands that Muster
// ends as if nothing had happened.
//
// A run has namespaces of its own. People (see people_test.go) create Clusters there, initialize, relabel, rebase
// and delete them, and change control-plane objects, classes and the FleetAddonConfig. In the middle of this a fault
// strikes; they go on until it is over. Then they stop, and the run compares the objects with the state that package
// oracle derives from the people's wishes alone, starting from nothing: an import before the fault does not excuse a
// Cluster that is missing after it. A run passes if
//
//   - Muster makes all objects that the oracle expects, and no others, within the deadline, labels, template values
//     and conditions included, and the webhook answers as before;
//   - nothing is lost: no object that the oracle expects is missing at the deadline;
//   - nothing is orphaned: there is no object of Muster that the oracle does not expect, at the deadline, or when
//     everything that people made is deleted;
//   - nothing fails wrongly: no request is refused that should have been accepted, or the other way round. While the
//     API server or its etcd is down, the API server itself refuses requests; people retry those, as with kubectl,
//     and they do not count. A refusal by a webhook, or because a webhook does not answer, always counts, with one
//     exception: while no webhook can be reached, failurePolicy Fail rightly refuses Clusters with a class of
//     another namespace, and changes of the FleetAddonConfig.
//
// One fault strikes a staged rollout instead: it stops the program that carries the rollout out, Fleet's controller
// and the API server in any order. The run judges each event, and in the end the rollout completes (see package
// rollouts).
//
// The harness plays a cluster's surroundings: a kubelet that restarts ended processes, at once and then at growing
// intervals; a Service that connects to ready replicas; a controller-manager that restarts after the API server was
// away, like one that has lost its lease.
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
	// strike breaks something and, except for kills, repairs it. It returns when everything that Muster needs works
	// again.
	strike func(context.Context, *run) error
	// agentInitiated means that there are Clusters whose agents register themselves, and the registrar that they
	// need.
	agentInitiated bool
	// helm means that there are HelmChartProxies, and the program that carries them out.
	helm bool
	// rollout means that everything strikes a staged rollout on Fleet's own controller, and the run judges each
	// event: see package rollouts.
	rollout bool
	// short makes it strike with -short, too: two faults show that all can.
	short bool
}

// faults are all faults. The long ones begin first, so that no stack is busy alone at the end.
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

// idle are the stacks that no fault uses, with Fleet's controller and without. Of each kind there are at most as many
// as parallel tests.
var idle = map[bool]chan *lab{false: make(chan *lab, 64), true: make(chan *lab, 64)}

// seed is the seed for the next run of each fault; -count makes them strike again with the following seeds.
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
			// The next fault gets another stack.
			t.Errorf("seed %d: %v", seed, err)
			path, err := l.saveLogs(fmt.Sprintf("%s-%d", f.name, seed))
			t.Logf("the logs are in %s (%v)", path, err)
			if err := l.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// strikes makes a fault strike once, and returns a summary.
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

// saveLogs keeps the logs of a failed run.
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

// run is one strike of a fault.
type run struct {
	*lab
	*world
	*tally

	rng *rand.Rand
	// over is when everything that Muster needs worked again, if that was before the fault's end.
	over time.Time
	// mend undoes damage that lasts until Muster has come to rest.
	mend func()
	// injected is how many failures the proxy has injected.
	injected int

	converged      bool
	took           time.Duration
	lost, orphaned []string
	problem        error
}

// between returns a random duration.
func (r *run) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.rng.Int64N(int64(to-from)))
}

// pause waits for a random duration, unless ctx ends.
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

// restartControllers restarts Kubernetes' own controllers, as they do when they could not renew their lease, so that
// they do not sleep until their next retry.
func (r *run) restartControllers(ctx context.Context) error { return r.kill(ctx, controllers) }
