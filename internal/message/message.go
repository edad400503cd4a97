// Package message keeps texts for people within what the API server takes.
package message

import "strings"

const (
	// Condition is how long the message of a condition may be, in bytes. The API server
	// refuses more than 32 KiB, and what Fleet, Helm or an admission webhook says has no bound.
	Condition = 4 << 10
	// Note is what the API server takes for an event, in bytes (validation of
	// events.k8s.io/v1); a longer note loses the event.
	Note = 1024
)

// Short returns a message that is no longer than this many bytes.
func Short(message string, longest int) string {
	const more = "…"
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest-len(more)], "") + more
}
