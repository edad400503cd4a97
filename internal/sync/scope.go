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

	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// scope is what one reconcile knows of a Cluster, each thing read once, and which
// steps have been taken.
type scope struct {
	in settings.Settings
	// retained means that everything stays as it is: the import is turned off, or the
	// FleetAddonConfig cannot be used.
	retained bool
	cluster  *clusterv1.Cluster // as cached or written, read-only
	subject  stamp.Subject
	// selected reports whether the Cluster is to be imported; if not, why says what keeps it out.
	selected bool
	why      string
	paused   bool
	// byAgent means that the Cluster is registered ahead and its agent registers itself;
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

	// beside is what follows from Rancher's objects. Stray reports that a Fleet Cluster of Rancher still has
	// what was put onto it, although the Cluster is not attached to it. Rancher is the one that it is
	// attached to, as cached or written; others are the fields that somebody else has set there.
	beside  stamp.Beside
	stray   bool
	rancher *fleetv1.Cluster
	others  []string

	// taken are the steps taken. What follows is known once its step has been taken.
	taken map[step]bool
	// claimed is the Fleet Cluster that others are kept from meanwhile; empty for none.
	claimed string
	// displacing is the class whose group stands where the Cluster's would; see users.displacing.
	displacing string
	targets    desired.Targets
	// foreign specifies which of the targets is somebody else's; empty if none is.
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
func (s *scope) isClaimed() bool {
	return stamp.PinOf(s.cluster.Annotations).IsComplete() || s.has() && stamp.IsOurs(s.fleet)
}

// has reports whether the Cluster has a Fleet Cluster.
func (s *scope) has() bool { return s.fleet != nil && s.relation == stamp.Own }

// waits reports whether the Cluster's agent is to register itself, and has not yet.
func (s *scope) waits() bool {
	if s.fleet.Spec.KubeConfigSecret != "" {
		return false
	}
	seen := s.fleet.Status.Agent.LastSeen
	if seen.IsZero() || !s.fleet.CreationTimestamp.Before(&s.cluster.CreationTimestamp) {
		return seen.IsZero()
	}
	// It was there before the Cluster was, and the agent of an earlier one may call until the
	// registrar has revoked its credential, as it has when it says that there is a manifest.
	// Elsewhere the clock of another machine is not asked. Whoever is in Fleet stays there, whatever
	// becomes of the manifest.
	if meta.IsStatusConditionTrue(s.cluster.Status.Conditions, ImportedCondition) {
		return false
	}
	reported := meta.FindStatusCondition(s.cluster.Status.Conditions, ManifestCondition)
	switch {
	case reported == nil:
		return true
	case reported.Status == metav1.ConditionTrue:
		return seen.Before(&reported.LastTransitionTime)
	default:
		return reported.Reason != stamp.AlreadyRegistered
	}
}

// agentNamespace returns the namespace of the Cluster's agent. One that registers itself stays where
// it says it runs: elsewhere it would find no credential, and nobody could bring it one.
func (s *scope) agentNamespace() string {
	asked := s.in.Cluster.AgentNamespace
	switch {
	case !s.byAgent && !s.isTurning(), !s.has(), s.fleet.Status.Agent.LastSeen.IsZero():
		return asked
	case s.waits(): // Whether this Cluster's agent has checked in is not known yet.
		return cmp.Or(s.fleet.Spec.AgentNamespace, s.fleet.Status.Agent.Namespace, asked)
	default:
		return cmp.Or(s.fleet.Status.Agent.Namespace, asked)
	}
}

// isIn reports whether the Cluster is in Fleet, its agent included.
func (s *scope) isIn() bool { return s.has() && !s.waits() || s.attachedTo().Name != "" }

// attachedTo returns Rancher's Fleet Cluster that the Cluster is attached to, or is to be; zero if there is none.
func (s *scope) attachedTo() types.NamespacedName {
	if s.beside.Way != stamp.Attach || s.has() {
		return types.NamespacedName{}
	}
	return s.beside.Fleet
}

// pin returns the name of the Fleet Cluster that the Cluster is pinned to.
func (s *scope) pin() string { return stamp.PinOf(s.cluster.Annotations).ClusterName }

// errUncachedNamespace means that the cache does not show the Namespace of a Cluster yet, or no
// longer does.
var errUncachedNamespace = errors.New("the Namespace is not in the cache")

// scopeReader reads a scope.
type scopeReader struct {
	client.Reader
	store     *kube.Store
	users     *users
	rancher   *rancher
	registrar *presence
}

// newScope reads the scope of a Cluster.
func (l *scopeReader) newScope(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster) (*scope, error) {
	namespace := namespaceMetadata()
	switch err := l.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return nil, errUncachedNamespace
	case err != nil:
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	s := &scope{
		in: in.Settings, retained: !in.Cluster.Enabled, cluster: cluster, subject: stamp.SubjectOf(cluster, namespace.Labels),
		paused: capiannotations.IsPaused(cluster, cluster), taken: map[step]bool{},
	}
	s.selected, s.why = s.subject.IsSelected(in.Cluster)
	if err := l.readRancher(ctx, s, namespace.Labels); err != nil {
		return s, err
	}
	if err := l.findFleetCluster(ctx, s); err != nil {
		return s, err
	}
	var own *fleetv1.Cluster
	if s.has() {
		own = s.fleet
	}
	if s.byAgent = stamp.RegistrationOf(in.Cluster, s.subject, own) == stamp.ByAgent; s.byAgent {
		s.unregistered = l.registrar.isMissing(ctx)
	}
	return s, nil
}

// readRancher reads what follows from Rancher's objects.
func (l *scopeReader) readRancher(ctx context.Context, s *scope, namespaceLabels map[string]string) (err error) {
	if s.beside, err = l.rancher.beside(ctx, s.in.Cluster, s.cluster, namespaceLabels); err != nil {
		return err
	}
	attached, err := l.rancher.attached(ctx, client.ObjectKeyFromObject(s.cluster))
	if err != nil {
		return err
	}
	for i := range attached {
		key := client.ObjectKeyFromObject(&attached[i])
		if key == s.attachedTo() {
			s.rancher = &attached[i]
		} else if attached[i].DeletionTimestamp.IsZero() {
			s.stray = true
		}
	}
	return nil
}

// findFleetCluster looks for the Fleet Cluster that the Cluster has, or whose name it is to have.
func (l *scopeReader) findFleetCluster(ctx context.Context, s *scope) error {
	if err := l.readFleetCluster(ctx, s, s.pin()); err != nil || s.has() && stamp.OriginOf(s.fleet).UID != "" {
		return err
	}
	// Anyone who may write annotations can write a pin. What belongs to the Cluster already
	// counts, under whatever name: by UID, also before what has the pin's name and only says
	// the Cluster's.
	name, err := l.existing(ctx, s)
	if err != nil || name == "" {
		return err
	}
	return l.readFleetCluster(ctx, s, name)
}

// findLeftover looks for the namespace of an earlier Fleet Cluster of the name. Fleet
// removes it some time after the Fleet Cluster, even from under a new one, and recreates it
// only if that changes. An import from the management side is retried, which changes it;
// nothing changes one that waits for its agent.
func (l *scopeReader) findLeftover(ctx context.Context, s *scope, name string) error {
	s.leftover = ""
	if !s.byAgent || s.fleet != nil || name == "" {
		return nil
	}
	left := stamp.FleetNamespace(s.cluster.Namespace, name)
	err := l.Get(ctx, client.ObjectKey{Name: left}, namespaceMetadata(), client.UnsafeDisableDeepCopy)
	if err == nil {
		s.leftover = left
	}
	return client.IgnoreNotFound(err)
}

// readFleetCluster reads the Fleet Cluster of a name.
func (l *scopeReader) readFleetCluster(ctx context.Context, s *scope, name string) error {
	s.fleet, s.relation, s.whose = nil, stamp.Foreign, ""
	if name == "" {
		return nil
	}
	live := &fleetv1.Cluster{}
	found, err := l.store.Get(ctx, types.NamespacedName{Namespace: s.cluster.Namespace, Name: name}, live)
	if err != nil || !found {
		return err
	}
	s.fleet = live
	if client.ObjectKeyFromObject(live) != s.beside.Fleet { // Which is Rancher's, whatever is copied onto it.
		s.relation, s.whose = l.relationOf(ctx, live, s.cluster)
	}
	return nil
}

// relationOf returns what a Fleet Cluster is to a Cluster.
func (l *scopeReader) relationOf(ctx context.Context, fleetCluster *fleetv1.Cluster, cluster *clusterv1.Cluster) (stamp.Relation, string) {
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
func (l *scopeReader) existing(ctx context.Context, s *scope) (string, error) {
	isPinned := stamp.PinOf(s.cluster.Annotations).IsComplete()
	expected, _ := stamp.FleetName(s.in.Cluster, s.cluster.Name)
	origins := []string{originUID(s.cluster.UID)}
	if !isPinned {
		origins = append(origins, originName(s.cluster.Name))
	}
	for _, origin := range origins {
		var list fleetv1.ClusterList
		if err := l.List(ctx, &list, client.InNamespace(s.cluster.Namespace), client.MatchingFields{byOrigin: origin},
			client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing Fleet Clusters: %w", err)
		}
		own := slices.DeleteFunc(list.Items, func(candidate fleetv1.Cluster) bool {
			relation, _ := l.relationOf(ctx, &candidate, s.cluster)
			return !candidate.DeletionTimestamp.IsZero() || relation != stamp.Own
		})
		if len(own) > 0 {
			return stamp.Preferred(own, expected), nil
		}
	}
	if isPinned {
		return "", nil
	}
	found := &scope{in: s.in, cluster: s.cluster}
	if err := l.readFleetCluster(ctx, found, expected); err != nil || !found.has() || !found.fleet.DeletionTimestamp.IsZero() ||
		!stamp.IsOurs(found.fleet) || !stamp.MayBeFrom(s.in.Cluster, found.fleet, s.cluster.Name) {
		return "", err
	}
	return expected, nil
}
