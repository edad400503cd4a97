package hold

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// settle is how long a Bundle whose values may depend on the version must stay unchanged before Muster
	// believes that Fleet has nothing to change. Fleet records nowhere which template values it has seen,
	// and takes a second or two.
	settle = 15 * time.Second
	// renderTime is the same for a HelmChartProxy whose template reads the version.
	renderTime = time.Minute
	// named is how many add-ons a message names.
	named = 3
)

// AddOn is a Bundle or a HelmChartProxy on a cluster.
type AddOn struct {
	Name string
	// ID changes with what is to be deployed.
	ID string
	// Ready means that what is to be deployed is deployed and ready.
	Ready bool
	// Patience is how long an unchanged ID must last to prove that nothing changes; zero if the version
	// cannot matter.
	Patience time.Duration
}

// AddOns are the add-ons of a Cluster at one moment.
type AddOns struct {
	// Handed means that Fleet has been given the new version.
	Handed bool
	All    []AddOn
}

// PatienceForBundle is the Patience for a Bundle whose values Fleet renders.
func PatienceForBundle(hasValues bool) time.Duration {
	if hasValues {
		return settle
	}
	return 0
}

// PatienceForTemplate is the Patience for a HelmChartProxy.
func PatienceForTemplate(template string) time.Duration {
	if Reads(template, TopologyVersion) {
		return renderTime
	}
	return 0
}

// Memory is what was seen of the add-ons since the hold began. It is lost with the program, and then
// unchanged add-ons cost their patience again.
type Memory struct {
	// Of is the hold that the rest is about.
	Of      string
	first   map[string]string
	last    map[string]string
	handed  time.Time
	changed map[string]bool
	moved   time.Time
}

// Progress says how far the add-ons are.
type Progress struct {
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

// String describes what is waited for.
func (p Progress) String() string {
	switch {
	case !p.Handed:
		return "Fleet has not been given the new version yet"
	case len(p.Waiting) > 0:
		return "waits for " + list(p.Waiting)
	default:
		return "waits for changes of " + list(p.Unproven)
	}
}

func list(names []string) string {
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
}

// See compares the add-ons with those that were seen first, notes them, and says how far they are.
func (m *Memory) See(of Hold, seen AddOns, now time.Time) Progress {
	if m.Of != of.String() {
		*m = Memory{Of: of.String(), first: map[string]string{}, last: map[string]string{}, changed: map[string]bool{}}
		for _, addOn := range seen.All {
			m.first[addOn.Name] = addOn.ID
		}
		m.moved = now
	}
	if seen.Handed && m.handed.IsZero() {
		m.handed = now
	}
	m.note(seen, now)
	progress := Progress{Handed: seen.Handed, Changed: len(m.changed) > 0}
	quiet := now.Sub(latest(m.handed, m.moved))
	for _, addOn := range seen.All {
		patience := addOn.Patience
		switch {
		case !addOn.Ready:
			progress.Waiting = append(progress.Waiting, addOn.Name)
		case m.changed[addOn.Name] || quiet >= patience:
		default:
			progress.Unproven = append(progress.Unproven, addOn.Name)
			progress.Again = max(progress.Again, patience-quiet)
		}
	}
	if of.More && quiet < settle { // Fleet may select other Bundles.
		progress.Unproven = append(progress.Unproven, "Bundles that other labels select")
		progress.Again = max(progress.Again, settle-quiet)
	}
	slices.Sort(progress.Waiting)
	slices.Sort(progress.Unproven)
	return progress
}

// note records which add-ons have changed, come or gone.
func (m *Memory) note(seen AddOns, now time.Time) {
	ids := make(map[string]string, len(seen.All))
	for _, addOn := range seen.All {
		ids[addOn.Name] = addOn.ID
		if first, known := m.first[addOn.Name]; !known || first != addOn.ID {
			m.changed[addOn.Name] = true
		}
		if m.last[addOn.Name] != addOn.ID {
			m.moved = now
		}
	}
	if len(m.last) != len(ids) && len(m.last) > 0 {
		m.moved = now
	}
	m.last = ids
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
