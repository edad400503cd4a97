package installer

import (
	"fmt"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/pflag"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/metrics"
)

// AddTo adds the options as flags.
func (o *Options) AddTo(fs *pflag.FlagSet) {
	fs.DurationVar(&o.LookupInterval, "lookup-interval", time.Hour, "How often the repository of Fleet's charts is asked for newer versions, where a range or the newest release is wanted.")
	fs.DurationVar(&o.HelmTimeout, "helm-timeout", 5*time.Minute, "How long Helm waits until what it has installed is ready. An upgrade that is not ready by then is rolled back.")
}

// Setup adds the installer to a manager. Its own namespace is the one of its ServiceAccount.
func Setup(mgr ctrl.Manager, options Options, namespace string, releases Releases, repository OpenRepository) error {
	kubernetes, err := serverVersion(mgr)
	if err != nil {
		return err
	}
	r := newReconciler(mgr, options, namespace, releases, repository)
	r.kubernetes = kubernetes
	for _, name := range []string{CRDChart, FleetChart} {
		metrics.HelmRelease(name)
	}
	return ctrl.NewControllerManagedBy(mgr).Named("fleet").
		WithOptions(controller.Options{
			// CRDs, Fleet, and the way back, each with Helm's patience.
			ReconciliationTimeout: 3*options.HelmTimeout + 5*time.Minute,
			RateLimiter:           workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, time.Minute),
		}).
		// A status says nothing new; an annotation may hand a release over.
		For(&addonsv1.FleetAddonConfig{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Complete(r)
}

func newReconciler(mgr ctrl.Manager, options Options, namespace string, releases Releases, repository OpenRepository) *reconciler {
	return &reconciler{
		Client: mgr.GetClient(), Options: options, live: mgr.GetAPIReader(),
		room:     &room{Client: mgr.GetClient(), live: mgr.GetAPIReader(), namespace: namespace},
		releases: releases, repository: repository, recorder: mgr.GetEventRecorder(account),
		now: time.Now, rootCA: ownAuthority(mgr.GetConfig()), lookups: newLookups(options.LookupInterval), failures: map[string]*failure{}, writes: map[step]*written{}, pending: map[string]sighting{},
	}
}

func serverVersion(mgr ctrl.Manager) (*semver.Version, error) {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	info, err := client.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("asking for the version of Kubernetes: %w", err)
	}
	version, err := semver.NewVersion(info.GitVersion)
	if err != nil {
		return nil, nil //nolint:nilerr // A version of a form of its own is none that a range says something about.
	}
	return version, nil
}
