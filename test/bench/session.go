package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/bench/metrics"
	"github.com/muster-fleet/muster/test/bench/usage"
	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/stack"
)

const (
	syncer    = "muster-syncer"
	webhook   = "muster-webhook"
	apiserver = "kube-apiserver"
	// workers is the syncer's --cluster-concurrency as shipped.
	workers = 10
	// armLabel is on namespaces. It says which program imports the Clusters in them, or admits them.
	armLabel = "muster-bench"
	armBare  = "bare"
	// patience is how long any operation may take.
	patience = 15 * time.Minute
)

// session is a stack with Clusters on it.
type session struct {
	n     int
	env   *stack.Stack
	admin client.Client
	kube  *kubernetes.Clientset
	begin time.Time
	// others is the processor time that other processes had used at the beginning.
	others time.Duration
	// token gives access to metrics.
	token string
	// labelled is how often a label of the classes was changed.
	labelled int
	// short are the figures that missed their bar.
	short []string
}

// open starts a stack.
func open(ctx context.Context, n int) (*session, error) {
	env, err := stack.Up(ctx, stack.Options{Profile: stack.API, Muster: true, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	s := &session{n: n, env: env, begin: time.Now()}
	config, err := env.RESTConfig()
	if err == nil {
		s.kube, err = kubernetes.NewForConfig(config)
	}
	if err == nil {
		s.admin, err = fixture.ClientOf(config)
	}
	if err == nil {
		s.others, err = s.usedByOthers()
	}
	if err != nil {
		return nil, errors.Join(err, env.Down())
	}
	return s, nil
}

// close stops the stack and reports how much of the machine other processes used meanwhile: times from a busy machine
// mean little.
func (s *session) close(failed error) error {
	if others, err := s.usedByOthers(); err == nil {
		share := (others - s.others).Seconds() / (time.Since(s.begin).Seconds() * float64(runtime.NumCPU()))
		fmt.Printf("\nothers had %.0f%% of the processors meanwhile\n", 100*max(0, share))
	}
	return errors.Join(failed, s.env.Down())
}

// usedByOthers returns the processor time of all other processes, besides the benchmark and its children. Children
// that have ended count through their parent, this process.
func (s *session) usedByOthers() (time.Duration, error) {
	others, err := usage.Busy()
	if err != nil {
		return 0, err
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		own := syscall.Rusage{}
		if err := syscall.Getrusage(who, &own); err != nil {
			return 0, err
		}
		others -= time.Duration(own.Utime.Nano() + own.Stime.Nano())
	}
	for _, process := range s.env.Processes() {
		// A process that has just ended counts as a child.
		if used, err := usage.ProcessorTime(process.PID); process.Running && err == nil {
			others -= used
		}
	}
	return others, nil
}

func (s *session) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7s  %s\n", time.Since(s.begin).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// print prints a table as soon as it is measured: it is useful even if something fails later.
func (s *session) print(t table) {
	t.print(os.Stdout)
	for _, f := range t.figures {
		if f.verdict == missed {
			s.short = append(s.short, f.name)
		}
	}
}

// clusters returns a generator of Clusters that the syncer imports.
func (s *session) clusters(prefix string, namespaces, classes int) *generator {
	return &generator{admin: s.admin, prefix: prefix, namespaces: namespaces, classes: classes}
}

// configure changes the FleetAddonConfig.
func (s *session) configure(ctx context.Context, change func(*addonsv1.ClusterConfig)) error {
	config := fixture.Config()
	_, err := controllerutil.CreateOrPatch(ctx, s.admin, config, func() error {
		if config.Spec.Cluster == nil {
			config.Spec.Cluster = &addonsv1.ClusterConfig{NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: armLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{armBare}}},
			}}
		}
		change(config.Spec.Cluster)
		return nil
	})
	return err
}

// enable turns the import on or off. A Cluster that is initialized while the import is off is imported as soon as it
// is turned on: by one write, with nothing else going on.
func (s *session) enable(ctx context.Context, enabled bool) error {
	return s.configure(ctx, func(config *addonsv1.ClusterConfig) { config.Enabled = &enabled })
}

// rename changes the names of new Clusters in Fleet. The syncer must therefore reconcile every Cluster, but changes
// none, because each is pinned to its name.
func (s *session) rename(ctx context.Context, suffix string) error {
	return s.configure(ctx, func(config *addonsv1.ClusterConfig) { config.Naming = &addonsv1.NamingStrategy{Suffix: suffix} })
}

// restartSyncer starts or restarts the syncer, and waits until it has reconciled this many Clusters and is quiet.
func (s *session) restartSyncer(ctx context.Context, n int) (*phase, error) {
	if err := s.env.Stop(ctx, syncer); err != nil {
		return nil, err
	}
	return s.duringReconciles(ctx, n, func(*phase) error { return s.env.Start(ctx, syncer) })
}

// duringReconciles measures the syncer while happens runs, and until the syncer has done this many reconciles of
// Clusters since its start and is quiet.
func (s *session) duringReconciles(ctx context.Context, reconciles int, happens func(*phase) error) (*phase, error) {
	p, err := s.during(ctx, syncer, happens)
	for err == nil {
		now, err := s.reconciles(ctx) // The query waits until it is quiet, because it costs the syncer something.
		if err != nil || now >= reconciles {
			return p, err
		}
		if time.Since(p.start) > patience {
			return p, fmt.Errorf("the syncer has reconciled Clusters %d times, not %d", now, reconciles)
		}
		if err := p.quiet(ctx); err != nil {
			return p, err
		}
	}
	return p, err
}

// quiet waits until the syncer has nothing to do.
func (s *session) quiet(ctx context.Context) error {
	_, err := s.during(ctx, syncer, func(*phase) error { return nil })
	return err
}

// reconciles returns how many reconciles of Clusters the syncer has completed since it started.
func (s *session) reconciles(ctx context.Context) (int, error) {
	code, text, err := fixture.Scrape(ctx, s.env, syncer, s.token)
	if err == nil && code != http.StatusOK { // There is no token yet, or it has expired.
		if s.token, err = fixture.MetricsReader(ctx, s.env, s.admin); err == nil {
			code, text, err = fixture.Scrape(ctx, s.env, syncer, s.token)
		}
	}
	if err != nil {
		return 0, err
	}
	if code != http.StatusOK {
		return 0, fmt.Errorf("the metrics of the syncer: %d %s", code, text)
	}
	return reconcilesIn(text)
}

// reconcilesIn returns the number of reconciles of Clusters in the syncer's metrics, without those that failed.
func reconcilesIn(text string) (int, error) {
	const reconciles = "controller_runtime_reconcile_total"
	snapshot, err := metrics.Parse(text, reconciles)
	return int(snapshot.Sum(reconciles, func(labels map[string]string) bool {
		return labels["controller"] == "cluster" && labels["result"] != "error"
	})), err
}

func (s *session) pid(name string) (int, error) {
	for _, process := range s.env.Processes() {
		if process.Name == name && process.Running {
			return process.PID, nil
		}
	}
	return 0, fmt.Errorf("%s is not running", name)
}

// cpu returns the processor time that a process has used.
func (s *session) cpu(name string) (time.Duration, error) {
	pid, err := s.pid(name)
	if err != nil {
		return 0, err
	}
	return usage.ProcessorTime(pid)
}

// atRest waits until a program does next to nothing and its memory no longer shrinks: Go returns memory some time
// after its use.
func (s *session) atRest(ctx context.Context, process string) (usage.Memory, error) {
	const look, reconciles, idle, hardly = 5 * time.Second, 24, 100 * time.Millisecond, 0.01
	var before usage.Memory
	var used time.Duration
	for range reconciles {
		if err := sleep(ctx, look); err != nil {
			return before, err
		}
		cpu, err := s.cpu(process)
		if err != nil {
			return before, err
		}
		now, err := s.memory(process)
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

func (s *session) memory(process string) (usage.Memory, error) {
	pid, err := s.pid(process)
	if err != nil {
		return usage.Memory{}, err
	}
	return usage.MemoryOf(pid)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
