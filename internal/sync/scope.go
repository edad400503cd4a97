package sync

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capiannotations "sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/rancher"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// scope is what one reconcile knows of a Cluster: what was read at first, and what each action has returned. Actions get a
// copy, so that only run notes anything.
type scope struct {
	in settings.Settings
	// frozen means that nothing changes: the import is turned off, or the FleetAddonConfig cannot be
	// used. Unknown means that nothing is known of the settings.
	frozen, unknown bool
	cluster         *clusterv1.Cluster // as cached or written, read-only
	subject         stamp.Subject
	// selected reports whether the Cluster should be imported; if not, why names the reason.
	selected bool
	why      string
	paused   bool
	// byAgent means that the Cluster is registered ahead and its agent registers itself; unregistered
	// means that no registrar runs to register it.
	byAgent, unregistered bool
	// rancher says how the Cluster comes into Fleet, given Rancher's objects.
	rancher rancher.Relation
	fleetState
	names
	targeting
	copies
	attachment
}

// fleetState is the state of a Cluster in Fleet.
type fleetState struct {
	// fleet is the Cluster's Fleet Cluster, or another one that has the name it would get; nil if
	// there is none. It is as cached or written, read-only.
	fleet *fleetv1.Cluster
	// relation is the relation of fleet to the Cluster; conflict says whose it is if it is foreign.
	relation stamp.Relation
	conflict string
	// namespace is the one that Fleet keeps for fleet, if that is the Cluster's own.
	namespace fleetNamespace
}

// has reports whether the Cluster has a Fleet Cluster.
func (f fleetState) has() bool { return f.fleet != nil && f.relation == stamp.Own }

// names are the conflicts of the names that a Cluster's objects have or would get.
type names struct {
	// oldNamespace is the namespace of an earlier Fleet Cluster of the same name that Fleet has yet to
	// remove; empty if there is none.
	oldNamespace string
	// namespaceOwner is the Fleet Cluster that holds the namespace in Fleet that this one would get; zero if
	// there is none.
	namespaceOwner types.NamespacedName
	// groupOwner is the class whose group has the name that the Cluster's group would get; empty if there is none.
	groupOwner string
}

// targeting is how Fleet targets a Cluster.
type targeting struct {
	targets desired.Targets
	// foreign names the target that Muster did not make; empty if there is none.
	foreign string
}

// copies are what is copied to a Fleet Cluster.
type copies struct {
	// class is the metadata of the Cluster's class; nil if there is none. TooMuch says why nothing is copied from the
	// two; empty if everything is.
	class   *desired.Class
	tooMuch string
	// If the template values cannot be resolved now, unresolved says why.
	templateValues
	unresolved string
}

// attachment is a Cluster's place in Rancher's Fleet.
type attachment struct {
	// attached is the Fleet Cluster that the Cluster is attached to, as cached or written; nil if there is none. Others are
	// the fields of it that another writer has set.
	attached *fleetv1.Cluster
	others   []string
	// isElsewhere reports that another Fleet Cluster of Rancher still has Muster's fields; undetached says why they could not be
	// taken off.
	isElsewhere bool
	undetached  string
}

// isClaimed reports whether the Cluster is pinned, or would be had Muster imported it. CAAPF imports a
// Cluster that either of two selectors matches; Muster requires both. Clusters that CAAPF imported
// stay until a user decides.
func (s *scope) isClaimed() bool {
	return stamp.PinOf(s.cluster.Annotations).IsComplete() || s.has() && stamp.IsOurs(s.fleet)
}

// waits reports whether the Cluster's agent must register itself and has not done so yet.
func (s *scope) waits() bool {
	if s.fleet.Spec.KubeConfigSecret != "" {
		return false
	}
	seen := s.fleet.Status.Agent.LastSeen
	if seen.IsZero() || !s.fleet.CreationTimestamp.Before(&s.cluster.CreationTimestamp) {
		return seen.IsZero()
	}
	// The Fleet Cluster existed before the Cluster did. The agent of an earlier Cluster may call until
	// the registrar has revoked its credential, which it has done once it reports a manifest. Only
	// this case compares the clocks of two machines. A Cluster that is in Fleet stays there, whatever
	// becomes of the manifest.
	if meta.IsStatusConditionTrue(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition) {
		return false
	}
	reported := meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetAgentManifestReadyCondition)
	switch {
	case reported == nil:
		return true
	case reported.Status == metav1.ConditionTrue:
		return seen.Before(&reported.LastTransitionTime)
	default:
		return reported.Reason != addonsv1.AlreadyRegisteredReason
	}
}

// agentNamespace returns the namespace of the Cluster's agent. An agent that registers itself stays in
// the namespace that it reports: in another one it would find no credential, and Muster could not
// bring it one.
func (s *scope) agentNamespace() string {
	asked := s.in.Cluster.AgentNamespace
	switch {
	case !s.byAgent && !s.isTurning(), !s.has(), s.fleet.Status.Agent.LastSeen.IsZero():
		return asked
	case s.waits(): // Whether this Cluster's agent has checked in is unknown.
		return cmp.Or(s.fleet.Spec.AgentNamespace, s.fleet.Status.Agent.Namespace, asked)
	default:
		return cmp.Or(s.fleet.Status.Agent.Namespace, asked)
	}
}

// isIn reports whether the Cluster is in Fleet, its agent included.
func (s *scope) isIn() bool { return s.has() && !s.waits() || s.attachedTo().Name != "" }

// attachedTo returns Rancher's Fleet Cluster that the Cluster is or should be attached to; zero if
// there is none.
func (s *scope) attachedTo() types.NamespacedName {
	if s.rancher.Way != rancher.Attach || s.has() {
		return types.NamespacedName{}
	}
	return s.rancher.Fleet
}

// pin returns the name of the Fleet Cluster that the Cluster is pinned to.
func (s *scope) pin() string { return stamp.PinOf(s.cluster.Annotations).ClusterName }

// withOwnPin returns the subject without a pin that another Cluster's manifest brought, where the webhook was not
// asked. Once FleetImported was reported, the pin stays even if the Fleet Cluster is gone: another user may have deleted
// it, or not restored it yet.
func (s *scope) withOwnPin() stamp.Subject {
	if meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition) != nil {
		return s.subject
	}
	own, _ := s.subject.WithOwnPin(func(name string) bool {
		return s.fleet != nil && s.fleet.Name == name && (s.has() || stamp.OriginOf(s.fleet).Name == s.cluster.Name)
	})
	return own
}

type scopeReader struct {
	client.Reader
	store     *kube.Store
	rancher   *rancher.Client
	registrar *presence
}

// newScope reads what a reconcile needs to know at first. With an error there is no scope: what was not read would count as
// missing.
func (l *scopeReader) newScope(ctx context.Context, in *settings.InForce, cluster *clusterv1.Cluster) (*scope, error) {
	namespace := namespaceMetadata()
	if err := l.Get(ctx, client.ObjectKey{Name: cluster.Namespace}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading Namespace: %w", err)
	}
	s := &scope{
		in: in.Settings, frozen: !in.Cluster.Enabled, unknown: in.IsUnknown(), cluster: cluster, subject: stamp.SubjectOf(cluster, namespace.Labels),
		paused: capiannotations.IsPaused(cluster, cluster), rancher: l.rancher.Relation(ctx, in.Cluster, cluster, namespace.Labels),
	}
	s.selected, s.why = s.subject.IsSelected(in.Cluster)
	var err error
	if s.fleetState, err = l.findFleetCluster(ctx, s); err != nil {
		return nil, err
	}
	if s.selected && !s.frozen && !s.paused && cluster.DeletionTimestamp.IsZero() {
		if _, err := l.rancher.Recheck(ctx, &s.rancher); err != nil {
			return nil, err
		}
	}
	var own *fleetv1.Cluster
	if s.has() {
		own = s.fleet
	}
	if s.byAgent = stamp.RegistrationOf(in.Cluster, s.subject, own) == stamp.ByAgent; s.byAgent {
		s.unregistered = l.registrar.isMissing(ctx)
	}
	for i := range s.rancher.Attached { // Those that have Muster's fields.
		if fleet := &s.rancher.Attached[i]; client.ObjectKeyFromObject(fleet) == s.attachedTo() {
			s.attached = fleet
		} else if fleet.DeletionTimestamp.IsZero() {
			s.isElsewhere = true
		}
	}
	if s.rancher.Unknown == nil || s.has() && !rancher.IsFleetCluster(s.fleet) { // This one goes on, whatever Rancher has.
		return s, nil
	}
	return nil, s.rancher.Unknown
}

// findFleetCluster looks for the Cluster's Fleet Cluster, or for another one that has the name it
// would get.
func (l *scopeReader) findFleetCluster(ctx context.Context, s *scope) (fleetState, error) {
	state, err := l.readFleetCluster(ctx, s, s.pin())
	if err != nil || state.has() && stamp.OriginOf(state.fleet).UID != "" {
		return state, err
	}
	// Anyone who may write annotations can write a pin. So a Fleet Cluster that already belongs to the
	// Cluster counts first, whatever its name. A match by UID also wins over a Fleet Cluster that has
	// the pin's name and only notes the Cluster's name.
	name, err := l.existing(ctx, s)
	if err != nil || name == "" {
		return state, err
	}
	return l.readFleetCluster(ctx, s, name)
}

// oldNamespace returns the namespace of an earlier Fleet Cluster of the same name, which Fleet removes
// some time after the Fleet Cluster; empty if there is none. A Fleet Cluster that is registered ahead is made only then: the
// account that its agent registers with would go with that namespace. See fleetNamespace for the others.
func (l *scopeReader) oldNamespace(ctx context.Context, s *scope, name string) (string, error) {
	if !s.byAgent || s.fleet != nil || name == "" {
		return "", nil
	}
	old := stamp.FleetNamespace(s.cluster.Namespace, name)
	if err := l.Get(ctx, client.ObjectKey{Name: old}, namespaceMetadata(), client.UnsafeDisableDeepCopy); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return old, nil
}

func (l *scopeReader) readFleetCluster(ctx context.Context, s *scope, name string) (state fleetState, err error) {
	state.relation = stamp.Foreign
	if name == "" {
		return state, nil
	}
	live := &fleetv1.Cluster{}
	if found, err := l.store.Get(ctx, types.NamespacedName{Namespace: s.cluster.Namespace, Name: name}, live); err != nil || !found {
		return state, err
	}
	state.fleet = live
	if client.ObjectKeyFromObject(live) != s.rancher.Fleet { // This one is Rancher's, whatever is copied onto it.
		state.relation, state.conflict = l.relationOf(ctx, live, s.cluster)
	}
	return state, nil
}

// relationOf returns what a Fleet Cluster is to a Cluster.
func (l *scopeReader) relationOf(ctx context.Context, fleetCluster *fleetv1.Cluster, cluster *clusterv1.Cluster) (stamp.Relation, string) {
	return stamp.RelationOf(fleetCluster, cluster, func(name string, uid types.UID) bool {
		if name == "" {
			return l.hasUID(ctx, cluster.Namespace, uid)
		}
		var other clusterv1.Cluster
		err := l.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, &other, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Reading a Cluster from the cache failed; it is assumed to exist", "cluster", name)
			return true // In doubt, nothing is taken over.
		}
		return err == nil && (uid == "" || other.UID == uid)
	})
}

// hasUID reports whether a Cluster of the namespace has the UID. The syncer calls it only for a Fleet
// Cluster that is forged, or that an earlier Cluster left behind.
func (l *scopeReader) hasUID(ctx context.Context, namespace string, uid types.UID) bool {
	var list clusterv1.ClusterList
	if err := l.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{byUID: string(uid)}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return true // In doubt, nothing is taken over.
	}
	return len(list.Items) > 0
}

// existing returns the name of a Fleet Cluster that already belongs to the Cluster, whatever name the
// pin has. It searches by the UID that the Fleet Cluster was made from, then, if the Cluster is not
// pinned, by the name. If it finds several (CAAPF made another when naming changed), it prefers the
// expected name, then the oldest.
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
	found, err := l.readFleetCluster(ctx, s, expected)
	if err != nil || !found.has() || !found.fleet.DeletionTimestamp.IsZero() ||
		!stamp.IsOurs(found.fleet) || !stamp.MayBeFrom(s.in.Cluster, found.fleet, s.cluster.Name) {
		return "", err
	}
	return expected, nil
}

// presenceInterval is how often the Lease of an optional program is read: no event says that a Lease grows old, and a watch
// would tell of each renewal.
const presenceInterval = 10 * time.Second

// presence reports whether an optional program runs, such as the registrar or the installer. Users who
// need it must learn from the status that it is missing.
type presence struct {
	client.Reader // past the cache
	lease         types.NamespacedName
	now           func() time.Time

	// asking is held by the caller that asks, and last is the last answer; nil before the first.
	asking sync.Mutex
	last   atomic.Pointer[answer]
}

// answer says whether a program was missing at a time. Renewed is the last renewal that we saw, and since is when we saw it by our
// own clock: the other program's clock may be wrong.
type answer struct {
	at, renewed, since time.Time
	missing            bool
}

func newPresence(live client.Reader, namespace, lease string) *presence {
	return &presence{Reader: live, lease: types.NamespacedName{Namespace: namespace, Name: lease}, now: time.Now}
}

// isMissing reports whether the program does not run. In doubt, it returns false. While one caller
// asks, the others use the last answer, and wait only for the first.
func (r *presence) isMissing(ctx context.Context) bool {
	now, last := r.now(), r.last.Load()
	switch {
	case last == nil:
		r.asking.Lock()
	case now.Sub(last.at) < presenceInterval || !r.asking.TryLock():
		return last.missing
	}
	defer r.asking.Unlock()
	if its := r.last.Load(); its != last { // Another caller has just asked.
		return its.missing
	}
	next := r.ask(ctx, answer{at: now}, cmp.Or(last, &answer{}))
	r.last.Store(&next)
	return next.missing
}

// ask completes the next answer by the Lease, as the API server has it.
func (r *presence) ask(ctx context.Context, next answer, last *answer) answer {
	var lease coordinationv1.Lease
	err := r.Get(ctx, r.lease, &lease)
	renewed := lease.Spec.RenewTime
	if next.renewed, next.since = last.renewed, last.since; renewed != nil && (next.since.IsZero() || !renewed.Time.Equal(next.renewed)) {
		next.renewed, next.since = renewed.Time, next.at
	}
	switch {
	case client.IgnoreNotFound(err) != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Reading the Lease of an optional program failed; it is taken to run", "lease", r.lease.String())
	case err != nil, renewed == nil:
		next.missing = true
	default:
		next.missing = next.at.Sub(next.since) > patience // Another replica may become the leader.
	}
	return next
}
