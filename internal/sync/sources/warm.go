package sources

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// warmPatience is how long the first lists may take before Clusters are looked at all
	// the same: those of other kinds need not wait for a conversion webhook that is down.
	warmPatience = 30 * time.Second
	// warmInterval is how often we look whether the first lists are there.
	warmInterval = 50 * time.Millisecond
)

// Warm watches the kinds that Clusters refer to now, and waits for their first lists. It is
// called before Clusters are looked at, in every replica: a start then looks at each
// Cluster once, and a standby that takes over lists nothing.
func (s *Sources) Warm(ctx context.Context) error {
	var clusters clusterv1.ClusterList
	if err := s.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	asked := map[schema.GroupKind]bool{}
	for i := range clusters.Items {
		for _, ref := range referencesOf(&clusters.Items[i]) {
			if kind := ref.GroupKind(); !asked[kind] {
				asked[kind] = true
				if err := s.watch(ctx, ref); err != nil {
					// Its Clusters say so, and are looked at again when it is over.
					ctrl.LoggerFrom(ctx).Info("A kind that Clusters refer to cannot be read yet", "kind", kind.String(), "reason", err.Error())
				}
			}
		}
	}
	// Without an end it is the program that stops, or the lists that take too long.
	_ = wait.PollUntilContextTimeout(ctx, warmInterval, warmPatience, true, func(context.Context) (bool, error) {
		return s.kinds.areListed(), nil
	})
	return nil
}

// watch watches the kind of a reference, if it may be read.
func (s *Sources) watch(ctx context.Context, ref clusterv1.ContractVersionedObjectReference) error {
	if err := s.isDeclared(ctx, ref.GroupKind()); err != nil {
		return err
	}
	if err := s.mayRead(ctx, "references of Clusters", ref.GroupKind()); err != nil {
		return err
	}
	return s.follow(ctx, s.kinds.of(ref.GroupKind()), ref)
}

// areListed reports whether the first lists of all kinds that are watched are there.
func (k *kinds) areListed() bool {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.all))
	k.mu.Unlock()
	return !slices.ContainsFunc(all, func(kind *kind) bool {
		kind.mu.RLock()
		defer kind.mu.RUnlock()
		return kind.listed != nil && !kind.listed.HasSynced()
	})
}
