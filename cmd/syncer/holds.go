package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/view"
)

const (
	// holdsTimeout ends the removal of holds before Kubernetes ends the Job, which would take the log away.
	holdsTimeout = 90 * time.Second
	// holdsConcurrency is how many holds are ended at once: each change of a Cluster may wait some seconds for webhooks that
	// cannot be reached.
	holdsConcurrency = 10
)

// holdsBackoff is when to try again what has failed: another client has changed the Cluster, or Cluster API's
// webhooks cannot be reached.
var holdsBackoff = wait.Backoff{Steps: 5, Duration: time.Second, Factor: 2}

// endAllHolds is endHolds with the program's own account. While the webhook runs, only this account may remove holds.
func endAllHolds(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, holdsTimeout)
	defer cancel()
	return endHolds(ctx, c, os.Stdout)
}

// endHolds removes Muster's holds of upgrades from all Clusters, including paused ones and those outside --namespace
// and --watch-filter: when Muster is gone, nothing else ends these holds. It does not wait until no Cluster has one, because
// anyone who may change Clusters could begin the next.
func endHolds(ctx context.Context, c client.Client, out io.Writer) error {
	var held []*metav1.PartialObjectMetadata
	failed := retry(ctx, func() (err error) {
		held, err = heldClusters(ctx, c)
		return err
	})
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(holdsConcurrency)
	for _, cluster := range held {
		all.Go(func() error {
			err := retry(ctx, func() error { return endHold(ctx, c, cluster) })
			mu.Lock()
			defer mu.Unlock()
			key := client.ObjectKeyFromObject(cluster)
			switch {
			case err == nil:
				fmt.Fprintln(out, "ended the hold of", key)
			case isRefusedByClusterAPI(err):
				fmt.Fprintf(out, "left the hold of %s, because Cluster API refuses every change of this Cluster: %s\n", key, view.Text(err.Error()))
			default:
				failed = errors.Join(failed, fmt.Errorf("%s: %s", key, view.Text(err.Error())))
			}
			return nil
		})
	}
	_ = all.Wait()
	if failed == nil {
		fmt.Fprintln(out, "no upgrade is held")
		return nil
	}
	return fmt.Errorf("annotation %s may still be on Clusters, which Cluster API then does not upgrade:\n%w\n"+
		"When this is solved, run `helm uninstall` again. To uninstall in spite of it, run it with --no-hooks, and then:\n"+
		"  kubectl annotate clusters.cluster.x-k8s.io --all --all-namespaces %[1]s-", stamp.HookAnnotation, failed)
}

// isRefusedByClusterAPI reports whether Cluster API refuses every change of a Cluster, for example because its ClusterClass
// does not exist: it refuses an upgrade as well, so the hold does no harm. Anyone who may create Clusters can cause this.
func isRefusedByClusterAPI(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), `.cluster.cluster.x-k8s.io" denied the request`)
}

// retry tries again what may succeed later, and returns the last error.
func retry(ctx context.Context, try func() error) error {
	err := errors.New("there was no time left")
	_ = wait.ExponentialBackoffWithContext(ctx, holdsBackoff, func(context.Context) (bool, error) {
		err = try()
		return err == nil || isRefusedByClusterAPI(err), nil
	})
	return err
}

// heldClusters returns the metadata of the Clusters with a hold.
func heldClusters(ctx context.Context, reader client.Reader) (held []*metav1.PartialObjectMetadata, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("ClusterList"))
	_, err = pager.Each(ctx, reader, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			if _, found := page.Items[i].Annotations[stamp.HookAnnotation]; found && page.Items[i].DeletionTimestamp.IsZero() {
				held = append(held, &page.Items[i])
			}
		}
	})
	if kube.IsUnserved(err) { // Cluster API is gone already.
		return nil, nil
	}
	return held, err
}

func endHold(ctx context.Context, c client.Client, cluster *metav1.PartialObjectMetadata) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, stamp.HookAnnotation)
	answer := cluster.DeepCopy()
	err := c.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(stamp.FieldManager))
	if _, found := answer.Annotations[stamp.HookAnnotation]; err == nil && found {
		return errors.New("the hold came back at once")
	}
	return client.IgnoreNotFound(err)
}
