package desired

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Look says when Muster last made Fleet look at a Fleet Cluster without its namespace in Fleet. Fleet makes that
// namespace only when the Fleet Cluster changes, so a new value of the RetargetAnnotation is such a change. What
// is written there is all that is remembered. The zero Look means never.
type Look struct {
	number int // of the looks since the namespace has been missing
	at     time.Time
}

const (
	firstLook   = time.Minute // after the first look comes the second
	longestLook = time.Hour
	mostLooks   = 7 // more do not lengthen the interval
)

// looked matches the Look in a RetargetAnnotation, beside what Begun returns.
var looked = regexp.MustCompile(`^namespace\.([1-7])\.([0-9]{1,11})$`)

// LookOf returns the Look in a RetargetAnnotation.
func LookOf(annotation string) Look {
	for _, noted := range strings.Fields(annotation) {
		if parts := looked.FindStringSubmatch(noted); parts != nil {
			number, _ := strconv.Atoi(parts[1])
			seconds, _ := strconv.ParseInt(parts[2], 10, 64) // Both are short enough.
			return Look{number, time.Unix(seconds, 0)}
		}
	}
	return Look{}
}

// String returns the Look as it is written.
func (l Look) String() string { return fmt.Sprintf("namespace.%d.%d", l.number, l.at.Unix()) }

// In returns a RetargetAnnotation with this Look in place of an earlier one.
func (l Look) In(annotation string) string {
	others := slices.DeleteFunc(strings.Fields(annotation), looked.MatchString)
	return strings.Join(append(others, l.String()), " ")
}

// Wait returns how long until Fleet should look again, if the namespace is missing; zero if it is time. A Look in
// the future, beyond what clocks differ, counts for nothing.
func (l Look) Wait(now time.Time) time.Duration {
	if l.number == 0 || l.at.Sub(now) > firstLook {
		return 0
	}
	return max(0, l.at.Add(l.interval()).Sub(now))
}

// Next returns the Look that Fleet should take now. After a longer pause, the namespace has been there meanwhile, or
// Muster has not run: the intervals begin again.
func (l Look) Next(now time.Time) Look {
	if l.number == 0 || l.at.After(now) || now.Sub(l.at) > 2*l.interval() {
		return Look{1, now}
	}
	return Look{min(l.number+1, mostLooks), now}
}

// interval is the time until the next Look.
func (l Look) interval() time.Duration { return min(firstLook<<(l.number-1), longestLook) }
