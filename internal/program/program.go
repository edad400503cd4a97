// Package program is common to all programs: logging, diagnostics and their flags, in the same form as in
// Cluster API's own programs.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	configv1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube/kinds"
	"github.com/muster-fleet/muster/internal/metrics"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/version"
)

// Flags are the flags that all programs have.
type Flags struct {
	HealthAddress string
	LogLevel      string
	LogFormat     string
	SyncPeriod    time.Duration
	Manager       flags.ManagerOptions
	// DiagnosticsCertDir has the certificate of the diagnostics endpoint.
	DiagnosticsCertDir string
}

// AddTo adds the flags to a flag set.
func (f *Flags) AddTo(fs *pflag.FlagSet) {
	fs.StringVar(&f.HealthAddress, "health-addr", ":9440", "The address of the health endpoints (/healthz, /readyz).")
	fs.StringVar(&f.LogLevel, "log-level", "info", "The least severe level that is logged: debug, info, warn or error.")
	fs.StringVar(&f.LogFormat, "log-format", "json", "The format of the log: json, or console for people.")
	fs.DurationVar(&f.SyncPeriod, "sync-period", 10*time.Hour, "How often every object is reconciled again without an event, for example 10m.")
	flags.AddManagerOptions(fs, &f.Manager)
	fs.StringVar(&f.DiagnosticsCertDir, "diagnostics-cert-dir", "", "The directory with tls.crt and tls.key for diagnostics. If it is not set, or while the files are missing, the certificate is self-signed. A renewed certificate is served without a restart.")
}

// Begin starts a program: it parses the arguments into these flags and the ones that add defines, sets up
// logging, and logs the build. It returns ErrAnswered if the arguments only ask for information.
func (f *Flags) Begin(name string, args []string, add ...func(*pflag.FlagSet)) error {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.AddTo(fs)
	for _, define := range add {
		define(fs)
	}
	addForeigners(fs)
	if err := Parse(fs, args, os.Stdout); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: this daemon takes only flags; for commands, use kubectl muster", fs.Arg(0))
	}
	ignored, err := settle(fs)
	if err != nil {
		return err
	}
	if err := f.SetUpLogging(); err != nil {
		return err
	}
	announce(ctrl.Log, name)
	if len(ignored) > 0 {
		ctrl.Log.Info("Flags of Cluster API's managers have no effect here", "flags", ignored)
	}
	return nil
}

// SetUpLogging makes zap the logger for everything, including client-go. The error names an unusable flag.
func (f *Flags) SetUpLogging() error {
	level, err := zapcore.ParseLevel(f.LogLevel)
	if err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	var config zap.Config
	wrap := zap.WrapCore(func(core zapcore.Core) zapcore.Core { return core })
	switch f.LogFormat {
	case "json":
		config = zap.NewProductionConfig()
		// As in Cluster API's own logs: milliseconds in "ts", which comes first. Cluster API's visualizer ignores
		// other lines.
		config.EncoderConfig.TimeKey, config.EncoderConfig.LevelKey = "ts", zapcore.OmitKey
		config.EncoderConfig.EncodeTime = zapcore.EpochMillisTimeEncoder
		wrap = zap.WrapCore(func(core zapcore.Core) zapcore.Core { return levelLater{core} })
	case "console":
		config = zap.NewDevelopmentConfig()
	default:
		return fmt.Errorf("--log-format: %q is neither json nor console", f.LogFormat)
	}
	config.Level = zap.NewAtomicLevelAt(level)
	config.DisableStacktrace = true
	config.Sampling = nil
	logger, err := config.Build(wrap)
	if err != nil {
		return fmt.Errorf("building the logger: %w", err)
	}
	ctrl.SetLogger(zapr.NewLogger(logger))
	klog.SetLogger(zapr.NewLogger(logger))
	return nil
}

// levelLater writes the level of a line after its time, among the other fields.
type levelLater struct{ zapcore.Core }

// With implements zapcore.Core.
func (l levelLater) With(fields []zapcore.Field) zapcore.Core { return levelLater{l.Core.With(fields)} }

// Check implements zapcore.Core.
func (l levelLater) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(entry.Level) {
		return checked.AddCore(entry, l)
	}
	return checked
}

// Write implements zapcore.Core.
func (l levelLater) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	return l.Core.Write(entry, append([]zapcore.Field{zap.Stringer("level", entry.Level)}, fields...))
}

// Scheme returns a scheme with the kinds that Muster reads and writes.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, fleetv1.AddToScheme, addonsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return scheme, nil
}

// Main runs a program until it gets a signal to stop, then exits.
func Main(name string, run func(ctx context.Context, args []string) error) {
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) && !errors.Is(err, ErrAnswered) {
		if err.Error() != "" {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		os.Exit(ExitCode(err))
	}
}

// Exit sets the exit code for an error. The default is 1. Main prints no error without text.
func Exit(code int, err error) error { return &exitError{error: err, code: code} }

type exitError struct {
	error
	code int
}

func (e *exitError) Unwrap() error { return e.error }

// ExitCode returns the exit code for the error of a program.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

// Election holds the flags for leader election: only one of several replicas writes.
type Election struct {
	enabled bool
	times   configv1alpha1.LeaderElectionConfiguration
}

// AddTo adds the flags.
func (e *Election) AddTo(fs *pflag.FlagSet) {
	configv1alpha1.RecommendedDefaultLeaderElectionConfiguration(&e.times)
	fs.BoolVar(&e.enabled, "leader-elect", false, "Let only one of several replicas write.")
	fs.DurationVar(&e.times.LeaseDuration.Duration, "leader-elect-lease-duration", e.times.LeaseDuration.Duration, "How long a standby waits before it takes over from a silent leader.")
	fs.DurationVar(&e.times.RenewDeadline.Duration, "leader-elect-renew-deadline", e.times.RenewDeadline.Duration, "How long a leader tries to renew before it gives up.")
	fs.DurationVar(&e.times.RetryPeriod.Duration, "leader-elect-retry-period", e.times.RetryPeriod.Duration, "How long to wait between attempts to acquire or renew leadership.")
}

// set makes a manager's replicas elect one by a Lease of this name.
func (e *Election) set(options *ctrl.Options, lease string) {
	options.LeaderElection = e.enabled
	options.LeaderElectionID = lease
	options.LeaderElectionNamespace = os.Getenv("POD_NAMESPACE")
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.times.LeaseDuration.Duration, &e.times.RenewDeadline.Duration, &e.times.RetryPeriod.Duration
}

// WhenServed calls open once these kinds are served, so that Muster, Cluster API and Fleet can be installed
// in any order: watching a kind that is not served would end the program. Standbys call open, too, so
// that their caches are warm.
func WhenServed(mgr ctrl.Manager, required []schema.GroupVersionKind, open func(context.Context) error) error {
	return mgr.Add(onStandbys{manager.RunnableFunc(func(ctx context.Context) error {
		if kinds.WaitServed(ctx, func(context.Context) (string, error) { return kinds.Missing(mgr.GetRESTMapper(), required...), nil }) != nil {
			return nil //nolint:nilerr // the program stops
		}
		return open(ctx)
	})})
}

type onStandbys struct{ manager.Runnable }

func (onStandbys) NeedLeaderElection() bool { return false }

// ErrAnswered means that the arguments asked for information, which has been printed. Main treats it as
// success.
var ErrAnswered = errors.New("the requested information has been printed")

// Parse parses the arguments of a program, and handles --version, which every program has.
func Parse(fs *pflag.FlagSet, args []string, stdout io.Writer) error {
	asked := fs.Bool("version", false, "Print which build this is, and exit.")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if !*asked {
		return nil
	}
	if _, err := fmt.Fprintln(stdout, fs.Name(), version.Get()); err != nil {
		return err
	}
	return ErrAnswered
}

// announce records the build of a program that starts, in its log and as a metric.
func announce(log logr.Logger, name string) {
	build := version.Get()
	log.Info("Starting "+name, "version", build.Version, "revision", build.Revision, "date", build.Date, "go", build.GoVersion, "platform", build.Platform)
	metrics.Build(build.Version, build.Revision, build.GoVersion)
}

const (
	// reconciliationTimeout bounds a reconcile. Requests have no deadline of their own, so a response that a
	// proxy in front of the API server never ends would block a worker until a restart.
	reconciliationTimeout = 2 * time.Minute
	shutdownTimeout       = 10 * time.Second
)

// NewManager returns the manager of a program that writes: one of its replicas, elected by a Lease of that
// name. It serves diagnostics, /healthz and /readyz.
func NewManager(flags *Flags, election *Election, lease string, caches cache.Options) (ctrl.Manager, error) {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	_, metrics, err := flags.ManagerOptions()
	if err != nil {
		return nil, err
	}
	caches.SyncPeriod = &flags.SyncPeriod
	options := ctrl.Options{
		Scheme:                  scheme,
		Cache:                   caches,
		Metrics:                 *metrics,
		HealthProbeBindAddress:  flags.HealthAddress,
		GracefulShutdownTimeout: ptr.To(shutdownTimeout),
		// The time spent waiting for missing CRDs does not count.
		Controller: config.Controller{ReconciliationTimeout: reconciliationTimeout, CacheSyncTimeout: pager.Timeout},
	}
	election.set(&options, lease)
	mgr, err := ctrl.NewManager(restConfig, options)
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}
