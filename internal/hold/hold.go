// Package hold decides when an upgrade waits for its add-ons. The webhook puts a hold on a Cluster in the
// request that changes the version (OnUpdate), and the syncer takes it off (Decide). The package is pure: it knows no
// API server.
package hold

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/stamp"
)

// TopologyVersion is the path in template values of the version that changes in the request that starts an upgrade.
var TopologyVersion = []string{"Cluster", "spec", "topology", "version"}

const (
	// Longest is the longest bound: a hold also keeps back other changes of the topology.
	Longest = 24 * time.Hour
	// skew is how far the clocks of two programs may differ.
	skew = time.Minute

	// longestVersion is the limit of Cluster API, and longestValue what Muster shows of a wrong value.
	longestVersion = 256
	longestValue   = 64
)

// Hold is the value of stamp.HookAnnotation: from which version to which, and since when.
type Hold struct {
	From  string    `json:"from"`
	To    string    `json:"to"`
	Since time.Time `json:"since"`
	// More means that the same request changed the class, variables, labels or annotations, so that other
	// add-ons may be selected, or change.
	More bool `json:"more,omitempty"`
}

// String returns the annotation.
func (h Hold) String() string {
	h.Since = metav1.NewTime(h.Since.UTC()).Rfc3339Copy().Time
	encoded, err := json.Marshal(h)
	if err != nil { // Its fields can always be encoded.
		panic(err)
	}
	return string(encoded)
}

// Parse reads the annotation. It returns false for a value that Muster does not write.
func Parse(annotation string) (Hold, bool) {
	var h Hold
	if len(annotation) > 4*longestVersion || json.Unmarshal([]byte(annotation), &h) != nil {
		return Hold{}, false
	}
	h.Since = metav1.NewTime(h.Since.UTC()).Rfc3339Copy().Time
	return h, isVersion(h.From) && isVersion(h.To) && h.Since.Year() >= 2000 && h.Since.Year() < 9999
}

// isVersion reports whether a text may be a version of Kubernetes. Messages contain it.
func isVersion(text string) bool {
	isOther := func(r rune) bool {
		return !strings.ContainsRune(".+-", r) && (r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}
	return text != "" && len(text) <= longestVersion && !strings.ContainsFunc(text, isOther)
}

// isOver reports whether the bound has passed.
func (h Hold) isOver(bound time.Duration, now time.Time) bool { return !now.Before(h.Since.Add(bound)) }

// Bound returns how long an upgrade of a Cluster with these annotations may be held; zero without such an
// annotation. The Cluster's own annotation takes precedence over its class. The error says what cannot be
// used.
func Bound(annotations map[string]string) (time.Duration, error) {
	key := stamp.HoldAnnotation
	value, found := annotations[key]
	if !found {
		key = stamp.ClassHoldAnnotation
		if value, found = annotations[key]; !found {
			return 0, nil
		}
	}
	bound, err := time.ParseDuration(strings.TrimSpace(value))
	if err != nil || bound < 0 {
		return 0, fmt.Errorf("annotation %s: %q is no duration such as 30m or 1h30m, so no upgrade is held", key, message.Short(value, longestValue))
	}
	return min(bound, Longest), nil
}

// Place says where a Cluster is, by its FleetImportedCondition.
type Place int

// Out means that the Cluster is not, or no longer, in Fleet, or that Muster does not give Fleet its versions: the Fleet
// Cluster of an attached one is Rancher's, and that of a deselected one, or of one with too much to copy, stays as it is.
// In means that it is in Fleet. Disturbed means that it cannot be in Fleet now, for example because of an error. Returning
// means that Fleet or Muster is making its objects in Fleet again.
const (
	Out Place = iota
	In
	Disturbed
	Returning
)

// mayBegin reports whether a hold may begin there.
func (p Place) mayBegin() bool { return p == In || p == Returning }

// PlaceOf returns the Place of a Cluster with this status and reason of its FleetImportedCondition; both are empty if there is
// none.
func PlaceOf(status metav1.ConditionStatus, reason string) Place {
	switch {
	case status == "", reason == addonsv1.AttachedReason, reason == addonsv1.DeselectedReason, reason == addonsv1.TooMuchMetadataReason:
		return Out
	case status == metav1.ConditionTrue:
		return In
	case reason == addonsv1.WaitingForFleetReason, reason == addonsv1.FleetClusterDeletingReason:
		return Returning
	}
	return Disturbed
}

// Cluster holds the fields of a Cluster that decide whether its upgrade is held.
type Cluster struct {
	Labels, Annotations map[string]string
	// Version is spec.topology.version; empty without a topology.
	Version string
	// Class and Variables are those of the topology.
	Class     types.NamespacedName
	Variables string
	Paused    bool
	Place     Place
}

// pendingHooks is the annotation in which Cluster API notes the hooks of an upgrade that is under way. As long as it names
// AfterClusterUpgrade, Cluster API does not look for the annotation of a hold, whatever versions a status has.
const pendingHooks = "runtime.cluster.x-k8s.io/pending-hooks"

func (c Cluster) isUpgrading() bool {
	return strings.Contains(c.Annotations[pendingHooks], "AfterClusterUpgrade")
}

// OnUpdate returns the value that stamp.HookAnnotation should have after an update; empty for none. A
// hold begins in the request that changes the version, and ends in one that changes it back. Before that,
// only the syncer ends it, or a request that opts out: a PUT of an older copy of the Cluster lacks the
// annotation, too. No
// request brings a hold of its own.
func OnUpdate(before, after Cluster, bySyncer bool, now time.Time) string {
	has, wanted := before.Annotations[stamp.HookAnnotation], after.Annotations[stamp.HookAnnotation]
	current, isHeld := Parse(has)
	bound, _ := Bound(after.Annotations)
	switch {
	case bySyncer && wanted == "":
		return ""
	case bound == 0 && before.Version == after.Version:
		if asked, _ := Bound(before.Annotations); asked == 0 && wanted == has {
			return has // It was not opted in before either: the syncer, or a person, removes a hold that is abandoned.
		}
		return ""
	case bound == 0:
		return ""
	case before.Version != after.Version:
		return onVersion(current, isHeld, before, after, now)
	case isHeld && current.To == after.Version && !current.isOver(bound, now), wanted == has:
		return has
	default:
		return ""
	}
}

// OnCreate returns the value that stamp.HookAnnotation should have on a new Cluster; empty for none. A hold goes with a
// Cluster that clusterctl moves. Its bound began on the other side. clusterctl creates Clusters paused, and no other
// new Cluster keeps a hold.
func OnCreate(cluster Cluster, now time.Time) string {
	value := cluster.Annotations[stamp.HookAnnotation]
	held, valid := Parse(value)
	if bound, _ := Bound(cluster.Annotations); !valid || !cluster.Paused || held.To != cluster.Version || held.isOver(bound, now) {
		return ""
	}
	return value
}

// onVersion returns the annotation after a change of the version.
func onVersion(current Hold, isHeld bool, before, after Cluster, now time.Time) string {
	next := Hold{
		From: before.Version, To: after.Version, Since: now,
		More: before.Class != after.Class || before.Variables != after.Variables || !maps.Equal(before.Labels, after.Labels) || !maps.Equal(others(before.Annotations), others(after.Annotations)),
	}
	switch {
	case before.Version == "", after.Version == "", isHeld && after.Version == current.From:
		return ""
	case isHeld: // Cluster API has not begun with the earlier version.
		next.From, next.More = current.From, next.More || current.More
		return next.String()
	case !before.Place.mayBegin(), after.Paused, after.isUpgrading():
		return ""
	default:
		return next.String()
	}
}

// others returns the annotations that templates and selectors may read.
func others(annotations map[string]string) map[string]string {
	result := maps.Clone(annotations)
	maps.DeleteFunc(result, func(key, _ string) bool {
		return key == stamp.HookAnnotation || strings.HasPrefix(key, stamp.Domain+"/") || key == "kubectl.kubernetes.io/last-applied-configuration"
	})
	return result
}

// overdue is how long after its bound a hold counts as left behind: the syncer that watches the Cluster ends it within
// moments. After that, any syncer ends it.
const overdue = 5 * time.Minute

// Abandoned says why nothing may end the hold of a Cluster with these annotations; empty if the syncer will,
// or if there is none. It freezes the topology.
func Abandoned(annotations map[string]string, now time.Time) string {
	value, has := annotations[stamp.HookAnnotation]
	held, valid := Parse(value)
	bound, _ := Bound(annotations)
	switch {
	case !has:
		return ""
	case !valid:
		return "Muster did not write it"
	case bound == 0:
		return "the Cluster does not ask for it"
	case held.isOver(bound+overdue, now):
		return fmt.Sprintf("it began at %s and was to end after %s: the Cluster is paused, or no syncer that runs watches it", held.Since.UTC().Format(time.RFC3339), bound)
	default:
		return ""
	}
}

// Why says until when the upgrade of a Cluster with these annotations is held, or why nothing may end the hold; empty
// without one.
func Why(annotations map[string]string, now time.Time) string {
	held, valid := Parse(annotations[stamp.HookAnnotation])
	why := Abandoned(annotations, now)
	if why != "" || !valid {
		return why
	}
	bound, _ := Bound(annotations)
	return fmt.Sprintf("%s to %s waits for its add-ons until %s at the latest", held.From, held.To, held.Since.Add(bound).UTC().Format(time.RFC3339))
}
