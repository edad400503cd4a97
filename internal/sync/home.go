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

// lookAfter is how long Fleet gets to make the Namespace of a Fleet Cluster before Muster makes it look: no event says that
// Fleet has seen that the old one is gone.
const lookAfter = 5 * time.Second

// home is the state of the namespace that Fleet keeps for a Fleet Cluster. When a Fleet Cluster is deleted, Fleet
// removes its namespace some time later, even from under a new Fleet Cluster of the same name, and makes it again only
// when the new one changes.
type home struct {
	name string
	uid  types.UID
	// isThere means that Fleet uses the namespace, or needs none.
	isThere bool
	// going is when the deletion of the namespace began; zero if it has not.
	going time.Time
	// kept says what keeps a namespace that has been going for longer than patience.
	kept string
	// lacking is how long there has been no namespace, as far as this process has seen. No event tells that Fleet has
	// done nothing for 5 s; after a restart, the conditions tell.
	lacking time.Duration
	// untilLook is how long until Fleet should look, and again how long until the next reconcile.
	untilLook, again time.Duration
}

// homeOf reads the state of a Fleet Cluster's namespace from the cache.
func homeOf(ctx context.Context, reader client.Reader, fleet *fleetv1.Cluster) (home, error) {
	if fleet.Labels[fleetv1.ClusterManagementLabel] != "" { // Fleet ignores it.
		return home{isThere: true}, nil
	}
	result := home{name: fleet.Status.Namespace}
	if result.name == "" {
		result.name = stamp.FleetNamespace(fleet.Namespace, fleet.Name)
	}
	namespace := namespaceMetadata()
	switch err := reader.Get(ctx, client.ObjectKey{Name: result.name}, namespace, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return result, nil
	case err != nil:
		return home{}, fmt.Errorf("reading the Namespace of a Fleet Cluster: %w", err)
	}
	result.uid = namespace.UID
	if namespace.DeletionTimestamp != nil {
		result.going = namespace.DeletionTimestamp.Time
	}
	result.isThere = fleet.Status.Namespace != "" && result.going.IsZero()
	return result, nil
}

func (h home) isMissing() bool { return !h.isThere && h.going.IsZero() }

// isExpected means that Fleet has had no time yet to make the namespace.
func (h home) isExpected() bool { return h.isMissing() && h.lacking < lookAfter }

// isSaid reports whether a condition says already that the namespace is missing.
func (h home) isSaid(reported []metav1.Condition) bool {
	return slices.ContainsFunc(reported, func(its metav1.Condition) bool {
		return strings.HasPrefix(its.Message, h.message())
	})
}

// message begins with one of these, and the name in quotes.
const (
	notMade = "Fleet has not made Namespace "
	isGoing = "Namespace "
)

// message says what a Fleet Cluster waits for.
func (h home) message() string {
	if h.going.IsZero() {
		return fmt.Sprintf(notMade+"%q yet; if that lasts, look at the log of Fleet's controller, container fleet-agentmanagement", h.name)
	}
	text := fmt.Sprintf(isGoing+"%q, of an earlier Fleet Cluster, is being deleted; Fleet makes it again when it is gone", h.name)
	if h.kept != "" {
		text += fmt.Sprintf("; it has been going for more than %s: %s", patience, h.kept)
	}
	return text
}

// isAboutHome reports whether a message begins with what home.message returns.
func isAboutHome(message string) bool {
	return strings.HasPrefix(message, notMade+`"`) || strings.HasPrefix(message, isGoing+`"`)
}

// readHome reads the state of the namespace of the Cluster's Fleet Cluster.
func (r *clusterReconciler) readHome(ctx context.Context, s *scope) (err error) {
	key := client.ObjectKeyFromObject(s.cluster)
	if !s.has() {
		s.home = home{}
		r.reporter.lacking(key, false)
		return nil
	}
	if s.home, err = homeOf(ctx, r.Client, s.fleet); err != nil {
		return err
	}
	now := r.reporter.now()
	s.home.lacking = r.reporter.lacking(key, s.home.isMissing())
	if s.home.isMissing() && s.home.isSaid(s.cluster.Status.Conditions) {
		s.home.lacking = max(s.home.lacking, lookAfter) // It was, before a restart.
	}
	switch gone := now.Sub(s.home.going); {
	case s.home.isMissing():
		s.home.untilLook = max(lookAfter-s.home.lacking, desired.LookOf(s.fleet.Annotations[desired.RetargetAnnotation]).Wait(now))
	case s.home.going.IsZero():
	case gone < patience:
		s.home.again = patience - gone
	default: // What keeps it changes without an event.
		s.home.again = longestWait
		s.home.kept = r.whatKeeps(ctx, s)
	}
	return nil
}

// whatKeeps returns what the conditions of a namespace say about its deletion. Only the namespace that Fleet derives is
// read: an agent may write the status that names another.
func (r *clusterReconciler) whatKeeps(ctx context.Context, s *scope) string {
	namespace, what := &corev1.Namespace{}, []string(nil)
	if s.home.name == stamp.FleetNamespace(s.fleet.Namespace, s.fleet.Name) {
		if err := r.live.Get(ctx, client.ObjectKey{Name: s.home.name}, namespace); client.IgnoreNotFound(err) != nil {
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

// isToLook reports whether Fleet should look at the Fleet Cluster now, because its namespace is missing.
func (s *scope) isToLook() bool {
	return s.mayLook() && s.home.untilLook == 0
}

// mayLook reports whether Muster may make Fleet look: a paused Cluster, and another client's object, stay untouched.
func (s *scope) mayLook() bool {
	return s.has() && s.home.isMissing() && s.isClaimed() && s.rival.Name == "" && !s.retained && !s.paused &&
		s.cluster.DeletionTimestamp.IsZero() && s.fleet.DeletionTimestamp.IsZero()
}

// look makes Fleet look at a Fleet Cluster without its namespace.
func (r *clusterReconciler) look(ctx context.Context, s *scope) error {
	have, now := s.fleet.Annotations[desired.RetargetAnnotation], r.reporter.now()
	next := desired.LookOf(have).Next(now)
	s.home.untilLook = next.Wait(now)
	return r.patchFleetCluster(ctx, s, retargeting(next.In(have)))
}

// untilHome returns the outcome of a reconcile, given the state of the Fleet Cluster's namespace: until Fleet uses that,
// the Cluster is not imported. Nothing is said about a Cluster that is not imported yet while Fleet can be expected to
// make the namespace: every import would take one write of conditions more.
func (s *scope) untilHome(result outcome) outcome {
	if !s.has() || result.isNothing() {
		return result
	}
	if s.home.isThere {
		said := meta.FindStatusCondition(s.cluster.Status.Conditions, addonsv1.FleetImportedCondition)
		if len(result.conditions) == 0 && said != nil && said.Status == metav1.ConditionFalse { // What is kept may no longer be so.
			switch {
			case said.Reason == addonsv1.WaitingForFleetReason:
				result.conditions = imported(s.cluster.Name, s.fleet.Name, stale{}, "").conditions
			case hold.PlaceOf(metav1.ConditionTrue, said.Reason) == hold.Out && isAboutHome(said.Message): // It was in Fleet before.
				result.conditions = []metav1.Condition{{Type: addonsv1.FleetImportedCondition, Status: metav1.ConditionTrue, Reason: said.Reason}}
			}
		}
		return result
	}
	switch {
	case s.home.isExpected():
		result.after = kube.Sooner(result.after, lookAfter-s.home.lacking)
	case s.mayLook():
		result.after = kube.Sooner(result.after, s.home.untilLook)
	default:
		result.after = kube.Sooner(result.after, s.home.again)
	}
	result.passing = false
	condition := meta.FindStatusCondition(result.conditions, addonsv1.FleetImportedCondition)
	if condition == nil || condition.Status != metav1.ConditionTrue {
		return result
	}
	reported := s.cluster.Status.Conditions
	if s.home.isExpected() && !meta.IsStatusConditionTrue(reported, addonsv1.FleetImportedCondition) && !meta.IsStatusConditionTrue(reported, addonsv1.FleetBundlesReadyCondition) {
		result.conditions, result.keep, result.unsaid = nil, conditionTypes, true
		return result
	}
	message := s.home.message()
	if condition.Reason != addonsv1.ImportedReason {
		message += "; " + condition.Message
	}
	condition.Status, condition.Message = metav1.ConditionFalse, message
	if hold.PlaceOf(metav1.ConditionTrue, condition.Reason) == hold.In { // Otherwise no hold may begin, with or without the namespace.
		condition.Reason = addonsv1.WaitingForFleetReason
	}
	return result
}
