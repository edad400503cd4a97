package random

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/fixture"
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

	// theirs is the tenant's namespace, and the next is not his.
	theirs = namespaceCount - 1
	lib    = 0
)

// classNames are the classes; the last does not fit a label value.
var classNames = [noClass]string{"small", "large", "long." + strings.Repeat("x", 70)}

// run is one sequence of steps in namespaces of its own.
type run struct {
	id       string
	patience time.Duration
	// state holds all objects as last seen: in the API server's answer to the last write, and at the last quiet
	// point.
	state oracle.State
	slots map[int]oracle.Key
	// proxies are the HelmChartProxies by their slots.
	proxies map[int]oracle.Key
	// done are the steps done so far, count is their number without those that only compare.
	done  []Step
	count int

	// down are the programs that were stopped.
	down map[string]bool
	// noted is how often an object was noted.
	noted int
	// dirty means that Muster may not be at rest; clean means that it was when it was stopped.
	dirty, clean bool

	// tenant has rights in one of the namespaces only.
	tenant client.Client
	// audit shows what Muster has made since the last quiet point.
	audit *stack.AuditTail
	// rightful are the mappings and groups that Muster may have made since then, because an entitled user asked for
	// them. wished are the allowed registrations, by namespace.
	rightful map[string]bool
	wished   map[string]map[string]bool
	// binding says which registrations Fleet refuses.
	binding fixture.Binding
	// agents is the total number of registrations.
	agents int
	// carried is the total number of carriers of HelmChartProxies, over all quiet points.
	carried int
	// waiting are the reasons of HelmReleaseProxies that waited, with their total number over all quiet points.
	waiting map[string]int
	// retained are the objects of the last quiet point that must be the same at the next.
	retained map[string]types.UID
	// records are the oldest records of HelmReleaseProxies, by their UIDs.
	records map[types.UID]string
	// deleted are the HelmChartProxies that were deleted since then.
	deleted map[oracle.Key]bool
	// colliding is the name that collidingName has found.
	colliding string
}

func newRun(id string, patience time.Duration) (*run, error) {
	r := &run{
		id: id, patience: patience, state: oracle.NewState(), slots: map[int]oracle.Key{}, proxies: map[int]oracle.Key{}, down: map[string]bool{},
		wished: map[string]map[string]bool{}, rightful: map[string]bool{}, retained: map[string]types.UID{}, deleted: map[oracle.Key]bool{},
		records: map[types.UID]string{}, waiting: map[string]int{},
	}
	for i := range namespaceCount {
		namespace := &corev1.Namespace{}
		namespace.Name = r.namespace(i)
		if err := r.create(admin, namespace); err != nil {
			return r, err
		}
	}
	// The run before leaves one.
	if config := fixture.Config(); admin.Get(ctx, client.ObjectKeyFromObject(config), config) == nil {
		r.state.Config = config
	}
	var err error
	if r.audit, err = env.AuditTail(); err != nil {
		return r, err
	}
	r.state.AgentInitiated.Registrar = registrar
	if err := r.setServer("https://fleet.example.com"); err != nil {
		return r, err
	}
	if r.tenant, err = newTenant(r.namespace(theirs)); err != nil {
		return r, err
	}
	return r, r.prepareHelm()
}

// namespace returns a namespace by its number. The name of lib begins with the name of the tenant's namespace:
// otherwise he could not find a name that Fleet cuts to the same one.
func (r *run) namespace(number int) string {
	if number == lib {
		return fmt.Sprintf("%s-n%d-n%d", r.id, theirs, lib)
	}
	return fmt.Sprintf("%s-n%d", r.id, number)
}

// className returns the class that a step names, or none.
func (r *run) className(step Step) string {
	if step.Class == noClass {
		return ""
	}
	return classNames[step.Class]
}

// classKey returns the key of the class that a step names.
func (r *run) classKey(step Step) oracle.Key {
	key := oracle.Key{Name: r.className(step)}
	if step.ClassNamespace != ownNamespace {
		key.Namespace = r.namespace(step.ClassNamespace)
	}
	return key
}

// cluster returns the last known Cluster in a step's slot, or nil.
func (r *run) cluster(step Step) *clusterv1.Cluster {
	return r.state.Clusters[r.slots[step.Cluster]].DeepCopy()
}

// play does a step, if it can be done. The error is an *oracleError if Muster differs from the oracle.
func (r *run) play(step Step) error {
	if step.Op == quiet {
		r.done = append(r.done, step)
		return r.quiet()
	}
	operation, isUp := operationOf(step.Op), r.isUp(syncerProcess)
	racy := !strings.HasPrefix(step.Op, "Syncer") && (operation.racy != nil && operation.racy(r, step) || r.createsOnly() || oracle.HelmHolds(r.state))
	if racy && (isUp && r.dirty || !isUp && (!r.clean || r.isUp(registrarProcess) || r.isUp(helmProcess))) {
		r.done = append(r.done, Step{Op: quiet})
		if err := r.quiet(); err != nil {
			return err
		}
	}
	r.noteRightful()
	noted := r.noted
	done, err := operation.do(r, step)
	r.noteRightful()
	r.noteRetained()
	if isRefused(err) {
		done, err = false, nil
	}
	if !done && err == nil && r.noted == noted { // Half a step counts, because Muster may react to it.
		return nil
	}
	r.done, r.count = append(r.done, step), r.count+1
	r.dirty = true
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if racy && r.isUp(syncerProcess) {
		return r.quiet()
	}
	return nil
}

// config returns the sections of the FleetAddonConfig, empty where there are none.
func (r *run) config() (cluster addonsv1.ClusterConfig, class addonsv1.ClusterClassConfig) {
	if r.state.Config != nil {
		cluster, class = ptr.Deref(r.state.Config.Spec.Cluster, cluster), ptr.Deref(r.state.Config.Spec.ClusterClass, class)
	}
	return cluster, class
}

// createsOnly reports whether Muster creates objects and then leaves them as they are, so that the time of creation
// matters.
func (r *run) createsOnly() bool {
	cluster, class := r.config()
	return isFalse(cluster.PatchResource) || isFalse(class.PatchResource)
}

// between waits between two changes of one step, if the time of creation matters: a Cluster whose agent registers
// itself is in Fleet before it refers to any object.
func (r *run) between() error {
	if r.isUp(syncerProcess) && r.createsOnly() {
		return r.quiet()
	}
	return nil
}

func isFalse(value *bool) bool { return value != nil && !*value }

// isRefused reports whether a request was refused: by the API server, by one of Muster's policies, or because one of
// its webhooks is down.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) || apierrors.IsBadRequest(err) ||
		err != nil && strings.Contains(err.Error(), "failed calling webhook")
}

// oracleError says where Muster differs from the oracle.
type oracleError struct{ text string }

func (e *oracleError) Error() string { return e.text }

// calm is how long Muster must leave correct objects alone.
const calm = 250 * time.Millisecond

// quiet waits until the objects match the oracle, and fails if they do not.
func (r *run) quiet() error {
	if err := r.start(syncerProcess, registrarProcess, helmProcess); err != nil {
		return err
	}
	r.noteRightful()
	r.noteRetained()
	converged := oracle.Converge(r.state)
	want := oracle.View(converged)
	deadline := time.Now().Add(r.patience)
	for calmSince := (time.Time{}); ; {
		if err := cmp.Or(r.fleetWithdraws(), r.fleetRollsOut()); err != nil {
			return err
		}
		seen, err := r.observe()
		if err != nil {
			return err
		}
		if converged.Helm.IsShared() {
			r.state.Helm.Seen = seen.Helm.Holders()
			converged = oracle.Converge(r.state)
			want = oracle.View(converged)
		}
		got := oracle.View(oracle.Recognize(converged, seen))
		observed, err := r.configObserved()
		if err != nil {
			return err
		}
		switch {
		case !observed || !maps.Equal(want, got):
			calmSince = time.Time{}
		case calmSince.IsZero():
			calmSince = time.Now()
		case time.Since(calmSince) >= calm:
			r.state, r.dirty = seen, false
			r.state.AgentInitiated.CheckedIn, r.state.AgentInitiated.Rotated, r.state.AgentInitiated.Records = converged.AgentInitiated.CheckedIn, converged.AgentInitiated.Rotated, converged.AgentInitiated.Records
			r.state.Helm.Asked, r.state.FleetNamespaces = converged.Helm.Asked, converged.FleetNamespaces
			r.carried += len(seen.Helm.Carriers)
			for _, reported := range seen.Helm.ReleaseProxies {
				for _, reason := range reported {
					if reason == addonsv1.ReleaseTakenReason || reason == addonsv1.PolicyRefusesReason {
						r.waiting[reason]++
					}
				}
			}
			clear(r.deleted)
			return errors.Join(r.noteRecords(), r.nothingElse())
		}
		if time.Now().After(deadline) {
			return &oracleError{cmp.Or(oracle.Diff(want, got), "the status of the FleetAddonConfig does not show its generation")}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// observe reads the objects that Muster writes; the run knows the rest.
func (r *run) observe() (oracle.State, error) {
	seen, err := oracle.Observe(ctx, admin, r.id+"-", r.state.Namespaces)
	if err != nil {
		return seen, err
	}
	seen.Config, seen.IsConfigGone, seen.Referenced, seen.GarbageRemains = r.state.Config, r.state.IsConfigGone, r.state.Referenced, r.state.GarbageRemains
	seen.FleetNamespaces = r.state.FleetNamespaces
	known := r.state.AgentInitiated
	known.Registrations, known.Manifests = seen.AgentInitiated.Registrations, seen.AgentInitiated.Manifests
	seen.AgentInitiated = known
	seen.Helm, err = oracle.ObserveHelm(ctx, admin, r.id+"-", r.state.Helm)
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

// patch changes an object by a merge patch, in place.
func patch(object client.Object, change any) error { return patchAs(admin, object, change) }

func patchAs(somebody client.Client, object client.Object, change any) error {
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

// create creates an object, and notes it.
func (r *run) create(somebody client.Client, object client.Object) error {
	err := somebody.Create(ctx, object)
	if err == nil {
		r.note(object, true)
	}
	return err
}

// isThere reports whether an object was seen; otherwise only its name is set.
func isThere(object client.Object) bool { return object.GetUID() != "" }

// change patches an object, and notes the result. It returns false if the object does not exist.
func (r *run) change(somebody client.Client, object client.Object, change any) (bool, error) {
	if !isThere(object) {
		return false, nil
	}
	return r.changed(object, patchAs(somebody, object, change))
}

// changed notes the result of a write. It returns false if the object was gone.
func (r *run) changed(object client.Object, err error) (bool, error) {
	if err == nil {
		r.note(object, true)
	}
	return err == nil, client.IgnoreNotFound(err)
}

// remove deletes an object, and notes that. It returns false if the object does not exist.
func (r *run) remove(somebody client.Client, object client.Object) (bool, error) {
	if !isThere(object) {
		return false, nil
	}
	err := somebody.Delete(ctx, object)
	if err == nil {
		r.note(object, false)
	}
	return err == nil, client.IgnoreNotFound(err)
}

// note records that an object exists, or that it does not.
func (r *run) note(object client.Object, there bool) {
	r.noted++
	key, state := client.ObjectKeyFromObject(object), &r.state
	switch object := object.(type) {
	case *corev1.Namespace:
		noteIn(state.Namespaces, object.Name, object, there)
	case *unstructured.Unstructured:
		noteIn(state.Referenced, oracle.ReferenceTo(object), object, there)
	case *corev1.Secret:
		if object.Namespace == credentialsNamespace {
			noteIn(state.AgentInitiated.Credentials, object.Name, object, there)
		} else {
			noteIn(state.AgentInitiated.Manifests, key, object, there)
		}
	}
	noteIfIn(state.Classes, key, object, there)
	noteIfIn(state.Clusters, key, object, there)
	noteIfIn(state.FleetClusters, key, object, there)
	noteIfIn(state.Groups, key, object, there)
	noteIfIn(state.Mappings, key, object, there)
	noteIfIn(state.AgentInitiated.Bundles, key, object, there)
	noteIfIn(state.AgentInitiated.Registrations, key, object, there)
	noteIfIn(state.Helm.Proxies, key, object, there)
	noteIfIn(state.Helm.Policies, key, object, there)
}

// noteIfIn notes an object of type T in the map for its kind.
func noteIfIn[T client.Object](objects map[oracle.Key]T, key oracle.Key, object client.Object, there bool) {
	if object, isOne := object.(T); isOne {
		noteIn(objects, key, object, there)
	}
}

func noteIn[K comparable, T any](objects map[K]T, key K, object T, there bool) {
	if objects[key] = object; !there {
		delete(objects, key)
	}
}

// waitGone waits until the API server has deleted an object. Objects that it owned may still exist: a run does not
// wait for the garbage collector.
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
		seen, err := r.observe()
		if err != nil {
			return err
		}
		lives := map[types.UID]bool{}
		for _, object := range slices.Concat(values(seen.Clusters), values(seen.Classes), values(seen.FleetClusters)) {
			lives[object.GetUID()] = true
		}
		for _, object := range slices.Concat(
			values(seen.FleetClusters), values(seen.Groups), values(seen.AgentInitiated.Registrations), values(seen.AgentInitiated.Manifests),
		) {
			for _, owner := range object.GetOwnerReferences() {
				if !lives[owner.UID] {
					return fmt.Errorf("%T %s is there", object, client.ObjectKeyFromObject(object))
				}
			}
		}
		var namespaces corev1.NamespaceList
		if err := admin.List(ctx, &namespaces, client.MatchingLabels{fleetv1.ManagedLabel: "true"}); err != nil {
			return err
		}
		for _, namespace := range namespaces.Items {
			of := oracle.Key{Namespace: namespace.Annotations[fleetv1.ClusterNamespaceAnnotation], Name: namespace.Annotations[fleetv1.ClusterAnnotation]}
			if strings.HasPrefix(of.Namespace, r.id+"-") && (!namespace.DeletionTimestamp.IsZero() || seen.FleetClusters[of] == nil) {
				return fmt.Errorf("namespace %s of Fleet Cluster %s is there", namespace.Name, of)
			}
		}
		return nil
	})
}

// values returns the objects of a map.
func values[K comparable, T client.Object](objects map[K]T) []client.Object {
	var result []client.Object
	for _, object := range objects {
		result = append(result, object)
	}
	return result
}
