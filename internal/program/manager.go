package program

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

const (
	// cacheSyncTimeout is how long first lists may take until the program gives up and is
	// started anew, with the same lists to wait for: longer than thousands of Clusters take on
	// a busy API server. CRDs may come later, too: until they do, watching waits.
	cacheSyncTimeout = 10 * time.Minute
	// reconciliationTimeout bounds a reconcile. Requests have no deadline of their own: if
	// something in front of the API server never ends a response, that request would block a
	// worker until a restart.
	reconciliationTimeout = 2 * time.Minute
	shutdownTimeout       = 10 * time.Second
)

// NewManager returns the manager of a program that writes: one of its replicas, chosen by a
// Lease of that name. It serves diagnostics, /healthz and /readyz.
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
		Controller:              config.Controller{ReconciliationTimeout: reconciliationTimeout, CacheSyncTimeout: cacheSyncTimeout},
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
