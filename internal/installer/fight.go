package installer

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watched is for how long a text that has been undone before must stand until it is said to
// be in force.
const watched = 2 * time.Minute

// written is what was written last into a ConfigMap that is somebody else's, and how often that
// has been undone.
type written struct {
	text   string
	at     time.Time
	undone int
}

// record notes that a text is written. That it is the one before says that somebody has taken
// that back, but for one who has let it stand for long.
func (w *written) record(text string, now time.Time) *written {
	next := &written{text: text, at: now}
	if w != nil && w.text == text && now.Sub(w.at) < 2*lastRetry {
		next.undone = w.undone + 1
	}
	return next
}

// due is when it may be written again: at once the first time, as when somebody has upgraded
// his release, and then less and less often.
func (w *written) due() time.Time {
	if w.undone == 0 {
		return w.at
	}
	return w.at.Add(min(lastRetry, firstRetry<<min(w.undone-1, 10)))
}

// overwrite says whether a text is to be written now into a ConfigMap that is somebody else's.
// Who keeps undoing that is not fought with, but told of.
func (s *sight) overwrite(kind step, where fmt.Stringer, has, text string) (step, *metav1.Condition, time.Duration) {
	last := s.writes[kind]
	isUndone := last != nil && last.text == text
	switch {
	case has == text && isUndone && last.undone > 0 && s.now.Before(last.at.Add(watched)):
		return rest, reverted(where), last.at.Add(watched).Sub(s.now)
	case has == text:
		return rest, nil, 0
	case isUndone && s.now.Before(last.due()):
		return rest, reverted(where), last.due().Sub(s.now)
	default:
		return kind, nil, 0
	}
}

func reverted(where fmt.Stringer) *metav1.Condition {
	return configuredIs(false, ReasonReverted,
		"somebody keeps taking back what is written into ConfigMap %s; put it into the release or repository that the ConfigMap comes from, or have its key left out there; it is written less and less often, at last every %s", where, lastRetry)
}
