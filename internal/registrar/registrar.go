package registrar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// FieldManager is the field manager of every write.
const FieldManager = "muster-registrar"

const (
	defaultFleetNamespace        = stamp.FleetSystem
	defaultRegistrationNamespace = "cattle-fleet-clusters-system"
	fleetConfigName              = "fleet-controller"
)

// Options are the program's flags, as opposed to the FleetAddonConfig.
type Options struct {
	// FleetNamespace is where Fleet and its settings are, RegistrationNamespace where Fleet leaves
	// credentials.
	FleetNamespace, RegistrationNamespace string
	// Namespace is the only one whose Clusters the registrar watches; empty means all.
	Namespace string
	// WatchFilter limits the registrar to Clusters whose label
	// cluster.x-k8s.io/watch-filter has this value; empty means all.
	WatchFilter string
	// Concurrency is how many Clusters are reconciled at once.
	Concurrency int
}

// reconciler registers Clusters before their agents connect, step by step until none is left.
type reconciler struct {
	client.Client
	Options
	live     client.Reader // reads past the cache
	settings *settings.Reader
	recorder events.EventRecorder
	seen     observedClientIDs
	now      func() time.Time
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	switch err := r.Get(ctx, req.NamespacedName, cluster); {
	case apierrors.IsNotFound(err):
		r.seen.Delete(req.NamespacedName)
		_, err := r.recordOf(ctx, req.NamespacedName, "") // This deletes the record.
		return ctrl.Result{}, err
	case err != nil:
		return ctrl.Result{}, err
	}
	if !r.isWatched(cluster) {
		return ctrl.Result{}, nil
	}
	s, err := r.newScope(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := r.advance(ctx, s)
	switch {
	case err == nil:
	case kube.IsPassing(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // The cache lags behind.
		return ctrl.Result{}, err
	default:
		result = waiting(addonsv1.FailedReason, err.Error(), 0)
	}
	return ctrl.Result{RequeueAfter: result.after}, errors.Join(err, r.report(ctx, cluster, result))
}

// newScope reads the facts about a Cluster from the cache.
func (r *reconciler) newScope(ctx context.Context, cluster *clusterv1.Cluster) (*scope, error) {
	in, err := r.settings.Current(ctx)
	if err != nil {
		return nil, err
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace); err != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	subject := stamp.SubjectOf(cluster, namespace.Labels)
	selected, _ := subject.IsSelected(in.Cluster)
	s := &scope{cluster: cluster, now: r.now(), taken: map[step]bool{}}
	if s.fleet, err = r.fleetClusterOf(ctx, cluster); err != nil {
		return nil, err
	}
	s.byAgent = selected && stamp.RegistrationOf(in.Cluster, subject, s.fleet) == stamp.ByAgent
	// A deselected Cluster that is kept stays as it is; one that left Fleet has no Fleet Cluster.
	s.suspended = !in.Cluster.Enabled || !cluster.DeletionTimestamp.IsZero() || capiannotations.IsPaused(cluster, cluster) ||
		!selected && s.fleet != nil
	if s.suspended {
		return s, nil
	}
	if err := r.readRecord(ctx, s); err != nil || s.fleet == nil {
		return s, err
	}
	s.known = r.seen.since(client.ObjectKeyFromObject(cluster), s.fleet, s.now)
	if err := r.readFleet(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// fleetClusterOf returns the Fleet Cluster named in the Cluster's pin, if it really belongs to the
// Cluster. Anyone who may write annotations can set the pin.
func (r *reconciler) fleetClusterOf(ctx context.Context, cluster *clusterv1.Cluster) (*fleetv1.Cluster, error) {
	pin := stamp.PinOf(cluster.Annotations)
	if !pin.IsComplete() {
		return nil, nil
	}
	fleet := &fleetv1.Cluster{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: pin.ClusterName}, fleet); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !r.isIts(ctx, fleet, cluster) {
		return nil, nil
	}
	return fleet, nil
}

// readRecord reads the record, and whether its registration still exists. It does not depend on the
// Fleet Cluster, which a tenant may hide by removing the pin.
func (r *reconciler) readRecord(ctx context.Context, s *scope) (err error) {
	if s.recorded, err = r.recordOf(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster.UID); err != nil || s.recorded.token == "" {
		return err
	}
	var registration fleetv1.ClusterRegistration
	err = r.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: s.recorded.registrationName}, &registration)
	s.isRegistered = err == nil && registration.UID == s.recorded.registration
	return client.IgnoreNotFound(err)
}

// isIts reports whether a Fleet Cluster belongs to a Cluster.
func (r *reconciler) isIts(ctx context.Context, fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	relation, _ := stamp.RelationOf(fleet, cluster, func(name string, uid types.UID) bool {
		if name != "" {
			var other clusterv1.Cluster
			err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, &other, client.UnsafeDisableDeepCopy)
			return client.IgnoreNotFound(err) != nil || err == nil && (uid == "" || other.UID == uid) // After an error, assume that the other Cluster exists.
		}
		var all clusterv1.ClusterList
		err := r.List(ctx, &all, client.InNamespace(cluster.Namespace), client.MatchingFields{byUID: string(uid)}, client.Limit(1), client.UnsafeDisableDeepCopy)
		return err != nil || len(all.Items) > 0
	})
	return relation == stamp.Own && fleet.DeletionTimestamp.IsZero() && stamp.IsOurs(fleet)
}

// readFleet reads the objects that Fleet has made for a Fleet Cluster.
func (r *reconciler) readFleet(ctx context.Context, s *scope) error {
	config := &corev1.ConfigMap{}
	switch err := r.Get(ctx, client.ObjectKey{Namespace: r.FleetNamespace, Name: fleetConfigName}, config); {
	case apierrors.IsNotFound(err):
		config = nil
	case err != nil:
		return fmt.Errorf("reading Fleet's settings: %w", err)
	}
	var err error
	if s.server, err = serverOf(config); err != nil {
		s.unreachable = err.Error()
	}
	if s.holder, err = kube.OtherHolder(ctx, r, client.ObjectKeyFromObject(s.fleet)); err != nil {
		return err
	}
	var bundle fleetv1.Bundle
	key := client.ObjectKey{Namespace: s.fleet.Namespace, Name: stamp.AgentBundle(s.fleet.Name)}
	if err := r.Get(ctx, key, &bundle); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the Bundle of the agent: %w", err)
	}
	s.agent = agentOf(&bundle)
	var owned fleetv1.ClusterRegistrationList
	if err := r.List(ctx, &owned, client.InNamespace(s.fleet.Namespace), client.MatchingFields{byFleetCluster: string(s.fleet.UID)}); err != nil {
		return fmt.Errorf("listing ClusterRegistrations: %w", err)
	}
	s.registrations = owned.Items
	// Fleet makes the Fleet Cluster the owner of a registration when it grants it. One that it refuses may have none.
	var asked fleetv1.ClusterRegistrationList
	if s.fleet.Spec.ClientID != "" { // Others may leave it out, too.
		if err := r.List(ctx, &asked, client.InNamespace(s.fleet.Namespace), client.MatchingFields{byClientID: s.fleet.Spec.ClientID}); err != nil {
			return fmt.Errorf("listing ClusterRegistrations: %w", err)
		}
	}
	s.registrations = append(s.registrations, slices.DeleteFunc(asked.Items, func(registration fleetv1.ClusterRegistration) bool {
		return registration.Status.Granted || isOurs(registration) || len(ownersOf(&registration)) > 0
	})...)
	if s.current() != nil {
		return nil
	}
	var named fleetv1.ClusterRegistration
	switch err := r.Get(ctx, client.ObjectKey{Namespace: s.fleet.Namespace, Name: s.registrationName()}, &named); {
	case err == nil:
		s.registrations = append(s.registrations, named)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading ClusterRegistration: %w", err)
	}
	return nil
}

// advance takes one step after the other until none is left, and returns the outcome that comes with it. A step that comes
// twice is an error: the first had no effect.
func (r *reconciler) advance(ctx context.Context, s *scope) (outcome, error) {
	for {
		next, result := s.next()
		if next == rest {
			return result, nil
		}
		if s.taken[next] {
			return outcome{}, fmt.Errorf("the step %q has changed nothing", next)
		}
		if err := r.take(ctx, s, next); err != nil {
			return outcome{}, err
		}
		s.taken[next] = true
	}
}

func (r *reconciler) take(ctx context.Context, s *scope, next step) error {
	switch next {
	case dryRun:
		return r.dryRun(ctx, s)
	case register:
		return r.register(ctx, s)
	case collect:
		return r.collect(ctx, s)
	case note:
		return r.note(ctx, s)
	case issue:
		return r.issue(ctx, s)
	case withdraw:
		return r.withdraw(ctx, s)
	case revoke:
		return r.revoke(ctx, s)
	default:
		return fmt.Errorf("unknown step %q", next)
	}
}
