package program

import (
	"os"
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Election holds the flags for leader election: only one of several replicas writes.
type Election struct {
	enabled                                   bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

// AddTo adds the flags.
func (e *Election) AddTo(fs *pflag.FlagSet) {
	fs.BoolVar(&e.enabled, "leader-elect", false, "Let only one of several replicas write.")
	fs.DurationVar(&e.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long a standby waits before it takes over from a silent leader.")
	fs.DurationVar(&e.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew before it gives up.")
	fs.DurationVar(&e.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How long to wait between attempts to acquire or renew leadership.")
}

// set has a manager's replicas choose one by a Lease of this name.
func (e *Election) set(options *ctrl.Options, lease string) {
	options.LeaderElection = e.enabled
	options.LeaderElectionID = lease
	options.LeaderElectionNamespace = os.Getenv("POD_NAMESPACE")
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.leaseDuration, &e.renewDeadline, &e.retryPeriod
}
