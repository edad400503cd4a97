package sync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/kube"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// touchAfter is how long Fleet gets to make the Namespace of a Fleet Cluster before Muster changes that: no event says that
// Fleet has seen that the old one is gone.
const touchAfter = 5 * time.Second

// fleetNamespace is the state of the namespace that Fleet keeps for a Fleet Cluster. When a Fleet Cluster is deleted, Fleet
// removes its namespace some time later, even from under a new Fleet Cluster of the same name, and makes it again only
// when the new one changes.
type fleetNamespace struct {
	name string
	uid  types.UID
	// isThere means that Fleet uses the namespace, or needs none.
	isThere bool
	// deleted is when the deletion of the namespace began; zero if it has not.
	deleted time.Time
	// blocked says what blocks the deletion of a namespace that has been going for longer than patience.
	blocked string
	// missingFor is how long there has been no namespace, as far as this process has seen. No event tells that Fleet has
	// done nothing for 5 s; after a restart, the conditions tell.
	missingFor time.Duration
	// untilTouch is how long until Fleet should reconcile the Fleet Cluster, and again how long until the next reconcile.
	untilTouch, again time.Duration
}

// namespaceOfFleet reads the state of a Fleet Cluster's namespace from the cache.
func namespaceOfFleet(ctx context.Context, reader client.Reader, fleet *fleetv1.Cluster) (fleetNamespace, error) {
	if fleet.Labels[fleetv1.ClusterManagementLabel] != "" { // Fleet ignores it.
		return fleetNamespace{isThere: true}, nil
	}
	result := fleetNamespace{name: fleet.Status.Namespace}
	if result.name == "" {
		result.name = stamp.FleetNamespace(fleet.Namespace, fleet.Name)
	}
	namespace := namespaceMetadata()
	switch err := reader.Get(ctx, client.ObjectKey{Name: result.name}, namespace, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return result, nil
	case err != nil:
		return fleetNamespace{}, fmt.Errorf("reading the Namespace of a Fleet Cluster: %w", err)
	}
	result.uid = namespace.UID
	if namespace.DeletionTimestamp != nil {
		result.deleted = namespace.DeletionTimestamp.Time
	}
	result.isThere = fleet.Status.Namespace != "" && result.deleted.IsZero()
	return result, nil
}

func (n fleetNamespace) isMissing() bool { return !n.isThere && n.deleted.IsZero() }

// isExpected means that Fleet has had no time yet to make the namespace.
func (n fleetNamespace) isExpected() bool { return n.isMissing() && n.missingFor < touchAfter }

// isReported reports whether a condition says already that the namespace is missing.
func (n fleetNamespace) isReported(reported []metav1.Condition) bool {
	return slices.ContainsFunc(reported, func(its metav1.Condition) bool {
		return strings.HasPrefix(its.Message, n.message())
	})
}

// message begins with one of these, and the name in quotes.
const (
	notMade = "Fleet has not made Namespace "
	isGoing = "Namespace "
)

// message says what a Fleet Cluster waits for.
func (n fleetNamespace) message() string {
	if n.deleted.IsZero() {
		return fmt.Sprintf(notMade+"%q yet; if that lasts, look at the log of Fleet's controller, container fleet-agentmanagement", n.name)
	}
	text := fmt.Sprintf(isGoing+"%q, of an earlier Fleet Cluster, is being deleted; Fleet makes it again when it is gone", n.name)
	if n.blocked != "" {
		text += fmt.Sprintf("; it has been going for more than %s: %s", patience, n.blocked)
	}
	return text
}

// isAboutNamespace reports whether a message begins with what fleetNamespace.message returns.
func isAboutNamespace(message string) bool {
	return strings.HasPrefix(message, notMade+`"`) || strings.HasPrefix(message, isGoing+`"`)
}

// readNamespace reads the state of the namespace of the Cluster's Fleet Cluster.
func (r *clusterReconciler) readNamespace(ctx context.Context, s *scope) (fleetNamespace, error) {
	key := client.ObjectKeyFromObject(s.cluster)
	if !s.has() {
		r.reporter.missing.Delete(key)
		return fleetNamespace{}, nil
	}
	its, err := namespaceOfFleet(ctx, r.Client, s.fleet)
	if err != nil {
		return its, err
	}
	now := r.reporter.now()
	its.missingFor = r.reporter.missing.lasted(key, its.isMissing(), now)
	if its.isMissing() && its.isReported(s.cluster.Status.Conditions) {
		its.missingFor = max(its.missingFor, touchAfter) // It was, before a restart.
	}
	switch gone := now.Sub(its.deleted); {
	case its.isMissing():
		its.untilTouch = max(touchAfter-its.missingFor, desired.LookOf(s.fleet.Annotations[desired.RetargetAnnotation]).Wait(now))
	case its.deleted.IsZero():
	case gone < patience:
		its.again = patience - gone
	default: // What blocks its deletion changes without an event.
		its.again = longestWait
		its.blocked = r.blocksDeletion(ctx, s.fleet, its.name)
	}
	return its, nil
}

// blocksDeletion returns what the conditions of a namespace say about its deletion. Only the namespace that Fleet derives is
// read: an agent may write the status that names another.
func (r *clusterReconciler) blocksDeletion(ctx context.Context, fleet *fleetv1.Cluster, name string) string {
	namespace, what := &corev1.Namespace{}, []string(nil)
	if name == stamp.FleetNamespace(fleet.Namespace, fleet.Name) {
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, namespace); client.IgnoreNotFound(err) != nil {
			return fmt.Sprintf("why is unknown: %v", err)
		}
	}
	for _, condition := range namespace.Status.Conditions {
		if condition.Status == corev1.ConditionTrue {
			what = append(what, fmt.Sprintf("%s: %s", condition.Type, condition.Message))
		}
	}
	if what == nil {
		return "its status does not say why"
	}
	return strings.Join(what, "; ")
}

// needsTouch reports whether Fleet should reconcile the Fleet Cluster now, because its namespace is missing.
func (s *scope) needsTouch() bool {
	return s.mayTouch() && s.namespace.untilTouch == 0
}

// mayTouch reports whether Muster may change the Fleet Cluster for that: a paused Cluster, and another client's object, stay
// untouched.
func (s *scope) mayTouch() bool {
	return s.has() && s.namespace.isMissing() && s.isClaimed() && s.namespaceOwner.Name == "" && !s.frozen && !s.paused &&
		s.cluster.DeletionTimestamp.IsZero() && s.fleet.DeletionTimestamp.IsZero()
}

// touch makes Fleet reconcile a Fleet Cluster without its namespace.
func (r *clusterReconciler) touch(ctx context.Context, s scope) (fleetState, error) {
	have, now := s.fleet.Annotations[desired.RetargetAnnotation], r.reporter.now()
	next := desired.LookOf(have).Next(now)
	s.namespace.untilTouch = next.Wait(now)
	return r.patchFleetCluster(ctx, s, retargeting(next.In(have)))
}

// untilNamespace returns the outcome of a reconcile, given the state of the Fleet Cluster's namespace: until Fleet uses that,
// the Cluster is not imported. Nothing is said about a Cluster that is not imported yet while Fleet can be expected to
// make the namespace: every import would take one write of conditions more.
func (s *scope) untilNamespace(result outcome) outcome {
	if !s.has() || result.isNothing() {
		return result
	}
	if s.namespace.isThere {
		last := meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition)
		if len(result.conditions) == 0 && last != nil && last.Status == metav1.ConditionFalse { // What is kept may no longer be so.
			switch {
			case last.Reason == addonsv1.WaitingForFleetReason:
				result.conditions = imported(s.cluster.Name, s.fleet.Name, stale{}, "").conditions
			case hold.PlaceOf(metav1.ConditionTrue, last.Reason) == hold.Out && isAboutNamespace(last.Message): // It was in Fleet before.
				result.conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue, Reason: last.Reason}}
			}
		}
		return result
	}
	switch {
	case s.namespace.isExpected():
		result.after = kube.Sooner(result.after, touchAfter-s.namespace.missingFor)
	case s.mayTouch():
		result.after = kube.Sooner(result.after, s.namespace.untilTouch)
	default:
		result.after = kube.Sooner(result.after, s.namespace.again)
	}
	result.passing = false
	condition := meta.FindStatusCondition(result.conditions, addonsv1.FleetImportedCondition)
	if condition == nil || condition.Status != metav1.ConditionTrue {
		return result
	}
	reported := s.cluster.Status.Conditions
	if s.namespace.isExpected() && !meta.IsStatusConditionTrue(reported, addonsv1.FleetImportedCondition) && !meta.IsStatusConditionTrue(reported, addonsv1.FleetBundlesReadyCondition) {
		result.conditions, result.stays, result.isSilent = nil, conditionTypes, true
		return result
	}
	message := s.namespace.message()
	if condition.Reason != addonsv1.ImportedReason {
		message += "; " + condition.Message
	}
	condition.Status, condition.Message = metav1.ConditionFalse, message
	if hold.PlaceOf(metav1.ConditionTrue, condition.Reason) == hold.In { // Otherwise no hold may begin, with or without the namespace.
		condition.Reason = addonsv1.WaitingForFleetReason
	}
	return result
}
