package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

// mostKeys is larger than the number of layers of values that a HelmChartProxy may have.
const mostKeys = 20

// longestRecord is longer than any Record. Its author may write more, and each reconcile of another release on the Cluster
// reads it.
const longestRecord = 16 << 10

// RecordAnnotation on a HelmReleaseProxy holds its Record as JSON.
const RecordAnnotation = stamp.Domain + "/release"

// Record holds the facts that no other object shows: the values that Muster wrote last, whether the agent ever
// installed the release, and the time of the next retry. It is an annotation of the HelmReleaseProxy, so that
// it survives restarts and clusterctl move.
type Record struct {
	// FleetCluster is the target of the release.
	FleetCluster string `json:"fleetCluster,omitempty"`
	// Of holds the UIDs of the Cluster and the HelmReleaseProxy that the Record describes. If both change,
	// clusterctl has moved them; if only the UID of the Cluster changes, the Cluster was recreated under the
	// same name.
	Of *Of `json:"of,omitempty"`
	// Fleet is the UID of the Fleet Cluster that the values were written for, and that the rest of the Record describes. It
	// is empty in records of earlier versions until the record changes next.
	Fleet types.UID `json:"fleet,omitempty"`
	// Bundle is the UID of the Bundle that owns the values. In another one, the target would name values that the
	// garbage collector deletes, and Fleet works on no later target then.
	Bundle types.UID `json:"bundle,omitempty"`
	// Revision counts the changes of the values; its parity selects the object that holds them.
	Revision int `json:"revision,omitempty"`
	// Digest is a keyed digest of the values; only the program has the key. It is empty without values.
	Digest string `json:"digest,omitempty"`
	// Version is the version of the Cluster's topology for which the values were last rendered, if the template can
	// read it; empty if it cannot, so that the hold of an upgrade does not wait for it. Often, the values are the same as before.
	Version string `json:"version,omitempty"`
	// Keys are the keys of the layers of values, in the order in which Helm merges them.
	Keys []string `json:"keys,omitempty"`
	// Secret says that the values are in a Secret.
	Secret bool `json:"secret,omitempty"`
	// Stale says that a Secret with earlier values may still exist. At least until the agent has deployed others, it does.
	Stale bool `json:"stale,omitempty"`
	// Installed says that the agent deployed the release at least once.
	Installed bool `json:"installed,omitempty"`
	// Unforced says that the first installation has failed: see TargetOf.
	Unforced bool `json:"unforced,omitempty"`
	// Sync counts the retries of deployments that Fleet's agent has given up.
	Sync int64 `json:"sync,omitempty"`
	// Leaving is the progress of the withdrawal of a release that Helm refused to install: see Emptied.
	Leaving string `json:"leaving,omitempty"`
	// Until is when the withdrawal continues without the empty chart.
	Until *metav1.Time `json:"until,omitempty"`
	// Retry is the next retry.
	Retry *Retry `json:"retry,omitempty"`
	// Rollout is the part of the release in rollouts; nil without spec.rollout.
	Rollout *Rollout `json:"rollout,omitempty"`
}

// Rollout is the state of a release in rollouts.
type Rollout struct {
	// Content is the ContentLabel of the chart and options that the release may have, with its values.
	Content string `json:"content,omitempty"`
	// Pending is the Change that the release waits for; empty if it has the wanted content and values.
	Pending string `json:"pending,omitempty"`
	// Values says that this change includes other values.
	Values bool `json:"values,omitempty"`
	// Completed is the Change that the release had when the rollout was last completed before Since.
	Completed string `json:"completed,omitempty"`
	// Version is the version of the chart with which the release joined a rollout: see JoinVersion.
	Version string `json:"version,omitempty"`
	// Joined is when the release got its first Content.
	Joined *metav1.Time `json:"joined,omitempty"`
	// Ahead says that the release joined while the HelmChartProxy had another spec than that of the last completed
	// rollout, and has not gone back since.
	Ahead bool `json:"ahead,omitempty"`
	// Since is when the release last got a change in a rollout.
	Since *metav1.Time `json:"since,omitempty"`
	// Ready is since when the release has been ready with its current state, and Unready since when it no longer is.
	Ready   *metav1.Time `json:"ready,omitempty"`
	Unready *metav1.Time `json:"unready,omitempty"`
	// Failed says that the agent could not deploy that state.
	Failed bool `json:"failed,omitempty"`
	// Regression is when the release ceased to be ready.
	Regression *Regression `json:"regression,omitempty"`
}

// Regression is when a release ceased to be ready, and how long it had been.
type Regression struct {
	At    metav1.Time     `json:"at"`
	After metav1.Duration `json:"after"`
}

// Failure returns the hash of what may halt a rollout, and a person may excuse: the state that the release has, and when
// it ceased to be ready.
func (r Record) Failure() string {
	return Digest([]byte(JSON([]any{r.Revision, r.Digest, r.Rollout.Regression})))
}

// GrantedAnnotation on a HelmReleaseProxy is the hash of the change that the rollout allows the release to get,
// addonsv1.RolloutApprovedAnnotation is the hash of the change that a person has approved for it, and
// addonsv1.RolloutRetryAnnotation is the hash of the Failure that a person has excused.
const GrantedAnnotation = stamp.Domain + "/rollout-granted"

// Holds reports whether an installed release waits for another content than the one of a Bundle, or has yet to report
// its own.
func Holds(release *addonsv1.HelmReleaseProxy, content string) bool {
	record := RecordOf(release)
	return record.Installed && (record.Rollout == nil || record.Rollout.Content != content)
}

// PutBack returns the state with now in place of later times, which come from a clock that was ahead, or from others.
// What the release got after the last completed rollout of its HelmChartProxy stays later than that.
func (r Rollout) PutBack(proxy *addonsv1.HelmChartProxy, now time.Time) *Rollout {
	latest := now
	if after := AfterCompleted(proxy); after != nil && !r.IsCompleted(proxy) && after.After(now) {
		latest = after.Time
	}
	r.Ready, r.Unready, r.Since, r.Joined = notAfter(now, r.Ready), notAfter(now, r.Unready), notAfter(latest, r.Since), notAfter(latest, r.Joined)
	return &r
}

func notAfter(latest time.Time, at *metav1.Time) *metav1.Time {
	if at != nil && at.After(latest) {
		return later(latest, 0)
	}
	return at
}

// UnreadyPatience is how long a release may be unready before that counts as a regression. Its Deployments are
// unready for seconds whenever a node is drained.
const UnreadyPatience = 5 * time.Minute

// After returns what follows from the observed state of the release, and the delay before the next reconcile; zero
// for none. After the longest soak time, the state no longer matters. While a release waits for Fleet or its
// agent, nothing follows.
func (r Rollout) After(release Release, longest time.Duration, now time.Time) (*Rollout, time.Duration) {
	isFailed := release.Failed && !release.WithoutValues
	switch {
	case r.Pending != "":
	case release.Healthy && (r.Ready == nil || r.Unready != nil):
		r.Ready, r.Unready, r.Failed = later(now, 0), nil, false
	case release.Healthy, r.Ready == nil, now.Sub(r.Ready.Time) >= longest && r.Unready == nil:
	case release.Deployed && r.Unready == nil:
		r.Unready = later(now, 0)
		return &r, UnreadyPatience
	case release.Deployed && now.Sub(r.Unready.Time) < UnreadyPatience:
		return &r, UnreadyPatience - now.Sub(r.Unready.Time)
	case isFailed, release.Deployed:
		at := later(now, 0).Time
		if r.Unready != nil {
			at = r.Unready.Time
		}
		after := metav1.Duration{Duration: at.Sub(r.Ready.Time)}
		if r.Regression == nil || after.Duration < r.Regression.After.Duration {
			r.Regression = &Regression{At: *later(now, 0), After: after}
		}
		r.Ready, r.Unready = nil, nil
	}
	if r.Pending == "" && r.Ready == nil {
		r.Failed = r.Failed || isFailed
	}
	return &r, 0
}

// If Helm refuses to install a release, a copy of its values stays on the cluster: Fleet's agent removes copies
// only when it uninstalls (seen on Fleet 0.16). So the agent first installs an empty chart in its place.
const (
	// Emptied says that the target is the empty chart, and Withdrawn that the target may go.
	Emptied   = "Emptied"
	Withdrawn = "Withdrawn"
)

// Of identifies the objects that a Record describes.
type Of struct {
	Cluster types.UID `json:"cluster"`
	Release types.UID `json:"release"`
}

// IsMadeAnew reports whether a Record describes an earlier Cluster of the same name.
func (r Record) IsMadeAnew(of Of) bool {
	return r.Of != nil && r.Of.Cluster != of.Cluster && r.Of.Release == of.Release
}

// On returns the Record for another Fleet Cluster of the same name: it keeps the values, which the target names, and
// nothing that the agent of the last one has done.
func (r Record) On(fleet types.UID) Record {
	r.Fleet, r.Installed, r.Unforced, r.Retry, r.Rollout = fleet, false, false, nil, nil
	return r
}

// Retry is the next retry of a failed deployment.
type Retry struct {
	// Of is the digest of the failed content and values; for others, the delays start again.
	Of string `json:"of"`
	// Count is the number of retries so far.
	Count int `json:"count"`
	// At is the time of the next retry; nil once it has begun.
	At *metav1.Time `json:"at,omitempty"`
}

// RecordOf reads the Record of a HelmReleaseProxy. An invalid annotation gives the empty Record: Muster then
// writes everything again.
func RecordOf(release metav1.Object) Record {
	var record Record
	text := release.GetAnnotations()[RecordAnnotation]
	if len(text) > longestRecord {
		return Record{}
	}
	err := json.Unmarshal([]byte(text), &record)
	isCount := func(number int64) bool { return 0 <= number && number <= math.MaxInt32 }
	switch {
	case err != nil, !isCount(int64(record.Revision)), !isCount(record.Sync), record.Retry != nil && !isCount(int64(record.Retry.Count)), len(record.Keys) > mostKeys:
		return Record{}
	case record.FleetCluster != "" && !stamp.IsFleetName(record.FleetCluster): // With a dot, the values would have the names of another release's.
		return Record{}
	}
	return record
}

// ReadRecord returns what RecordOf reads of the annotation, and nothing else.
func ReadRecord(release metav1.Object) string {
	if text := RecordOf(release).String(); len(text) <= longestRecord { // JSON escapes some characters.
		return text
	}
	return Record{}.String()
}

// String returns the annotation.
func (r Record) String() string { return JSON(r) }

// Key returns the key in the object for a layer of values. It contains the revision: an agent with an older
// copy of the object does not find the key, and waits.
func (r Record) Key(key string) string { return fmt.Sprintf("%d-%s", r.Revision, key) }

const (
	// firstDelay is the delay before a retry if the agent has given up, and slowDelay if it retries by itself,
	// at delays that grow to 16 minutes. Both delays double up to LastDelay.
	firstDelay = 5 * time.Second
	slowDelay  = 2 * time.Minute
	// LastDelay is how long, at most, what failed waits for the next try, and what has no event for the next look.
	LastDelay = 10 * time.Minute
)

// After returns the record after a deployment of this content and these values, and the delay before the next
// reconcile; zero for none.
func (r Record) After(release Release, of string, now time.Time) (Record, time.Duration) {
	switch {
	case release.Deployed:
		r.Installed, r.Unforced, r.Retry = true, false, nil
		return r, 0
	case !release.Failed:
		return r, 0
	case !r.Installed && !r.Unforced && !release.Refused:
		// Helm has stored a release. A retry with force would replace the objects of the first attempt; without
		// force, Helm completes that attempt.
		r.Unforced, r.Retry = true, nil
		r.Sync++
		return r, 0
	}
	delay := slowDelay
	if release.GivenUp {
		delay = firstDelay
	} else if age := now.Sub(release.Since); r.Retry == nil && age < slowDelay { // Most such failures are transient.
		return r, slowDelay - age
	}
	switch {
	case r.Retry == nil || r.Retry.Of != of || r.Retry.At != nil && r.Retry.At.After(now.Add(LastDelay)): // The clock was ahead.
		r.Retry = &Retry{Of: of, At: later(now, delay)}
	case r.Retry.At == nil: // The last retry failed, too.
		r.Retry = &Retry{Of: of, Count: r.Retry.Count, At: later(now, min(delay<<min(r.Retry.Count, 10), LastDelay))}
	case !now.Before(r.Retry.At.Time):
		r.Sync++
		r.Retry = &Retry{Of: of, Count: r.Retry.Count + 1}
		return r, 0
	}
	return r, max(r.Retry.At.Sub(now), 1) // Zero would mean never.
}

func later(now time.Time, delay time.Duration) *metav1.Time {
	at := metav1.NewTime(now.Add(delay).UTC()).Rfc3339Copy()
	return &at
}
