package program

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const servedInterval = 2 * time.Second

// WhenServed calls open once these kinds are served, so that Muster, Cluster API and Fleet may
// be installed in any order: to watch a kind that is not served ends a program. Standbys open,
// too, so that their caches are warm.
func WhenServed(mgr ctrl.Manager, kinds []schema.GroupVersionKind, open func(context.Context) error) error {
	return mgr.Add(onStandbys{manager.RunnableFunc(func(ctx context.Context) error {
		said := ""
		if wait.PollUntilContextCancel(ctx, servedInterval, true, func(context.Context) (bool, error) {
			var missing []string
			for _, kind := range kinds {
				if _, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); err != nil {
					missing = append(missing, kind.GroupKind().String())
				}
			}
			if now := strings.Join(missing, ", "); now != said {
				said = now
				ctrl.LoggerFrom(ctx).Info("Waiting for kinds to be served", "missing", now)
			}
			return len(missing) == 0, nil
		}) != nil {
			return nil //nolint:nilerr // the program stops
		}
		return open(ctx)
	})})
}

type onStandbys struct{ manager.Runnable }

func (onStandbys) NeedLeaderElection() bool { return false }
