package sync

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// met is a Cluster as a reconcile finds it.
type met struct {
	frozen, unknown, deleted, specPaused, annotationPaused, selected, pinned, initialized, deleteDeselected bool
	fleet                                                                                                   *metFleet
	// byAgent: the agent is to register itself; unregistered: the registrar does not run; unmade: the
	// objects that a topology Cluster will refer to are not there.
	byAgent, unregistered, unmade bool
	groupOwner, unresolved        string
	tooMuch                       string
	foreign                       string
	oldNamespace                  string
	// namespaceOwner has the namespace in Fleet that the Cluster would get.
	namespaceOwner string
	// reported is what the registrar has said, an hour after the Cluster was made.
	reported string
	// namespace is the state of the namespace of the Fleet Cluster; nil if that is there.
	namespace *fleetNamespace
}

// metFleet is the Fleet Cluster of a met Cluster.
type metFleet struct {
	relation        stamp.Relation
	owned, released bool
	ours, deleted   bool
	// initiated: it was made for an agent that registers itself; called: that has.
	// inherited: it is older than the Cluster, and was called so long after that was made.
	initiated, checkedIn bool
	inherited            time.Duration
}

// born is when Clusters were created.
var born = metav1.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

func (m met) scope() *scope {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "1", CreationTimestamp: born, Annotations: map[string]string{}}}
	if m.unmade {
		cluster.Spec.Topology.ClassRef.Name = "standard"
	}
	if m.deleted {
		cluster.DeletionTimestamp = ptr.To(metav1.Now())
	}
	if m.specPaused {
		cluster.Spec.Paused = ptr.To(true)
	}
	if m.initialized {
		cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	}
	if m.pinned {
		cluster.Annotations[stamp.OwnedByAnnotation], cluster.Annotations[stamp.ClusterNameAnnotation] = "fleet-addon-config", "prod"
	}
	if m.reported != "" {
		condition := metav1.Condition{Type: addonsv1.FleetAgentManifestReadyCondition, Status: metav1.ConditionFalse, Reason: m.reported, LastTransitionTime: metav1.NewTime(born.Add(time.Hour))}
		if m.reported == "ManifestReady" {
			condition.Status = metav1.ConditionTrue
		}
		cluster.Status.Conditions = []metav1.Condition{condition}
	}
	in := settings.Default()
	if m.deleteDeselected {
		in.Cluster.OnDeselect = addonsv1.DeselectDelete
	}
	s := &scope{
		in: in, frozen: m.frozen || m.unknown, unknown: m.unknown, cluster: cluster, subject: stamp.SubjectOf(cluster, nil), selected: m.selected, why: "no selector matches",
		paused: m.specPaused || m.annotationPaused, byAgent: m.byAgent, unregistered: m.unregistered,
	}
	if s.namespace.isThere = m.namespace == nil; !s.namespace.isThere {
		s.namespace = *m.namespace
	}
	if m.fleet != nil {
		s.fleet = m.fleet.object()
		s.relation, s.conflict = m.fleet.relation, "it is that of another"
	}
	return s
}

func (f *metFleet) object() *fleetv1.Cluster {
	fleet := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Annotations: map[string]string{}, Labels: map[string]string{}}}
	fleet.CreationTimestamp = metav1.NewTime(born.Add(time.Minute))
	if !f.initiated {
		fleet.Spec.KubeConfigSecret = "prod-kubeconfig"
	}
	if f.checkedIn {
		fleet.Status.Agent.LastSeen = metav1.NewTime(born.Add(time.Hour))
	}
	if f.inherited != 0 {
		fleet.CreationTimestamp = metav1.NewTime(born.Add(-time.Hour))
		fleet.Status.Agent.LastSeen = metav1.NewTime(born.Add(f.inherited))
	}
	if f.owned {
		fleet.OwnerReferences = []metav1.OwnerReference{desired.Owner(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "prod", UID: "1"}})}
	}
	if f.released {
		fleet.Annotations[stamp.ReleasedAnnotation] = "true"
	}
	if f.ours {
		fleet.Labels[stamp.ManagedByLabel] = stamp.ManagedBy
	}
	if f.deleted {
		fleet.DeletionTimestamp = ptr.To(metav1.Now())
	}
	return fleet
}

// step is the name of an action.
type step string

const (
	checkNames        step = "checkNames"
	applyStamp        step = "applyStamp"
	ensureTargets     step = "ensureTargets"
	readCopies        step = "readCopies"
	adopt             step = "adopt"
	applyFleetCluster step = "applyFleetCluster"
	retarget          step = "retarget"
	touch             step = "touch"
	release           step = "release"
	reclaim           step = "reclaim"
	attach            step = "attach"
	detach            step = "detach"
	withdraw          step = "withdraw"
)

// played are actions of which only the effect on the scope is played. Steps are those that were taken.
type played struct {
	*testing.T
	effect func(*scope, step)
	steps  []step
}

// take plays an action on its copy of a scope.
func (p *played) take(s scope, next step) scope {
	if slices.Contains(p.steps, next) {
		p.Fatalf("the step %q comes twice: %v", next, p.steps)
	}
	p.effect(&s, next)
	p.steps = append(p.steps, next)
	return s
}

func (p *played) lock(scope, string) func() { return func() {} }

func (p *played) checkNames(_ context.Context, s scope, _ string) (fleetState, names, error) {
	s = p.take(s, checkNames)
	return s.fleetState, s.names, nil
}

func (p *played) applyStamp(_ context.Context, s scope, wanted stamp.Stamp) (*clusterv1.Cluster, error) {
	s = p.take(s, applyStamp)
	if isPinned := stamp.PinOf(s.cluster.Annotations).IsComplete(); !isPinned && !s.has() && s.namespaceOwner.Name != "" && wanted.Pin.IsComplete() {
		p.Error("a Cluster is pinned to a name whose namespace in Fleet is another's")
	}
	if s.cluster = s.cluster.DeepCopy(); s.selected {
		maps.Copy(s.cluster.Annotations, wanted.AnnotationValues())
	}
	return s.cluster, nil
}

func (p *played) ensureTargets(_ context.Context, s scope) (targeting, error) {
	return p.take(s, ensureTargets).targeting, nil
}

func (p *played) readCopies(_ context.Context, s scope) (copies, error) {
	return p.take(s, readCopies).copies, nil
}

func (p *played) adopt(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, adopt).fleetState, nil
}

func (p *played) applyFleetCluster(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, applyFleetCluster).fleetState, nil
}

func (p *played) retarget(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, retarget).fleetState, nil
}

func (p *played) touch(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, touch).fleetState, nil
}

func (p *played) release(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, release).fleetState, nil
}

func (p *played) reclaim(_ context.Context, s scope) (fleetState, error) {
	return p.take(s, reclaim).fleetState, nil
}

func (p *played) attach(_ context.Context, s scope) (attachment, targeting, error) {
	s = p.take(s, attach)
	return s.attachment, s.targeting, nil
}

func (p *played) detach(_ context.Context, s scope) (attachment, error) {
	return p.take(s, detach).attachment, nil
}

func (p *played) withdraw(_ context.Context, s scope) (*clusterv1.Cluster, error) {
	return p.take(s, withdraw).cluster, nil
}

func (p *played) run(s *scope) outcome {
	p.Helper()
	result, err := s.run(p.Context(), p)
	if err != nil {
		p.Fatal(err)
	}
	return result
}

// play takes the steps of a reconcile as the reconciler would, and returns them with the outcome. It
// checks that the mirrored condition is reported in every state in which the Fleet Cluster is the
// Cluster's own.
func (m met) play(t *testing.T) (steps []step, result outcome) {
	t.Helper()
	s, do := m.scope(), &played{T: t}
	do.effect = func(s *scope, next step) {
		switch next {
		case checkNames:
			s.groupOwner, s.oldNamespace, s.namespaceOwner.Name = m.groupOwner, m.oldNamespace, m.namespaceOwner
		case ensureTargets:
			s.foreign = m.foreign
		case readCopies:
			s.unresolved, s.tooMuch = m.unresolved, m.tooMuch
		case adopt:
			s.relation = stamp.Own
			delete(s.fleet.Annotations, stamp.ReleasedAnnotation)
		case applyFleetCluster:
			written := metFleet{ours: true, owned: true, initiated: m.byAgent || s.isTurning()}
			if m.fleet != nil {
				written.checkedIn, written.inherited = m.fleet.checkedIn, m.fleet.inherited
			}
			s.fleet, s.relation = written.object(), stamp.Own
		case release:
			s.fleet.OwnerReferences, s.fleet.Annotations[stamp.ReleasedAnnotation] = nil, "true"
		case reclaim:
			delete(s.fleet.Annotations, stamp.ReleasedAnnotation)
		case touch:
			s.namespace.untilTouch = time.Minute
		case withdraw:
			s.cluster = s.cluster.DeepCopy()
			clear(s.cluster.Annotations)
		}
	}
	result = bundlesReady{staleAfter: time.Hour, now: func() time.Time { return born.Add(3 * time.Hour) }}.of(s, do.run(s))
	isWithdrawn := slices.Contains(do.steps, withdraw)
	isMirrored := meta.FindStatusCondition(result.conditions, addonsv1.FleetBundlesReadyCondition) != nil || result.isSilent
	if isItsOwn := !isWithdrawn && s.has() && (s.isClaimed() || s.selected && !m.frozen && !m.deleted); isMirrored != isItsOwn {
		t.Errorf("%+v, fleet %+v: mirrored: %v, after %v", m, m.fleet, isMirrored, do.steps)
	}
	return do.steps, result
}

// TestSteps compares the steps for a Cluster with the contract's table of lifecycles: one row for each
// state in the table.
func TestSteps(t *testing.T) {
	own := &metFleet{relation: stamp.Own, ours: true, owned: true}
	released := &metFleet{relation: stamp.Own, ours: true, released: true}
	foreign := &metFleet{relation: stamp.Foreign}
	toImport, toReclaim := []step{checkNames, applyStamp, ensureTargets, readCopies, applyFleetCluster}, []step{checkNames, applyStamp, ensureTargets, readCopies, reclaim, applyFleetCluster}
	expected := &metFleet{relation: stamp.Own, ours: true, owned: true, initiated: true}
	agent := &metFleet{relation: stamp.Own, ours: true, owned: true, initiated: true, checkedIn: true}
	inherited := func(checkedIn time.Duration) *metFleet {
		return &metFleet{relation: stamp.Orphan, initiated: true, inherited: checkedIn}
	}
	takenOver := []step{checkNames, applyStamp, ensureTargets, readCopies, adopt, applyFleetCluster}
	for name, test := range map[string]struct {
		met    met
		steps  []step
		state  state
		status metav1.ConditionStatus // of FleetImported; empty for none
		reason string
	}{
		"off, never seen":               {met: met{frozen: true, selected: true}},
		"off, imported":                 {met: met{frozen: true, selected: true, pinned: true, fleet: own}},
		"off, paused for a move":        {met: met{frozen: true, selected: true, pinned: true, specPaused: true, fleet: own}, steps: []step{release}},
		"off, moved, being deleted":     {met: met{frozen: true, pinned: true, specPaused: true, deleted: true, fleet: own}},
		"off, unpaused again":           {met: met{frozen: true, selected: true, pinned: true, fleet: released}, steps: []step{reclaim}},
		"gone":                          {met: met{unknown: true, selected: true, pinned: true, fleet: own}},
		"gone, never seen":              {met: met{unknown: true, selected: true}},
		"gone, paused for a move":       {met: met{unknown: true, pinned: true, specPaused: true, fleet: own}, steps: []step{release}},
		"gone, unpaused again":          {met: met{unknown: true, pinned: true, fleet: released}},
		"gone, unpaused, being deleted": {met: met{unknown: true, pinned: true, deleted: true, fleet: released}},
		"off, paused, not Muster's":     {met: met{frozen: true, specPaused: true, fleet: foreign}},
		"being deleted":                 {met: met{deleted: true, selected: true, pinned: true, fleet: own}},
		"being deleted, paused":         {met: met{deleted: true, selected: true, pinned: true, specPaused: true, fleet: own}},
		"being deleted, was released":   {met: met{deleted: true, selected: true, pinned: true, fleet: released}, steps: []step{reclaim}},
		"paused, not to be imported":    {met: met{specPaused: true}, state: stateUnselected},
		"paused before its import":      {met: met{selected: true, annotationPaused: true}, state: statePending, status: "False", reason: "Paused"},
		"paused by annotation":          {met: met{selected: true, pinned: true, annotationPaused: true, fleet: own}, state: statePending, status: "True", reason: "Paused"},
		"paused for a move":             {met: met{selected: true, pinned: true, specPaused: true, fleet: own}, steps: []step{release}, state: statePending, status: "True", reason: "Paused"},
		"paused and released":           {met: met{selected: true, pinned: true, specPaused: true, fleet: released}, state: statePending, status: "True", reason: "Paused"},
		"not selected":                  {met: met{}, steps: []step{applyStamp}, state: stateUnselected},
		"deselected, kept":              {met: met{pinned: true, fleet: own}, steps: []step{applyStamp, retarget}, state: stateUnselected, status: "True", reason: "Deselected"},
		"deselected, kept, unpaused":    {met: met{pinned: true, fleet: released}, steps: []step{applyStamp, retarget, reclaim}, state: stateUnselected, status: "True", reason: "Deselected"},
		"deselected before its import":  {met: met{pinned: true}, steps: []step{applyStamp}, state: stateUnselected, status: "False", reason: "Deselected"},
		"CAAPF's, not selected":         {met: met{fleet: own}, steps: []step{applyStamp, retarget}, state: stateUnselected, status: "True", reason: "Deselected"},
		"deselected, deleted":           {met: met{pinned: true, deleteDeselected: true, fleet: own}, steps: []step{withdraw}, state: stateUnselected},
		"no control plane":              {met: met{selected: true}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "WaitingForControlPlane"},
		"ready to import":               {met: met{selected: true, initialized: true}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"imported":                      {met: met{selected: true, pinned: true, initialized: true, fleet: own}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"imported, status was lost":     {met: met{selected: true, pinned: true, fleet: own}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"imported, unpaused":            {met: met{selected: true, pinned: true, initialized: true, fleet: released}, steps: toReclaim, state: stateImported, status: "True", reason: "Imported"},
		"its namespace is another's":    {met: met{selected: true, initialized: true, namespaceOwner: "other", groupOwner: "a.b"}, steps: []step{checkNames, applyStamp}, state: stateConflicted, status: "False", reason: "NameConflict"},
		"and it is not pinned to it":    {met: met{selected: true, initialized: true, namespaceOwner: "other"}, steps: []step{checkNames, applyStamp}, state: stateConflicted, status: "False", reason: "NameConflict"},
		"and it was released":           {met: met{selected: true, pinned: true, initialized: true, namespaceOwner: "other", fleet: released}, steps: []step{checkNames, applyStamp, reclaim}, state: stateConflicted, status: "True", reason: "NameConflict"},
		"and it is in Fleet":            {met: met{selected: true, pinned: true, initialized: true, namespaceOwner: "other", fleet: &metFleet{relation: stamp.Own, ours: true, owned: true}}, steps: []step{checkNames, applyStamp}, state: stateConflicted, status: "True", reason: "NameConflict"},
		"its group is another class's":  {met: met{selected: true, initialized: true, groupOwner: "a.b"}, steps: []step{checkNames, applyStamp}, state: stateConflicted, status: "False", reason: "NameConflict"},
		"the name is somebody else's":   {met: met{selected: true, initialized: true, fleet: foreign}, steps: []step{checkNames, applyStamp, ensureTargets}, state: stateConflicted, status: "False", reason: "NameConflict"},
		"its Fleet Cluster is going":    {met: met{selected: true, initialized: true, fleet: &metFleet{relation: stamp.Own, deleted: true}}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "FleetClusterDeleting"},
		"a namesake's is to go first":   {met: met{selected: true, initialized: true, fleet: &metFleet{relation: stamp.EarlierCluster}}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "FleetClusterDeleting"},
		"a namesake left it":            {met: met{selected: true, initialized: true, fleet: &metFleet{relation: stamp.Orphan}}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies, adopt, applyFleetCluster}, state: stateImported, status: "True", reason: "Imported"},
		"a namesake left it, too early": {met: met{selected: true, fleet: &metFleet{relation: stamp.Orphan}}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "WaitingForControlPlane"},
		"handed over":                   {met: met{selected: true, initialized: true, fleet: &metFleet{relation: stamp.HandedOver}}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies, adopt, applyFleetCluster}, state: stateImported, status: "True", reason: "Imported"},
		"values missing at first":       {met: met{selected: true, initialized: true, unresolved: "no such object"}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies}, state: statePending, status: "False", reason: "TemplateValuesUnresolved"},
		"too much at first":             {met: met{selected: true, initialized: true, tooMuch: "513 labels"}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies}, state: statePending, status: "False", reason: "TooMuchMetadata"},
		"too much later":                {met: met{selected: true, initialized: true, tooMuch: "513 labels", fleet: own}, steps: toImport, state: stateImported, status: "True", reason: "TooMuchMetadata"},
		"too much, unpaused":            {met: met{selected: true, pinned: true, initialized: true, tooMuch: "513 labels", fleet: released}, steps: toReclaim, state: stateImported, status: "True", reason: "TooMuchMetadata"},
		"too much, a namesake left it":  {met: met{selected: true, initialized: true, tooMuch: "513 labels", fleet: &metFleet{relation: stamp.Orphan}}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies}, state: statePending, status: "False", reason: "TooMuchMetadata"},
		"too much, handed over":         {met: met{selected: true, initialized: true, tooMuch: "513 labels", fleet: &metFleet{relation: stamp.HandedOver}}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies}, state: statePending, status: "False", reason: "TooMuchMetadata"},
		"values missing later":          {met: met{selected: true, initialized: true, unresolved: "no such object", fleet: own}, steps: toImport, state: stateImported, status: "True", reason: "TemplateValuesUnresolved"},

		"agent: before its control plane is":      {met: met{selected: true, byAgent: true}, steps: toImport, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: before it has a control plane":    {met: met{selected: true, byAgent: true, unmade: true}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "WaitingForControlPlane"},
		"agent: a namesake's namespace is there":  {met: met{selected: true, byAgent: true, oldNamespace: "cluster-team-prod"}, steps: []step{checkNames, applyStamp, ensureTargets}, state: statePending, status: "False", reason: "FleetClusterDeleting"},
		"agent: values missing at first":          {met: met{selected: true, byAgent: true, unresolved: "no such object"}, steps: []step{checkNames, applyStamp, ensureTargets, readCopies}, state: statePending, status: "False", reason: "TemplateValuesUnresolved"},
		"agent: not called yet":                   {met: met{selected: true, pinned: true, byAgent: true, initialized: true, fleet: expected}, steps: toImport, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: not called, nobody registers":     {met: met{selected: true, byAgent: true, initialized: true, unregistered: true}, steps: toImport, state: statePending, status: "False", reason: "RegistrarMissing"},
		"agent: has checked in":                   {met: met{selected: true, pinned: true, byAgent: true, fleet: agent}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"agent: has checked in, registrar gone":   {met: met{selected: true, pinned: true, byAgent: true, unregistered: true, fleet: agent}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"agent: has checked in, values missing":   {met: met{selected: true, pinned: true, byAgent: true, unresolved: "no such object", fleet: agent}, steps: toImport, state: stateImported, status: "True", reason: "TemplateValuesUnresolved"},
		"agent: of the manager's before":          {met: met{selected: true, pinned: true, byAgent: true, initialized: true, fleet: &metFleet{relation: stamp.Own, ours: true, owned: true, checkedIn: true}}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"agent: of the manager's, never in":       {met: met{selected: true, pinned: true, byAgent: true, initialized: true, fleet: own}, steps: toImport, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: a namesake's called":              {met: met{selected: true, byAgent: true, fleet: inherited(-time.Minute)}, steps: takenOver, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: a namesake's calls still":         {met: met{selected: true, byAgent: true, fleet: inherited(time.Minute)}, steps: takenOver, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: a namesake's, not issued":         {met: met{selected: true, byAgent: true, reported: "WaitingForFleet", fleet: inherited(2 * time.Hour)}, steps: takenOver, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: a namesake's, issued":             {met: met{selected: true, byAgent: true, reported: "ManifestReady", fleet: inherited(time.Minute)}, steps: takenOver, state: statePending, status: "False", reason: "WaitingForAgent"},
		"agent: after a namesake's":               {met: met{selected: true, byAgent: true, reported: "ManifestReady", fleet: inherited(2 * time.Hour)}, steps: takenOver, state: stateImported, status: "True", reason: "Imported"},
		"agent: came with its agent":              {met: met{selected: true, byAgent: true, reported: "AlreadyRegistered", fleet: inherited(-time.Minute)}, steps: takenOver, state: stateImported, status: "True", reason: "Imported"},
		"agent: paused before it called":          {met: met{selected: true, pinned: true, byAgent: true, annotationPaused: true, fleet: expected}, state: statePending, status: "False", reason: "Paused"},
		"agent: paused after":                     {met: met{selected: true, pinned: true, byAgent: true, annotationPaused: true, fleet: agent}, state: statePending, status: "True", reason: "Paused"},
		"agent: deselected before it called":      {met: met{pinned: true, byAgent: true, fleet: expected}, steps: []step{applyStamp, retarget}, state: stateUnselected, status: "False", reason: "Deselected"},
		"agent: deselected after":                 {met: met{pinned: true, byAgent: true, fleet: agent}, steps: []step{applyStamp, retarget}, state: stateUnselected, status: "True", reason: "Deselected"},
		"agent: not selected":                     {met: met{byAgent: true}, steps: []step{applyStamp}, state: stateUnselected},
		"agent: the name is somebody else's":      {met: met{selected: true, byAgent: true, fleet: foreign}, steps: []step{checkNames, applyStamp, ensureTargets}, state: stateConflicted, status: "False", reason: "NameConflict"},
		"agent: unpaused before it called":        {met: met{selected: true, pinned: true, byAgent: true, fleet: &metFleet{relation: stamp.Own, ours: true, released: true, initiated: true}}, steps: toReclaim, state: statePending, status: "False", reason: "WaitingForAgent"},
		"manager again, after it called":          {met: met{selected: true, pinned: true, initialized: true, fleet: agent}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},
		"manager again, before the control plane": {met: met{selected: true, pinned: true, fleet: expected}, steps: toImport, state: statePending, status: "False", reason: "WaitingForControlPlane"},
		"manager again, called, no control plane": {met: met{selected: true, pinned: true, fleet: agent}, steps: toImport, state: stateImported, status: "True", reason: "Imported"},

		"a target is somebody else's":        {met: met{selected: true, initialized: true, foreign: "not Muster's"}, steps: toImport, state: stateConflicted, status: "True", reason: "NameConflict"},
		"agent: a target is somebody else's": {met: met{selected: true, byAgent: true, foreign: "not Muster's"}, steps: toImport, state: stateConflicted, status: "False", reason: "NameConflict"},
	} {
		t.Run(name, func(t *testing.T) {
			steps, result := test.met.play(t)
			if diff := cmp.Diff(test.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			var reported metav1.Condition
			var counted state
			if found := meta.FindStatusCondition(result.conditions, addonsv1.FleetImportedCondition); found != nil {
				reported = *found
			}
			if reported.Type != "" || result.isBare {
				counted = stateOf(&clusterv1.Cluster{Status: clusterv1.ClusterStatus{Conditions: result.conditions}})
			}
			if counted != test.state || reported.Status != test.status || reported.Reason != test.reason {
				t.Errorf("got state %q, FleetImported %q %q; want %q, %q %q", counted, reported.Status, reported.Reason, test.state, test.status, test.reason)
			}
		})
	}
}

// TestStepsOfEverything plays every combination of states, and checks the laws that hold for all of
// them.
func TestStepsOfEverything(t *testing.T) {
	fleets := []*metFleet{nil}
	for relation := stamp.Foreign; relation <= stamp.Orphan; relation++ {
		for bits := range 16 {
			fleets = append(fleets, &metFleet{relation: relation, owned: bits&1 > 0, released: bits&2 > 0, ours: bits&4 > 0, deleted: bits&8 > 0})
		}
	}
	for _, fleet := range fleets {
		for bits := range 3 << 10 {
			on := func(bit int) bool { return bits&(1<<bit) > 0 }
			m := met{
				fleet: fleet, frozen: on(0), deleted: on(1), specPaused: on(2), annotationPaused: on(3), selected: on(4), pinned: on(5),
				initialized: on(6), deleteDeselected: on(7),
			}
			if on(8) {
				m.groupOwner = "a.b"
			}
			if on(9) {
				m.unresolved = "no such object"
			}
			m.byAgent, m.unmade = bits>>10 > 0, bits>>10 > 1
			if bits%3 == 0 {
				m.namespace = &fleetNamespace{missingFor: touchAfter} // Fleet should reconcile it now.
			}
			if m.byAgent && fleet != nil {
				copied := *fleet
				copied.initiated = true
				m.fleet = &copied
			}
			steps, result := m.play(t)
			has := func(wanted step) bool { return slices.Contains(steps, wanted) }
			isFrozen := m.frozen || m.deleted || m.specPaused || m.annotationPaused
			for law, broken := range map[string]bool{
				"a frozen Cluster is only released or reclaimed": isFrozen && slices.ContainsFunc(steps, func(s step) bool { return s != release && s != reclaim }),
				"only spec.paused releases":                      has(release) && !m.specPaused,
				"only a selected Cluster is imported":            (has(applyFleetCluster) || has(ensureTargets) || has(checkNames)) && !m.selected,
				"targets come before the Fleet Cluster":          has(applyFleetCluster) && slices.Index(steps, applyFleetCluster) < slices.Index(steps, ensureTargets),
				"the check of names comes before what it guards": has(ensureTargets) && slices.Index(steps, ensureTargets) < slices.Index(steps, checkNames),
				"somebody else's is never touched":               fleet != nil && fleet.relation == stamp.Foreign && (has(applyFleetCluster) || has(adopt) || has(release) || has(reclaim) || has(retarget)),
				"one patch gives the owner back":                 has(applyFleetCluster) && has(reclaim) && slices.Index(steps, applyFleetCluster) < slices.Index(steps, reclaim),
				"what is going is not written":                   fleet != nil && fleet.deleted && (has(applyFleetCluster) || has(adopt) || has(release) || has(reclaim) || has(retarget)),
				"nothing is made before the control plane is":    has(applyFleetCluster) && fleet == nil && !m.initialized && !m.byAgent,
				"nothing is made before what it refers to":       has(applyFleetCluster) && fleet == nil && m.byAgent && m.unmade,
				"who has not checked in is not in":               m.byAgent && meta.IsStatusConditionTrue(result.conditions, addonsv1.FleetImportedCondition),
				"nothing is made without its values":             has(applyFleetCluster) && fleet == nil && m.unresolved != "",
				"without its namespace nothing is in Fleet":      m.namespace != nil && !m.frozen && meta.IsStatusConditionTrue(result.conditions, addonsv1.FleetImportedCondition),
				"Fleet is called where a namespace is missing":   has(touch) && (m.namespace == nil || fleet != nil && fleet.relation == stamp.Foreign || fleet != nil && fleet.deleted),
				"an import is undone only when asked":            has(withdraw) && (m.selected || !m.deleteDeselected),
			} {
				if broken {
					t.Errorf("%s: %+v, fleet %+v: %v", law, m, fleet, steps)
				}
			}
		}
	}
}
