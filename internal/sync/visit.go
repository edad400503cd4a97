package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/desired"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
)

// visit is one look at a Cluster: what is known of it, each thing read once, and which
// steps have been taken.
type visit struct {
	in settings.Settings
	// held says that everything stays as it is: the import is turned off, or the
	// FleetAddonConfig cannot be used.
	held    bool
	cluster *clusterv1.Cluster // as cached or written, read-only
	subject stamp.Subject
	// selected says whether the Cluster is to be imported; if not, why says what keeps it out.
	selected bool
	why      string
	paused   bool
	// byAgent says that the Cluster is registered ahead and its agent calls by itself;
	// unregistered, that nothing is there to register it.
	byAgent, unregistered bool
	// leftover is the namespace that Fleet has yet to remove, of an earlier Fleet Cluster of
	// the name; empty if there is none.
	leftover string
	// rival is the Fleet Cluster that has the namespace in Fleet that this one would get; zero
	// if there is none.
	rival types.NamespacedName
	// fleet is the Fleet Cluster that the Cluster has, or whose name it is to have; nil if
	// there is none. It is as cached or written, read-only.
	fleet *fleetv1.Cluster
	// relation is what fleet is to the Cluster; whose says to whom a foreign one belongs.
	relation stamp.Relation
	whose    string

	// taken are the steps taken. What follows is known once its step has been taken.
	taken map[step]bool
	// claimed is the Fleet Cluster that others are kept from meanwhile; empty for none.
	claimed string
	// displacing is the class whose group stands where the Cluster's would; see users.displacing.
	displacing string
	targets    desired.Targets
	// foreign says which of the targets is somebody else's; empty if none is.
	foreign string
	// values are the template values; unresolved says why there are none now, and again when
	// to look again if no event comes.
	values     map[string]any
	unresolved string
	again      time.Duration
}

// isClaimed reports whether the Cluster is pinned, or would be had Muster imported it: CAAPF
// imports what either of two selectors matches, Muster what both match, and what CAAPF left
// stays until a user decides.
func (v *visit) isClaimed() bool {
	return stamp.PinOf(v.cluster.Annotations).IsComplete() || v.has() && stamp.IsOurs(v.fleet)
}

// has reports whether the Cluster has a Fleet Cluster.
func (v *visit) has() bool { return v.fleet != nil && v.relation == stamp.Own }

// waits reports whether the Cluster's agent is to call by itself, and has not yet.
func (v *visit) waits() bool {
	if v.fleet.Spec.KubeConfigSecret != "" {
		return false
	}
	seen := v.fleet.Status.Agent.LastSeen
	if seen.IsZero() || !v.fleet.CreationTimestamp.Before(&v.cluster.CreationTimestamp) {
		return seen.IsZero()
	}
	// It was there before the Cluster was, and the agent of an earlier one may call until the
	// registrar has revoked its credential, as it has when it says that there is a manifest.
	// Elsewhere the clock of another machine is not asked. Whoever is in Fleet stays there, whatever
	// becomes of the manifest.
	if meta.IsStatusConditionTrue(v.cluster.Status.Conditions, ImportedCondition) {
		return false
	}
	told := meta.FindStatusCondition(v.cluster.Status.Conditions, ManifestCondition)
	switch {
	case told == nil:
		return true
	case told.Status == metav1.ConditionTrue:
		return seen.Before(&told.LastTransitionTime)
	default:
		return told.Reason != stamp.AlreadyRegistered
	}
}

// agentNamespace returns the namespace of the Cluster's agent. One that calls by itself stays where
// it says it runs: elsewhere it would find no credential, and nobody could bring it one.
func (v *visit) agentNamespace() string {
	asked := v.in.Cluster.AgentNamespace
	switch {
	case !v.byAgent && !v.isTurning(), !v.has(), v.fleet.Status.Agent.LastSeen.IsZero():
		return asked
	case v.waits(): // Whether it is this Cluster's that calls is not known yet.
		return cmp.Or(v.fleet.Spec.AgentNamespace, v.fleet.Status.Agent.Namespace, asked)
	default:
		return cmp.Or(v.fleet.Status.Agent.Namespace, asked)
	}
}

// isIn reports whether the Cluster is in Fleet, its agent included.
func (v *visit) isIn() bool { return v.has() && !v.waits() }

// pin returns the name of the Fleet Cluster that the Cluster is pinned to.
func (v *visit) pin() string { return stamp.PinOf(v.cluster.Annotations).ClusterName }

// errUnseenNamespace says that the cache does not show the Namespace of a Cluster yet, or no
// longer does.
var errUnseenNamespace = errors.New("the Namespace is not in the cache")

// looker reads what a visit knows.
type looker struct {
	client.Reader
	store     *kube.Store
	users     *users
	registrar *presence
}

// look begins a visit.
func (l *looker) look(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster) (*visit, error) {
	namespace := namespaceMetadata()
	switch err := l.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return nil, errUnseenNamespace
	case err != nil:
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	v := &visit{
		in: in.Settings, held: !in.Cluster.Enabled, cluster: cluster, subject: stamp.SubjectOf(cluster, namespace.Labels),
		paused: capiannotations.IsPaused(cluster, cluster), taken: map[step]bool{},
	}
	v.selected, v.why = v.subject.IsSelected(in.Cluster)
	if err := l.lookForFleetCluster(ctx, v); err != nil {
		return v, err
	}
	var own *fleetv1.Cluster
	if v.has() {
		own = v.fleet
	}
	if v.byAgent = stamp.RegistrationOf(in.Cluster, v.subject, own) == stamp.ByAgent; v.byAgent {
		v.unregistered = l.registrar.isMissing(ctx)
	}
	return v, nil
}

// lookForFleetCluster looks for the Fleet Cluster that the Cluster has, or whose name it is to have.
func (l *looker) lookForFleetCluster(ctx context.Context, v *visit) error {
	if err := l.lookAt(ctx, v, v.pin()); err != nil || v.has() && stamp.OriginOf(v.fleet).UID != "" {
		return err
	}
	// Anyone who may write annotations can write a pin. What belongs to the Cluster already
	// counts, under whatever name: by UID, also before what has the pin's name and only says
	// the Cluster's.
	name, err := l.existing(ctx, v)
	if err != nil || name == "" {
		return err
	}
	return l.lookAt(ctx, v, name)
}

// lookForLeftover looks for the namespace of an earlier Fleet Cluster of the name. Fleet
// removes it some time after the Fleet Cluster, even from under a new one, and recreates it
// only if that changes. An import from the management side is retried, which changes it;
// nothing changes one that waits for its agent.
func (l *looker) lookForLeftover(ctx context.Context, v *visit, name string) error {
	v.leftover = ""
	if !v.byAgent || v.fleet != nil || name == "" {
		return nil
	}
	left := stamp.FleetNamespace(v.cluster.Namespace, name)
	err := l.Get(ctx, client.ObjectKey{Name: left}, namespaceMetadata(), client.UnsafeDisableDeepCopy)
	if err == nil {
		v.leftover = left
	}
	return client.IgnoreNotFound(err)
}

// lookAt reads the Fleet Cluster of a name.
func (l *looker) lookAt(ctx context.Context, v *visit, name string) error {
	v.fleet, v.relation, v.whose = nil, stamp.Foreign, ""
	if name == "" {
		return nil
	}
	live := &fleetv1.Cluster{}
	found, err := l.store.Get(ctx, types.NamespacedName{Namespace: v.cluster.Namespace, Name: name}, live)
	if err != nil || !found {
		return err
	}
	v.fleet = live
	v.relation, v.whose = l.relationOf(ctx, live, v.cluster)
	return nil
}

// relationOf says what a Fleet Cluster is to a Cluster.
func (l *looker) relationOf(ctx context.Context, fleetCluster *fleetv1.Cluster, cluster *clusterv1.Cluster) (stamp.Relation, string) {
	return stamp.RelationOf(fleetCluster, cluster, func(name string, uid types.UID) bool {
		if name == "" {
			return l.users.hasUID(ctx, cluster.Namespace, uid)
		}
		var other clusterv1.Cluster
		err := l.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, &other, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Reading a Cluster from the cache failed; it is assumed to exist", "cluster", name)
			return true // Nothing is taken over in doubt.
		}
		return err == nil && (uid == "" || other.UID == uid)
	})
}

// existing returns the name of the Fleet Cluster that already belongs to the Cluster
// under another name than its pin's: by the UID that it was made from, or, for a Cluster
// that is not pinned, by the name. Of several (CAAPF made another when naming changed) it
// is the one of the expected name, then the oldest.
func (l *looker) existing(ctx context.Context, v *visit) (string, error) {
	isPinned := stamp.PinOf(v.cluster.Annotations).IsComplete()
	expected, _ := stamp.FleetName(v.in.Cluster, v.cluster.Name)
	origins := []string{originUID(v.cluster.UID)}
	if !isPinned {
		origins = append(origins, originName(v.cluster.Name))
	}
	for _, origin := range origins {
		var list fleetv1.ClusterList
		if err := l.List(ctx, &list, client.InNamespace(v.cluster.Namespace), client.MatchingFields{byOrigin: origin},
			client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		own := slices.DeleteFunc(list.Items, func(candidate fleetv1.Cluster) bool {
			relation, _ := l.relationOf(ctx, &candidate, v.cluster)
			return !candidate.DeletionTimestamp.IsZero() || relation != stamp.Own
		})
		if len(own) > 0 {
			return stamp.Preferred(own, expected), nil
		}
	}
	if isPinned {
		return "", nil
	}
	found := &visit{in: v.in, cluster: v.cluster}
	if err := l.lookAt(ctx, found, expected); err != nil || !found.has() || !found.fleet.DeletionTimestamp.IsZero() ||
		!stamp.IsOurs(found.fleet) || !stamp.MayBeFrom(v.in.Cluster, found.fleet, v.cluster.Name) {
		return "", err
	}
	return expected, nil
}
