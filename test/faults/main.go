// Command faults lets things break under a running Muster, many times and at random
// moments, and demands that it comes out as if nothing had been.
//
// A run has namespaces of its own. People (see churn.go) create Clusters there,
// initialize, relabel, rebase and delete them, change control-plane objects, classes and
// the FleetAddonConfig. In the middle of it a fault strikes; they go on until it is over.
// Then they stop, and what is there is compared with what package oracle makes of their
// wishes alone, starting from nothing: that a Cluster was imported before the fault does
// not count in favour of what is there after it.
//
// Where charts is set of a fault, one of them also writes, changes and deletes HelmChartProxies, and
// the optional component helm carries them out.
//
// What the table says:
//
//   - converged: runs in which Muster made all that the oracle expects, and nothing else,
//     within the deadline, labels, template values and conditions included, and in which
//     the webhook answers as before. Longest and median are the time that took: from the
//     end of the fault (from the kill, where others take over), and from the last change
//     people made if that was later only where the fault lasts until they stop.
//   - lost: objects that the oracle expects and that are missing at the deadline.
//   - orphaned: objects of Muster that the oracle does not expect, at the deadline, or
//     when everything that people made is deleted.
//   - wrongly failed: requests that were refused and should have been accepted, or the
//     other way round. While the API server or its etcd is down, it refuses requests
//     itself; people try those again, as with kubectl, and they do not count. What a
//     webhook refuses, or is refused because a webhook does not answer, counts always.
//   - failed closed: requests that failurePolicy Fail refused while no webhook could be
//     reached, which is right: Clusters with a class of another namespace, and changes
//     of the FleetAddonConfig.
//
// The harness plays what a cluster has around the processes: a kubelet that starts what
// has ended, at once and then at growing distances; a Service that connects to replicas
// which are ready; a controller-manager that starts again after the API server was away,
// as one that has lost its lease does.
//
// A run is drawn from its seed, which is printed; the machine's timing is not.
// `-faults=NAME -runs=1 -seed=SEED` draws it again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/muster-fleet/muster/test/report"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/parts"
)

type options struct {
	runs     int
	faults   string
	seed     uint64
	stacks   int
	output   string
	from     string
	markdown bool
	hold     bool
}

// errBad says that Muster did not pass; the table says where.
var errBad = errors.New("not every fault passed as if nothing had been")

func main() {
	var o options
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	flag.IntVar(&o.runs, "runs", 20, "how often each fault strikes")
	flag.StringVar(&o.faults, "faults", strings.Join(names, ","), "the faults that strike")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()), "the seed of the first run of each fault; the next run has the next one")
	flag.IntVar(&o.stacks, "stacks", 2, "how many stacks run side by side")
	flag.StringVar(&o.output, "output", filepath.Join(".dev", "faults.json"), "where to write all of it as JSON; logs of runs that went wrong go beside it")
	flag.StringVar(&o.from, "from", "", "let nothing strike, and print what an earlier call wrote to this file")
	flag.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	flag.BoolVar(&o.hold, "hold", false, "leave the stack as it is when a run has gone wrong, until interrupted")
	flag.Parse()
	log.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runFaults(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func runFaults(ctx context.Context, o options) error {
	r, err := o.result(ctx)
	if err != nil {
		return err
	}
	r.print(os.Stdout, o.markdown)
	if !r.Good {
		return errBad
	}
	return nil
}

func (o options) result(ctx context.Context) (*result, error) {
	if o.from != "" {
		return report.Load[result](o.from)
	}
	var plan []strikeOnce
	for _, name := range strings.Split(o.faults, ",") {
		f, err := faultNamed(name)
		if err != nil {
			return nil, err
		}
		for number := range o.runs {
			plan = append(plan, strikeOnce{f, o.seed + uint64(number)})
		}
	}
	b, clean, err := build(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	defer clean()
	r, err := strikeAll(ctx, b, plan, o, os.Stderr)
	r.Seed = o.seed
	if err != nil {
		return nil, err
	}
	return r, report.Save(o.output, r)
}

// built is what stacks run from.
type built struct {
	tools *parts.Tools
	// programs are copies of Muster's: what is built meanwhile is not what is tested.
	programs map[string]string
}

func build(ctx context.Context, progress io.Writer) (built, func(), error) {
	clean := func() {}
	tools, err := stack.Build(ctx, stack.API, progress)
	if err != nil {
		return built{}, clean, err
	}
	if err := tools.BuildMuster(ctx, progress); err != nil {
		return built{}, clean, err
	}
	dir, err := os.MkdirTemp("", "muster-faults-")
	if err != nil {
		return built{}, clean, err
	}
	clean = func() { _ = os.RemoveAll(dir) }
	p := built{tools: tools, programs: map[string]string{}}
	for _, name := range []string{"syncer", "webhook", "registrar", "charts"} {
		content, err := os.ReadFile(tools.Bin(name))
		if err != nil {
			return p, clean, err
		}
		p.programs[name] = filepath.Join(dir, name)
		if err := os.WriteFile(p.programs[name], content, 0o755); err != nil {
			return p, clean, err
		}
	}
	return p, clean, nil
}

// strikeOnce is one run that is planned.
type strikeOnce struct {
	fault fault
	seed  uint64
}

// strikeAll lets everything strike that is planned, on several stacks side by side. A
// stack on which a run went wrong is replaced.
func strikeAll(ctx context.Context, p built, plan []strikeOnce, o options, progress io.Writer) (*result, error) {
	begin := time.Now()
	r := &result{Measured: begin.UTC().Format(time.RFC3339)}
	// The long ones first, so that no stack is left alone with one in the end.
	slices.SortStableFunc(plan, func(a, b strikeOnce) int { return int(b.fault.length - a.fault.length) })
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		mu       sync.Mutex
		wait     sync.WaitGroup
		problems []error
	)
	next := func() *strikeOnce {
		mu.Lock()
		defer mu.Unlock()
		if len(plan) == 0 || ctx.Err() != nil {
			return nil
		}
		s := plan[0]
		plan = plan[1:]
		return &s
	}
	for range min(o.stacks, len(plan)) {
		wait.Go(func() {
			err := strikeSome(ctx, p, next, o, progress, func(rec *record) {
				mu.Lock()
				defer mu.Unlock()
				r.Runs = append(r.Runs, rec)
				fmt.Fprintf(progress, "%s  %s (%d to go)\n", time.Now().UTC().Format(time.TimeOnly), rec, len(plan))
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, err)
				giveUp()
			}
		})
	}
	wait.Wait()
	r.Elapsed = time.Since(begin).Round(time.Second).String()
	r.Good = !slices.ContainsFunc(r.Runs, func(rec *record) bool { return !rec.good() })
	if len(problems) == 0 {
		problems = append(problems, context.Cause(ctx))
	}
	return r, errors.Join(problems...)
}

func strikeSome(ctx context.Context, p built, next func() *strikeOnce, o options, progress io.Writer, done func(*record)) (err error) {
	var l *lab
	defer func() {
		if l != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for s := next(); s != nil; s = next() {
		if l == nil {
			if l, err = newLab(ctx, p, io.Discard); err != nil {
				return err
			}
		}
		rec, err := l.play(ctx, s.fault, s.seed)
		if err == nil {
			done(rec)
		}
		if err == nil && rec.good() {
			continue
		}
		path, saveErr := l.save(filepath.Dir(o.output), rec)
		fmt.Fprintf(progress, "the logs and what was wrong are in %s\n", path)
		if o.hold {
			fmt.Fprintf(progress, "the stack is left as it is; KUBECONFIG=%s\n", l.env.Kubeconfig)
			<-ctx.Done()
		}
		err = errors.Join(err, saveErr, l.close())
		l = nil
		if err != nil {
			return err
		}
	}
	return nil
}

// save keeps what helps to understand a run that went wrong.
func (l *lab) save(dir string, rec *record) (string, error) {
	path := filepath.Join(dir, "faults", fmt.Sprintf("%s-%d", rec.Fault, rec.Seed))
	if err := os.RemoveAll(path); err != nil {
		return path, err
	}
	if err := os.CopyFS(path, os.DirFS(filepath.Join(l.env.Dir(), "logs"))); err != nil {
		return path, err
	}
	text := fmt.Sprintf("%s\n\nwrongly failed:\n%s\n\nlost: %v\norphaned: %v\n\n%s\n", rec, strings.Join(rec.Wrong, "\n"), rec.Lost, rec.Orphaned, rec.Problem)
	return path, os.WriteFile(filepath.Join(path, "what-was-wrong.txt"), []byte(text), 0o600)
}
