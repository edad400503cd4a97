package registrar

import (
	"context"
	"errors"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/steps"
)

// FieldManager is the field manager of every write.
const FieldManager = "muster-registrar"

const (
	defaultFleetNamespace        = stamp.FleetSystem
	defaultRegistrationNamespace = "cattle-fleet-clusters-system"
	fleetConfigName              = "fleet-controller"
	// conflictInterval is how long to wait for a state that somebody has just written.
	conflictInterval = time.Second
)

// Options are the settings of the program, as opposed to those of the FleetAddonConfig.
type Options struct {
	// FleetNamespace is where Fleet and its settings are, RegistrationNamespace where it
	// leaves credentials.
	FleetNamespace, RegistrationNamespace string
	// Namespace is the only one whose Clusters are watched; empty for all.
	Namespace string
	// WatchFilter limits the registrar to Clusters whose label
	// cluster.x-k8s.io/watch-filter has this value; empty for all.
	WatchFilter string
	// Concurrency is how many Clusters are looked at once.
	Concurrency int
}

// reconciler registers Clusters ahead of their agents: it looks at a Cluster, and takes one
// step after the other until none is left.
type reconciler struct {
	client.Client
	Options
	live     client.Reader // past the cache
	settings *settings.Reader
	recorder events.EventRecorder
	tally    *tally
	seen     sightings
	now      func() time.Time
}

// Reconcile looks at one Cluster.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	switch err := r.Get(ctx, req.NamespacedName, cluster); {
	case apierrors.IsNotFound(err):
		r.seen.forget(req.NamespacedName)
		r.tally.set(req.NamespacedName, "")
		_, err := r.recordOf(ctx, req.NamespacedName, "") // It goes with its Cluster.
		return ctrl.Result{}, err
	case err != nil:
		return ctrl.Result{}, err
	}
	if r.WatchFilter != "" && !capilabels.HasWatchLabel(cluster, r.WatchFilter) {
		r.tally.set(req.NamespacedName, "")
		return ctrl.Result{}, nil
	}
	v, err := r.look(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := steps.Run(rest, v.taken, v.next, func(next step) error { return r.take(ctx, v, next) })
	switch {
	case err == nil:
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // The cache is behind.
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	case kube.IsPassing(err):
		return ctrl.Result{}, err
	default:
		result = waiting(reasonFailed, err.Error(), 0)
	}
	if result.keep {
		r.tally.set(req.NamespacedName, conditions.GetReason(cluster, stamp.ManifestCondition))
	} else {
		r.tally.set(req.NamespacedName, result.reason)
	}
	return ctrl.Result{RequeueAfter: result.after}, errors.Join(err, r.tell(ctx, cluster, result))
}

// look reads what a visit knows, from the cache.
func (r *reconciler) look(ctx context.Context, cluster *clusterv1.Cluster) (*visit, error) {
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
	v := &visit{cluster: cluster, now: r.now(), taken: map[step]bool{}}
	if v.fleet, err = r.fleetClusterOf(ctx, cluster); err != nil {
		return nil, err
	}
	v.byAgent = selected && stamp.RegistrationOf(in.Cluster, subject, v.fleet) == stamp.ByAgent
	// A Cluster that is deselected and kept stays as it is; one that is taken out of Fleet
	// has no Fleet Cluster any more.
	v.held = !in.Cluster.Enabled || !cluster.DeletionTimestamp.IsZero() || capiannotations.IsPaused(cluster, cluster) ||
		!selected && v.fleet != nil
	if v.held {
		return v, nil
	}
	if err := r.lookAtRecord(ctx, v); err != nil || v.fleet == nil {
		return v, err
	}
	v.known = r.seen.since(client.ObjectKeyFromObject(cluster), v.fleet, v.now)
	if err := r.lookAtFleet(ctx, v); err != nil {
		return nil, err
	}
	return v, nil
}

// fleetClusterOf returns the Fleet Cluster that a Cluster is pinned to, if it is its own.
// The pin is the word of whoever may write annotations.
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

// lookAtRecord reads what was handed out, and whether that still works. It does not ask for the
// Fleet Cluster, which anybody may hide by dropping the pin.
func (r *reconciler) lookAtRecord(ctx context.Context, v *visit) (err error) {
	if v.kept, err = r.recordOf(ctx, client.ObjectKeyFromObject(v.cluster), v.cluster.UID); err != nil || v.kept.token == "" {
		return err
	}
	var registration fleetv1.ClusterRegistration
	err = r.Get(ctx, client.ObjectKey{Namespace: v.cluster.Namespace, Name: v.kept.registrationName}, &registration)
	v.isRegistered = err == nil && registration.UID == v.kept.registration
	return client.IgnoreNotFound(err)
}

// isIts reports whether a Fleet Cluster is the Cluster's own.
func (r *reconciler) isIts(ctx context.Context, fleet *fleetv1.Cluster, cluster *clusterv1.Cluster) bool {
	relation, _ := stamp.RelationOf(fleet, cluster, func(name string, uid types.UID) bool {
		if name != "" {
			var other clusterv1.Cluster
			err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, &other, client.UnsafeDisableDeepCopy)
			return client.IgnoreNotFound(err) != nil || err == nil && (uid == "" || other.UID == uid) // In doubt it lives.
		}
		var all clusterv1.ClusterList
		err := r.List(ctx, &all, client.InNamespace(cluster.Namespace), client.MatchingFields{byUID: string(uid)}, client.Limit(1), client.UnsafeDisableDeepCopy)
		return err != nil || len(all.Items) > 0
	})
	return relation == stamp.Own && fleet.DeletionTimestamp.IsZero() && stamp.IsOurs(fleet)
}

// lookAtFleet reads what Fleet has made of a Fleet Cluster.
func (r *reconciler) lookAtFleet(ctx context.Context, v *visit) error {
	config := &corev1.ConfigMap{}
	switch err := r.Get(ctx, client.ObjectKey{Namespace: r.FleetNamespace, Name: fleetConfigName}, config); {
	case apierrors.IsNotFound(err):
		config = nil
	case err != nil:
		return fmt.Errorf("reading Fleet's settings: %w", err)
	}
	var err error
	if v.server, err = serverOf(config); err != nil {
		v.unreachable = err.Error()
	}
	if v.rival, err = kube.RivalOf(ctx, r, client.ObjectKeyFromObject(v.fleet)); err != nil {
		return err
	}
	var bundle fleetv1.Bundle
	key := client.ObjectKey{Namespace: v.fleet.Namespace, Name: stamp.AgentBundle(v.fleet.Name)}
	if err := r.Get(ctx, key, &bundle); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the Bundle of the agent: %w", err)
	}
	v.agent = agentOf(&bundle)
	var owned fleetv1.ClusterRegistrationList
	if err := r.List(ctx, &owned, client.InNamespace(v.fleet.Namespace), client.MatchingFields{byFleetCluster: string(v.fleet.UID)}); err != nil {
		return fmt.Errorf("listing ClusterRegistrations: %w", err)
	}
	v.registrations = owned.Items
	if v.current() != nil {
		return nil
	}
	var named fleetv1.ClusterRegistration
	switch err := r.Get(ctx, client.ObjectKey{Namespace: v.fleet.Namespace, Name: v.registrationName()}, &named); {
	case err == nil:
		v.registrations = append(v.registrations, named)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading ClusterRegistration: %w", err)
	}
	return nil
}

func (r *reconciler) take(ctx context.Context, v *visit, next step) error {
	switch next {
	case rehearse:
		return r.rehearse(ctx, v)
	case register:
		return r.register(ctx, v)
	case collect:
		return r.collect(ctx, v)
	case note:
		return r.note(ctx, v)
	case handOut:
		return r.handOut(ctx, v)
	case withdraw:
		return r.withdraw(ctx, v)
	case revoke:
		return r.revoke(ctx, v)
	default:
		return fmt.Errorf("unknown step %q", next)
	}
}
