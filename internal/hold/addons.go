package hold

import (
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/message"
)

// Settle is how long after Fleet was given the version a Bundle whose values may depend on it must be
// unchanged before Muster believes that Fleet has nothing to change. Fleet records nowhere which template values it has seen,
// and takes a second or two.
const Settle = 15 * time.Second

// AddOn is a Bundle or a HelmChartProxy on a cluster.
type AddOn struct {
	Name string
	// ID changes with the wanted deployment, and Changed is when the wanted deployment last changed.
	ID      string
	Changed time.Time
	// Ready means that the wanted deployment is there, and ready. For a HelmChartProxy, it is for the new version.
	Ready bool
	// ByFleet means that Fleet renders its values, so that it cannot change for the new version before Fleet has that.
	ByFleet bool
	// Patience is how long an unchanged ID must last to prove that nothing changes; zero if the version
	// cannot matter. With ReadAtIntervals, a change proves nothing either: inputs that Muster reads again at an interval may have
	// changed together with the version.
	Patience        time.Duration
	ReadAtIntervals bool
}

// AddOns are the add-ons of a Cluster at one moment.
type AddOns struct {
	// Home identifies the Fleet Cluster and its namespace. In another one, Fleet deploys everything anew.
	Home string
	// Since is when the younger of both was made. Fleet needs a moment to deploy anything there.
	Since time.Time
	// Handed means that Fleet has been given the new version.
	Handed bool
	All    []AddOn
}

// Memory notes the add-ons of a Cluster since its hold began. If the program restarts, the patience for
// unchanged add-ons begins anew.
type Memory struct {
	// of is the hold, and the Home, that the rest is about.
	of     string
	first  map[string]string
	handed time.Time
	// unhanded is when Fleet last had the old version.
	unhanded time.Time
	changed  map[string]bool
}

// Progress says how far the add-ons are.
type Progress struct {
	// Unreadable means that this is not known now. All else is empty then.
	Unreadable bool
	// Waiting names the add-ons that are not ready, Unproven those that have not changed and may do so yet.
	Waiting, Unproven []string
	// Handed means that Fleet has been given the new version.
	Handed bool
	// Changed means that an add-on was changed for the new version.
	Changed bool
	// Again is when the unproven ones are believed.
	Again time.Duration
}

func (p Progress) isDone() bool { return p.Handed && len(p.Waiting) == 0 && len(p.Unproven) == 0 }

// String says why the hold goes on.
func (p Progress) String() string {
	switch {
	case p.Unreadable:
		return "the add-ons could not be read; the syncer's log says why"
	case !p.Handed:
		return "Fleet has not been given the new version yet"
	case len(p.Waiting) > 0:
		return "not ready: " + message.Names(p.Waiting)
	default:
		return "may still change: " + message.Names(p.Unproven)
	}
}

// Unready returns the progress if one of these add-ons is not ready, and the others need no look; false if
// all are, or if the hold or Home is new: what is seen first is compared with later.
func (m *Memory) Unready(of Hold, seen AddOns) (Progress, bool) {
	progress := Progress{Handed: seen.Handed && m.of == of.String()+seen.Home && !m.handed.IsZero()}
	for _, addOn := range seen.All {
		if !addOn.Ready {
			progress.Waiting = append(progress.Waiting, addOn.Name)
		}
	}
	slices.Sort(progress.Waiting)
	return progress, progress.Handed && len(progress.Waiting) > 0
}

// compare notes whether an add-on has changed for the new version.
func (m *Memory) compare(of Hold, addOn AddOn, handed bool) {
	since := of.Since
	if addOn.ByFleet && !m.unhanded.IsZero() {
		since = m.unhanded
	}
	// Times have seconds. What Fleet changed in that second is known only by comparison. A HelmChartProxy is rendered within
	// milliseconds, often before the first look, and what it rendered before that is not deployed yet.
	isLater := addOn.Changed.After(since) || !addOn.ByFleet && addOn.Changed.Equal(since)
	if addOn.ByFleet && !handed {
		m.first[addOn.Name] = addOn.ID
	} else if first, known := m.first[addOn.Name]; !known || first != addOn.ID || isLater {
		m.changed[addOn.Name] = true
	}
}

// See compares the add-ons with those that were seen first, and says how far they are.
func (m *Memory) See(of Hold, seen AddOns, now time.Time) Progress {
	if m.of != of.String()+seen.Home {
		*m = Memory{of: of.String() + seen.Home, first: map[string]string{}, changed: map[string]bool{}}
		for _, addOn := range seen.All {
			m.first[addOn.Name] = addOn.ID
		}
	}
	if seen.Handed && m.handed.IsZero() {
		m.handed = now
	}
	if !seen.Handed {
		m.unhanded = now
	}
	progress := Progress{Handed: seen.Handed}
	unproven := func(name string, patience time.Duration) {
		left := patience
		if !m.handed.IsZero() {
			left -= now.Sub(m.handed)
		}
		if left > 0 {
			progress.Unproven = append(progress.Unproven, name)
			progress.Again = max(progress.Again, left)
		}
	}
	for _, addOn := range seen.All {
		m.compare(of, addOn, seen.Handed)
		switch {
		case !addOn.Ready:
			progress.Waiting = append(progress.Waiting, addOn.Name)
		case addOn.ReadAtIntervals, !m.changed[addOn.Name]:
			unproven(addOn.Name, addOn.Patience)
		}
	}
	if of.More { // Fleet may select other Bundles.
		unproven("Bundles that other labels select", Settle)
	}
	if seen.Since.After(of.Since) { // The Cluster was moved, or its objects in Fleet were made anew.
		unproven("Bundles that Fleet has not deployed yet", Settle)
	}
	progress.Changed = len(m.changed) > 0
	slices.Sort(progress.Waiting)
	slices.Sort(progress.Unproven)
	return progress
}
