package references

import (
	"context"
	"errors"
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
	// warmPatience is how long the first lists may take before Clusters are reconciled anyway. Clusters
	// need not wait for other kinds, whose conversion webhook may be down.
	warmPatience = 30 * time.Second
	// warmInterval is how often Warm checks for the first lists.
	warmInterval = 50 * time.Millisecond
)

// Warm watches the kinds to which Clusters refer now, and waits for their first lists for at most
// warmPatience. Call it in every replica before any controller starts: then a start reconciles each
// Cluster once, and a standby that takes over lists nothing. Clusters that refer to a kind that is not
// listed by then wait until it is.
func (r *Reader) Warm(ctx context.Context, isWatched func(client.Object) bool) error {
	var clusters clusterv1.ClusterList
	if err := r.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Clusters: %w", err)
	}
	references := map[schema.GroupKind]clusterv1.ContractVersionedObjectReference{}
	for i := range clusters.Items {
		if !isWatched(&clusters.Items[i]) {
			continue
		}
		for _, reference := range referencesOf(&clusters.Items[i]) {
			references[reference.GroupKind()] = reference
		}
	}
	patience, cancel := context.WithTimeout(ctx, r.warmPatience)
	defer cancel()
	asked := make(chan struct{})
	go func() { // Not every request has a deadline.
		defer close(asked)
		for kind, reference := range references {
			if err := r.watch(patience, reference); err != nil {
				// The condition of its Clusters says so, and they are retried.
				ctrl.LoggerFrom(ctx).Info("A kind that Clusters refer to cannot be read yet", "kind", kind.String(), "reason", err.Error())
			}
		}
	}()
	select {
	case <-asked:
	case <-patience.Done():
	}
	if err := wait.PollUntilContextCancel(patience, warmInterval, true, func(context.Context) (bool, error) {
		return len(r.kinds.unlisted()) == 0, nil
	}); err == nil {
		return nil
	}
	for _, late := range r.kinds.unlisted() {
		ctrl.LoggerFrom(ctx).Info("A kind that Clusters refer to is not listed yet; others do not wait for it", "kind", late.String())
	}
	return nil
}

// watch watches the kind of a reference, if the program may read it.
func (r *Reader) watch(ctx context.Context, reference clusterv1.ContractVersionedObjectReference) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.isDeclared(ctx, reference.GroupKind()); err != nil {
		return err
	}
	if err := r.mayRead(ctx, "references of Clusters", reference.GroupKind()); err != nil {
		return err
	}
	err := r.follow(ctx, r.kinds.of(reference.GroupKind()), reference)
	if errors.Is(err, errMisnamed) {
		r.kinds.drop(ctx, reference.GroupKind(), func(kind *kind) bool { return kind.watched.Empty() })
	}
	return err
}

// unlisted returns the kinds whose first list, or whose discovery, is still under way.
func (k *kinds) unlisted() []schema.GroupKind {
	k.mu.Lock()
	all := maps.Clone(k.all)
	k.mu.Unlock()
	maps.DeleteFunc(all, func(_ schema.GroupKind, kind *kind) bool {
		if !kind.mu.TryRLock() {
			return false
		}
		defer kind.mu.RUnlock()
		return kind.watched.Empty() || kind.isListed()
	})
	return slices.Collect(maps.Keys(all))
}
