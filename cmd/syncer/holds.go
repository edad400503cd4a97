package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/stamp"
)

// holdsTimeout ends the removal of holds before Kubernetes ends the Job, which would take the log away.
const holdsTimeout = 90 * time.Second

// holdsBackoff is when to try again what has failed: another client has changed the Cluster, or Cluster API's
// webhooks cannot be reached.
var holdsBackoff = wait.Backoff{Steps: 5, Duration: time.Second, Factor: 2}

// endAllHolds is endHolds with the syncer's account. The webhook restores a hold that another account removes.
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
// and --watch-filter: when Muster is gone, nothing else ends these holds. It repeats until a list shows none.
func endHolds(ctx context.Context, c client.Client, out io.Writer) error {
	var failed error
	if wait.ExponentialBackoffWithContext(ctx, holdsBackoff, func(ctx context.Context) (bool, error) {
		held, unread := heldClusters(ctx, c)
		failed = unread
		for _, cluster := range held {
			key := client.ObjectKeyFromObject(cluster)
			if refused := endHold(ctx, c, cluster); refused != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", key, refused))
			} else {
				fmt.Fprintln(out, "ended the hold of", key)
			}
		}
		return unread == nil && len(held) == 0, nil
	}) == nil {
		fmt.Fprintln(out, "no upgrade is held")
		return nil
	}
	if failed == nil {
		failed = errors.New("it came back at once")
	}
	return fmt.Errorf("annotation %s may still be on Clusters, which Cluster API then does not upgrade:\n%w\n"+
		"When this is solved, run `helm uninstall` again. To uninstall in spite of it, run it with --no-hooks, and then:\n"+
		"  kubectl annotate clusters.cluster.x-k8s.io --all --all-namespaces %[1]s-", stamp.HookAnnotation, failed)
}

// heldClusters returns the metadata of the Clusters with a hold.
func heldClusters(ctx context.Context, reader client.Reader) (held []*metav1.PartialObjectMetadata, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("ClusterList"))
	_, err = pager.Each(ctx, reader, list, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			if _, found := page.Items[i].Annotations[stamp.HookAnnotation]; found {
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
	err := c.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(stamp.FieldManager))
	return client.IgnoreNotFound(err)
}
