package rollouts

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/test/fixture"
	"github.com/muster-fleet/muster/test/oracle"
)

// Mood is how the agent of a Cluster does its work.
type Mood string

// The moods: what an agent deploys becomes ready, fails, or never becomes ready; or the agent does nothing.
const (
	Healthy Mood = "Healthy"
	Failing Mood = "Failing"
	Stuck   Mood = "Stuck"
	Silent  Mood = "Silent"
)

// agents plays the agents of a namespace's Fleet Clusters, and the part of Fleet that gives these their namespaces.
type agents struct {
	client    client.WithWatch
	namespace string

	wait sync.WaitGroup
	mu   sync.Mutex
	mood map[string]Mood
	// deployments holds the latest BundleDeployments, and isBusy says which of them an agent works on.
	deployments map[client.ObjectKey]*fleetv1.BundleDeployment
	isBusy      map[client.ObjectKey]bool
}

const (
	// works is how long an agent takes for each step, and again how long it is between two attempts to watch.
	works = 40 * time.Millisecond
	again = 200 * time.Millisecond
	// silentFor is longer than any offlineAfter.
	silentFor = 2 * time.Hour
)

func newAgents(c client.WithWatch, namespace string) *agents {
	return &agents{
		client: c, namespace: namespace, mood: map[string]Mood{},
		deployments: map[client.ObjectKey]*fleetv1.BundleDeployment{}, isBusy: map[client.ObjectKey]bool{},
	}
}

// play plays until the context ends.
func (a *agents) play(ctx context.Context) {
	a.watch(ctx, &fleetv1.BundleDeploymentList{}, func(event watch.Event) {
		its, is := event.Object.(*fleetv1.BundleDeployment)
		if !is || its.Labels[fleetv1.ClusterNamespaceLabel] != a.namespace {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		key := client.ObjectKeyFromObject(its)
		if a.deployments[key] = its; event.Type == watch.Deleted {
			delete(a.deployments, key)
		}
		a.wake(ctx, key)
	})
	a.watch(ctx, &fleetv1.ClusterList{}, func(event watch.Event) {
		if fleet, is := event.Object.(*fleetv1.Cluster); is && event.Type != watch.Deleted && fleet.Status.Agent.LastSeen.IsZero() {
			a.wait.Go(func() { a.admit(ctx, fleet.DeepCopy()) })
		}
	}, client.InNamespace(a.namespace))
}

// watch watches until the context ends, also while the API server comes and goes.
func (a *agents) watch(ctx context.Context, list client.ObjectList, see func(watch.Event), of ...client.ListOption) {
	a.wait.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, again) {
			watched, err := a.client.Watch(ctx, list, of...)
			if err != nil {
				continue
			}
			for event := range watched.ResultChan() {
				see(event)
			}
		}
	})
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// admit gives a Fleet Cluster its namespace, and has its agent check in.
func (a *agents) admit(ctx context.Context, fleet *fleetv1.Cluster) {
	a.retry(ctx, func() error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: oracle.FleetNamespace(client.ObjectKeyFromObject(fleet))}}
		if err := a.client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if err := fixture.AssignNamespace(ctx, a.client, fleet); err != nil {
			return err
		}
		return a.checkIn(ctx, fleet.Name)
	})
}

// retry does something until that succeeds, or has lost its object.
func (a *agents) retry(ctx context.Context, do func() error) {
	for client.IgnoreNotFound(do()) != nil && ctx.Err() == nil {
		pause(ctx, again)
	}
}

// checkIn has the agent of a Cluster check in, unless it is silent: then it did so long ago.
func (a *agents) checkIn(ctx context.Context, cluster string) error {
	fleet := &fleetv1.Cluster{}
	if err := a.client.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: cluster}, fleet); err != nil {
		return client.IgnoreNotFound(err)
	}
	at := time.Now()
	if a.moodOf(cluster) == Silent {
		at = at.Add(-silentFor)
	}
	return client.IgnoreNotFound(fixture.Call(ctx, a.client, fleet, at))
}

func (a *agents) moodOf(cluster string) Mood {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mood[cluster]
}

// become changes the mood of an agent.
func (a *agents) become(ctx context.Context, cluster string, mood Mood) error {
	a.mu.Lock()
	a.mood[cluster] = mood
	for key, its := range a.deployments {
		if its.Labels[fleetv1.ClusterLabel] == cluster {
			a.wake(ctx, key)
		}
	}
	a.mu.Unlock()
	return a.checkIn(ctx, cluster)
}

// wake has an agent look at a BundleDeployment.
func (a *agents) wake(ctx context.Context, key client.ObjectKey) {
	if !a.isBusy[key] {
		a.isBusy[key] = true
		a.wait.Go(func() { a.work(ctx, key) })
	}
}

// work does one step after another, until there is nothing to do.
func (a *agents) work(ctx context.Context, key client.ObjectKey) {
	for ; ctx.Err() == nil; pause(ctx, works) {
		a.mu.Lock()
		its := a.deployments[key].DeepCopy()
		var change func(*fleetv1.BundleDeploymentStatus)
		if its != nil && its.DeletionTimestamp.IsZero() {
			change = next(its, a.mood[its.Labels[fleetv1.ClusterLabel]])
		}
		if change == nil {
			a.isBusy[key] = false
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		if !isCurrent(its) && !a.hasValues(ctx, its) {
			continue // Fleet copies them in a moment.
		}
		before := its.DeepCopy()
		change(&its.Status)
		// If it fails, or the watch has not told of it, the agent looks again.
		_ = a.client.Status().Patch(ctx, its, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
}

// next returns what an agent in this mood does to the status of a BundleDeployment; nil for nothing.
func next(its *fleetv1.BundleDeployment, mood Mood) func(*fleetv1.BundleDeploymentStatus) {
	switch {
	case mood == Silent:
	case mood == Failing && isDeployed(its):
		return func(status *fleetv1.BundleDeploymentStatus) {
			status.Ready = false
			setDeployed(status, corev1.ConditionFalse, "it fails, as it is to")
		}
	case mood == Failing:
	case !isCurrent(its) || !isDeployed(its):
		return func(status *fleetv1.BundleDeploymentStatus) {
			setDeployed(status, corev1.ConditionTrue, "")
			status.Ready = status.Ready && status.AppliedDeploymentID == its.Spec.DeploymentID
			status.AppliedDeploymentID, status.DownstreamResourcesGeneration = its.Spec.DeploymentID, its.Spec.DownstreamResourcesGeneration
			status.Release, status.NonModified = "default/"+its.Name+":1", true
		}
	case its.Status.Ready != (mood != Stuck):
		return func(status *fleetv1.BundleDeploymentStatus) { status.Ready = mood != Stuck }
	}
	return nil
}

// isCurrent reports whether an agent has deployed what Fleet wants.
func isCurrent(its *fleetv1.BundleDeployment) bool {
	return its.Spec.DeploymentID != "" && its.Status.AppliedDeploymentID == its.Spec.DeploymentID &&
		its.Status.DownstreamResourcesGeneration == its.Spec.DownstreamResourcesGeneration
}

// isDeployed reports whether nothing has failed.
func isDeployed(its *fleetv1.BundleDeployment) bool {
	return !slices.ContainsFunc(its.Status.Conditions, func(condition genericcondition.GenericCondition) bool {
		return condition.Type == fleetv1.BundleDeploymentConditionDeployed && condition.Status == corev1.ConditionFalse
	})
}

func setDeployed(status *fleetv1.BundleDeploymentStatus, is corev1.ConditionStatus, message string) {
	status.Conditions = []genericcondition.GenericCondition{{
		Type: fleetv1.BundleDeploymentConditionDeployed, Status: is, Message: message, LastUpdateTime: time.Now().UTC().Format(time.RFC3339),
	}}
}

// hasValues reports whether Fleet has copied the values that a BundleDeployment names.
func (a *agents) hasValues(ctx context.Context, its *fleetv1.BundleDeployment) bool {
	if its.Spec.Options.Helm == nil {
		return true
	}
	for _, from := range its.Spec.Options.Helm.ValuesFrom {
		if ref := from.ConfigMapKeyRef; ref != nil {
			values := &corev1.ConfigMap{}
			if a.client.Get(ctx, client.ObjectKey{Namespace: its.Namespace, Name: ref.Name}, values) != nil || strings.TrimSpace(values.Data[ref.Key]) == "" {
				return false
			}
		}
	}
	return true
}
