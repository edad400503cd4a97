package random

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/stack"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const (
	namespaceCount = 4 // Number 4 is a namespace that does not exist.
	slotCount      = 6
	// ownNamespace as ClassNamespace means that the reference names none.
	ownNamespace = namespaceCount + 1
	noClass      = 3
)

// classNames are the classes; the last does not fit a label value.
var classNames = [noClass]string{"small", "large", "long." + strings.Repeat("x", 70)}

// run is one sequence of steps in namespaces of its own.
type run struct {
	id       string
	patience time.Duration
	// state is all there is, as it was seen last: as the API server answered the last
	// write, and at the last quiet point.
	state oracle.State
	slots map[int]oracle.Key
	// proxies are the HelmChartProxies by their slots.
	proxies map[int]oracle.Key
	// done are the steps that were done, count is their number without those that look only.
	done  []Step
	count int

	syncerUp, webhookUp, registrarUp, chartsUp bool
	// dirty says that Muster may not be at rest; clean that it was when it was stopped.
	dirty, clean bool

	// tenant has rights in one of the namespaces only.
	tenant client.Client
	// rightful are the mappings and groups that may have been made since the last quiet
	// point: somebody entitled to it wished for them; audit tells what was made.
	rightful map[string]bool
	audit    *stack.AuditTail
	// wished is what may have been registered since then, by namespace; registered tells what was.
	wished     map[string]map[string]bool
	registered *stack.AuditTail
	// callers is how many registrations were made in all.
	callers int
	// carried is how many carriers of HelmChartProxies there were at all quiet points.
	carried int
	// kept are the objects of the last quiet point that have to be the same at the next.
	kept map[string]types.UID
	// deleted are the objects that were deleted since then.
	deleted map[oracle.Key]bool
	// colliding is what collidingName has found.
	colliding string
}

func newRun(id string, patience time.Duration) (*run, error) {
	r := &run{
		id: id, patience: patience, state: oracle.NewState(), slots: map[int]oracle.Key{}, proxies: map[int]oracle.Key{},
		syncerUp: true, webhookUp: true, registrarUp: registrar, chartsUp: repo != nil, wished: map[string]map[string]bool{}, rightful: map[string]bool{}, kept: map[string]types.UID{}, deleted: map[oracle.Key]bool{},
	}
	for i := range namespaceCount {
		namespace := &corev1.Namespace{}
		namespace.Name = r.namespace(i)
		if err := admin.Create(ctx, namespace); err != nil {
			return nil, err
		}
		r.state.Namespaces[namespace.Name] = namespace
	}
	var err error
	if r.audit, err = env.AuditTail(); err != nil {
		return nil, err
	}
	if r.registered, err = env.AuditTail(); err != nil {
		return nil, err
	}
	r.state.Calling.Registrar = registrar
	if err := r.setServer("https://fleet.example.com"); err != nil {
		return nil, err
	}
	if r.tenant, err = newTenant(r.tenantNamespace()); err != nil {
		return r, err
	}
	if err := r.prepareCharts(); err != nil {
		return r, err
	}
	return r, nil
}

// namespace returns a namespace by its number. The name of lib begins with the name of the
// tenant's namespace: otherwise he could not find a name that Fleet cuts to the same one.
func (r *run) namespace(number int) string {
	if number == lib {
		return fmt.Sprintf("%s-n%d-n%d", r.id, theirs, lib)
	}
	return fmt.Sprintf("%s-n%d", r.id, number)
}

// className returns the class a step names, or none.
func (r *run) className(step Step) string {
	if step.Class == noClass {
		return ""
	}
	return classNames[step.Class]
}

// classKey returns the class a step names, seen from a namespace.
func (r *run) classKey(step Step, from string) oracle.Key {
	key := oracle.Key{Namespace: from, Name: r.className(step)}
	if step.ClassNamespace != ownNamespace {
		key.Namespace = r.namespace(step.ClassNamespace)
	}
	return key
}

// cluster returns the Cluster in a step's slot as it was seen last, or nil.
func (r *run) cluster(step Step) *clusterv1.Cluster { return r.state.Clusters[r.slots[step.Cluster]] }

// play does a step. It returns false if the step could not be done, and an
// *oracleError if Muster does not do what the oracle says.
func (r *run) play(step Step) (bool, error) {
	if step.Op == quiet {
		r.done = append(r.done, step)
		return true, r.quiet()
	}
	operation := operationOf(step.Op)
	racy := !strings.HasPrefix(step.Op, "Syncer") && (operation.racy != nil && operation.racy(r, step) || r.createsOnly() || oracle.ChartsHold(r.state))
	if racy && (r.syncerUp && r.dirty || !r.syncerUp && (!r.clean || r.registrarUp || r.chartsUp)) {
		r.done = append(r.done, Step{Op: quiet})
		if err := r.quiet(); err != nil {
			return false, err
		}
	}
	r.noteRightful()
	done, err := operation.do(r, step)
	r.noteRightful()
	r.noteKept()
	if isRefused(err) {
		done, err = false, nil
	}
	if !done && err == nil {
		return false, nil
	}
	r.done, r.count = append(r.done, step), r.count+1
	r.dirty = true
	if err != nil {
		return true, fmt.Errorf("%s: %w", step, err)
	}
	if racy && r.syncerUp {
		return true, r.quiet()
	}
	return true, nil
}

// createsOnly reports whether objects are made and then left as they are: then it
// matters when they are made.
func (r *run) createsOnly() bool {
	if r.state.Config == nil {
		return false
	}
	cluster, class := r.state.Config.Spec.Cluster, r.state.Config.Spec.ClusterClass
	return cluster != nil && isFalse(cluster.PatchResource) || class != nil && isFalse(class.PatchResource)
}

// between waits, between two changes of one step, if it matters when objects are made: a Cluster whose
// agent calls is in Fleet before it refers to anything.
func (r *run) between() error {
	if r.syncerUp && r.createsOnly() {
		return r.quiet()
	}
	return nil
}

func isFalse(value *bool) bool { return value != nil && !*value }

// isRefused reports whether somebody said no: the API server, a policy of ours, or
// one of our webhooks by being down.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsBadRequest(err) ||
		err != nil && strings.Contains(err.Error(), "failed calling webhook")
}

// oracleError says where Muster differs from the oracle.
type oracleError struct{ text string }

func (e *oracleError) Error() string { return e.text }

// calm is for how long Muster must leave alone what is right already.
const calm = 250 * time.Millisecond

// quiet waits until Muster has made what the oracle says, and fails if it does not.
func (r *run) quiet() error {
	if err := errors.Join(r.startSyncer(), r.startRegistrar(), r.startCharts()); err != nil {
		return err
	}
	r.noteRightful()
	r.noteKept()
	settled := oracle.Settle(r.state)
	want := oracle.View(settled)
	deadline := time.Now().Add(r.patience)
	for calmSince := (time.Time{}); ; {
		seen, err := r.look()
		if err != nil {
			return err
		}
		got := oracle.View(oracle.Recognize(settled, seen))
		observed, err := r.configObserved()
		if err != nil {
			return err
		}
		switch {
		case want != got || !observed:
			calmSince = time.Time{}
		case calmSince.IsZero():
			calmSince = time.Now()
		case time.Since(calmSince) >= calm:
			r.state, r.dirty = seen, false
			r.state.Calling.Called, r.state.Calling.Rotated, r.state.Calling.Kept = settled.Calling.Called, settled.Calling.Rotated, settled.Calling.Kept
			r.carried += len(seen.Charts.Carriers)
			clear(r.deleted)
			return errors.Join(r.nothingAnew(), r.nothingOpened(), r.nothingTwice())
		}
		if time.Now().After(deadline) {
			diff := oracle.Diff(want, got)
			if diff == "" {
				diff = "the status of the FleetAddonConfig does not show its generation"
			}
			return &oracleError{diff}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// look reads what Muster writes; the rest is known.
func (r *run) look() (oracle.State, error) {
	seen, err := oracle.Look(ctx, admin, r.id+"-", r.state.Namespaces)
	seen.Config, seen.Referenced, seen.GarbageStays = r.state.Config, r.state.Referenced, r.state.GarbageStays
	seen.FleetNamespaces = r.state.FleetNamespaces
	known := r.state.Calling
	known.Registrations, known.Manifests = seen.Calling.Registrations, seen.Calling.Manifests
	seen.Calling = known
	if err == nil {
		seen.Charts, err = r.lookAtCharts()
	}
	return seen, err
}

func (r *run) configObserved() (bool, error) {
	if r.state.Config == nil {
		return true, nil
	}
	var config addonsv1.FleetAddonConfig
	err := admin.Get(ctx, client.ObjectKeyFromObject(r.state.Config), &config)
	return config.Status.ObservedGeneration == config.Generation, err
}

// startSyncer starts the syncer if it is down, and lets it begin.
func (r *run) startSyncer() error {
	if r.syncerUp {
		return nil
	}
	r.syncerUp = true
	if err := env.Start(ctx, syncerProcess); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{}
	err := poll.Until(ctx, "the syncer to lead", time.Minute, func(context.Context) error {
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "muster-system", Name: syncerProcess}, lease); err != nil {
			return err
		}
		if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
			return errors.New("nobody holds the lease")
		}
		return nil
	})
	time.Sleep(2 * calm) // Its caches fill.
	return err
}

func (r *run) stopSyncer(end func(context.Context, string) error) (bool, error) {
	if !r.syncerUp {
		return false, nil
	}
	r.syncerUp, r.clean = false, !r.dirty
	if err := end(ctx, syncerProcess); err != nil {
		return false, err
	}
	// The lease of a leader that was killed lapses in some seconds. We do not wait for that.
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = "muster-system", syncerProcess
	return true, client.IgnoreNotFound(admin.Delete(ctx, lease))
}

// patch changes an object by a merge patch, in place.
func patch(object client.Object, change map[string]any) error { return patchAs(admin, object, change) }

func patchAs(somebody client.Client, object client.Object, change map[string]any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return somebody.Patch(ctx, object, client.RawPatch(types.MergePatchType, text))
}

func metadata(field, key, value string) map[string]any {
	var entry any
	if value != "" {
		entry = value
	}
	return map[string]any{"metadata": map[string]any{field: map[string]any{key: entry}}}
}

// waitGone waits until the API server has deleted an object. What it owned may still be
// there: nothing has to wait for the garbage collector.
func (r *run) waitGone(object client.Object) error {
	return poll.Until(ctx, "what was deleted to be gone", 30*time.Second, func(context.Context) error {
		current := object.DeepCopyObject().(client.Object)
		err := admin.Get(ctx, client.ObjectKeyFromObject(object), current)
		if err == nil && current.GetUID() == object.GetUID() {
			return fmt.Errorf("%T is there", object)
		}
		return client.IgnoreNotFound(err)
	})
}

// waitCollected waits until the garbage collector has nothing to do.
func (r *run) waitCollected() error {
	return poll.Until(ctx, "garbage to be collected", 60*time.Second, func(context.Context) error {
		seen, err := r.look()
		if err != nil {
			return err
		}
		lives := map[types.UID]bool{}
		for _, objects := range [][]client.Object{values(seen.Clusters), values(seen.Classes)} {
			for _, object := range objects {
				lives[object.GetUID()] = true
			}
		}
		for _, fleet := range seen.FleetClusters {
			lives[fleet.UID] = true
		}
		for _, objects := range [][]client.Object{
			values(seen.FleetClusters), values(seen.Groups), values(seen.Calling.Registrations), values(seen.Calling.Manifests),
		} {
			for _, object := range objects {
				for _, owner := range object.GetOwnerReferences() {
					if !lives[owner.UID] {
						return fmt.Errorf("%T %s is there", object, client.ObjectKeyFromObject(object))
					}
				}
			}
		}
		return nil
	})
}
