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
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientretry "k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// holdsTimeout ends the removal of holds before Kubernetes ends the Job, which would take the log away, and
	// eventsTimeout the writing of events after that.
	holdsTimeout, eventsTimeout = 90 * time.Second, 30 * time.Second
	// holdsConcurrency is how many holds are ended at once: each change of a Cluster may wait some seconds for webhooks that
	// cannot be reached.
	holdsConcurrency = 10
	// reasonLeft is the reason of the event on a Cluster whose hold could not be ended.
	reasonLeft = "HoldLeft"
)

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
	endHolds(ctx, c, os.Stdout)
	return nil
}

// endHolds removes Muster's holds of upgrades from all Clusters, including paused ones and those outside --namespace
// and --watch-filter: when Muster is gone, nothing else ends these holds. It does not wait until no Cluster has one, because
// anyone who may change Clusters could begin the next. It prints why a hold could not be ended, and writes an event on its
// Cluster. This is no error: a tenant whose Cluster cannot be changed must not keep Muster from being uninstalled.
func endHolds(ctx context.Context, c client.Client, out io.Writer) {
	ending, cancel := context.WithTimeout(ctx, holdsTimeout)
	defer cancel()
	telling, cancel := context.WithTimeout(ctx, holdsTimeout+eventsTimeout)
	defer cancel()
	var held []*metav1.PartialObjectMetadata
	err := retry(ending, func() (err error) {
		held, err = heldClusters(ending, c)
		return err
	})
	if err != nil {
		fmt.Fprintln(out, "the Clusters cannot be read:", message.Text(err.Error()))
	}
	isFree := err == nil
	var mu sync.Mutex
	say := func(isEnded bool, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		isFree = isFree && isEnded
		fmt.Fprintf(out, format, args...)
	}
	var all errgroup.Group
	all.SetLimit(holdsConcurrency)
	for _, cluster := range held {
		all.Go(func() error {
			key, err := client.ObjectKeyFromObject(cluster), retry(ending, func() error { return endHold(ending, c, cluster) })
			if err == nil {
				say(true, "ended the hold of %s\n", key)
				return nil
			}
			say(false, "left the hold of %s: %s\n", key, message.Text(err.Error()))
			return c.Create(telling, eventOfLeft(cluster))
		})
	}
	untold := all.Wait()
	if isFree {
		fmt.Fprintln(out, "no upgrade is held")
		return
	}
	fmt.Fprintf(out, "annotation %[1]s may still be on Clusters, which Cluster API then does not upgrade. When Muster is gone, this ends all holds:\n"+
		"  kubectl annotate clusters.cluster.x-k8s.io --all --all-namespaces %[1]s-\n", stamp.HookAnnotation)
	if untold != nil {
		fmt.Fprintln(out, "events on these Clusters cannot be written:", message.Text(untold.Error()))
	}
}

// eventOfLeft is the event on a Cluster whose hold could not be ended, with the command that ends it.
func eventOfLeft(cluster *metav1.PartialObjectMetadata) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: cluster.Namespace, GenerateName: "muster-hold-left-"},
		EventTime:           metav1.NowMicro(),
		ReportingController: "muster-syncer", ReportingInstance: "muster-end-upgrade-holds",
		Type: corev1.EventTypeWarning, Reason: reasonLeft, Action: "HoldUpgrade",
		Regarding: corev1.ObjectReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID,
		},
		Note: fmt.Sprintf("Muster was uninstalled and could not end the hold of the upgrade, so Cluster API does not upgrade the Cluster while it has the annotation %[1]s; to remove it: kubectl annotate clusters.cluster.x-k8s.io -n %[2]s %[3]s %[1]s-",
			stamp.HookAnnotation, cluster.Namespace, cluster.Name),
	}
}

// isRefusedByClusterAPI reports whether Cluster API refuses every change of a Cluster, for example because its ClusterClass
// does not exist: then to try again is useless.
func isRefusedByClusterAPI(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), `.cluster.cluster.x-k8s.io" denied the request`)
}

// retry tries again what may succeed later, and returns the last error.
func retry(ctx context.Context, try func() error) error {
	err, backoff := errors.New("there was no time left"), clientretry.DefaultBackoff
	backoff.Steps = 6 // Cluster API's webhooks may be out of reach for some seconds.
	_ = wait.ExponentialBackoffWithContext(ctx, backoff, func(context.Context) (bool, error) {
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
	}, pager.Small)
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
