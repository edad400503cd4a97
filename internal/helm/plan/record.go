package plan

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/stamp"
)

// mostKeys is more layers of values than a HelmChartProxy has.
const mostKeys = 20

// RecordAnnotation on a HelmReleaseProxy holds its Record as JSON.
const RecordAnnotation = stamp.Domain + "/release"

// Record holds what no other object shows: the values that Muster wrote last, whether the agent ever
// installed the release, and the time of the next retry. It is an annotation of the HelmReleaseProxy, so
// that it survives restarts and clusterctl move.
type Record struct {
	// FleetCluster is the target of the release.
	FleetCluster string `json:"fleetCluster,omitempty"`
	// Of are the UIDs of the Cluster and of the HelmReleaseProxy for which all this holds. If both are others,
	// clusterctl has moved them; if the Cluster alone is, it was made anew under the same name.
	Of *Of `json:"of,omitempty"`
	// Revision counts the changes of the values; its parity says in which object they lie.
	Revision int `json:"revision,omitempty"`
	// Digest is that of the values, with a key that only the program has; empty for none.
	Digest string `json:"digest,omitempty"`
	// Keys are those of the values in the object, in the order in which Helm merges them.
	Keys []string `json:"keys,omitempty"`
	// Secret says that the values lie in a Secret.
	Secret bool `json:"secret,omitempty"`
	// Secretive says that the values lie in a Secret, or did when the release was last deployed.
	Secretive bool `json:"secretive,omitempty"`
	// Stale says that a Secret with earlier values may still be there.
	Stale bool `json:"stale,omitempty"`
	// Installed says that the release has been deployed at least once.
	Installed bool `json:"installed,omitempty"`
	// Unforced says that the first installation has failed: see TargetOf.
	Unforced bool `json:"unforced,omitempty"`
	// Sync counts the retries of deployments that Fleet's agent has given up.
	Sync int64 `json:"sync,omitempty"`
	// Leaving says how far the withdrawal of a release is that Helm has refused to install: see Emptied.
	Leaving string `json:"leaving,omitempty"`
	// Retry is the next of these.
	Retry *Retry `json:"retry,omitempty"`
}

// A release that Helm has refused to install leaves its values on the cluster: Fleet's agent removes copies
// only when it uninstalls (seen on Fleet 0.16). So it first installs an empty chart in its place.
const (
	// Emptied is while the target is the empty chart, and Withdrawn after that.
	Emptied   = "Emptied"
	Withdrawn = "Withdrawn"
)

// Of says what a Record is about, by UIDs.
type Of struct {
	Cluster types.UID `json:"cluster"`
	Release types.UID `json:"release"`
}

// IsMadeAnew reports whether a Record is about another Cluster of the same name.
func (r Record) IsMadeAnew(of Of) bool {
	return r.Of != nil && r.Of.Cluster != of.Cluster && r.Of.Release == of.Release
}

// Retry is the next retry of a failed deployment.
type Retry struct {
	// Of is the digest of the failed content and values; others begin at the shortest delay.
	Of string `json:"of"`
	// Count is how often it failed.
	Count int `json:"count"`
	// At is when to try again; nil if that was done.
	At *metav1.Time `json:"at,omitempty"`
}

// RecordOf reads the Record of a HelmReleaseProxy. An invalid annotation gives the empty Record: Muster then
// writes everything again.
func RecordOf(release metav1.Object) Record {
	var record Record
	if json.Unmarshal([]byte(release.GetAnnotations()[RecordAnnotation]), &record) != nil || record.Revision < 0 || record.Sync < 0 ||
		record.Retry != nil && record.Retry.Count < 0 || len(record.Keys) > mostKeys {
		return Record{}
	}
	return record
}

// String returns the annotation.
func (r Record) String() string {
	text, err := json.Marshal(r)
	if err != nil { // It is text, numbers and times.
		panic(err)
	}
	return string(text)
}

// Key returns the key in the object for a key of the values. It has the revision in it: an agent that
// still has an older copy of the object finds nothing, and waits.
func (r Record) Key(key string) string { return fmt.Sprintf("%d-%s", r.Revision, key) }

const (
	// firstDelay is the delay before a retry if the agent has given up, and slowDelay if it retries by itself,
	// at delays that grow to 16 minutes. Both double up to lastDelay.
	firstDelay = 5 * time.Second
	slowDelay  = 2 * time.Minute
	lastDelay  = 10 * time.Minute
)

// After returns the record after a deployment, of content and values, and how long to wait until the next
// reconcile; zero if no time matters.
func (r Record) After(release Release, of string, now time.Time) (Record, time.Duration) {
	switch {
	case release.Deployed:
		r.Installed, r.Unforced, r.Retry, r.Secretive = true, false, nil, r.Secret
		return r, 0
	case !release.Failed:
		return r, 0
	case !r.Installed && !r.Unforced && !release.Refused:
		// Helm has stored a release. To retry with force would replace what the first try has made; without it, Helm
		// goes on as that began.
		r.Unforced, r.Retry = true, nil
		r.Sync++
		return r, 0
	}
	delay := slowDelay
	if release.GivenUp {
		delay = firstDelay
	} else if age := now.Sub(release.Since); r.Retry == nil && age < slowDelay { // Most of these pass by themselves.
		return r, slowDelay - age
	}
	switch {
	case r.Retry == nil || r.Retry.Of != of:
		r.Retry = &Retry{Of: of, At: later(now, delay)}
	case r.Retry.At == nil: // The last retry failed, too.
		r.Retry = &Retry{Of: of, Count: r.Retry.Count, At: later(now, min(delay<<min(r.Retry.Count, 10), lastDelay))}
	case !now.Before(r.Retry.At.Time):
		r.Sync++
		r.Retry = &Retry{Of: of, Count: r.Retry.Count + 1}
		return r, 0
	}
	return r, max(r.Retry.At.Sub(now), time.Millisecond)
}

func later(now time.Time, delay time.Duration) *metav1.Time {
	at := metav1.NewTime(now.Add(delay).Truncate(time.Second).UTC())
	return &at
}
